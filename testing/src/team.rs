//! Starts the ranks of a scenario as processes, carries their messages, and ends them: nothing outlives a [`Running`].
//!
//! A team is described by its layout, the number of ranks in each process. Every run has a time limit, after which all
//! processes are killed; what failing ranks printed is part of the error.

use std::io::Read;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::control::{self, pack, read_frame, write_frame};
use crate::driver::Outcome;
use crate::machine::Machine;

/// How long the other ranks go on when one has failed.
const GRACE: Duration = Duration::from_secs(5);

/// What a scenario needs to run.
#[derive(Debug, Clone)]
pub struct Team {
    pub scenario: &'static str,
    /// Ranks per process.
    pub layout: Vec<usize>,
    env: Vec<(String, String)>,
    process_env: Vec<(usize, String, String)>,
    args: Vec<(String, String)>,
    pub limit: Duration,
}

impl Team {
    pub fn new(scenario: &'static str, layout: &[usize]) -> Team {
        Team {
            scenario,
            layout: layout.to_vec(),
            env: Vec::new(),
            process_env: Vec::new(),
            args: Vec::new(),
            limit: Duration::from_secs(120),
        }
    }

    /// A variable for all processes.
    pub fn env(mut self, name: &str, value: impl ToString) -> Team {
        self.env.push((name.into(), value.to_string()));
        self
    }

    /// A variable for one process.
    pub fn env_of(mut self, process: usize, name: &str, value: impl ToString) -> Team {
        self.process_env.push((process, name.into(), value.to_string()));
        self
    }

    /// An argument of the scenario.
    pub fn arg(mut self, name: &str, value: impl ToString) -> Team {
        self.args.push((name.into(), value.to_string()));
        self
    }

    pub fn seconds(mut self, seconds: u64) -> Team {
        self.limit = Duration::from_secs(seconds);
        self
    }

    pub fn nranks(&self) -> usize {
        self.layout.iter().sum()
    }

    /// Runs to the end; every rank must succeed. Returns what the ranks reported.
    pub fn run(&self, machine: &Machine) -> Outcome<Vec<String>> {
        let mut running = self.start(machine)?;
        while let Some(event) = running.next(None) {
            // The others may wait for a rank that failed until their time is over: their errors are worth a moment.
            let failed = match event {
                Event::Report { rank } => matches!(running.ranks[rank].report, Some(Err(_))),
                Event::Gone { .. } => true,
                Event::Mark { .. } => false,
            };
            if failed {
                running.deadline = running.deadline.min(Instant::now() + GRACE);
            }
        }
        let ends = running.finish();
        let failed: Vec<String> =
            ends.iter().enumerate().filter_map(|(rank, end)| end.failure(rank)).collect();
        if failed.is_empty() {
            return Ok(ends.into_iter().filter_map(|end| end.report.and_then(Result::ok)).collect());
        }
        Err(format!("{self}:\n{}", failed.join("\n")))
    }

    pub fn start(&self, machine: &Machine) -> Outcome<Running> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("oxccl-check/{}/{serial}", std::process::id());
        let told = |e: std::io::Error| format!("{self}: {e}");
        let address = SocketAddr::from_abstract_name(&name).map_err(told)?;
        let listener = UnixListener::bind_addr(&address).map_err(told)?;
        let wanted = std::env::var_os("OXCCL_TEST_SHARED").is_some_and(|value| value != "0");
        let shared = if machine.is_real() { machine.device_count()? < self.nranks() } else { wanted };

