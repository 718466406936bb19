//! How ranks find each other and exchange what they need to set paths up, out of band.
//!
//! A unique id names a rendezvous in the process that made it. All ranks connect to it (same host: Unix socket; others: TCP), both
//! ends prove that they know the id's key, and the star of connections stays for the life of the communicator: it carries
//! all-gathers, and its hang-ups are how the end of a rank is noticed. Ranks of one host also ask each other directly, for
//! descriptors of memory. Every wait has a deadline and heeds the abort flag; a failure of one rank is told to all others.
//! `docs/bootstrap.md` describes the protocol.

mod auth;
mod comm_id;
mod dial;
mod door;
mod id;
mod link;
mod member;
mod peer;
mod request;
mod session;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::error::{Code, Error, Result};
use crate::param;
use crate::process::{generation, service};
use crate::sys::fork::PrivateFd;
use crate::sys::{Deadline, interfaces};

use dial::{Call, Connection, Next, Places, check_abort, dial};
use door::{Door, door, door_name};
use id::UniqueId;
use member::Member;
use request::Served;
use wire::{MAX_RANKS, Message, Purpose};

pub use peer::PeerInfo;
pub use request::Handler;

/// What happens to other ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerEvent {
    /// Its process ended, or its host can no longer be reached.
    Died { rank: u32, how: String },
    /// It has ended its part in good order.
    Left { rank: u32 },
    /// It has told of a failure.
    Failed { rank: u32, message: String },
    /// The process that held the rendezvous has ended, and no rank that was still taking part lived in it. What works goes on,
    /// but nothing that needs all ranks can be set up, and no rank's end is noticed.
    RendezvousLost { how: String },
}

/// A new unique id, whose rendezvous waits in this process. Never touches CUDA. With `NCCL_COMM_ID` the same id on every rank, whose
/// rendezvous rank 0 opens when it joins.
pub fn unique_id() -> Result<[u8; 128]> {
    if let Some(address) = param::text(param::COMM_ID) {
        return Ok(comm_id::unique_id(&address)?.encode());
    }
    let ports = match param::text(param::PORT_RANGE) {
        Some(text) => Some(port_range(&text)?),
        None => None,
    };
    let choice = interfaces::choose()?;
    let addresses: Vec<_> = choice.used.iter().map(|interface| interface.address).collect();
    let id = service()?.ask(door()?, move |door: &mut Door, io| door.new_id(io, &addresses, ports))??;
    tracing::info!(target: "BOOTSTRAP", "new unique id; other hosts may reach it at {:?}", id.candidates());
    Ok(id.encode())
}

/// Nobody will meet at this id: what waits for its ranks in this process ends.
pub fn forget_id(id: &[u8; 128]) -> Result<()> {
    end_waiting(&UniqueId::decode(id)?);
    Ok(())
}

/// Ends what waits for the ranks of an id that was made here. Elsewhere there is nothing to end.
fn end_waiting(id: &UniqueId) {
    let Some(service) = service::started() else { return };
    let job = id.job;
    if let Some(door) = service.existing("door") {
        service.tell(door, move |door: &mut Door, io| door.used(io, &job));
    }
}

fn port_range(text: &str) -> Result<(u16, u16)> {
    let parsed = text.split_once('-').and_then(|(first, last)| {
        let range = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (range.0 != 0 && range.0 <= range.1).then_some(range)
    });
    parsed.ok_or_else(|| {
        Error::usage(format!(
            "OXCCL_PORT_RANGE={text} must be two ports, first-last, for example 40000-40100"
        ))
    })
}

/// One rank's membership of one communicator.
pub struct Bootstrap {
    rank: u32,
    peers: Vec<PeerInfo>,
    generation: u64,
    abort: Arc<AtomicBool>,
    round: AtomicU64,
    /// All-gathers happen one after the other.
    gathering: Mutex<()>,
    served: Arc<Served>,
    /// `None` for a communicator of one rank, and after leaving.
    member: Option<Member>,
    /// The handler of a communicator of one rank.
    alone: Mutex<Option<Handler>>,
}

