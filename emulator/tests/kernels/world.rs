//! A communicator's memory for all ranks in one process, and launches of kernels on it, without a driver.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_emulator::kernel;

use super::gpu::layout::{Argument, KERNELS, Layout};
use super::gpu::work::*;

/// Zeroed memory at an address that is a multiple of 256.
pub struct Area {
    words: Vec<u128>,
}

impl Area {
    pub fn new(bytes: usize) -> Self {
        Self { words: vec![0; bytes.div_ceil(16) + 16] }
    }

    pub fn address(&self) -> u64 {
        (self.words.as_ptr() as u64).next_multiple_of(256)
    }

    pub fn write(&mut self, bytes: &[u8]) {
        let to = self.address() as *mut u8;
        assert!(to as usize + bytes.len() <= self.words.as_ptr_range().end as usize);
        // SAFETY: the bytes fit, and nobody else uses the memory yet.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }
}

struct Rank {
    state: Area,
    host: Area,
    base: Area,
    stage: Area,
    /// By sending peer.
    p2p: Vec<Area>,
    table: Area,
}

pub struct World {
    pub layout: Layout,
    ranks: Vec<Rank>,
}

impl World {
    /// All counters begin at `start`.
    pub fn new(nranks: u32, start: u32) -> Self {
        let layout = Layout::new(nranks);
        let n = nranks as usize;
        let mut ranks: Vec<Rank> = (0..n)
            .map(|_| Rank {
                state: Area::new(layout.state_bytes),
                host: Area::new(size_of::<HostBlock>()),
                base: Area::new(layout.base_bytes),
                stage: Area::new(layout.stage_bytes),
                p2p: (0..n).map(|_| Area::new(layout.p2p_bytes)).collect(),
                table: Area::new(n * size_of::<PeerArgs>()),
            })
            .collect();
        for rank in &mut ranks {
            rank.state.write(&layout.initial_state(start));
            rank.base.write(&layout.initial_mailboxes(start));
        }
        let mut world = Self { layout, ranks };
        for rank in 0..n {
            let table: Vec<PeerArgs> = (0..n).map(|peer| world.peer_args(rank, peer)).collect();
            // SAFETY: plain data without padding.
            let bytes = unsafe { std::slice::from_raw_parts(table.as_ptr().cast(), size_of_val(&table[..])) };
            world.ranks[rank].table.write(bytes);
        }
        world
    }

    fn peer_args(&self, rank: usize, peer: usize) -> PeerArgs {
        if rank == peer {
            return PeerArgs::default();
        }
        PeerArgs {
            remote_base: self.ranks[peer].base.address(),
            local_base: self.ranks[rank].base.address(),
            remote_stage: self.ranks[peer].stage.address(),
            local_stage: self.ranks[rank].stage.address(),
            remote_p2p: self.ranks[peer].p2p[rank].address(),
            local_p2p: self.ranks[rank].p2p[peer].address(),
        }
    }

    pub fn comm(&self, rank: u32) -> CommArgs {
        let own = &self.ranks[rank as usize];
        let mut comm = self.layout.comm_args(rank);
        comm.state = own.state.address();
        comm.host = own.host.address();
        comm.table = own.table.address();
        for peer in 0..self.ranks.len().min(INLINE_PEERS) {
            comm.peers[peer] = self.peer_args(rank as usize, peer);
        }
        comm
    }

    fn word(&self, rank: u32, offset: usize) -> &AtomicU32 {
        let place = self.ranks[rank as usize].host.address() + offset as u64;
        // SAFETY: an aligned word of the host block, which lives as long as `self`.
        unsafe { AtomicU32::from_ptr(place as *mut u32) }
    }

    pub fn abort(&self, rank: u32) {
        self.word(rank, std::mem::offset_of!(HostBlock, abort)).store(1, Ordering::Relaxed);
    }

    pub fn abort_all(&self) {
        (0..self.layout.nranks).for_each(|rank| self.abort(rank));
    }

    pub fn completed(&self, rank: u32) -> u32 {
        self.word(rank, std::mem::offset_of!(HostBlock, completed)).load(Ordering::Relaxed)
    }

    pub fn error(&self, rank: u32) -> Option<DeviceError> {
        let offset = std::mem::offset_of!(HostBlock, error);
        if self.word(rank, offset).load(Ordering::Acquire) == 0 {
            return None;
        }
        let place = self.ranks[rank as usize].host.address() + offset as u64;
        // SAFETY: the record is written before its code, and only once.
        Some(unsafe { *(place as *const DeviceError) })
    }

