//! Calls with arguments that no call may have: NCCL's code, a sentence that helps, and nothing else touched.
//!
//! Each case runs beside a second communicator. Afterwards both must work, and the current context must be the same.

use std::ffi::c_void;

use crate::call::Call;
use crate::check::{Checker, Shift};
use crate::driver::{self, Outcome, Stream};
use crate::nccl::{Comm, INVALID_ARGUMENT, INVALID_USAGE, SUCCESS};
use crate::rank::Rank;

/// Float32, sum.
const T: i32 = 7;
const OP: i32 = 0;

/// Fails unless a call returned `wanted` and the last error has all of `words`.
pub fn refused(rank: &Rank, what: &str, comm: Comm, code: i32, wanted: &[i32], words: &[&str]) -> Outcome {
    let text = rank.nccl.last_error(comm);
    crate::ensure!(wanted.contains(&code), "{what}: code {code} instead of {wanted:?}: {text}");
    let lower = text.to_lowercase();
    for word in words {
        crate::ensure!(
            word.split('|').any(|word| lower.contains(&word.to_lowercase())),
            "{what}: the last error does not say `{word}`: {text}"
        );
    }
    Ok(())
}

struct Ground<'a> {
    rank: &'a Rank,
    comm: Comm,
    stream: Stream,
    /// Device memory of this rank's device.
    buffer: u64,
    /// How this rank is named in sentences.
    name: String,
}

impl Ground<'_> {
    /// Every kind of call on `comm` must be refused with the same code and words.
    fn all_refuse(&self, comm: Comm, words: &[&str]) -> Outcome {
        let (nccl, b, s) = (self.rank.nccl, self.buffer, self.stream);
        let codes = [
            ("ncclAllReduce", nccl.all_reduce(b, b, 4, T, OP, comm, s)),
            ("ncclBroadcast", nccl.broadcast(b, b, 4, T, 0, comm, s)),
            ("ncclBcast", nccl.bcast(b, 4, T, 0, comm, s)),
            ("ncclReduce", nccl.reduce(b, b, 4, T, OP, 0, comm, s)),
            ("ncclAllGather", nccl.all_gather(b, b, 4, T, comm, s)),
            ("ncclReduceScatter", nccl.reduce_scatter(b, b, 4, T, OP, comm, s)),
            ("ncclSend", nccl.send(b, 4, T, 0, comm, s)),
            ("ncclRecv", nccl.recv(b, 4, T, 0, comm, s)),
            ("ncclCommCount", nccl.count(comm).0),
            ("ncclCommUserRank", nccl.user_rank(comm).0),
            ("ncclCommCuDevice", nccl.cu_device(comm).0),
            ("ncclCommGetAsyncError", nccl.async_error(comm)),
        ];
        for (what, code) in codes {
            refused(self.rank, what, Comm::NULL, code, &[INVALID_ARGUMENT], words)?;
        }
        Ok(())
    }

    /// The same all-reduce with one argument changed.
    fn all_reduce(&self, send: u64, recv: u64, t: i32, op: i32) -> i32 {
        self.rank.nccl.all_reduce(send, recv, 100, t, op, self.comm, self.stream)
    }

    fn bad_argument(&self, what: &str, code: i32, words: &[&str]) -> Outcome {
        let mut all = vec![self.name.as_str()];
        all.extend(words);
        refused(self.rank, what, self.comm, code, &[INVALID_ARGUMENT], &all)
    }
}

pub fn run(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let stream = rank.enter()?;
    let (comm, bystander) = (rank.init()?, rank.init()?);
    let buffer = driver::alloc(1 << 16)?;
    let context = driver::current_context()?;
    let ground = Ground { rank, comm, stream, buffer, name: format!("rank {}", rank.rank) };
    let case = rank.arg("case").ok_or("no case")?;
    let made = match case {
        "null_communicator" => null_communicator(&ground),
        "garbage_communicator" => garbage_communicator(&ground),
        "stale_communicator" => stale_communicator(&ground),
        "double_destroy" => double_destroy(&ground),
        "unknown_type" => unknown_type(&ground),
        "unknown_op" => unknown_op(&ground),
        "unknown_root" => unknown_root(&ground),
        "unknown_peer" => unknown_peer(&ground),
        "null_data" => null_data(&ground),
        "host_pointer" => host_pointer(&ground),
        "buffer_of_another_device" => other_device(&ground),
        "count_too_large" => count_too_large(&ground),
        "group_end_without_start" => group_end(&ground),
        "simulated_group" => simulated_group(&ground),
        "failure_in_group" => failure_in_group(&ground),
        _ => Err(format!("there is no case {case}")),
    };
    made?;
    let now = driver::current_context()?;
    crate::ensure!(now == context, "the current context changed from {context:#x} to {now:#x}");
    let mut checker = Checker::new(nccl, 1 << 18)?;
    for (which, comm) in [("the communicator", comm), ("the other communicator", bystander)] {
        for count in [3, 50_000] {
            let call = Call::sum(rank.rank, rank.nranks, count, 4);
            checker
                .run(&call, Shift::default(), comm, stream)
                .map_err(|e| format!("afterwards, on {which}: {e}"))?;
        }
        rank.destroy(comm)?;
    }
    Ok("checks 1".into())
}

