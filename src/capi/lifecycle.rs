//! The end of a communicator: finalize, destroy, abort, revoke.

use std::ffi::c_int;

use super::boundary::{self, handle, unfinished};
use super::types::*;
use crate::comm;
use crate::error::{Error, Result};
use crate::group::{self, End};

/// Runs a call that has nothing to do for a NULL communicator.
fn unless_null(
    function: &'static str,
    comm: ncclComm_t,
    body: impl FnOnce(usize) -> Result<()>,
) -> ncclResult_t {
    if comm.is_null() {
        return ncclSuccess;
    }
    boundary::enqueue(function, comm, |_| body(handle(comm)))
}

/// Completes what a communicator has to do; its end (ncclCommDestroy) is then local. All ranks call it. NULL is nothing to do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommFinalize(comm: ncclComm_t) -> ncclResult_t {
    twin!(pncclCommFinalize = comm_finalize(comm: ncclComm_t) -> ncclResult_t)
}

unsafe fn comm_finalize(comm: ncclComm_t) -> ncclResult_t {
    unless_null("ncclCommFinalize", comm, |handle| group::finish(handle, End::Finalize))
}

/// Ends a communicator, after ncclCommFinalize if that was not called. NULL is nothing to do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t {
    twin!(pncclCommDestroy = comm_destroy(comm: ncclComm_t) -> ncclResult_t)
}

unsafe fn comm_destroy(comm: ncclComm_t) -> ncclResult_t {
    unless_null("ncclCommDestroy", comm, |handle| group::finish(handle, End::Destroy))
}

/// Ends a communicator at once: its waits on device and host give up. Every live rank calls it. NULL is nothing to do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t {
    twin!(pncclCommAbort = comm_abort(comm: ncclComm_t) -> ncclResult_t)
}

unsafe fn comm_abort(comm: ncclComm_t) -> ncclResult_t {
    unless_null("ncclCommAbort", comm, comm::abort)
}

/// Stops what a communicator is doing; it can still be split, shrunk and destroyed. NULL is nothing to do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommRevoke(comm: ncclComm_t, revokeFlags: c_int) -> ncclResult_t {
    twin!(pncclCommRevoke = comm_revoke(comm: ncclComm_t, revokeFlags: c_int) -> ncclResult_t)
}

unsafe fn comm_revoke(comm: ncclComm_t, revokeFlags: c_int) -> ncclResult_t {
    unless_null("ncclCommRevoke", comm, |_| {
        if revokeFlags != 0 {
            return Err(Error::argument(format!(
                "revokeFlags is {revokeFlags}: it must be NCCL_REVOKE_DEFAULT"
            )));
        }
        Err(unfinished())
    })
}
