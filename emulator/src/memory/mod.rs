//! Memory: one table of address ranges, whatever made them, and the checks that copies and queries need.
//!
//! All devices and the host share the process's address space. A range lies between pages that cannot be accessed, so
//! that a kernel which leaves its buffer faults; memory that is mapped but was given no access rights cannot be accessed
//! either. What cannot be told apart is which device makes an access: any device, and the host, can touch memory that
//! one device may touch.

pub mod alloc;
pub mod attributes;
pub mod copy;
pub mod host;
pub mod ipc;
pub mod map;
pub mod pool;
pub mod vmm;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::context::Context;
use crate::device::Device;
use crate::error::{ILLEGAL_ADDRESS, INVALID_VALUE, Result};
use crate::kernel::{self, KernelInfo};
use crate::types::CUmemoryPool;

/// Where a range came from, and what keeps it.
pub enum Origin {
    Device(alloc::DeviceMemory),
    Managed(alloc::DeviceMemory),
    /// From a pool of the device, in stream order.
    Pool(alloc::DeviceMemory, CUmemoryPool),
    Ipc(ipc::Opened),
    Mapped(vmm::Mapped),
    Host(host::Pinned),
    Registered,
}

pub struct Range {
    pub start: u64,
    pub size: u64,
    pub origin: Origin,
    pub device: Option<&'static Device>,
    pub context: Option<&'static Context>,
    /// Unique among all allocations of the process.
    pub id: u64,
    /// Flags of host memory.
    pub host_flags: u32,
}

impl Range {
    pub fn end(&self) -> u64 {
        self.start + self.size
    }

    pub fn is_host(&self) -> bool {
        match &self.origin {
            Origin::Host(_) | Origin::Registered => true,
            Origin::Mapped(mapped) => mapped.allocation.device.is_none(),
            _ => false,
        }
    }

    fn accessible(&self) -> bool {
        match &self.origin {
            Origin::Mapped(mapped) => mapped.accessible(),
            _ => true,
        }
    }

    /// Whether sets and stream memory operations of a context may touch it. Copies go through the memory's own device.
    fn accessible_from(&self, context: &Context) -> bool {
        match (&self.origin, self.device) {
            (Origin::Mapped(mapped), _) => mapped.accessible_from(context.device),
            (Origin::Device(_), Some(owner)) => context.reaches(owner),
            (Origin::Pool(..), Some(owner)) => {
                owner.physical == context.device.physical || context.device.can_access(owner)
            }
            _ => true,
        }
    }
}

static TABLE: RwLock<BTreeMap<u64, Arc<Range>>> = RwLock::new(BTreeMap::new());

pub fn next_id() -> u64 {
    // Relaxed: only uniqueness matters.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The range that holds an address.
pub fn find(address: u64) -> Option<Arc<Range>> {
    let table = TABLE.read();
    let (_, range) = table.range(..=address).next_back()?;
    (address < range.end()).then(|| range.clone())
}

/// Adds a range; fails if it overlaps another.
pub fn insert(range: Range) -> Result<Arc<Range>> {
    let mut table = TABLE.write();
    let overlaps =
        table.range(..range.end()).next_back().is_some_and(|(_, before)| before.end() > range.start);
    if overlaps {
        return Err(INVALID_VALUE);
    }
    let range = Arc::new(range);
    table.insert(range.start, range.clone());
    Ok(range)
}

/// Takes out the range that starts at an address, if it is of the wanted kind.
pub fn remove(start: u64, wanted: impl Fn(&Range) -> bool) -> Option<Arc<Range>> {
    let mut table = TABLE.write();
    if !table.get(&start).is_some_and(|range| wanted(range)) {
        return None;
    }
    table.remove(&start)
}

/// The ranges that begin inside the given addresses.
pub fn within(start: u64, end: u64) -> Vec<Arc<Range>> {
    TABLE.read().range(start..end).map(|(_, range)| range.clone()).collect()
}

/// Takes the context's memory away. If work may still be running, the memory stays mapped for good.
pub fn forget_context(context: &'static Context, idle: bool) {
    let gone: Vec<_> = {
        let mut table = TABLE.write();
        let of_context = |range: &Range| range.context.is_some_and(|owner| owner.is(context));
        let starts: Vec<u64> =
            table.values().filter(|range| of_context(range)).map(|range| range.start).collect();
        starts.iter().filter_map(|start| table.remove(start)).collect()
    };
    if !idle {
        gone.into_iter().for_each(std::mem::forget);
    }
}

/// What a pointer argument of a copy points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Memory that the driver knows nothing of.
    Pageable,
    /// Host memory that devices can reach.
    Pinned,
    Device,
}

/// Checks that `len` bytes at `address` lie in memory that devices can access.
pub fn check_device(address: u64, len: u64) -> Result {
    match place(address, len)? {
        Place::Pageable if len > 0 => Err(INVALID_VALUE),
        _ => Ok(()),
    }
}

/// Checks that `len` bytes at `address` lie in memory that a context's device can access by itself.
pub fn check_reach(address: u64, len: u64, context: &Context) -> Result {
    check_device(address, len)?;
    let mut at = address;
    while at < address + len {
        let range = find(at).filter(|range| range.accessible_from(context)).ok_or(INVALID_VALUE)?;
        at = range.end();
    }
    Ok(())
}

/// Classifies memory; fails if a range that the driver knows holds the first byte but not all of them.
pub fn place(address: u64, len: u64) -> Result<Place> {
    let Some(range) = find(address) else { return Ok(Place::Pageable) };
    let place = if range.is_host() { Place::Pinned } else { Place::Device };
    let end = address.checked_add(len).ok_or(INVALID_VALUE)?;
    let mut covered = range;
    // Mappings beside each other in one reservation are one piece of memory.
    loop {
        if !covered.accessible() {
            return Err(INVALID_VALUE);
        }
        if end <= covered.end() {
            return Ok(place);
        }
        covered = find(covered.end()).ok_or(INVALID_VALUE)?;
    }
}

/// Runs an access to memory that may be gone by now: a fault becomes `CUDA_ERROR_ILLEGAL_ADDRESS`.
///
/// The access runs as a kernel of one block does, which is how its fault is caught. It must own nothing that a fault
/// would leave behind.
pub fn guarded<R>(access: impl FnOnce() -> R) -> Result<R> {
    type Slot<'a> = &'a mut dyn FnMut();

    unsafe extern "C" fn enter(arg: *const c_void) {
        // SAFETY: the argument is the copy of a pointer to a slot that lives until `run` returns.
        let slot = unsafe { *arg.cast::<*mut Slot>() };
        // SAFETY: as above; a launch of one thread calls it once.
        unsafe { (*slot)() }
    }

    static ACCESS: KernelInfo = KernelInfo {
        name: "access",
        arg_size: size_of::<*mut Slot>() as u32,
        shared_size: 0,
        max_threads: 1,
        entry: enter,
    };

    let (mut access, mut result) = (Some(access), None);
    let mut call = || result = access.take().map(|access| access());
    let mut slot: Slot = &mut call;
    let arg = (&raw mut slot as usize).to_ne_bytes();
    kernel::run(&ACCESS, 1, 1, &arg).map_err(|_| ILLEGAL_ADDRESS)?;
    result.ok_or(ILLEGAL_ADDRESS)
}
