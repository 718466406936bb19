//! OxCCL: a collective communication library for NVIDIA GPUs behind NCCL's C ABI.
//!
//! The C ABI in [`capi`] is the product; the Rust modules below it are listed lowest first, and a module uses
//! only modules that stand above it in this list (ARCHITECTURE.md has the table, tests/layering.rs holds us
//! to it).

pub mod bootstrap;
pub mod capi;
pub mod comm;
pub mod enqueue;
pub mod error;
pub mod gpu;
pub mod group;
pub mod log;
pub mod param;
pub mod process;
pub mod register;
pub mod schedule;
pub mod sys;
pub mod transport;
