//! From a call to launches on the caller's stream.
//!
//! [`prepare`] and [`prepare_message`] check a call against its communicator and give an [`Operation`];
//! [`launch`] puts the operations of one communicator, of one call or of a whole group, on their streams.

mod launch;
mod messages;
mod validate;

use std::sync::Arc;

pub use launch::launch;
pub use validate::{prepare, prepare_message};

use crate::comm::{Comm, Scalar};
use crate::gpu::stream::CallerStream;
pub use crate::schedule::Function;
use crate::schedule::Signature;

/// A collective call as it came in: nothing is checked yet but the communicator.
///
/// `count` is NCCL's count argument of that function (per rank for AllGather, ReduceScatter, AlltoAll,
/// Gather, Scatter). `op` and `root` are 0 where the function has none. Addresses are device addresses, 0 for
/// NULL.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub function: Function,
    pub send: u64,
    pub recv: u64,
    pub count: usize,
    pub datatype: i32,
    pub op: i32,
    pub root: i32,
    pub stream: u64,
}

/// A send or a receive as it came in.
#[derive(Debug, Clone, Copy)]
pub struct PointToPoint {
    pub is_send: bool,
    pub buffer: u64,
    pub count: usize,
    pub datatype: i32,
    pub peer: i32,
    pub stream: u64,
}

/// A checked operation of one communicator.
#[derive(Debug, Clone)]
pub struct Operation {
    pub(crate) comm: Arc<Comm>,
    pub(crate) stream: CallerStream,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// `scalar` belongs to a pre-multiplied sum.
    Collective {
        signature: Signature,
        scalar: Option<Scalar>,
        send: u64,
        recv: u64,
    },
    /// A collective of one rank that has to calculate.
    Local {
        signature: Signature,
        scalar: Option<Scalar>,
        send: u64,
        recv: u64,
    },
    /// A copy within the rank on its stream.
    Copy {
        from: u64,
        to: u64,
        bytes: u64,
    },
    Message(Message),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    pub peer: u32,
    pub is_send: bool,
    pub buffer: u64,
    pub bytes: u64,
}

impl Operation {
    pub fn comm(&self) -> &Arc<Comm> {
        &self.comm
    }
}
