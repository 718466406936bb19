//! Making and ending communicators: all devices at once, in groups, many, from several threads, and without an end.

use crate::call::Call;
use crate::check::{Checker, Shift};
use crate::driver::{self, Outcome, Stream};
use crate::nccl::{self, Comm, Config, UniqueId};
use crate::pattern::{Pattern, Values};
use crate::rank::Rank;
use crate::reference::{Op, Type};

/// Checks an all-reduce in which one thread drives every rank, as one group.
fn group_all_reduce(rank: &Rank, comms: &[Comm], devices: &[usize]) -> Outcome {
    let (nccl, t, op, n) = (rank.nccl, Type::Float32, Op::Sum, comms.len());
    const COUNT: usize = 5_000;
    let mut streams = Vec::new();
    let mut buffers = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        driver::enter(*device)?;
        let stream = driver::new_stream(false)?;
        let buffer = driver::alloc(COUNT * 4)?;
        driver::upload(buffer, &Pattern::input(t, op, index, n, Values::Numbers).bytes(0, COUNT), stream)?;
        streams.push(stream);
        buffers.push(buffer);
    }
    let context = driver::current_context()?;
    nccl.group(Comm::NULL, || {
        for (index, comm) in comms.iter().enumerate() {
            let (buffer, stream) = (buffers[index], streams[index]);
            let code = nccl.all_reduce(buffer, buffer, COUNT, t.code(), op.code(), *comm, stream);
            nccl.ok("ncclAllReduce", *comm, code)?;
        }
        Ok(())
    })?;
    crate::ensure!(driver::current_context()? == context, "the group changed the current context");
    let wanted = Pattern::result(t, op, n, Values::Numbers).bytes(0, COUNT);
    for (index, device) in devices.iter().enumerate() {
        driver::enter(*device)?;
        let mut got = vec![0; COUNT * 4];
        driver::download(buffers[index], &mut got, streams[index])?;
        crate::ensure!(got == wanted, "rank {index} of the group");
        driver::free(buffers[index])?;
        driver::destroy_stream(streams[index])?;
    }
    Ok(())
}

/// ncclCommInitAll: one thread, all devices; also a part of them in another order.
pub fn init_all(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    driver::init()?;
    let mut checks = 0;
    let count = driver::device_count()?;
    for devices in [(0..count).collect::<Vec<_>>(), (0..count.min(3)).rev().collect(), vec![0]] {
        let list: Vec<i32> = devices.iter().map(|device| *device as i32).collect();
        let (code, comms) = nccl.init_all(&list);
        nccl.ok("ncclCommInitAll", Comm::NULL, code)?;
        for (index, comm) in comms.iter().enumerate() {
            crate::ensure!(nccl.user_rank(*comm) == (0, index as i32), "the rank is the place in the list");
            crate::ensure!(nccl.cu_device(*comm) == (0, list[index]), "the device is the one in the list");
        }
        for _ in 0..3 {
            group_all_reduce(rank, &comms, &devices)?;
            checks += devices.len();
        }
        comms.iter().try_for_each(|comm| rank.destroy(*comm))?;
    }
    Ok(format!("checks {checks}"))
}

/// One thread makes its process's ranks in a group: the ranks of this team are processes with two devices each.
pub fn group_init(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    driver::init()?;
    let devices = [(2 * rank.rank) % driver::device_count()?, (2 * rank.rank + 1) % driver::device_count()?];
    let n = 2 * rank.nranks;
    let id = rank.shared_id()?;
    let mut comms = [Comm::NULL; 2];
    nccl.ok("ncclGroupStart", Comm::NULL, nccl.group_start())?;
    for (index, comm) in comms.iter_mut().enumerate() {
        driver::enter(devices[index])?;
        let code = nccl.init_rank_at(comm, n as i32, id, (2 * rank.rank + index) as i32);
        nccl.ok("ncclCommInitRank", Comm::NULL, code)?;
    }
    nccl.ok("ncclGroupEnd", Comm::NULL, nccl.group_end())?;
    let (t, op) = (Type::Int32, Op::Sum);
    let mut streams = [Stream::NULL; 2];
    let mut buffers = [0; 2];
    for index in 0..2 {
        driver::enter(devices[index])?;
        streams[index] = driver::new_stream(false)?;
        buffers[index] = driver::alloc(4000)?;
        let input = Pattern::input(t, op, 2 * rank.rank + index, n, Values::Numbers).bytes(0, 1000);
        driver::upload(buffers[index], &input, streams[index])?;
    }
    nccl.group(Comm::NULL, || {
        for index in 0..2 {
            let (buffer, comm, stream) = (buffers[index], comms[index], streams[index]);
            nccl.ok(
                "ncclAllReduce",
                comm,
                nccl.all_reduce(buffer, buffer, 1000, t.code(), op.code(), comm, stream),
            )?;
        }
        Ok(())
    })?;
    for index in 0..2 {
        driver::enter(devices[index])?;
        let mut got = vec![0; 4000];
        driver::download(buffers[index], &mut got, streams[index])?;
        crate::ensure!(got == Pattern::result(t, op, n, Values::Numbers).bytes(0, 1000), "rank {index}");
    }
    nccl.group(Comm::NULL, || comms.iter().try_for_each(|comm| rank.destroy(*comm)))?;
    Ok("checks 2".into())
}

