//! Ranks whose calls do not match: both sides are told, nothing is overwritten, the communicator stays refused.

use std::ptr;
use std::time::{Duration, Instant};

use crate::call::Call;
use crate::check::{Checker, Shift};
use crate::driver::{self, Outcome, Stream};
use crate::nccl::{Comm, INVALID_USAGE, REMOTE, Residence, SUCCESS};
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
        "root_of_reduce" => {
            let root = |root| Wrong { function: "reduce", root, ..right };
            (root(0), root(1), &["root"])
        }
        "scaled_sum" => (right, Wrong { function: "scaled_sum", ..right }, &["ncclSum", "pre-multiplied"]),
        "reduce_scatter" => (
            Wrong { function: "reduce_scatter", ..right },
            Wrong { function: "all_gather", ..right },
            &["ReduceScatter", "AllGather"],
        ),
        // The second of a group's calls.
        "group" => (
            Wrong { function: "group", ..right },
            Wrong { function: "group", op: Op::Min, ..right },
            &["ncclSum", "ncclMin"],
        ),
        // A collective beside a message on one rank, alone on the other.
        "group_with_a_message" => (
            Wrong { function: "broadcast_and_send", root: 1, ..right },
            Wrong { function: "all_reduce_and_recv", root: 0, ..right },
            &["Broadcast", "AllReduce"],
        ),
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
        "reduce" => nccl.reduce(buffer, buffer, count, t, op, wrong.root, comm, stream),
        "reduce_scatter" => nccl.reduce_scatter(buffer, buffer, count / 2, t, op, comm, stream),
        "all_gather" => nccl.all_gather(buffer, buffer, count / 2, t, comm, stream),
        "scaled_sum" => {
            let two = 2.0f32;
            let (code, made) = nccl.make_op(ptr::from_ref(&two) as usize, t, Residence::Host as i32, comm);
            if code != SUCCESS { code } else { nccl.all_reduce(buffer, buffer, count, t, made, comm, stream) }
        }
        "group" | "broadcast_and_send" | "all_reduce_and_recv" => {
            let calls = [
                nccl.group_start(),
                match wrong.function {
                    "group" => nccl.all_reduce(buffer, buffer, 10, t, Op::Sum.code(), comm, stream),
                    "broadcast_and_send" => nccl.send(buffer, 10, t, wrong.root, comm, stream),
                    _ => nccl.recv(buffer, 10, t, wrong.root, comm, stream),
                },
                match wrong.function {
                    "broadcast_and_send" => nccl.broadcast(buffer, buffer, count, t, 0, comm, stream),
                    _ => nccl.all_reduce(buffer, buffer, count, t, op, comm, stream),
                },
                nccl.group_end(),
            ];
            calls.into_iter().find(|code| *code != SUCCESS).unwrap_or(SUCCESS)
        }
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
        if case == "root" || case == "root_of_reduce" {
            // Each may be the root of its own and wait for nobody: then the next operation shows it. Where the first one has shown it
            // by now, the next is refused, and the state says so too.
            let code = nccl.all_reduce(area, area, 4, 7, 0, comm, stream);
            if nccl.async_error(comm) == SUCCESS {
                nccl.ok("the next call", comm, code)?;
            } else {
                crate::ensure!([SUCCESS, INVALID_USAGE, REMOTE].contains(&code), "the next call: {code}");
            }
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

/// Calls that no other rank ever matches: nothing can be found wrong with them, so they wait, the communicator beside goes on, and an
/// abort ends them at once.
pub fn stalls(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let stream = rank.enter()?;
    let other = driver::new_stream(false)?;
    let bystander = rank.init()?;
    let mut checker = Checker::new(nccl, 1 << 20)?;
    let bytes = 4 * 2_000_000 * rank.nranks;
    let buffer = driver::alloc(bytes)?;
    let (t, n, me) = (Type::Float32.code(), rank.nranks as i32, rank.rank as i32);
    let mut checks = 0;
    for case in ["receive", "send", "peer", "gather", "scatter", "all_to_all", "group"] {
        for count in [10, 2_000_000] {
            let comm = rank.init()?;
            let next = (me + 1) % n;
            // Rank 0 alone, or every rank for itself.
            let alone = me == 0;
            let code = match case {
                "receive" if alone => nccl.recv(buffer, count, t, next, comm, stream),
                // What the slots take is gone; only more than that waits.
                "send" if alone => nccl.send(buffer, count, t, next, comm, stream),
                "peer" => nccl.recv(buffer, count, t, next, comm, stream),
                // Each is its own root, and wants the others' parts, or has some for them.
                "gather" => nccl.gather(buffer, buffer, count, t, me, comm, stream),
                "scatter" => nccl.scatter(buffer, buffer, count, t, next, comm, stream),
                "all_to_all" if alone => nccl.all_to_all(buffer, buffer, count, t, comm, stream),
                "group" if alone => {
                    let codes = [
                        nccl.group_start(),
                        nccl.all_reduce(buffer, buffer, count, t, 0, comm, stream),
                        nccl.recv(buffer, count, t, next, comm, stream),
                        nccl.group_end(),
                    ];
                    codes.into_iter().find(|code| *code != SUCCESS).unwrap_or(SUCCESS)
                }
                _ => SUCCESS,
            };
            nccl.ok(case, comm, code)?;
            let call = Call::sum(rank.rank, rank.nranks, 5_000, count);
            checker
                .run(&call, Shift::default(), bystander, other)
                .map_err(|e| format!("{case}: the communicator beside: {e}"))?;
            let waits = case != "send" || count > 10;
            if alone && waits {
                crate::ensure!(!driver::is_idle(stream)?, "{case} of {count} ended without the other rank");
            }
            let state = nccl.async_error(comm);
            crate::ensure!(state == SUCCESS, "{case} of {count}: the state is {state}");
            rank.barrier()?;
            nccl.ok("ncclCommAbort", Comm::NULL, nccl.abort(comm))?;
            driver::synchronize(stream)?;
            checker.run(&call, Shift::default(), bystander, other)?;
            checks += 1;
        }
    }
    rank.destroy(bystander)?;
    Ok(format!("checks {checks}"))
}
