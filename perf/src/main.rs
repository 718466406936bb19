//! `oxccl-perf`: checks and times the collectives of any libnccl.so, or of two in turns.
//!
//! It uses the public ABI alone and the CUDA driver, so it serves NVIDIA's library as well as ours. The exit status is
//! 0 when something ran and every result was right, 1 when one was wrong or a call failed, 2 for a wrong command line.
#![allow(clippy::print_stdout, clippy::print_stderr)] // a command-line program

mod collective;
mod cuda;
mod nccl;
mod options;
mod report;
mod team;
mod types;
mod worker;

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use collective::Collective;
use nccl::Failure;
use options::Options;
use report::{Row, Sample};
use team::{Plan, Team};
use types::{DataType, Op};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("--worker") => return status(team::worker_process(&args[1..]).map(|()| true)),
        Some("--device-count") => {
            // No driver counts as no device.
            println!("{}", cuda::Driver::open().and_then(|d| d.device_count()).unwrap_or(0));
            return ExitCode::SUCCESS;
        }
        Some("--help" | "-h") => {
            println!("{}", options::USAGE);
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    match Options::parse(&args) {
        Ok(options) => status(run(&options, &args)),
        Err(why) => {
            eprintln!("oxccl-perf: {why}\n{}", options::USAGE);
            ExitCode::from(2)
        }
    }
}

