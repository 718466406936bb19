//! Ranks that are processes: memory passed between them, kills, exits, forks.
//!
//! A process is this binary again, running only [`process`], which obeys lines on its standard input and answers with lines.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nccl::bootstrap::{Bootstrap, PeerEvent, unique_id};
use nccl::error::Error;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{ForkResult, Pid, fork};

use crate::common::*;

/// A process that plays along; killed when dropped.
struct Process {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// Lines that nobody has asked for yet.
    heard: RefCell<Vec<String>>,
}

impl Process {
    fn start(environment: &[(&str, &str)]) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::process", "--ignored", "--nocapture"])
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

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// The rest of the next line that contains `mark`; other lines are kept for later.
    fn hear(&self, mark: &str) -> String {
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

    fn join(&mut self, id: &Id, rank: u32, nranks: u32) {
        self.tell(&format!("join {} {rank} {nranks}", hex(id)));
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    fn ends_well(mut self) {
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
fn group(nranks: u32) -> Vec<Process> {
    group_of(nranks, |id| *id)
}

fn group_of(nranks: u32, change: impl FnOnce(&Id) -> Id) -> Vec<Process> {
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
            // The first and the last of many.
            "ids" => {
                let ids: Vec<Id> = (0..number(1)).map(|_| unique_id().unwrap()).collect();
                say(&format!("@ids {} {}", hex(&ids[0]), hex(ids.last().unwrap())));
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
                        let mut file = std::fs::File::from(nccl::sys::fd::memfd("test", 64)?);
                        write!(file, "rank {rank} to {asker}")
                            .map_err(|error| Error::system("writing", error))?;
                        Ok((payload.to_vec(), vec![OwnedFd::from(file)]))
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
                let soon = nccl::sys::Deadline::after(Duration::from_secs(3));
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
                    let mut file = std::fs::File::from(passed.into_iter().next().unwrap());
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
                // SAFETY: the child only sleeps and leaves.
                match unsafe { fork() }.unwrap() {
                    ForkResult::Child => {
                        std::thread::sleep(10 * AMPLE);
                        std::process::exit(0);
                    }
                    ForkResult::Parent { child } => say(&format!("@forked {child}")),
                }
            }
            "fork-user" => {
                // SAFETY: the child runs what a forked worker of a program may do; this process has no other thread that holds locks.
                match unsafe { fork() }.unwrap() {
                    ForkResult::Child => {
                        let inherited = bootstrap.take().unwrap();
                        let error = inherited.all_gather(b"", ample()).unwrap_err();
                        say(&format!("@child {error}"));
                        inherited.leave();
                        let sizes: Vec<usize> =
                            communicator(2).into_iter().map(|own| own.peers().len()).collect();
                        say(&format!("@child has its own of {sizes:?}"));
                        std::process::exit(0);
                    }
                    ForkResult::Parent { child } => say(&format!("@forked {child}")),
                }
            }
            "alone" => {
                let alone = join(&unhex(words[1]), 0, 1).unwrap();
                assert_eq!(alone.all_gather(b"x", ample()).unwrap(), [b"x"]);
                alone.serve(Arc::new(|_, payload| Ok((payload.to_vec(), Vec::new()))));
                assert_eq!(alone.request(0, b"y", ample()).unwrap().0, b"y");
                alone.watch(Arc::new(|_| ()));
                let links = std::fs::read_dir("/proc/self/fd").unwrap().map_while(Result::ok);
                let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
                let sockets =
                    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count();
                alone.leave();
                say(&format!("@alone {sockets}"));
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

#[test]
fn processes_exchange_bytes_and_memory() {
    let mut all = group(3);
    for (rank, process) in all.iter_mut().enumerate() {
        process.tell(&format!("gather from-{rank}"));
    }
    for process in &all {
        assert_eq!(process.hear("@gathered"), "from-0 from-1 from-2");
    }
    for (asker, process) in all.iter_mut().enumerate() {
        for asked in 0..3 {
            process.tell(&format!("request {asked}"));
            assert_eq!(process.hear("@answer"), format!("rank {asked} to {asker}"));
        }
    }
    all.iter_mut().for_each(|process| process.tell("leave"));
    all.into_iter().for_each(Process::ends_well);
}

#[test]
fn ranks_without_unix_sockets_ask_by_way_of_the_rendezvous() {
    let far = [("OXCCL_UNIX_SOCKETS", "0")];
    let mut all = [Process::start(&[]), Process::start(&far), Process::start(&far)];
    all[0].tell("id");
    let id = unhex(&all[0].hear("@id"));
    for (rank, process) in (0..).zip(&mut all) {
        process.join(&id, rank, 3);
    }
    all.iter().for_each(|process| drop(process.hear("@joined")));
    for (asker, process) in all.iter_mut().enumerate() {
        for asked in 0..3 {
            process.tell(&format!("ask {asked}"));
            assert_eq!(process.hear("@answer"), format!("plain answer of {asked} to {asker}"));
        }
    }
    all[1].tell("request 2");
    let error = all[1].hear("@error");
    assert!(error.contains("memory cannot be passed"), "{error}");
    all[2].kill();
    all[1].hear("@event Died { rank: 2");
    all[1].tell("ask 2");
    let error = all[1].hear("@error");
    assert!(error.contains("rank 2 is gone"), "{error}");
}

#[test]
fn a_killed_rank_is_noticed_by_all_and_ends_their_waits() {
    let mut all = group(3);
    all[0].tell("gather x");
    all[1].kill();
    let error = all[0].hear("@error");
    assert!(error.starts_with("rank 1 died: its ") && error.contains("process "), "{error}");
    assert!(all[0].hear("@event").starts_with("Died { rank: 1,"));
    assert!(all[2].hear("@event").starts_with("Died { rank: 1,"));
    all[2].tell("request 0");
    assert_eq!(all[2].hear("@answer"), "rank 0 to 2", "the living still answer each other");
    all[2].tell("request 1");
    assert!(all[2].hear("@error").contains("rank 1 is gone"));
}

#[test]
fn the_end_of_the_process_with_the_rendezvous_is_the_end_of_its_rank() {
    let mut all = group(3);
    all[0].kill();
    for process in &all[1..] {
        let event = process.hear("@event");
        assert!(event.starts_with("Died { rank: 0,") && event.contains("holds the rendezvous"), "{event}");
    }
    all[1].tell("gather x");
    assert!(all[1].hear("@error").starts_with("rank 0 died: "));
}

#[test]
fn a_rendezvous_without_a_rank_can_be_lost() {
    let mut hub = Process::start(&[]);
    hub.tell("id");
    let id = unhex(&hub.hear("@id"));
    let mut all = [Process::start(&[]), Process::start(&[])];
    for (rank, process) in (0..).zip(&mut all) {
        process.join(&id, rank, 2);
    }
    all.iter().for_each(|process| drop(process.hear("@joined")));
    hub.kill();
    for process in &all {
        assert!(process.hear("@event").starts_with("RendezvousLost {"));
    }
    all[0].tell("request 1");
    assert_eq!(all[0].hear("@answer"), "rank 1 to 0");
    all.into_iter().for_each(Process::ends_well);
}

#[test]
fn a_rank_killed_while_joining_is_named_to_those_who_wait() {
    let mut hub = Process::start(&[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "BOOTSTRAP")]);
    hub.tell("id");
    let id = unhex(&hub.hear("@id"));
    let (mut first, mut second) = (Process::start(&[]), Process::start(&[]));
    first.join(&id, 0, 3);
    second.join(&id, 1, 3);
    let mut arrived = [hub.hear("NCCL INFO rank "), hub.hear("NCCL INFO rank ")];
    arrived.sort();
    assert!(arrived[0].starts_with("0 of 3 has arrived") && arrived[1].starts_with("1 of 3"), "{arrived:?}");
    second.kill();
    let error = first.hear("@error");
    assert!(error.starts_with("rank 1 died: "), "{error}");
    let mut late = Process::start(&[]);
    late.join(&id, 2, 3);
    assert!(late.hear("@error").starts_with("rank 1 died: "));
}

#[test]
fn ids_of_a_process_that_has_ended_are_refused() {
    let mut hub = Process::start(&[]);
    hub.tell("id");
    let id = unhex(&hub.hear("@id"));
    hub.ends_well();
    let error = join(&id, 0, 2).unwrap_err();
    assert!(error.message().contains("or has ended"), "{error}");
    assert!(error.message().contains("must live until all ranks have joined"), "{error}");
}

#[test]
fn last_words_are_heard_even_when_the_process_exits_at_once() {
    for teller in [0, 1] {
        let mut all = group(2);
        all[teller].tell("leave-and-exit");
        assert_eq!(all[1 - teller].hear("@event"), format!("Left {{ rank: {teller} }}"));
        let mut all = group(2);
        all[teller].tell("fail-and-exit");
        let heard = all[1 - teller].hear("@event");
        assert_eq!(heard, format!("Failed {{ rank: {teller}, message: \"told to fail\" }}"));
        let mut all = group(2);
        all[teller].tell("exit");
        assert!(all[1 - teller].hear("@event").starts_with(&format!("Died {{ rank: {teller}, ")));
    }
}

#[test]
fn a_forked_child_that_lives_on_does_not_hide_its_parents_end() {
    for (killed, tcp) in [(0, false), (1, false), (0, true), (1, true)] {
        let mut all = group_of(2, |id| if tcp { tcp_only(id) } else { *id });
        all[killed].tell("fork-sleeper");
        let sleeper = Pid::from_raw(all[killed].hear("@forked").parse().unwrap());
        all[killed].kill();
        let event = all[1 - killed].hear("@event");
        assert!(event.starts_with(&format!("Died {{ rank: {killed}, ")), "{event}");
        kill(sleeper, Signal::SIGKILL).unwrap();
    }
}

#[test]
fn a_forked_child_has_dead_communicators_and_can_make_its_own() {
    let mut all = group(2);
    all[0].tell("fork-user");
    assert!(all[0].hear("@child").starts_with("this communicator was made before fork()"));
    assert_eq!(all[0].hear("@child"), "has its own of [2, 2]");
    // The child has left, as far as it is concerned; the parent has not.
    for (rank, process) in all.iter_mut().enumerate() {
        process.tell(&format!("gather from-{rank}"));
    }
    assert_eq!(all[1].hear("@gathered"), "from-0 from-1");
}

#[test]
fn one_rank_needs_no_socket() {
    let id = unique_id().unwrap();
    let mut process = Process::start(&[]);
    process.tell(&format!("alone {}", hex(&id)));
    assert_eq!(process.hear("@alone"), "0");
    process.ends_well();
}

#[test]
fn a_fixed_address_serves_one_communicator_after_the_other() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let mut all: Vec<Process> = (0..3).map(|_| Process::start(&[("NCCL_COMM_ID", &address)])).collect();
    // Rank 0, which listens, comes last.
    for (rank, process) in all.iter_mut().enumerate().rev() {
        process.tell(&format!("repeat {rank} 3 30"));
        if rank == 1 {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    all.iter().for_each(|process| drop(process.hear("@repeated")));
    all.into_iter().for_each(Process::ends_well);
}

#[test]
fn a_rank_of_another_key_cannot_join_at_a_fixed_address() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let mut owner = Process::start(&[("NCCL_COMM_ID", &address), ("OXCCL_COMM_KEY", "right")]);
    owner.tell("id");
    let id = unhex(&owner.hear("@id"));
    let mut stranger = Process::start(&[("NCCL_COMM_ID", &address), ("OXCCL_COMM_KEY", "wrong")]);
    stranger.tell("id");
    let other = unhex(&stranger.hear("@id"));
    assert_ne!(id, other);
    owner.join(&id, 0, 2);
    let abort = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let short = nccl::sys::Deadline::after(Duration::from_millis(500));
    let error = Bootstrap::join(&other, 1, 2, abort, short).unwrap_err();
    assert!(error.message().contains("cannot reach the rendezvous"), "{error}");
    let joined = join(&id, 1, 2).unwrap();
    assert_eq!(events(&joined).try_recv().ok(), None::<PeerEvent>);
    owner.hear("@joined");
}

#[test]
fn signals_interrupt_nothing() {
    let mut all = [Process::start(&[]), Process::start(&[])];
    all.iter_mut().for_each(|process| process.tell("signals"));
    all[0].tell("id");
    let id = unhex(&all[0].hear("@id"));
    all[0].join(&id, 0, 2);
    // While rank 0 waits it is interrupted many times.
    std::thread::sleep(Duration::from_millis(50));
    all[1].join(&id, 1, 2);
    all.iter().for_each(|process| drop(process.hear("@joined")));
    for round in 0..50 {
        all.iter_mut().for_each(|process| process.tell(&format!("gather {round}")));
        for process in &all {
            assert_eq!(process.hear("@gathered"), format!("{round} {round}"));
        }
        all[0].tell("request 1");
        assert_eq!(all[0].hear("@answer"), "rank 1 to 0");
    }
}

#[test]
fn the_oldest_unused_ids_make_room_for_new_ones() {
    let mut process = Process::start(&[]);
    process.tell("ids 4097");
    let ids = process.hear("@ids");
    let (first, last) = ids.split_once(' ').unwrap();
    let error = join(&unhex(first), 0, 2).unwrap_err();
    assert!(error.message().contains("does not know this unique id"), "{error}");
    let id = unhex(last);
    for bootstrap in ranks(2, |rank| join(&id, rank, 2).unwrap()) {
        bootstrap.leave();
    }
}

#[test]
fn a_kill_at_any_moment_leaves_nobody_waiting() {
    for round in 0..12u64 {
        let mut all: Vec<Process> = (0..3).map(|_| Process::start(&[])).collect();
        all[0].tell("id");
        let id = unhex(&all[0].hear("@id"));
        for (process, rank) in all.iter_mut().zip(0..) {
            process.tell(&format!("join-soon {} {rank} 3", hex(&id)));
        }
        // The moment differs from round to round and by chance; what must hold does not depend on it.
        std::thread::sleep(Duration::from_micros(700 * round));
        let victim = (round % 3) as usize;
        all[victim].kill();
        for process in
            all.iter_mut().enumerate().filter(|(rank, _)| *rank != victim).map(|(_, process)| process)
        {
            // Either it never joined, or it hears of the end.
            let outcome = process.hear("@outcome");
            if outcome == "joined" {
                let event = process.hear("@event");
                assert!(event.starts_with(&format!("Died {{ rank: {victim}, ")), "{event}");
            }
        }
    }
}

#[test]
fn ports_and_interfaces_are_chosen_by_the_settings() {
    let mut process = Process::start(&[("OXCCL_PORT_RANGE", "47310-47399")]);
    process.tell("id");
    let id = unhex(&process.hear("@id"));
    let port = u16::from_le_bytes([id[80], id[81]]);
    assert!((47310..=47399).contains(&port), "{port}");
    let mut process = Process::start(&[("OXCCL_PORT_RANGE", "47310")]);
    process.tell("id");
    assert!(process.hear("@error").contains("must be two ports, first-last"));
    let mut process = Process::start(&[("NCCL_SOCKET_IFNAME", "nosuch")]);
    process.tell("id");
    let error = process.hear("@error");
    assert!(error.contains("lo 127.0.0.1 (its name does not fit)"), "{error}");
    let mut process = Process::start(&[("NCCL_SOCKET_IFNAME", "=lo"), ("NCCL_SOCKET_FAMILY", "AF_INET")]);
    process.tell("id");
    let id = unhex(&process.hear("@id"));
    assert_eq!((id[82], &id[84..88]), (1, [127, 0, 0, 1].as_slice()));
}

#[test]
fn the_log_tells_no_secret() {
    let loud = [("NCCL_DEBUG", "TRACE"), ("NCCL_DEBUG_SUBSYS", "ALL"), ("OXCCL_COMM_KEY", "very secret")];
    let mut all = [Process::start(&loud), Process::start(&loud)];
    all[0].tell("id");
    let id = unhex(&all[0].hear("@id"));
    for (process, rank) in all.iter_mut().zip(0..) {
        process.join(&id, rank, 2);
    }
    all.iter().for_each(|process| drop(process.hear("@joined")));
    all[0].tell("request 1");
    all[0].hear("@answer");
    all[1].kill();
    all[0].hear("@event");
    let heard = all[0].heard.borrow();
    assert!(heard.iter().any(|line| line.contains("NCCL INFO")), "{heard:#?}");
    let secret = [hex(&id[32..40]), hex(&id[56..64]), format!("{:?}", &id[32..36]), "very secret".to_owned()];
    for line in heard.iter() {
        assert!(!secret.iter().any(|secret| line.contains(secret.trim_matches(['[', ']']))), "{line}");
    }
}
