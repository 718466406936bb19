//! Memory accesses that others can see, and their delay in weak-memory mode.
//!
//! A store buffer holds what its thread has stored but nobody else sees yet. Stores leave it in a random order, save
//! that overlapping ones keep theirs (the GPU's memory model keeps the order per location), and all of them leave
//! before the thread's next release or fence has effect. Loads are not delayed. A thread sees its own stores.
//!
//! A barrier makes stores visible to the block, not to the rest of the system: they move to the block's buffer, and leave
//! that before a release or fence of any of its threads has effect, because what one of them has seen goes before
//! what it releases.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::block::Random;

/// Stores that one thread may have in flight; one more pushes another out.
const CAPACITY: usize = 32;
/// The same for the block's buffer. Every load looks through it.
const BLOCK_CAPACITY: usize = 64;

/// The buffers of a block in weak-memory mode.
pub(super) struct StoreBuffers {
    /// Of each thread, what it stored since its last barrier.
    threads: Vec<StoreBuffer>,
    /// What any thread stored before a barrier. Older than everything in `threads` at the same place.
    block: StoreBuffer,
}

impl StoreBuffers {
    pub(super) fn new(threads: u32) -> StoreBuffers {
        StoreBuffers {
            threads: (0..threads).map(|_| StoreBuffer::default()).collect(),
            block: StoreBuffer::default(),
        }
    }

    /// # Safety
    /// `value` holds `bytes` bytes; `bytes` is 1, 2, 4, 8 or 16.
    pub(super) unsafe fn push(
        &mut self,
        thread: u32,
        p: *mut u8,
        value: *const u8,
        bytes: usize,
        random: &mut Random,
    ) {
        let buffer = &mut self.threads[thread as usize];
        for (offset, part) in parts(bytes) {
            let mut bits = [0; 8];
            // SAFETY: the part lies inside the value.
            unsafe { std::ptr::copy_nonoverlapping(value.add(offset), bits.as_mut_ptr(), part) };
            let store = Store { address: p as usize + offset, bytes: part, value: u64::from_le_bytes(bits) };
            if buffer.stores.len() == CAPACITY {
                buffer.complete_one(&mut self.block, random);
            }
            buffer.stores.push(store);
        }
        if random.below(4) == 0 {
            buffer.complete_one(&mut self.block, random);
        }
    }

    /// Lays what the thread sees of delayed stores over what it has loaded.
    ///
    /// # Safety
    /// `value` holds the `bytes` bytes that were read at `address`.
    pub(super) unsafe fn forward(&self, thread: u32, address: usize, value: *mut u8, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            self.block.forward(address, value, bytes);
            self.threads[thread as usize].forward(address, value, bytes);
        }
    }

    /// Lets time pass: a store that is never followed by a release becomes visible all the same.
    pub(super) fn tick(&mut self, thread: u32, random: &mut Random) {
        let buffer = &mut self.threads[thread as usize];
        if !buffer.stores.is_empty() && random.below(2) == 0 {
            buffer.complete_one(&mut self.block, random);
        }
        if !self.block.stores.is_empty() && random.below(2) == 0 {
            self.block.complete_one_of_block(random);
        }
    }

    /// Completes what the thread has stored and what it has seen of its block's stores.
    pub(super) fn flush(&mut self, thread: u32, random: &mut Random) {
        let buffer = &mut self.threads[thread as usize];
        while !buffer.stores.is_empty() {
            buffer.complete_one(&mut self.block, random);
        }
        while !self.block.stores.is_empty() {
            self.block.complete_one_of_block(random);
        }
    }

    /// Completes the stores that an atomic operation of the thread on these bytes must follow.
    pub(super) fn flush_range(&mut self, thread: u32, address: usize, bytes: usize) {
        self.block.complete_range(address, bytes);
        let buffer = &mut self.threads[thread as usize];
        while let Some(index) = buffer.stores.iter().position(|store| store.overlaps(address, bytes)) {
            buffer.complete(index, &mut self.block);
        }
    }

    /// The thread has come to a barrier: the block sees its stores.
    pub(super) fn show_block(&mut self, thread: u32, random: &mut Random) {
        for store in std::mem::take(&mut self.threads[thread as usize].stores) {
            if self.block.stores.len() == BLOCK_CAPACITY {
                self.block.complete_one_of_block(random);
            }
            self.block.stores.push(store);
        }
    }
}

#[derive(Default)]
struct StoreBuffer {
    /// Oldest first. Each is 1, 2, 4 or 8 bytes, aligned.
    stores: Vec<Store>,
}

#[derive(Clone, Copy)]
struct Store {
    address: usize,
    bytes: usize,
    value: u64,
}

