//! Which side of a fork this process is on.
//!
//! Threads, connections and mappings of the parent are useless in a forked child. Objects remember the generation they were made
//! in, and refuse to work in another one. The number lives in a page that the kernel wipes in a child, so asking costs one load
//! and no handler has to be registered.

use std::num::NonZeroUsize;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags};

/// 1 in the process that loaded the library, one more in each generation of forked children that asks.
pub fn generation() -> u64 {
    let Some(word) = page() else {
        return by_process_id();
    };
    // Relaxed throughout: a child starts with one thread, and what a generation guards is published by other means.
    match word.load(Ordering::Relaxed) {
        0 => renew(word),
        generation => generation,
    }
}

/// The latest number given out; inherited by children, unlike the page.
static LATEST: AtomicU64 = AtomicU64::new(0);

#[cold]
fn renew(word: &AtomicU64) -> u64 {
    let next = LATEST.load(Ordering::Relaxed) + 1;
    // Of several threads that come first at once, one sets the number for all.
    match word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {
            LATEST.store(next, Ordering::Relaxed);
            next
        }
        Err(set) => set,
    }
}

/// The word in the wiped page; `None` on kernels without such pages (before 4.14).
fn page() -> Option<&'static AtomicU64> {
    static PAGE: LazyLock<Option<&'static AtomicU64>> = LazyLock::new(|| {
        let length = NonZeroUsize::new(4096).expect("not zero");
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory in use.
        let page = unsafe { nix::sys::mman::mmap_anonymous(None, length, protection, MapFlags::MAP_PRIVATE) }
            .ok()?;
        // SAFETY: the mapping above, of exactly this length, is ours.
        unsafe { nix::sys::mman::madvise(page, length.get(), MmapAdvise::MADV_WIPEONFORK) }.ok()?;
        // SAFETY: the page is mapped for good, zeroed, aligned, and only ever used as this atomic.
        Some(unsafe { &*page.as_ptr().cast::<AtomicU64>() })
    });
    *PAGE
}

/// Without the page: the process id of the present generation in the upper half, the generation in the lower.
fn by_process_id() -> u64 {
    static STATE: AtomicU64 = AtomicU64::new(0);
    let process = u64::from(std::process::id());
    let update = STATE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |state| {
        (state >> 32 != process).then_some(process << 32 | ((state & 0xffff_ffff) + 1))
    });
    match update {
        Ok(_) => STATE.load(Ordering::Relaxed) & 0xffff_ffff,
        Err(state) => state & 0xffff_ffff,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::WaitStatus;
    use nix::unistd::ForkResult;

    #[test]
    fn a_forked_child_is_another_generation() {
        let before = generation();
        let fallback = by_process_id();
        assert_eq!((generation(), by_process_id()), (before, fallback));
        // SAFETY: the child calls nothing but atomics and _exit.
        match unsafe { nix::unistd::fork() }.unwrap() {
            ForkResult::Child => {
                let changed = generation() == before + 1 && by_process_id() == fallback + 1;
                let stays = generation() == before + 1;
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(i32::from(!(changed && stays))) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(nix::sys::wait::waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
                assert_eq!((generation(), by_process_id()), (before, fallback));
            }
        }
    }
}
