//! Memory of ncclMemAlloc and registered buffers: use, life, and handles that are none.

use crate::call::{Call, Function};
use crate::check::{Checker, Shift};
use crate::driver::{self, Outcome, Stream};
use crate::nccl::{Comm, INVALID_ARGUMENT, INVALID_USAGE, SUCCESS};
use crate::rank::Rank;
use crate::scenarios::misuse::refused;

/// Every function out of and into the checker's buffers.
fn works(rank: &Rank, checker: &mut Checker, comm: Comm, stream: Stream) -> Outcome {
    for (seed, function) in Function::ALL.into_iter().enumerate() {
        for count in [7, 70_001] {
            let root = seed % rank.nranks;
            let call = Call { function, root, ..Call::sum(rank.rank, rank.nranks, count, seed) };
            checker.run(&call, Shift { send: seed, recv: 3 }, comm, stream)?;
        }
    }
    Ok(())
}

/// Sizes from none to 64 MB, inside groups too; buffers of communication; every byte is given back.
pub fn alloc(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let stream = rank.enter()?;
    let comm = rank.init()?;
    let new = |bytes: usize| {
        let (code, address) = nccl.mem_alloc(bytes);
        nccl.ok("ncclMemAlloc", Comm::NULL, code).map(|()| address)
    };
    let free = |address: u64| nccl.ok("ncclMemFree", Comm::NULL, nccl.mem_free(address));
    let context = driver::current_context()?;
    // All bytes are there, and blocks are apart.
    let sizes = [0, 1, 4096, 2 << 20, (2 << 20) + 1, 64 << 20];
    let blocks: Vec<u64> = sizes.iter().map(|bytes| new(*bytes)).collect::<Outcome<_>>()?;
    for (number, (at, bytes)) in blocks.iter().zip(sizes).enumerate() {
        if bytes > 0 {
            driver::set(*at, number as u8 + 1, bytes, stream)?;
        }
    }
    for (number, (at, bytes)) in blocks.iter().zip(sizes).enumerate() {
        let mut got = vec![0; bytes];
        driver::download(*at, &mut got, stream)?;
        crate::ensure!(got.iter().all(|byte| *byte == number as u8 + 1), "a block of {bytes} bytes");
    }
    // Another device of the process that can reach it may use it; legacy memory only when the program connects the two.
    if driver::device_count()? > 1 && rank.arg("memory") != Some("legacy") {
        driver::enter((rank.device()? + 1) % driver::device_count()?)?;
        let other = driver::new_stream(false)?;
        driver::set(blocks[2], 0x77, 4096, other)?;
        driver::synchronize(other)?;
        driver::set_current_context(context)?;
        let mut got = vec![0; 4096];
        driver::download(blocks[2], &mut got, stream)?;
        crate::ensure!(got == [0x77; 4096], "written from another device");
    }
    blocks.iter().try_for_each(|block| free(*block))?;

    let capacity = 70_100 * 4 * rank.nranks;
    let areas = [new(Checker::area(capacity))?, new(Checker::area(capacity))?];
    let mut checker = Checker::over(nccl, areas, capacity);
    works(rank, &mut checker, comm, stream)?;
    // Inside a group: at once, and no part of it. One is freed that an operation of the group before has used.
    rank.barrier()?;
    let before = new(1 << 16)?;
    driver::set(before, 1, 1 << 16, stream)?;
    let (t, op) = (1, 0);
    nccl.group(comm, || {
        let inside = new(1 << 16)?;
        driver::set(inside, 1, 1 << 16, stream)?;
        driver::synchronize(stream)?;
        for buffer in [before, inside] {
            let code = nccl.all_reduce(buffer, buffer, 1 << 16, t, op, comm, stream);
            nccl.ok("ncclAllReduce", comm, code)?;
        }
        free(new(100)?)?;
        Ok(())
    })?;
    let mut got = vec![0; 1 << 16];
    driver::download(before, &mut got, stream)?;
    crate::ensure!(got.iter().all(|byte| *byte == rank.nranks as u8), "a buffer of a group");
    rank.barrier()?;
    free(before)?;

    // Freed twice, never made, in the middle of one.
    let words = ["ncclMemAlloc"];
    let twice = nccl.mem_free(before);
    refused(rank, "a second ncclMemFree", Comm::NULL, twice, &[INVALID_ARGUMENT, INVALID_USAGE], &words)?;
    let block = new(4096)?;
    for wrong in [block + 1, block + 512, 0x1234, u64::MAX] {
        let what = format!("ncclMemFree of {wrong:#x}");
        refused(rank, &what, Comm::NULL, nccl.mem_free(wrong), &[INVALID_ARGUMENT, INVALID_USAGE], &words)?;
    }
    free(0)?;
    free(block)?;
    let (code, address) = nccl.mem_alloc(usize::MAX / 4);
    crate::ensure!(code != SUCCESS && address == 0, "2^62 bytes were allocated: {code} {address:#x}");
    crate::ensure!(!nccl.last_error(Comm::NULL).is_empty(), "no sentence");
    // Whatever device is current.
    let cycles = 20;
    let turns = if rank.local == 0 { cycles } else { 0 };
    let mut least = usize::MAX;
    let mut first = 0;
    for turn in 0..turns {
        let block = new(64 << 20)?;
        driver::set_current_context(0)?;
        free(block)?;
        driver::set_current_context(context)?;
        let now = driver::free_memory()?;
        if turn == 0 {
            first = now;
        }
        least = least.min(now);
    }
    // Other ranks may use the device at the same time, but not for half of what was allocated.
    crate::ensure!(turns == 0 || first < least + cycles * (32 << 20), "memory is not given back");
    rank.barrier()?;
    areas.into_iter().try_for_each(free)?;
    crate::ensure!(driver::current_context()? == context, "the current context changed");
    rank.destroy(comm)?;
    Ok(format!("checks {}", checker.checks + 14))
}

