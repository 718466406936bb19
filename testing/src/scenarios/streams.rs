//! Streams: several on one communicator, the NULL stream, and a current device that is not the communicator's.

use crate::call::Call;
use crate::check::{Checker, Shift};
use crate::driver::{self, Outcome, Stream};
use crate::pattern::{Pattern, Values};
use crate::rank::Rank;
use crate::reference::{Op, Type};

/// Operations of one communicator on changing streams run in the order of the calls; in a group, streams are joined.
pub fn run(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let first = rank.enter()?;
    let streams = [first, driver::new_stream(true)?, driver::new_stream(false)?, Stream::PER_THREAD];
    let comm = rank.init()?;
    let (t, op) = (Type::Int64, Op::Sum);
    let turns = rank.number("turns", 200);
    const COUNT: usize = 500;
    // Every operation multiplies the same buffer by the number of ranks; only the right order gives a known result.
    let buffer = driver::alloc(COUNT * 8)?;
    let event = driver::new_event()?;
    let mut wanted: i64 = 3;
    driver::upload(buffer, &wanted.to_le_bytes().repeat(COUNT), first)?;
    for turn in 0..turns {
        let stream = streams[(turn * 7 + rank.rank) % 4];
        if turn % 5 == 0 {
            // The other way a program orders its streams.
            let other = streams[(turn + 1) % 4];
            driver::record(event, other)?;
            driver::wait(stream, event)?;
        }
        nccl.ok(
            "ncclAllReduce",
            comm,
            nccl.all_reduce(buffer, buffer, COUNT, t.code(), op.code(), comm, stream),
        )?;
        wanted = wanted.wrapping_mul(rank.nranks as i64);
    }
    for stream in streams {
        driver::synchronize(stream)?;
    }
    let mut got = vec![0; COUNT * 8];
    driver::download(buffer, &mut got, first)?;
    crate::ensure!(
        got == wanted.to_le_bytes().repeat(COUNT),
        "{turns} operations over four streams gave another result"
    );

    // A group over two streams: what is enqueued on both before is seen, both wait until the group is done.
    let input = Pattern::input(t, op, rank.rank, rank.nranks, Values::Numbers).bytes(0, COUNT);
    let result = Pattern::result(t, op, rank.nranks, Values::Numbers).bytes(0, COUNT);
    let (a, b) = (driver::alloc(COUNT * 8)?, driver::alloc(COUNT * 8)?);
    for turn in 0..20 {
        driver::upload(a, &input, streams[0])?;
        driver::set(b, 0, COUNT * 8, streams[2])?;
        driver::sleep(streams[2], 300)?;
        driver::copy(b, a, COUNT * 8, streams[2])?;
        nccl.group(comm, || {
            for (buffer, stream) in [(a, streams[0]), (b, streams[2])] {
                let code = nccl.all_reduce(buffer, buffer, COUNT, t.code(), op.code(), comm, stream);
                nccl.ok("ncclAllReduce", comm, code)?;
            }
            Ok(())
        })?;
        for (buffer, stream) in [(a, streams[2]), (b, streams[0])] {
            driver::download(buffer, &mut got, stream)?;
            crate::ensure!(got == result, "group over two streams, turn {turn}");
        }
    }
    rank.destroy(comm)?;
    Ok(format!("checks {}", turns + 40))
}

/// The legacy stream by both of its names, and the per-thread one: a fill before and a copy after are in order.
pub fn null_stream(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    rank.enter()?;
    let comm = rank.init()?;
    let blocking = driver::new_stream(true)?;
    let (buffer, copy) = (driver::alloc(4096)?, driver::alloc(4096)?);
    let (t, op) = (Type::Uint8.code(), Op::Sum.code());
    let mut checks = 0;
    for turn in 0..60u8 {
        for stream in [Stream::NULL, Stream::LEGACY, Stream::PER_THREAD] {
            let before = if stream == Stream::PER_THREAD { stream } else { blocking };
            // A blocking stream and the legacy stream wait for each other.
            driver::sleep(before, 200)?;
            driver::set(buffer, turn.wrapping_add(rank.rank as u8), 4096, before)?;
            nccl.ok("ncclAllReduce", comm, nccl.all_reduce(buffer, buffer, 4096, t, op, comm, stream))?;
            driver::copy(copy, buffer, 4096, before)?;
            let mut got = vec![0; 4096];
            driver::download(copy, &mut got, before)?;
            let n = rank.nranks as u8;
            let sum = turn.wrapping_mul(n).wrapping_add(n * (n - 1) / 2);
            crate::ensure!(got.iter().all(|byte| *byte == sum), "turn {turn}, {stream:?}");
            checks += 1;
        }
    }
    rank.destroy(comm)?;
    Ok(format!("checks {checks}"))
}

/// Calls work, and leave the current device alone, when another device, or none, is current.
pub fn current_device(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let stream = rank.enter()?;
    let own = driver::current_context()?;
    let comm = rank.init()?;
    let mut checker = Checker::new(nccl, 1 << 20)?;
    let other = driver::enter((rank.device()? + 1) % driver::device_count()?)?;
    let same = |context: usize, what: &str| match driver::current_context()? {
        now if now == context => Ok(()),
        now => Err(format!("{what} changed the current context from {context:#x} to {now:#x}")),
    };
    for context in [other, 0] {
        for count in [7, 40_000] {
            driver::set_current_context(own)?;
            let call = Call::sum(rank.rank, rank.nranks, count, count);
            checker.run_with(&call, Shift::default(), stream, |checker, send, recv| {
                driver::set_current_context(context)?;
                call.enqueue(nccl, comm, stream, send, recv)?;
                same(context, "ncclAllReduce")?;
                nccl.ok("the communicator's state", comm, nccl.async_error(comm))?;
                crate::ensure!(nccl.cu_device(comm) == (0, rank.device()? as i32), "another device");
                same(context, "a query")?;
                driver::set_current_context(own)?;
                checker.settle(comm, stream)
            })?;
        }
    }
    driver::set_current_context(other)?;
    rank.destroy(comm)?;
    same(other, "ncclCommDestroy")?;
    Ok(format!("checks {}", checker.checks))
}
