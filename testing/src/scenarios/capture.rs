//! CUDA graphs: every function captured in each mode, replayed, mixed with eager calls, and as a communicator's first use.

use crate::call::{Call, Function};
use crate::check::{Checker, Shift};
use crate::driver::{self, CaptureMode, Graph, Outcome, Stream};
use crate::nccl::Config;
use crate::pattern::{Pattern, Values};
use crate::rank::Rank;
use crate::reference::{Op, Type};

const MODES: [CaptureMode; 3] = [CaptureMode::ThreadLocal, CaptureMode::Global, CaptureMode::Relaxed];

/// Captures while no other rank of the process does anything else: in the global mode, their calls could not be.
fn capture(
    rank: &Rank,
    stream: Stream,
    mode: CaptureMode,
    enqueue: impl FnOnce() -> Outcome,
) -> Outcome<Graph> {
    rank.barrier()?;
    let captured = driver::capture_only(stream, mode, enqueue);
    rank.barrier()?;
    captured?.instantiate()
}

/// Each function in each mode; the graph is launched several times, on fresh data each time.
pub fn run(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let stream = rank.enter()?;
    let comm = rank.init()?;
    let mut checker = Checker::new(nccl, 512 * 1024 * rank.nranks)?;
    for mode in MODES {
        for function in Function::ALL {
            for count in [5, 3_001, 70_001] {
                let call = |seed| Call {
                    function,
                    root: 1 % rank.nranks,
                    ..Call::sum(rank.rank, rank.nranks, count, seed)
                };
                // An exchange's sizes and unused buffers depend on the seed: steps of 4 leave them alone.
                let mut graph = None;
                for launch in 0..3 {
                    checker
                        .run_with(&call(1 + 4 * launch), Shift::default(), stream, |checker, send, recv| {
                            let graph = match &graph {
                                Some(graph) => graph,
                                None => {
                                    let enqueue = || call(1).enqueue(nccl, comm, stream, send, recv);
                                    graph.insert(capture(rank, stream, mode, enqueue)?)
                                }
                            };
                            graph.launch(stream)?;
                            checker.settle(comm, stream)
                        })
                        .map_err(|e| format!("{mode:?}, launch {launch}: {e}"))?;
                }
            }
        }
    }
    fork_and_join(rank)?;
    rank.destroy(comm)?;
    Ok(format!("checks {}", checker.checks))
}

/// A capture that spreads to a second stream and comes back, with an operation on each.
fn fork_and_join(rank: &Rank) -> Outcome {
    let nccl = rank.nccl;
    let (main, side) = (driver::new_stream(false)?, driver::new_stream(false)?);
    let (fork, join) = (driver::new_event()?, driver::new_event()?);
    let comm = rank.init()?;
    const COUNT: usize = 2_000;
    let (t, op) = (Type::Float32, Op::Sum);
    let input = Pattern::input(t, op, rank.rank, rank.nranks, Values::Numbers).bytes(0, COUNT);
    let result = Pattern::result(t, op, rank.nranks, Values::Numbers).bytes(0, COUNT);
    let buffers = [driver::alloc(COUNT * 4)?, driver::alloc(COUNT * 4)?];
    let reduce = |buffer, stream| {
        let code = nccl.all_reduce(buffer, buffer, COUNT, t.code(), op.code(), comm, stream);
        nccl.ok("ncclAllReduce", comm, code)
    };
    let graph = driver::capture(main, CaptureMode::ThreadLocal, || {
        driver::record(fork, main)?;
        driver::wait(side, fork)?;
        reduce(buffers[0], main)?;
        reduce(buffers[1], side)?;
        driver::record(join, side)?;
        driver::wait(main, join)
    })?;
    for launch in 0..5 {
        for buffer in buffers {
            driver::upload(buffer, &input, main)?;
        }
        graph.launch(main)?;
        for buffer in buffers {
            let mut got = vec![0; COUNT * 4];
            driver::download(buffer, &mut got, main)?;
            crate::ensure!(got == result, "two captured streams, launch {launch}");
        }
    }
    graph.destroy()?;
    rank.destroy(comm)
}

/// The very first operation of a communicator is captured, in each mode, small and large.
pub fn first(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let stream = rank.enter()?;
    let mut checker = Checker::new(nccl, 2 << 20)?;
    for mode in MODES {
        for function in [Function::AllReduce, Function::SendRecv, Function::Broadcast] {
            for count in [9, 300_000] {
                let comm = rank.init_config(&Config { max_ctas: 4, ..Config::new() })?;
                let call = Call { function, ..Call::sum(rank.rank, rank.nranks, count, 1) };
                checker
                    .run_with(&call, Shift::default(), stream, |checker, send, recv| {
                        let graph =
                            capture(rank, stream, mode, || call.enqueue(nccl, comm, stream, send, recv))?;
                        graph.launch(stream)?;
                        checker.settle(comm, stream)
                    })
                    .map_err(|e| format!("{mode:?}: {e}"))?;
                rank.destroy(comm)?;
            }
        }
    }
    Ok(format!("checks {}", checker.checks))
}

/// Replays and eager calls in turn on one stream, then the graph on one stream and eager calls on another.
pub fn interleaved(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let (stream, other) = (rank.enter()?, driver::new_stream(false)?);
    let comm = rank.init()?;
    const COUNT: usize = 3_000;
    let (t, op) = (Type::Uint64, Op::Sum);
    let n = rank.nranks as u64;
    let (captured, eager) = (driver::alloc(COUNT * 8)?, driver::alloc(COUNT * 8)?);
    let reduce = |buffer, stream| {
        let code = nccl.all_reduce(buffer, buffer, COUNT, t.code(), op.code(), comm, stream);
        nccl.ok("ncclAllReduce", comm, code)
    };
    // Three operations per launch: the buffer grows by n^3.
    let graph = driver::capture(stream, CaptureMode::ThreadLocal, || {
        (0..3).try_for_each(|_| reduce(captured, stream))
    })?;
    let turns = rank.number("turns", 100);
    let one = 1u64.to_le_bytes().repeat(COUNT);
    driver::upload(captured, &one, stream)?;
    driver::upload(eager, &one, other)?;
    let (mut in_graph, mut in_calls) = (1u64, 1u64);
    for turn in 0..turns {
        // Every rank does the same number of both, in the same order; on one stream or, between waits, on two.
        graph.launch(stream)?;
        in_graph = in_graph.wrapping_mul(n.pow(3));
        let on = if turn % 2 == 0 { stream } else { other };
        if turn % 2 == 1 {
            driver::synchronize(stream)?;
        }
        reduce(eager, on)?;
        in_calls = in_calls.wrapping_mul(n);
        if turn % 2 == 1 {
            driver::synchronize(other)?;
        }
    }
    for (buffer, value) in [(captured, in_graph), (eager, in_calls)] {
        let mut got = vec![0; COUNT * 8];
        driver::download(buffer, &mut got, stream)?;
        crate::ensure!(got == value.to_le_bytes().repeat(COUNT), "after {turns} replays and calls");
    }
    graph.destroy()?;
    rank.destroy(comm)?;
    Ok(format!("checks {}", 4 * turns))
}
