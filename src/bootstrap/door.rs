//! The door of a process: its listeners, and the connections that have not yet proved anything.
//!
//! A stranger can do no more than occupy a place here: it has a small buffer, five seconds, and is the first to go when places run
//! out. Nothing it says is believed before its proof. Behind the door are the rendezvous of the unique ids that this process made
//! (each makes one communicator) and the ranks that other ranks may ask. The Unix listener needs no IP; TCP listeners exist only
//! while an id waits for its ranks.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::bootstrap::auth;
use crate::bootstrap::dial::{trusted, unix_name};
use crate::bootstrap::id::UniqueId;
use crate::bootstrap::link::{MAX_PAYLOAD, Receiver, Sender};
use crate::bootstrap::peer::random;
use crate::bootstrap::request::{Incoming, Served};
use crate::bootstrap::session::{Session, refuse};
use crate::bootstrap::wire::{
    CHALLENGE_BYTES, CHALLENGE_HEAD_BYTES, Challenge, HELLO_BYTES, Hello, PROOF_BYTES, PROTOCOL, Purpose,
    Status, library_version,
};
use crate::error::{Code, Error, Result};
use crate::param;
use crate::process::service;
use crate::process::service::{Actor, ActorId, Interest, Io, Ready};
use crate::sys::fork::PrivateFd;
use crate::sys::{fd, socket};

/// A stranger must have proved itself after this time.
const PATIENCE: Duration = Duration::from_secs(5);
/// Strangers at once; the oldest makes room.
const MAX_PENDING: usize = 256;
/// Ids that are remembered, unused and used; the oldest makes room.
const MAX_IDS: usize = 4096;
/// An id that no rank has used is forgotten after this time.
const ID_AGE: Duration = Duration::from_secs(24 * 3600);

const UNIX_KEY: u64 = 0;
const AGE_TIMER: u64 = 1;
const REOPEN_TIMER: u64 = 2;
const FIRST_KEY: u64 = 16;

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    Unix { pid: i32 },
    Tcp(SocketAddr),
}

impl Origin {
    pub fn pid(&self) -> Option<i32> {
        match self {
            Origin::Unix { pid } if *pid > 0 => Some(*pid),
            _ => None,
        }
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Unix { pid: 0 } => formatter.write_str("a process of this host in another PID namespace"),
            Origin::Unix { pid } => write!(formatter, "process {pid} of the rendezvous' host"),
            Origin::Tcp(address) => write!(formatter, "{address}"),
        }
    }
}

pub struct Door {
    /// `None` when this process may not have Unix sockets.
    name: Option<[u8; 16]>,
    listeners: BTreeMap<u64, Listener>,
    ids: HashMap<[u8; 16], Id>,
    /// The ids by age.
    order: VecDeque<[u8; 16]>,
    served: HashMap<([u8; 16], u32), Arc<Served>>,
    /// By age, since keys grow.
    pending: BTreeMap<u64, Pending>,
    next_key: u64,
    /// The timer that looks for old ids is set.
    ageing: bool,
}

struct Listener {
    socket: Arc<PrivateFd>,
    address: Option<SocketAddr>,
    /// The id that has this listener for itself.
    job: Option<[u8; 16]>,
}

struct Id {
    key: [u8; 32],
    made: Instant,
    state: IdState,
}

#[derive(PartialEq, Eq)]
enum IdState {
    Open,
    Joining(ActorId),
    Used,
}

struct Pending {
    socket: Arc<PrivateFd>,
    origin: Origin,
    buffer: Vec<u8>,
    stage: Stage,
}

enum Stage {
    Hello,
    Proof { hello: [u8; HELLO_BYTES], challenge: [u8; CHALLENGE_BYTES], key: [u8; 32] },
}

/// The door of this process; opens it if need be.
pub fn door() -> Result<ActorId> {
    service()?.singleton("door", || Ok(Box::new(Door::new()?)))
}

/// The abstract name at which this process's door is found.
pub fn door_name() -> Result<Option<[u8; 16]>> {
    service()?.ask(door()?, |door: &mut Door, _| door.name)
}

impl Door {
    fn new() -> Result<Door> {
        let name: [u8; 16] = random()?;
        let mut listeners = BTreeMap::new();
        let name = match socket::listen_unix(&unix_name(&name)) {
            _ if !param::bool(param::UNIX_SOCKETS) => None,
            Ok(fd) => {
                let listener = Listener { socket: Arc::new(fd), address: None, job: None };
                listeners.insert(UNIX_KEY, listener);
                Some(name)
            }
            Err(error) => {
                tracing::warn!(
                    target: "BOOTSTRAP",
                    "Unix sockets do not work here ({error}): ranks of one host talk over TCP and cannot share memory"
                );
                None
            }
        };
        Ok(Door {
            name,
            listeners,
            ids: HashMap::new(),
            order: VecDeque::new(),
            served: HashMap::new(),
            pending: BTreeMap::new(),
            next_key: FIRST_KEY,
            ageing: false,
        })
    }

