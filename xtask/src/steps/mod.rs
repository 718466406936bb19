//! `cargo xtask test`: named steps, cheap ones first, each with a time and a count.
//!
//! A step that cannot run because a part of the machine is missing says so by name and is not counted as passed. All
//! steps run even when one fails; the last line of the output is `N passed, M failed`, alone, for programs that read it.

mod native;
mod rust;

use std::path::PathBuf;
use std::time::Instant;

use crate::shell::target_dir;
use crate::{bench, setup};

/// What a step counted.
pub enum Outcome {
    Ran { passed: usize, failed: usize },
    Skipped(String),
}

impl Outcome {
    pub fn one(result: Result<(), String>) -> Outcome {
        if let Err(why) = &result {
            println!("FAILED: {why}");
        }
        Outcome::Ran { passed: usize::from(result.is_ok()), failed: usize::from(result.is_err()) }
    }
}

struct Step {
    name: &'static str,
    about: &'static str,
    run: fn() -> Result<Outcome, String>,
}

/// In the order in which they run.
const STEPS: &[Step] = &[
    Step { name: "fmt", about: "rustfmt agrees with every file", run: rust::fmt },
    Step { name: "clippy", about: "no warning in any package or test", run: rust::clippy },
    Step { name: "layering", about: "modules use only the rows above them", run: rust::layering },
    Step { name: "header", about: "generated headers are those committed", run: rust::header },
    Step { name: "tests", about: "unit and integration tests, on the emulated driver", run: rust::tests },
    Step {
        name: "sanitize",
        about: "kernels compile as C++ without a warning, instrumented",
        run: native::sanitize,
    },
    Step { name: "results", about: "results taken on GPUs belong to these kernels", run: native::results },
    Step {
        name: "library",
        about: "the release library: soname, needs, symbols, size",
        run: native::library,
    },
    Step { name: "install", about: "the staged install: files, pkg-config", run: native::install },
    Step { name: "ctests", about: "C programs against the staged install, by CMake", run: native::ctests },
    Step { name: "conformance", about: "driver programs on the emulated driver", run: native::conformance },
    Step { name: "bench", about: "all collectives over 4 emulated processes, checked", run: bench_step },
];

pub fn run(args: &[String]) -> Result<(), String> {
    let (mut only, mut skip) = (Vec::new(), Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let list = match arg.as_str() {
            "--list" => {
                STEPS.iter().for_each(|step| println!("{:<12} {}", step.name, step.about));
                return Ok(());
            }
            "--only" => &mut only,
            "--skip" => &mut skip,
            _ => return Err(format!("test takes --only STEP, --skip STEP and --list, got {arg}")),
        };
        let name = args.next().ok_or_else(|| format!("{arg} needs the name of a step"))?;
        if !STEPS.iter().any(|step| step.name == name) {
            return Err(format!("there is no step `{name}`; `cargo xtask test --list` names them"));
        }
        list.push(name.as_str());
    }
    // Without the kernel compiler nothing of the library builds: better one sentence than ten failed steps.
    setup::kernel_compiler()?;

    let mut rows = Vec::new();
    let (mut passed, mut failed) = (0, 0);
    for step in STEPS {
        if (!only.is_empty() && !only.contains(&step.name)) || skip.contains(&step.name) {
            continue;
        }
        println!("\n=== {}: {}", step.name, step.about);
        let start = Instant::now();
        let outcome = (step.run)().unwrap_or_else(|why| Outcome::one(Err(why)));
        let seconds = start.elapsed().as_secs_f64();
        let text = match outcome {
            Outcome::Ran { passed: p, failed: f } => {
                passed += p;
                failed += f;
                format!("{p} passed, {f} failed")
            }
            Outcome::Skipped(why) => {
                println!("skipped: {why}");
                format!("skipped: {why}")
            }
        };
        rows.push(format!("{:<12} {seconds:>7.1} s  {text}", step.name));
    }
    println!("\n{}\n\n{passed} passed, {failed} failed", rows.join("\n"));
    if failed == 0 { Ok(()) } else { Err(String::new()) }
}

fn bench_step() -> Result<Outcome, String> {
    Ok(Outcome::one(bench::run(&[])))
}

/// Where the steps install to.
fn stage_dir() -> PathBuf {
    target_dir().join("stage")
}