fn null_communicator(ground: &Ground) -> Outcome {
    ground.all_refuse(Comm::NULL, &["communicator", "NULL"])?;
    let nccl = ground.rank.nccl;
    let ends = [nccl.finalize(Comm::NULL), nccl.destroy(Comm::NULL), nccl.abort(Comm::NULL)];
    crate::ensure!(ends == [SUCCESS; 3], "ending NULL gave {ends:?}");
    Ok(())
}

fn garbage_communicator(ground: &Ground) -> Outcome {
    let nccl = ground.rank.nccl;
    let zeroes = [0u64; 64];
    let real_memory = zeroes.as_ptr().cast::<c_void>() as usize;
    for garbage in [1, 0x1234, 0xdead_beef_dead_beef, usize::MAX, real_memory, ground.comm.0 ^ 0x1_0000_0000]
    {
        ground.all_refuse(Comm(garbage), &["communicator", "does not exist|never was"])?;
        for (what, code) in [
            ("ncclCommDestroy", nccl.destroy(Comm(garbage))),
            ("ncclCommAbort", nccl.abort(Comm(garbage))),
            ("ncclCommFinalize", nccl.finalize(Comm(garbage))),
        ] {
            refused(ground.rank, what, Comm::NULL, code, &[INVALID_ARGUMENT], &["communicator"])?;
        }
    }
    Ok(())
}

fn stale_communicator(ground: &Ground) -> Outcome {
    let extra = ground.rank.init()?;
    ground.rank.destroy(extra)?;
    ground.all_refuse(extra, &["communicator", "destroyed"])?;
    // A new one in its place does not revive the old handle.
    let next = ground.rank.init()?;
    ground.all_refuse(extra, &["communicator", "destroyed"])?;
    ground.rank.destroy(next)
}

fn double_destroy(ground: &Ground) -> Outcome {
    let (rank, nccl) = (ground.rank, ground.rank.nccl);
    for abort_first in [false, true] {
        let extra = rank.init()?;
        let first = if abort_first { nccl.abort(extra) } else { nccl.destroy(extra) };
        nccl.ok("the first end", Comm::NULL, first)?;
        for (what, code) in [
            ("ncclCommDestroy again", nccl.destroy(extra)),
            ("ncclCommAbort again", nccl.abort(extra)),
            ("ncclCommFinalize afterwards", nccl.finalize(extra)),
        ] {
            refused(
                rank,
                what,
                Comm::NULL,
                code,
                &[INVALID_ARGUMENT],
                &["communicator", "destroyed|aborted"],
            )?;
        }
    }
    Ok(())
}

fn unknown_type(ground: &Ground) -> Outcome {
    let (nccl, b, s) = (ground.rank.nccl, ground.buffer, ground.stream);
    for t in [12, -1, i32::MAX, i32::MIN] {
        let number = t.to_string();
        let words = ["datatype", number.as_str()];
        ground.bad_argument("ncclAllReduce", ground.all_reduce(b, b, t, OP), &words)?;
        ground.bad_argument("ncclSend", nccl.send(b, 4, t, 0, ground.comm, s), &words)?;
        ground.bad_argument("ncclAllGather of none", nccl.all_gather(b, b, 0, t, ground.comm, s), &words)?;
    }
    Ok(())
}

fn unknown_op(ground: &Ground) -> Outcome {
    let b = ground.buffer;
    for op in [5, -1, i32::MAX] {
        let number = op.to_string();
        ground.bad_argument("ncclAllReduce", ground.all_reduce(b, b, T, op), &["op", &number])?;
    }
    Ok(())
}

