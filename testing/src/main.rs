//! `oxccl-check`: the integration tests as one program, which can be carried to a machine with GPUs.
//!
//! `oxccl-check list` names the runs, `oxccl-check run NAME…` makes them, `oxccl-check run --all` all that the driver at
//! hand allows. The library is the `libnccl.so` beside the program or the one that OXCCL_LIBRARY names;
//! OXCCL_TEST_DRIVER=real takes the machine's CUDA driver. The exit status is 0 when every run succeeded. `rank` is how
//! the program starts its own ranks.
#![allow(clippy::print_stdout, clippy::print_stderr)] // a command-line program

use std::process::ExitCode;
use std::time::Instant;

use oxccl_testing::machine::Machine;
use oxccl_testing::rank::ProcessPlan;
use oxccl_testing::{driver, runs};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let names: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
    match words.first().map(String::as_str) {
        Some("rank") => match ProcessPlan::parse(&words[1..]) {
            Ok(plan) if plan.run() => ExitCode::SUCCESS,
            Ok(_) => ExitCode::FAILURE,
            Err(why) => {
                eprintln!("oxccl-check rank: {why}");
                ExitCode::from(2)
            }
        },
        Some("device-count") => match driver::init().and_then(|()| driver::device_count()) {
            Ok(count) => {
                println!("{count}");
                ExitCode::SUCCESS
            }
            Err(why) => {
                eprintln!("{why}");
                ExitCode::FAILURE
            }
        },
        Some("list") => {
            for run in runs::ALL {
                println!("{}{}", run.name, if run.real { "" } else { "  (emulated driver only)" });
            }
            ExitCode::SUCCESS
        }
        Some("run") if !names.is_empty() => run(&names),
        _ => {
            eprintln!("usage: oxccl-check list | run NAME… | run --all");
            ExitCode::from(2)
        }
    }
}

fn run(names: &[&str]) -> ExitCode {
    let machine = std::env::current_exe().map_err(|e| e.to_string()).and_then(|exe| Machine::find(&exe));
    let machine = match machine {
        Ok(machine) => machine,
        Err(why) => {
            eprintln!("oxccl-check: {why}");
            return ExitCode::FAILURE;
        }
    };
    let wanted: Vec<&runs::Run> = match names {
        ["--all"] => runs::ALL.iter().filter(|run| run.real || !machine.is_real()).collect(),
        names => runs::ALL.iter().filter(|run| names.iter().any(|name| run.name.contains(name))).collect(),
    };
    let mut failed = 0;
    for run in &wanted {
        let start = Instant::now();
        let result = run.make(&machine);
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(text) => println!("ok     {} ({seconds:.1} s) {text}", run.name),
            Err(why) => {
                failed += 1;
                println!("FAILED {} ({seconds:.1} s)\n{why}", run.name);
            }
        }
    }
    println!("{} passed, {failed} failed", wanted.len() - failed);
    if failed == 0 && !wanted.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
