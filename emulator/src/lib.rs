//! The CUDA driver API on CPU threads.
//!
//! Built as `libcuda_emulator.so`, it is found under the name `libcuda.so.1` and lets a program that uses only the
//! driver API run on a machine without a GPU: device memory is shared memory of the host, a stream is a lane of work
//! that runs beside the others, and kernels are C++ functions linked into this library. What differs from a GPU is
//! listed in `README.md`, with the settings that describe the emulated devices and make calls fail on demand.
//!
//! Each exported function goes through [`api::enter`], which refuses calls before `cuInit`, in a forked child and in a
//! stream callback, injects the faults that were asked for, and keeps panics inside. Handles are numbers looked up in
//! tables, so that a stale or invented handle is an error and never a crash.
#![allow(non_camel_case_types)]

#[macro_use]
pub mod api;
pub mod config;
pub mod context;
pub mod device;
pub mod error;
pub mod fault;
pub mod graph;
mod handle;
pub mod kernel;
pub mod launch;
pub mod memory;
pub mod module;
pub mod stream;
pub mod symbols;
pub mod types;
mod work;
