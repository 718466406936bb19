//! One rank's end of the star: how it joins, and what it hears afterwards.
//!
//! Joining happens on the caller's thread. From then on the service thread reads the connection, so that news of a peer's end
//! arrives whatever the program does; waits look at the state that the service thread leaves. Writes are made by whoever has
//! something to say and never block: what the socket does not take at once is sent by the service thread.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::bootstrap::PeerEvent;
use crate::bootstrap::dial::{Call, Connection, Next, Places, SLICE, check_abort, dial};
use crate::bootstrap::link::{Closed, Receiver, Sender};
use crate::bootstrap::peer::{PeerInfo, process_token};
use crate::bootstrap::request::{Outcome, Question, Served};
use crate::bootstrap::wire::Message;
use crate::error::{Code, Error, Result};
use crate::process::service;
use crate::process::service::{Actor, ActorId, Interest, Io, Ready};
use crate::sys::Deadline;
use crate::sys::fd::shared_process_end;
use crate::sys::fork::PrivateFd;

/// How long a rank that gives up waits for a last word of the rendezvous.
const LAST_WORD: Duration = Duration::from_secs(1);

type Watcher = Arc<dyn Fn(PeerEvent) + Send + Sync>;

/// What a rank knows when all have joined.
pub struct Joined {
    pub peers: Vec<PeerInfo>,
    pub served: Arc<Served>,
    pub member: Member,
}

/// The connection to the rendezvous.
pub struct Member {
    actor: ActorId,
    shared: Arc<Shared>,
    tickets: AtomicU64,
}

struct Shared {
    sender: Mutex<Sender>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    gathered: Option<(u64, Vec<Vec<u8>>)>,
    missing: Option<Vec<u32>>,
    /// Answers that came by way of the rendezvous, by ticket; an entry is made by who asks.
    replies: BTreeMap<u64, Option<Result<Vec<u8>>>>,
    done: bool,
    /// Why nothing that needs all ranks can succeed any more.
    failure: Option<Error>,
    departed: BTreeSet<u32>,
    leaving: bool,
    lost: bool,
    news: Vec<PeerEvent>,
    watcher: Option<Watcher>,
}

/// Joins. `register` is called with the session before any other rank can know that this one is there.
pub fn join(
    call: &Call<'_>,
    places: &Places,
    info: PeerInfo,
    deadline: Deadline,
    register: impl FnOnce([u8; 16]) -> Result<Arc<Served>>,
) -> Result<Joined> {
    let mut connection = dial(call, places, deadline)?;
    let outcome = converse(call, &mut connection, info, deadline, register);
    let Roster { hub, peers, served } = match outcome {
        Ok(roster) => roster,
        Err(error) => {
            say_goodbye(&mut connection, &error);
            return Err(error);
        }
    };
    let Connection { sender, receiver, pid, .. } = connection;
    let shared = Arc::new(Shared {
        sender: Mutex::new(sender),
        state: Mutex::new(State::default()),
        changed: Condvar::new(),
    });
    let own = process_token()?;
    let in_hub = (0..).zip(&peers).filter(|(_, peer)| peer.process == hub).map(|(rank, _)| rank).collect();
    let reader = Reader {
        receiver,
        shared: shared.clone(),
        served: served.clone(),
        in_hub,
        end: pid.filter(|_| hub != own).and_then(shared_process_end),
        over: false,
    };
    let actor = service()?.add(Box::new(reader));
    let tickets = AtomicU64::new(0);
    Ok(Joined { peers, served, member: Member { actor, shared, tickets } })
}

struct Roster {
    hub: [u8; 16],
    peers: Vec<PeerInfo>,
    served: Arc<Served>,
}