/// Count, rank, device, finalize and its second call, strings and version.
pub fn queries(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let stream = rank.enter()?;
    let comm = rank.init()?;
    crate::ensure!(nccl.version() == (0, 22809), "version {:?}", nccl.version());
    crate::ensure!(nccl.count(comm) == (0, rank.nranks as i32), "count {:?}", nccl.count(comm));
    crate::ensure!(nccl.user_rank(comm) == (0, rank.rank as i32), "rank {:?}", nccl.user_rank(comm));
    crate::ensure!(nccl.cu_device(comm) == (0, rank.device()? as i32), "device {:?}", nccl.cu_device(comm));
    crate::ensure!(nccl.async_error(comm) == nccl::SUCCESS, "a new communicator is in error");
    let strings: Vec<String> = (0..8).map(|code| nccl.error_string(code)).collect();
    crate::ensure!(strings.iter().all(|text| !text.is_empty()), "error strings {strings:?}");
    let mut checker = Checker::new(nccl, 1 << 16)?;
    checker.run(&Call::sum(rank.rank, rank.nranks, 100, 3), Shift::default(), comm, stream)?;
    nccl.ok("ncclCommFinalize", comm, nccl.finalize(comm))?;
    let again = nccl.finalize(comm);
    crate::ensure!(again == nccl::INVALID_ARGUMENT, "a second ncclCommFinalize gave {again}");
    rank.destroy(comm)?;
    Ok("checks 8".into())
}

/// Threads that come and go by themselves; what a communicator left behind would be there once for each of twenty.
const SLACK: usize = 6;

