//! Several communicators of the same ranks: operations in opposite order, and set-up that must not depend on another.

use std::time::Duration;

use crate::driver::{self, Outcome};
use crate::pattern::mix;
use crate::rank::Rank;
use crate::reference::{Op, Type};

/// Even ranks use communicator A then B, odd ranks B then A, each on a stream of its own: both fit on the GPU, so both end.
pub fn two_comms(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let streams = [rank.enter()?, driver::new_stream(false)?];
    let comms = [rank.init()?, rank.init()?];
    let buffers = [driver::alloc(4096)?, driver::alloc(4096)?];
    let turns = rank.number("turns", 300);
    let n = rank.nranks as i64;
    for turn in 0..turns as i64 {
        for which in 0..2 {
            let value = (turn + rank.rank as i64 + which as i64 * 1000).to_le_bytes();
            driver::upload(buffers[which], &value.repeat(64), streams[which])?;
        }
        for step in 0..2 {
            let which = (step + rank.rank) % 2;
            let (buffer, comm, stream) = (buffers[which], comms[which], streams[which]);
            let (t, op) = (Type::Int64.code(), Op::Sum.code());
            nccl.ok("ncclAllReduce", comm, nccl.all_reduce(buffer, buffer, 64, t, op, comm, stream))?;
        }
        for which in 0..2 {
            let mut got = [0; 512];
            driver::download(buffers[which], &mut got, streams[which])?;
            let sum = n * (turn + which as i64 * 1000) + n * (n - 1) / 2;
            crate::ensure!(got == sum.to_le_bytes().repeat(64)[..], "turn {turn}, communicator {which}");
        }
    }
    comms.into_iter().try_for_each(|comm| rank.destroy(comm))?;
    Ok(format!("checks {}", 2 * turns))
}

/// The first large message of communicator A is sent while B waits for its peer: the path is made regardless.
pub fn lazy_path(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let streams = [rank.enter()?, driver::new_stream(false)?];
    let comms = [rank.init()?, rank.init()?];
    const COUNT: usize = 3 << 20;
    let byte = Type::Uint8.code();
    let (a, b) = (driver::alloc(COUNT)?, driver::alloc(4096)?);
    let (t, op) = (Type::Int32.code(), Op::Sum.code());
    // Rank 0 lets B's operation wait, and uses A for the first time meanwhile. Rank 1 joins B only when A is done.
    let message = || match rank.rank {
        0 => nccl.ok("ncclSend", comms[0], nccl.send(a, COUNT, byte, 1, comms[0], streams[0])),
        1 => nccl.ok("ncclRecv", comms[0], nccl.recv(a, COUNT, byte, 0, comms[0], streams[0])),
        _ => Ok(()),
    };
    let pending =
        || nccl.ok("ncclAllReduce", comms[1], nccl.all_reduce(b, b, 1000, t, op, comms[1], streams[1]));
    driver::set(a, rank.rank as u8 + 1, COUNT, streams[0])?;
    if rank.rank == 0 {
        pending()?;
        message()?;
    } else {
        message()?;
        driver::synchronize(streams[0])?;
        pending()?;
    }
    for stream in streams {
        driver::synchronize(stream)?;
    }
    if rank.rank == 1 {
        let mut got = vec![0; COUNT];
        driver::download(a, &mut got, streams[0])?;
        crate::ensure!(got.iter().all(|byte| *byte == 1), "the message is wrong");
    }
    comms.into_iter().try_for_each(|comm| rank.destroy(comm))?;
    Ok("checks 1".into())
}

/// The last rank broadcasts and ends its part at once, on many communicators; the others make the call, their first, a little later: before,
/// while and after they hear that it has left.
pub fn root_leaves(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let stream = rank.enter()?;
    // The slots have room for it: the root waits for nobody.
    const COUNT: usize = 2_000;
    let root = rank.nranks - 1;
    let buffer = driver::alloc(COUNT)?;
    let turns = rank.number("turns", 100);
    for turn in 0..turns {
        let comm = rank.init()?;
        let value = turn as u8 | 1;
        driver::set(buffer, if rank.rank == root { value } else { 0 }, COUNT, stream)?;
        driver::synchronize(stream)?;
        rank.barrier()?;
        if rank.rank != root {
            std::thread::sleep(Duration::from_micros(mix((turn * 16 + rank.rank) as u64) % 3000));
        }
        let code = nccl.broadcast(buffer, buffer, COUNT, Type::Uint8.code(), root as i32, comm, stream);
        nccl.ok("ncclBroadcast", comm, code)?;
        let mut got = vec![0; COUNT];
        driver::download(buffer, &mut got, stream)?;
        nccl.ok("the communicator's state", comm, nccl.async_error(comm))?;
        crate::ensure!(got == [value; COUNT], "turn {turn}: the broadcast is wrong");
        rank.destroy(comm)?;
    }
    Ok(format!("checks {turns}"))
}