/// Handles of registered buffers: each is good once, for its communicator; operations work before, between and after.
pub fn register(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let stream = rank.enter()?;
    let (comm, other) = (rank.init()?, rank.init()?);
    let capacity = 70_100 * 4 * rank.nranks;
    let size = Checker::area(capacity);
    let (code, made) = nccl.mem_alloc(size);
    nccl.ok("ncclMemAlloc", Comm::NULL, code)?;
    // One made for communication, one as any program has it.
    let areas = [made, driver::alloc(size)?];
    let mut checker = Checker::over(nccl, areas, capacity);
    let add = |comm: Comm, at: u64, bytes: usize| {
        let (code, handle) = nccl.register(comm, at, bytes);
        nccl.ok("ncclCommRegister", comm, code).map(|()| handle)
    };
    let remove =
        |comm: Comm, handle: usize| nccl.ok("ncclCommDeregister", comm, nccl.deregister(comm, handle));
    works(rank, &mut checker, comm, stream)?;
    // Twice the same, a part, and one rank alone: registering is local.
    let mut handles = vec![add(comm, made, size)?, add(comm, made, size)?, add(comm, made + 4096, 100)?];
    if rank.rank == 0 {
        handles.push(add(comm, areas[1], size)?);
    }
    let of_other = add(other, made, size)?;
    let mut distinct = handles.clone();
    distinct.sort_unstable();
    distinct.dedup();
    crate::ensure!(distinct.len() == handles.len() && !handles.contains(&0), "handles {handles:x?}");
    works(rank, &mut checker, comm, stream)?;
    let refuses = |what: &str, comm: Comm, handle: usize| {
        let code = nccl.deregister(comm, handle);
        refused(rank, what, comm, code, &[INVALID_ARGUMENT, INVALID_USAGE], &["handle"])
    };
    refuses("another communicator's handle", comm, of_other)?;
    for garbage in [1, 0x1234, usize::MAX, handles[0] + 1] {
        refuses("an invented handle", comm, garbage)?;
    }
    remove(comm, 0)?;
    remove(comm, handles[0])?;
    refuses("a handle that was given back", comm, handles[0])?;
    works(rank, &mut checker, comm, stream)?;
    // In a group, with the operations that use it.
    nccl.group(comm, || {
        let handle = add(comm, areas[1], size)?;
        let code = nccl.all_reduce(areas[1], areas[1], 1000, 7, 0, comm, stream);
        nccl.ok("ncclAllReduce", comm, code)?;
        remove(comm, handle)
    })?;
    driver::synchronize(stream)?;
    let (code, _) = nccl.register(comm, 0, 100);
    refused(rank, "NULL", comm, code, &[INVALID_ARGUMENT], &["buff", "NULL"])?;
    for bad in [Comm::NULL, Comm(0x1234)] {
        let (code, _) = nccl.register(bad, made, size);
        refused(rank, "no communicator", Comm::NULL, code, &[INVALID_ARGUMENT], &["communicator"])?;
        let code = nccl.deregister(bad, handles[1]);
        refused(rank, "no communicator", Comm::NULL, code, &[INVALID_ARGUMENT], &["communicator"])?;
    }
    // A communicator ends with handles that nobody gave back; they end with it.
    rank.destroy(comm)?;
    let code = nccl.deregister(comm, handles[1]);
    refused(rank, "a destroyed communicator", Comm::NULL, code, &[INVALID_ARGUMENT], &["communicator"])?;
    refuses("a dead communicator's handle elsewhere", other, handles[1])?;
    works(rank, &mut checker, other, stream)?;
    remove(other, of_other)?;
    rank.destroy(other)?;
    Ok(format!("checks {}", checker.checks + 12))
}
