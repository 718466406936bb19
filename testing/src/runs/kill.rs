//! SIGKILL for a random rank at a random moment of init or of a loop of collectives, many times.
//!
//! Survivors must report within two seconds each time, through the failing init or through ncclCommGetAsyncError, and
//! nothing may be left: no process, no file in /dev/shm or /tmp. `OXCCL_TEST_SEED` repeats a sequence of kills.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::driver::Outcome;
use crate::machine::Machine;
use crate::nccl::REMOTE;
use crate::pattern::mix;
use crate::team::{Event, Running, Team};

/// How soon survivors know.
const LIMIT: Duration = Duration::from_secs(2);

pub fn run(machine: &Machine) -> Outcome<String> {
    kills(machine, if machine.is_real() { 20 } else { 100 }, None)
}

/// Kills of ranks that do nothing but split.
pub fn splits(machine: &Machine) -> Outcome<String> {
    kills(machine, if machine.is_real() { 5 } else { 20 }, Some("splits"))
}

fn kills(machine: &Machine, rounds: u64, work: Option<&str>) -> Outcome<String> {
    let seed = std::env::var("OXCCL_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let before = leftovers();
    let mut init_time = Duration::from_millis(30);
    let (mut slowest, mut in_init) = (Duration::ZERO, 0);
    for round in 0..rounds {
        let outcome = one(machine, mix(seed << 32 | round), work, &mut init_time);
        let kill = outcome.map_err(|e| format!("seed {seed}, kill {round}: {e}"))?;
        slowest = slowest.max(kill.slowest);
        in_init += usize::from(kill.in_init);
    }
    let after = leftovers();
    let left: Vec<_> = after.difference(&before).collect();
    if !left.is_empty() {
        return Err(format!("left behind: {left:?}"));
    }
    Ok(format!(
        "{rounds} kills, {in_init} during init, the slowest survivor knew after {} ms",
        slowest.as_millis()
    ))
}

struct Kill {
    slowest: Duration,
    /// Whether any survivor learned of it from the failing init.
    in_init: bool,
}

fn one(machine: &Machine, random: u64, work: Option<&str>, init_time: &mut Duration) -> Outcome<Kill> {
    let nranks = 2 + random as usize % 3;
    let victim = (random >> 8) as usize % nranks;
    let during_init = work.is_none() && (random >> 16) & 1 == 0;
    // A rank that is killed before it has met the others is to them one that never comes.
    let patience = if during_init { 5 } else { 60 };
    let team = Team::new("survivor", &vec![1; nranks]).env("OXCCL_INIT_TIMEOUT", patience).seconds(60);
    let never_came = format!("waited in vain for rank {victim} to join");
    let team = work.into_iter().fold(team, |team, work| team.arg("work", work));
    let mut running = team.start(machine)?;
    let what = format!("{nranks} ranks, victim {victim}, {}", if during_init { "init" } else { "loop" });
    let told = |e: String| format!("{what}: {e}");

    wait_for_all(&mut running, "joining", nranks).map_err(told)?;
    let joining = Instant::now();
    // Rank by rank the parts of the delay are random, so both ends of the span are met.
    let share = ((random >> 24) % 1000) as u32;
    let delay = if during_init {
        *init_time * share / 800
    } else {
        wait_for_all(&mut running, "joined", nranks).map_err(told)?;
        *init_time = (*init_time * 3 + joining.elapsed()) / 4;
        Duration::from_millis(60) * share / 1000
    };
    std::thread::sleep(delay);
    running.kill(victim)?;
    let killed = Instant::now();
    let mut waiting: BTreeSet<usize> = (0..nranks).filter(|rank| *rank != victim).collect();
    let (mut slowest, mut in_init) = (Duration::ZERO, false);
    while !waiting.is_empty() {
        match running.next(Some(killed + LIMIT + Duration::from_secs(8))) {
            Some(Event::Mark { rank, text }) if text.starts_with("error ") && waiting.remove(&rank) => {
                let after = killed.elapsed();
                let code = text.split(' ').nth(1).and_then(|code| code.parse().ok());
                if code != Some(REMOTE) || !text.contains("rank ") {
                    return Err(told(format!("rank {rank} reported `{text}`")));
                }
                if during_init && text.contains(&never_came) {
                    in_init = true;
                    continue;
                }
                if after > LIMIT {
                    return Err(told(format!("rank {rank} reported only after {after:?}: {text}")));
                }
                slowest = slowest.max(after);
            }
            Some(Event::Gone { rank }) if rank != victim => {
                return Err(told(format!("rank {rank} ended without a report\n{}", outputs(running))));
            }
            Some(_) => {}
            None => return Err(told(format!("ranks {waiting:?} did not report\n{}", outputs(running)))),
        }
    }
    while running.next(None).is_some() {}
    let ids = running.process_ids();
    for (rank, end) in running.finish().into_iter().enumerate().filter(|(rank, _)| *rank != victim) {
        match (end.report, end.status) {
            (Some(Ok(text)), Some(status)) if status.success() => in_init |= text.starts_with("init"),
            (report, status) => {
                return Err(told(format!("rank {rank} ended badly: {report:?} {status:?}\n{}", end.output)));
            }
        }
    }
    let alive = |id: &u32| std::fs::exists(format!("/proc/{id}")).unwrap_or(true);
    if ids.iter().any(alive) {
        return Err(told("a process is left".into()));
    }
    Ok(Kill { slowest, in_init })
}

/// Waits until that many ranks have marked `text`.
fn wait_for_all(running: &mut Running, text: &str, nranks: usize) -> Outcome {
    let mut seen = 0;
    while seen < nranks {
        match running.next(None) {
            Some(Event::Mark { text: mark, .. }) if mark == text => seen += 1,
            Some(Event::Mark { .. }) => {}
            other => return Err(format!("while waiting for `{text}`: {other:?}")),
        }
    }
    Ok(())
}

/// What all ranks printed.
fn outputs(mut running: Running) -> String {
    while running.next(None).is_some() {}
    running.finish().into_iter().map(|end| end.output).collect()
}

/// Names in the folders that hold shared memory and temporary files, of anything that could be ours.
fn leftovers() -> BTreeSet<String> {
    let ours = |name: &str| ["nccl", "cuda", "emu"].iter().any(|part| name.to_lowercase().contains(part));
    let list = |dir: &str| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| ours(name)).map(|name| format!("{dir}/{name}")).collect::<Vec<_>>()
    };
    ["/dev/shm", "/tmp"].into_iter().flat_map(list).collect()
}