/// Communicators one after the other, then many at once, with flat use of memory, threads and descriptors.
pub fn many_comms(rank: &Rank) -> Outcome<String> {
    let stream = rank.enter()?;
    let mut checker = Checker::new(rank.nccl, 1 << 16)?;
    let cycles = rank.number("cycles", 30);
    let mut use_after = Vec::new();
    for cycle in 0..cycles {
        let comm = rank.init()?;
        checker.run(&Call::sum(rank.rank, rank.nranks, 64 + cycle, cycle), Shift::default(), comm, stream)?;
        rank.destroy(comm)?;
        // What the service gives back later is given time, not counted.
        if cycle + 1 == cycles || cycle == cycles / 3 {
            rank.barrier()?;
            let limit = std::time::Instant::now() + std::time::Duration::from_secs(5);
            while std::time::Instant::now() < limit
                && use_after.first().is_some_and(|first| usage() > *first + SLACK)
            {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            if use_after.is_empty() {
                std::thread::sleep(std::time::Duration::from_millis(500));
            }
            use_after.push(usage());
        }
    }
    crate::ensure!(
        use_after[1] <= use_after[0] + SLACK,
        "descriptors and threads grew from {:?} to {:?} in {} communicators",
        use_after[0],
        use_after[1],
        cycles - cycles / 3
    );
    let mut comms = Vec::new();
    for _ in 0..20 {
        comms.push(rank.init()?);
    }
    for (index, comm) in comms.iter().enumerate() {
        checker.run(&Call::sum(rank.rank, rank.nranks, 500, index), Shift::default(), *comm, stream)?;
    }
    comms.into_iter().try_for_each(|comm| rank.destroy(comm))?;
    Ok(format!("checks {}", checker.checks))
}

/// Open descriptors and threads of this process.
fn usage() -> usize {
    let count = |dir| std::fs::read_dir(dir).map_or(0, Iterator::count);
    count("/proc/self/fd") + count("/proc/self/task")
}

/// Several threads of each process make communicators at the same time; each works.
pub fn concurrent_init(rank: &Rank) -> Outcome<String> {
    const THREADS: usize = 6;
    let nccl = rank.nccl;
    let device = rank.device()?;
    rank.enter()?;
    let ids: Vec<UniqueId> = (0..THREADS).map(|_| rank.shared_id()).collect::<Outcome<_>>()?;
    std::thread::scope(|scope| {
        let work = |id: UniqueId, seed: usize| {
            driver::enter(device)?;
            let stream = driver::new_stream(false)?;
            let mut comm = Comm::NULL;
            let code = nccl.init_rank(&mut comm, rank.nranks as i32, id, rank.rank as i32);
            nccl.ok("ncclCommInitRank", Comm::NULL, code)?;
            let mut checker = Checker::new(nccl, 1 << 16)?;
            for turn in 0..10 {
                let call = Call::sum(rank.rank, rank.nranks, 900, seed * 100 + turn);
                checker.run(&call, Shift::default(), comm, stream)?;
            }
            rank.destroy(comm)
        };
        let threads: Vec<_> =
            ids.into_iter().enumerate().map(|(seed, id)| scope.spawn(move || work(id, seed))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
    })?;
    Ok(format!("checks {}", 10 * THREADS))
}

/// The process ends with a live communicator, a captured graph and an operation behind it: no crash, no hang.
pub fn exit_without_destroy(rank: &Rank) -> Outcome<String> {
    let stream = rank.enter()?;
    let comm = rank.init()?;
    let mut checker = Checker::new(rank.nccl, 1 << 16)?;
    checker.run(&Call::sum(rank.rank, rank.nranks, 100, 1), Shift::default(), comm, stream)?;
    let buffer = driver::alloc(400)?;
    let (t, op) = (Type::Float32.code(), Op::Sum.code());
    let graph = driver::capture(stream, driver::CaptureMode::ThreadLocal, || {
        rank.nccl.ok("ncclAllReduce", comm, rank.nccl.all_reduce(buffer, buffer, 100, t, op, comm, stream))
    })?;
    std::mem::forget(graph);
    rank.barrier()?;
    Ok("checks 1".into())
}

/// Abort while an operation waits for a rank that never calls, and abort of several communicators from several threads.
pub fn abort(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let stream = rank.enter()?;
    let other = rank.init()?;
    let mut checker = Checker::new(nccl, 1 << 16)?;
    for turn in 0..5 {
        let comm = rank.init_config(&Config { max_ctas: 2, ..Config::new() })?;
        let buffer = driver::alloc(4000)?;
        if rank.rank == 0 {
            let (t, op) = (Type::Float32.code(), Op::Sum.code());
            nccl.ok("ncclAllReduce", comm, nccl.all_reduce(buffer, buffer, 1000, t, op, comm, stream))?;
            crate::ensure!(!driver::is_idle(stream)?, "an all-reduce ended without the other ranks");
        }
        rank.barrier()?;
        nccl.ok("ncclCommAbort", Comm::NULL, nccl.abort(comm))?;
        // The kernel leaves by itself, soon: synchronising would hang otherwise, and the team's time limit ends it.
        driver::synchronize(stream)?;
        driver::free(buffer)?;
        let code = nccl.all_reduce(1, 1, 1, 7, 0, comm, stream);
        crate::ensure!(code == nccl::INVALID_ARGUMENT, "a call after ncclCommAbort gave {code}");
        checker.run(&Call::sum(rank.rank, rank.nranks, 1000, turn), Shift::default(), other, stream)?;
    }
    // Several at once.
    let comms: Vec<Comm> = (0..4).map(|_| rank.init()).collect::<Outcome<_>>()?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = comms.iter().map(|comm| scope.spawn(|| nccl.abort(*comm))).collect();
        let codes: Vec<i32> = threads.into_iter().map(|thread| thread.join().unwrap_or(-1)).collect();
        if codes == [0; 4] { Ok(()) } else { Err(format!("aborts from threads gave {codes:?}")) }
    })?;
    checker.run(&Call::sum(rank.rank, rank.nranks, 77, 9), Shift::default(), other, stream)?;
    rank.destroy(other)?;
    Ok(format!("checks {}", checker.checks))
}