    /// A new id, with a rendezvous that waits for its ranks. `addresses` are those to listen on, best first.
    pub fn new_id(
        &mut self,
        io: &mut Io<'_>,
        addresses: &[IpAddr],
        ports: Option<(u16, u16)>,
    ) -> Result<UniqueId> {
        if !self.listeners.values().any(|listener| listener.address.is_some() && listener.job.is_none()) {
            self.listen(io, addresses, ports);
        }
        let shared = self.listeners.values().filter(|listener| listener.job.is_none());
        let open: Vec<SocketAddr> = shared.filter_map(|listener| listener.address).collect();
        if open.is_empty() && self.name.is_none() {
            return Err(Error::new(
                Code::System,
                "there is neither a Unix socket nor a network address on which ranks could meet",
            ));
        }
        let id = UniqueId {
            job: random()?,
            key: random()?,
            unix_name: self.name,
            port: open.first().map_or(0, SocketAddr::port),
            addresses: open.iter().map(SocketAddr::ip).collect(),
            comm_id: false,
        };
        self.remember(io, id.job, id.key);
        Ok(id)
    }

    /// Opens the rendezvous of `NCCL_COMM_ID` on its own address. `Ok(false)` when the address is still in use.
    pub fn open_fixed(&mut self, io: &mut Io<'_>, id: &UniqueId, address: SocketAddr) -> Result<bool> {
        if self.ids.get(&id.job).is_some_and(|known| known.state != IdState::Used) {
            return Ok(false);
        }
        match socket::listen_tcp(address, true) {
            Ok((fd, address)) => {
                self.add_listener(io, fd, address, Some(id.job));
                self.ids.remove(&id.job);
                self.remember(io, id.job, id.key);
                Ok(true)
            }
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Ok(false),
            Err(error) => {
                Err(Error::system(format_args!("NCCL_COMM_ID: rank 0 cannot listen on {address}"), error))
            }
        }
    }

    fn remember(&mut self, io: &mut Io<'_>, job: [u8; 16], key: [u8; 32]) {
        self.ids.insert(job, Id { key, made: Instant::now(), state: IdState::Open });
        self.order.retain(|known| *known != job);
        self.order.push_back(job);
        if self.order.len() > MAX_IDS
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        self.age(io);
    }

    fn age(&mut self, io: &mut Io<'_>) {
        if !std::mem::replace(&mut self.ageing, true) {
            io.timer(AGE_TIMER, ID_AGE + Duration::from_secs(1));
        }
    }

    /// The id has made its communicator, or never will.
    pub fn used(&mut self, io: &mut Io<'_>, job: &[u8; 16]) {
        if let Some(id) = self.ids.get_mut(job) {
            id.state = IdState::Used;
        }
        self.close_listeners(io);
    }

    /// TCP listeners are kept only for ids that still wait for ranks.
    fn close_listeners(&mut self, io: &mut Io<'_>) {
        let ids = &self.ids;
        let waits = |job: &[u8; 16]| ids.get(job).is_some_and(|id| id.state != IdState::Used);
        let fixed = |job: &[u8; 16]| self.listeners.values().any(|listener| listener.job == Some(*job));
        let shared_needed = self.order.iter().any(|job| waits(job) && !fixed(job));
        let closed: Vec<u64> = self
            .listeners
            .iter()
            .filter(|(_, listener)| match listener.job {
                Some(job) => !waits(&job),
                None => listener.address.is_some() && !shared_needed,
            })
            .map(|(key, _)| *key)
            .collect();
        for key in closed {
            io.unwatch(key);
            self.listeners.remove(&key);
        }
    }

    /// Lets other ranks ask a rank of this process.
    pub fn serve(&mut self, served: Arc<Served>) {
        self.served.insert((served.session, served.rank), served);
    }

    pub fn unserve(&mut self, session: [u8; 16], rank: u32) {
        self.served.remove(&(session, rank));
    }

