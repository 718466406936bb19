//! The rendezvous of one communicator: the middle of the star.
//!
//! It lives on the service thread of the process that made the unique id. It collects the ranks, passes contributions of an
//! all-gather to all when the last is there, and tells the others at once when a rank fails, leaves or dies. A job whose ranks
//! contradict each other (one rank twice, different sizes, other versions) is broken for all of them, with one sentence.

use std::sync::Arc;
use std::time::Duration;

use crate::bootstrap::PeerEvent;
use crate::bootstrap::door::{Door, Origin};
use crate::bootstrap::link::{Closed, MAX_PAYLOAD, Receiver, Sender};
use crate::bootstrap::peer::{PeerInfo, process_token};
use crate::bootstrap::wire::{Hello, MAX_RANKS, Message, library_version, version_text};
use crate::error::Code;
use crate::process::service::{Actor, ActorId, Interest, Io, Ready};
use crate::sys::fd::shared_process_end;
use crate::sys::fork::PrivateFd;

/// A broken job answers late ranks with its reason for so long.
const BROKEN: Duration = Duration::from_secs(600);

pub struct Session {
    job: [u8; 16],
    name: [u8; 16],
    door: ActorId,
    phase: Phase,
    /// By rank; empty until the first rank says how many there are.
    members: Vec<Option<Member>>,
    joined: usize,
    round: u64,
    contributions: Vec<Option<Vec<u8>>>,
    contributed: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Joining,
    Running,
    Broken { code: Code, message: String },
}

struct Member {
    sender: Sender,
    receiver: Receiver,
    origin: Origin,
    info: Option<PeerInfo>,
    /// It has failed or left, and the others know.
    departed: bool,
    /// Readable when the process ends, even if a child of it keeps the connection open.
    end: Option<Arc<PrivateFd>>,
}

impl Member {
    fn describe(&self) -> String {
        self.info.as_ref().map_or_else(|| self.origin.to_string(), PeerInfo::to_string)
    }
}

/// Keys of a member's two descriptors.
fn connection_key(rank: usize) -> u64 {
    rank as u64 * 2
}

fn end_key(rank: usize) -> u64 {
    rank as u64 * 2 + 1
}

impl Session {
    pub fn new(job: [u8; 16], name: [u8; 16], door: ActorId) -> Session {
        Session {
            job,
            name,
            door,
            phase: Phase::Joining,
            members: Vec::new(),
            joined: 0,
            round: 0,
            contributions: Vec::new(),
            contributed: 0,
        }
    }

    /// Takes in a connection that has proved to know the key.
    pub fn admit(
        &mut self,
        io: &mut Io<'_>,
        hello: &Hello,
        mut sender: Sender,
        receiver: Receiver,
        origin: Origin,
    ) {
        if let Phase::Broken { code, message } = &self.phase {
            return refuse(&mut sender, *code, message.clone());
        }
        if let Some(contradiction) = self.contradiction(hello, &origin) {
            tracing::warn!(target: "BOOTSTRAP", "{contradiction}");
            refuse(&mut sender, Code::InvalidUsage, contradiction.clone());
            return self.break_job(io, Code::InvalidUsage, contradiction);
        }
        if self.members.is_empty() {
            self.members.resize_with(hello.nranks as usize, || None);
            self.contributions.resize_with(hello.nranks as usize, || None);
        }
        tracing::info!(target: "BOOTSTRAP", "rank {} of {} has arrived ({origin})", hello.rank, hello.nranks);
        let rank = hello.rank as usize;
        let end = origin.pid().and_then(shared_process_end);
        if let Some(end) = &end {
            io.watch(end_key(rank), end, Interest::Read);
        }
        io.watch(connection_key(rank), receiver.socket(), Interest::Read);
        self.members[rank] = Some(Member { sender, receiver, origin, info: None, departed: false, end });
        self.send(io, rank, &Message::Welcome { session: self.name });
    }

    /// What is wrong with one more rank, as a sentence for all.
    fn contradiction(&self, hello: &Hello, origin: &Origin) -> Option<String> {
        let Hello { rank, nranks, library, .. } = *hello;
        if library != library_version() {
            return Some(format!(
                "rank {rank} ({origin}) runs version {} of this library, the rendezvous runs {}: all ranks must load the same",
                version_text(library),
                version_text(library_version())
            ));
        }
        if !(2..=MAX_RANKS).contains(&nranks) || rank >= nranks {
            return Some(format!("rank {rank} of {nranks} ({origin}) makes no sense"));
        }
        let known = self.members.len();
        if known != 0 && known != nranks as usize {
            return Some(format!(
                "rank {rank} ({origin}) was told that there are {nranks} ranks, others were told {known}: all must pass the same \
                 number to ncclCommInitRank"
            ));
        }
        let first = self.members.get(rank as usize)?.as_ref()?;
        Some(format!(
            "rank {rank} was given twice, to {} and to {origin}: every rank must have its own number",
            first.describe()
        ))
    }

