//! Stream memory operations: a stream writes a word or waits until one has a value.

use std::sync::Arc;

use crate::config;
use crate::error::{INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::memory;
use crate::stream;
use crate::types::{CUstream, CUstreamBatchMemOpParams, In};
use crate::work::{MemOp, MemOpKind, Work};

/// The most operations that one batch takes.
const BATCH: u32 = 256;

/// Writes and waits may ask for ordering with remote writes, which always hold here.
const WAIT_FLUSH: u32 = 1 << 30;
const WRITE_NO_BARRIER: u32 = 1;

/// Checks one operation as a batch describes it.
pub fn checked(op: &CUstreamBatchMemOpParams) -> Result<MemOp> {
    let (kind, bytes) = match op.operation {
        1 => (MemOpKind::Wait32, 4),
        2 => (MemOpKind::Write32, 4),
        4 => (MemOpKind::Wait64, 8),
        5 => (MemOpKind::Write64, 8),
        3 | 6 => return Ok(MemOp { kind: MemOpKind::Barrier, address: 0, value: 0, flags: 0 }),
        _ => return Err(INVALID_VALUE),
    };
    let allowed = match kind {
        MemOpKind::Wait32 | MemOpKind::Wait64 => 3 | WAIT_FLUSH,
        _ => WRITE_NO_BARRIER,
    };
    if op.flags & !allowed != 0 || !op.address.is_multiple_of(bytes) {
        return Err(INVALID_VALUE);
    }
    memory::check_device(op.address, bytes)?;
    let value = if bytes == 4 { op.value & u64::from(u32::MAX) } else { op.value };
    Ok(MemOp { kind, address: op.address, value, flags: op.flags })
}

/// Checks a batch.
pub fn checked_batch(count: u32, ops: In<CUstreamBatchMemOpParams>, flags: u32) -> Result<Arc<[MemOp]>> {
    if config::get().without.memops {
        return Err(NOT_SUPPORTED);
    }
    if count > BATCH || flags != 0 {
        return Err(INVALID_VALUE);
    }
    ops.array(count as usize)?.iter().map(checked).collect()
}

fn one(stream: CUstream, operation: u32, address: u64, value: u64, flags: u32) -> Result {
    let op = CUstreamBatchMemOpParams { operation, address, value, flags, alias: 0, pad: 0 };
    let ops = checked_batch(1, In::from(&op), 0)?;
    stream::get(stream)?.submit(Work::MemOps(ops)).map(|_| ())
}

cu! {
    fn cuStreamWaitValue32_v2 / cuStreamWaitValue32_v2_ptsz (stream: CUstream, addr: u64, value: u32, flags: u32) {
        one(stream, 1, addr, u64::from(value), flags)
    }

    fn cuStreamWaitValue64_v2 / cuStreamWaitValue64_v2_ptsz (stream: CUstream, addr: u64, value: u64, flags: u32) {
        one(stream, 4, addr, value, flags)
    }

    fn cuStreamWriteValue32_v2 / cuStreamWriteValue32_v2_ptsz (stream: CUstream, addr: u64, value: u32, flags: u32) {
        one(stream, 2, addr, u64::from(value), flags)
    }

    fn cuStreamWriteValue64_v2 / cuStreamWriteValue64_v2_ptsz (stream: CUstream, addr: u64, value: u64, flags: u32) {
        one(stream, 5, addr, value, flags)
    }

    fn cuStreamBatchMemOp_v2 / cuStreamBatchMemOp_v2_ptsz (
        stream: CUstream, count: u32, ops: In<CUstreamBatchMemOpParams>, flags: u32,
    ) {
        let ops = checked_batch(count, ops, flags)?;
        stream::get(stream)?.submit(Work::MemOps(ops)).map(|_| ())
    }

    fn cuStreamWaitValue32 / cuStreamWaitValue32_ptsz (stream: CUstream, addr: u64, value: u32, flags: u32) {
        one(stream, 1, addr, u64::from(value), flags)
    }

    fn cuStreamWaitValue64 / cuStreamWaitValue64_ptsz (stream: CUstream, addr: u64, value: u64, flags: u32) {
        one(stream, 4, addr, value, flags)
    }

    fn cuStreamWriteValue32 / cuStreamWriteValue32_ptsz (stream: CUstream, addr: u64, value: u32, flags: u32) {
        one(stream, 2, addr, u64::from(value), flags)
    }

    fn cuStreamWriteValue64 / cuStreamWriteValue64_ptsz (stream: CUstream, addr: u64, value: u64, flags: u32) {
        one(stream, 5, addr, value, flags)
    }

    fn cuStreamBatchMemOp / cuStreamBatchMemOp_ptsz (
        stream: CUstream, count: u32, ops: In<CUstreamBatchMemOpParams>, flags: u32,
    ) {
        let ops = checked_batch(count, ops, flags)?;
        stream::get(stream)?.submit(Work::MemOps(ops)).map(|_| ())
    }
}
