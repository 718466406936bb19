//! Descriptors that a forked child does not get.
//!
//! Close-on-exec does not help against children that never exec (data loader workers are such): they would keep a dead parent's
//! connections open, so that its peers do not notice its end, its ports taken and its GPU memory allocated. A [`PrivateFd`] is known
//! here from the moment it exists until it is closed, and is replaced by /dev/null in every forked child: the numbers stay valid
//! there. A fork waits until descriptors that are being made are known, and the other way round; both waits are short, and both
//! give up after [`PATIENCE`], so that a program's own handlers and locks cannot make a deadlock of them.
//!
//! fork() alone needs this: vfork() and posix_spawn() lead to an exec. Raw clone() and _Fork() run no handlers and are not covered.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow};

/// Descriptors with larger numbers than this are inherited as usual.
const KNOWN: usize = 1 << 20;
/// Far longer than any system call that is made with the gate held, or a fork, takes.
const PATIENCE: Duration = Duration::from_secs(1);
const NAP: Duration = Duration::from_micros(20);

/// A bit for each descriptor number that is ours.
static PRIVATE: [AtomicU64; KNOWN / 64] = [const { AtomicU64::new(0) }; KNOWN / 64];
/// Words of [`PRIVATE`] that were ever used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Threads that are making or closing descriptors (lower half), forks under way (upper half).
static GATE: AtomicU64 = AtomicU64::new(0);
const ONE_FORK: u64 = 1 << 32;

/// A descriptor of this process alone.
#[derive(Debug)]
pub struct PrivateFd {
    /// `None` only while it is dropped.
    fd: Option<OwnedFd>,
    known: bool,
}

impl PrivateFd {
    /// Makes a descriptor by a system call that does not block; no fork comes between its birth and its being known.
    pub fn create<E>(make: impl FnOnce() -> Result<OwnedFd, E>) -> Result<PrivateFd, E> {
        hold(|held| Ok(held.adopt(make()?)))
    }

    pub fn try_clone(&self) -> std::io::Result<PrivateFd> {
        PrivateFd::create(|| self.as_fd().try_clone_to_owned())
    }
}

/// A descriptor that was made elsewhere is private from here on; a child forked earlier has it.
impl From<OwnedFd> for PrivateFd {
    fn from(fd: OwnedFd) -> PrivateFd {
        hold(|held| held.adopt(fd))
    }
}

impl AsFd for PrivateFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("present until it is dropped").as_fd()
    }
}

impl AsRawFd for PrivateFd {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for PrivateFd {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        // Also with the gate held: a child forked in between would keep open what this process has closed.
        hold(|_| match self.known && !forget(fd.as_raw_fd()) {
            false => drop(fd),
            // In a forked child: the number stands for /dev/null, or for what the program has opened since it closed everything.
            true => std::mem::forget(fd),
        });
    }
}

/// Proof that no fork begins now.
pub struct Held(());

impl Held {
    pub fn adopt(&self, fd: OwnedFd) -> PrivateFd {
        let known = remember(fd.as_raw_fd());
        PrivateFd { fd: Some(fd), known }
    }
}

/// Runs `body`, which must be short and must not wait for other threads, while no fork begins.
pub fn hold<T>(body: impl FnOnce(&Held) -> T) -> T {
    prepared();
    let _inside = Inside::enter();
    body(&Held(()))
}

struct Inside {
    mask: Option<SigSet>,
}

