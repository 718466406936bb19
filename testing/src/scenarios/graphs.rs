//! What becomes of graphs: updated with other buffers, older than their communicator, over several ranks of one process.

use std::time::{Duration, Instant};

use crate::call::{Call, Function};
use crate::driver::{self, CaptureMode, Outcome, Stream};
use crate::nccl::Comm;
use crate::pattern::{Pattern, Values};
use crate::rank::Rank;
use crate::reference::{Op, Type};

const T: Type = Type::Float32;
const OP: Op = Op::Sum;

/// An executable graph takes over another capture of the same calls: other buffers, other counts.
pub fn update(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let stream = rank.enter()?;
    let comm = rank.init()?;
    let mut checks = 0;
    // Both protocols, and a group whose lists do not fit a launch.
    for (function, most) in
        [(Function::AllReduce, 900), (Function::AllReduce, 200_000), (Function::Exchange, 5_000)]
    {
        let call = |count, seed| Call { function, t: T, ..Call::sum(rank.rank, rank.nranks, count, seed) };
        let room = most * T.size() * rank.nranks;
        let areas: Vec<[u64; 2]> =
            (0..4).map(|_| Ok([driver::alloc(room)?, driver::alloc(room)?])).collect::<Outcome<_>>()?;
        let capture = |call: &Call, [send, recv]: [u64; 2]| {
            driver::capture_only(stream, CaptureMode::ThreadLocal, || {
                call.enqueue(nccl, comm, stream, send, recv)
            })
        };
        let mut graph = None;
        for (turn, area) in areas.iter().enumerate() {
            let call = call(most - 7 * turn, 4 * turn + 1);
            let captured = capture(&call, *area)?;
            match &graph {
                None => drop(graph.insert(captured.instantiate()?)),
                Some(graph) => captured.update(graph)?,
            }
            for _ in 0..2 {
                for region in call.inputs() {
                    let bytes = region.pattern.bytes(region.start, region.count);
                    driver::upload(area[0] + (region.at * T.size()) as u64, &bytes, stream)?;
                }
                driver::set(area[1], 0xee, room, stream)?;
                if let Some(graph) = &graph {
                    graph.launch(stream)?;
                }
                for region in call.outputs() {
                    let mut got = vec![0; region.count * T.size()];
                    driver::download(area[1] + (region.at * T.size()) as u64, &mut got, stream)?;
                    let wanted = region.pattern.bytes(region.start, region.count);
                    crate::ensure!(got == wanted, "{call:?} after update {turn}");
                    checks += 1;
                }
            }
        }
        drop(graph);
        rank.barrier()?;
        areas.into_iter().flatten().try_for_each(driver::free)?;
    }
    rank.destroy(comm)?;
    Ok(format!("checks {checks}"))
}

/// Graphs live on when their communicator is destroyed: that does not wait for them, and a replay ends, and is reported.
pub fn outlive(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let stream = rank.enter()?;
    let large = 300_000;
    let buffer = driver::alloc(large * T.size())?;
    for count in [64, large] {
        let comm = rank.init()?;
        let reduce = || {
            nccl.ok(
                "ncclAllReduce",
                comm,
                nccl.all_reduce(buffer, buffer, count, T.code(), OP.code(), comm, stream),
            )
        };
        let graph = driver::capture(stream, CaptureMode::ThreadLocal, reduce)?;
        graph.launch(stream)?;
        driver::synchronize(stream)?;
        rank.barrier()?;
        let start = Instant::now();
        rank.destroy(comm)?;
        crate::ensure!(start.elapsed() < Duration::from_secs(20), "destroy waited for a graph");
        rank.barrier()?;
        // One rank alone replays, so its kernel finds nobody.
        if rank.rank == 0 {
            forget_last_error(rank);
            graph.launch(stream)?;
            driver::synchronize(stream)?;
            hear_of_replay(rank)?;
        }
        rank.barrier()?;
        graph.destroy()?;
        // A communicator that comes after is not touched by it.
        let next = rank.init()?;
        let input = Pattern::input(T, OP, rank.rank, rank.nranks, Values::Numbers).bytes(0, count);
        driver::upload(buffer, &input, stream)?;
        nccl.ok(
            "ncclAllReduce",
            next,
            nccl.all_reduce(buffer, buffer, count, T.code(), OP.code(), next, stream),
        )?;
        let mut got = vec![0; count * T.size()];
        driver::download(buffer, &mut got, stream)?;
        let result = Pattern::result(T, OP, rank.nranks, Values::Numbers).bytes(0, count);
        crate::ensure!(got == result, "the next communicator after {count} elements");
        rank.destroy(next)?;
    }
    // A replay that is under way when its communicator ends, and that can never be done, ends too, and is reported.
    let comm = rank.init()?;
    let reduce = || {
        nccl.ok("ncclAllReduce", comm, nccl.all_reduce(buffer, buffer, 64, T.code(), OP.code(), comm, stream))
    };
    let graph = driver::capture(stream, CaptureMode::ThreadLocal, reduce)?;
    if rank.rank == 0 {
        forget_last_error(rank);
        graph.launch(stream)?;
    }
    rank.barrier()?;
    rank.destroy(comm)?;
    driver::synchronize(stream)?;
    if rank.rank == 0 {
        hear_of_replay(rank)?;
    }
    rank.barrier()?;
    graph.destroy()?;
    driver::free(buffer)?;
    Ok("checks 3".into())
}

