//! Communicators that cannot come up: every rank is told why, no handle is written, others go on.

use crate::call::Call;
use crate::check::{Checker, Shift};
use crate::driver::{self, Outcome};
use crate::nccl::{Comm, Config, INVALID_ARGUMENT, INVALID_USAGE, REMOTE, SUCCESS, UNHANDLED_CUDA, UniqueId};
use crate::rank::Rank;
use crate::scenarios::misuse::refused;

/// What the handle's variable holds before: a failed call leaves it alone.
const BEFORE: Comm = Comm(0x5555_0000);

/// An init that must fail with one of the codes and all of the words.
fn fails(
    rank: &Rank,
    what: &str,
    nranks: usize,
    id: UniqueId,
    number: i32,
    codes: &[i32],
    words: &[&str],
) -> Outcome {
    let mut comm = BEFORE;
    let code = rank.nccl.init_rank(&mut comm, nranks as i32, id, number);
    refused(rank, what, Comm::NULL, code, codes, words)?;
    crate::ensure!(comm == BEFORE, "{what}: a handle was written: {comm:?}");
    Ok(())
}

pub fn run(rank: &Rank) -> Outcome<String> {
    let case = rank.arg("case").ok_or("no case")?;
    if let "no_driver" | "driver_too_old" | "no_gpu" = case {
        return without_gpu(rank, case);
    }
    let stream = rank.enter()?;
    // Where ranks share a device on purpose, no communicator of all of them can stand by.
    let bystander = if case == "duplicate_gpu" { None } else { Some(rank.init()?) };
    if case == "duplicate_gpu" {
        driver::enter(0)?;
    }
    let context = driver::current_context()?;
    match case {
        "rank_out_of_range" => rank_out_of_range(rank)?,
        "unknown_device" => unknown_device(rank)?,
        "two_ranks_with_one_number" => {
            let id = rank.shared_id()?;
            fails(rank, case, rank.nranks, id, 0, &[INVALID_ARGUMENT, INVALID_USAGE, REMOTE], &["rank 0"])?;
        }
        "different_nranks" => {
            let id = rank.shared_id()?;
            let codes = [INVALID_ARGUMENT, INVALID_USAGE, REMOTE];
            fails(rank, case, rank.nranks + rank.rank, id, rank.rank as i32, &codes, &["ranks|nranks"])?;
        }
        "unique_id_reused" => id_reused(rank)?,
        "unique_id_corrupted" => id_corrupted(rank)?,
        "config_without_magic" => config(rank, &[("magic", Config { magic: 0, ..Config::new() })])?,
        "config_of_impossible_size" => config(
            rank,
            &[
                ("size", Config { size: 0, ..Config::new() }),
                ("size", Config { size: 7, ..Config::new() }),
                ("size", Config { size: 1 << 40, ..Config::new() }),
            ],
        )?,
        "config_out_of_range" => config(
            rank,
            &[
                ("blocking", Config { blocking: 2, ..Config::new() }),
                ("CTAs", Config { min_ctas: 8, max_ctas: 4, ..Config::new() }),
                ("CTAs", Config { max_ctas: 0, ..Config::new() }),
                ("cga", Config { cga_cluster_size: -1, ..Config::new() }),
            ],
        )?,
        "config_of_other_versions" => other_versions(rank)?,
        "gpu_memory_full" => memory_full(rank)?,
        "duplicate_gpu" => duplicate_gpu(rank)?,
        _ => return Err(format!("there is no case {case}")),
    }
    let now = driver::current_context()?;
    crate::ensure!(now == context, "the current context changed from {context:#x} to {now:#x}");
    rank.barrier()?;
    if let Some(bystander) = bystander {
        let mut checker = Checker::new(rank.nccl, 1 << 18)?;
        for count in [3, 50_000] {
            let call = Call::sum(rank.rank, rank.nranks, count, 4);
            checker
                .run(&call, Shift::default(), bystander, stream)
                .map_err(|e| format!("afterwards, on the other communicator: {e}"))?;
        }
        rank.destroy(bystander)?;
    }
    Ok("checks 1".into())
}

