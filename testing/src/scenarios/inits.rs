//! Communicators made several at a time, or with several ids, and the log read anew.

use std::time::{Duration, Instant};

use crate::call::Call;
use crate::check::{Checker, Shift};
use crate::driver::{self, Outcome};
use crate::nccl::{Comm, Config, INVALID_ARGUMENT, SUCCESS, UniqueId};
use crate::rank::Rank;
use crate::scenarios::misuse::refused;
use crate::scenarios::ports::listening;

/// One group makes several communicators, in other orders on other ranks, and splits one that is there already.
pub fn in_a_group(rank: &Rank) -> Outcome<String> {
    const MANY: usize = 6;
    let nccl = rank.nccl;
    let stream = rank.enter()?;
    let old = rank.init()?;
    let mut checker = Checker::new(nccl, 1 << 20)?;
    for turn in 0..3 {
        let ids: Vec<UniqueId> = (0..MANY).map(|_| rank.shared_id()).collect::<Outcome<_>>()?;
        let mut comms = [Comm::NULL; MANY];
        let mut child = Comm::NULL;
        nccl.ok("ncclGroupStart", Comm::NULL, nccl.group_start())?;
        for step in 0..MANY {
            let which = (step + rank.rank * 2) % MANY;
            let number = (rank.rank + which) % rank.nranks;
            let code = nccl.init_rank_at(&mut comms[which], rank.nranks as i32, ids[which], number as i32);
            nccl.ok("ncclCommInitRank", Comm::NULL, code)?;
            crate::ensure!(comms[which] == Comm::NULL, "a communicator of an open group is there already");
            if step == turn {
                let code = nccl.split(old, 0, -(rank.rank as i32), &mut child, None);
                nccl.ok("ncclCommSplit", old, code)?;
            }
        }
        nccl.ok("ncclGroupEnd", Comm::NULL, nccl.group_end())?;
        for (which, comm) in comms.into_iter().enumerate() {
            let number = (rank.rank + which) % rank.nranks;
            crate::ensure!(nccl.user_rank(comm) == (0, number as i32), "{:?}", nccl.user_rank(comm));
            for count in [20, 30_000] {
                let call = Call::sum(number, rank.nranks, count, which);
                checker.run(&call, Shift::default(), comm, stream)?;
            }
            rank.destroy(comm)?;
        }
        let call = Call::sum(rank.nranks - 1 - rank.rank, rank.nranks, 999, turn);
        checker.run(&call, Shift::default(), child, stream)?;
        rank.destroy(child)?;
    }
    // A group that fails makes nothing, here or on the other ranks.
    let ids = [rank.shared_id()?, rank.shared_id()?];
    let mut comms = [Comm::NULL; 2];
    nccl.ok("ncclGroupStart", Comm::NULL, nccl.group_start())?;
    let code = nccl.init_rank_at(&mut comms[0], rank.nranks as i32, ids[0], rank.rank as i32);
    nccl.ok("ncclCommInitRank", Comm::NULL, code)?;
    let code = nccl.init_rank_at(&mut comms[1], rank.nranks as i32, ids[1], rank.nranks as i32);
    refused(rank, "a rank out of range", Comm::NULL, code, &[INVALID_ARGUMENT], &["rank"])?;
    refused(rank, "ncclGroupEnd", Comm::NULL, nccl.group_end(), &[INVALID_ARGUMENT], &["rank"])?;
    crate::ensure!(comms == [Comm::NULL; 2], "a failed group made {comms:?}");
    checker.run(&Call::sum(rank.rank, rank.nranks, 999, 7), Shift::default(), old, stream)?;
    rank.destroy(old)?;
    Ok(format!("checks {}", checker.checks))
}