    /// The word that the probe kernel of `sender` wrote for `receiver`.
    pub fn probed(&self, receiver: u32, sender: u32) -> u32 {
        let place = self.ranks[receiver as usize].base.address()
            + u64::from(self.layout.mailbox_offset)
            + u64::from(sender * MAILBOX_STRIDE)
            + std::mem::offset_of!(Mailbox, probe) as u64;
        // SAFETY: an aligned word of the base region.
        unsafe { *(place as *const u32) }
    }
}

/// Which LL FIFO of a pair: that of collectives on channel 0, or that of messages.
#[derive(Debug, Clone, Copy)]
pub enum LlFifo {
    Collectives,
    Messages,
}

impl LlFifo {
    pub fn slots(self) -> u32 {
        match self {
            Self::Collectives => LL_SLOTS,
            Self::Messages => P2P_LL_SLOTS,
        }
    }
}

impl World {
    /// The FIFO's slots, one after the other, as lines. Nothing may run.
    fn ll_lines(&mut self, receiver: u32, sender: u32, fifo: LlFifo) -> &mut [[u32; 4]] {
        let layout = &self.layout;
        let sender = (sender - u32::from(sender > receiver)) as usize;
        let (offset, slot, before) = match fifo {
            LlFifo::Collectives => {
                (layout.ll_offset, 2 * layout.ll_chunk, sender * layout.ll_channels as usize)
            }
            LlFifo::Messages => (layout.p2p_ll_offset, 2 * layout.p2p_ll_chunk, sender),
        };
        let bytes = (fifo.slots() * slot) as usize;
        let place =
            self.ranks[receiver as usize].base.address() + u64::from(offset) + (before * bytes) as u64;
        // SAFETY: inside the base region (see `CommArgs`), which nothing else uses meanwhile.
        unsafe { std::slice::from_raw_parts_mut(place as *mut [u32; 4], bytes / 16) }
    }

    /// Fills the slots with lines that were left when the flags of the `slots` steps behind `step` were in use before.
    pub fn plant_stale_lines(&mut self, receiver: u32, sender: u32, fifo: LlFifo, step: u32) {
        let lines = self.ll_lines(receiver, sender, fifo);
        let per_slot = lines.len() / fifo.slots() as usize;
        for next in 1..=fifo.slots() {
            let step = step.wrapping_add(next);
            let flag = (step & 0x7fff_ffff) + 1;
            let first = (step % fifo.slots()) as usize * per_slot;
            lines[first..first + per_slot].fill([0xdead_beef, flag, 0xdead_beef, flag]);
        }
    }

    /// Lines with a flag.
    pub fn flagged_lines(&mut self, receiver: u32, sender: u32, fifo: LlFifo) -> usize {
        self.ll_lines(receiver, sender, fifo).iter().filter(|line| line[1] != 0 || line[3] != 0).count()
    }
}

/// Runs kernel `index` of the table to its end.
pub fn launch<T>(index: usize, grid: u32, argument: &T) {
    let row = KERNELS[index];
    assert_eq!(row.argument.size(), size_of::<T>());
    let info = kernel::find(row.name).unwrap_or_else(|| panic!("there is no kernel {}", row.name));
    assert_eq!(info.arg_size as usize, row.argument.size(), "{}", row.name);
    assert_eq!(info.max_threads, MAX_THREADS);
    // SAFETY: the arguments are plain data; bytes are only copied.
    let bytes = unsafe { std::slice::from_raw_parts(ptr::from_ref(argument).cast::<u8>(), size_of::<T>()) };
    kernel::run(info, grid, row.threads, bytes).expect("the kernel ends by itself");
    let _ = Argument::Probe;
}

/// Memory of a caller, with guards on both sides; the usable part starts `offset` bytes behind an aligned address.
pub struct Buffer {
    area: Area,
    offset: usize,
    bytes: usize,
}

const GUARD: usize = 64;

impl Buffer {
    pub fn new(content: &[u8], offset: usize) -> Self {
        assert!(offset < 16);
        let mut area = Area::new(content.len() + 2 * GUARD + 16);
        let mut all = vec![0xa5u8; content.len() + 2 * GUARD + 16];
        all[GUARD + offset..][..content.len()].copy_from_slice(content);
        area.write(&all);
        Self { area, offset, bytes: content.len() }
    }

    pub fn address(&self) -> u64 {
        self.area.address() + (GUARD + self.offset) as u64
    }

    pub fn content(&self) -> &[u8] {
        // SAFETY: kernels have ended when tests look.
        unsafe { std::slice::from_raw_parts(self.address() as *const u8, self.bytes) }
    }

    pub fn assert_guards(&self) {
        let from = self.area.address() as *const u8;
        // SAFETY: as above; both guards belong to the area.
        let (before, after) = unsafe {
            (
                std::slice::from_raw_parts(from, GUARD + self.offset),
                std::slice::from_raw_parts(from.add(GUARD + self.offset + self.bytes), GUARD),
            )
        };
        assert!(before.iter().chain(after).all(|&byte| byte == 0xa5), "a kernel wrote beside a buffer");
    }
}
