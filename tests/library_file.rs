//! The library file as the loader sees it: its name, what it needs, what it exports, and that it stays silent where nobody calls it.
//!
//! `cargo xtask test` checks the release build the same way; this test looks at the build that the other tests use. binutils come with
//! every linker that Rust works with.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

fn library() -> PathBuf {
    let tests = std::env::current_exe().expect("a test has a file");
    let path = tests.parent().expect("a folder").join("libnccl.so");
    assert!(path.exists(), "{} is built with the tests", path.display());
    path
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

fn text(command: &mut Command) -> String {
    String::from_utf8(run(command).stdout).expect("text")
}

/// Values of one tag of the dynamic section.
fn dynamic(tag: &str) -> Vec<String> {
    let all = text(Command::new("readelf").args(["-d", "-W"]).arg(library()));
    let lines = all.lines().filter(|line| line.contains(tag));
    lines.filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned())).collect()
}

#[test]
fn it_is_called_as_programs_ask_for_it() {
    assert_eq!(dynamic("(SONAME)"), ["libnccl.so.2"]);
}

#[test]
fn it_needs_only_what_every_process_has() {
    for name in dynamic("(NEEDED)") {
        let allowed = ["libc.so.6", "libm.so.6", "libgcc_s.so.1"].contains(&name.as_str());
        assert!(allowed || name.starts_with("ld-linux"), "needs {name}");
    }
}

#[test]
fn it_exports_the_list_and_nothing_else() {
    let list = concat!(env!("CARGO_MANIFEST_DIR"), "/ctests/symbols.txt");
    let list = fs::read_to_string(list).expect("the list of symbols");
    let wanted: BTreeSet<&str> =
        list.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    let printed = text(Command::new("nm").args(["-D", "--defined-only"]).arg(library()));
    let exported: BTreeSet<&str> = printed
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .filter(|name| !name.starts_with("oxccl"))
        .collect();
    assert_eq!(exported, wanted);
    assert_eq!(exported.len(), 96 + 96 + 1);
    // Without versions, as in NCCL: a versioned symbol would not satisfy programs that were linked to the original.
    assert!(!printed.contains('@'), "symbols have versions: {printed}");
}

#[test]
fn it_never_calls_its_own_exports_through_the_loader() {
    // A relocation to one of them could end in a preloaded profiler, which would call back.
    let relocations = text(Command::new("readelf").args(["-r", "-W"]).arg(library()));
    let own: Vec<&str> = relocations.lines().filter(|line| line.contains("nccl")).collect();
    assert!(own.is_empty(), "{own:#?}");
}

/// What a shell and the programs that it starts show of themselves. The shell counts its own entries itself: a pipeline would count
/// the pipe's ends too, or not, as the processes happen to run.
const LOOK: &str = "set -- /proc/$$/task/*; echo $#; set -- /proc/$$/fd/*; echo $#; grep -c libcuda /proc/$$/maps; \
                    ls -1 /proc/self/fd | wc -l; grep Threads /proc/self/status";

#[test]
fn preloaded_into_a_shell_it_does_nothing() {
    let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("preload-{}", std::process::id()));
    fs::create_dir_all(&home).expect("a folder");
    let shell = |preload: Option<PathBuf>, script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(&home).env("HOME", &home).env("NCCL_DEBUG", "TRACE");
        command.env("TMPDIR", &home);
        if let Some(preload) = preload {
            command.env("LD_PRELOAD", preload);
        }
        run(&mut command)
    };
    let mapped = shell(Some(library()), "grep -c libnccl /proc/$$/maps");
    assert_ne!(mapped.stdout, b"0\n", "the library is in the shell");

    let (plain, preloaded) = (shell(None, LOOK), shell(Some(library()), LOOK));
    assert_eq!(String::from_utf8_lossy(&preloaded.stdout), String::from_utf8_lossy(&plain.stdout));
    assert_eq!(String::from_utf8_lossy(&preloaded.stderr), "");
    let silent = shell(Some(library()), "true");
    assert!(silent.stdout.is_empty() && silent.stderr.is_empty(), "{silent:?}");
    assert_eq!(fs::read_dir(&home).expect("the folder").count(), 0, "no file is left behind");
    fs::remove_dir(&home).expect("an empty folder");
}

#[test]
fn closing_it_does_not_take_its_thread_away() {
    use std::io::{Read, Write};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};

    let flags = text(Command::new("readelf").args(["-d", "-W"]).arg(library()));
    assert!(flags.contains("NODELETE"), "{flags}");
    let mut id = [0u8; 128];
    {
        // SAFETY: the library has no initialisers that could do harm.
        let library = unsafe { libloading::Library::new(library()) }.expect("it loads");
        // SAFETY: the name and the signature are those of nccl.h.
        let make = unsafe { library.get::<unsafe extern "C" fn(*mut [u8; 128]) -> i32>(b"ncclGetUniqueId") };
        // SAFETY: `id` has the size of an ncclUniqueId.
        assert_eq!(unsafe { make.expect("it is exported")(&mut id) }, 0);
    }
    // The library was closed; its service thread, which the id started, must still find its code.
    let name: String = id[64..80].iter().map(|byte| format!("{byte:02x}")).collect();
    let address = SocketAddr::from_abstract_name(format!("oxccl-{name}")).expect("a valid name");
    let mut stream = UnixStream::connect_addr(&address).expect("the rendezvous listens");
    stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).expect("a time");
    stream.write_all(&[0; 76]).expect("room for a few bytes");
    assert_eq!(stream.read(&mut [0; 1]).expect("an end in time"), 0, "noise is answered by closing");
}
