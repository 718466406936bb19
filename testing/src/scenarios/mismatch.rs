//! Ranks whose calls do not match: both sides are told, nothing is overwritten, the communicator stays refused.

use std::time::{Duration, Instant};

use crate::call::Call;
use crate::check::{Checker, Shift};
use crate::driver::{self, Outcome, Stream};
use crate::nccl::{Comm, INVALID_USAGE, REMOTE, SUCCESS};
use crate::rank::Rank;
use crate::reference::{Op, Type};
use crate::scenarios::misuse::refused;

/// What one rank calls.
#[derive(Clone, Copy)]
struct Wrong {
    function: &'static str,
    count: usize,
    t: Type,
    op: Op,
    root: i32,
}

const RIGHT: Wrong = Wrong { function: "all_reduce", count: 1000, t: Type::Float32, op: Op::Sum, root: 0 };

/// The pair of calls of a case, and what the sentence has to name.
fn pair(case: &str, count: usize) -> Option<(Wrong, Wrong, &'static [&'static str])> {
    let right = Wrong { count, ..RIGHT };
    Some(match case {
        "function" => {
            (right, Wrong { function: "broadcast", ..right }, &["AllReduce", "Broadcast"] as &[&str])
        }
        "count" => (right, Wrong { count: count + 1, ..right }, &["count"]),
        "type" => (right, Wrong { t: Type::Int32, ..right }, &["ncclFloat32", "ncclInt32"]),
        "op" => (right, Wrong { op: Op::Max, ..right }, &["ncclSum", "ncclMax"]),
        "root" => {
            let root = |root| Wrong { function: "broadcast", root, ..right };
            (root(0), root(1), &["root"])
        }
        "message" => (
            Wrong { function: "send", root: 1, ..right },
            Wrong { function: "recv", root: 0, count: count + 7, ..right },
            &["bytes"],
        ),
        _ => return None,
    })
}

fn enqueue(rank: &Rank, wrong: Wrong, buffer: u64, comm: Comm, stream: Stream) -> i32 {
    let (nccl, count, t, op) = (rank.nccl, wrong.count, wrong.t.code(), wrong.op.code());
    match wrong.function {
        "all_reduce" => nccl.all_reduce(buffer, buffer, count, t, op, comm, stream),
        "broadcast" => nccl.broadcast(buffer, buffer, count, t, wrong.root, comm, stream),
        "send" => nccl.send(buffer, count, t, wrong.root, comm, stream),
        _ => nccl.recv(buffer, count, t, wrong.root, comm, stream),
    }
}

pub fn run(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let stream = rank.enter()?;
    let bystander = rank.init()?;
    let context = driver::current_context()?;
    let mut checker = Checker::new(nccl, 8 << 20)?;
    let case = rank.arg("case").ok_or("no case")?;
    // Small and large: both protocols.
    for count in [1000, 600_000] {
        let (first, second, words) = pair(case, count).ok_or("no such case")?;
        let comm = rank.init()?;
        // A few operations that agree come first.
        for turn in 0..3 {
            checker.run(&Call::sum(rank.rank, rank.nranks, 700, turn), Shift::default(), comm, stream)?;
        }
        let wrong = if rank.rank == 0 { first } else { second };
        let (bytes, pad) = ((wrong.count) * 4, 4096);
        let area = driver::alloc(bytes + pad)?;
        driver::set(area, 0x3c, bytes + pad, stream)?;
        driver::synchronize(stream)?;
        let code = enqueue(rank, wrong, area, comm, stream);
        nccl.ok("the call itself", comm, code)?;
        if case == "root" {
            // Each is the root of its own broadcast and waits for nobody: the next operation shows it.
            let code = nccl.all_reduce(area, area, 4, 7, 0, comm, stream);
            nccl.ok("the next call", comm, code)?;
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut state = nccl.async_error(comm);
        while state == SUCCESS && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
            state = nccl.async_error(comm);
        }
        let peer = 1 - rank.rank.min(1);
        let name = format!("rank {peer}|ranks 0 and 1|ranks 1 and 0");
        let mut all = vec![name.as_str()];
        all.extend(words);
        refused(rank, &format!("{case} of {count}"), comm, state, &[INVALID_USAGE, REMOTE], &all)?;
        // An abort is news for the others, too: first all have their own.
        rank.barrier()?;
        // The kernel leaves by itself; later calls are refused.
        driver::synchronize(stream)?;
        let code = nccl.all_reduce(area, area, 4, 7, 0, comm, stream);
        crate::ensure!(code != SUCCESS, "a call on a communicator in error succeeded");
        let mut behind = vec![0; pad];
        driver::download(area + bytes as u64, &mut behind, stream)?;
        crate::ensure!(behind.iter().all(|byte| *byte == 0x3c), "bytes behind the buffer were overwritten");
        nccl.ok("ncclCommAbort", Comm::NULL, nccl.abort(comm))?;
        driver::free(area)?;
        rank.barrier()?;
        for count in [3, 50_000] {
            let call = Call::sum(rank.rank, rank.nranks, count, 9);
            checker
                .run(&call, Shift::default(), bystander, stream)
                .map_err(|e| format!("afterwards, on the other communicator: {e}"))?;
        }
    }
    crate::ensure!(driver::current_context()? == context, "the current context changed");
    rank.destroy(bystander)?;
    Ok("checks 2".into())
}
