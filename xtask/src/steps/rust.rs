//! The steps that cargo does: format, lints, tests.

use std::path::PathBuf;
use std::time::Duration;

use super::Outcome;
use crate::shell::{capture, cargo, path_list, root, run, tee};
use crate::{library, setup};

const QUICK: Duration = Duration::from_secs(120);
const BUILD: Duration = Duration::from_secs(1200);
const TESTS: Duration = Duration::from_secs(1500);

pub fn fmt() -> Result<Outcome, String> {
    Ok(Outcome::one(run(cargo().args(["fmt", "--all", "--check"]), QUICK)))
}

pub fn clippy() -> Result<Outcome, String> {
    let mut command = cargo();
    command.args(["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]);
    Ok(Outcome::one(run(&mut command, BUILD)))
}

pub fn layering() -> Result<Outcome, String> {
    integration_test("layering")
}

pub fn header() -> Result<Outcome, String> {
    integration_test("header")
}

/// One file of tests/ by name, or by how its name begins.
fn integration_test(prefix: &str) -> Result<Outcome, String> {
    let dir = root().join("tests");
    let names: Vec<String> = std::fs::read_dir(&dir)
        .map_err(|e| format!("{}: {e}", dir.display()))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_suffix(".rs").map(str::to_string))
        .filter(|name| name.starts_with(prefix))
        .collect();
    if names.is_empty() {
        return Err(format!("there is no tests/{prefix}*.rs"));
    }
    let mut command = cargo();
    command.args(["test", "--quiet", "--package", "oxccl"]);
    for name in &names {
        command.args(["--test", name]);
    }
    let out = tee(&mut command, BUILD)?;
    Ok(counted(count_libtest(&out.text), out.ok))
}

/// Everything else, by nextest when it is installed: a process per test suits state that a process has once.
pub fn tests() -> Result<Outcome, String> {
    let emulator = setup::emulator()?;
    // Tests that start programs load this file.
    let library = library::build(false)?;
    let nextest = capture(cargo().args(["nextest", "--version"]), QUICK).is_ok_and(|out| out.ok);
    let mut command = cargo();
    if nextest {
        command.args(["nextest", "run", "--workspace", "--no-fail-fast"]);
        command.args(["--filter-expr", "not binary(/^(layering|header)/)"]);
    } else {
        command.args(["test", "--workspace", "--no-fail-fast"]);
    }
    on_emulator(&mut command, emulator);
    command.env("OXCCL_LIBRARY", &library);
    let out = tee(&mut command, TESTS)?;
    let count = if nextest { count_nextest(&out.text) } else { count_libtest(&out.text) };
    Ok(counted(count, out.ok))
}

/// The environment in which a program finds the emulated driver.
pub fn on_emulator(command: &mut std::process::Command, emulator: PathBuf) {
    command.env("LD_LIBRARY_PATH", path_list("LD_LIBRARY_PATH", &[emulator]));
}

fn counted((passed, failed): (usize, usize), ok: bool) -> Outcome {
    // A run that failed without naming a test (a compile error, a crash) has failed all the same.
    Outcome::Ran { passed, failed: if ok { failed } else { failed.max(1) } }
}

/// Sums the lines `test result: ok. 3 passed; 0 failed; …`.
fn count_libtest(text: &str) -> (usize, usize) {
    text.lines()
        .filter(|line| line.starts_with("test result:"))
        .fold((0, 0), |(p, f), line| (p + number_before(line, " passed"), f + number_before(line, " failed")))
}

/// Reads `Summary [ 1.2s] 12 tests run: 10 passed (1 slow), 1 failed, 1 timed out, 0 skipped`.
fn count_nextest(text: &str) -> (usize, usize) {
    text.lines().rev().find(|line| line.trim_start().starts_with("Summary [")).map_or((0, 0), |line| {
        let bad =
            [" failed", " timed out", " exec failed"].iter().map(|unit| number_before(line, unit)).sum();
        (number_before(line, " passed"), bad)
    })
}

/// The number directly before the first `unit`, 0 when there is none.
pub fn number_before(line: &str, unit: &str) -> usize {
    let Some(end) = line.find(unit) else { return 0 };
    let head = &line[..end];
    let start = head.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |i| i + 1);
    head[start..].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_the_test_runners_print() {
        let libtest = "test result: ok. 3 passed; 0 failed; 1 ignored\nx\ntest result: FAILED. 4 passed; 2 failed; 0 ignored";
        assert_eq!(count_libtest(libtest), (7, 2));
        let line =
            "     Summary [   1.250s] 14 tests run: 11 passed (1 slow), 2 failed, 1 timed out, 5 skipped";
        assert_eq!(count_nextest(line), (11, 3));
        assert_eq!(count_nextest("error: could not compile"), (0, 0));
    }

    #[test]
    fn a_run_that_failed_without_a_count_is_one_failure() {
        assert!(matches!(counted((0, 0), false), Outcome::Ran { passed: 0, failed: 1 }));
    }
}
