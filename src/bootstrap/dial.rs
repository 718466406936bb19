//! Connecting: to the rendezvous of a unique id, or to a rank that is asked something.
//!
//! Candidates are tried side by side, a little apart, so that an unreachable address costs no time. Whatever answers must prove
//! that it knows the key; what does not is no more than a candidate that failed. Nothing waits beyond the deadline or the abort
//! flag, and the error of a failure lists each candidate with its reason.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::PollFlags;

use crate::bootstrap::auth;
use crate::bootstrap::link::{Closed, MAX_MESSAGE, Receiver, Sender};
use crate::bootstrap::peer::random;
use crate::bootstrap::wire::{
    CHALLENGE_BYTES, Challenge, Hello, Message, PROTOCOL, Purpose, Status, library_version, version_text,
};
use crate::error::{Code, Error, Result};
use crate::param;
use crate::sys::fork::PrivateFd;
use crate::sys::{Deadline, fd, interfaces, socket};

/// How long a wait goes without a look at the abort flag.
pub const SLICE: Duration = Duration::from_millis(20);
/// One candidate may take this long to accept a connection.
const CONNECT: Duration = Duration::from_secs(3);
/// The next candidate is tried beside the first after this time.
const STAGGER: Duration = Duration::from_millis(200);
/// A handshake takes a few messages of a service that never blocks.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// What a connection is for.
pub struct Call<'a> {
    pub purpose: Purpose,
    pub subject: [u8; 16],
    pub key: &'a [u8; 32],
    pub rank: u32,
    pub nranks: u32,
    pub target: u32,
    pub abort: &'a AtomicBool,
}

/// Where to look.
pub struct Places {
    pub unix_name: Option<[u8; 16]>,
    pub tcp: Vec<SocketAddr>,
    /// The listener may not be there yet: refusals are no reason to give up.
    pub patient: bool,
}

/// An authenticated connection.
pub struct Connection {
    pub sender: Sender,
    pub receiver: Receiver,
    /// The word with which the other end let us in, or did not.
    first: Option<Message>,
    /// The process at the other end, where it is visible.
    pub pid: Option<i32>,
}

impl Connection {
    /// Waits for the next message of a connection that no actor owns.
    pub fn next(&mut self, deadline: Deadline, abort: &AtomicBool) -> Next {
        match self.first.take() {
            Some(first) => Next::Message(first),
            None => next_message(&mut self.receiver, deadline, abort),
        }
    }

    /// Sends a message; for connections that no actor owns.
    pub fn send(&mut self, message: &Message, deadline: Deadline, abort: &AtomicBool) -> Result<()> {
        self.sender.push(message);
        flush(&mut self.sender, self.receiver.socket(), deadline, abort)
    }
}

/// The abstract name behind the 16 bytes that an id or a rank gives.
pub fn unix_name(name: &[u8; 16]) -> Vec<u8> {
    let digits: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("oxccl-{digits}").into_bytes()
}

/// Why a candidate did not work; later ones leave more hope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Hope {
    /// It will not work, ever.
    None,
    /// Nobody listens; perhaps not yet.
    Refused,
    /// The network may need time.
    Slow,
    /// It is there, but busy.
    Busy,
}

#[derive(Debug)]
struct Miss {
    hope: Hope,
    code: Code,
    reason: String,
}

impl Miss {
    fn new(hope: Hope, reason: impl Into<String>) -> Miss {
        Miss { hope, code: Code::System, reason: reason.into() }
    }
}