fn status(result: Result<bool, String>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("oxccl-perf: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs everything; false when a result was wrong or nothing could run.
fn run(options: &Options, args: &[String]) -> Result<bool, String> {
    let driver = cuda::Driver::open()?;
    let devices = driver.device_count()?;
    if devices == 0 {
        return Err("the driver sees no GPU".into());
    }
    let nranks = if options.ranks == 0 { devices.max(2) } else { options.ranks };
    let plan = |library| Plan {
        library,
        nranks,
        devices,
        processes: options.processes,
        limit: Duration::from_secs(options.timeout),
    };
    if !options.processes {
        enter_environment(&plan(&options.library), args)?;
    }

    let libraries: Vec<&Path> =
        std::iter::once(options.library.as_path()).chain(options.versus.as_deref()).collect();
    let mut teams = Vec::new();
    for library in &libraries {
        teams.push(
            Team::start(&plan(library)).map_err(|why| format!("{}: {}", library.display(), text(why)))?,
        );
    }
    let mut head = vec![
        ("ranks", format!("{nranks} {}", if options.processes { "processes" } else { "threads" })),
        ("devices", format!("{devices} x {}", driver.device_name(0)?)),
        ("graph", options.graph_launches.to_string()),
    ];
    for (name, team) in ["lib", "vs"].iter().zip(&teams) {
        head.push((*name, format!("{} version {}", team.library.display(), team.version)));
        println!(
            "# {name}: {} version {}, init {:.3} s",
            team.library.display(),
            team.version,
            team.init_seconds
        );
    }
    println!("# ranks: {}, devices: {}", head[0].1, head[1].1);

    let sizes = options.sizes();
    // Room for the largest call; counts are rounded down to whole elements and blocks.
    let largest = sizes.iter().max().copied().unwrap_or(0);
    let mut session = Session { options, nranks, teams, seed: 0, rows: Vec::new(), unsupported: Vec::new() };
    session.all(&format!("alloc {largest}"))?;
    for collective in &options.collectives {
        session.collective(*collective, &sizes)?;
    }
    let Session { teams, rows, unsupported, .. } = session;
    for team in teams {
        team.finish().map_err(text)?;
    }
    if let Some(file) = &options.json {
        let json = report::json(&head, &rows, &unsupported);
        std::fs::write(file, json).map_err(|e| format!("{}: {e}", file.display()))?;
    }

    for (name, why) in &unsupported {
        println!("# not supported: {name}: {why}");
    }
    let wrong: u64 = rows.iter().flat_map(|row| &row.samples).filter_map(|sample| sample.wrong).sum();
    let checked = rows.iter().flat_map(|row| &row.samples).filter(|sample| sample.wrong.is_some()).count();
    println!("# {} rows, {checked} results checked, {wrong} wrong values", rows.len());
    if rows.is_empty() {
        return Err("nothing ran: the library supports none of the collectives asked for".into());
    }
    let done = |c: &Collective| rows.iter().any(|row| row.collective == *c);
    let missing: Vec<_> = options.required.iter().filter(|c| !done(c)).map(|c| c.name()).collect();
    if !missing.is_empty() {
        return Err(format!("required, but not done: {}", missing.join(" ")));
    }
    Ok(wrong == 0)
}

/// Threads share this process's environment, which the driver has read by now: starts it anew with what they need.
fn enter_environment(plan: &Plan, args: &[String]) -> Result<(), String> {
    let mut missing = Vec::new();
    team::share_devices(plan, |name, value| {
        if std::env::var_os(name).is_none() {
            missing.push((name.to_string(), value.to_string()));
        }
    });
    if missing.is_empty() {
        return Ok(());
    }
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    Err(Command::new(exe).args(args).envs(missing).exec().to_string())
}

fn text(failure: Failure) -> String {
    match failure {
        Failure::Unsupported(text) | Failure::Error(text) => text,
    }
}

/// A run under way.
struct Session<'a> {
    options: &'a Options,
    nranks: usize,
    teams: Vec<Team>,
    /// Of the inputs; never the same twice, so that left-over data is no right answer.
    seed: usize,
    rows: Vec<Row>,
    /// Collectives and the sentence that the library gave.
    unsupported: Vec<(String, String)>,
}

impl Session<'_> {
    fn all(&mut self, command: &str) -> Result<(), String> {
        self.teams.iter_mut().try_for_each(|team| team.all(command).map(|_| ())).map_err(text)
    }

    fn collective(&mut self, collective: Collective, sizes: &[usize]) -> Result<(), String> {
        println!("{}", report::title(collective, self.teams.len() == 2));
        let ops = if collective.reduces() { self.options.ops.as_slice() } else { &self.options.ops[..1] };
        let roots = match (collective.has_root(), self.options.root) {
            (true, None) => 0..self.nranks,
            (true, Some(root)) => root..root + 1,
            (false, _) => 0..1,
        };
        for t in &self.options.types {
            for op in ops {
                for root in roots.clone() {
                    for size in sizes {
                        match self.size(collective, *t, *op, root, *size) {
                            Ok(()) => {}
                            Err(Failure::Unsupported(why)) => {
                                let name = self.call_name(collective, *t, *op);
                                if !self.unsupported.iter().any(|(known, _)| *known == name) {
                                    println!("#   not supported: {name}");
                                    self.unsupported.push((name, why));
                                }
                                break;
                            }
                            Err(Failure::Error(why)) => return Err(format!("{}: {why}", collective.name())),
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// A name for the list of what is missing, as specific as the options make it.
    fn call_name(&self, collective: Collective, t: DataType, op: Op) -> String {
        let mut name = collective.name().to_string();
        if self.options.types.len() > 1 {
            name += &format!(" {}", t.name);
        }
        if collective.reduces() && self.options.ops.len() > 1 {
            name += &format!(" {}", op.name);
        }
        name
    }

    /// One size: out of place, then in place.
    fn size(&mut self, c: Collective, t: DataType, op: Op, root: usize, size: usize) -> Result<(), Failure> {
        let count = c.count(size, t.size, self.nranks);
        let mut made = Vec::new();
        for in_place in [false, true] {
            if in_place && !c.can_be_in_place() {
                continue;
            }
            let call = format!("{} {} {} {root} {count} {}", c.name(), t.name, op.name, u8::from(in_place));
            let samples = self.measure(&call)?;
            made.push(Row {
                collective: c,
                type_name: t.name,
                op: c.reduces().then_some(op.name),
                root: c.has_root().then_some(root),
                bytes: c.bytes(count, t.size, self.nranks),
                count,
                in_place,
                nranks: self.nranks,
                samples,
            });
        }
        if self.teams.len() == 2 {
            made.iter().for_each(|row| println!("{}", report::line_of_two(row)));
        } else {
            println!("{}", report::line(&made[0], made.get(1)));
        }
        self.rows.append(&mut made);
        Ok(())
    }

    /// Times the call on each team in turns, then checks it.
    fn measure(&mut self, call: &str) -> Result<Vec<Sample>, Failure> {
        let o = self.options;
        let two = self.teams.len() == 2;
        // Of two libraries, the one that has something to say is named.
        let named = |team: &Team, failure: Failure| match failure {
            _ if !two => failure,
            Failure::Unsupported(why) => Failure::Unsupported(format!("{}: {why}", team.library.display())),
            Failure::Error(why) => Failure::Error(format!("{}: {why}", team.library.display())),
        };
        let mut times = vec![Vec::new(); self.teams.len()];
        let command = format!("time {} {} {} {call}", o.iterations, o.warmups, o.graph_launches);
        for _ in 0..if two { o.rounds } else { 1 } {
            for (team, times) in self.teams.iter_mut().zip(&mut times) {
                let answers = team.all(&command).map_err(|failure| named(team, failure))?;
                let seconds: f64 = answers.iter().filter_map(|answer| answer.parse::<f64>().ok()).sum();
                times.push(seconds / answers.len() as f64);
            }
        }
        let mut samples = Vec::new();
        for (team, mut times) in self.teams.iter_mut().zip(times) {
            times.sort_by(f64::total_cmp);
            let mut wrong = None;
            if o.check {
                self.seed += 1;
                let steps = [
                    format!("fill {} {call}", self.seed),
                    format!("once {} {call}", o.graph_launches.min(1)),
                    format!("check {} {call}", self.seed),
                ];
                let mut counts = Vec::new();
                for step in &steps {
                    counts = team.all(step).map_err(|failure| named(team, failure))?;
                }
                wrong = Some(counts.iter().filter_map(|count| count.parse::<u64>().ok()).sum());
            }
            samples.push(Sample { seconds: times[times.len() / 2], wrong });
        }
        Ok(samples)
    }
}