fn unknown_root(ground: &Ground) -> Outcome {
    let (nccl, comm, b, s) = (ground.rank.nccl, ground.comm, ground.buffer, ground.stream);
    for root in [-1, ground.rank.nranks as i32, i32::MAX] {
        let number = root.to_string();
        let words = ["root", number.as_str()];
        ground.bad_argument("ncclBroadcast", nccl.broadcast(b, b, 4, T, root, comm, s), &words)?;
        ground.bad_argument("ncclBcast", nccl.bcast(b, 4, T, root, comm, s), &words)?;
        ground.bad_argument("ncclReduce", nccl.reduce(b, b, 4, T, OP, root, comm, s), &words)?;
        ground.bad_argument("ncclGather", nccl.gather(b, b, 4, T, root, comm, s), &words)?;
        ground.bad_argument("ncclScatter", nccl.scatter(b, b, 4, T, root, comm, s), &words)?;
    }
    Ok(())
}

fn unknown_peer(ground: &Ground) -> Outcome {
    let (nccl, comm, b, s) = (ground.rank.nccl, ground.comm, ground.buffer, ground.stream);
    for peer in [-1, ground.rank.nranks as i32, i32::MIN] {
        let number = peer.to_string();
        let words = ["peer", number.as_str()];
        ground.bad_argument("ncclSend", nccl.send(b, 4, T, peer, comm, s), &words)?;
        ground.bad_argument("ncclRecv", nccl.recv(b, 4, T, peer, comm, s), &words)?;
    }
    Ok(())
}

fn null_data(ground: &Ground) -> Outcome {
    let (nccl, comm, b, s) = (ground.rank.nccl, ground.comm, ground.buffer, ground.stream);
    let me = ground.rank.rank as i32;
    ground.bad_argument("NULL sendbuff", ground.all_reduce(0, b, T, OP), &["sendbuff", "NULL"])?;
    ground.bad_argument("NULL recvbuff", ground.all_reduce(b, 0, T, OP), &["recvbuff", "NULL"])?;
    // The root's own buffer; other ranks may pass NULL.
    let code = nccl.broadcast(0, b, 4, T, me, comm, s);
    ground.bad_argument("ncclBroadcast at its root", code, &["sendbuff", "NULL"])?;
    let code = nccl.reduce(b, 0, 4, T, OP, me, comm, s);
    ground.bad_argument("ncclReduce at its root", code, &["recvbuff", "NULL"])?;
    ground.bad_argument("ncclSend", nccl.send(0, 4, T, 0, comm, s), &["sendbuff|buffer", "NULL"])?;
    ground.bad_argument("ncclRecv", nccl.recv(0, 4, T, 0, comm, s), &["recvbuff|buffer", "NULL"])?;
    // Nothing is used of a buffer for no elements.
    nccl.ok("zero elements at NULL", comm, nccl.all_reduce(0, 0, 0, T, OP, comm, s))
}

fn host_pointer(ground: &Ground) -> Outcome {
    let host = vec![0u8; 4096];
    let (host, b) = (host.as_ptr() as u64, ground.buffer);
    ground.bad_argument(
        "sendbuff",
        ground.all_reduce(host, b, T, OP),
        &["sendbuff", "cuMemAlloc|cudaMalloc|GPU"],
    )?;
    ground.bad_argument(
        "recvbuff",
        ground.all_reduce(b, host, T, OP),
        &["recvbuff", "cuMemAlloc|cudaMalloc|GPU"],
    )?;
    let code = ground.rank.nccl.send(host, 4, T, 0, ground.comm, ground.stream);
    ground.bad_argument("ncclSend", code, &["sendbuff|buffer"])
}

fn other_device(ground: &Ground) -> Outcome {
    let own = driver::current_context()?;
    driver::enter((ground.rank.device()? + 1) % driver::device_count()?)?;
    let foreign = driver::alloc(4096)?;
    driver::set_current_context(own)?;
    let b = ground.buffer;
    ground.bad_argument("sendbuff", ground.all_reduce(foreign, b, T, OP), &["sendbuff", "device|GPU"])?;
    ground.bad_argument("recvbuff", ground.all_reduce(b, foreign, T, OP), &["recvbuff", "device|GPU"])?;
    driver::free(foreign)
}

