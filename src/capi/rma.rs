//! One-sided operations on windows of peers.

use std::ffi::{c_int, c_uint, c_void};

use super::boundary::{self, not_null, unfinished};
use super::types::*;
use crate::error::Error;

/// Writes to a peer's window, then raises a signal there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclPutSignal(
    localbuff: *const c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    peerWin: ncclWindow_t,
    peerWinOffset: usize,
    sigIdx: c_int,
    ctx: c_int,
    flags: c_uint,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    twin!(
        pncclPutSignal = put_signal(
            localbuff: *const c_void,
            count: usize,
            datatype: ncclDataType_t,
            peer: c_int,
            peerWin: ncclWindow_t,
            peerWinOffset: usize,
            sigIdx: c_int,
            ctx: c_int,
            flags: c_uint,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t
    )
}

unsafe fn put_signal(
    localbuff: *const c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    peerWin: ncclWindow_t,
    peerWinOffset: usize,
    sigIdx: c_int,
    ctx: c_int,
    flags: c_uint,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let _ = (localbuff, count, datatype, peer, peerWin, peerWinOffset, sigIdx, ctx, flags, stream);
    boundary::enqueue("ncclPutSignal", comm, |_| Err(unfinished()))
}

/// Raises a signal at a peer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclSignal(
    peer: c_int,
    sigIdx: c_int,
    ctx: c_int,
    flags: c_uint,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    twin!(
        pncclSignal = signal(
            peer: c_int,
            sigIdx: c_int,
            ctx: c_int,
            flags: c_uint,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t
    )
}

unsafe fn signal(
    peer: c_int,
    sigIdx: c_int,
    ctx: c_int,
    flags: c_uint,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let _ = (peer, sigIdx, ctx, flags, stream);
    boundary::enqueue("ncclSignal", comm, |_| Err(unfinished()))
}

/// Makes the stream wait for signals of peers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclWaitSignal(
    nDesc: c_int,
    signalDescs: *mut ncclWaitSignalDesc_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    twin!(
        pncclWaitSignal = wait_signal(
            nDesc: c_int,
            signalDescs: *mut ncclWaitSignalDesc_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t
    )
}

unsafe fn wait_signal(
    nDesc: c_int,
    signalDescs: *mut ncclWaitSignalDesc_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    boundary::enqueue("ncclWaitSignal", comm, |_| {
        let _ = stream;
        if nDesc <= 0 {
            return Err(Error::argument(format!("nDesc is {nDesc}: at least one descriptor is needed")));
        }
        not_null(signalDescs, "signalDescs")?;
        Err(unfinished())
    })
}
