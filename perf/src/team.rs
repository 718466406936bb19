//! A team: all ranks of one communicator on one library, as threads or as processes, driven line by line.
//!
//! A command goes to every rank and is finished when every rank has answered. A rank that ends, or does not answer
//! before the deadline, ends the run: its team is killed, never waited for.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use crate::nccl::Failure;
use crate::worker::{Worker, answer_line, read_answer};

/// Starts a line of a worker process's standard output that is an answer; the library may print there too.
const MARK: char = '\u{1}';

/// How a team is made.
pub struct Plan<'a> {
    pub library: &'a Path,
    pub nranks: usize,
    pub devices: usize,
    pub processes: bool,
    pub limit: Duration,
}

pub struct Team {
    ranks: Vec<Rank>,
    limit: Duration,
    pub library: PathBuf,
    pub version: String,
    /// Seconds that the slowest rank spent in ncclCommInitRank.
    pub init_seconds: f64,
}

struct Rank {
    commands: Box<dyn FnMut(&str) -> bool>,
    answers: Receiver<String>,
    child: Option<Child>,
}

impl Team {
    /// Starts the ranks and makes their communicator.
    pub fn start(plan: &Plan) -> Result<Team, Failure> {
        let ranks = (0..plan.nranks)
            .map(|rank| if plan.processes { process(plan, rank) } else { Ok(thread_of(plan, rank)) })
            .collect::<Result<_, _>>()?;
        let mut team = Team {
            ranks,
            limit: plan.limit,
            library: plan.library.to_path_buf(),
            version: String::new(),
            init_seconds: 0.0,
        };
        // The answer to nothing: that the rank is up.
        team.collect()?;
        let id = team.ask_first("id")?;
        let seconds = team.all(&format!("init {id}"))?;
        team.init_seconds = seconds.iter().filter_map(|s| s.parse().ok()).fold(0.0, f64::max);
        team.version = team.ask_first("version")?;
        Ok(team)
    }

    /// Sends one command to all ranks and returns their answers in rank order.
    pub fn all(&mut self, command: &str) -> Result<Vec<String>, Failure> {
        for (number, rank) in self.ranks.iter_mut().enumerate() {
            if !(rank.commands)(command) {
                return Err(Failure::Error(format!("rank {number} has ended")));
            }
        }
        self.collect()
    }

    fn ask_first(&mut self, command: &str) -> Result<String, Failure> {
        let rank = &mut self.ranks[0];
        if !(rank.commands)(command) {
            return Err(Failure::Error("rank 0 has ended".into()));
        }
        answer(rank, 0, Instant::now() + self.limit)?
    }

    /// One answer of every rank. A real error outweighs "not supported", the first of a kind wins.
    fn collect(&mut self) -> Result<Vec<String>, Failure> {
        let end = Instant::now() + self.limit;
        let (mut texts, mut unsupported, mut error) = (Vec::new(), None, None);
        for (number, rank) in self.ranks.iter_mut().enumerate() {
            match answer(rank, number, end)? {
                Ok(text) => texts.push(text),
                Err(Failure::Unsupported(why)) => {
                    unsupported.get_or_insert(why);
                }
                Err(Failure::Error(why)) => {
                    error.get_or_insert(format!("rank {number}: {why}"));
                }
            }
        }
        match (error, unsupported) {
            (Some(why), _) => Err(Failure::Error(why)),
            (_, Some(why)) if texts.is_empty() => Err(Failure::Unsupported(why)),
            (_, Some(why)) => Err(Failure::Error(format!("only some ranks do not support it: {why}"))),
            _ => Ok(texts),
        }
    }

