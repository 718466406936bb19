//! Device memory made for communication, and the memory that a communicator holds.

use std::ffi::{c_int, c_void};

use super::boundary::{self, not_null, unfinished};
use super::types::*;
use crate::error::Error;
use crate::register;

/// Allocates device memory that peers can map.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclMemAlloc(ptr: *mut *mut c_void, size: usize) -> ncclResult_t {
    twin!(pncclMemAlloc = mem_alloc(ptr: *mut *mut c_void, size: usize) -> ncclResult_t)
}

unsafe fn mem_alloc(ptr: *mut *mut c_void, size: usize) -> ncclResult_t {
    boundary::run("ncclMemAlloc", || {
        not_null(ptr, "ptr")?;
        let address = register::allocate(size)?;
        put!(ptr, std::ptr::with_exposed_provenance_mut(address as usize))
    })
}

/// Frees memory of ncclMemAlloc; NULL is nothing to free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclMemFree(ptr: *mut c_void) -> ncclResult_t {
    twin!(pncclMemFree = mem_free(ptr: *mut c_void) -> ncclResult_t)
}

unsafe fn mem_free(ptr: *mut c_void) -> ncclResult_t {
    boundary::run("ncclMemFree", || if ptr.is_null() { Ok(()) } else { register::free(ptr.addr() as u64) })
}

/// Gives back what a communicator holds and can restore; all ranks call it. Flags: NCCL_SUSPEND_MEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommSuspend(comm: ncclComm_t, flags: c_int) -> ncclResult_t {
    twin!(pncclCommSuspend = comm_suspend(comm: ncclComm_t, flags: c_int) -> ncclResult_t)
}

unsafe fn comm_suspend(comm: ncclComm_t, flags: c_int) -> ncclResult_t {
    boundary::on_comm("ncclCommSuspend", comm, |_| {
        let _ = flags;
        Err(unfinished())
    })
}

/// Restores what ncclCommSuspend gave back; all ranks call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommResume(comm: ncclComm_t) -> ncclResult_t {
    twin!(pncclCommResume = comm_resume(comm: ncclComm_t) -> ncclResult_t)
}

unsafe fn comm_resume(comm: ncclComm_t) -> ncclResult_t {
    boundary::on_comm("ncclCommResume", comm, |_| Err(unfinished()))
}

/// Device memory that a communicator holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommMemStats(
    comm: ncclComm_t,
    stat: ncclCommMemStat_t,
    value: *mut u64,
) -> ncclResult_t {
    twin!(pncclCommMemStats = comm_mem_stats(comm: ncclComm_t, stat: ncclCommMemStat_t, value: *mut u64) -> ncclResult_t)
}

unsafe fn comm_mem_stats(comm: ncclComm_t, stat: ncclCommMemStat_t, value: *mut u64) -> ncclResult_t {
    boundary::on_comm("ncclCommMemStats", comm, |_| {
        not_null(value, "value")?;
        if !(0..=ncclStatGpuMemTotal.0).contains(&stat.0) {
            return Err(Error::argument(format!("stat {} is no ncclCommMemStat_t", stat.0)));
        }
        Err(unfinished())
    })
}
