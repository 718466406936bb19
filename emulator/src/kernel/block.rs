//! One block of a launch, on one OS thread: its fibers, barriers, shared memory and way out.
//!
//! A block with one thread is a plain call. With more, each thread is a fiber, and the next to run is drawn at random
//! from those that can, so that one seed gives one schedule. A fiber gives up the thread only at a barrier, in
//! `relax` and at its end. A block ends when all its threads have, or at once when it faults, when a barrier can never
//! complete, or when another block of its grid has failed and it waits in `relax`.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::time::Duration;

use super::KernelFault;
use super::context::{Context, Stack, enter, resume, switch};
use super::fault;
use super::launch::Grid;
use super::memory::StoreBuffers;

/// What `enter` and `switch` return when the block was left early.
pub(super) const ABANDONED: usize = 1;

const BARRIERS: usize = 16;
/// Turns of a spin loop that only yield; after them each turn is a nap.
const YIELDS: u32 = 200;
const NAP: Duration = Duration::from_micros(100);
/// A thread that takes longer than this between two turns has worked, not spun.
const TURN_NS: u64 = 1_000;

pub(super) struct Block {
    pub(super) grid: *const Grid,
    pub(super) id: u32,
    pub(super) threads: u32,
    /// The thread that runs.
    pub(super) current: u32,
    pub(super) shared: *mut u8,
    pub(super) random: Random,
    /// In weak-memory mode.
    pub(super) buffers: Option<StoreBuffers>,
    /// Where the block was entered. Null while no kernel runs.
    root: Context,
    fibers: Vec<Fiber>,
    /// Fibers that could run, without the one that does.
    ready: Vec<u32>,
    barriers: [Barrier; BARRIERS],
    /// Turns of spin loops in a row, and when the last one ended.
    turns: u32,
    yields: u32,
    last_turn: u64,
    fault: Option<KernelFault>,
    reason: Option<String>,
}

struct Fiber {
    context: Context,
    /// The barrier at which it waits.
    waits: Option<u32>,
}

#[derive(Clone, Copy)]
struct Barrier {
    arrived: u32,
    count: u32,
}

thread_local! {
    static RUNNING: Cell<*mut Block> = const { Cell::new(ptr::null_mut()) };
}

/// The block that the calling thread runs, or null.
pub(super) fn running() -> *mut Block {
    RUNNING.get()
}

/// How a block ended.
pub(super) enum End {
    Finished,
    Faulted(KernelFault, Option<String>),
    /// Left because another block had failed.
    GaveUp,
}

