//! User objects: something of the program that lives as long as graphs need it.
//!
//! References are held by the program and by graphs; a copy or an executable graph holds as many as its original. When
//! the last is gone, the destructor runs on a thread of the emulator, where calls into the driver are refused.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};

use parking_lot::Mutex;

use super::get;
use crate::api;
use crate::error::{INVALID_VALUE, Result};
use crate::handle::Registry;
use crate::types::{CUgraph, CUhostFn, CUuserObject, Opaque, Out};

struct UserObject {
    handle: CUuserObject,
    data: Opaque,
    destroy: CUhostFn,
    /// References of the program and of graphs together.
    count: AtomicU64,
}

/// References that a graph holds.
pub struct Held {
    object: Arc<UserObject>,
    count: u32,
}

static OBJECTS: Registry<UserObject> = Registry::new();

impl Held {
    /// The same again, for a copy of the graph.
    pub fn again(&self) -> Held {
        self.object.count.fetch_add(u64::from(self.count), Ordering::Relaxed);
        Held { object: self.object.clone(), count: self.count }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.object.release(self.count);
    }
}

impl UserObject {
    /// Gives references up; with the last the object goes.
    fn release(self: &Arc<UserObject>, count: u32) {
        let count = u64::from(count);
        // AcqRel: the destructor comes after everything that was done under any reference.
        if count > 0 && self.count.fetch_sub(count, Ordering::AcqRel) == count {
            let _ = OBJECTS.remove(self.handle);
            reap(self.clone());
        }
    }
}

/// Hands an object to the thread that runs destructors.
fn reap(object: Arc<UserObject>) {
    static REAPER: OnceLock<Mutex<Sender<Arc<UserObject>>>> = OnceLock::new();
    let reaper = REAPER.get_or_init(|| {
        let (sender, receiver) = channel::<Arc<UserObject>>();
        let work = move || {
            for object in receiver {
                if let Some(destroy) = object.destroy {
                    // SAFETY: the program gave the destructor for this pointer and holds no reference any more.
                    api::in_callback(|| unsafe { destroy(object.data.0) });
                }
            }
        };
        // Without a thread the receiver is gone and objects are never destroyed, which harms nobody.
        let _ = std::thread::Builder::new().name("emu-reaper".to_owned()).spawn(work);
        Mutex::new(sender)
    });
    let _ = reaper.lock().send(object);
}

fn find(object: CUuserObject) -> Result<Arc<UserObject>> {
    OBJECTS.get(object).map_err(|_| INVALID_VALUE)
}

cu! {
    fn cuUserObjectCreate(
        out: Out<CUuserObject>, data: Opaque, destroy: CUhostFn, count: u32, flags: u32,
    ) {
        out.check()?;
        // The one flag says that the destructor is not waited for, and must be given.
        if destroy.is_none() || count == 0 || flags != 1 {
            return Err(INVALID_VALUE);
        }
        let count = AtomicU64::new(u64::from(count));
        out.set(OBJECTS.insert_with(|handle| UserObject { handle, data, destroy, count }).handle)
    }

    fn cuUserObjectRetain(object: CUuserObject, count: u32) {
        if count == 0 {
            return Err(INVALID_VALUE);
        }
        find(object)?.count.fetch_add(u64::from(count), Ordering::Relaxed);
        Ok(())
    }

    fn cuUserObjectRelease(object: CUuserObject, count: u32) {
        let object = find(object)?;
        if count == 0 || u64::from(count) > object.count.load(Ordering::Relaxed) {
            return Err(INVALID_VALUE);
        }
        object.release(count);
        Ok(())
    }

    fn cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: u32, flags: u32) {
        const MOVE: u32 = 1;
        let (graph, object) = (get(graph)?, find(object)?);
        if count == 0 || flags > MOVE {
            return Err(INVALID_VALUE);
        }
        if flags != MOVE {
            object.count.fetch_add(u64::from(count), Ordering::Relaxed);
        }
        graph.objects.lock().push(Held { object, count });
        Ok(())
    }

    fn cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: u32) {
        let (graph, object) = (get(graph)?, find(object)?);
        let mut held = graph.objects.lock();
        let ours = |held: &&mut Held| Arc::ptr_eq(&held.object, &object);
        let total: u32 = held.iter().filter(|held| Arc::ptr_eq(&held.object, &object)).map(|held| held.count).sum();
        if count == 0 || count > total {
            return Err(INVALID_VALUE);
        }
        let mut left = count;
        for entry in held.iter_mut().filter(ours) {
            let taken = entry.count.min(left);
            entry.count -= taken;
            left -= taken;
        }
        held.retain(|held| held.count > 0);
        drop(held);
        object.release(count);
        Ok(())
    }
}
