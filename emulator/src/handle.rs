//! Tables from handles to objects.
//!
//! A handle is a number that is never given out twice in a process, so a handle of a destroyed object is recognised.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

use crate::error::{INVALID_HANDLE, Result};

pub struct Registry<T> {
    objects: RwLock<BTreeMap<usize, Arc<T>>>,
}

impl<T> Registry<T> {
    pub const fn new() -> Self {
        Registry { objects: RwLock::new(BTreeMap::new()) }
    }

    /// Makes an object that knows its own handle.
    pub fn insert_with(&self, make: impl FnOnce(usize) -> T) -> Arc<T> {
        let handle = next();
        let object = Arc::new(make(handle));
        self.objects.write().insert(handle, object.clone());
        object
    }

    pub fn insert(&self, handle: usize, object: Arc<T>) {
        self.objects.write().insert(handle, object);
    }

    pub fn get(&self, handle: usize) -> Result<Arc<T>> {
        self.objects.read().get(&handle).cloned().ok_or(INVALID_HANDLE)
    }

    pub fn remove(&self, handle: usize) -> Result<Arc<T>> {
        self.objects.write().remove(&handle).ok_or(INVALID_HANDLE)
    }

    /// Removes and returns all objects of which `gone` is true.
    pub fn remove_where(&self, gone: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut objects = self.objects.write();
        let handles: Vec<usize> = objects.iter().filter(|(_, o)| gone(o)).map(|(h, _)| *h).collect();
        handles.iter().filter_map(|h| objects.remove(h)).collect()
    }

    pub fn all(&self) -> Vec<Arc<T>> {
        self.objects.read().values().cloned().collect()
    }
}

/// A fresh handle: aligned and non-zero like a pointer, but in no page that anything maps.
pub fn next() -> usize {
    // Relaxed: only uniqueness matters.
    static NEXT: AtomicUsize = AtomicUsize::new(0x00cd_0000_0000_0000);
    NEXT.fetch_add(64, Ordering::Relaxed)
}
