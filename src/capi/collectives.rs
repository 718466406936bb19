//! Collectives. This layer only packs the arguments; `enqueue` checks them.

use std::ffi::{c_int, c_void};

use super::boundary::{self, address};
use super::types::*;
use crate::enqueue::{Call, Function};
use crate::group;

/// Reduces over all ranks; every rank gets the result. In place where sendbuff == recvbuff.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    twin!(
        pncclAllReduce = all_reduce(
            sendbuff: *const c_void,
            recvbuff: *mut c_void,
            count: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t
    )
}

unsafe fn all_reduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
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
    boundary::enqueue("ncclAllReduce", comm, |comm| group::collective(comm, call))
}

/// Copies root's sendbuff to every rank's recvbuff. In place where sendbuff == recvbuff.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBroadcast(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    twin!(
        pncclBroadcast = broadcast(
            sendbuff: *const c_void,
            recvbuff: *mut c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t
    )
}

unsafe fn broadcast(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
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
    boundary::enqueue("ncclBroadcast", comm, |comm| group::collective(comm, call))
}

/// ncclBroadcast in place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBcast(
    buff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    twin!(
        pncclBcast = bcast(
            buff: *mut c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t
    )
}

unsafe fn bcast(
    buff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let call = Call {
        function: Function::Broadcast,
        send: address(buff),
        recv: address(buff),
        count,
        datatype: datatype.0,
        op: 0,
        root,
        stream: address(stream),
    };
    boundary::enqueue("ncclBcast", comm, |comm| group::collective(comm, call))
}

/// Reduces over all ranks; root gets the result. In place where sendbuff == recvbuff.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    twin!(
        pncclReduce = reduce(
            sendbuff: *const c_void,
            recvbuff: *mut c_void,
            count: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            root: c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t
    )
}

unsafe fn reduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
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
    boundary::enqueue("ncclReduce", comm, |comm| group::collective(comm, call))
}

/// Every rank gets all ranks' sendbuff, in rank order. In place where sendbuff == recvbuff + rank * sendcount elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcount: usize,
    datatype: ncclDataType_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    twin!(
        pncclAllGather = all_gather(
            sendbuff: *const c_void,
            recvbuff: *mut c_void,
            sendcount: usize,
            datatype: ncclDataType_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t
    )
}

unsafe fn all_gather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcount: usize,
    datatype: ncclDataType_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
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
    boundary::enqueue("ncclAllGather", comm, |comm| group::collective(comm, call))
}

/// Reduces over all ranks; rank i gets the i-th part of recvcount elements. In place where recvbuff == sendbuff + rank * recvcount
/// elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduceScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    twin!(
        pncclReduceScatter = reduce_scatter(
            sendbuff: *const c_void,
            recvbuff: *mut c_void,
            recvcount: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t
    )
}

unsafe fn reduce_scatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
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
    boundary::enqueue("ncclReduceScatter", comm, |comm| group::collective(comm, call))
}

/// Rank i's j-th part of count elements becomes rank j's i-th part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAlltoAll(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    twin!(
        pncclAlltoAll = all_to_all(
            sendbuff: *const c_void,
            recvbuff: *mut c_void,
            count: usize,
            datatype: ncclDataType_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t
    )
}

unsafe fn all_to_all(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
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
    boundary::enqueue("ncclAlltoAll", comm, |comm| group::collective(comm, call))
}

/// root gets all ranks' sendbuff, in rank order. In place where sendbuff == recvbuff + root * count elements on root.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    twin!(
        pncclGather = gather(
            sendbuff: *const c_void,
            recvbuff: *mut c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t
    )
}

unsafe fn gather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
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
    boundary::enqueue("ncclGather", comm, |comm| group::collective(comm, call))
}

/// Rank i gets the i-th part of root's sendbuff. In place where recvbuff == sendbuff + root * count elements on root.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    twin!(
        pncclScatter = scatter(
            sendbuff: *const c_void,
            recvbuff: *mut c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t
    )
}

unsafe fn scatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
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
    boundary::enqueue("ncclScatter", comm, |comm| group::collective(comm, call))
}
