//! ncclGetVersion and the texts of result codes: pure functions.

use std::ffi::{CStr, c_char, c_int};

use super::boundary;
use super::types::*;

/// Version of NCCL that programs may expect here, as 10000 * major + 100 * minor + patch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> ncclResult_t {
    twin!(pncclGetVersion = get_version(version: *mut c_int) -> ncclResult_t)
}

unsafe fn get_version(version: *mut c_int) -> ncclResult_t {
    boundary::run("ncclGetVersion", || put!(version, REPORTED_VERSION))
}

/// A short text for a result code, never NULL. ncclGetLastError says what happened.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetErrorString(result: ncclResult_t) -> *const c_char {
    twin!(pncclGetErrorString = get_error_string(result: ncclResult_t) -> *const c_char)
}

unsafe fn get_error_string(result: ncclResult_t) -> *const c_char {
    text(result).as_ptr()
}

fn text(result: ncclResult_t) -> &'static CStr {
    match result {
        ncclSuccess => c"no error",
        ncclUnhandledCudaError => c"unhandled cuda error (ncclGetLastError or NCCL_DEBUG=WARN tells which)",
        ncclSystemError => c"unhandled system error (ncclGetLastError or NCCL_DEBUG=WARN tells which)",
        ncclInternalError => c"internal error of the communication library",
        ncclInvalidArgument => c"invalid argument (ncclGetLastError or NCCL_DEBUG=WARN tells which)",
        ncclInvalidUsage => c"invalid usage (ncclGetLastError or NCCL_DEBUG=WARN tells which)",
        ncclRemoteError => c"remote error: another rank failed, or the connection to it",
        ncclInProgress => c"operation in progress",
        ncclTimeout => c"timeout",
        _ => c"unknown result code",
    }
}