/// Connects and authenticates, or says why not.
pub fn dial(call: &Call<'_>, places: &Places, deadline: Deadline) -> Result<Connection> {
    let started = Instant::now();
    let mut pause = Duration::from_millis(5);
    loop {
        let mut misses: Vec<(String, Miss)> = Vec::new();
        if let Some(name) = &places.unix_name {
            match dial_unix(call, name, deadline) {
                Ok(connection) => return Ok(connection),
                Err(miss) => misses.push(("Unix socket".to_owned(), miss)),
            }
        }
        let definite = misses.iter().any(|(_, miss)| miss.hope == Hope::None);
        if !definite {
            match dial_tcp(call, &places.tcp, deadline) {
                Ok(connection) => return Ok(connection),
                Err(more) => misses.extend(more),
            }
        }
        check_abort(call.abort)?;
        let hope = match misses.iter().any(|(_, miss)| miss.hope == Hope::None) {
            true => Hope::None,
            false => misses.iter().map(|(_, miss)| miss.hope).max().unwrap_or(Hope::None),
        };
        let patience = match (hope, call.purpose) {
            (Hope::None, _) | (Hope::Refused, Purpose::Request) => Duration::ZERO,
            (Hope::Busy, _) => Duration::MAX,
            _ if places.patient => Duration::MAX,
            (Hope::Refused, Purpose::Join) => Duration::from_secs(1),
            (Hope::Slow, _) => Duration::from_secs(20),
        };
        if deadline.expired() || started.elapsed() >= patience {
            return Err(failure(call, &misses, deadline.expired() && hope != Hope::None));
        }
        std::thread::sleep(deadline.slice(pause));
        pause = (pause * 2).min(Duration::from_millis(250));
    }
}

fn failure(call: &Call<'_>, misses: &[(String, Miss)], late: bool) -> Error {
    let listed: Vec<String> =
        misses.iter().map(|(place, miss)| format!("{place}: {}", miss.reason)).collect();
    let listed = if listed.is_empty() { "there is no address to try".to_owned() } else { listed.join("; ") };
    let definite = misses.iter().find(|(_, miss)| miss.hope == Hope::None);
    let code = match definite {
        _ if late => Code::Timeout,
        Some((_, miss)) => miss.code,
        // Nobody listens there any more: the process has ended.
        None if matches!(call.purpose, Purpose::Join) => Code::Remote,
        None => Code::System,
    };
    let hint = match (call.purpose, definite) {
        (_, Some(_)) => "",
        (Purpose::Join, None) => {
            ". The process that made the id must live until all ranks have joined; across hosts, look at NCCL_SOCKET_IFNAME \
             and the firewall (OXCCL_PORT_RANGE)"
        }
        (Purpose::Request, None) => {
            ". Ranks in different network namespaces cannot pass memory to each other"
        }
    };
    let what = match call.purpose {
        Purpose::Join => "cannot reach the rendezvous".to_owned(),
        Purpose::Request => format!("cannot reach rank {}", call.target),
    };
    Error::new(code, format!("{what} ({listed}){hint}"))
}

pub fn check_abort(abort: &AtomicBool) -> Result<()> {
    // Acquire: what the aborting thread wrote before is seen by whoever cleans up.
    match abort.load(Ordering::Acquire) {
        true => Err(Error::usage("the communicator was aborted")),
        false => Ok(()),
    }
}

fn dial_unix(call: &Call<'_>, name: &[u8; 16], deadline: Deadline) -> std::result::Result<Connection, Miss> {
    let connect = || socket::connect_unix(&unix_name(name));
    let fd = connect()
        .or_else(|error| if fd::is_shortage(error) && fd::raise_limit() { connect() } else { Err(error) });
    let fd = fd.map_err(|error| match error {
        Errno::ECONNREFUSED => {
            Miss::new(Hope::Refused, "its process is not in this host's network namespace, or has ended")
        }
        Errno::EAGAIN => Miss::new(Hope::Busy, "too many ranks connect at once"),
        error => Miss::new(Hope::Slow, error.desc()),
    })?;
    let (pid, uid) = socket::unix_peer(fd.as_fd()).unwrap_or_default();
    if !trusted(uid) {
        return Err(Miss::new(Hope::Refused, format!("it belongs to user {uid}, not to ours")));
    }
    handshake(call, fd, deadline, (pid > 0).then_some(pid))
}

/// Whether a process of this user may be at the other end of a Unix socket: our own, and either way root, who may do anything anyway.
pub fn trusted(uid: u32) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    uid == own || uid == 0 || own == 0
}

type Started = (SocketAddr, PrivateFd, Instant);

