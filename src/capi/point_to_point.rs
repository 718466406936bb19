//! ncclSend and ncclRecv.

use std::ffi::{c_int, c_void};

use super::boundary::{self, address};
use super::types::*;
use crate::enqueue::PointToPoint;
use crate::group;

/// Sends to `peer`, which calls ncclRecv with the same count and type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclSend(
    sendbuff: *const c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    twin!(
        pncclSend = send(
            sendbuff: *const c_void,
            count: usize,
            datatype: ncclDataType_t,
            peer: c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t
    )
}

unsafe fn send(
    sendbuff: *const c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let call = PointToPoint {
        is_send: true,
        buffer: address(sendbuff),
        count,
        datatype: datatype.0,
        peer,
        stream: address(stream),
    };
    boundary::enqueue("ncclSend", comm, |comm| group::point_to_point(comm, call))
}

/// Receives from `peer`, which calls ncclSend with the same count and type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRecv(
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    twin!(
        pncclRecv = recv(
            recvbuff: *mut c_void,
            count: usize,
            datatype: ncclDataType_t,
            peer: c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t
    )
}

unsafe fn recv(
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let call = PointToPoint {
        is_send: false,
        buffer: address(recvbuff),
        count,
        datatype: datatype.0,
        peer,
        stream: address(stream),
    };
    boundary::enqueue("ncclRecv", comm, |comm| group::point_to_point(comm, call))
}
