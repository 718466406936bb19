//! Communicators: creation, queries, errors, end of life.
//!
//! A [`Comm`] is what one rank holds. C callers have a handle of it in [`HANDLES`]; captured graphs, deferred
//! clean-up and running calls hold references. `init` makes one, `setup` makes paths on first use, `end` ends
//! it.

mod end;
mod info;
mod init;
mod lists;
mod ops;
mod setup;
mod split;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use parking_lot::{Mutex, RwLock};

pub use end::{abort, destroy, finalize};
pub use init::{InitJob, current_job, init_all_jobs};
pub use lists::{Lists, lasting};
pub use ops::{PreMulSum, Scalar};
pub use setup::Needs;
pub use split::SplitJob;

use crate::bootstrap::Bootstrap;
use crate::error::{Code, Error, LastError, Result};
use crate::gpu::context::Context;
use crate::gpu::host_block::{HostView, Record};
use crate::gpu::kernels::Kernels;
use crate::gpu::memory::Medium;
use crate::gpu::retire::Tenant;
use crate::gpu::stream::{CallerStream, Event};
use crate::gpu::work::{CommArgs, ERROR_ABORTED, ERROR_DIVERGED, ERROR_MESSAGE_SIZE, PeerArgs};
use crate::process;
use crate::process::registry::Registry;
use crate::register::Buffers;
use crate::schedule::Signature;
use crate::schedule::tuning::Limits;
use crate::transport::{Local, Remote};

/// The settings of one communicator as the caller gave them; `None` where the caller left the default.
#[derive(Debug, Clone, Default)]
pub struct Config {
    pub blocking: Option<bool>,
    pub cga_cluster_size: Option<i32>,
    pub min_ctas: Option<i32>,
    pub max_ctas: Option<i32>,
    pub net_name: Option<String>,
    pub split_share: Option<bool>,
    pub traffic_class: Option<i32>,
    pub name: Option<String>,
    pub cta_policy: Option<i32>,
}

/// Called with the new communicator's handle when it is ready (inside a group: at the outermost end).
pub type Publish = Box<dyn FnOnce(usize) + Send>;

/// One rank's end of a communicator.
#[derive(Debug)]
pub struct Comm {
    rank: u32,
    nranks: u32,
    session: [u8; 16],
    name: String,
    config: Config,
    context: Arc<Context>,
    kernels: Arc<Kernels>,
    limits: Limits,
    host: HostView,
    local: Arc<Local>,
    remote: Remote,
    /// Per rank: the medium of the pair. The own entry is `Gpu`.
    media: Vec<Medium>,
    /// `None` for one rank, and once the rank has left.
    bootstrap: Mutex<Option<Arc<Bootstrap>>>,
    /// What launches carry; paths fill in addresses.
    args: RwLock<CommArgs>,
    /// All peers' addresses, of which `args` has the first few.
    peers: Mutex<Vec<PeerArgs>>,
    /// Held while paths are made, so that two streams' first uses do not race.
    setup: Mutex<setup::Ready>,
    order: Mutex<Order>,
    failed: AtomicBool,
    failure: Mutex<Option<Error>>,
    finalized: AtomicBool,
    /// Of children that are coming up: set when this communicator fails.
    children: Mutex<Vec<Weak<AtomicBool>>>,
    /// Reduction operations that the caller made.
    operations: ops::Operations,
    /// Buffers that the caller made known.
    buffers: Buffers,
    /// Ranks that destroyed their communicator.
    left: Mutex<HashSet<u32>>,
    last_error: LastError,
    generation: u64,
    /// Dropped after all memory above, which it keeps from being given back too early.
    tenant: Tenant,
}

/// The last operation's place, so that the next one on another stream waits for it.
#[derive(Debug)]
pub struct Order {
    /// Recorded after each eager operation.
    pub event: Arc<Event>,
    pub last: Option<CallerStream>,
    /// The capture that the last captured operation went into, and an event of that capture.
    pub captured: Option<(u64, CallerStream, Event)>,
    pub lists: Lists,
}

static HANDLES: LazyLock<Registry<Comm>> = LazyLock::new(Registry::new);

/// The communicator behind a handle; a stale, garbage or NULL handle is an invalid argument.
pub fn lookup(handle: usize) -> Result<Arc<Comm>> {
    if handle == 0 {
        return Err(Error::argument("communicator is NULL"));
    }
    let comm = HANDLES.get(handle).ok_or_else(|| {
        Error::argument(format!(
            "communicator {handle:#x} does not exist: it was destroyed or aborted, or never was one"
        ))
    })?;
    if comm.generation != process::generation() {
        return Err(Error::usage(format!(
            "communicator {handle:#x} belongs to the parent process: after fork() a child must make its own"
        )));
    }
    Ok(comm)
}

impl Comm {
    pub fn rank(&self) -> i32 {
        self.rank as i32
    }

    pub fn nranks(&self) -> i32 {
        self.nranks as i32
    }

    /// Orders communicators alike on all ranks that share them.
    pub fn session(&self) -> [u8; 16] {
        self.session
    }

    /// CUDA ordinal of the communicator's device in this process.
    pub fn device(&self) -> i32 {
        self.context.device().ordinal
    }