    /// Frees everything in the orderly way.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.all("finish").map(|_| ())
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            // The end of the command stream ends the worker; one that hangs is killed.
            rank.commands = Box::new(|_| false);
            if let Some(child) = &mut rank.child {
                let end = Instant::now() + Duration::from_secs(5);
                while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
                    thread::sleep(Duration::from_millis(5));
                }
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// The outer error ends the run, the inner one is the rank's own answer.
fn answer(rank: &mut Rank, number: usize, end: Instant) -> Result<Result<String, Failure>, Failure> {
    match rank.answers.recv_timeout(end.saturating_duration_since(Instant::now())) {
        Ok(line) => Ok(read_answer(&line)),
        Err(RecvTimeoutError::Timeout) => {
            kill(rank);
            Err(Failure::Error(format!("rank {number} did not answer in time")))
        }
        Err(RecvTimeoutError::Disconnected) => {
            let status = rank.child.as_mut().and_then(|child| child.wait().ok());
            let how = status.map_or_else(|| "its thread ended".to_string(), |status| status.to_string());
            Err(Failure::Error(format!("rank {number} has ended: {how}")))
        }
    }
}

fn kill(rank: &mut Rank) {
    if let Some(child) = &mut rank.child {
        let _ = child.kill();
    }
}

fn process(plan: &Plan, rank: usize) -> Result<Rank, Failure> {
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let device = rank % plan.devices;
    let mut command = Command::new(exe);
    command
        .arg("--worker")
        .args([rank, plan.nranks, device].map(|n| n.to_string()))
        .arg(plan.library)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    share_devices(plan, |name, value| {
        command.env(name, value);
    });
    let mut child = command.spawn().map_err(|e| format!("cannot start rank {rank}: {e}"))?;
    let mut stdin = child.stdin.take().expect("piped");
    let stdout = child.stdout.take().expect("piped");
    let (send, answers) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            match line.split_once(MARK) {
                Some((before, text)) => {
                    if !before.is_empty() {
                        println!("{before}");
                    }
                    if send.send(text.to_string()).is_err() {
                        break;
                    }
                }
                None => println!("{line}"),
            }
        }
    });
    let commands = Box::new(move |line: &str| writeln!(stdin, "{line}").and_then(|()| stdin.flush()).is_ok());
    Ok(Rank { commands, answers, child: Some(child) })
}

fn thread_of(plan: &Plan, rank: usize) -> Rank {
    let (commands, lines) = mpsc::channel::<String>();
    let (send, answers) = mpsc::channel();
    let (nranks, device, library) = (plan.nranks, rank % plan.devices, plan.library.to_path_buf());
    thread::spawn(move || serve(rank, nranks, device, &library, &lines, |line| send.send(line).is_ok()));
    Rank { commands: Box::new(move |line| commands.send(line.to_string()).is_ok()), answers, child: None }
}

/// Settings that ranks on a common GPU need. Kernels must be loaded before others spin on the device.
pub fn share_devices(plan: &Plan, mut set: impl FnMut(&str, &str)) {
    if plan.nranks > plan.devices {
        set("NCCL_MULTI_RANK_GPU_ENABLE", "1");
        set("CUDA_MODULE_LOADING", "EAGER");
    }
}

/// A worker process: commands on standard input, answers on standard output.
pub fn worker_process(args: &[String]) -> Result<(), String> {
    let [rank, nranks, device, library] = args else {
        return Err("--worker RANK NRANKS DEVICE LIBRARY".into());
    };
    let number = |text: &String| text.parse::<usize>().map_err(|e| format!("{text}: {e}"));
    let (rank, nranks, device) = (number(rank)?, number(nranks)?, number(device)?);
    let (send, lines): (Sender<String>, _) = mpsc::channel();
    thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
        // The coordinator has gone. Give an orderly end a moment, then leave even out of a call that hangs.
        drop(send);
        thread::sleep(Duration::from_secs(2));
        std::process::exit(3);
    });
    serve(rank, nranks, device, Path::new(library), &lines, |line| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{MARK}{line}").and_then(|()| out.flush()).is_ok()
    });
    Ok(())
}

fn serve(
    rank: usize,
    nranks: usize,
    device: usize,
    library: &Path,
    lines: &Receiver<String>,
    mut reply: impl FnMut(String) -> bool,
) {
    let mut worker = match Worker::new(rank, nranks, device, library) {
        Ok(worker) => worker,
        Err(why) => {
            reply(answer_line(Err(why)));
            return;
        }
    };
    if !reply(answer_line(Ok(String::new()))) {
        return;
    }
    while let Ok(line) = lines.recv() {
        if !reply(answer_line(worker.answer(&line))) {
            return;
        }
    }
}
