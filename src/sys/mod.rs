//! The operating system: descriptors, sockets, interfaces, identities, clocks, as safe calls that repeat when interrupted.

pub mod deadline;
pub mod fd;
pub mod fork;
pub mod host;
pub mod interfaces;
pub mod socket;

pub use deadline::Deadline;