/// ncclCommInitAll with devices that are not there.
fn unknown_device(rank: &Rank) -> Outcome {
    let count = driver::device_count()? as i32;
    for (list, place) in [(vec![-1], 0), (vec![0, count], 1), (vec![0, i32::MIN], 1)] {
        let (code, comms) = rank.nccl.init_all(&list);
        let words = [format!("device {}", list[place]), format!("rank {place}"), format!("sees {count}")];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        refused(rank, &format!("{list:?}"), Comm::NULL, code, &[INVALID_ARGUMENT], &words)?;
        crate::ensure!(
            comms.iter().all(|comm| *comm == Comm::NULL),
            "{list:?}: a handle was written: {comms:?}"
        );
    }
    Ok(())
}

fn rank_out_of_range(rank: &Rank) -> Outcome {
    let id = rank.shared_id()?;
    for number in [-1, rank.nranks as i32, i32::MAX] {
        let words = ["rank", &number.to_string()];
        fails(rank, "rank", rank.nranks, id, number, &[INVALID_ARGUMENT], &words)?;
    }
    fails(rank, "no ranks", 0, id, 0, &[INVALID_ARGUMENT], &["nranks", "0"])?;
    // The id is none the worse for it.
    let mut comm = Comm::NULL;
    let code = rank.nccl.init_rank(&mut comm, rank.nranks as i32, id, rank.rank as i32);
    rank.nccl.ok("the same id afterwards", Comm::NULL, code)?;
    rank.destroy(comm)
}

/// A second use works or is refused at once on every rank; it never hangs.
fn id_reused(rank: &Rank) -> Outcome {
    let id = rank.shared_id()?;
    let mut first = Comm::NULL;
    let code = rank.nccl.init_rank(&mut first, rank.nranks as i32, id, rank.rank as i32);
    rank.nccl.ok("the first use", Comm::NULL, code)?;
    for what in ["again while the first lives", "again after the first was destroyed"] {
        if what.contains("destroyed") {
            rank.destroy(first)?;
            rank.barrier()?;
        }
        let mut second = BEFORE;
        let code = rank.nccl.init_rank(&mut second, rank.nranks as i32, id, rank.rank as i32);
        let codes = rank.gather(&code.to_le_bytes())?;
        let succeeded = codes.iter().filter(|code| **code == SUCCESS.to_le_bytes()).count();
        crate::ensure!(
            succeeded == 0 || succeeded == rank.nranks,
            "{what}: only {succeeded} ranks succeeded"
        );
        if succeeded == 0 {
            let codes = [INVALID_ARGUMENT, INVALID_USAGE, REMOTE];
            refused(rank, what, Comm::NULL, code, &codes, &["id"])?;
            crate::ensure!(second == BEFORE, "{what}: a handle was written");
        } else {
            rank.destroy(second)?;
        }
    }
    Ok(())
}

fn id_corrupted(rank: &Rank) -> Outcome {
    let id = rank.shared_id()?;
    let codes = [INVALID_ARGUMENT, INVALID_USAGE, REMOTE];
    for garbage in [[0; 128], [0xff; 128]] {
        fails(rank, "an id of nothing", rank.nranks, UniqueId(garbage), rank.rank as i32, &codes, &["id"])?;
    }
    // Rank 1 holds an id with one byte changed, at a place of every kind. Nobody joins the right one then.
    for at in [0, 127, 100, 64, 40, 8] {
        let mut bytes = id.0;
        bytes[at] ^= 0x41;
        if rank.rank == 1 {
            let what = format!("byte {at} changed");
            fails(rank, &what, rank.nranks, UniqueId(bytes), rank.rank as i32, &codes, &["id|rank"])?;
        }
    }
    rank.barrier()
}

fn config(rank: &Rank, cases: &[(&str, Config)]) -> Outcome {
    let id = rank.shared_id()?;
    for (word, config) in cases {
        let mut comm = BEFORE;
        let code = rank.nccl.init_rank_config(&mut comm, rank.nranks as i32, id, rank.rank as i32, config);
        let words =
            [*word, if matches!(*word, "magic" | "size") { "NCCL_CONFIG_INITIALIZER" } else { *word }];
        refused(rank, &format!("{config:?}"), Comm::NULL, code, &[INVALID_ARGUMENT], &words)?;
        crate::ensure!(comm == BEFORE, "a handle was written");
    }
    Ok(())
}