impl Bootstrap {
    /// Joins the communicator of `id` as `rank` of `nranks`: returns when all ranks are there. Gives up when `abort` is set or the
    /// deadline is over, naming the ranks that are missing.
    pub fn join(
        id: &[u8; 128],
        rank: u32,
        nranks: u32,
        abort: Arc<AtomicBool>,
        deadline: Deadline,
    ) -> Result<Bootstrap> {
        if nranks == 0 || nranks > MAX_RANKS {
            return Err(Error::argument(format!(
                "the number of ranks is {nranks}, it must be from 1 to {MAX_RANKS}"
            )));
        }
        if rank >= nranks {
            return Err(Error::argument(format!("the rank is {rank}, it must be from 0 to {}", nranks - 1)));
        }
        check_abort(&abort)?;
        let parsed = UniqueId::decode(id)?;
        if nranks == 1 {
            return Bootstrap::alone(&parsed, abort);
        }
        let door = door()?;
        let name = door_name()?;
        let info = PeerInfo::of_this_process(name)?;
        let places = match parsed.comm_id {
            true => comm_id::places(&parsed, rank, door, name, &abort, deadline)?,
            // Who may not listen on a Unix socket does not connect to one either.
            false => {
                Places { unix_name: name.and(parsed.unix_name), tcp: parsed.candidates(), patient: false }
            }
        };
        let call = Call {
            purpose: Purpose::Join,
            subject: parsed.job,
            key: &parsed.key,
            rank,
            nranks,
            target: 0,
            abort: &abort,
        };
        let mut registered = None;
        let joined = member::join(&call, &places, info, deadline, |session| {
            let key = auth::derive(&parsed.key, "request", &[&session]);
            let served = registered.insert(Arc::new(Served::new(session, rank, key))).clone();
            let entry = served.clone();
            service()?.tell(door, move |door: &mut Door, _| door.serve(entry));
            Ok(served)
        });
        let joined = joined.inspect_err(|_| {
            if let Some(served) = &registered {
                unserve(served);
            }
        })?;
        Ok(Bootstrap {
            rank,
            peers: joined.peers,
            generation: generation(),
            abort,
            round: AtomicU64::new(0),
            gathering: Mutex::new(()),
            served: joined.served,
            member: Some(joined.member),
            alone: Mutex::new(None),
        })
    }

    /// A communicator of one rank needs no sockets and no service.
    fn alone(id: &UniqueId, abort: Arc<AtomicBool>) -> Result<Bootstrap> {
        end_waiting(id);
        Ok(Bootstrap {
            rank: 0,
            peers: vec![PeerInfo::of_this_process(None)?],
            generation: generation(),
            abort,
            round: AtomicU64::new(0),
            gathering: Mutex::new(()),
            served: Arc::new(Served::new([0; 16], 0, [0; 32])),
            member: None,
            alone: Mutex::new(None),
        })
    }

    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// What tells this communicator from all others, the same on all its ranks.
    pub fn session(&self) -> [u8; 16] {
        self.served.session
    }

    /// All ranks, this one included, in order.
    pub fn peers(&self) -> &[PeerInfo] {
        &self.peers
    }

    pub fn same_process(&self, rank: u32) -> bool {
        self.peer(rank).is_ok_and(|peer| peer.same_process(&self.peers[self.rank as usize]))
    }

    pub fn same_host(&self, rank: u32) -> bool {
        self.peer(rank).is_ok_and(|peer| peer.same_host(&self.peers[self.rank as usize]))
    }

    /// Every rank's payload, in rank order. All ranks must call it equally often.
    pub fn all_gather(&self, payload: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        self.check()?;
        if payload.len() > link::MAX_PAYLOAD {
            return Err(Error::internal(format!("{} bytes are too many for an exchange", payload.len())));
        }
        let Some(member) = &self.member else {
            return Ok(vec![payload.to_vec()]);
        };
        let _gathering = self.gathering.lock();
        // Relaxed: `gathering` orders the counter.
        let round = self.round.fetch_add(1, Ordering::Relaxed);
        let known = member.failure().is_some();
        let result = member.gather(round, payload.to_vec(), deadline, &self.abort);
        if let (Err(error), false) = (&result, known) {
            // Ranks that are out of step stay so: whoever still waits must not.
            if member.failure().is_none() {
                member.fail(error);
            }
        }
        result
    }

    /// Tells the other ranks of a failure of this one; they know when it returns.
    pub fn fail(&self, error: &Error) {
        if let (Ok(()), Some(member)) = (self.check(), &self.member) {
            member.fail(error);
        }
    }

    /// From now on `handler` answers what other ranks ask, on worker threads. What was asked before waits until now.
    pub fn serve(&self, handler: Handler) {
        if self.member.is_some() {
            self.served.set_handler(handler);
        } else {
            *self.alone.lock() = Some(handler);
        }
    }

    /// Asks another rank; it answers as [`Bootstrap::serve`] says. A rank of this host may send descriptors with its answer. Ranks
    /// that share no Unix socket (on other hosts, in other network namespaces) exchange bytes by way of the rendezvous.
    pub fn request(
        &self,
        peer: u32,
        payload: &[u8],
        deadline: Deadline,
    ) -> Result<(Vec<u8>, Vec<PrivateFd>)> {
        self.check()?;
        let info = self.peer(peer)?;
        let Some(member) = &self.member else {
            let handler = self.alone.lock().clone();
            let handler =
                handler.ok_or_else(|| Error::internal("rank 0 asks itself, but does not answer"))?;
            return handler(0, payload);
        };
        if payload.len() > link::MAX_PAYLOAD {
            return Err(Error::internal(format!("{} bytes are too many for a request", payload.len())));
        }
        let own = &self.peers[self.rank as usize];
        let unix = info.unix_name != [0; 16] && own.unix_name != [0; 16];
        let near = unix && (info.same_process(own) || info.boot_id == own.boot_id);
        let dialled = if near { self.dial(peer, info, deadline) } else { Ok(None) };
        let answer = dialled.and_then(|connection| match connection {
            Some(connection) => self.ask(connection, payload, deadline),
            None => Ok((member.ask(peer, payload.to_vec(), deadline, &self.abort)?, Vec::new())),
        });
        answer.map_err(|error| error.context(format_args!("rank {} asks rank {peer} ({info})", self.rank)))
    }

