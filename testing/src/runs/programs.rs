//! Random programs in random teams. The seed of a program says everything: its block of seeds is run by one team, whose
//! layout and settings follow from the block.
//!
//! `OXCCL_TEST_SEED` is the first seed, `OXCCL_TEST_PROGRAMS` how many follow (1: that program alone), `OXCCL_TEST_MINUTES`
//! a time instead of a number. A failure says the seed, and shows the program.

use std::time::{Duration, Instant};

use crate::driver::Outcome;
use crate::machine::Machine;
use crate::program::{Program, Random};
use crate::team::{End, Event, Team};

/// Seeds that one team runs.
const BLOCK: u64 = 100;
/// A team in which no rank begins a program for so long hangs.
const STUCK: Duration = Duration::from_secs(60);

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

pub fn run(machine: &Machine) -> Outcome<String> {
    let first = number("OXCCL_TEST_SEED").unwrap_or(1);
    let minutes = number("OXCCL_TEST_MINUTES");
    let end = minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let usual = if machine.is_real() { 60 } else { 400 };
    let count = number("OXCCL_TEST_PROGRAMS").unwrap_or(if end.is_some() { u64::MAX / 2 } else { usual });
    let mut total = Total::default();
    let mut seed = first;
    while seed < first + count && end.is_none_or(|end| Instant::now() < end) {
        let programs = (BLOCK - seed % BLOCK).min(first + count - seed);
        let team = team(machine, seed / BLOCK).arg("first", seed).arg("programs", programs);
        let left = end.map(|end| end.saturating_duration_since(Instant::now()).as_secs().max(1));
        one(machine, left.map_or(team.clone(), |left| team.arg("seconds", left)), seed, &mut total)?;
        seed += programs;
    }
    Ok(format!(
        "seeds from {first} on: {} programs by {} teams, {} checks",
        total.programs, total.teams, total.checks
    ))
}

/// The same programs three times, all communicators gone in between: nothing grows.
pub fn flat(machine: &Machine) -> Outcome<String> {
    let first = number("OXCCL_TEST_SEED").unwrap_or(1);
    let programs = if machine.is_real() { 10 } else { 60 };
    let mut total = Total::default();
    let layout: &[usize] = if machine.is_real() { &[3] } else { &[2, 1] };
    let team = Team::new("programs", layout).arg("first", first).arg("programs", programs).arg("passes", 3);
    one(machine, team, first, &mut total)?;
    Ok(format!("seeds from {first} on: {} programs, {} checks", total.programs, total.checks))
}

/// Ranks that share a GPU as threads make and end so many communicators over host memory that much has to be given back, while others
/// launch what waits for the rest.
pub fn give_back(machine: &Machine) -> Outcome<String> {
    const FIRST: u64 = 7400;
    let mut total = Total::default();
    let team = Team::new("programs", &[5]).env("OXCCL_EMU_DEVICES", 1).env("NCCL_MULTI_RANK_GPU_ENABLE", 1);
    let team = team.env("CUDA_MODULE_LOADING", "EAGER").env("NCCL_P2P_DISABLE", 1);
    one(machine, team.arg("first", FIRST).arg("programs", 60), FIRST, &mut total)?;
    Ok(format!("seeds from {FIRST} on: {} programs, {} checks", total.programs, total.checks))
}

#[derive(Default)]
struct Total {
    programs: u64,
    checks: u64,
    teams: u64,
}

/// The team of a block of seeds.
fn team(machine: &Machine, block: u64) -> Team {
    let mut random = Random::new(block ^ 0x7ea0_0000);
    let nranks = 2 + random.below(5);
    let mut layout = Vec::new();
    while layout.iter().sum::<usize>() < nranks {
        let left = nranks - layout.iter().sum::<usize>();
        layout.push(1 + random.below(left));
    }
    if machine.is_real() {
        // Processes that share a GPU take turns of milliseconds.
        layout = vec![nranks];
    }
    let mut team = Team::new("programs", &layout).seconds(3600);
    match random.below(4) {
        0 => team = team.env("NCCL_PROTO", "LL"),
        1 => team = team.env("NCCL_PROTO", "Simple"),
        _ => {}
    }
    if random.one_in(6) {
        team = team.env("NCCL_P2P_DISABLE", 1);
    }
    if random.one_in(4) {
        team = team.env("OXCCL_SEQUENCE_START", ["0xfffffff0", "0x7ffffff8"][random.below(2)]);
    }
    if layout.len() == 1 && random.one_in(2) {
        team = team.env("OXCCL_EMU_DEVICES", 1).env("NCCL_MULTI_RANK_GPU_ENABLE", 1);
        team = team.env("CUDA_MODULE_LOADING", "EAGER");
    }
    team
}

fn one(machine: &Machine, team: Team, first: u64, total: &mut Total) -> Outcome {
    let nranks = team.nranks();
    let mut running = team.start(machine)?;
    let mut at = vec![first; nranks];
    let mut failed = false;
    let mut until = Instant::now() + STUCK;
    while let Some(event) = running.next(Some(until)) {
        match event {
            Event::Mark { rank, text } => {
                at[rank] = text.parse().unwrap_or(at[rank]);
                if !failed {
                    until = Instant::now() + STUCK;
                }
            }
            Event::Report { rank } if running.succeeded(rank) => {}
            _ if failed => {}
            // The others may wait for a rank that failed: their errors are worth a moment.
            _ => {
                failed = true;
                until = Instant::now() + Duration::from_secs(5);
            }
        }
    }
    let stuck = !running.is_over();
    let ends: Vec<End> = if stuck { running.kill_and_finish() } else { running.finish() };
    let failures: Vec<String> = ends.iter().enumerate().filter_map(|(rank, end)| end.failure(rank)).collect();
    if failures.is_empty() {
        for end in ends {
            let Some(Ok(report)) = end.report else { continue };
            let words: Vec<&str> = report.split(' ').collect();
            if let ["checks", checks, "programs", programs] = words[..] {
                total.checks += checks.parse::<u64>().unwrap_or(0);
                total.programs += programs.parse::<u64>().unwrap_or(0);
            }
        }
        total.teams += 1;
        return Ok(());
    }
    let seed = at.iter().copied().min().unwrap_or(first);
    Err(format!(
        "{team}:\n{}\nranks were at programs {at:?}; OXCCL_TEST_SEED={seed} OXCCL_TEST_PROGRAMS=1 repeats this one alone, \
         OXCCL_TEST_SEED={first} OXCCL_TEST_PROGRAMS={} all up to it:\n{:#?}",
        failures.join("\n"),
        seed - first + 1,
        Program::new(seed, nranks)
    ))
}
