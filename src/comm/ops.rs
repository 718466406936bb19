//! Reduction operations that callers make: sums whose contributions are scaled first.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, Ordering};

use parking_lot::Mutex;

use super::Comm;
use crate::error::{Error, Result};
use crate::gpu::context::check_buffer;
use crate::schedule::DataType;

/// First number that is no builtin's.
const FIRST: i32 = 5;

/// Numbers are used once in a process, so one communicator's operation is never taken for another's.
static NEXT: AtomicI32 = AtomicI32::new(FIRST);

/// The factor of a scaled sum, in the element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    /// Its bits.
    Value(u64),
    /// Where kernels find it when the operation runs.
    Device(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreMulSum {
    pub datatype: DataType,
    pub scalar: Scalar,
}

pub(super) type Operations = Mutex<HashMap<i32, PreMulSum>>;

impl Comm {
    /// Makes an operation; its number is an ncclRedOp_t of this communicator.
    pub fn make_operation(&self, operation: PreMulSum) -> Result<i32> {
        if let Scalar::Device(address) = operation.scalar {
            // Kernels will read there: a host address would take the context down with it.
            let _bound = self.context.bind()?;
            check_buffer(self.context.device(), address, "scalar")?;
        }
        // Relaxed: only uniqueness matters.
        let number = NEXT
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| next.checked_add(1))
            .map_err(|_| {
                Error::usage("2^31 reduction operations were made by this process: there are no more numbers")
            })?;
        self.operations.lock().insert(number, operation);
        Ok(number)
    }

    /// Ends an operation; calls made with it before keep it.
    pub fn end_operation(&self, number: i32) -> Result<()> {
        if (0..FIRST).contains(&number) {
            return Err(Error::argument(format!("op {number} is built in and cannot be destroyed")));
        }
        self.operations.lock().remove(&number).map(drop).ok_or_else(|| {
            Error::argument(format!(
                "op {number} is no operation of this communicator, or was destroyed already"
            ))
        })
    }

    /// The operation of this number, if this communicator made it.
    pub fn operation(&self, number: i32) -> Option<PreMulSum> {
        if number < FIRST { None } else { self.operations.lock().get(&number).copied() }
    }
}