/// Callers built with any version of NCCL from 2.14 on: size and version as they come.
fn other_versions(rank: &Rank) -> Outcome {
    for (size, version) in [
        (24, 21400),
        (40, 21701),
        (48, 21805),
        (48, 22602),
        (72, 22707),
        (80, 22809),
        (88, 22902),
        (96, 23007),
        (112, 23102),
        (120, 23203),
        (144, 24000),
    ] {
        // Fields that the caller's struct does not have are garbage, which must not matter.
        let mut config = Config { size, version, ..Config::new() };
        // SAFETY: the struct is plain data, and only bytes beyond the caller's part are written.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(std::ptr::from_mut(&mut config).cast::<u8>(), size_of::<Config>())
        };
        let defined = bytes.len().min(size);
        bytes[defined..].fill(0x5a);
        if size > Config::SIZE {
            // Integers that are not set, as the newer initialiser writes them.
            for word in bytes[Config::SIZE..defined].chunks_exact_mut(4) {
                word.copy_from_slice(&i32::MIN.to_le_bytes());
            }
        }
        let comm = rank.init_config(&config).map_err(|e| format!("size {size}, version {version}: {e}"))?;
        rank.destroy(comm)?;
    }
    Ok(())
}

/// The last rank's device has no memory left: it fails, and the others are told.
fn memory_full(rank: &Rank) -> Outcome {
    let last = rank.rank + 1 == rank.nranks;
    let mut hoard = Vec::new();
    if last {
        // Large pieces first, down to the granule.
        let mut piece = driver::free_memory()?;
        while piece >= 1 << 20 {
            match driver::alloc(piece) {
                Ok(address) => hoard.push(address),
                Err(_) => piece /= 2,
            }
        }
    }
    rank.barrier()?;
    let mut comms = Vec::new();
    // What the library holds in stock serves a few.
    let failed = loop {
        let id = rank.shared_id()?;
        let mut comm = BEFORE;
        let code = rank.nccl.init_rank(&mut comm, rank.nranks as i32, id, rank.rank as i32);
        if code != SUCCESS {
            crate::ensure!(comm == BEFORE, "a handle was written");
            break code;
        }
        comms.push(comm);
        crate::ensure!(comms.len() < 64, "{} communicators came up without memory", comms.len());
    };
    if last {
        refused(
            rank,
            "out of memory",
            Comm::NULL,
            failed,
            &[UNHANDLED_CUDA],
            &["CUDA_ERROR_OUT_OF_MEMORY", "memory"],
        )?;
    } else {
        let name = format!("rank {}", rank.nranks - 1);
        let codes = [UNHANDLED_CUDA, REMOTE];
        refused(rank, "a peer without memory", Comm::NULL, failed, &codes, &[&name, "memory"])?;
    }
    hoard.into_iter().try_for_each(driver::free)?;
    comms.into_iter().try_for_each(|comm| rank.destroy(comm))
}

fn duplicate_gpu(rank: &Rank) -> Outcome {
    let uuid = driver::device_uuid(0)?;
    let id = rank.shared_id()?;
    let words = ["rank 0|ranks 0", "1", &uuid, "NCCL_MULTI_RANK_GPU_ENABLE"];
    fails(rank, "duplicate GPU", rank.nranks, id, rank.rank as i32, &[INVALID_USAGE], &words)?;
    let (code, _) = rank.nccl.init_all(&[0, 0]);
    refused(rank, "ncclCommInitAll", Comm::NULL, code, &[INVALID_USAGE], &["NCCL_MULTI_RANK_GPU_ENABLE"])
}

/// No driver, or one that cannot serve: an id can be made all the same, a communicator cannot.
fn without_gpu(rank: &Rank, case: &str) -> Outcome<String> {
    let id = rank.nccl.unique_id()?;
    let words: &[&str] = match case {
        "no_driver" => &["driver", "libcuda"],
        "driver_too_old" => &["driver", "525"],
        _ => &["no GPU|CUDA_ERROR_NO_DEVICE"],
    };
    for nranks in [1, 2] {
        fails(rank, case, nranks, id, 0, &[UNHANDLED_CUDA], words)?;
    }
    let (code, _) = rank.nccl.init_all(&[0]);
    refused(rank, "ncclCommInitAll", Comm::NULL, code, &[UNHANDLED_CUDA], words)?;
    Ok("checks 3".into())
}
