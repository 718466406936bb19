//! What a process has once: the registry of handles, the service thread, and its place in a line of forks.

pub mod generation;
pub mod registry;
pub mod service;

pub use generation::generation;
pub use service::service;
