//! The kernels on CPU threads, without a driver: every function, type and operation against a reference, long mixes of
//! operations on one communicator, wrap-around, late ranks, calls that disagree.
//!
//! Tests run with one thread per block; `under_every_execution_mode` runs them again with many, and with weak memory.

#[allow(dead_code)]
#[path = "../../../src/gpu/layout.rs"]
mod layout;
#[allow(dead_code)]
#[path = "../../../src/gpu/work.rs"]
mod work;

mod gpu {
    pub(crate) use super::{layout, work};
}

mod call;
mod collectives;
mod errors;
mod messages;
mod reference;
mod world;