fn dial_tcp(
    call: &Call<'_>,
    candidates: &[SocketAddr],
    deadline: Deadline,
) -> std::result::Result<Connection, Vec<(String, Miss)>> {
    let mut misses = Vec::new();
    let mut waiting: Vec<Started> = Vec::new();
    let mut next = candidates.iter();
    let mut last_start: Option<Instant> = None;
    loop {
        if waiting.is_empty() || last_start.is_some_and(|last| last.elapsed() >= STAGGER) {
            match next.next().map(|address| (*address, begin(*address))) {
                Some((address, Ok(fd))) => {
                    last_start = Some(Instant::now());
                    waiting.push((address, fd, Instant::now()));
                }
                Some((address, Err(miss))) => {
                    misses.push((address.to_string(), miss));
                    continue;
                }
                None if waiting.is_empty() => return Err(misses),
                None => last_start = None,
            }
        }
        if call.abort.load(Ordering::Acquire) || deadline.expired() {
            misses.extend(
                waiting
                    .drain(..)
                    .map(|(address, ..)| (address.to_string(), Miss::new(Hope::Slow, "no answer yet"))),
            );
            return Err(misses);
        }
        let mut rest = Vec::new();
        // All but the first are only looked at.
        let mut time = deadline.slice(SLICE);
        for (address, fd, since) in waiting {
            let outcome = socket::connected(fd.as_fd(), time);
            time = Duration::ZERO;
            match outcome {
                None if since.elapsed() < CONNECT => rest.push((address, fd, since)),
                None => misses.push((address.to_string(), Miss::new(Hope::Slow, "no answer"))),
                Some(Err(error)) => {
                    let hope = if error == Errno::ECONNREFUSED { Hope::Refused } else { Hope::Slow };
                    misses.push((address.to_string(), Miss::new(hope, error.desc())));
                }
                Some(Ok(())) => match handshake(call, fd, deadline, None) {
                    Ok(connection) => {
                        socket::tune_tcp(connection.receiver.socket());
                        return Ok(connection);
                    }
                    Err(miss) => misses.push((address.to_string(), miss)),
                },
            }
        }
        waiting = rest;
    }
}

fn begin(address: SocketAddr) -> std::result::Result<PrivateFd, Miss> {
    let from = source(&address).map_err(|error| Miss {
        hope: Hope::None,
        code: error.code(),
        reason: error.message().to_owned(),
    })?;
    socket::connect_tcp(address, from).map_err(|error| Miss::new(Hope::Slow, error.to_string()))
}

/// The address to connect from: of the interface that the user names, if one is named.
fn source(to: &SocketAddr) -> Result<Option<SocketAddr>> {
    if to.ip().is_loopback() || param::text(param::SOCKET_IFNAME).is_none() {
        return Ok(None);
    }
    let choice = interfaces::choose()?;
    let fitting =
        choice.used.iter().map(|interface| interface.address).find(|ip| ip.is_ipv4() == to.is_ipv4());
    Ok(fitting.map(|ip| SocketAddr::new(ip, 0)))
}

fn handshake(
    call: &Call<'_>,
    fd: PrivateFd,
    deadline: Deadline,
    pid: Option<i32>,
) -> std::result::Result<Connection, Miss> {
    let over_unix = pid.is_some() || socket::tcp_peer(&fd).is_none();
    // Over TCP, another process may have the address and port by chance; behind a random Unix name there is nobody else.
    let definite = if over_unix { Hope::None } else { Hope::Refused };
    let patient = deadline;
    let deadline = deadline.earlier(Deadline::after(HANDSHAKE));
    let hello = Hello {
        protocol: PROTOCOL,
        library: library_version(),
        purpose: call.purpose,
        rank: call.rank,
        nranks: call.nranks,
        target: call.target,
        subject: call.subject,
        nonce: random().map_err(|error| Miss::new(Hope::None, error.message()))?,
    }
    .encode();
    write_all(fd.as_fd(), &hello, deadline, call.abort)?;
    let mut challenge = [0; CHALLENGE_BYTES];
    read_exact(fd.as_fd(), &mut challenge, deadline, call.abort)?;
    let Ok(parsed) = Challenge::decode(&challenge) else {
        return Err(Miss::new(definite, "what answers there is not this library"));
    };
    match parsed.status {
        Status::Go => {}
        Status::OtherProtocol => {
            let reason = format!(
                "it runs another version of this library ({}, here {}): all ranks must load the same",
                version_text(parsed.library),
                version_text(library_version())
            );
            return Err(Miss { hope: Hope::None, code: Code::InvalidUsage, reason });
        }
        Status::UnknownSubject => {
            let reason = match call.purpose {
                Purpose::Join => {
                    "it does not know this unique id: it has expired, or came from an earlier run"
                }
                Purpose::Request => "its process has no such rank: it has left the communicator",
            };
            return Err(Miss { hope: definite, code: Code::InvalidUsage, reason: reason.to_owned() });
        }
    }
    if !auth::check_server(call.key, &hello, &challenge) {
        return Err(Miss::new(definite, "what answers there does not know the key of this unique id"));
    }
    let proof = auth::client_proof(call.key, &hello, &challenge);
    write_all(fd.as_fd(), &proof, deadline, call.abort)?;
    let (outward, inward) = auth::seals(call.key, &hello, &challenge);
    let socket = Arc::new(fd);
    let sender = Sender::new(socket.clone(), outward);
    let mut receiver = Receiver::new(socket, inward, MAX_MESSAGE);
    // A proof on its way does not count: a door full of strangers may close before it is read. What is let in gets a word. The
    // other end has proved itself, so that this wait may take as long as the caller has.
    let closed = match next_message(&mut receiver, patient, call.abort) {
        Next::Message(first) => return Ok(Connection { sender, receiver, first: Some(first), pid }),
        Next::Closed(closed) => closed.to_string(),
        Next::Late | Next::Aborted => return Err(Miss::new(Hope::Slow, "connected, but not let in")),
    };
    Err(Miss::new(Hope::Busy, format!("not let in: {closed}")))
}