    fn handle(&mut self, io: &mut Io<'_>, rank: usize, message: Message) -> Result<(), Closed> {
        const STRANGE: Result<(), Closed> = Err(Closed::Violation("a message came at the wrong time"));
        match message {
            Message::Join(info) => {
                let Some(member) = &mut self.members[rank] else { return Ok(()) };
                if member.info.is_some() {
                    return STRANGE;
                }
                member.info = Some(info);
                self.joined += 1;
                if self.joined == self.members.len() && self.phase == Phase::Joining {
                    // The door first, so that whoever makes the next communicator at a fixed address finds it free.
                    let (job, session) = (self.job, io.id());
                    io.tell(self.door, move |door: &mut Door, io| {
                        door.used(io, &job);
                        io.tell(session, |session: &mut Session, io| session.begin(io));
                    });
                }
            }
            Message::Gather { round, payload } => {
                if self.phase != Phase::Running || payload.len() > MAX_PAYLOAD {
                    return STRANGE;
                }
                if self.members.iter().flatten().any(|member| member.departed) {
                    // Everybody has been told that this cannot complete.
                    return Ok(());
                }
                if round != self.round || self.contributions[rank].is_some() {
                    return STRANGE;
                }
                self.contributions[rank] = Some(payload);
                self.contributed += 1;
                if self.contributed == self.members.len() {
                    let payloads = self.contributions.iter_mut().filter_map(Option::take).collect();
                    self.contributed = 0;
                    self.round += 1;
                    self.send_to_all(io, &Message::Gathered { round, payloads }, None);
                }
            }
            Message::Fail { message, .. } => {
                let event = PeerEvent::Failed { rank: rank as u32, message };
                self.depart(io, rank, event);
                self.send(io, rank, &Message::Done);
            }
            Message::Leave => {
                let event = match self.phase {
                    Phase::Joining => {
                        PeerEvent::Failed { rank: rank as u32, message: "it gave up joining".to_owned() }
                    }
                    _ => PeerEvent::Left { rank: rank as u32 },
                };
                self.depart(io, rank, event);
                self.send(io, rank, &Message::Done);
            }
            Message::Who => {
                let missing =
                    (0..self.members.len() as u32).filter(|rank| self.is_waited_for(*rank as usize));
                let missing = Message::Missing(missing.collect());
                self.send(io, rank, &missing);
            }
            Message::Question { peer, ticket, payload } => {
                let from = rank as u32;
                if !self.pass_on(io, peer, &Message::Question { peer: from, ticket, payload }) {
                    let result = Err((Code::Remote, format!("rank {peer} is gone")));
                    self.send(io, rank, &Message::Reply { peer, ticket, result });
                }
            }
            Message::Reply { peer, ticket, result } => {
                self.pass_on(io, peer, &Message::Reply { peer: rank as u32, ticket, result });
            }
            _ => return STRANGE,
        }
        Ok(())
    }

    /// `false` when the rank takes part no more. A question whose rank ends before it answers fails by the news of that end.
    fn pass_on(&mut self, io: &mut Io<'_>, to: u32, message: &Message) -> bool {
        let there = self.phase == Phase::Running
            && self.members.get(to as usize).and_then(Option::as_ref).is_some_and(|member| !member.departed);
        if there {
            self.send(io, to as usize, message);
        }
        there
    }

    fn is_waited_for(&self, rank: usize) -> bool {
        match self.phase {
            Phase::Running => self.contributions[rank].is_none(),
            _ => self.members[rank].as_ref().is_none_or(|member| member.info.is_none()),
        }
    }

    /// All have joined: tells everyone who is there.
    fn begin(&mut self, io: &mut Io<'_>) {
        if self.phase != Phase::Joining || self.joined != self.members.len() {
            return;
        }
        let peers: Vec<PeerInfo> =
            self.members.iter().flatten().filter_map(|member| member.info.clone()).collect();
        if peers.len() != self.members.len() {
            return;
        }
        self.phase = Phase::Running;
        tracing::info!(target: "BOOTSTRAP", "all {} ranks have joined", peers.len());
        self.send_to_all(io, &Message::Roster { hub: process_token().unwrap_or_default(), peers }, None);
    }