    /// Listens on all addresses, with one port for all of them.
    fn listen(&mut self, io: &mut Io<'_>, addresses: &[IpAddr], ports: Option<(u16, u16)>) {
        let ports: Vec<u16> = match ports {
            // Each try with port 0 gets another port of the system's choice.
            None => vec![0; 16],
            Some((first, last)) => (first..=last).collect(),
        };
        let mut best: Vec<(PrivateFd, SocketAddr)> = Vec::new();
        for port in ports {
            let mut opened: Vec<(PrivateFd, SocketAddr)> = Vec::new();
            let mut taken = false;
            for address in addresses {
                let port = opened.first().map_or(port, |(_, address)| address.port());
                match socket::listen_tcp(SocketAddr::new(*address, port), false) {
                    Ok(listener) => opened.push(listener),
                    Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => taken = true,
                    Err(error) => {
                        tracing::info!(target: "BOOTSTRAP", "cannot listen on {address}: {error}");
                    }
                }
            }
            if opened.len() > best.len() {
                best = opened;
            }
            if !taken {
                break;
            }
        }
        for (fd, address) in best {
            self.add_listener(io, fd, address, None);
        }
    }

    fn add_listener(&mut self, io: &mut Io<'_>, fd: PrivateFd, address: SocketAddr, job: Option<[u8; 16]>) {
        let key = self.new_key();
        let listener = Listener { socket: Arc::new(fd), address: Some(address), job };
        io.watch(key, &listener.socket, Interest::Read);
        self.listeners.insert(key, listener);
    }

    fn new_key(&mut self) -> u64 {
        self.next_key += 1;
        self.next_key
    }

