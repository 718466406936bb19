//! What a process has once: the registry of handles, the service thread, and its place in a line of forks.

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
