//! What went wrong: ncclGetLastError, ncclCommGetAsyncError, and the log settings.

use std::cell::Cell;
use std::ffi::c_char;

use super::boundary::{self, handle, to_c};
use super::types::*;
use crate::comm;
use crate::error::{LastError, PROCESS_LAST_ERROR};
use crate::log;

/// The last failure as a sentence: the communicator's own where it had one, else the process's. Never NULL; empty before any failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetLastError(comm: ncclComm_t) -> *const c_char {
    twin!(pncclGetLastError = get_last_error(comm: ncclComm_t) -> *const c_char)
}

unsafe fn get_last_error(comm: ncclComm_t) -> *const c_char {
    // A dead handle is no failure of this call: it must not overwrite the text that the caller asks for.
    let own = comm::lookup(handle(comm)).map(|comm| comm.last_error().get()).unwrap_or_default();
    if own.is_empty() {
        return PROCESS_LAST_ERROR.as_ptr();
    }
    // Programs keep the pointer, also beyond the communicator: its text is handed out as a copy that stays.
    let copy = COPY.get().unwrap_or_else(|| {
        let copy = Box::leak(Box::new(LastError::new()));
        COPY.set(Some(copy));
        copy
    });
    copy.set(&own);
    copy.as_ptr()
}

thread_local! {
    /// Where this thread reads communicators' texts; the next such call replaces it. Never freed: a caller may still look at it.
    static COPY: Cell<Option<&'static LastError>> = const { Cell::new(None) };
}

/// State of a communicator: ncclSuccess, ncclInProgress, or the failure that ended its use. Any thread may ask at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(
    comm: ncclComm_t,
    asyncError: *mut ncclResult_t,
) -> ncclResult_t {
    twin!(pncclCommGetAsyncError = comm_get_async_error(comm: ncclComm_t, asyncError: *mut ncclResult_t) -> ncclResult_t)
}

unsafe fn comm_get_async_error(comm: ncclComm_t, asyncError: *mut ncclResult_t) -> ncclResult_t {
    boundary::on_comm("ncclCommGetAsyncError", comm, |comm| {
        put!(asyncError, comm.async_error().map_or(ncclSuccess, to_c))
    })
}

/// Reads the NCCL_DEBUG settings again. Deprecated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclResetDebugInit() {
    twin!(pncclResetDebugInit = reset_debug_init() -> ())
}

unsafe fn reset_debug_init() {
    boundary::run("ncclResetDebugInit", || {
        log::reset();
        Ok(())
    });
}

// No twin and no place in the header: NCCL exports it by accident, and a program that found it there finds it here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclResetDebugInitInternal() {
    // SAFETY: the body takes no pointers.
    unsafe { reset_debug_init() }
}
