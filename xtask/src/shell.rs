//! Running other programs: where the repository and its target folder are, commands with a deadline, output that is
//! shown and kept at the same time.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The repository: where this program was built or, on another machine, the current folder.
pub fn root() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository");
    if built.join("Cargo.toml").exists() { built.to_path_buf() } else { PathBuf::from(".") }
}

/// The target folder that this program itself was built into.
pub fn target_dir() -> PathBuf {
    let exe = std::env::current_exe().unwrap_or_default();
    let marked = exe.ancestors().find(|dir| dir.join("CACHEDIR.TAG").exists());
    marked.map_or_else(|| root().join("target"), Path::to_path_buf)
}

/// cargo of the toolchain that runs us, in the repository.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).env("CARGO_TARGET_DIR", target_dir());
    // `cargo run` exports these for xtask itself; a build script of another package must not see them change.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text == "CARGO_MANIFEST_DIR" || text == "CARGO_MANIFEST_PATH" {
            command.env_remove(&name);
        }
    }
    command
}

/// A path list with `first` in front of what the environment has. Entries below the target folder are cargo's doing and
/// are left out: they would put a debug libnccl.so.2 before the library that a program is linked to.
pub fn path_list(variable: &str, first: &[PathBuf]) -> std::ffi::OsString {
    let old = std::env::var_os(variable).unwrap_or_default();
    let target = target_dir();
    let rest = std::env::split_paths(&old).filter(|p| !p.as_os_str().is_empty() && !p.starts_with(&target));
    std::env::join_paths(first.iter().cloned().chain(rest)).unwrap_or(old)
}

/// Whether a program of that name is on PATH.
pub fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}

/// What a finished command left behind.
pub struct Output {
    pub ok: bool,
    /// Both streams, in the order in which the lines arrived.
    pub text: String,
}

/// Runs a command to its end and shows what it prints. The error says which command failed.
pub fn run(command: &mut Command, limit: Duration) -> Result<(), String> {
    let name = describe(command);
    if tee(command, limit)?.ok { Ok(()) } else { Err(format!("failed: {name}")) }
}

/// Runs a command, shows what it prints and keeps it. Kills it at the limit.
pub fn tee(command: &mut Command, limit: Duration) -> Result<Output, String> {
    gather(command, limit, true)
}

/// Like `tee`, in silence.
pub fn capture(command: &mut Command, limit: Duration) -> Result<Output, String> {
    gather(command, limit, false)
}

fn gather(command: &mut Command, limit: Duration, show: bool) -> Result<Output, String> {
    let name = describe(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| format!("cannot start {name}: {e}"))?;
    let (send, receive) = mpsc::channel::<String>();
    forward(child.stdout.take().expect("piped"), send.clone(), show);
    forward(child.stderr.take().expect("piped"), send, show);

    let end = Instant::now() + limit;
    let mut text = String::new();
    // The channel closes when both streams do, which is when the last process that holds them has gone.
    let mut open = true;
    let status = loop {
        if open {
            match receive.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => {
                    text.push_str(&line);
                    continue;
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => open = false,
            }
        } else {
            thread::sleep(Duration::from_millis(20));
        }
        if let Some(status) = child.try_wait().map_err(|e| format!("{name}: {e}"))? {
            break status;
        }
        if Instant::now() > end {
            kill(&mut child);
            return Err(format!("killed after {} s: {name}", limit.as_secs()));
        }
    };
    // What was still in the pipes; a grandchild that lives on must not hold us up.
    while open && let Ok(line) = receive.recv_timeout(Duration::from_millis(500)) {
        text.push_str(&line);
    }
    Ok(Output { ok: status.success(), text })
}

fn kill(child: &mut Child) {
    // Ended already is as good; the wait collects it in both cases.
    let _ = child.kill();
    let _ = child.wait();
}

fn forward(stream: impl Read + Send + 'static, send: mpsc::Sender<String>, show: bool) {
    thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        while let Ok(n) = reader.read_until(b'\n', &mut line) {
            if n == 0 {
                break;
            }
            let text = String::from_utf8_lossy(&line).into_owned();
            if show {
                let mut out = std::io::stdout().lock();
                // A closed terminal does not stop the work.
                let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            }
            if send.send(text).is_err() {
                break;
            }
            line.clear();
        }
    });
}

fn describe(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}

/// Makes `link` point to `to`, whatever was there before, without a moment in which nothing is there.
pub fn symlink(to: &Path, link: &Path) -> Result<(), String> {
    if std::fs::read_link(link).is_ok_and(|old| old == to) {
        return Ok(());
    }
    let part = link.with_extension(format!("part{}", std::process::id()));
    std::os::unix::fs::symlink(to, &part)
        .and_then(|()| std::fs::rename(&part, link))
        .map_err(|e| format!("{}: {e}", link.display()))
}

/// `create_dir_all` with the path in the error.
pub fn make_dir(dir: &Path) -> Result<(), String> {
    std::fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))
}

/// `read_to_string` with the path in the error.
pub fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// `write` with the path in the error.
pub fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Copies into a new file and renames it: overwriting a library in place would pull it from under those that run it.
pub fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let part = to.with_extension(format!("part{}", std::process::id()));
    std::fs::copy(from, &part)
        .and_then(|_| std::fs::rename(&part, to))
        .map_err(|e| format!("{} -> {}: {e}", from.display(), to.display()))
}
