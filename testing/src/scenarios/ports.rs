//! Strangers at the rendezvous: scans, garbage and silence on every socket that the process listens on do not keep a
//! communicator from coming up.

use std::collections::HashSet;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::call::Call;
use crate::check::{Checker, Shift};
use crate::driver::Outcome;
use crate::nccl::Comm;
use crate::pattern::mix;
use crate::rank::Rank;

/// Inodes of this process's sockets.
fn own_sockets() -> HashSet<String> {
    let names = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let links = names.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let inode = |link: std::path::PathBuf| {
        Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_string())
    };
    links.filter_map(inode).collect()
}

/// TCP ports and abstract Unix names on which this process listens, one a line.
pub fn listening() -> Vec<String> {
    let own = own_sockets();
    let lines = |path: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines()
            .skip(1)
            .map(|line| line.split_whitespace().map(String::from).collect())
            .collect::<Vec<Vec<_>>>()
    };
    let mut found = Vec::new();
    for path in ["/proc/net/tcp", "/proc/net/tcp6"] {
        for words in lines(path) {
            // local address, remote address, state (0A: listening) and, further on, the inode.
            let is_own = words.get(9).is_some_and(|inode| own.contains(inode));
            let port = words.get(1).and_then(|local| u16::from_str_radix(local.rsplit(':').next()?, 16).ok());
            if let (true, Some("0A"), Some(port)) = (is_own, words.get(3).map(String::as_str), port) {
                found.push(format!("tcp {port}"));
            }
        }
    }
    for words in lines("/proc/net/unix") {
        // Flag 10000: accepts connections. The inode and the name end the line.
        let accepts = words.get(3).is_some_and(|flags| flags == "00010000");
        let is_own = words.get(6).is_some_and(|inode| own.contains(inode));
        if let (true, true, Some(name)) =
            (accepts, is_own, words.get(7).and_then(|name| name.strip_prefix('@')))
        {
            found.push(format!("unix {name}"));
        }
    }
    found
}

enum Stranger {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stranger {
    fn connect(place: &str) -> Option<Stranger> {
        match place.split_once(' ')? {
            ("tcp", port) => {
                let address: SocketAddr = format!("127.0.0.1:{port}").parse().ok()?;
                TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok().map(Stranger::Tcp)
            }
            (_, name) => {
                let address = std::os::unix::net::SocketAddr::from_abstract_name(name).ok()?;
                UnixStream::connect_addr(&address).ok().map(Stranger::Unix)
            }
        }
    }

    fn say(&mut self, bytes: &[u8]) {
        // Being thrown out is fine.
        let _ = match self {
            Stranger::Tcp(stream) => stream.write_all(bytes),
            Stranger::Unix(stream) => stream.write_all(bytes),
        };
    }
}

/// The listener of an id waits for ranks: with the only one there, it is closed at once.
pub fn one_rank(rank: &Rank) -> Outcome<String> {
    rank.enter()?;
    let is_open = || listening().iter().any(|place| place.starts_with("tcp"));
    let id = rank.nccl.unique_id()?;
    crate::ensure!(is_open(), "an id without a listener");
    let mut comm = Comm::NULL;
    rank.nccl.ok("ncclCommInitRank", Comm::NULL, rank.nccl.init_rank(&mut comm, 1, id, 0))?;
    // The service thread closes it.
    let until = Instant::now() + Duration::from_secs(20);
    while is_open() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    crate::ensure!(!is_open(), "the listener stays: {:?}", listening());
    rank.destroy(comm)?;
    Ok("checks 1".into())
}

/// Rank 1 molests rank 0's sockets while rank 0 waits for it, then joins.
pub fn run(rank: &Rank) -> Outcome<String> {
    let stream = rank.enter()?;
    let id = rank.shared_id()?;
    let places = rank.from_root(|| Ok(listening().join("\n").into_bytes()))?;
    let places = String::from_utf8_lossy(&places).into_owned();
    let places: Vec<&str> = places.lines().collect();
    crate::ensure!(!places.is_empty(), "rank 0 listens nowhere");
    let mut connected = 0;
    let mut silent = Vec::new();
    if rank.rank == 1 {
        let garbage: Vec<u8> = (0..4096).map(|i| mix(i) as u8).collect();
        let huge = [0xff; 64];
        let sayings: [&[u8]; 6] =
            [b"", b"abc", &garbage[..8], b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", &garbage, &huge];
        for place in &places {
            for saying in sayings {
                if let Some(mut stranger) = Stranger::connect(place) {
                    stranger.say(saying);
                    connected += 1;
                }
                // The same, and stays.
                if let Some(mut stranger) = Stranger::connect(place) {
                    stranger.say(saying);
                    silent.push(stranger);
                }
            }
            for _ in 0..rank.number("connects", 200) {
                silent.extend(Stranger::connect(place));
            }
        }
        crate::ensure!(connected > 0 && silent.len() > 100, "{connected} connections to {places:?}");
    }
    let mut comm = Comm::NULL;
    let code = rank.nccl.init_rank(&mut comm, rank.nranks as i32, id, rank.rank as i32);
    rank.nccl.ok("ncclCommInitRank", Comm::NULL, code)?;
    let mut checker = Checker::new(rank.nccl, 1 << 16)?;
    checker.run(&Call::sum(rank.rank, rank.nranks, 1000, 1), Shift::default(), comm, stream)?;
    // A second communicator while the strangers are still there.
    let second = rank.init()?;
    checker.run(&Call::sum(rank.rank, rank.nranks, 1000, 2), Shift::default(), second, stream)?;
    drop(silent);
    checker.run(&Call::sum(rank.rank, rank.nranks, 1000, 3), Shift::default(), comm, stream)?;
    rank.destroy(comm)?;
    rank.destroy(second)?;
    Ok(format!("checks {}", checker.checks))
}
