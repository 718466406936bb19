//! The kernels on CPU threads, without a driver: every function, type and operation against a reference, long mixes of
//! operations on one communicator, wrap-around, late ranks, calls that disagree.
//!
//! Tests run with one thread per block; `under_every_execution_mode` runs them again with many, and with weak memory.

#[allow(dead_code)]
#[path = "../../../src/gpu/layout.rs"]
mod layout;
#[allow(dead_code)]
#[path = "../../../src/gpu/work.rs"]
mod work;

mod gpu {
    pub(crate) use super::{layout, work};
}

mod call;
mod collectives;
mod errors;
mod messages;
mod reference;
mod world;
mod wraps;

/// How many of `wanted` repetitions to do: fewer in each of the other execution modes.
fn effort(wanted: usize) -> usize {
    if std::env::var_os("OXCCL_EMU_THREADS").is_some() { wanted.div_ceil(4) } else { wanted }
}

/// Fibers show what threads of a block may do to each other, delayed stores what the GPU's memory model allows. The settings belong to the
/// process, hence the children.
#[test]
fn under_every_execution_mode() {
    if std::env::var_os("OXCCL_EMU_THREADS").is_some() {
        return;
    }
    let program = std::env::current_exe().unwrap();
    for (threads, weak, seed) in [("64", "0", "1"), ("7", "1", "2"), ("64", "1", "3")] {
        let output = std::process::Command::new(&program)
            .args(["--test-threads=1", "--skip", "layout", "--skip", "patterns", "--skip", "full_slots"])
            .env("OXCCL_EMU_THREADS", threads)
            .env("OXCCL_EMU_WEAK", weak)
            .env("OXCCL_EMU_SEED", seed)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("test result: ok"),
            "{threads} threads, weak {weak}, seed {seed}:\n{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