/// ncclCommInitRankScalable with one id and with several, which different ranks made; none of them keeps anything open.
pub fn scalable(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let stream = rank.enter()?;
    let mut checker = Checker::new(nccl, 1 << 20)?;
    let n = rank.nranks;
    for count in 1..=n {
        let own = nccl.unique_id()?.0.to_vec();
        let ids: Vec<UniqueId> = rank
            .gather(&own)?
            .into_iter()
            .take(count)
            .map(|bytes| bytes.try_into().map(UniqueId).map_err(|_| "the id has another size".to_string()))
            .collect::<Outcome<_>>()?;
        if rank.rank >= count {
            // An id that nobody uses waits for its ranks; one that is used alone ends.
            let mut alone = Comm::NULL;
            let id = UniqueId(own.try_into().map_err(|_| "the id has another size")?);
            nccl.ok("ncclCommInitRank", Comm::NULL, nccl.init_rank(&mut alone, 1, id, 0))?;
            rank.destroy(alone)?;
        }
        for config in [None, Some(Config { max_ctas: 2, ..Config::new() })] {
            if config.is_some() && count > 1 {
                continue;
            }
            let mut comm = Comm::NULL;
            let list = (count as i32, ids.as_ptr());
            let ids_again;
            let list = match config {
                None => list,
                Some(_) => {
                    ids_again = [rank.shared_id()?];
                    (1, ids_again.as_ptr())
                }
            };
            let code = nccl.init_rank_scalable(&mut comm, n as i32, rank.rank as i32, list, config.as_ref());
            nccl.ok("ncclCommInitRankScalable", Comm::NULL, code)?;
            crate::ensure!(nccl.user_rank(comm) == (0, rank.rank as i32), "{:?}", nccl.user_rank(comm));
            for size in [5, 100_000] {
                checker.run(&Call::sum(rank.rank, n, size, count), Shift::default(), comm, stream)?;
            }
            rank.destroy(comm)?;
        }
        let is_open = || listening().iter().any(|place| place.starts_with("tcp"));
        let until = Instant::now() + Duration::from_secs(20);
        while is_open() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        crate::ensure!(!is_open(), "with {count} ids listeners stay: {:?}", listening());
        rank.barrier()?;
    }
    let id = nccl.unique_id()?;
    let ids = vec![id; n + 1];
    for (what, count, at) in [
        ("no id", 0, ids.as_ptr()),
        ("fewer than none", -1, ids.as_ptr()),
        ("more than ranks", n as i32 + 1, ids.as_ptr()),
        ("NULL", 1, std::ptr::null()),
    ] {
        let mut comm = Comm::NULL;
        let code = nccl.init_rank_scalable(&mut comm, n as i32, rank.rank as i32, (count, at), None);
        refused(rank, what, Comm::NULL, code, &[INVALID_ARGUMENT], &["nId|commIds"])?;
        crate::ensure!(comm == Comm::NULL, "{what}: a handle was written");
    }
    if n > 1 {
        let mut comm = Comm::NULL;
        let ids = [id, UniqueId([0; 128])];
        let code = nccl.init_rank_scalable(&mut comm, n as i32, rank.rank as i32, (2, ids.as_ptr()), None);
        refused(rank, "an id of zeroes", Comm::NULL, code, &[INVALID_ARGUMENT], &["id"])?;
    }
    Ok(format!("checks {}", checker.checks))
}

/// ncclResetDebugInit takes a level and a file that the program set after its first call, and nothing is written before.
pub fn reset_debug(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    rank.enter()?;
    rank.destroy(rank.init()?)?;
    let (read, write) = nix::unistd::pipe().map_err(|e| e.to_string())?;
    let place = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&write));
    let level = if rank.rank == 0 { "INFO" } else { "WARN" };
    // SAFETY: no other thread of this process reads or writes the environment now: the library does at first calls only.
    unsafe {
        std::env::set_var("NCCL_DEBUG", level);
        std::env::set_var("NCCL_DEBUG_FILE", &place);
    }
    nccl.reset_debug();
    rank.destroy(rank.init()?)?;
    let code = nccl.count(Comm::NULL).0;
    crate::ensure!(code != SUCCESS, "a query of NULL succeeded");
    // Away from the pipe again, so that its end is seen.
    // SAFETY: as above.
    unsafe { std::env::remove_var("NCCL_DEBUG_FILE") };
    nccl.reset_debug();
    drop(write);
    let text = std::io::read_to_string(std::fs::File::from(read)).map_err(|e| e.to_string())?;
    crate::ensure!(text.contains("NCCL WARN"), "no warning in {text:?}");
    let informed = text.contains("NCCL INFO");
    crate::ensure!(informed == (rank.rank == 0), "{level}, but the log is {text:?}");
    let stream = driver::new_stream(false)?;
    driver::destroy_stream(stream)?;
    Ok("checks 2".into())
}