fn forget_last_error(rank: &Rank) {
    // Refused with a sentence that names no graph.
    rank.nccl.destroy(Comm(64));
}

fn hear_of_replay(rank: &Rank) -> Outcome {
    let told = || rank.nccl.last_error(Comm::NULL).contains("graph");
    let end = Instant::now() + Duration::from_secs(20);
    while !told() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    crate::ensure!(told(), "nothing tells of the replay: {}", rank.nccl.last_error(Comm::NULL));
    Ok(())
}

/// Graphs that go before their communicator leave nothing behind: what fails later is not put down to a replay.
pub fn gone(rank: &Rank) -> Outcome<String> {
    let (nccl, stream) = (rank.nccl, rank.enter()?);
    let buffer = driver::alloc(1 << 10)?;
    let comm = rank.init()?;
    let reduce = |count| nccl.all_reduce(buffer, buffer, count, T.code(), OP.code(), comm, stream);
    for _ in 0..3 {
        let captured = || nccl.ok("ncclAllReduce", comm, reduce(8));
        driver::capture(stream, CaptureMode::ThreadLocal, captured)?.destroy()?;
    }
    forget_last_error(rank);
    rank.barrier()?;
    nccl.ok("ncclAllReduce", comm, reduce(8 + rank.rank))?;
    driver::synchronize(stream)?;
    // Longer than the library takes to look at ended communicators.
    std::thread::sleep(Duration::from_millis(600));
    let told = nccl.last_error(Comm::NULL);
    crate::ensure!(!told.contains("graph"), "a mismatch is told as: {told}");
    rank.barrier()?;
    nccl.ok("ncclCommAbort", Comm::NULL, nccl.abort(comm))?;
    driver::free(buffer)?;
    Ok("checks 1".into())
}

/// One thread captures all ranks of its process, each on a device of its own, into one graph.
pub fn of_several_ranks(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    driver::init()?;
    let devices: Vec<i32> = (0..driver::device_count()?.min(4) as i32).collect();
    let (code, comms) = nccl.init_all(&devices);
    nccl.ok("ncclCommInitAll", Comm::NULL, code)?;
    let n = comms.len();
    const COUNT: usize = 5_000;
    let mut places: Vec<(Stream, u64, driver::Event)> = Vec::new();
    for device in &devices {
        driver::enter(*device as usize)?;
        places.push((driver::new_stream(false)?, driver::alloc(COUNT * T.size())?, driver::new_event()?));
    }
    let (first, _, fork) = places[0];
    driver::enter(0)?;
    let mut checks = 0;
    for count in [33, COUNT] {
        let graph = driver::capture(first, CaptureMode::Relaxed, || {
            driver::record(fork, first)?;
            places[1..].iter().try_for_each(|(stream, ..)| driver::wait(*stream, fork))?;
            nccl.group(Comm::NULL, || {
                for (comm, (stream, buffer, _)) in comms.iter().zip(&places) {
                    let code = nccl.all_reduce(*buffer, *buffer, count, T.code(), OP.code(), *comm, *stream);
                    nccl.ok("ncclAllReduce", *comm, code)?;
                }
                Ok(())
            })?;
            for (index, (stream, _, join)) in places.iter().enumerate().skip(1) {
                driver::enter(index)?;
                driver::record(*join, *stream)?;
                driver::wait(first, *join)?;
            }
            driver::enter(0).map(drop)
        })?;
        for launch in 0..4 {
            for (index, (stream, buffer, _)) in places.iter().enumerate() {
                driver::enter(index)?;
                driver::upload(
                    *buffer,
                    &Pattern::input(T, OP, index, n, Values::Numbers).bytes(0, count),
                    *stream,
                )?;
            }
            driver::enter(0)?;
            graph.launch(first)?;
            driver::synchronize(first)?;
            for (index, (stream, buffer, _)) in places.iter().enumerate() {
                driver::enter(index)?;
                let mut got = vec![0; count * T.size()];
                driver::download(*buffer, &mut got, *stream)?;
                let result = Pattern::result(T, OP, n, Values::Numbers).bytes(0, count);
                crate::ensure!(got == result, "rank {index} of {n}, {count} elements, launch {launch}");
                checks += 1;
            }
        }
        driver::enter(0)?;
        graph.destroy()?;
    }
    comms.iter().try_for_each(|comm| rank.destroy(*comm))?;
    Ok(format!("checks {checks}"))
}
