//! User memory: buffers made for communication, and buffers that callers make known.
//!
//! Registering takes note and nothing else so far: operations stage through the library's own memory whether a buffer is registered or not.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::gpu::context::Context;
use crate::gpu::driver::driver;
use crate::gpu::memory::{Medium, Memory};
use crate::gpu::stream::RelaxedCapture;

/// Memory of ncclMemAlloc, by address.
static ALLOCATED: LazyLock<Mutex<HashMap<u64, Arc<Memory>>>> = LazyLock::new(Mutex::default);

/// Device memory of the current device that peers can map; all devices of the process that can reach it may use it.
pub fn allocate(bytes: usize) -> Result<u64> {
    let context = Context::current()?;
    let _bound = context.bind()?;
    let _relaxed = RelaxedCapture::enter()?;
    let memory = Memory::new(&context, Medium::Gpu, bytes.max(1))?;
    for ordinal in 0..driver()?.devices {
        if ordinal != context.device().ordinal && context.device().can_access(ordinal)? {
            memory.allow(ordinal)?;
        }
    }
    let address = memory.address();
    ALLOCATED.lock().insert(address, memory);
    Ok(address)
}

/// Frees memory of [`allocate`], on any device and in a group too. It waits for nothing, so the caller must know that nothing on a GPU uses the
/// memory any more: a wait could be for a kernel that waits for what this thread, or another rank of the process, does next.
pub fn free(address: u64) -> Result<()> {
    let memory = ALLOCATED.lock().remove(&address).ok_or_else(|| {
        Error::argument(format!("{address:#x} is no memory of ncclMemAlloc, or was freed already"))
    })?;
    let _relaxed = RelaxedCapture::enter()?;
    drop(memory);
    Ok(())
}

/// Buffers that callers made known, by handle.
#[derive(Debug, Default)]
pub struct Buffers {
    known: Mutex<HashMap<usize, (u64, usize)>>,
}

/// Handles look like pointers and are used once.
static NEXT: AtomicUsize = AtomicUsize::new(0x0cc2_0000_0000);

impl Buffers {
    pub fn add(&self, address: u64, bytes: usize) -> usize {
        // Relaxed: only uniqueness matters.
        let handle = NEXT.fetch_add(64, Ordering::Relaxed);
        self.known.lock().insert(handle, (address, bytes));
        handle
    }

    pub fn remove(&self, handle: usize) -> Result<()> {
        self.known.lock().remove(&handle).map(drop).ok_or_else(|| {
            Error::usage(format!(
                "handle {handle:#x} is of no buffer that is registered with this communicator"
            ))
        })
    }
}