    /// No communicator will come of this job: tells all ranks why.
    fn break_job(&mut self, io: &mut Io<'_>, code: Code, message: String) {
        self.send_to_all(io, &Message::Refused { code, message: message.clone() }, None);
        self.become_broken(io, code, message);
    }

    fn become_broken(&mut self, io: &mut Io<'_>, code: Code, message: String) {
        if self.phase == Phase::Joining {
            self.phase = Phase::Broken { code, message };
            io.timer(0, BROKEN);
        }
    }

    /// A rank no longer takes part: the others hear of it now, once.
    fn depart(&mut self, io: &mut Io<'_>, rank: usize, event: PeerEvent) {
        let Some(member) = &mut self.members[rank] else { return };
        if std::mem::replace(&mut member.departed, true) {
            return;
        }
        tracing::info!(target: "BOOTSTRAP", "{event}");
        self.send_to_all(io, &Message::Event(event.clone()), Some(rank));
        self.become_broken(io, Code::Remote, event.to_string());
    }

    /// A connection has come to its end.
    fn lost(&mut self, io: &mut Io<'_>, rank: usize, closed: &Closed) {
        let Some(member) = &self.members[rank] else { return };
        let how = format!("{closed} ({})", member.describe());
        self.depart(io, rank, PeerEvent::Died { rank: rank as u32, how });
        self.forget(io, rank);
    }

    fn forget(&mut self, io: &mut Io<'_>, rank: usize) {
        io.unwatch(connection_key(rank));
        io.unwatch(end_key(rank));
        if let Some(member) = self.members[rank].take() {
            // A rank that died while joining keeps its place in the sentence about it, not in the count.
            self.joined -= usize::from(member.info.is_some() && self.phase != Phase::Running);
            drop(member.end);
        }
        let over = self.members.iter().all(Option::is_none);
        if over && self.phase == Phase::Running {
            io.stop();
        }
    }

    fn send(&mut self, io: &mut Io<'_>, rank: usize, message: &Message) {
        self.send_encoded(io, rank, &message.encode().into());
    }

    fn send_to_all(&mut self, io: &mut Io<'_>, message: &Message, but: Option<usize>) {
        let encoded: Arc<[u8]> = message.encode().into();
        for rank in (0..self.members.len()).filter(|rank| Some(*rank) != but) {
            self.send_encoded(io, rank, &encoded);
        }
    }

    fn send_encoded(&mut self, io: &mut Io<'_>, rank: usize, encoded: &Arc<[u8]>) {
        if let Some(member) = &mut self.members[rank] {
            member.sender.push_encoded(encoded.clone(), Vec::new());
            self.flush(io, rank);
        }
    }

    /// A connection that cannot be written to is found dead when it is read next.
    fn flush(&mut self, io: &mut Io<'_>, rank: usize) {
        if let Some(member) = &mut self.members[rank] {
            let interest = match member.sender.flush() {
                Ok(false) => Interest::ReadWrite,
                _ => Interest::Read,
            };
            io.watch(connection_key(rank), member.receiver.socket(), interest);
        }
    }

    fn read(&mut self, io: &mut Io<'_>, rank: usize) -> Result<(), Closed> {
        let Some(member) = &mut self.members[rank] else { return Ok(()) };
        let end = member.receiver.fill();
        while let Some(member) = &mut self.members[rank] {
            match member.receiver.next()? {
                Some(message) => self.handle(io, rank, message)?,
                None => break,
            }
        }
        end
    }
}

/// The answer to a connection that is not taken in.
pub fn refuse(sender: &mut Sender, code: Code, message: String) {
    sender.push(&Message::Refused { code, message });
    // A fresh connection has room for it.
    let _ = sender.flush();
}

impl Actor for Session {
    fn ready(&mut self, io: &mut Io<'_>, key: u64, ready: Ready) {
        let rank = (key / 2) as usize;
        if key == end_key(rank) {
            // What it said before it ended still counts.
            let _ = self.read(io, rank);
            return self.lost(io, rank, &Closed::Ended("its process ended".to_owned()));
        }
        if ready.writable {
            self.flush(io, rank);
        }
        if ready.readable
            && let Err(closed) = self.read(io, rank)
        {
            self.lost(io, rank, &closed);
        }
    }

    fn timer(&mut self, io: &mut Io<'_>, _key: u64) {
        let job = self.job;
        io.tell(self.door, move |door: &mut Door, io| door.used(io, &job));
        io.stop();
    }
}
