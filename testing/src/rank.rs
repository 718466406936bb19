//! One rank of a scenario: its place, its device, the library, and its way to the other ranks.

use std::collections::HashMap;
use std::path::Path;
use std::sync::OnceLock;

use crate::control::Control;
use crate::driver::{self, Outcome, Stream};
use crate::nccl::{Comm, Config, Nccl, UniqueId};
use crate::scenarios;

#[derive(Debug)]
pub struct Rank {
    pub rank: usize,
    pub nranks: usize,
    /// Place among the ranks of this process.
    pub local: usize,
    pub nccl: &'static Nccl,
    control: Control,
    args: HashMap<String, String>,
}

/// The library that `OXCCL_LIBRARY` names, loaded once per process.
fn library() -> Outcome<&'static Nccl> {
    static LOADED: OnceLock<Outcome<Nccl>> = OnceLock::new();
    let load = || {
        let path = std::env::var_os("OXCCL_LIBRARY").ok_or("OXCCL_LIBRARY is not set")?;
        Nccl::open(Path::new(&path))
    };
    LOADED.get_or_init(load).as_ref().map_err(Clone::clone)
}

impl Rank {
    /// The value of an argument of the scenario.
    pub fn arg(&self, name: &str) -> Option<&str> {
        self.args.get(name).map(String::as_str)
    }

    pub fn number(&self, name: &str, default: usize) -> usize {
        self.arg(name).and_then(|text| text.parse().ok()).unwrap_or(default)
    }

    /// Whether the run has a small budget: on a real GPU, or with many fibers per block.
    pub fn is_small(&self) -> bool {
        self.arg("set") == Some("small")
    }

    pub fn gather(&self, part: &[u8]) -> Outcome<Vec<Vec<u8>>> {
        self.control.gather(part)
    }

    pub fn barrier(&self) -> Outcome {
        self.gather(&[]).map(|_| ())
    }

    pub fn mark(&self, text: &str) -> Outcome {
        self.control.mark(text)
    }

    /// What rank 0 made, on all ranks.
    pub fn from_root(&self, make: impl FnOnce() -> Outcome<Vec<u8>>) -> Outcome<Vec<u8>> {
        let own = if self.rank == 0 { make()? } else { Vec::new() };
        Ok(self.gather(&own)?.swap_remove(0))
    }

    /// A fresh unique id, the same on all ranks.
    pub fn shared_id(&self) -> Outcome<UniqueId> {
        let bytes = self.from_root(|| Ok(self.nccl.unique_id()?.0.to_vec()))?;
        bytes.try_into().map(UniqueId).map_err(|_| "the id has another size".to_string())
    }

    /// The device of this rank: ranks share devices where there are too few.
    pub fn device(&self) -> Outcome<usize> {
        driver::init()?;
        let count = driver::device_count()?;
        if count == 0 { Err("the driver sees no GPU".into()) } else { Ok(self.rank % count) }
    }

    /// Makes this rank's device current on this thread.
    pub fn enter(&self) -> Outcome<Stream> {
        driver::enter(self.device()?)?;
        driver::new_stream(false)
    }

    /// Joins a fresh communicator of all ranks. The device must be current.
    pub fn init(&self) -> Outcome<Comm> {
        let id = self.shared_id()?;
        let mut comm = Comm::NULL;
        let code = self.nccl.init_rank(&mut comm, self.nranks as i32, id, self.rank as i32);
        self.nccl.ok("ncclCommInitRank", Comm::NULL, code)?;
        Ok(comm)
    }

    /// The same with settings.
    pub fn init_config(&self, config: &Config) -> Outcome<Comm> {
        let id = self.shared_id()?;
        let mut comm = Comm::NULL;
        let code = self.nccl.init_rank_config(&mut comm, self.nranks as i32, id, self.rank as i32, config);
        self.nccl.ok("ncclCommInitRankConfig", Comm::NULL, code)?;
        Ok(comm)
    }

    pub fn destroy(&self, comm: Comm) -> Outcome {
        self.nccl.ok("ncclCommDestroy", Comm::NULL, self.nccl.destroy(comm))
    }
}

/// The ranks of one process, as the coordinator's command line describes them.
#[derive(Debug)]
pub struct ProcessPlan {
    pub socket: String,
    pub scenario: String,
    pub first: usize,
    pub count: usize,
    pub total: usize,
    pub args: HashMap<String, String>,
}

impl ProcessPlan {
    /// Words as [`crate::team`] writes them.
    pub fn parse(words: &[String]) -> Outcome<ProcessPlan> {
        let [socket, scenario, first, count, total, args @ ..] = words else {
            return Err("socket, scenario, first rank, ranks here, ranks in all".into());
        };
        let number = |text: &String| text.parse::<usize>().map_err(|e| format!("{text}: {e}"));
        let pair = |word: &String| {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            (name.to_string(), value.to_string())
        };
        Ok(ProcessPlan {
            socket: socket.clone(),
            scenario: scenario.clone(),
            first: number(first)?,
            count: number(count)?,
            total: number(total)?,
            args: args.iter().map(pair).collect(),
        })
    }

    /// Runs the ranks, each on a thread of its own; false when one failed.
    pub fn run(&self) -> bool {
        // The coordinator may be killed: its ranks go with it.
        let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
        std::thread::scope(|scope| {
            let ranks: Vec<_> =
                (0..self.count).map(|local| scope.spawn(move || self.run_rank(local))).collect();
            ranks.into_iter().all(|rank| rank.join().unwrap_or(false))
        })
    }

    fn run_rank(&self, local: usize) -> bool {
        let control = match Control::connect(&self.socket, self.first + local) {
            Ok(control) => control,
            Err(_) => return false,
        };
        let nccl = match library() {
            Ok(nccl) => nccl,
            Err(why) => {
                let _ = control.report(&Err(why));
                return false;
            }
        };
        let rank = Rank {
            rank: self.first + local,
            nranks: self.total,
            local,
            nccl,
            control,
            args: self.args.clone(),
        };
        let run = std::panic::AssertUnwindSafe(|| match scenarios::find(&self.scenario) {
            Some(scenario) => scenario(&rank),
            None => Err(format!("there is no scenario {}", self.scenario)),
        });
        let result = std::panic::catch_unwind(run).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            Err(format!("panic: {}", text.unwrap_or_default()))
        });
        rank.control.report(&result).is_ok() && result.is_ok()
    }
}
