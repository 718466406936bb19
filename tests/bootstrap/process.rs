//! Ranks that are processes: this binary again, running only [`process`], which obeys lines on its standard input and answers with
//! lines.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nccl::bootstrap::{Bootstrap, unique_id};
use nccl::error::Error;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::signal::Signal;
use nix::unistd::{ForkResult, Pid, fork};

use crate::common::*;

/// A process that plays along; killed when dropped.
pub struct Process {
    pub child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// Lines that nobody has asked for yet.
    pub heard: RefCell<Vec<String>>,
}

impl Process {
    pub fn start(environment: &[(&str, &str)]) -> Process {
        Process::start_by("exec \"$0\" \"$@\"", environment)
    }

    /// Started by this line of shell.
    pub fn start_by(shell: &str, environment: &[(&str, &str)]) -> Process {
        let mut child = Command::new("sh")
            .args(["-c", shell])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "process::process", "--ignored", "--nocapture"])
            .env("OXCCL_TEST_PROCESS", "1")
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let outputs: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for output in outputs {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let _ = sender.send(line);
                }
            });
        }
        Process { input: child.stdin.take().unwrap(), child, lines, heard: RefCell::default() }
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// The rest of the next line that contains `mark`; other lines are kept for later.
    pub fn hear(&self, mark: &str) -> String {
        let until = Instant::now() + AMPLE;
        let mut heard = self.heard.borrow_mut();
        loop {
            if let Some(at) = heard.iter().position(|line| line.contains(mark)) {
                let line = heard.remove(at);
                return line.split_once(mark).unwrap().1.trim().to_owned();
            }
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => heard.push(line),
                Err(error) => panic!("no line with {mark:?} ({error}) in: {heard:#?}"),
            }
        }
    }

    pub fn join(&mut self, id: &Id, rank: u32, nranks: u32) {
        self.tell(&format!("join {} {rank} {nranks}", hex(id)));
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    pub fn ends_well(mut self) {
        self.tell("exit");
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ranks 0 and up of one communicator, each a process; the first made the id.
pub fn group(nranks: u32) -> Vec<Process> {
    group_of(nranks, |id| *id)
}

pub fn group_of(nranks: u32, change: impl FnOnce(&Id) -> Id) -> Vec<Process> {
    let mut processes: Vec<Process> = (0..nranks).map(|_| Process::start(&[])).collect();
    processes[0].tell("id");
    let id = change(&unhex(&processes[0].hear("@id")));
    for (process, rank) in processes.iter_mut().zip(0..) {
        process.join(&id, rank, nranks);
    }
    for process in &processes {
        process.hear("@joined");
    }
    processes
}

fn interrupt_this_thread() {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, sigaction};
    extern "C" fn nothing(_: libc::c_int) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
    // SAFETY: names the calling thread.
    let thread = unsafe { libc::pthread_self() };
    std::thread::spawn(move || {
        loop {
            // SAFETY: the thread that obeys orders lives until the process ends.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
            std::thread::sleep(Duration::from_micros(200));
        }
    });
}

/// A forked child that does this and ends. An alarm ends it if it hangs, so that no failed test leaves it behind.
fn in_child(body: impl FnOnce()) -> Pid {
    // SAFETY: the bodies do what a forked worker of a program may do; an exit without handlers follows.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            nix::unistd::alarm::set(4 * AMPLE.as_secs() as u32);
            let sound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_ok();
            // SAFETY: ends the child alone.
            unsafe { libc::_exit(i32::from(!sound)) }
        }
        ForkResult::Parent { child } => child,
    }
}

/// The descriptors of this process whose targets begin so.
fn held(kinds: &[&str]) -> Vec<String> {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().map_while(Result::ok);
    let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    let targets = targets.map(|target| target.to_string_lossy().into_owned());
    targets.filter(|target| kinds.iter().any(|kind| target.starts_with(kind))).collect()
}

fn come_and_go(tcp: bool) {
    let id = unique_id().unwrap();
    let id = if tcp { tcp_only(&id) } else { id };
    let all = ranks(2, |rank| join(&id, rank, 2).unwrap());
    all[0].serve(Arc::new(|_, payload| Ok((payload.to_vec(), vec![nccl::sys::fd::memfd("test", 64)?]))));
    assert_eq!(all[1].request(0, b"", ample()).unwrap().1.len(), 1);
    all.into_iter().for_each(Bootstrap::leave_at_once);
}

fn say(line: &str) {
    // Not println: the harness may hold its lock in a forked child.
    nix::unistd::write(std::io::stdout().as_fd(), format!("{line}\n").as_bytes()).unwrap();
}