/// Runs block `id` of `grid` on the calling thread.
pub(super) fn run(grid: &Grid, id: u32) -> End {
    fault::arm_thread();
    let mut block = Block {
        grid,
        id,
        threads: grid.threads,
        current: 0,
        shared: ptr::null_mut(),
        random: Random::new(grid.seed ^ u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        buffers: grid.weak_memory.then(|| StoreBuffers::new(grid.threads)),
        root: ptr::null_mut(),
        fibers: Vec::new(),
        ready: Vec::new(),
        barriers: [Barrier { arrived: 0, count: 0 }; BARRIERS],
        turns: 0,
        yields: 0,
        last_turn: 0,
        fault: None,
        reason: None,
    };
    SHARED.with(|shared| {
        let size = grid.info.shared_size as usize;
        match shared.zeroed(size) {
            Ok(memory) => block.shared = memory,
            Err(error) => block.reason = Some(format!("no {size} bytes of shared memory: {error}")),
        }
        if block.reason.is_none() {
            execute(&mut block);
        }
    });
    match (block.fault, block.reason) {
        (Some(fault), reason) => End::Faulted(fault, reason),
        (None, Some(reason)) => End::Faulted(KernelFault::Trap, Some(reason)),
        (None, None) if block.root.is_null() => End::Finished,
        (None, None) => End::GaveUp,
    }
}

/// Enters the kernel. Afterwards `root` is null if every thread has ended.
fn execute(block: &mut Block) {
    let mut stacks = Vec::new();
    if block.threads > 1
        && let Err(error) = Stack::take(block.threads as usize, &mut stacks)
    {
        block.reason = Some(format!("no stacks for {} threads: {error}", block.threads));
        return;
    }
    let this = &raw mut *block;
    block.fibers.extend(
        stacks.iter().map(|stack| Fiber { context: stack.prepare(fiber_main, this.cast()), waits: None }),
    );
    block.ready.extend(0..block.fibers.len() as u32);
    // SAFETY: from here to the reset of RUNNING the block is reached only through `this`, on this thread: by the kernel's
    // calls and by the fault handler. `enter` and `switch` return once; whoever resumes `root` does so while this frame
    // is there.
    unsafe {
        RUNNING.set(this);
        let left = match pick(this) {
            None => enter(&raw mut (*this).root, single_main, this.cast()),
            Some(first) => switch(&raw mut (*this).root, (*fiber(this, first)).context),
        };
        RUNNING.set(ptr::null_mut());
        if left != ABANDONED {
            (*this).root = ptr::null_mut();
        }
    }
    Stack::give_back(&mut stacks);
}

/// A block of one thread: no fiber, a call.
extern "C" fn single_main(block: *mut c_void) {
    // SAFETY: `enter` was given this thread's block.
    unsafe { thread_main(block.cast()) };
}

extern "C" fn fiber_main(block: *mut c_void) {
    let block: *mut Block = block.cast();
    // SAFETY: the fiber was prepared with this thread's block. It ends by continuing another context; its own is never
    // continued again.
    unsafe {
        thread_main(block);
        match pick(block) {
            Some(next) => resume((*fiber(block, next)).context, 0),
            None if none_waits(block) => resume((*block).root, 0),
            None => deadlock(block),
        }
    }
}

/// # Safety
/// `block` runs on the calling thread.
unsafe fn thread_main(block: *mut Block) {
    // SAFETY: the grid outlives its blocks, and its argument has the size and alignment that the kernel expects.
    unsafe {
        let grid = (*block).grid;
        ((*grid).info.entry)((*grid).arg);
        flush(block);
    }
}

/// Takes the next fiber out of those that are ready and makes it the current one.
///
/// # Safety
/// `block` runs on the calling thread.
unsafe fn pick(block: *mut Block) -> Option<u32> {
    // SAFETY: only this thread uses the block, and no other reference to it lives across the calls of this module.
    let block = unsafe { &mut *block };
    if block.ready.is_empty() {
        return None;
    }
    let index = block.random.below(block.ready.len() as u32) as usize;
    let next = block.ready.swap_remove(index);
    block.current = next;
    Some(next)
}

/// Completes the running thread's delayed stores, and those of its block that it has seen.
///
/// # Safety
/// `block` runs on the calling thread.
pub(super) unsafe fn flush(block: *mut Block) {
    // SAFETY: see `pick`. A store to a bad address leaves through the fault handler; nothing here needs to be dropped.
    unsafe {
        let block = &mut *block;
        if let Some(buffers) = &mut block.buffers {
            buffers.flush(block.current, &mut block.random);
        }
    }
}

/// Waits until `count` threads have reached barrier `id`.
///
/// # Safety
/// `block` runs on the calling thread, which is inside a kernel.
pub(super) unsafe fn barrier(block: *mut Block, id: u32, count: u32) {
    // SAFETY: see `pick`; the references end before the switch.
    unsafe {
        let this = &mut *block;
        let thread = this.current;
        if let Some(buffers) = &mut this.buffers {
            buffers.show_block(thread, &mut this.random);
        }
        if this.threads == 1 {
            return;
        }
        let Some(barrier) = this.barriers.get_mut(id as usize) else {
            trap(block, format!("barrier {id} does not exist"));
        };
        if barrier.arrived == 0 {
            barrier.count = count;
        }
        if barrier.count != count || count == 0 || count > this.threads {
            let text =
                format!("thread {thread} at barrier {id}: {count} threads, others said {}", barrier.count);
            trap(block, text);
        }
        barrier.arrived += 1;
        this.turns = 0;
        this.yields = 0;
        if barrier.arrived == count {
            barrier.arrived = 0;
            for (other, fiber) in this.fibers.iter_mut().enumerate() {
                if fiber.waits == Some(id) {
                    fiber.waits = None;
                    this.ready.push(other as u32);
                }
            }
            this.ready.push(thread);
        } else {
            this.fibers[thread as usize].waits = Some(id);
        }
        match pick(block) {
            None => deadlock(block),
            Some(next) => go(block, thread, next),
        }
    }
}

/// One turn of a spin loop: runs another fiber, and gives the CPU away when all of them only spin.
///
/// # Safety
/// `block` runs on the calling thread, which is inside a kernel.
pub(super) unsafe fn relax(block: *mut Block) {
    // SAFETY: see `pick`; the references end before the switch. The grid outlives its blocks.
    unsafe {
        let this = &mut *block;
        let thread = this.current;
        if let Some(buffers) = &mut this.buffers {
            buffers.tick(thread, &mut this.random);
        }
        let now = nanoseconds();
        if now.wrapping_sub(this.last_turn) > TURN_NS {
            this.turns = 0;
            this.yields = 0;
        }
        this.turns += 1;
        if this.turns > this.ready.len() as u32 {
            this.turns = 0;
            if (*this.grid).failed() {
                resume(this.root, ABANDONED);
            }
            if this.yields < YIELDS {
                this.yields += 1;
                libc::sched_yield();
            } else {
                let nap = libc::timespec { tv_sec: 0, tv_nsec: NAP.as_nanos() as i64 };
                libc::nanosleep(&nap, ptr::null_mut());
            }
            this.last_turn = nanoseconds();
        } else {
            this.last_turn = now;
        }
        if let Some(next) = pick(block) {
            (*block).ready.push(thread);
            go(block, thread, next);
        }
    }
}

/// # Safety
/// `from` is the fiber that runs, `to` the one that `pick` chose.
unsafe fn go(block: *mut Block, from: u32, to: u32) {
    if from == to {
        return;
    }
    // SAFETY: `to` was left by a switch or was never started; the vector of fibers does not change during a launch.
    unsafe {
        switch(&raw mut (*fiber(block, from)).context, (*fiber(block, to)).context);
    }
}

/// # Safety
/// `block` runs on the calling thread.
unsafe fn none_waits(block: *mut Block) -> bool {
    // SAFETY: as the caller says; the reference ends here.
    unsafe { &*block }.fibers.iter().all(|fiber| fiber.waits.is_none())
}

/// # Safety
/// `block` runs on the calling thread, and `thread` is one of its fibers.
unsafe fn fiber(block: *mut Block, thread: u32) -> *mut Fiber {
    // SAFETY: as the caller says; the reference to the vector ends here.
    unsafe { &raw mut (&mut (*block).fibers)[thread as usize] }
}

/// Ends the block with a fault of its own making.
///
/// # Safety
/// `block` runs on the calling thread, inside a kernel, and the calling frames own nothing.
pub(super) unsafe fn trap(block: *mut Block, reason: String) -> ! {
    // SAFETY: as the caller says.
    unsafe {
        (*block).reason = Some(reason);
        resume(fail(block, KernelFault::Trap), ABANDONED)
    }
}

/// # Safety
/// As `trap`.
unsafe fn deadlock(block: *mut Block) -> ! {
    // SAFETY: see `pick`.
    let barriers = unsafe { &(*block).barriers };
    let waiting: Vec<String> = (0..)
        .zip(barriers)
        .filter(|(_, barrier)| barrier.arrived > 0)
        .map(|(id, barrier)| format!("barrier {id} has {} of {}", barrier.arrived, barrier.count))
        .collect();
    let reason = format!("all threads wait for ever: {}", waiting.join(", "));
    drop(waiting);
    // SAFETY: as the caller says.
    unsafe { trap(block, reason) }
}

/// Notes a fault and returns the context that leaves the block. Called by the fault handler: it must not allocate.
///
/// # Safety
/// `block` runs on the calling thread, inside a kernel.
pub(super) unsafe fn fail(block: *mut Block, fault: KernelFault) -> Context {
    // SAFETY: as the caller says; both fields are plain data.
    unsafe {
        (*block).fault = Some(fault);
        (*block).root
    }
}

/// Nanoseconds of the monotonic clock.
pub(super) fn nanoseconds() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is valid; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// xorshift64*: small, seeded, and good enough to shuffle.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        // One step of splitmix64, so that neighbouring seeds differ in all bits; zero is the one state to avoid.
        let mut state = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Random((state ^ (state >> 31)).max(1))
    }

    /// A number below `bound`, which is not zero.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        ((high * u64::from(bound)) >> 32) as u32
    }
}

