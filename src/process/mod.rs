//! What a process has once: the registry of handles, the service thread, and its place in a line of forks.

use std::sync::Arc;

use parking_lot::Mutex;

pub mod generation;
pub mod registry;
pub mod service;

pub use generation::generation;
pub use service::service;

/// Runs `closure` on the service thread; here and now if there is none to be had.
pub fn defer(closure: impl FnOnce() + Send + 'static) {
    match service() {
        Ok(service) => service.defer(Box::new(closure)),
        Err(_) => closure(),
    }
}

/// Runs `closure` on a thread of its own, which may block; here if there is none to be had.
pub fn on_worker(closure: impl FnOnce() + Send + 'static) {
    let closure = Arc::new(Mutex::new(Some(closure)));
    let run = {
        let closure = closure.clone();
        move || {
            // The lock is not held while it runs.
            let taken = closure.lock().take();
            if let Some(closure) = taken {
                closure();
            }
        }
    };
    let started = service().and_then(|service| service.worker(Box::new(run.clone())));
    if started.is_err() {
        run();
    }
}