        let total = self.nranks();
        let (sender, events) = channel();
        let mut running = Running {
            processes: Vec::new(),
            ranks: (0..total).map(|_| RankState::default()).collect(),
            sockets: Arc::new(Mutex::new((0..total).map(|_| None).collect())),
            events,
            deadline: Instant::now() + limit(self.limit),
            timed_out: false,
        };
        let mut first = 0;
        for (index, count) in self.layout.iter().enumerate() {
            let mut command = machine.command();
            command.arg("rank").arg(&name).arg(self.scenario);
            command.args([first, *count, total].map(|number| number.to_string()));
            command.args(self.args.iter().map(|(name, value)| format!("{name}={value}")));
            if shared && !machine.is_real() {
                command.env("OXCCL_EMU_DEVICES", "1");
            }
            if shared {
                // First loads of kernels would wait for spinning ones of other ranks' threads, and so would kernels of streams that
                // share one of the device's queues (8 unless said otherwise).
                command.env("NCCL_MULTI_RANK_GPU_ENABLE", "1").env("CUDA_MODULE_LOADING", "EAGER");
                command.env("CUDA_DEVICE_MAX_CONNECTIONS", "32");
            }
            command.envs(self.env.iter().map(|(name, value)| (name, value)));
            let own = self.process_env.iter().filter(|(process, ..)| *process == index);
            command.envs(own.map(|(_, name, value)| (name, value)));
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().map_err(|e| format!("{self}: {e}"))?;
            let output = Arc::new(Mutex::new(String::new()));
            let pipes: [Option<Box<dyn Read + Send>>; 2] = [
                child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
                child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
            ];
            let readers = pipes.into_iter().flatten().map(|pipe| collect(pipe, output.clone())).collect();
            running.processes.push(Process { child, first, count: *count, output, readers, status: None });
            first += count;
        }
        accept(listener, running.sockets.clone(), sender);
        Ok(running)
    }
}

/// `OXCCL_TEST_LIMIT` is another limit for every team, in seconds: short to look for a hang, long for a slow machine.
fn limit(usual: Duration) -> Duration {
    let given = std::env::var("OXCCL_TEST_LIMIT").ok().and_then(|text| text.parse().ok());
    given.map_or(usual, Duration::from_secs)
}

impl std::fmt::Display for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?}", self.scenario, self.layout)?;
        let pairs = self.env.iter().chain(&self.args);
        for (name, value) in pairs {
            write!(f, " {name}={value}")?;
        }
        for (process, name, value) in &self.process_env {
            write!(f, " process {process}: {name}={value}")?;
        }
        Ok(())
    }
}

/// Keeps the last part of what a process prints.
fn collect(mut pipe: Box<dyn Read + Send>, output: Arc<Mutex<String>>) -> thread::JoinHandle<()> {
    const KEPT: usize = 32 << 10;
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = pipe.read(&mut bytes) {
            let Ok(mut output) = output.lock() else { return };
            output.push_str(&String::from_utf8_lossy(&bytes[..n]));
            if output.len() > 2 * KEPT {
                let mut cut = output.len() - KEPT;
                while !output.is_char_boundary(cut) {
                    cut += 1;
                }
                output.drain(..cut);
            }
        }
    })
}

type Sockets = Arc<Mutex<Vec<Option<UnixStream>>>>;
type Frame = (usize, Option<(u8, Vec<u8>)>);

/// Accepts connections for as long as the team runs, and reads each on a thread of its own.
fn accept(listener: UnixListener, sockets: Sockets, sender: Sender<Frame>) {
    thread::spawn(move || {
        if listener.set_nonblocking(true).is_err() {
            return;
        }
        // The coordinator has gone when it no longer holds the sockets.
        while Arc::strong_count(&sockets) > 1 {
            let Ok((stream, _)) = listener.accept() else {
                thread::sleep(Duration::from_millis(2));
                continue;
            };
            let (sockets, sender) = (sockets.clone(), sender.clone());
            thread::spawn(move || serve(stream, &sockets, &sender));
        }
    });
}

