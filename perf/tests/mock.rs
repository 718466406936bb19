//! The benchmark against a library that goes wrong on purpose: what it reports has to change with every fault.
//!
//! Library and driver are two small C files, compiled here, so that neither a GPU nor any other package takes part.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Compiles both files once per test process; a rename puts them in place whole, whoever else does the same.
fn mock_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mock");
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mock");
        std::fs::create_dir_all(&dir).expect("a folder for the mock");
        for (source, library) in [("cuda.c", "libcuda.so.1"), ("nccl.c", "libnccl.so.2")] {
            let part = dir.join(format!("{library}.{}", std::process::id()));
            let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
            let status = Command::new(compiler)
                .args(["-shared", "-fPIC", "-pthread", "-O1", "-w", "-o"])
                .arg(&part)
                .arg(sources.join(source))
                .status()
                .expect("a C compiler");
            assert!(status.success(), "{source} does not compile");
            std::fs::rename(&part, dir.join(library)).expect("the mock gets its name");
        }
        dir
    })
}

fn perf(fault: &str, args: &str) -> Output {
    let dir = mock_dir();
    Command::new(env!("CARGO_BIN_EXE_oxccl-perf"))
        .arg("--lib")
        .arg(dir.join("libnccl.so.2"))
        .args(args.split_whitespace())
        .env("LD_LIBRARY_PATH", dir)
        .env("MOCK_FAULT", fault)
        .output()
        .expect("oxccl-perf starts")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

const SMALL: &str = "--ranks 3 -b 16 -e 4K -f 16 -n 2 -w 1 all_reduce";

#[test]
fn right_results_pass_in_and_out_of_place_and_in_a_graph() {
    for extra in ["", "-G 1", "-d uint8", "--ranks 1", "-r -1 broadcast"] {
        let output = perf("", &format!("{SMALL} {extra}"));
        let text = text(&output);
        assert!(output.status.success(), "{extra}: {text}");
        assert!(text.contains(" 0 wrong values"), "{extra}: {text}");
        assert!(!text.contains(" 0 results checked"), "{extra}: {text}");
    }
}

#[test]
fn every_fault_is_seen() {
    for fault in ["value", "stale", "overrun", "input"] {
        let output = perf(fault, SMALL);
        let text = text(&output);
        assert_eq!(output.status.code(), Some(1), "{fault}: {text}");
        assert!(text.contains("wrong values") && !text.contains(" 0 wrong values"), "{fault}: {text}");
    }
}

#[test]
fn what_the_library_lacks_is_told_apart_from_failure() {
    // Some of all: shown, and fine.
    let output = perf("", "--ranks 2 -b 16 -e 16 -n 1");
    let all = text(&output);
    assert!(output.status.success(), "{all}");
    for name in ["reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv", "exchange"] {
        assert!(all.contains(&format!("# not supported: {name}: ")), "{name}: {all}");
    }
    assert!(all.contains("the mock does not do this"), "{all}");
    // Nothing at all, or something that must not be missing: failures.
    assert!(!perf("", "--ranks 2 -b 16 -e 16 -n 1 reduce").status.success());
    assert!(!perf("", "--ranks 2 -b 16 -e 16 -n 1 --require all_reduce,reduce").status.success());
    assert!(perf("", "--ranks 2 -b 16 -e 16 -n 1 --require all_reduce").status.success());
}

#[test]
fn a_rank_that_ends_or_hangs_ends_the_run() {
    for (fault, args) in [("crash", SMALL), ("init", SMALL), ("hang", &format!("{SMALL} --timeout 1"))] {
        let output = perf(fault, args);
        assert!(!output.status.success(), "{fault}: {}", text(&output));
    }
    // The same with processes; the mock cannot join them, so one rank has to do.
    let output = perf("", "--processes --ranks 1 -b 16 -e 4K -n 2 all_reduce");
    assert!(output.status.success() && text(&output).contains(" 0 wrong values"), "{}", text(&output));
    let output = perf("init", "--processes --ranks 1 -b 16 -e 4K -n 2 all_reduce");
    assert!(!output.status.success() && text(&output).contains("ncclCommInitRank"), "{}", text(&output));
}

#[test]
fn two_libraries_are_compared_and_written_as_json() {
    let dir = mock_dir();
    let json = dir.join(format!("out-{}.json", std::process::id()));
    let vs = dir.join("libnccl.so.2");
    let args = format!("--vs {} -J {} --ranks 1 -b 64 -e 64 -n 3 all_reduce", vs.display(), json.display());
    let output = perf("", &args);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("ratio"), "{}", text(&output));
    let text = std::fs::read_to_string(&json).expect("the file was written");
    std::fs::remove_file(&json).expect("the file can go");
    for part in ["\"vs\": {\"time_us\"", "\"ratio\":", "\"wrong\": 0", "version 22809"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}
