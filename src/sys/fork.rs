//! Descriptors that a forked child must not keep.
//!
//! Close-on-exec does not help against children that never exec (data loader workers are such): they would keep a dead parent's
//! connections open, so that its peers do not notice its end, and its ports taken. The descriptors registered here are replaced in
//! every forked child by /dev/null: the numbers stay valid, so that inherited objects close what is theirs and nothing else.

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// Descriptors that can be registered at once; those beyond are inherited as usual.
const SLOTS: usize = 4096;
const FREE: RawFd = -1;

static REGISTERED: [AtomicI32; SLOTS] = [const { AtomicI32::new(FREE) }; SLOTS];
/// Where to look for a free slot first.
static NEXT: AtomicUsize = AtomicUsize::new(0);
static NOWHERE: AtomicI32 = AtomicI32::new(FREE);

/// While it lives, forked children do not get the descriptor.
#[derive(Debug)]
pub struct ParentOnly {
    fd: Arc<OwnedFd>,
    slot: Option<usize>,
}

impl ParentOnly {
    pub fn new(fd: Arc<OwnedFd>) -> ParentOnly {
        let slot = prepared().then(|| take_slot(fd.as_raw_fd())).flatten();
        ParentOnly { fd, slot }
    }

    pub fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }
}

impl Drop for ParentOnly {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            // Before the descriptor can be closed, as `fd` is dropped after this. Release: the slot is free for others from here on.
            REGISTERED[slot].store(FREE, Ordering::Release);
        }
    }
}

fn take_slot(fd: RawFd) -> Option<usize> {
    // Relaxed: a hint.
    let start = NEXT.fetch_add(1, Ordering::Relaxed);
    (0..SLOTS).map(|step| (start + step) % SLOTS).find(|slot| {
        // Acquire: pairs with the release of the slot's former owner.
        REGISTERED[*slot].compare_exchange(FREE, fd, Ordering::Acquire, Ordering::Relaxed).is_ok()
    })
}

/// Arranges for the replacement in children; `false` when the system does not let us.
fn prepared() -> bool {
    static READY: OnceLock<bool> = OnceLock::new();
    *READY.get_or_init(|| {
        let Ok(nowhere) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") else {
            return false;
        };
        // Kept open for the life of the process. Release: the handler sees it whenever it sees a registered descriptor.
        NOWHERE.store(nowhere.into_raw_fd(), Ordering::Release);
        // SAFETY: the handler is a plain function that makes only async-signal-safe calls.
        unsafe { libc::pthread_atfork(None, None, Some(replace_all)) == 0 }
    })
}

/// Runs in the child before fork() returns: loads and dup3 only.
extern "C" fn replace_all() {
    let nowhere = NOWHERE.load(Ordering::Acquire);
    for slot in &REGISTERED {
        let fd = slot.load(Ordering::Acquire);
        if fd != FREE {
            // SAFETY: dup3 is async-signal-safe. `fd` was registered by its owner, whose copy in this child keeps owning the number.
            unsafe { libc::dup3(nowhere, fd, libc::O_CLOEXEC) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::WaitStatus;
    use nix::unistd::ForkResult;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    fn socket() -> (UnixStream, Arc<OwnedFd>) {
        let (left, right) = UnixStream::pair().unwrap();
        left.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        (left, Arc::new(OwnedFd::from(right)))
    }

    /// One test, since its second half uses all slots up for a while.
    #[test]
    fn a_child_does_not_keep_the_parents_connections() {
        let (mut closed, fd) = socket();
        let registered = ParentOnly::new(fd);
        let (mut open, inherited) = socket();
        let (go, gate) = UnixStream::pair().unwrap();
        // SAFETY: the child only reads from a socket and leaves through _exit.
        match unsafe { nix::unistd::fork() }.unwrap() {
            ForkResult::Child => {
                drop(go);
                let (mut gate, mut byte) = (gate, [0]);
                let _ = gate.read(&mut byte);
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(0) }
            }
            ForkResult::Parent { child } => {
                drop((registered, inherited));
                assert_eq!(closed.read(&mut [0; 1]).unwrap(), 0, "only the parent had it");
                open.set_nonblocking(true).unwrap();
                assert!(
                    open.read(&mut [0; 1]).is_err(),
                    "the child still has the one that was not registered"
                );
                drop((go, gate));
                assert_eq!(nix::sys::wait::waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
            }
        }
        let (_left, fd) = socket();
        for _ in 0..3 * SLOTS {
            assert!(ParentOnly::new(fd.clone()).slot.is_some());
        }
        let all: Vec<ParentOnly> = (0..SLOTS + 64).map(|_| ParentOnly::new(fd.clone())).collect();
        assert!(all.last().is_some_and(|last| last.slot.is_none() && Arc::ptr_eq(last.fd(), &fd)));
    }
}
