//! The host's view of a communicator's host block: the words through which host and kernels tell each other
//! to stop.

use std::ptr::{addr_of, addr_of_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::context::Context;
use super::retire::Scratch;
use super::work::{DeviceError, HostBlock};
use crate::error::{Error, Result};

/// Bytes in front of the ring.
const RING_OFFSET: usize = 4096;
/// Operations that the ring remembers.
pub const RING_RECORDS: usize = 256;
/// "OXCCLRNG".
const RING_MAGIC: u64 = u64::from_le_bytes(*b"OXCCLRNG");
const RING_VERSION: u32 = 1;

/// How a reader recognises the ring, and whose it is.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RingHeader {
    pub magic: u64,
    pub version: u32,
    pub records: u32,
    pub rank: u32,
    pub nranks: u32,
    /// Operations enqueued so far; record `n % records` holds operation n, counted from 0. Stored (release)
    /// after the record.
    pub enqueued: u64,
    pub reserved: [u64; 4],
}

/// An operation as it was enqueued.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Record {
    pub number: u64,
    /// CLOCK_MONOTONIC.
    pub nanoseconds: u64,
    /// `Signature::fingerprint`; 0 for messages.
    pub fingerprint: u64,
    /// Bytes of the vector, or of all messages of the launch.
    pub bytes: u64,
    pub stream: u64,
    /// Launches that had ended when it was enqueued (`HostBlock::completed`).
    pub completed: u32,
    pub grid: u32,
    /// 1 when it went into a graph.
    pub captured: u32,
    /// Messages of the launch; 0 for a collective.
    pub messages: u32,
    pub reserved: u64,
}

#[derive(Debug)]
pub struct HostView {
    memory: Scratch,
    block: *mut HostBlock,
    /// Only the thread that holds the communicator's order writes the ring.
    enqueued: AtomicU64,
}

// SAFETY: the block is only accessed through atomics and volatile reads.
unsafe impl Send for HostView {}
// SAFETY: as above.
unsafe impl Sync for HostView {}

impl HostView {
    pub fn new(context: &Arc<Context>, rank: u32, nranks: u32) -> Result<HostView> {
        let bytes = RING_OFFSET + size_of::<RingHeader>() + RING_RECORDS * size_of::<Record>();
        let memory = Scratch::new(context, bytes)?;
        let block =
            memory.host_pointer().ok_or_else(|| Error::internal("host memory has a host address"))?.cast();
        let view = HostView { memory, block, enqueued: AtomicU64::new(0) };
        let header = RingHeader {
            magic: RING_MAGIC,
            version: RING_VERSION,
            records: RING_RECORDS as u32,
            rank,
            nranks,
            enqueued: 0,
            reserved: [0; 4],
        };
        // SAFETY: the header lies in the mapping, which nobody else knows yet.
        unsafe { view.ring().write_volatile(header) };
        Ok(view)
    }

    /// Puts an operation into the ring; `number`, `nanoseconds` and `completed` are filled in here. One caller at a time.
    pub fn record(&self, record: Record) {
        // Relaxed: callers take turns under the communicator's order.
        let number = self.enqueued.load(Ordering::Relaxed);
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: out pointer to a live structure; the vDSO answers without a system call.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
        let nanoseconds = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        let completed = self.completed();
        let slot = number as usize % RING_RECORDS;
        // SAFETY: the records lie behind the header in the mapping; a reader tells a torn record by `enqueued`.
        unsafe {
            let records = self.ring().add(1).cast::<Record>();
            records.add(slot).write_volatile(Record { number, nanoseconds, completed, ..record });
        }
        self.enqueued.store(number + 1, Ordering::Relaxed);
        // SAFETY: an aligned word of the mapping. Release: a reader who sees the count finds the record.
        unsafe { AtomicU64::from_ptr(addr_of_mut!((*self.ring()).enqueued)) }
            .store(number + 1, Ordering::Release);
    }

    fn ring(&self) -> *mut RingHeader {
        // SAFETY: the mapping is larger than the offset.
        unsafe { self.block.cast::<u8>().add(RING_OFFSET).cast() }
    }

    /// Device address of the block.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Ends every wait of the communicator's kernels. Relaxed: kernels act on the word alone.
    pub fn abort(&self) {
        self.word(|block| {
            // SAFETY: `block` points into the live mapping.
            unsafe { addr_of_mut!((*block).abort) }
        })
        .store(1, Ordering::Relaxed);
    }

    /// What a kernel reported. Acquire: the kernel writes the code last, so the other fields are whole once
    /// it is seen.
    pub fn error(&self) -> Option<DeviceError> {
        let code = self.word(|block| {
            // SAFETY: `block` points into the live mapping.
            unsafe { addr_of_mut!((*block).error.code) }
        });
        if code.load(Ordering::Acquire) == 0 {
            return None;
        }
        // SAFETY: the field lies in the live mapping; kernels do not change it once the code is set.
        Some(unsafe { addr_of!((*self.block).error).read_volatile() })
    }

    /// Operations finished so far, modulo 2^32.
    pub fn completed(&self) -> u32 {
        self.word(|block| {
            // SAFETY: `block` points into the live mapping.
            unsafe { addr_of_mut!((*block).completed) }
        })
        .load(Ordering::Relaxed)
    }

    fn word(&self, field: impl FnOnce(*mut HostBlock) -> *mut u32) -> &AtomicU32 {
        // SAFETY: an aligned word of the mapping, which lives as long as `self`; host and GPU access it
        // atomically.
        unsafe { AtomicU32::from_ptr(field(self.block)) }
    }
}

const _: () = {
    assert!(size_of::<HostBlock>() <= RING_OFFSET);
    assert!(size_of::<RingHeader>() == 64 && size_of::<Record>() == 64);
};
