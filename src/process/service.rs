//! The service thread: one per process, asleep in poll, started when first needed.
//!
//! It runs *actors*: objects that own descriptors and timers and live on this thread alone, so they need no locks. Other threads
//! reach them by closures, which run in order. No lock is held while a closure or an actor runs, and neither may block: what may
//! take long goes to a worker thread, which lives no longer than its work. All signals are blocked on these threads. The process
//! ends without regard to them: there is nothing to join and nothing to run at exit. In a forked child, where threads do not
//! exist, the next call starts a service of its own with no actors.

use std::any::Any;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::os::fd::AsFd;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{SigSet, SigmaskHow};
use once_cell::sync::OnceCell;
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::param;
use crate::process::generation::generation;
use crate::sys::fd::Waker;
use crate::sys::fork::PrivateFd;

/// Something that lives on the service thread.
pub trait Actor: Any + Send {
    /// Called once, before anything else.
    fn start(&mut self, io: &mut Io<'_>) {
        let _ = io;
    }

    /// A descriptor that was given to [`Io::watch`] with this key is ready.
    fn ready(&mut self, io: &mut Io<'_>, key: u64, ready: Ready);

    /// A time that was given to [`Io::timer`] with this key is over.
    fn timer(&mut self, io: &mut Io<'_>, key: u64) {
        let _ = (io, key);
    }
}

/// Names an actor; stays harmless when the actor is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ActorId(u64);

/// What a descriptor is ready for. A hang-up or an error counts as readable: the next read tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    pub readable: bool,
    pub writable: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    Read,
    ReadWrite,
}

static CURRENT: AtomicPtr<Holder> = AtomicPtr::new(std::ptr::null_mut());

