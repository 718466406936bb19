//! The CUDA driver: contexts, memory, streams, events, capture, launches.

pub mod layout;
pub mod work;
