//! The one way through which exported functions run.
//!
//! It catches panics, turns an [`Error`] into the code that C callers get, and reports it once: as a warning in the log, as the
//! process's last error, and as the communicator's where one is known. Reported sentences begin with the function's name and,
//! where known, the rank. A call that could become part of a group makes the open group fail too ([`enqueue`], [`joins_group`]).

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::types::*;
use crate::comm::{self, Comm};
use crate::error::{Code, Error, PROCESS_LAST_ERROR, Result};
use crate::{group, log};

/// Runs a call that has no communicator, or that reports on the communicator itself.
pub(super) fn run(function: &'static str, body: impl FnOnce() -> Result<()>) -> ncclResult_t {
    finish(function, false, guarded(body).map_err(|error| (error, None)))
}

/// Runs a call on a live communicator.
pub(super) fn on_comm(
    function: &'static str,
    handle: ncclComm_t,
    body: impl FnOnce(&Arc<Comm>) -> Result<()>,
) -> ncclResult_t {
    finish(function, false, with_comm(handle, body))
}

/// Runs a call that enqueues work on a live communicator: its failure is also the open group's.
pub(super) fn enqueue(
    function: &'static str,
    handle: ncclComm_t,
    body: impl FnOnce(&Arc<Comm>) -> Result<()>,
) -> ncclResult_t {
    finish(function, true, with_comm(handle, body))
}

/// Runs a call without a communicator that a group may contain: its failure is also the open group's.
pub(super) fn joins_group(function: &'static str, body: impl FnOnce() -> Result<()>) -> ncclResult_t {
    finish(function, true, guarded(body).map_err(|error| (error, None)))
}

/// Runs a function that returns a value instead of a code: `fallback` after a failure.
pub(super) fn value_on_comm<T>(
    function: &'static str,
    handle: ncclComm_t,
    fallback: T,
    body: impl FnOnce(&Arc<Comm>) -> Result<T>,
) -> T {
    let mut value = fallback;
    on_comm(function, handle, |comm| {
        value = body(comm)?;
        Ok(())
    });
    value
}

/// The failure of every call whose work is not finished yet.
pub(super) fn unfinished() -> Error {
    Error::usage(concat!("this function is not finished in OxCCL ", env!("CARGO_PKG_VERSION")))
}

/// A failure for a pointer argument that is NULL.
pub(super) fn null(argument: &str) -> Error {
    Error::argument(format!("{argument} is NULL"))
}

/// NULL check for a pointer that is only passed on.
pub(super) fn not_null<T>(pointer: *const T, argument: &str) -> Result<()> {
    if pointer.is_null() { Err(null(argument)) } else { Ok(()) }
}

/// Writes `value` to `pointer` unless it is NULL.
///
/// # Safety
/// `pointer` is NULL or writable for a `T`, of any alignment.
pub(super) unsafe fn write<T>(pointer: *mut T, argument: &str, value: T) -> Result<()> {
    not_null(pointer, argument)?;
    // SAFETY: not NULL, and the caller promises that it is writable.
    unsafe { pointer.write_unaligned(value) };
    Ok(())
}

/// The integer value of a pointer that goes to the driver.
pub(super) fn address<T>(pointer: *const T) -> u64 {
    pointer.expose_provenance() as u64
}

/// The integer value of a communicator handle.
pub(super) fn handle(comm: ncclComm_t) -> usize {
    comm.addr()
}

/// The handle that a C caller gets for the registry's integer.
pub(super) fn from_handle(handle: usize) -> ncclComm_t {
    std::ptr::without_provenance_mut(handle)
}

type Failure = (Error, Option<Arc<Comm>>);

fn with_comm(
    comm: ncclComm_t,
    body: impl FnOnce(&Arc<Comm>) -> Result<()>,
) -> std::result::Result<(), Failure> {
    let found = guarded(|| comm::lookup(handle(comm))).map_err(|error| (error, None))?;
    guarded(|| body(&found)).map_err(|error| (error, Some(found)))
}

fn guarded<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    let body = || {
        log::init();
        body()
    };
    // AssertUnwindSafe: locks of the core do not poison, and whatever a panic left half done is reported as an internal error.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        Err(Error::internal(format!("a fault of the library (please report it): {}", panic_text(&*panic))))
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&'static str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "panic without a text"
    }
}

fn finish(function: &'static str, in_group: bool, outcome: std::result::Result<(), Failure>) -> ncclResult_t {
    match outcome {
        Ok(()) => ncclSuccess,
        Err((error, comm)) => {
            let code = error.code();
            // A panic while reporting (a broken log sink) must not hide the code.
            let _ = catch_unwind(AssertUnwindSafe(|| report(function, in_group, error, comm.as_deref())));
            to_c(code)
        }
    }
}

#[cold]
fn report(function: &'static str, in_group: bool, error: Error, comm: Option<&Comm>) {
    if error.code() == Code::InProgress {
        return;
    }
    let error = match comm {
        Some(comm) => error.context(format_args!("{function}: rank {}", comm.rank())),
        None => error.context(function),
    };
    tracing::warn!("{}", error.message());
    PROCESS_LAST_ERROR.set(error.message());
    if let Some(comm) = comm {
        comm.last_error().set(error.message());
    }
    if in_group {
        group::record_failure(&error);
    }
}

/// The code as the reported version of NCCL knows it: ncclTimeout came with 2.30, and a caller built for an older one takes its
/// value for the number of codes. A time-out means that some rank did not come, which older versions call a remote error.
pub(super) fn to_c(code: Code) -> ncclResult_t {
    match code {
        Code::Timeout if REPORTED_VERSION < 23000 => ncclRemoteError,
        code => ncclResult_t(code as i32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_become_internal_errors_with_their_text() {
        let code = run("ncclTest", || panic!("lost a {}", "wheel"));
        assert_eq!(code, ncclInternalError);
        assert!(PROCESS_LAST_ERROR.get().starts_with("ncclTest: "), "{}", PROCESS_LAST_ERROR.get());
        assert!(PROCESS_LAST_ERROR.get().ends_with("lost a wheel"), "{}", PROCESS_LAST_ERROR.get());
    }

    #[test]
    fn codes_keep_their_values_except_a_timeout() {
        assert_eq!(to_c(Code::UnhandledCuda), ncclUnhandledCudaError);
        assert_eq!(to_c(Code::InProgress), ncclInProgress);
        assert_eq!(to_c(Code::Timeout), ncclRemoteError);
    }
}
