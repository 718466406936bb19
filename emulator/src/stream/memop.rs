//! Stream memory operations: a stream writes a word or waits until one has a value.

use std::sync::Arc;

use crate::config;
use crate::context::Context;
use crate::error::{INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::memory;
use crate::stream;
use crate::types::{CUstream, CUstreamBatchMemOpParams, In};
use crate::work::{MemOp, MemOpKind, Work};

/// The most operations that one batch takes.
const BATCH: u32 = 255;

/// Ordering with remote writes is what the devices cannot do (CAN_FLUSH_REMOTE_WRITES).
const WAIT_FLUSH: u32 = 1 << 30;

/// Checks one operation as a batch describes it, for a stream of a context.
fn checked(op: &CUstreamBatchMemOpParams, context: &Context) -> Result<MemOp> {
    let (kind, bytes) = match op.operation {
        1 => (MemOpKind::Wait32, 4),
        2 => (MemOpKind::Write32, 4),
        4 => (MemOpKind::Wait64, 8),
        5 => (MemOpKind::Write64, 8),
        3 => return Err(NOT_SUPPORTED),
        6 => return Ok(MemOp { kind: MemOpKind::Barrier, address: 0, value: 0, flags: 0 }),
        _ => return Err(INVALID_VALUE),
    };
    let allowed = match kind {
        MemOpKind::Wait32 | MemOpKind::Wait64 => 3 | WAIT_FLUSH,
        _ => 0,
    };
    if op.flags & !allowed != 0 || !op.address.is_multiple_of(bytes) {
        return Err(INVALID_VALUE);
    }
    if op.flags & WAIT_FLUSH != 0 {
        return Err(NOT_SUPPORTED);
    }
    memory::check_reach(op.address, bytes, context)?;
    let value = if bytes == 4 { op.value & u64::from(u32::MAX) } else { op.value };
    Ok(MemOp { kind, address: op.address, value, flags: op.flags })
}

/// Checks a batch for a stream of a context.
pub fn checked_batch(
    count: u32,
    ops: In<CUstreamBatchMemOpParams>,
    flags: u32,
    context: &Context,
) -> Result<Arc<[MemOp]>> {
    if config::get().without.memops {
        return Err(NOT_SUPPORTED);
    }
    if count > BATCH || flags != 0 {
        return Err(INVALID_VALUE);
    }
    ops.array(count as usize)?.iter().map(|op| checked(op, context)).collect()
}

fn one(stream: CUstream, operation: u32, address: u64, value: u64, flags: u32) -> Result {
    let op = CUstreamBatchMemOpParams { operation, address, value, flags, alias: 0, pad: 0 };
    batch(stream, 1, In::from(&op), 0)
}

fn batch(stream: CUstream, count: u32, ops: In<CUstreamBatchMemOpParams>, flags: u32) -> Result {
    let stream = stream::get(stream)?;
    let ops = checked_batch(count, ops, flags, stream.context)?;
    stream.submit(Work::MemOps(ops)).map(|_| ())
}

cu! {
    [stream] fn cuStreamWaitValue32_v2 / cuStreamWaitValue32_v2_ptsz (stream: CUstream, addr: u64, value: u32, flags: u32) {
        one(stream, 1, addr, u64::from(value), flags)
    }

    [stream] fn cuStreamWaitValue64_v2 / cuStreamWaitValue64_v2_ptsz (stream: CUstream, addr: u64, value: u64, flags: u32) {
        one(stream, 4, addr, value, flags)
    }

    [stream] fn cuStreamWriteValue32_v2 / cuStreamWriteValue32_v2_ptsz (stream: CUstream, addr: u64, value: u32, flags: u32) {
        one(stream, 2, addr, u64::from(value), flags)
    }

    [stream] fn cuStreamWriteValue64_v2 / cuStreamWriteValue64_v2_ptsz (stream: CUstream, addr: u64, value: u64, flags: u32) {
        one(stream, 5, addr, value, flags)
    }

    [stream] fn cuStreamBatchMemOp_v2 / cuStreamBatchMemOp_v2_ptsz (
        stream: CUstream, count: u32, ops: In<CUstreamBatchMemOpParams>, flags: u32,
    ) {
        batch(stream, count, ops, flags)
    }

    [stream] fn cuStreamWaitValue32 / cuStreamWaitValue32_ptsz (stream: CUstream, addr: u64, value: u32, flags: u32) {
        one(stream, 1, addr, u64::from(value), flags)
    }

    [stream] fn cuStreamWaitValue64 / cuStreamWaitValue64_ptsz (stream: CUstream, addr: u64, value: u64, flags: u32) {
        one(stream, 4, addr, value, flags)
    }

    [stream] fn cuStreamWriteValue32 / cuStreamWriteValue32_ptsz (stream: CUstream, addr: u64, value: u32, flags: u32) {
        one(stream, 2, addr, u64::from(value), flags)
    }

    [stream] fn cuStreamWriteValue64 / cuStreamWriteValue64_ptsz (stream: CUstream, addr: u64, value: u64, flags: u32) {
        one(stream, 5, addr, value, flags)
    }

    [stream] fn cuStreamBatchMemOp / cuStreamBatchMemOp_ptsz (
        stream: CUstream, count: u32, ops: In<CUstreamBatchMemOpParams>, flags: u32,
    ) {
        batch(stream, count, ops, flags)
    }
}
