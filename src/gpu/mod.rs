//! The CUDA driver: contexts, memory, streams, events, capture, launches.

pub mod context;
pub mod driver;
pub mod host_block;
pub mod kernels;
pub mod layout;
pub mod memory;
pub mod retire;
pub mod stream;
pub mod work;