    /// The name given in the config, or the handle's number.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The sticky state: `None` while all is well.
    pub fn async_error(&self) -> Option<Code> {
        self.look_at_device();
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        self.failure.lock().as_ref().map(Error::code)
    }

    pub fn last_error(&self) -> &LastError {
        &self.last_error
    }

    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// GPU and host bytes that this rank holds for the communicator.
    pub fn bytes(&self) -> (usize, usize) {
        self.local.bytes()
    }

    /// A graph, whose kernels have left, lets go of its reference, on a thread of the driver that may not call CUDA: the service
    /// thread does the rest.
    pub(crate) fn graph_let_go(self: Arc<Self>) {
        self.tenant.leave_graph();
        process::defer(move || end::drop_on_worker(self));
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    pub(crate) fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Puts an operation into the ring that readers find after a stall. The caller holds `order`.
    pub(crate) fn record(&self, record: Record) {
        self.host.record(record);
    }

    pub(crate) fn order(&self) -> &Mutex<Order> {
        &self.order
    }

    /// What a launch carries of the communicator, once what the operation needs is set up.
    pub(crate) fn args(&self, needs: &Needs) -> Result<CommArgs> {
        self.set_up(needs)?;
        Ok(*self.args.read())
    }

    /// Refuses operations on a communicator that failed, ended or was finalized.
    pub(crate) fn check_usable(&self) -> Result<()> {
        self.look_at_device();
        if self.failed.load(Ordering::Acquire)
            && let Some(error) = self.failure.lock().clone()
        {
            return Err(error.context("the communicator failed earlier and can only be aborted"));
        }
        if self.finalized.load(Ordering::Acquire) {
            return Err(Error::usage("the communicator is finalized: no more operations are possible"));
        }
        Ok(())
    }

    /// Poisons the communicator and says so: the first failure stays, and kernels stop waiting.
    pub(crate) fn fail(&self, error: Error) {
        let message = error.message().to_owned();
        if self.poison(error, || self.last_error.set(&message)) {
            tracing::warn!(target: "INIT", "rank {} of communicator {}: {message}", self.rank, self.name);
        }
    }

    /// Poisons the communicator, after `describe`, if it is the first time; false when it was poisoned before.
    fn poison(&self, error: Error, describe: impl FnOnce()) -> bool {
        let mut failure = self.failure.lock();
        let first = failure.is_none();
        if first {
            *failure = Some(error);
            // Whoever sees the state asks for the sentence next.
            describe();
            // Release: whoever sees the flag finds the failure.
            self.failed.store(true, Ordering::Release);
        }
        drop(failure);
        self.host.abort();
        for child in self.children.lock().drain(..).filter_map(|child| child.upgrade()) {
            // Release: pairs with the look of whoever waits.
            child.store(true, Ordering::Release);
        }
        first
    }

    /// Sets `abort` when this communicator fails, or now if it has.
    fn aborts_with_it(&self, abort: &Arc<AtomicBool>) {
        self.children.lock().push(Arc::downgrade(abort));
        // Acquire: a failure before the push is seen here, a later one finds the child in the list.
        if self.failed.load(Ordering::Acquire) {
            abort.store(true, Ordering::Release);
        }
    }

    /// The child is up, or has failed: from here on its life is its own.
    fn aborts_no_more(&self, abort: &Arc<AtomicBool>) {
        self.children.lock().retain(|child| !std::ptr::eq(child.as_ptr(), Arc::as_ptr(abort)));
    }

    /// A peer destroyed its communicator in good order. What it sent before may still be received.
    fn note_left(&self, rank: u32) {
        self.left.lock().insert(rank);
    }

    /// Turns what a kernel reported into the communicator's failure.
    fn look_at_device(&self) {
        if self.failed.load(Ordering::Acquire) {
            return;
        }
        let Some(report) = self.host.error() else { return };
        let (finder, peer, sequence) = (report.finder, report.peer, report.sequence);
        let error = match report.code {
            // A kernel only repeats what the host asked for.
            ERROR_ABORTED => return,
            ERROR_MESSAGE_SIZE => Error::usage(format!(
                "mismatched messages: rank {finder} has {} bytes and rank {peer} {} bytes for message {sequence} between them; a send \
                 and its receive must have the same count and type",
                report.own, report.theirs
            )),
            ERROR_DIVERGED => Error::usage(format!(
                "mismatched collective calls: ranks {finder} and {peer} agree on operation {sequence} of the communicator, but not on one \
                 before it (a broadcast or reduce with different roots, for example); all ranks must make the same calls in the same order"
            )),
            _ => Error::usage(format!(
                "mismatched collective calls: rank {finder} called {}, rank {peer} called {} as operation {sequence} of the communicator; \
                 all ranks must make the same calls in the same order",
                Signature::describe(report.own),
                Signature::describe(report.theirs)
            )),
        };
        self.fail(error.clone());
        // A peer whose part ended before the mismatch showed looks at nothing any more: it is told. That may take a while.
        if let Some(bootstrap) = self.bootstrap.lock().clone() {
            process::on_worker(move || bootstrap.fail(&error));
        }
    }
}