/// From the welcome to the roster.
fn converse(
    call: &Call<'_>,
    connection: &mut Connection,
    info: PeerInfo,
    deadline: Deadline,
    register: impl FnOnce([u8; 16]) -> Result<Arc<Served>>,
) -> Result<Roster> {
    let mut step = Some((register, info));
    let mut registered = None;
    loop {
        match connection.next(deadline, call.abort) {
            Next::Message(Message::Welcome { session }) => {
                let Some((register, info)) = step.take() else {
                    return Err(Error::internal("the rendezvous welcomed this rank twice"));
                };
                registered = Some(register(session)?);
                connection.send(&Message::Join(info), deadline, call.abort)?;
            }
            Next::Message(Message::Roster { hub, peers }) => {
                if peers.len() != call.nranks as usize {
                    return Err(Error::internal("the rendezvous counts other ranks than it was told"));
                }
                let served =
                    registered.ok_or_else(|| Error::internal("the roster came before the welcome"))?;
                return Ok(Roster { hub, peers, served });
            }
            Next::Message(Message::Refused { code, message }) => return Err(Error::new(code, message)),
            Next::Message(Message::Event(event)) => return Err(event.to_error()),
            Next::Message(_) => return Err(Error::internal("the rendezvous speaks out of turn")),
            Next::Closed(closed) => {
                return Err(Error::remote(format!("the rendezvous was lost while joining: {closed}")));
            }
            Next::Late => {
                let missing = ask_who_is_missing(connection, call.abort);
                return Err(Error::timeout(format!(
                    "waited in vain for {} to join",
                    missing.map_or_else(|| "other ranks".to_owned(), |missing| ranks(&missing))
                )));
            }
            Next::Aborted => {
                check_abort(call.abort)?;
                return Err(Error::internal("an abort was taken back"));
            }
        }
    }
}

fn ask_who_is_missing(connection: &mut Connection, abort: &AtomicBool) -> Option<Vec<u32>> {
    let deadline = Deadline::after(LAST_WORD);
    connection.send(&Message::Who, deadline, abort).ok()?;
    loop {
        match connection.next(deadline, abort) {
            Next::Message(Message::Missing(missing)) => return Some(missing),
            Next::Message(_) => {}
            _ => return None,
        }
    }
}

/// Tells the others why this rank will not be there. The rendezvous confirms when they know.
fn say_goodbye(connection: &mut Connection, error: &Error) {
    let fail = Message::Fail { code: error.code(), message: error.message().to_owned() };
    let (deadline, no_abort) = (Deadline::after(LAST_WORD), AtomicBool::new(false));
    if connection.send(&fail, deadline, &no_abort).is_err() {
        return;
    }
    loop {
        match connection.next(deadline, &no_abort) {
            // Refused: the rendezvous has no place for this rank, so there is nobody to tell.
            Next::Message(Message::Done | Message::Refused { .. }) => return,
            Next::Message(_) => {}
            _ => return,
        }
    }
}

/// "rank 1", "ranks 1, 2 and 7 more".
pub fn ranks(list: &[u32]) -> String {
    const SHOWN: usize = 16;
    let shown: Vec<String> = list.iter().take(SHOWN).map(u32::to_string).collect();
    let more = match list.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{} {}{more}", if list.len() == 1 { "rank" } else { "ranks" }, shown.join(", "))
}

