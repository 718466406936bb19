//! A rank that may be killed, or that survives: a loop of collectives beside a watch on the communicator's state, as
//! programs with a watchdog have it.

use crate::call::{Call, Function};
use crate::driver::{self, Outcome};
use crate::nccl::{self, Comm};
use crate::pattern::mix;
use crate::rank::Rank;

/// A split that makes one or two children, which end again; the code of the first call that fails.
fn split(rank: &Rank, comm: Comm, turn: u64) -> i32 {
    let nccl = rank.nccl;
    let mut child = Comm::NULL;
    let color = if turn.is_multiple_of(2) { 0 } else { rank.rank as i32 % 2 };
    match nccl.split(comm, color, -(rank.rank as i32), &mut child, None) {
        nccl::SUCCESS => nccl.destroy(child),
        code => code,
    }
}

/// Joins, tells the coordinator, and works until an error comes; the report is the error, after an orderly end.
pub fn run(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let stream = rank.enter()?;
    let id = rank.shared_id()?;
    rank.mark("joining")?;
    let mut comm = Comm::NULL;
    let code = nccl.init_rank(&mut comm, rank.nranks as i32, id, rank.rank as i32);
    if code != nccl::SUCCESS {
        let text = nccl.last_error(Comm::NULL);
        rank.mark(&format!("error {code} {text}"))?;
        return Ok(format!("init {code} {text}"));
    }
    rank.mark("joined")?;
    let sizes = [10, 20_000, 400_000];
    let (send, recv) =
        (driver::alloc(4 * sizes[2] * rank.nranks)?, driver::alloc(4 * sizes[2] * rank.nranks)?);
    let mut state = nccl::SUCCESS;
    let mut turn = 0;
    while state == nccl::SUCCESS {
        turn += 1;
        if rank.arg("work") == Some("splits") {
            state = split(rank, comm, turn);
            continue;
        }
        let random = mix(turn) as usize;
        let call = Call {
            function: Function::ALL[random % Function::ALL.len()],
            root: random / 64 % rank.nranks,
            ..Call::sum(rank.rank, rank.nranks, sizes[random / 1024 % 3], turn as usize)
        };
        if call.enqueue(nccl, comm, stream, send, recv).is_err() {
            // The state says why: a call on a communicator in error is refused.
            state = nccl.async_error(comm);
            break;
        }
        while state == nccl::SUCCESS && !driver::is_idle(stream)? {
            state = nccl.async_error(comm);
            std::thread::yield_now();
        }
    }
    let text = nccl.last_error(comm);
    rank.mark(&format!("error {state} {text}"))?;
    nccl.ok("ncclCommAbort", Comm::NULL, nccl.abort(comm))?;
    // The context is healthy: kernels have left, other work runs.
    driver::synchronize(stream)?;
    driver::set(recv, 7, 4096, stream)?;
    let mut got = [0; 4096];
    driver::download(recv, &mut got, stream)?;
    crate::ensure!(got == [7; 4096], "the device no longer works");
    Ok(format!("loop {state} {text}"))
}