thread_local! {
    static SHARED: SharedMemory = const { SharedMemory { end: Cell::new(ptr::null_mut()), size: Cell::new(0) } };
}

/// Shared memory of the blocks that a thread runs, one after the other. It ends at a page that no access survives.
struct SharedMemory {
    end: Cell<*mut u8>,
    size: Cell<usize>,
}

const PAGE: usize = 4096;

impl SharedMemory {
    fn zeroed(&self, size: usize) -> std::io::Result<*mut u8> {
        let size = size.next_multiple_of(128);
        if size > self.size.get() || self.end.get().is_null() {
            self.grow(size.max(1).next_multiple_of(PAGE))?;
        }
        // SAFETY: the mapping holds at least `size` bytes below its end, which only this thread's block uses.
        unsafe {
            let memory = self.end.get().sub(size);
            ptr::write_bytes(memory, 0, size);
            Ok(memory)
        }
    }

    fn grow(&self, size: usize) -> std::io::Result<()> {
        self.unmap();
        // SAFETY: a fresh mapping; the guard page is part of it.
        unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let base = libc::mmap(ptr::null_mut(), size + PAGE, protection, flags, -1, 0);
            if base == libc::MAP_FAILED {
                return Err(std::io::Error::last_os_error());
            }
            let end = base.cast::<u8>().add(size);
            libc::mprotect(end.cast(), PAGE, libc::PROT_NONE);
            self.end.set(end);
            self.size.set(size);
        }
        Ok(())
    }

    fn unmap(&self) {
        let (end, size) = (self.end.replace(ptr::null_mut()), self.size.replace(0));
        if !end.is_null() {
            // SAFETY: the mapping was made by `grow` and no block runs on this thread.
            unsafe { libc::munmap(end.sub(size).cast(), size + PAGE) };
        }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        self.unmap();
    }
}
