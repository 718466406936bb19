//! What the log writes, and where: each case is a process of its own, since the settings are read once.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::process::{Command, Output};

use nccl::{error, log, param};

/// Runs [`process`] with these settings.
fn run(settings: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "process", "--ignored", "--nocapture", "--quiet"])
        .env("OXCCL_TEST_PROCESS", "1");
    let output = command.env("HOME", "/nonexistent").envs(settings.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

/// The lines of standard error; standard output must have none of ours.
fn lines(settings: &[(&str, &str)]) -> Vec<String> {
    let output = run(settings);
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(!out.contains("NCCL") && !out.contains("version 9"), "standard output is the program's: {out}");
    String::from_utf8(output.stderr).unwrap().lines().map(str::to_owned).collect()
}

/// What follows host, process and thread.
fn tail(line: &str) -> &str {
    let (place, rest) = line.split_once(" NCCL ").unwrap_or_else(|| panic!("{line}"));
    let numbers: Vec<&str> = place.split(' ').next().unwrap().split(':').skip(1).collect();
    assert!(numbers.len() == 2 && numbers.iter().all(|number| number.parse::<u32>().is_ok()), "{line}");
    rest
}

#[test]
#[ignore = "a process of other tests"]
fn process() {
    if std::env::var_os("OXCCL_TEST_PROCESS").is_none() {
        return;
    }
    tracing::error!(target: "INIT", "before the first call nothing is written");
    log::init();
    log::init();
    tracing::info!(target: log::VERSION, "NCCL version 9.9.9");
    tracing::info!(target: "INIT", "an init line");
    tracing::info!(target: "COLL", count = 5, "a collective line");
    tracing::info!(target: "tower::dependency", "not ours");
    {
        let _device = log::device(3);
        let span = tracing::info_span!(target: "INIT", "comm", rank = 2);
        let _entered = span.enter();
        tracing::info!(target: "INIT", "on a device");
    }
    tracing::trace!(target: "INIT", "a trace line");
    tracing::warn!(target: "INIT", "a warning");
    assert_eq!(error::PROCESS_LAST_ERROR.get(), "a warning");
    if std::env::var_os("OXCCL_TEST_SETTINGS").is_some() {
        for _ in 0..2 {
            assert!(!param::bool(param::P2P_DISABLE));
            assert_eq!(param::int(param::BUFFSIZE), Some(8192));
            assert_eq!(param::text(param::COMM_KEY).as_deref(), Some("a secret"));
        }
    }
    if std::env::var_os("OXCCL_TEST_RESET").is_some() {
        // SAFETY: no other thread of this process uses the environment.
        unsafe { std::env::set_var("NCCL_DEBUG", "INFO") };
        tracing::info!(target: "INIT", "not yet");
        log::reset();
        tracing::info!(target: "INIT", "from now on");
    }
    if std::env::var_os("OXCCL_TEST_FORK").is_some() {
        // SAFETY: the child writes a line and leaves.
        match unsafe { nix::unistd::fork() }.unwrap() {
            nix::unistd::ForkResult::Child => {
                tracing::info!(target: "INIT", "from a child");
                std::process::exit(0);
            }
            nix::unistd::ForkResult::Parent { child } => {
                nix::sys::wait::waitpid(child, None).unwrap();
            }
        }
    }
}

#[test]
fn nothing_is_written_unless_asked_for() {
    assert_eq!(lines(&[]), Vec::<String>::new());
    assert_eq!(lines(&[("NCCL_DEBUG", "nonsense")]), Vec::<String>::new());
    assert_eq!(lines(&[("NCCL_DEBUG", "")]), Vec::<String>::new());
}

#[test]
fn levels_add_up() {
    assert_eq!(lines(&[("NCCL_DEBUG", "VERSION")]), ["NCCL version 9.9.9"]);
    let warn = lines(&[("NCCL_DEBUG", "warn")]);
    assert_eq!((warn.len(), warn[0].as_str()), (2, "NCCL version 9.9.9"));
    assert!(warn[1].starts_with("[20") && warn[1].contains(" log.rs:"), "{warn:?}");
    let (_, rest) = warn[1].split_once("] ").unwrap();
    assert_eq!(tail(rest), "WARN a warning");
    let info = lines(&[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_TIMESTAMP_LEVELS", "^ALL")]);
    let tails: Vec<&str> = info[1..].iter().map(|line| tail(line)).collect();
    assert_eq!(tails, ["INFO an init line", "INFO on a device [comm rank=2]", "WARN a warning"]);
    assert!(info[2].contains(" [3] NCCL INFO on a device"), "{}", info[2]);
    let trace = lines(&[("NCCL_DEBUG", "TRACE")]);
    assert!(trace.iter().any(|line| line.ends_with("NCCL TRACE a trace line")), "{trace:#?}");
}

#[test]
fn subsystems_are_chosen() {
    let count = |subsystems: &str, text: &str| {
        let lines = lines(&[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", subsystems)]);
        assert!(lines.iter().any(|line| line.contains("a warning")), "warnings belong to every subsystem");
        lines.iter().filter(|line| line.contains(text)).count()
    };
    assert_eq!(count("COLL", "a collective line count=5"), 1);
    assert_eq!(count("COLL", "an init line"), 0);
    assert_eq!(count("^COLL", "a collective line"), 0);
    assert_eq!(count("^COLL", "an init line"), 1);
    assert_eq!(count("ALL", "a collective line"), 1);
    assert_eq!(count("ALL", "not ours"), 0);
}

#[test]
fn a_file_takes_all_and_a_forked_child_has_its_own() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("log-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let pattern = format!("{}/nccl.%h.%p", folder.display());
    let settings = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_FILE", pattern.as_str()), ("OXCCL_TEST_FORK", "1")];
    assert_eq!(lines(&settings), Vec::<String>::new());
    let mut texts: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    std::fs::remove_dir_all(&folder).unwrap();
    texts.sort_by_key(String::len);
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts[0].lines().count() == 1 && texts[0].contains("from a child"), "{texts:?}");
    assert!(texts[1].contains("NCCL version 9.9.9") && !texts[1].contains("from a child"), "{texts:?}");
}

#[test]
fn a_file_that_cannot_be_opened_is_reported_and_replaced() {
    let lines = lines(&[("NCCL_DEBUG", "VERSION"), ("NCCL_DEBUG_FILE", "/nonexistent/log")]);
    assert!(lines[0].contains("NCCL_DEBUG_FILE: cannot open /nonexistent/log: "), "{lines:?}");
    assert_eq!(lines[1], "NCCL version 9.9.9");
}

#[test]
fn settings_are_announced_once_and_faults_name_what_is_accepted() {
    let lines = lines(&[
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_DEBUG_TIMESTAMP_LEVELS", "^ALL"),
        ("NCCL_P2P_DISABLE", "maybe"),
        ("NCCL_BUFFSIZE", "8192"),
        ("OXCCL_COMM_KEY", "a secret"),
        ("OXCCL_TEST_SETTINGS", "1"),
    ]);
    let about = |text: &str| {
        lines.iter().filter(|line| line.contains(text)).map(|line| tail(line)).collect::<Vec<_>>()
    };
    assert_eq!(
        about("NCCL_P2P_DISABLE"),
        ["WARN NCCL_P2P_DISABLE=maybe is ignored, the default 0 holds: the value must be 0 or 1"]
    );
    assert_eq!(about("NCCL_BUFFSIZE"), ["INFO NCCL_BUFFSIZE set by environment to 8192"]);
    assert_eq!(about("secret"), Vec::<&str>::new());
}

#[test]
fn the_settings_can_be_read_anew() {
    let lines = lines(&[("OXCCL_TEST_RESET", "1")]);
    assert_eq!(lines.iter().map(|line| tail(line)).collect::<Vec<_>>(), ["INFO from now on"]);
}
