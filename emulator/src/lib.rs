//! The CUDA driver API on CPU threads.
//!
//! Programs that use only the driver API run on a machine without a GPU when this library takes the place of
//! `libcuda.so.1`.

pub mod kernel;