    fn accept(&mut self, io: &mut Io<'_>, key: u64) {
        let Some(listener) = self.listeners.get(&key) else { return };
        let (socket, over_tcp) = (listener.socket.clone(), listener.address.is_some());
        // Bounded, so that a flood of connections leaves time for those that are in.
        for _ in 0..64 {
            match socket::accept(socket.as_fd()) {
                Ok(Some(fd)) => self.greet(io, fd, over_tcp),
                Ok(None) => return,
                Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS) => {
                    return self.shortage(io, key);
                }
                Err(error) => {
                    tracing::info!(target: "BOOTSTRAP", "accepting a connection: {error}");
                    return self.shortage(io, key);
                }
            }
        }
    }

    /// No descriptor is left for another connection: the limit is raised, if it can be; else the oldest stranger goes; without one,
    /// the listener rests.
    fn shortage(&mut self, io: &mut Io<'_>, key: u64) {
        if fd::raise_limit() {
            return;
        }
        match self.pending.keys().next().copied() {
            Some(oldest) => self.dismiss(io, oldest),
            None => {
                io.unwatch(key);
                io.timer(REOPEN_TIMER, Duration::from_millis(100));
            }
        }
    }

    fn greet(&mut self, io: &mut Io<'_>, fd: PrivateFd, over_tcp: bool) {
        let origin = if over_tcp {
            let Some(address) = socket::tcp_peer(&fd) else { return };
            Origin::Tcp(address)
        } else {
            match socket::unix_peer(fd.as_fd()) {
                Some((pid, uid)) if trusted(uid) => Origin::Unix { pid },
                other => {
                    tracing::info!(target: "BOOTSTRAP", "a connection of another user was refused ({other:?})");
                    return;
                }
            }
        };
        if self.pending.len() >= MAX_PENDING
            && let Some(oldest) = self.pending.keys().next().copied()
        {
            self.dismiss(io, oldest);
        }
        let key = self.new_key();
        let pending = Pending { socket: Arc::new(fd), origin, buffer: Vec::new(), stage: Stage::Hello };
        io.watch(key, &pending.socket, Interest::Read);
        io.timer(key, PATIENCE);
        self.pending.insert(key, pending);
    }

    fn dismiss(&mut self, io: &mut Io<'_>, key: u64) {
        io.unwatch(key);
        self.pending.remove(&key);
    }

    /// Reads no further than the handshake goes; `false` when the connection is to be closed.
    fn listen_to(&mut self, io: &mut Io<'_>, key: u64) -> bool {
        let Some(pending) = self.pending.get_mut(&key) else { return true };
        let wanted = match pending.stage {
            Stage::Hello => HELLO_BYTES,
            Stage::Proof { .. } => PROOF_BYTES,
        };
        let mut bytes = [0; HELLO_BYTES];
        let room = &mut bytes[..wanted - pending.buffer.len()];
        match fd::receive(pending.socket.as_fd(), room, None) {
            Ok(0) => return false,
            Ok(count) => pending.buffer.extend_from_slice(&bytes[..count]),
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
        if pending.buffer.len() < wanted {
            return true;
        }
        let buffer = std::mem::take(&mut pending.buffer);
        match std::mem::replace(&mut pending.stage, Stage::Hello) {
            Stage::Hello => self.challenge(key, &buffer),
            Stage::Proof { hello, challenge, key: secret } => {
                if !auth::check_client(&secret, &hello, &challenge, &buffer) {
                    tracing::info!(target: "BOOTSTRAP", "{} does not know the key", pending.origin);
                    return false;
                }
                io.unwatch(key);
                let pending = self.pending.remove(&key).expect("it was just read from");
                self.let_in(io, &hello, &challenge, &secret, pending);
                true
            }
        }
    }

    fn challenge(&mut self, key: u64, buffer: &[u8]) -> bool {
        let hello: [u8; HELLO_BYTES] = buffer.try_into().expect("read exactly that many bytes");
        let (Ok(parsed), Ok(nonce)) = (Hello::decode(&hello), random()) else {
            return false;
        };
        let secret = match parsed.purpose {
            _ if parsed.protocol != PROTOCOL => Err(Status::OtherProtocol),
            Purpose::Join => self.ids.get(&parsed.subject).map(|id| id.key).ok_or(Status::UnknownSubject),
            Purpose::Request => {
                let served = self.served.get(&(parsed.subject, parsed.target));
                served.map(|served| served.key).ok_or(Status::UnknownSubject)
            }
        };
        let status = secret.err().unwrap_or(Status::Go);
        let head = Challenge { protocol: PROTOCOL, status, library: library_version(), nonce, mac: [0; 32] };
        let mut challenge = head.encode();
        if let Ok(secret) = &secret {
            let proof = auth::server_proof(secret, &hello, &challenge[..CHALLENGE_HEAD_BYTES]);
            challenge[CHALLENGE_HEAD_BYTES..].copy_from_slice(&proof);
        }
        let Some(pending) = self.pending.get_mut(&key) else { return false };
        // A fresh connection has room for it.
        let sent =
            fd::send(pending.socket.as_fd(), &challenge, &[]).is_ok_and(|sent| sent == CHALLENGE_BYTES);
        match secret {
            Ok(secret) => {
                pending.stage = Stage::Proof { hello, challenge, key: secret };
                sent
            }
            Err(status) => {
                tracing::info!(target: "BOOTSTRAP", "{} was refused ({status:?})", pending.origin);
                false
            }
        }
    }

    fn let_in(
        &mut self,
        io: &mut Io<'_>,
        hello: &[u8; HELLO_BYTES],
        challenge: &[u8; CHALLENGE_BYTES],
        secret: &[u8; 32],
        pending: Pending,
    ) {
        let Pending { socket, origin, .. } = pending;
        let hello_bytes = hello;
        let hello = Hello::decode(hello).expect("it was decoded before");
        let (inward, outward) = auth::seals(secret, hello_bytes, challenge);
        if let Origin::Tcp(_) = origin {
            crate::sys::socket::tune_tcp(&socket);
        }
        let mut sender = Sender::new(socket.clone(), outward);
        let receiver = Receiver::new(socket, inward, MAX_PAYLOAD + 64);
        if hello.purpose == Purpose::Request {
            if let Some(served) = self.served.get(&(hello.subject, hello.target)) {
                io.add(Box::new(Incoming::new(served.clone(), hello.rank, sender, receiver)));
            }
            return;
        }
        let door = io.id();
        let Some(id) = self.ids.get_mut(&hello.subject) else { return };
        let session = match id.state {
            IdState::Used => {
                let message = "this unique id has been used already: one id makes one communicator, ask ncclGetUniqueId for \
                               another (or a rank was started twice)";
                return refuse(&mut sender, Code::InvalidUsage, message.to_owned());
            }
            IdState::Joining(session) => session,
            IdState::Open => {
                let Ok(name) = random() else { return };
                let session = io.add(Box::new(Session::new(hello.subject, name, door)));
                id.state = IdState::Joining(session);
                session
            }
        };
        io.tell(session, move |session: &mut Session, io| {
            session.admit(io, &hello, sender, receiver, origin)
        });
    }
}

impl Actor for Door {
    fn start(&mut self, io: &mut Io<'_>) {
        for (key, listener) in &self.listeners {
            io.watch(*key, &listener.socket, Interest::Read);
        }
    }

    fn ready(&mut self, io: &mut Io<'_>, key: u64, _ready: Ready) {
        if self.listeners.contains_key(&key) {
            self.accept(io, key);
        } else if !self.listen_to(io, key) {
            self.dismiss(io, key);
        }
    }

    fn timer(&mut self, io: &mut Io<'_>, key: u64) {
        match key {
            AGE_TIMER => {
                self.ids.retain(|_, id| id.state != IdState::Open || id.made.elapsed() < ID_AGE);
                let ids = &self.ids;
                self.order.retain(|job| ids.contains_key(job));
                self.close_listeners(io);
                self.ageing = false;
                if self.ids.values().any(|id| id.state == IdState::Open) {
                    self.age(io);
                }
            }
            REOPEN_TIMER => self.start(io),
            key => self.dismiss(io, key),
        }
    }
}