    /// A connection to the rank's process; `None` when there is no way but the rendezvous.
    fn dial(&self, peer: u32, info: &PeerInfo, deadline: Deadline) -> Result<Option<Connection>> {
        let call = Call {
            purpose: Purpose::Request,
            subject: self.served.session,
            key: &self.served.key,
            rank: self.rank,
            nranks: self.peers.len() as u32,
            target: peer,
            abort: &self.abort,
        };
        let places = Places { unix_name: Some(info.unix_name), tcp: Vec::new(), patient: false };
        match dial(&call, &places, deadline) {
            Ok(connection) => Ok(Some(connection)),
            // Not there, as seen from here: the rendezvous knows whether it is there at all.
            Err(error) if error.code() == Code::System => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn ask(
        &self,
        mut connection: Connection,
        payload: &[u8],
        deadline: Deadline,
    ) -> Result<(Vec<u8>, Vec<PrivateFd>)> {
        let abort = &self.abort;
        match connection.next(deadline, abort) {
            Next::Message(Message::Welcome { .. }) => {}
            _ => return Err(Error::internal("the asked rank does not say welcome")),
        }
        connection.receiver.accept_descriptors();
        connection.send(&Message::Ask(payload.to_vec()), deadline, abort)?;
        match connection.next(deadline, abort) {
            Next::Message(Message::Answer { descriptors, result }) => {
                let payload = result.map_err(|(code, message)| Error::new(code, message))?;
                let passed = connection.receiver.take_descriptors();
                if passed.len() != descriptors as usize {
                    return Err(Error::new(
                        Code::System,
                        format!(
                            "{descriptors} descriptors were sent, {} arrived: the limit of open files (ulimit -n) may be reached",
                            passed.len()
                        ),
                    ));
                }
                Ok((payload, passed))
            }
            Next::Message(_) => Err(Error::internal("the answer is something else")),
            Next::Closed(closed) => Err(Error::remote(format!("no answer: {closed}"))),
            Next::Late => Err(Error::timeout("no answer in time")),
            Next::Aborted => {
                check_abort(abort).and_then(|()| Err(Error::internal("an abort was taken back")))
            }
        }
    }

    /// Calls `on_event` on the service thread with what happens to other ranks, what has happened already included. It must not block.
    pub fn watch(&self, on_event: Arc<dyn Fn(PeerEvent) + Send + Sync>) {
        if let (Ok(()), Some(member)) = (self.check(), &self.member) {
            member.watch(on_event);
        }
    }

    /// Why nothing that needs all ranks can succeed any more; `None` while all is well.
    pub fn failure(&self) -> Option<Error> {
        self.member.as_ref().and_then(Member::failure)
    }

    /// Ends the membership in good order: the others see `Left` and know when this returns. Waits at most a second for that.
    pub fn leave(mut self) {
        self.end(true);
    }

    /// As [`Bootstrap::leave`], without waiting: for aborts.
    pub fn leave_at_once(mut self) {
        self.end(false);
    }

    fn end(&mut self, wait: bool) {
        let Some(member) = self.member.take() else {
            *self.alone.lock() = None;
            return;
        };
        if self.generation != generation() {
            // The parent's connection: not ours to speak on.
            return;
        }
        unserve(&self.served);
        if wait { member.leave() } else { member.leave_at_once() }
    }

    fn peer(&self, rank: u32) -> Result<&PeerInfo> {
        self.peers.get(rank as usize).ok_or_else(|| Error::argument(format!("there is no rank {rank}")))
    }

    fn check(&self) -> Result<()> {
        match self.generation == generation() {
            true => check_abort(&self.abort),
            false => Err(Error::usage(
                "this communicator was made before fork(): it belongs to the parent, the child must make its own",
            )),
        }
    }
}

impl Drop for Bootstrap {
    fn drop(&mut self) {
        self.end(false);
    }
}

impl std::fmt::Debug for Bootstrap {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = formatter.debug_struct("Bootstrap");
        text.field("rank", &self.rank).field("nranks", &self.peers.len()).finish_non_exhaustive()
    }
}

fn unserve(served: &Arc<Served>) {
    served.close();
    let (session, rank) = (served.session, served.rank);
    if let (Ok(service), Ok(door)) = (service(), door()) {
        service.tell(door, move |door: &mut Door, _| door.unserve(session, rank));
    }
}
