//! `cargo xtask gpu-tests`: what is checked on real GPUs, also on a machine that has neither Rust nor a compiler.
//!
//! `--bundle` puts everything that is needed into `target/gpu`: the library, the benchmark, the integration tests, this
//! program, and the conformance programs. Carried to a machine with GPUs, `target/gpu/xtask gpu-tests` runs it from there. The first
//! line of the output is the hash of the kernel sources, so that a result says which kernels it is about.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::shell::{cargo, has_program, make_dir, read, root, run as run_command, tee, write};
use crate::{library, setup, shell};

const BUILD: Duration = Duration::from_secs(1200);
const RUN: Duration = Duration::from_secs(900);
const HASH_FILE: &str = "kernels.sha256";

/// A run of the benchmark: a name for the report, and its options.
const RUNS: [(&str, &str); 6] = [
    ("processes", "--processes -b 8 -e 128M -f 16"),
    ("threads", "-b 8 -e 16M -f 64"),
    ("graph", "--processes -G 5 -b 8 -e 16M -f 64"),
    ("types and operations", "--processes -d all -o all -b 60 -e 240K -f 64 -n 2 -w 1"),
    ("roots", "--processes -r -1 -b 1000 -e 1000000 -f 1000 -n 2 -w 1 broadcast reduce"),
    ("four ranks", "--processes --ranks 4 -b 8 -e 4M -f 8 -n 5 -w 2"),
];

pub fn run(args: &[String]) -> Result<(), String> {
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let here = exe.parent().unwrap_or(Path::new("."));
    match args {
        [] if here.join(HASH_FILE).exists() => tests(here),
        [] => tests(&bundle()?),
        [flag] if flag == "--bundle" => {
            let dir = bundle()?;
            println!("{}", dir.display());
            Ok(())
        }
        _ => Err(format!("gpu-tests takes --bundle and nothing else, got {args:?}")),
    }
}

/// Builds everything and copies it into one folder.
fn bundle() -> Result<PathBuf, String> {
    setup::kernel_compiler()?;
    let library = library::build(true)?;
    run_command(
        cargo().args([
            "build",
            "--release",
            "--package",
            "oxccl-perf",
            "--package",
            "oxccl-testing",
            "--package",
            "xtask",
        ]),
        BUILD,
    )?;
    let dir = shell::target_dir().join("gpu");
    make_dir(&dir)?;
    let release = shell::target_dir().join("release");
    for (from, name) in [
        (library, library::SONAME),
        (release.join("oxccl-perf"), "oxccl-perf"),
        (release.join("oxccl-check"), "oxccl-check"),
        (release.join("xtask"), "xtask"),
    ] {
        shell::copy(&from, &dir.join(name))?;
    }
    if has_program("python3") {
        let mut python = Command::new("python3");
        run_command(python.arg(conformance()).arg("--build").arg(dir.join("conformance")), BUILD)?;
    }
    write(&dir.join(HASH_FILE), &format!("{}\n", library::kernels_hash()?))?;
    Ok(dir)
}

/// Travels with the working tree, as the expected outputs do.
fn conformance() -> PathBuf {
    root().join("ctests/conformance/run.py")
}

fn tests(dir: &Path) -> Result<(), String> {
    println!("kernels: {}", read(&dir.join(HASH_FILE))?.trim());
    if !setup::has_gpu() {
        return Err("this machine has no NVIDIA GPU; everything else is `cargo xtask test`".into());
    }
    if has_program("nvidia-smi") {
        // Which machine the results are from; without it they hold all the same.
        let query = ["--query-gpu=index,name,driver_version", "--format=csv,noheader"];
        let _ = tee(Command::new("nvidia-smi").args(query), Duration::from_secs(60));
    }
    let mut rows = Vec::new();
    let (mut passed, mut failed) = (0, 0);
    let mut note = |name: &str, start: Instant, result: Result<(), String>| {
        let (p, f) = if result.is_ok() { (1, 0) } else { (0, 1) };
        (passed, failed) = (passed + p, failed + f);
        let text = result.map_or_else(|why| format!("FAILED: {why}"), |()| "passed".into());
        rows.push(format!("{name:<22} {:>7.1} s  {text}", start.elapsed().as_secs_f64()));
    };
    for (name, options) in RUNS {
        println!("\n=== {name}: {options}");
        let start = Instant::now();
        let mut perf = Command::new(dir.join("oxccl-perf"));
        perf.arg("--lib").arg(dir.join(library::SONAME)).args(options.split(' '));
        note(name, start, run_command(&mut perf, RUN));
    }
    println!("\n=== integration tests, on the real driver");
    let start = Instant::now();
    let mut check = Command::new(dir.join("oxccl-check"));
    check
        .args(["run", "--all"])
        .env("OXCCL_TEST_DRIVER", "real")
        .env("OXCCL_LIBRARY", dir.join(library::SONAME));
    note("integration tests", start, run_command(&mut check, RUN));

    let programs = dir.join("conformance");
    if programs.exists() && has_program("python3") {
        println!("\n=== conformance, on the real driver");
        let start = Instant::now();
        let mut python = Command::new("python3");
        python
            .arg(conformance())
            .arg("--programs-in")
            .arg(&programs)
            .arg("--out")
            .arg(dir.join("conformance-out"));
        note("conformance", start, run_command(&mut python, RUN));
    }
    println!("\n{}\n\n{passed} passed, {failed} failed", rows.join("\n"));
    if failed == 0 { Ok(()) } else { Err(String::new()) }
}