fn count_too_large(ground: &Ground) -> Outcome {
    let (nccl, comm, b, s) = (ground.rank.nccl, ground.comm, ground.buffer, ground.stream);
    for count in [usize::MAX, usize::MAX / 4 + 2] {
        let code = nccl.all_reduce(b, b, count, T, OP, comm, s);
        ground.bad_argument("ncclAllReduce", code, &["count", &count.to_string()])?;
        let code = nccl.all_gather(b, b, count / 2, T, comm, s);
        ground.bad_argument("ncclAllGather", code, &["count"])?;
    }
    Ok(())
}

fn group_end(ground: &Ground) -> Outcome {
    let nccl = ground.rank.nccl;
    for _ in 0..2 {
        refused(
            ground.rank,
            "ncclGroupEnd",
            Comm::NULL,
            nccl.group_end(),
            &[INVALID_USAGE],
            &["ncclGroupStart"],
        )?;
    }
    Ok(())
}

/// A call that fails in a group cancels the group, and the next one is clean; a failing query does neither.
fn failure_in_group(ground: &Ground) -> Outcome {
    let (rank, nccl, comm, b, s) = (ground.rank, ground.rank.nccl, ground.comm, ground.buffer, ground.stream);
    nccl.ok("ncclGroupStart", comm, nccl.group_start())?;
    nccl.ok("ncclAllReduce", comm, nccl.all_reduce(b, b, 100, T, OP, comm, s))?;
    ground.bad_argument("ncclBroadcast", nccl.broadcast(b, b, 4, T, 77, comm, s), &["root"])?;
    refused(rank, "ncclGroupEnd", Comm::NULL, nccl.group_end(), &[INVALID_ARGUMENT], &["root"])?;
    crate::ensure!(nccl.group_end() == INVALID_USAGE, "the group was left open");

    nccl.ok("ncclGroupStart", comm, nccl.group_start())?;
    let code = nccl.all_reduce(b, b, 100, T, OP, Comm::NULL, s);
    crate::ensure!(code == INVALID_ARGUMENT, "NULL communicator in a group: {code}");
    let code = nccl.group_end();
    crate::ensure!(code == INVALID_ARGUMENT, "ncclGroupEnd after it: {code}");

    nccl.ok("ncclGroupStart", comm, nccl.group_start())?;
    let code = nccl.count(Comm::NULL).0;
    crate::ensure!(code == INVALID_ARGUMENT, "a query of NULL in a group: {code}");
    nccl.ok("ncclGroupEnd after a failed query", comm, nccl.group_end())?;
    driver::synchronize(s)
}

/// As long as there are no estimates, a group that would be simulated is refused, closed, and not launched; an outer one fails with it.
fn simulated_group(ground: &Ground) -> Outcome {
    let (rank, nccl, comm, b, s) = (ground.rank, ground.rank.nccl, ground.comm, ground.buffer, ground.stream);
    let refuses = |what: &str, code: i32, word: &str| {
        refused(rank, what, Comm::NULL, code, &[INVALID_USAGE], &["ncclGroup", word])
    };
    refuses("outside a group", nccl.group_simulate_end(), "without ncclGroupStart")?;
    driver::set(b, 0x3c, 400, s)?;
    nccl.ok("ncclGroupStart", comm, nccl.group_start())?;
    nccl.ok("ncclAllReduce", comm, nccl.all_reduce(b, b, 100, T, OP, comm, s))?;
    refuses("with a call", nccl.group_simulate_end(), "not finished")?;
    refuses("the end afterwards", nccl.group_end(), "without ncclGroupStart")?;

    nccl.ok("the outer ncclGroupStart", comm, nccl.group_start())?;
    nccl.ok("ncclAllReduce", comm, nccl.all_reduce(b, b, 100, T, OP, comm, s))?;
    nccl.ok("the inner ncclGroupStart", comm, nccl.group_start())?;
    refuses("the inner end", nccl.group_simulate_end(), "not finished")?;
    refuses("the outer end", nccl.group_end(), "not finished")?;
    refuses("one end too many", nccl.group_end(), "without ncclGroupStart")?;

    let mut bytes = vec![0; 400];
    driver::download(b, &mut bytes, s)?;
    crate::ensure!(bytes.iter().all(|byte| *byte == 0x3c), "a call of a simulated group was launched");
    Ok(())
}