#[test]
#[ignore = "a process of other tests"]
fn process() {
    if std::env::var_os("OXCCL_TEST_PROCESS").is_none() {
        return;
    }
    nccl::log::init();
    let mut bootstrap: Option<Bootstrap> = None;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u32>().unwrap();
        match words[0] {
            "id" => match unique_id() {
                Ok(id) => say(&format!("@id {}", hex(&id))),
                Err(error) => say(&format!("@error {error}")),
            },
            "ready" => say("@ready"),
            // The first and the last of many.
            "ids" => {
                let ids: Vec<Id> = (0..number(1)).map(|_| unique_id().unwrap()).collect();
                say(&format!("@ids {} {}", hex(&ids[0]), hex(ids.last().unwrap())));
            }
            // Communicators of two of this process's threads, all alive at once.
            "many" => {
                let made: Vec<Vec<Bootstrap>> = (0..number(1)).map(|_| communicator(2)).collect();
                say(&format!("@many {}", made.len()));
            }
            // From now on a signal every fraction of a millisecond, whose handler interrupts system calls.
            "signals" => interrupt_this_thread(),
            "join" => match join(&unhex(words[1]), number(2), number(3)) {
                Ok(joined) => {
                    let rank = joined.rank();
                    joined.serve(Arc::new(move |asker, payload| {
                        if payload == b"plain" {
                            return Ok((
                                format!("plain answer of {rank} to {asker}").into_bytes(),
                                Vec::new(),
                            ));
                        }
                        let memory = nccl::sys::fd::memfd("test", 64)?;
                        write!(file(&memory), "rank {rank} to {asker}")
                            .map_err(|error| Error::system("writing", error))?;
                        Ok((payload.to_vec(), vec![memory]))
                    }));
                    joined.watch(Arc::new(|event| say(&format!("@event {event:?}"))));
                    say("@joined");
                    bootstrap = Some(joined);
                }
                Err(error) => say(&format!("@error {error}")),
            },
            // Gives up after a while, as ranks do whose peers never come.
            "join-soon" => {
                let abort = Arc::new(std::sync::atomic::AtomicBool::new(false));
                let soon = nccl::sys::Deadline::after(Duration::from_secs(1));
                match Bootstrap::join(&unhex(words[1]), number(2), number(3), abort, soon) {
                    Ok(joined) => {
                        joined.watch(Arc::new(|event| say(&format!("@event {event:?}"))));
                        say("@outcome joined");
                        bootstrap = Some(joined);
                    }
                    Err(error) => say(&format!("@outcome {error}")),
                }
            }
            "gather" => match bootstrap.as_ref().unwrap().all_gather(words[1].as_bytes(), ample()) {
                Ok(all) => {
                    let all: Vec<String> =
                        all.into_iter().map(|payload| String::from_utf8(payload).unwrap()).collect();
                    say(&format!("@gathered {}", all.join(" ")));
                }
                Err(error) => say(&format!("@error {error}")),
            },
            "request" => match bootstrap.as_ref().unwrap().request(number(1), b"payload", ample()) {
                Ok((payload, passed)) => {
                    let mut file = file(&passed[0]);
                    file.rewind().unwrap();
                    let mut text = String::new();
                    file.read_to_string(&mut text).unwrap();
                    assert_eq!(payload, b"payload");
                    say(&format!("@answer {}", text.trim_end_matches('\0')));
                }
                Err(error) => say(&format!("@error {error}")),
            },
            "ask" => match bootstrap.as_ref().unwrap().request(number(1), b"plain", ample()) {
                Ok((payload, _)) => say(&format!("@answer {}", String::from_utf8(payload).unwrap())),
                Err(error) => say(&format!("@error {error}")),
            },
            "fail" => bootstrap.as_ref().unwrap().fail(&Error::usage("told to fail")),
            "leave" => bootstrap.take().unwrap().leave(),
            "leave-and-exit" => {
                bootstrap.take().unwrap().leave();
                std::process::exit(0);
            }
            "fail-and-exit" => {
                bootstrap.as_ref().unwrap().fail(&Error::usage("told to fail"));
                std::process::exit(0);
            }
            "exit" => std::process::exit(0),
            "fork-sleeper" => {
                // Lives until the test lets go of this process's input, whatever happens to the process.
                let child = in_child(|| {
                    let input = std::io::stdin();
                    let mut input = [PollFd::new(input.as_fd(), PollFlags::empty())];
                    while nix::poll::poll(&mut input, PollTimeout::MAX) == Err(Errno::EINTR) {}
                });
                say(&format!("@forked {child}"));
            }
            "fork-user" => {
                in_child(|| {
                    let inherited = bootstrap.take().unwrap();
                    let error = inherited.all_gather(b"", ample()).unwrap_err();
                    say(&format!("@child {error}"));
                    inherited.leave();
                    let sizes: Vec<usize> =
                        communicator(2).into_iter().map(|own| own.peers().len()).collect();
                    say(&format!("@child has its own of {sizes:?}"));
                });
            }
            "alone" => {
                let alone = join(&unhex(words[1]), 0, 1).unwrap();
                assert_eq!(alone.all_gather(b"x", ample()).unwrap(), [b"x"]);
                alone.serve(Arc::new(|_, payload| Ok((payload.to_vec(), Vec::new()))));
                assert_eq!(alone.request(0, b"y", ample()).unwrap().0, b"y");
                alone.watch(Arc::new(|_| ()));
                let sockets = held(&["socket:"]).len();
                alone.leave();
                say(&format!("@alone {sockets}"));
            }
            // Makes communicators, asks for memory and leaves them again, and forks all the while.
            "forks" => {
                let stop = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    for tcp in [false, true] {
                        let stop = &stop;
                        scope.spawn(move || {
                            while !stop.load(Ordering::Relaxed) {
                                come_and_go(tcp);
                            }
                        });
                    }
                    for _ in 0..number(1) {
                        let child = in_child(|| {
                            let kept = held(&["socket:", "anon_inode:", "/memfd:"]);
                            if !kept.is_empty() {
                                say(&format!("@kept {kept:?}"));
                            }
                        });
                        nix::sys::wait::waitpid(child, None).unwrap();
                    }
                    stop.store(true, Ordering::Relaxed);
                });
                say("@end");
            }
            // Joins and leaves communicators of NCCL_COMM_ID, one after the other.
            "repeat" => {
                for round in 0..number(3) {
                    let id = unique_id().unwrap();
                    let joined = join(&id, number(1), number(2)).unwrap();
                    let payload = [round as u8, joined.rank() as u8];
                    let expected: Vec<_> = (0..number(2)).map(|rank| vec![round as u8, rank as u8]).collect();
                    assert_eq!(joined.all_gather(&payload, ample()).unwrap(), expected);
                    joined.leave();
                }
                say("@repeated");
            }
            other => panic!("no such order: {other}"),
        }
    }
}