impl Member {
    pub fn gather(
        &self,
        round: u64,
        payload: Vec<u8>,
        deadline: Deadline,
        abort: &AtomicBool,
    ) -> Result<Vec<Vec<u8>>> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        self.send(&Message::Gather { round, payload });
        let outcome = self.wait(deadline, abort, |state| match &mut state.gathered {
            Some((done, _)) if *done == round => Some(Ok(state.gathered.take()?.1)),
            _ => state.failure.clone().map(Err),
        })?;
        if let Some(result) = outcome {
            return result;
        }
        let missing = self.who_is_missing(abort);
        let waited = missing.map_or_else(|| "other ranks".to_owned(), |missing| ranks(&missing));
        Err(Error::timeout(format!("waited in vain for {waited} in an exchange of set-up data")))
    }

    fn who_is_missing(&self, abort: &AtomicBool) -> Option<Vec<u32>> {
        self.shared.state.lock().missing = None;
        self.send(&Message::Who);
        self.wait(Deadline::after(LAST_WORD), abort, |state| state.missing.take()).ok()?
    }

    /// Asks a rank by way of the rendezvous, which passes on bytes but no descriptors.
    pub fn ask(
        &self,
        peer: u32,
        payload: Vec<u8>,
        deadline: Deadline,
        abort: &AtomicBool,
    ) -> Result<Vec<u8>> {
        // Relaxed: only uniqueness matters.
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        self.shared.state.lock().replies.insert(ticket, None);
        self.send(&Message::Question { peer, ticket, payload });
        let outcome = self.wait(deadline, abort, |state| {
            if let Some(reply) = state.replies.get_mut(&ticket).and_then(Option::take) {
                return Some(reply);
            }
            let gone = state.lost || state.departed.contains(&peer);
            gone.then(|| Err(Error::remote(format!("rank {peer} is gone, or the rendezvous between us"))))
        });
        self.shared.state.lock().replies.remove(&ticket);
        outcome?.unwrap_or_else(|| Err(Error::timeout("no answer in time")))
    }

    /// Tells the others that this rank has failed, and waits until they know.
    pub fn fail(&self, error: &Error) {
        {
            let mut state = self.shared.state.lock();
            if state.failure.is_none() {
                state.failure = Some(error.clone());
            }
        }
        self.last_message(&Message::Fail { code: error.code(), message: error.message().to_owned() });
    }

    /// Tells the others that this rank will not be there any more, and waits until they know.
    pub fn leave(&self) {
        self.shared.state.lock().leaving = true;
        self.last_message(&Message::Leave);
        self.close();
    }

    /// Leaves without waiting, for ends at which waiting is not possible.
    pub fn leave_at_once(&self) {
        self.shared.state.lock().leaving = true;
        self.send(&Message::Leave);
        self.close();
    }

    fn last_message(&self, message: &Message) {
        self.shared.state.lock().done = false;
        self.send(message);
        let never = AtomicBool::new(false);
        let _ =
            self.wait(Deadline::after(LAST_WORD), &never, |state| (state.done || state.lost).then_some(()));
    }

    fn close(&self) {
        if let Ok(service) = service() {
            service.tell(self.actor, |_: &mut Reader, io| io.stop());
        }
    }

    pub fn watch(&self, watcher: Watcher) {
        self.shared.state.lock().watcher = Some(watcher);
        // What happened before is told by the service thread too.
        if let Ok(service) = service() {
            service.tell(self.actor, |reader: &mut Reader, _| reader.tell_news());
        }
    }

    /// Why this communicator can no longer do anything that needs all ranks.
    pub fn failure(&self) -> Option<Error> {
        self.shared.state.lock().failure.clone()
    }

    fn send(&self, message: &Message) {
        self.shared.send(self.actor, message);
    }

    /// `None` when the deadline is over.
    fn wait<T>(
        &self,
        deadline: Deadline,
        abort: &AtomicBool,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>> {
        let mut state = self.shared.state.lock();
        loop {
            if let Some(result) = ready(&mut state) {
                return Ok(Some(result));
            }
            check_abort(abort)?;
            if deadline.expired() {
                return Ok(None);
            }
            self.shared.changed.wait_for(&mut state, deadline.slice(SLICE));
        }
    }
}

impl Shared {
    /// From any thread. What the socket does not take now, the reader's side sends later.
    fn send(&self, actor: ActorId, message: &Message) {
        let left = {
            let mut sender = self.sender.lock();
            sender.push(message);
            matches!(sender.flush(), Ok(false))
        };
        if left && let Ok(service) = service() {
            service.tell(actor, |reader: &mut Reader, io| reader.flush(io));
        }
    }

    /// The reply to a question that came by way of the rendezvous.
    fn answer(&self, actor: ActorId, peer: u32, ticket: u64, outcome: Outcome) {
        let result = match outcome {
            Ok((payload, passed)) if passed.is_empty() => Ok(payload),
            Ok(_) => Err((
                Code::System,
                "memory cannot be passed to a rank that has no Unix socket to us".to_owned(),
            )),
            Err(error) => Err((error.code(), error.message().to_owned())),
        };
        self.send(actor, &Message::Reply { peer, ticket, result });
    }
}

/// The reading side, on the service thread.
struct Reader {
    receiver: Receiver,
    shared: Arc<Shared>,
    served: Arc<Served>,
    /// Ranks that live in the rendezvous' process.
    in_hub: Vec<u32>,
    /// Readable when the rendezvous' process ends, even if a child of it keeps the connection open.
    end: Option<Arc<PrivateFd>>,
    over: bool,
}

const CONNECTION: u64 = 0;
const END: u64 = 1;

impl Reader {
    fn read(&mut self, io: &mut Io<'_>, ended: bool) {
        if self.over {
            return;
        }
        let mut end = self.receiver.fill().err();
        if ended && end.is_none() {
            end = Some(Closed::Ended("its process ended".to_owned()));
        }
        loop {
            match self.receiver.next() {
                Ok(Some(message)) => self.handle(io, message),
                Ok(None) => break,
                Err(closed) => {
                    end = Some(closed);
                    break;
                }
            }
        }
        if let Some(closed) = end {
            self.lost(io, &closed);
        }
        self.shared.changed.notify_all();
        self.tell_news();
    }

