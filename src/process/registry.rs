//! Handles that C callers hold, mapped to the objects behind them.
//!
//! A handle is an address inside a reserved, never readable range, so a caller who dereferences one faults,
//! and a stale or garbage value is recognised without touching memory. Slots are used in turn: a destroyed
//! handle stays invalid until [`SLOTS`] further objects were made. Looking a handle up takes the lock of its
//! own slot only, so threads that use different communicators share nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

/// Objects that can be alive at once, and destroyed handles that stay recognisable.
const SLOTS: usize = 1 << 16;
/// Distance of two handles. Handles look like pointers of the usual alignment.
const STRIDE: usize = 64;
/// First handle: outside what user space of x86-64 and arm64 maps by default for programs, and recognisable
/// in a debugger.
const BASE: usize = 0x0cc1_0000_0000;

type Slot<T> = RwLock<Option<Arc<T>>>;

#[derive(Debug)]
pub struct Registry<T> {
    /// Blocks of slots, made on first use and kept, so that references stay valid without a shared lock.
    slots: Box<[once_cell::sync::OnceCell<Slot<T>>]>,
    next: AtomicUsize,
    insert: Mutex<()>,
}

impl<T> Registry<T> {
    pub fn new() -> Registry<T> {
        Registry {
            slots: (0..SLOTS).map(|_| once_cell::sync::OnceCell::new()).collect(),
            next: AtomicUsize::new(0),
            insert: Mutex::new(()),
        }
    }

    /// Gives `object` a handle; `None` when [`SLOTS`] objects are alive.
    pub fn insert(&self, object: Arc<T>) -> Option<usize> {
        let _insert = self.insert.lock();
        for _ in 0..SLOTS {
            // Relaxed: `insert` orders the counter.
            let index = self.next.fetch_add(1, Ordering::Relaxed) % SLOTS;
            let mut slot = self.slots[index].get_or_init(|| RwLock::new(None)).write();
            if slot.is_none() {
                *slot = Some(object);
                return Some(BASE + index * STRIDE);
            }
        }
        None
    }

    /// The object behind `handle`; `None` for anything that is not the handle of a live object.
    pub fn get(&self, handle: usize) -> Option<Arc<T>> {
        self.slot(handle)?.read().clone()
    }

    /// Ends the handle. Of several racing callers one gets the object.
    pub fn remove(&self, handle: usize) -> Option<Arc<T>> {
        self.slot(handle)?.write().take()
    }

    /// The objects alive now.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.slots.iter().filter_map(|slot| slot.get()?.read().clone()).collect()
    }

    fn slot(&self, handle: usize) -> Option<&Slot<T>> {
        let offset = handle.checked_sub(BASE)?;
        if offset % STRIDE != 0 {
            return None;
        }
        self.slots.get(offset / STRIDE)?.get()
    }
}

impl<T> Default for Registry<T> {
    fn default() -> Registry<T> {
        Registry::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_and_garbage_handles_are_recognised() {
        let registry = Registry::new();
        let first = registry.insert(Arc::new(1)).expect("a slot is free");
        let second = registry.insert(Arc::new(2)).expect("a slot is free");
        assert_eq!(registry.get(first).as_deref(), Some(&1));
        assert_eq!(registry.remove(first).as_deref(), Some(&1));
        assert!(registry.get(first).is_none());
        assert!(registry.remove(first).is_none());
        let third = registry.insert(Arc::new(3)).expect("a slot is free");
        assert!(third != first, "a slot is not reused at once");
        assert!(registry.get(first).is_none());
        assert_eq!(registry.get(second).as_deref(), Some(&2));
        for garbage in [0, 1, 0xdead_beef, usize::MAX, second + 8, BASE + SLOTS * STRIDE] {
            assert!(registry.get(garbage).is_none(), "{garbage:#x}");
        }
        assert_eq!(registry.all().len(), 2);
    }
}