impl Store {
    fn overlaps(&self, address: usize, bytes: usize) -> bool {
        self.address < address + bytes && address < self.address + self.bytes
    }

    fn perform(&self) {
        // SAFETY: the kernel stored to this address; if it may not, the fault handler ends its block.
        unsafe { store_part(self.address as *mut u8, self.value, self.bytes, Ordering::Relaxed) };
    }
}

impl StoreBuffer {
    /// # Safety
    /// `value` holds the `bytes` bytes that were read at `address`.
    unsafe fn forward(&self, address: usize, value: *mut u8, bytes: usize) {
        for store in self.stores.iter().filter(|store| store.overlaps(address, bytes)) {
            let bits = store.value.to_le_bytes();
            let from = store.address.max(address);
            let to = (store.address + store.bytes).min(address + bytes);
            // SAFETY: `from..to` lies inside both the store and the value.
            unsafe {
                let source = bits.as_ptr().add(from - store.address);
                std::ptr::copy_nonoverlapping(source, value.add(from - address), to - from);
            }
        }
    }

    fn complete_one(&mut self, block: &mut StoreBuffer, random: &mut Random) {
        let chosen = random.below(self.stores.len() as u32) as usize;
        self.complete(chosen, block);
    }

    /// Completes a thread's store `index`, or the oldest one that has to become visible before it.
    fn complete(&mut self, index: usize, block: &mut StoreBuffer) {
        let store = self.take(index);
        block.complete_range(store.address, store.bytes);
        store.perform();
    }

    fn complete_one_of_block(&mut self, random: &mut Random) {
        let chosen = random.below(self.stores.len() as u32) as usize;
        self.take(chosen).perform();
    }

    fn complete_range(&mut self, address: usize, bytes: usize) {
        while let Some(index) = self.stores.iter().position(|store| store.overlaps(address, bytes)) {
            self.take(index).perform();
        }
    }

    /// Removes store `index`, or the oldest one that has to become visible before it.
    fn take(&mut self, mut index: usize) -> Store {
        while let Some(older) = self.stores[..index]
            .iter()
            .position(|store| store.overlaps(self.stores[index].address, self.stores[index].bytes))
        {
            index = older;
        }
        self.stores.remove(index)
    }
}

/// The single-copy-atomic parts of an access: offset and size.
fn parts(bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    let part = bytes.min(8);
    (0..bytes / part).map(move |index| (index * part, part))
}

/// # Safety
/// `value` holds `bytes` bytes; `bytes` is 1, 2, 4, 8 or 16 and `p` is aligned to it. `p` itself may be bad while a kernel runs.
pub(super) unsafe fn store(p: *mut u8, value: *const u8, bytes: usize, order: Ordering) {
    for (offset, part) in parts(bytes) {
        let mut bits = [0; 8];
        // SAFETY: the part lies inside the value; the rest is the caller's word.
        unsafe {
            std::ptr::copy_nonoverlapping(value.add(offset), bits.as_mut_ptr(), part);
            store_part(p.add(offset), u64::from_le_bytes(bits), part, order);
        }
    }
}

/// # Safety
/// As `store`, with room for `bytes` bytes at `value`.
pub(super) unsafe fn load(p: *const u8, value: *mut u8, bytes: usize, order: Ordering) {
    for (offset, part) in parts(bytes) {
        // SAFETY: as the caller says; an aligned part of an aligned access is aligned.
        unsafe {
            let p = p.add(offset).cast_mut();
            let bits = match part {
                1 => u64::from(AtomicU8::from_ptr(p).load(order)),
                2 => u64::from(AtomicU16::from_ptr(p.cast()).load(order)),
                4 => u64::from(AtomicU32::from_ptr(p.cast()).load(order)),
                _ => AtomicU64::from_ptr(p.cast()).load(order),
            };
            std::ptr::copy_nonoverlapping(bits.to_le_bytes().as_ptr(), value.add(offset), part);
        }
    }
}

/// # Safety
/// As `store`, for `bytes` of 1, 2, 4 or 8.
unsafe fn store_part(p: *mut u8, value: u64, bytes: usize, order: Ordering) {
    // SAFETY: as the caller says. The casts keep the low bytes, which are the value's own.
    unsafe {
        match bytes {
            1 => AtomicU8::from_ptr(p).store(value as u8, order),
            2 => AtomicU16::from_ptr(p.cast()).store(value as u16, order),
            4 => AtomicU32::from_ptr(p.cast()).store(value as u32, order),
            _ => AtomicU64::from_ptr(p.cast()).store(value, order),
        }
    }
}