    fn handle(&mut self, io: &mut Io<'_>, message: Message) {
        let message = match message {
            Message::Question { peer, ticket, payload } => {
                let (shared, actor) = (self.shared.clone(), io.id());
                let reply = Box::new(move |outcome| shared.answer(actor, peer, ticket, outcome));
                return self.served.take(Question { asker: peer, payload, reply });
            }
            other => other,
        };
        let mut state = self.shared.state.lock();
        match message {
            Message::Reply { ticket, result, .. } => {
                // An asker that has given up has taken its entry away.
                if let Some(reply) = state.replies.get_mut(&ticket) {
                    *reply = Some(result.map_err(|(code, message)| Error::new(code, message)));
                }
            }
            Message::Gathered { round, payloads } => state.gathered = Some((round, payloads)),
            Message::Missing(missing) => state.missing = Some(missing),
            Message::Done => state.done = true,
            Message::Event(event) => state.hear(event),
            Message::Refused { code, message } => {
                state.failure.get_or_insert(Error::new(code, message));
            }
            _ => {
                state.failure.get_or_insert(Error::internal("the rendezvous speaks out of turn"));
            }
        }
    }

    /// The rendezvous is gone: with it the ranks of its process, and all news of the others.
    fn lost(&mut self, io: &mut Io<'_>, closed: &Closed) {
        self.over = true;
        io.unwatch(CONNECTION);
        io.unwatch(END);
        let mut state = self.shared.state.lock();
        state.lost = true;
        if state.leaving {
            return;
        }
        let ended: Vec<u32> =
            self.in_hub.iter().copied().filter(|rank| !state.departed.contains(rank)).collect();
        for rank in &ended {
            let how = format!("{closed} (the process that holds the rendezvous)");
            state.hear(PeerEvent::Died { rank: *rank, how });
        }
        // Where its ranks have left in good order, its end was to be expected.
        if self.in_hub.is_empty() {
            let how = format!("{closed}: no rank's end will be noticed any more");
            state.hear(PeerEvent::RendezvousLost { how });
        }
    }

    fn tell_news(&self) {
        loop {
            let (watcher, news) = {
                let mut state = self.shared.state.lock();
                match state.watcher.clone() {
                    Some(watcher) if !state.news.is_empty() => (watcher, std::mem::take(&mut state.news)),
                    _ => return,
                }
            };
            news.into_iter().for_each(|event| watcher(event));
        }
    }

    fn flush(&mut self, io: &mut Io<'_>) {
        if self.over {
            return;
        }
        let interest = match self.shared.sender.lock().flush() {
            Ok(false) => Interest::ReadWrite,
            _ => Interest::Read,
        };
        io.watch(CONNECTION, self.receiver.socket(), interest);
    }
}

impl State {
    fn hear(&mut self, event: PeerEvent) {
        if let Some(rank) = event.rank() {
            self.departed.insert(rank);
        }
        self.failure.get_or_insert_with(|| event.to_error());
        self.news.push(event);
    }
}

impl Actor for Reader {
    fn start(&mut self, io: &mut Io<'_>) {
        io.watch(CONNECTION, self.receiver.socket(), Interest::Read);
        if let Some(end) = &self.end {
            io.watch(END, end, Interest::Read);
        }
        // What came with the roster.
        self.read(io, false);
    }

    fn ready(&mut self, io: &mut Io<'_>, key: u64, ready: Ready) {
        if ready.writable {
            self.flush(io);
        }
        if ready.readable {
            self.read(io, key == END);
        }
    }
}

impl PeerEvent {
    fn rank(&self) -> Option<u32> {
        match self {
            PeerEvent::Died { rank, .. } | PeerEvent::Left { rank } | PeerEvent::Failed { rank, .. } => {
                Some(*rank)
            }
            PeerEvent::RendezvousLost { .. } => None,
        }
    }

    /// The failure that the event is for whoever needs all ranks.
    pub fn to_error(&self) -> Error {
        Error::new(Code::Remote, self.to_string())
    }
}

impl std::fmt::Display for PeerEvent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PeerEvent::Died { rank, how } => write!(formatter, "rank {rank} died: {how}"),
            PeerEvent::Left { rank } => write!(formatter, "rank {rank} has left the communicator"),
            PeerEvent::Failed { rank, message } => write!(formatter, "rank {rank} failed: {message}"),
            PeerEvent::RendezvousLost { how } => write!(formatter, "the rendezvous is gone: {how}"),
        }
    }
}