fn serve(stream: UnixStream, sockets: &Mutex<Vec<Option<UnixStream>>>, sender: &Sender<Frame>) {
    let hello = stream.set_nonblocking(false).map_err(|e| e.to_string()).and_then(|()| read_frame(&stream));
    let Ok((control::HELLO, payload)) = hello else { return };
    let Ok(rank) = <[u8; 4]>::try_from(payload) else { return };
    let rank = u32::from_le_bytes(rank) as usize;
    match (sockets.lock(), stream.try_clone()) {
        (Ok(mut sockets), Ok(clone)) if rank < sockets.len() => sockets[rank] = Some(clone),
        _ => return,
    }
    while let Ok(frame) = read_frame(&stream) {
        if sender.send((rank, Some(frame))).is_err() {
            return;
        }
    }
    let _ = sender.send((rank, None));
}

struct Process {
    child: Child,
    first: usize,
    count: usize,
    output: Arc<Mutex<String>>,
    readers: Vec<thread::JoinHandle<()>>,
    status: Option<ExitStatus>,
}

#[derive(Default)]
struct RankState {
    gather: Option<Vec<u8>>,
    report: Option<Outcome<String>>,
    gone: bool,
}

impl RankState {
    fn is_over(&self) -> bool {
        self.gone || self.report.is_some()
    }
}

/// Something that a rank said or did.
#[derive(Debug)]
pub enum Event {
    Mark { rank: usize, text: String },
    Report { rank: usize },
    Gone { rank: usize },
}

/// How a rank ended.
#[derive(Debug)]
pub struct End {
    pub report: Option<Outcome<String>>,
    pub status: Option<ExitStatus>,
    pub output: String,
    pub timed_out: bool,
}

impl End {
    /// How the rank failed, if it did.
    pub fn failure(&self, rank: usize) -> Option<String> {
        let why = match (&self.report, self.status) {
            (Some(Ok(_)), Some(status)) if status.success() => return None,
            (Some(Err(why)), _) => why.clone(),
            (_, _) if self.timed_out => "did not end in time".into(),
            (_, Some(status)) => format!("ended with {status}"),
            (_, None) => "did not end".into(),
        };
        let output = self.output.trim_end();
        let output = if output.is_empty() { String::new() } else { format!("\n{output}") };
        Some(format!("rank {rank}: {why}{output}"))
    }
}

/// A team under way. Dropping it kills what is left.
pub struct Running {
    processes: Vec<Process>,
    ranks: Vec<RankState>,
    sockets: Sockets,
    events: Receiver<Frame>,
    deadline: Instant,
    timed_out: bool,
}