/// The service of this process; starts it if need be.
pub fn service() -> Result<&'static Service> {
    let now = generation();
    loop {
        // Acquire: pairs with the release below, so that the holder is seen whole.
        let current = CURRENT.load(Ordering::Acquire);
        // SAFETY: a published holder is never freed (a forked child keeps its parent's, one per generation).
        if let Some(holder) = unsafe { current.as_ref() }.filter(|holder| holder.generation == now) {
            return holder.service.get_or_try_init(Service::start);
        }
        // A parent's lock may be held for good in its child, so a new generation never looks into the old holder.
        let fresh = Box::into_raw(Box::new(Holder { generation: now, service: OnceCell::new() }));
        if CURRENT.compare_exchange(current, fresh, Ordering::Release, Ordering::Relaxed).is_err() {
            // SAFETY: the exchange failed, so nobody else has seen `fresh`.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

/// The service of this process, if anything has needed it yet.
pub fn started() -> Option<&'static Service> {
    // Acquire and SAFETY: as in `service`.
    let current = CURRENT.load(Ordering::Acquire);
    // SAFETY: a published holder is never freed.
    let holder = unsafe { current.as_ref() }.filter(|holder| holder.generation == generation())?;
    holder.service.get()
}

struct Holder {
    generation: u64,
    service: OnceCell<Service>,
}

/// The handle by which other threads reach the service thread.
pub struct Service {
    shared: Arc<Shared>,
    /// Actors that a process has once, by name.
    singletons: Mutex<HashMap<&'static str, ActorId>>,
}

struct Shared {
    commands: Mutex<Vec<Command>>,
    waker: Waker,
    next_actor: AtomicU64,
    workers: Mutex<Workers>,
}

type Command = Box<dyn FnOnce(&mut Reactor) + Send>;
type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Workers {
    running: usize,
    waiting: VecDeque<Work>,
}

/// Worker threads at once; more work waits for one of them.
const MAX_WORKERS: usize = 64;
/// Enough for the driver's calls that closures make.
const STACK_BYTES: usize = 1 << 20;

impl Service {
    fn start() -> Result<Service> {
        let shared = Arc::new(Shared {
            commands: Mutex::new(Vec::new()),
            waker: Waker::new()?,
            next_actor: AtomicU64::new(1),
            workers: Mutex::new(Workers::default()),
        });
        let thread = shared.clone();
        spawn("oxccl-service", move || Reactor::new(thread).run())
            .map_err(|error| Error::system("starting the service thread", error))?;
        Ok(Service { shared, singletons: Mutex::new(HashMap::new()) })
    }

    /// Runs `closure` on the service thread, after those deferred before it. It must not block.
    pub fn defer(&self, closure: Box<dyn FnOnce() + Send>) {
        self.shared.command(Box::new(move |_| closure()));
    }

    /// Runs `closure` on the service thread after `delay`. It must not block.
    pub fn after(&self, delay: Duration, closure: Box<dyn FnOnce() + Send>) {
        let at = Instant::now() + delay;
        self.shared.command(Box::new(move |reactor| reactor.schedule(at, Alarm::Closure(closure))));
    }

    /// Runs `work`, which may block for a while, on a thread of its own.
    pub fn worker(&self, work: Box<dyn FnOnce() + Send>) -> Result<()> {
        self.shared.work(work)
    }

    /// Gives `actor` a life on the service thread.
    pub fn add(&self, actor: Box<dyn Actor>) -> ActorId {
        let id = self.shared.new_actor_id();
        self.shared.command(Box::new(move |reactor| reactor.insert(id, actor)));
        id
    }

    /// The one actor of this process with this name; `make` makes it if there is none.
    pub fn singleton(
        &self,
        name: &'static str,
        make: impl FnOnce() -> Result<Box<dyn Actor>>,
    ) -> Result<ActorId> {
        let mut singletons = self.singletons.lock();
        if let Some(id) = singletons.get(name) {
            return Ok(*id);
        }
        let id = self.add(make()?);
        singletons.insert(name, id);
        Ok(id)
    }

    /// The one actor with this name, if it was made.
    pub fn existing(&self, name: &'static str) -> Option<ActorId> {
        self.singletons.lock().get(name).copied()
    }

    /// Lets `closure` work on an actor of type `A`; dropped without a call when the actor is gone.
    pub fn tell<A: Actor>(&self, id: ActorId, closure: impl FnOnce(&mut A, &mut Io<'_>) + Send + 'static) {
        self.shared.command(Box::new(move |reactor| reactor.visit(id, closure)));
    }

    /// As [`Service::tell`], and waits for what the closure returns. Not to be called on the service thread.
    pub fn ask<A: Actor, T: Send + 'static>(
        &self,
        id: ActorId,
        closure: impl FnOnce(&mut A, &mut Io<'_>) -> T + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.tell(id, move |actor: &mut A, io: &mut Io<'_>| {
            let _ = sender.send(closure(actor, io));
        });
        receiver.recv_timeout(ANSWER).map_err(|error| match error {
            mpsc::RecvTimeoutError::Timeout => {
                Error::internal("the service thread does not answer: something blocks it")
            }
            mpsc::RecvTimeoutError::Disconnected => {
                Error::internal("the service's part that was asked has ended")
            }
        })
    }
}

/// The service thread never blocks, so that this is ample.
const ANSWER: Duration = Duration::from_secs(30);

impl Shared {
    fn command(&self, command: Command) {
        self.commands.lock().push(command);
        self.waker.wake();
    }

    fn new_actor_id(&self) -> ActorId {
        // Relaxed: only uniqueness matters.
        ActorId(self.next_actor.fetch_add(1, Ordering::Relaxed))
    }

    fn work(self: &Arc<Self>, work: Work) -> Result<()> {
        {
            let mut workers = self.workers.lock();
            workers.waiting.push_back(work);
            if workers.running >= MAX_WORKERS {
                return Ok(());
            }
            workers.running += 1;
        }
        let shared = self.clone();
        let started = spawn("oxccl-worker", move || {
            loop {
                let mut workers = shared.workers.lock();
                let Some(work) = workers.waiting.pop_front() else {
                    workers.running -= 1;
                    return;
                };
                drop(workers);
                guarded("a worker", work);
            }
        });
        let Err(error) = started else {
            return Ok(());
        };
        let mut workers = self.workers.lock();
        workers.running -= 1;
        // With another worker under way the work is done all the same, only later.
        if workers.running > 0 {
            return Ok(());
        }
        let unstarted = workers.waiting.pop_back();
        drop(workers);
        drop(unstarted);
        Err(Error::system("starting a worker thread", error))
    }
}

/// A thread on which no signal handler of the program can run.
fn spawn(name: &str, main: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let mut builder = std::thread::Builder::new().stack_size(STACK_BYTES);
    if param::bool(param::SET_THREAD_NAME) {
        builder = builder.name(name.to_owned());
    }
    // A thread inherits its creator's mask: blocked before it starts, there is no moment in which it could take a signal.
    let previous = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let spawned = builder.spawn(main);
    if let Ok(previous) = previous {
        let _ = previous.thread_set_mask();
    }
    spawned.map(drop)
}

/// A panic ends the closure, not the thread; it was reported by the panic hook.
fn guarded(what: &str, closure: impl FnOnce()) -> bool {
    let result = std::panic::catch_unwind(AssertUnwindSafe(closure));
    if result.is_err() {
        tracing::warn!(target: "INIT", "internal error: {what} panicked");
    }
    result.is_ok()
}

struct Watch {
    fd: Arc<PrivateFd>,
    interest: Interest,
}

enum Alarm {
    Closure(Box<dyn FnOnce() + Send>),
    Actor(ActorId, u64),
}

struct Scheduled {
    at: Instant,
    order: u64,
    alarm: Alarm,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Scheduled) -> bool {
        self.order == other.order
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Scheduled) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    /// Reversed, so that the heap gives the earliest first.
    fn cmp(&self, other: &Scheduled) -> std::cmp::Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// The state of the service thread.
struct Reactor {
    shared: Arc<Shared>,
    /// An actor is taken out while it runs.
    actors: HashMap<ActorId, Option<Box<dyn Actor>>>,
    watches: BTreeMap<(ActorId, u64), Watch>,
    alarms: BinaryHeap<Scheduled>,
    order: u64,
    /// What actors ask of one another; done before the next poll.
    internal: VecDeque<Command>,
}

impl Reactor {
    fn new(shared: Arc<Shared>) -> Reactor {
        Reactor {
            shared,
            actors: HashMap::new(),
            watches: BTreeMap::new(),
            alarms: BinaryHeap::new(),
            order: 0,
            internal: VecDeque::new(),
        }
    }

    fn run(mut self) {
        loop {
            let ready = self.sleep();
            // Before the descriptors: who connects may rely on what was told to an actor before.
            self.commands();
            for (id, key, fd, ready) in ready {
                // An actor that ran meanwhile may have given the key to another descriptor.
                let current = self.watches.get(&(id, key)).is_some_and(|watch| Arc::ptr_eq(&watch.fd, &fd));
                drop(fd);
                if current {
                    self.visit_any(id, |actor, io| actor.ready(io, key, ready));
                    self.settle();
                }
            }
            self.fire();
        }
    }

    /// Waits for something to do, and returns the descriptors that are ready.
    fn sleep(&mut self) -> Vec<(ActorId, u64, Arc<PrivateFd>, Ready)> {
        let timeout = match self.alarms.peek() {
            None => PollTimeout::NONE,
            Some(next) => {
                let left = next.at.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
                PollTimeout::try_from(i32::try_from(left).unwrap_or(i32::MAX)).unwrap_or(PollTimeout::MAX)
            }
        };
        let mut set = Vec::with_capacity(self.watches.len() + 1);
        set.push(PollFd::new(self.shared.waker.as_fd(), PollFlags::POLLIN));
        for watch in self.watches.values() {
            let wanted = match watch.interest {
                Interest::Read => PollFlags::POLLIN,
                Interest::ReadWrite => PollFlags::POLLIN | PollFlags::POLLOUT,
            };
            set.push(PollFd::new(watch.fd.as_fd(), wanted));
        }
        let Ok(count) = nix::poll::poll(&mut set, timeout) else {
            // Interrupted, or short of kernel memory: look again after what is due.
            std::thread::yield_now();
            return Vec::new();
        };
        if count == 0 {
            return Vec::new();
        }
        let events = |item: &PollFd<'_>| item.revents().unwrap_or(PollFlags::empty());
        if !events(&set[0]).is_empty() {
            self.shared.waker.clear();
        }
        let mut ready = Vec::new();
        for (((id, key), watch), item) in self.watches.iter().zip(&set[1..]) {
            let events = events(item);
            if !events.is_empty() {
                let writable = events.contains(PollFlags::POLLOUT);
                let readable = events.intersects(!PollFlags::POLLOUT);
                ready.push((*id, *key, watch.fd.clone(), Ready { readable, writable }));
            }
        }
        ready
    }

    fn commands(&mut self) {
        let commands = std::mem::take(&mut *self.shared.commands.lock());
        for command in commands {
            guarded("a closure on the service thread", || command(self));
            self.settle();
        }
    }

    /// Does what actors asked of one another.
    fn settle(&mut self) {
        while let Some(command) = self.internal.pop_front() {
            guarded("a closure on the service thread", || command(self));
        }
    }

    fn schedule(&mut self, at: Instant, alarm: Alarm) {
        self.order += 1;
        self.alarms.push(Scheduled { at, order: self.order, alarm });
    }

    fn fire(&mut self) {
        let now = Instant::now();
        while self.alarms.peek().is_some_and(|next| next.at <= now) {
            match self.alarms.pop().expect("just seen").alarm {
                Alarm::Closure(closure) => {
                    guarded("a closure on the service thread", closure);
                }
                Alarm::Actor(id, key) => self.visit_any(id, |actor, io| actor.timer(io, key)),
            }
            self.settle();
        }
    }

    fn insert(&mut self, id: ActorId, actor: Box<dyn Actor>) {
        self.actors.insert(id, Some(actor));
        self.visit_any(id, |actor, io| actor.start(io));
    }

    fn visit<A: Actor>(&mut self, id: ActorId, closure: impl FnOnce(&mut A, &mut Io<'_>)) {
        self.visit_any(id, |actor, io| {
            let any: &mut dyn Any = actor;
            closure(any.downcast_mut::<A>().expect("an actor is told things in its own type"), io);
        });
    }

    fn visit_any(&mut self, id: ActorId, closure: impl FnOnce(&mut dyn Actor, &mut Io<'_>)) {
        let Some(mut actor) = self.actors.get_mut(&id).and_then(Option::take) else {
            return;
        };
        let mut stopped = false;
        let sound = guarded("an actor of the service thread", || {
            closure(&mut *actor, &mut Io { reactor: self, id, stopped: &mut stopped });
        });
        if stopped || !sound {
            self.actors.remove(&id);
            self.watches.retain(|(owner, _), _| *owner != id);
        } else if let Some(place) = self.actors.get_mut(&id) {
            *place = Some(actor);
        }
    }
}

/// What an actor can ask of the service while it runs.
pub struct Io<'a> {
    reactor: &'a mut Reactor,
    id: ActorId,
    stopped: &'a mut bool,
}

impl Io<'_> {
    /// The actor that runs.
    pub fn id(&self) -> ActorId {
        self.id
    }

    /// Calls [`Actor::ready`] whenever `fd` is ready; replaces what the key stood for.
    pub fn watch(&mut self, key: u64, fd: &Arc<PrivateFd>, interest: Interest) {
        match self.reactor.watches.get_mut(&(self.id, key)) {
            Some(watch) if Arc::ptr_eq(&watch.fd, fd) => watch.interest = interest,
            _ => {
                let fd = fd.clone();
                self.reactor.watches.insert((self.id, key), Watch { fd, interest });
            }
        }
    }

    pub fn unwatch(&mut self, key: u64) {
        self.reactor.watches.remove(&(self.id, key));
    }

    /// Calls [`Actor::timer`] once, after `delay`.
    pub fn timer(&mut self, key: u64, delay: Duration) {
        self.reactor.schedule(Instant::now() + delay, Alarm::Actor(self.id, key));
    }

    pub fn add(&mut self, actor: Box<dyn Actor>) -> ActorId {
        let id = self.reactor.shared.new_actor_id();
        self.reactor.internal.push_back(Box::new(move |reactor| reactor.insert(id, actor)));
        id
    }

    /// As [`Service::tell`]; the closure runs when the present actor has returned.
    pub fn tell<A: Actor>(
        &mut self,
        id: ActorId,
        closure: impl FnOnce(&mut A, &mut Io<'_>) + Send + 'static,
    ) {
        self.reactor.internal.push_back(Box::new(move |reactor| reactor.visit(id, closure)));
    }

    /// As [`Service::worker`].
    pub fn worker(&mut self, work: Box<dyn FnOnce() + Send>) -> Result<()> {
        self.reactor.shared.work(work)
    }

    /// Ends the actor when it returns.
    pub fn stop(&mut self) {
        *self.stopped = true;
    }
}

#[cfg(test)]
mod tests;
