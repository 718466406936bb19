//! Memory whose return to the driver would stop the device's kernels.
//!
//! cuMemFree, cuMemFreeHost, cuMemHostUnregister and cuIpcCloseMemHandle return only when every kernel of their context
//! has ended, and until then no thread can launch in that context (`ctests/conformance/waits.c`; cuMemUnmap and
//! cuMemRelease do neither). A communicator's kernel may be waiting for just such a launch: by another communicator, or
//! by another rank of this process on the same GPU. So nothing is given back while a communicator lives in the context.
//! It is kept aside until the last one has gone, or until much has gathered and none of them has work in flight, nor can get
//! some: launches wait at a gate meanwhile, and there is no graph, whose launches are not ours to hold. Host memory that
//! only this process uses is taken from there again.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::context::Context;
use super::memory::{Medium, Memory};
use super::stream::Event;
use crate::error::Result;

/// What is kept aside beyond this is given back as soon as no communicator of the context has work in flight, or a graph.
const MUCH: usize = 256 << 20;

type GiveBack = Box<dyn FnOnce() + Send>;

/// What is kept aside in one context.
#[derive(Default)]
struct Shelf {
    /// The communicators, by number, with the event of each one's last operation.
    tenants: HashMap<u64, Arc<Event>>,
    retired: Vec<GiveBack>,
    bytes: usize,
    spare: Vec<Arc<Memory>>,
}

static SHELVES: LazyLock<Mutex<HashMap<usize, Shelf>>> = LazyLock::new(Mutex::default);

/// What holds launches of one context back while memory is given back there. Other contexts' launches are not held: a kernel that the
/// calls wait for may wait for one of those.
#[derive(Debug, Default)]
struct Gate {
    /// Held to read while operations are launched, to write while memory is given back. A writer never queues: behind it, the launch
    /// that a reader waits for could not come.
    launches: RwLock<()>,
    /// Communicators of the context that graphs hold.
    in_graphs: AtomicUsize,
}

impl Gate {
    fn of(context: &Context) -> Arc<Gate> {
        static GATES: LazyLock<Mutex<HashMap<usize, Arc<Gate>>>> = LazyLock::new(Mutex::default);
        GATES.lock().entry(context.key()).or_default().clone()
    }

    fn close(&self) -> RwLockWriteGuard<'_, ()> {
        loop {
            if let Some(closed) = self.launches.try_write() {
                return closed;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// A communicator that lives in a context.
#[derive(Debug)]
pub struct Tenant {
    context: Arc<Context>,
    gate: Arc<Gate>,
    number: u64,
}

impl Tenant {
    /// `last`: recorded after each of the communicator's eager operations.
    pub fn new(context: &Arc<Context>, last: Arc<Event>) -> Tenant {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only uniqueness matters.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        SHELVES.lock().entry(context.key()).or_default().tenants.insert(number, last);
        Tenant { context: context.clone(), gate: Gate::of(context), number }
    }

    /// While it lives, nothing is given back in the context.
    pub fn launching(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.launches.read_recursive()
    }

    /// A graph begins to hold the communicator.
    pub fn enter_graph(&self) {
        // SeqCst with the load in `give_back_much`: before the graph can be launched it is counted.
        self.gate.in_graphs.fetch_add(1, Ordering::SeqCst);
    }

    /// A graph no longer holds it.
    pub fn leave_graph(&self) {
        self.gate.in_graphs.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let mut shelves = SHELVES.lock();
        let Some(shelf) = shelves.get_mut(&self.context.key()) else { return };
        let last = shelf.tenants.remove(&self.number);
        let left = if shelf.tenants.is_empty() { shelves.remove(&self.context.key()) } else { None };
        drop(shelves);
        // Outside the lock: both call the driver.
        drop(last);
        if let Some(shelf) = left {
            drop(shelf.spare);
            give_back_or_keep(&self.context, shelf.retired, shelf.bytes);
        }
    }
}

/// Calls `give_back`, which waits for the kernels of the context, when that can stop nobody.
pub fn retire(context: &Context, bytes: usize, give_back: impl FnOnce() + Send + 'static) {
    let mut shelves = SHELVES.lock();
    let Some(shelf) = shelves.get_mut(&context.key()) else {
        drop(shelves);
        return give_back_or_keep(context, vec![Box::new(give_back)], bytes);
    };
    shelf.retired.push(Box::new(give_back));
    shelf.bytes += bytes;
    let is_much = shelf.bytes >= MUCH;
    drop(shelves);
    if is_much {
        give_back_much(context);
    }
}

/// Gives back unless a communicator has come up since it was seen that there was none: one that has may have launched, and would
/// wait for a launch that the gate holds. From the look on, with the gate closed, launches of new ones wait.
fn give_back_or_keep(context: &Context, mut retired: Vec<GiveBack>, bytes: usize) {
    if retired.is_empty() {
        return;
    }
    let gate = Gate::of(context);
    let _closed = gate.close();
    let mut shelves = SHELVES.lock();
    if let Some(shelf) = shelves.get_mut(&context.key()) {
        shelf.retired.append(&mut retired);
        shelf.bytes += bytes;
        return;
    }
    drop(shelves);
    retired.into_iter().for_each(|give_back| give_back());
}

/// Gives back what was kept aside, unless it is not the moment: then the next that is retired asks again.
fn give_back_much(context: &Context) {
    let gate = Gate::of(context);
    let Some(_closed) = gate.launches.try_write() else { return };
    let tenants: Vec<Arc<Event>> = SHELVES
        .lock()
        .get(&context.key())
        .map(|shelf| shelf.tenants.values().cloned().collect())
        .unwrap_or_default();
    if gate.in_graphs.load(Ordering::SeqCst) > 0 || !tenants.iter().all(|last| last.is_done()) {
        return;
    }
    // Nothing of ours runs and nothing can be launched: kernels that the calls wait for are the program's own, which wait for nobody.
    let retired = SHELVES.lock().get_mut(&context.key()).map(|shelf| {
        shelf.bytes = 0;
        std::mem::take(&mut shelf.retired)
    });
    retired.into_iter().flatten().for_each(|give_back| give_back());
}

/// Host memory that no other process uses, so that it can serve again.
#[derive(Debug)]
pub struct Scratch {
    context: Arc<Context>,
    memory: Arc<Memory>,
}

impl Scratch {
    /// Zeroed memory of `bytes`, rounded up to a power of two of at least a page.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Scratch> {
        let bytes = bytes.next_power_of_two().max(4096);
        let spare = SHELVES.lock().get_mut(&context.key()).and_then(|shelf| {
            let at = shelf.spare.iter().position(|memory| memory.bytes() == bytes)?;
            Some(shelf.spare.swap_remove(at))
        });
        let memory = match spare {
            Some(memory) => {
                memory.zero_host()?;
                memory
            }
            None => Memory::new(context, Medium::Host, bytes)?,
        };
        Ok(Scratch { context: context.clone(), memory })
    }
}

impl Deref for Scratch {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        &self.memory
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Without a communicator in the context the memory goes with this reference.
        if let Some(shelf) = SHELVES.lock().get_mut(&self.context.key()) {
            shelf.spare.push(self.memory.clone());
        }
    }
}