impl Running {
    /// The next event, by `until` at the latest. None when nothing came by then, and when all ranks are over; a team
    /// whose own time is over is killed.
    pub fn next(&mut self, until: Option<Instant>) -> Option<Event> {
        loop {
            if self.ranks.iter().all(RankState::is_over) {
                return None;
            }
            let now = Instant::now();
            if now >= self.deadline {
                self.timed_out = true;
                self.kill_all();
                return None;
            }
            if until.is_some_and(|until| now >= until) {
                return None;
            }
            // A process that ends before it connects closes no socket: look now and then.
            let nap = until.unwrap_or(self.deadline).min(self.deadline).saturating_duration_since(now);
            match self.events.recv_timeout(nap.min(Duration::from_millis(200))) {
                Ok((rank, Some((kind, payload)))) => {
                    if let Some(event) = self.frame(rank, kind, payload) {
                        return Some(event);
                    }
                }
                Ok((rank, None)) => {
                    if !self.ranks[rank].is_over() {
                        self.ranks[rank].gone = true;
                        self.answer_gathers();
                        return Some(Event::Gone { rank });
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.look_for_unconnected(),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn frame(&mut self, rank: usize, kind: u8, payload: Vec<u8>) -> Option<Event> {
        let text = || String::from_utf8_lossy(&payload).into_owned();
        match kind {
            control::MARK => Some(Event::Mark { rank, text: text() }),
            control::REPORT | control::FAILED => {
                let text = text();
                self.ranks[rank].report = Some(if kind == control::REPORT { Ok(text) } else { Err(text) });
                self.answer_gathers();
                Some(Event::Report { rank })
            }
            control::GATHER => {
                self.ranks[rank].gather = Some(payload);
                self.answer_gathers();
                None
            }
            _ => None,
        }
    }

    fn look_for_unconnected(&mut self) {
        for process in &mut self.processes {
            if process.status.is_none() {
                process.status = process.child.try_wait().ok().flatten();
            }
            let range = process.first..process.first + process.count;
            let connected = |rank: usize| self.sockets.lock().is_ok_and(|sockets| sockets[rank].is_some());
            if process.status.is_some() {
                for rank in range.filter(|rank| !connected(*rank)) {
                    self.ranks[rank].gone = true;
                }
            }
        }
        self.answer_gathers();
    }

    fn answer_gathers(&mut self) {
        let lost = self.ranks.iter().any(RankState::is_over);
        let complete = self.ranks.iter().all(|state| state.gather.is_some());
        if !complete && !lost {
            return;
        }
        let waiting: Vec<(usize, Vec<u8>)> = self
            .ranks
            .iter_mut()
            .enumerate()
            .filter_map(|(rank, state)| state.gather.take().map(|part| (rank, part)))
            .collect();
        let parts: Vec<Vec<u8>> = waiting.iter().map(|(_, part)| part.clone()).collect();
        let (kind, answer) =
            if complete { (control::GATHER, pack(&parts)) } else { (control::LOST, Vec::new()) };
        let Ok(sockets) = self.sockets.lock() else { return };
        for (rank, _) in waiting {
            if let Some(socket) = &sockets[rank] {
                // A rank that has just gone is noticed by its reader.
                let _ = write_frame(socket, kind, &answer);
            }
        }
    }

    /// SIGKILL for the process of a rank.
    pub fn kill(&mut self, rank: usize) -> Outcome {
        let process = self.processes.iter_mut().find(|p| (p.first..p.first + p.count).contains(&rank));
        process.ok_or("no such rank")?.child.kill().map_err(|e| e.to_string())
    }

    pub fn process_ids(&self) -> Vec<u32> {
        self.processes.iter().map(|process| process.child.id()).collect()
    }

    /// Whether the rank has reported success.
    pub fn succeeded(&self, rank: usize) -> bool {
        matches!(self.ranks[rank].report, Some(Ok(_)))
    }

    /// Whether every rank has reported or gone.
    pub fn is_over(&self) -> bool {
        self.ranks.iter().all(RankState::is_over)
    }

    /// Ends a team that would not end by itself.
    pub fn kill_and_finish(mut self) -> Vec<End> {
        self.timed_out = true;
        self.kill_all();
        self.finish()
    }

    fn kill_all(&mut self) {
        for process in &mut self.processes {
            let _ = process.child.kill();
        }
    }

    /// Waits for the processes' ends, at most a little longer than the ranks took.
    pub fn finish(mut self) -> Vec<End> {
        let patience = (Instant::now() + Duration::from_secs(20)).min(self.deadline + Duration::from_secs(5));
        loop {
            for process in self.processes.iter_mut().filter(|process| process.status.is_none()) {
                process.status = process.child.try_wait().ok().flatten();
            }
            if self.processes.iter().all(|process| process.status.is_some()) {
                break;
            }
            if Instant::now() > patience {
                self.timed_out = true;
                self.kill_all();
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let mut ends = Vec::new();
        for process in &mut self.processes {
            process.status = process.status.or_else(|| process.child.wait().ok());
            for reader in process.readers.drain(..) {
                // The pipes are closed with the process, unless it left children behind: those are not waited for.
                let end = Instant::now() + Duration::from_secs(1);
                while !reader.is_finished() && Instant::now() < end {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            for rank in process.first..process.first + process.count {
                ends.push(End {
                    report: self.ranks[rank].report.take(),
                    status: process.status,
                    output: process.output.lock().map(|text| text.clone()).unwrap_or_default(),
                    timed_out: self.timed_out,
                });
            }
        }
        ends
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill_all();
        for process in &mut self.processes {
            let _ = process.child.wait();
        }
    }
}
