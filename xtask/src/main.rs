//! `cargo xtask`: the only command a person needs to build, check, time and install the project.
//!
//! It sets up what it needs below `target/` by itself (kernel compiler, links for the emulated driver, CMake when the
//! system has none) and touches nothing outside of the repository, except for `install`. It depends on std alone, so
//! that it compiles in seconds.
#![allow(clippy::print_stdout, clippy::print_stderr)] // a command-line program

mod bench;
mod gpu;
mod install;
mod library;
mod setup;
mod shell;
mod steps;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  build [--release]             libnccl.so and libnccl.so.2 in target/debug or target/release
  bench [OPTIONS]               builds for release, runs all collectives across ranks, checks and times them
                                (OPTIONS go to oxccl-perf; see `cargo xtask bench --help`)
  test [--only STEP]... [--skip STEP]... [--list]
                                every test; the last line is `N passed, M failed`
  install --prefix DIR [--destdir DIR]
                                library, headers, pkg-config and CMake files
  gpu-tests [--bundle]          the checks that need GPUs; --bundle only puts all they need into target/gpu, to be carried
                                to a GPU machine without Rust (there: target/gpu/xtask gpu-tests)
  setup                         only fetches and links what the others need";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = args.split_first() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let result = match command.as_str() {
        "build" => build(rest),
        "bench" => bench::run(rest),
        "test" => steps::run(rest),
        "install" => install::run(rest),
        "gpu-tests" => gpu::run(rest),
        "setup" => setup::all(),
        "help" | "--help" | "-h" => {
            println!("{USAGE}");
            Ok(())
        }
        other => Err(format!("there is no command `{other}`\n{USAGE}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            if !why.is_empty() {
                eprintln!("xtask: {why}");
            }
            ExitCode::FAILURE
        }
    }
}

fn build(args: &[String]) -> Result<(), String> {
    let release = match args {
        [] => false,
        [flag] if flag == "--release" => true,
        _ => return Err(format!("build takes --release and nothing else, got {args:?}")),
    };
    setup::kernel_compiler()?;
    let file = library::build(release)?;
    println!("{}", file.display());
    Ok(())
}