impl Inside {
    fn enter() -> Inside {
        // A signal handler that forks would wait for the very thread that it interrupts.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).ok();
        let mut until = None;
        loop {
            let now = GATE.load(Ordering::Relaxed);
            let free =
                now < ONE_FORK || Instant::now() >= *until.get_or_insert_with(|| Instant::now() + PATIENCE);
            if !free {
                std::thread::sleep(NAP);
            // Acquire: what is done inside does not come before.
            } else if GATE.compare_exchange_weak(now, now + 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Inside { mask };
            }
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // Release: a fork that sees this thread gone sees what it has made known.
        GATE.fetch_sub(1, Ordering::Release);
        if let Some(mask) = self.mask {
            let _ = mask.thread_set_mask();
        }
    }
}

fn place(fd: RawFd) -> Option<(usize, u64)> {
    let number = usize::try_from(fd).ok().filter(|number| *number < KNOWN)?;
    Some((number / 64, 1 << (number % 64)))
}

fn remember(fd: RawFd) -> bool {
    let Some((word, bit)) = place(fd) else { return false };
    // Relaxed, here and in `forget`: the gate orders them against the handlers.
    USED.fetch_max(word + 1, Ordering::Relaxed);
    PRIVATE[word].fetch_or(bit, Ordering::Relaxed);
    true
}

/// Whether it was known.
fn forget(fd: RawFd) -> bool {
    place(fd).is_some_and(|(word, bit)| PRIVATE[word].fetch_and(!bit, Ordering::Relaxed) & bit != 0)
}

/// Installs the handlers, once. Where the system refuses, descriptors are inherited as usual.
fn prepared() {
    const NOT_YET: u32 = 0;
    const BEGUN: u32 = 1;
    const DONE: u32 = 2;
    static STATE: AtomicU32 = AtomicU32::new(NOT_YET);
    // Acquire: whoever sees `DONE` has the handlers.
    if STATE.load(Ordering::Acquire) == DONE {
        return;
    }
    // No OnceLock: a child forked at this moment would wait for good for a thread that it does not have.
    if STATE.compare_exchange(NOT_YET, BEGUN, Ordering::Acquire, Ordering::Acquire).is_err() {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if STATE.load(Ordering::Acquire) == DONE {
                return;
            }
            std::thread::sleep(NAP);
        }
    }
    // Handlers that are installed twice do no harm.
    // SAFETY: the handlers are plain functions that make only async-signal-safe calls.
    if unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) } != 0 {
        tracing::warn!(target: "INIT", "fork handlers are refused: forked children keep the connections of this process");
    }
    STATE.store(DONE, Ordering::Release);
}

/// Runs before fork(), on its thread. Handlers run latest first, so allocators, which are there first, do not hold their locks yet.
extern "C" fn before() {
    // Acquire here and below: pairs with the release of those who leave.
    let mut now = GATE.fetch_add(ONE_FORK, Ordering::Acquire);
    if now.is_multiple_of(ONE_FORK) {
        return;
    }
    let until = Instant::now() + PATIENCE;
    while !now.is_multiple_of(ONE_FORK) && Instant::now() < until {
        std::thread::sleep(NAP);
        now = GATE.load(Ordering::Acquire);
    }
}

/// Runs after fork() in the parent.
extern "C" fn after() {
    // Not below zero, whatever handlers installed during a fork are told. Release: nothing of the fork is left behind.
    let _ = GATE.fetch_update(Ordering::Release, Ordering::Relaxed, |now| now.checked_sub(ONE_FORK));
}

/// Runs in the child before fork() returns.
extern "C" fn in_child() {
    let mut nowhere = -1;
    let mut given_away = false;
    for (word, bits) in PRIVATE[..USED.load(Ordering::Relaxed)].iter().enumerate() {
        // The child has nothing to hide of these from children of its own.
        let mut left = bits.swap(0, Ordering::Relaxed);
        while left != 0 {
            let fd = (word * 64) as RawFd + left.trailing_zeros() as RawFd;
            left &= left - 1;
            if nowhere < 0 {
                // Closed first, so that there is a number for the other when all are in use.
                // SAFETY: the parent's descriptor, whose owner in this child leaves it alone.
                unsafe { libc::close(fd) };
                // SAFETY: a constant path.
                nowhere = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
                given_away = nowhere == fd;
                if nowhere < 0 || given_away {
                    continue;
                }
            }
            // SAFETY: as above; dup3 is async-signal-safe.
            unsafe { libc::dup3(nowhere, fd, libc::O_CLOEXEC) };
        }
    }
    if nowhere >= 0 && !given_away {
        // SAFETY: opened above, and known to nobody else.
        unsafe { libc::close(nowhere) };
    }
    // Release: as in `after`. The threads that it counted are not here.
    GATE.store(0, Ordering::Release);
}

#[cfg(test)]
mod tests;