/// Waits a slice for readiness; fails when time or patience is over.
fn wait(
    fd: BorrowedFd<'_>,
    wanted: PollFlags,
    deadline: Deadline,
    abort: &AtomicBool,
) -> std::result::Result<(), Miss> {
    loop {
        if fd::wait_for(fd, wanted, deadline.slice(SLICE)) {
            return Ok(());
        }
        if abort.load(Ordering::Acquire) || deadline.expired() {
            return Err(Miss::new(Hope::Slow, "connected, but no answer"));
        }
    }
}

fn broken(error: std::io::Error) -> Miss {
    Miss::new(Hope::Busy, format!("the connection broke ({error})"))
}

fn write_all(
    fd: BorrowedFd<'_>,
    mut bytes: &[u8],
    deadline: Deadline,
    abort: &AtomicBool,
) -> std::result::Result<(), Miss> {
    while !bytes.is_empty() {
        match fd::send(fd, bytes, &[]) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                wait(fd, PollFlags::POLLOUT, deadline, abort)?;
            }
            Err(error) => return Err(broken(error)),
        }
    }
    Ok(())
}

fn read_exact(
    fd: BorrowedFd<'_>,
    bytes: &mut [u8],
    deadline: Deadline,
    abort: &AtomicBool,
) -> std::result::Result<(), Miss> {
    let mut filled = 0;
    while filled < bytes.len() {
        match fd::receive(fd, &mut bytes[filled..], None) {
            Ok(0) => return Err(Miss::new(Hope::Busy, "it closed the connection during the handshake")),
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                wait(fd, PollFlags::POLLIN, deadline, abort)?;
            }
            Err(error) => return Err(broken(error)),
        }
    }
    Ok(())
}

/// What a wait for a message can end with.
#[derive(Debug)]
pub enum Next {
    Message(Message),
    Closed(Closed),
    Late,
    Aborted,
}

fn next_message(receiver: &mut Receiver, deadline: Deadline, abort: &AtomicBool) -> Next {
    let mut end = None;
    loop {
        match receiver.next() {
            Ok(Some(message)) => return Next::Message(message),
            Err(closed) => return Next::Closed(closed),
            Ok(None) => {}
        }
        if let Some(closed) = end {
            return Next::Closed(closed);
        }
        if abort.load(Ordering::Acquire) {
            return Next::Aborted;
        }
        if fd::wait_for(receiver.socket().as_fd(), PollFlags::POLLIN, deadline.slice(SLICE)) {
            end = receiver.fill().err();
        } else if deadline.expired() {
            return Next::Late;
        }
    }
}

/// Sends all that is queued.
pub fn flush(sender: &mut Sender, socket: &PrivateFd, deadline: Deadline, abort: &AtomicBool) -> Result<()> {
    loop {
        match sender.flush() {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => return Err(Error::remote(format!("the connection broke ({error})"))),
        }
        if !fd::wait_for(socket.as_fd(), PollFlags::POLLOUT, deadline.slice(SLICE)) {
            check_abort(abort)?;
            if deadline.expired() {
                return Err(Error::timeout("the other end does not read what it is sent"));
            }
        }
    }
}
