//! `cargo xtask bench`: the main job, from sources to a checked table.
//!
//! On a machine with GPUs one process per GPU runs (two processes share one GPU if it is the only one); elsewhere four
//! processes run on the emulated driver, with sizes that a CPU can move. Options are handed on to `oxccl-perf` and
//! win over these defaults.

use std::process::Command;
use std::time::Duration;

use crate::shell::{cargo, path_list, run as run_command, target_dir};
use crate::{library, setup};

/// What the library must not lack; the rest is shown as not supported until it is there.
const FINISHED: &str = "all_reduce,broadcast,sendrecv,exchange";

const BUILD: Duration = Duration::from_secs(1200);
const RUN: Duration = Duration::from_secs(1200);

pub fn run(args: &[String]) -> Result<(), String> {
    setup::kernel_compiler()?;
    let library = library::build(true)?;
    run_command(cargo().args(["build", "--release", "--package", "oxccl-perf"]), BUILD)?;

    let mut perf = Command::new(target_dir().join("release/oxccl-perf"));
    perf.arg("--lib").arg(&library).args(["--require", FINISHED]);
    if setup::has_gpu() {
        perf.args(["--ranks", "gpus", "--processes", "-b", "8", "-e", "128M", "-f", "16"]);
    } else {
        let emulator = setup::emulator()?;
        perf.env("LD_LIBRARY_PATH", path_list("LD_LIBRARY_PATH", &[emulator]));
        perf.env("OXCCL_EMU_DEVICES", "4");
        perf.args(["--ranks", "4", "--processes", "-b", "16", "-e", "4M", "-f", "8", "-n", "5", "-w", "1"]);
    }
    perf.args(args);
    run_command(&mut perf, RUN)
}
