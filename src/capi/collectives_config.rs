//! Collectives with settings for one call. Without settings, or with all of them at their defaults, they are the plain ones.

use std::ffi::{c_int, c_void};

use super::boundary::{self, address};
use super::config::plain_call;
use super::types::*;
use crate::comm::Comm;
use crate::enqueue::{Call, Function};
use crate::error::Result;
use crate::group;

/// # Safety
/// `config` is NULL or points to an ncclCollConfig_t of the version that it names.
unsafe fn with_config(
    comm: &std::sync::Arc<Comm>,
    call: Call,
    config: *const ncclCollConfig_t,
) -> Result<()> {
    // SAFETY: passed on.
    unsafe { plain_call(config) }?;
    group::collective(comm, call)
}

/// ncclAllReduce with settings for this call; config may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduceConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    twin!(
        pncclAllReduceConfig = all_reduce_config(
            sendbuff: *const c_void,
            recvbuff: *mut c_void,
            count: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t
    )
}

unsafe fn all_reduce_config(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    let call = Call {
        function: Function::AllReduce,
        send: address(sendbuff),
        recv: address(recvbuff),
        count,
        datatype: datatype.0,
        op: op.0,
        root: 0,
        stream: address(stream),
    };
    // SAFETY: the caller promises that config is NULL or such a struct.
    boundary::enqueue("ncclAllReduceConfig", comm, |comm| unsafe { with_config(comm, call, config) })
}

/// ncclBroadcast with settings for this call; config may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBroadcastConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    twin!(
        pncclBroadcastConfig = broadcast_config(
            sendbuff: *const c_void,
            recvbuff: *mut c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t
    )
}

unsafe fn broadcast_config(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    let call = Call {
        function: Function::Broadcast,
        send: address(sendbuff),
        recv: address(recvbuff),
        count,
        datatype: datatype.0,
        op: 0,
        root,
        stream: address(stream),
    };
    // SAFETY: the caller promises that config is NULL or such a struct.
    boundary::enqueue("ncclBroadcastConfig", comm, |comm| unsafe { with_config(comm, call, config) })
}

/// ncclReduce with settings for this call; config may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduceConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    twin!(
        pncclReduceConfig = reduce_config(
            sendbuff: *const c_void,
            recvbuff: *mut c_void,
            count: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            root: c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t
    )
}

unsafe fn reduce_config(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    let call = Call {
        function: Function::Reduce,
        send: address(sendbuff),
        recv: address(recvbuff),
        count,
        datatype: datatype.0,
        op: op.0,
        root,
        stream: address(stream),
    };
    // SAFETY: the caller promises that config is NULL or such a struct.
    boundary::enqueue("ncclReduceConfig", comm, |comm| unsafe { with_config(comm, call, config) })
}

/// ncclAllGather with settings for this call; config may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGatherConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcount: usize,
    datatype: ncclDataType_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    twin!(
        pncclAllGatherConfig = all_gather_config(
            sendbuff: *const c_void,
            recvbuff: *mut c_void,
            sendcount: usize,
            datatype: ncclDataType_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t
    )
}

unsafe fn all_gather_config(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcount: usize,
    datatype: ncclDataType_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    let call = Call {
        function: Function::AllGather,
        send: address(sendbuff),
        recv: address(recvbuff),
        count: sendcount,
        datatype: datatype.0,
        op: 0,
        root: 0,
        stream: address(stream),
    };
    // SAFETY: the caller promises that config is NULL or such a struct.
    boundary::enqueue("ncclAllGatherConfig", comm, |comm| unsafe { with_config(comm, call, config) })
}

/// ncclReduceScatter with settings for this call; config may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduceScatterConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    twin!(
        pncclReduceScatterConfig = reduce_scatter_config(
            sendbuff: *const c_void,
            recvbuff: *mut c_void,
            recvcount: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t
    )
}

unsafe fn reduce_scatter_config(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    let call = Call {
        function: Function::ReduceScatter,
        send: address(sendbuff),
        recv: address(recvbuff),
        count: recvcount,
        datatype: datatype.0,
        op: op.0,
        root: 0,
        stream: address(stream),
    };
    // SAFETY: the caller promises that config is NULL or such a struct.
    boundary::enqueue("ncclReduceScatterConfig", comm, |comm| unsafe { with_config(comm, call, config) })
}

/// ncclAlltoAll with settings for this call; config may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAlltoAllConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    twin!(
        pncclAlltoAllConfig = all_to_all_config(
            sendbuff: *const c_void,
            recvbuff: *mut c_void,
            count: usize,
            datatype: ncclDataType_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t
    )
}

unsafe fn all_to_all_config(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    let call = Call {
        function: Function::AllToAll,
        send: address(sendbuff),
        recv: address(recvbuff),
        count,
        datatype: datatype.0,
        op: 0,
        root: 0,
        stream: address(stream),
    };
    // SAFETY: the caller promises that config is NULL or such a struct.
    boundary::enqueue("ncclAlltoAllConfig", comm, |comm| unsafe { with_config(comm, call, config) })
}

/// ncclGather with settings for this call; config may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGatherConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    twin!(
        pncclGatherConfig = gather_config(
            sendbuff: *const c_void,
            recvbuff: *mut c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t
    )
}

unsafe fn gather_config(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    let call = Call {
        function: Function::Gather,
        send: address(sendbuff),
        recv: address(recvbuff),
        count,
        datatype: datatype.0,
        op: 0,
        root,
        stream: address(stream),
    };
    // SAFETY: the caller promises that config is NULL or such a struct.
    boundary::enqueue("ncclGatherConfig", comm, |comm| unsafe { with_config(comm, call, config) })
}

/// ncclScatter with settings for this call; config may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclScatterConfig(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    twin!(
        pncclScatterConfig = scatter_config(
            sendbuff: *const c_void,
            recvbuff: *mut c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t
    )
}

unsafe fn scatter_config(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    let call = Call {
        function: Function::Scatter,
        send: address(sendbuff),
        recv: address(recvbuff),
        count,
        datatype: datatype.0,
        op: 0,
        root,
        stream: address(stream),
    };
    // SAFETY: the caller promises that config is NULL or such a struct.
    boundary::enqueue("ncclScatterConfig", comm, |comm| unsafe { with_config(comm, call, config) })
}
