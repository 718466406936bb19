//! Questions to a communicator that it answers at once.

use std::ffi::c_int;

use super::boundary;
use super::types::*;

/// Number of ranks of a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCount(comm: ncclComm_t, count: *mut c_int) -> ncclResult_t {
    twin!(pncclCommCount = comm_count(comm: ncclComm_t, count: *mut c_int) -> ncclResult_t)
}

unsafe fn comm_count(comm: ncclComm_t, count: *mut c_int) -> ncclResult_t {
    boundary::on_comm("ncclCommCount", comm, |comm| put!(count, comm.nranks()))
}

/// CUDA device of a communicator, by its number in this process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCuDevice(comm: ncclComm_t, device: *mut c_int) -> ncclResult_t {
    twin!(pncclCommCuDevice = comm_cu_device(comm: ncclComm_t, device: *mut c_int) -> ncclResult_t)
}

unsafe fn comm_cu_device(comm: ncclComm_t, device: *mut c_int) -> ncclResult_t {
    boundary::on_comm("ncclCommCuDevice", comm, |comm| put!(device, comm.device()))
}

/// This rank's number in the communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommUserRank(comm: ncclComm_t, rank: *mut c_int) -> ncclResult_t {
    twin!(pncclCommUserRank = comm_user_rank(comm: ncclComm_t, rank: *mut c_int) -> ncclResult_t)
}

unsafe fn comm_user_rank(comm: ncclComm_t, rank: *mut c_int) -> ncclResult_t {
    boundary::on_comm("ncclCommUserRank", comm, |comm| put!(rank, comm.rank()))
}
