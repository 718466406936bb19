//! What a process has once: the registry of handles, and the service thread.

pub mod registry;
