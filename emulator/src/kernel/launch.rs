//! Launches: one OS thread per block, all at the same time.
//!
//! The calling thread takes blocks as well, so that a launch of one block costs no hand-over. The others go to workers
//! that wait for the next launch afterwards. There are as many workers as blocks have ever run at once, because blocks
//! may wait for one another; only a grid that no GPU could hold at once runs with fewer than its blocks.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use super::block::{self, End};
use super::{Config, KernelFault, KernelInfo, log};

/// Blocks of one launch that run at once: as many as the largest GPU holds (SMs times blocks per SM), and more.
const MOST_AT_ONCE: u32 = 4096;

/// What the blocks of one launch have in common.
pub(super) struct Grid {
    pub(super) info: &'static KernelInfo,
    pub(super) blocks: u32,
    pub(super) threads: u32,
    pub(super) arg: *const c_void,
    pub(super) seed: u64,
    pub(super) weak_memory: bool,
    failed: AtomicBool,
    fault: Mutex<Option<KernelFault>>,
    /// The next block that nobody has taken.
    next: AtomicU64,
    /// Workers that may still take or run blocks.
    running: Mutex<u32>,
    ended: Condvar,
}

// SAFETY: `arg` is only read, and lives until the launching thread has seen every block end.
unsafe impl Send for Grid {}
// SAFETY: as above; everything else is synchronised.
unsafe impl Sync for Grid {}

pub(super) fn run(
    config: &Config,
    info: &'static KernelInfo,
    blocks: u32,
    asked: u32,
    arg: &[u8],
) -> Result<(), KernelFault> {
    static LAUNCHES: AtomicU64 = AtomicU64::new(0);
    assert_eq!(
        arg.len(),
        info.arg_size as usize,
        "the driver has compared the size of {}'s parameter",
        info.name
    );
    let aligned;
    let mut arg = arg.as_ptr();
    if !arg.cast::<Aligned>().is_aligned() {
        aligned = copy_aligned(arg, info.arg_size as usize);
        arg = aligned.as_ptr().cast();
    }
    // Relaxed: the number only has to differ from that of other launches.
    let launch = LAUNCHES.fetch_add(1, Ordering::Relaxed);
    let grid = Grid {
        info,
        blocks,
        threads: config.threads(info, asked),
        arg: arg.cast(),
        seed: config.seed.rotate_left(32) ^ launch,
        weak_memory: config.weak_memory,
        failed: AtomicBool::new(false),
        fault: Mutex::new(None),
        next: AtomicU64::new(0),
        running: Mutex::new(blocks.min(MOST_AT_ONCE).saturating_sub(1)),
        ended: Condvar::new(),
    };
    match blocks {
        0 => Ok(()),
        1 => {
            grid.run_block(0);
            grid.result()
        }
        _ => {
            let grid = Arc::new(grid);
            for _ in 1..blocks.min(MOST_AT_ONCE) {
                Worker::start(Job { grid: Arc::clone(&grid) });
            }
            grid.run_blocks();
            yield_until(|| *grid.running.lock() == 0);
            let mut running = grid.running.lock();
            while *running > 0 {
                grid.ended.wait(&mut running);
            }
            drop(running);
            grid.result()
        }
    }
}

#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Aligned([u8; 16]);

fn copy_aligned(arg: *const u8, size: usize) -> Vec<Aligned> {
    let mut copy = vec![Aligned([0; 16]); size.div_ceil(16)];
    // SAFETY: the source holds `size` bytes and the vector at least as many.
    unsafe { std::ptr::copy_nonoverlapping(arg, copy.as_mut_ptr().cast(), size) };
    copy
}

impl Grid {
    /// Whether a block has failed: the others then leave at their next turn of a spin loop.
    pub(super) fn failed(&self) -> bool {
        // Relaxed: nothing is read on the strength of it.
        self.failed.load(Ordering::Relaxed)
    }

    /// Runs blocks until none is left, or one has failed.
    fn run_blocks(&self) {
        while !self.failed() {
            // Relaxed: a block's number is all that is taken.
            match u32::try_from(self.next.fetch_add(1, Ordering::Relaxed)) {
                Ok(id) if id < self.blocks => self.run_block(id),
                _ => return,
            }
        }
    }

    fn run_block(&self, id: u32) {
        if let End::Faulted(fault, reason) = block::run(self, id) {
            let what = match (fault, reason) {
                (KernelFault::IllegalAddress(address), _) => {
                    format!("illegal access to address {address:#x}")
                }
                (KernelFault::Trap, Some(reason)) => reason,
                (KernelFault::Trap, None) => "trap".to_owned(),
            };
            log(&format!("kernel {}, block {id} of {}: {what}", self.info.name, self.blocks));
            self.fault.lock().get_or_insert(fault);
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    fn result(&self) -> Result<(), KernelFault> {
        self.fault.lock().map_or(Ok(()), Err)
    }
}

/// Gives the CPU away a few times before its caller goes to sleep: blocks of one launch end close together, and so do
/// launches follow one another, while a sleep costs a system call on either side.
fn yield_until(done: impl Fn() -> bool) {
    const YIELDS: u32 = 50;
    for _ in 0..YIELDS {
        if done() {
            return;
        }
        std::thread::yield_now();
    }
}

struct Job {
    grid: Arc<Grid>,
}

/// A thread that runs blocks of launches, one at a time.
struct Worker {
    job: Mutex<Option<Job>>,
    given: Condvar,
}

/// Workers without a job.
static IDLE: Mutex<Vec<Arc<Worker>>> = Mutex::new(Vec::new());

impl Worker {
    fn start(job: Job) {
        let idle = IDLE.lock().pop();
        if let Some(worker) = idle {
            *worker.job.lock() = Some(job);
            worker.given.notify_one();
            return;
        }
        let worker = Arc::new(Worker { job: Mutex::new(Some(job)), given: Condvar::new() });
        let thread = Arc::clone(&worker);
        let _signals = BlockedSignals::new();
        let spawned = std::thread::Builder::new()
            .name("emulated-block".to_owned())
            .stack_size(256 << 10)
            .spawn(move || thread.work());
        if let Err(error) = spawned {
            // A block may never start: the launch fails, and the blocks that run leave their spin loops.
            let job = worker.job.lock().take().expect("nobody else knows this worker");
            if !job.grid.failed.swap(true, Ordering::Relaxed) {
                log(&format!("kernel {}: no thread for a block: {error}", job.grid.info.name));
            }
            job.grid.fault.lock().get_or_insert(KernelFault::Trap);
            job.end();
        }
    }

    fn work(self: Arc<Self>) {
        loop {
            yield_until(|| self.job.lock().is_some());
            let mut slot = self.job.lock();
            let job = loop {
                match slot.take() {
                    Some(job) => break job,
                    None => self.given.wait(&mut slot),
                }
            };
            drop(slot);
            job.grid.run_blocks();
            // Before the launch ends, so that the next one finds this worker.
            IDLE.lock().push(Arc::clone(&self));
            job.end();
        }
    }
}

impl Job {
    fn end(self) {
        let mut running = self.grid.running.lock();
        *running -= 1;
        if *running == 0 {
            self.grid.ended.notify_one();
        }
    }
}

/// Keeps the application's signals away from threads that are created meanwhile; faults still arrive.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn new() -> Self {
        // SAFETY: all sets are valid for the calls, which only change this thread's mask.
        unsafe {
            let mut blocked: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut blocked);
            for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE] {
                libc::sigdelset(&mut blocked, fault);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &blocked, &mut before);
            BlockedSignals(before)
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: restores the mask that `new` has read.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}
