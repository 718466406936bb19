//! Groups: several calls launched together.

use super::boundary::{self, unfinished};
use super::types::*;
use crate::error::Error;
use crate::group;

/// Opens a group on the calling thread. Groups nest; the outermost ncclGroupEnd launches.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupStart() -> ncclResult_t {
    twin!(pncclGroupStart = group_start() -> ncclResult_t)
}

unsafe fn group_start() -> ncclResult_t {
    boundary::run("ncclGroupStart", || {
        group::start();
        Ok(())
    })
}

/// Closes a group. The outermost end launches what the group collected and returns the first failure of any call in it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupEnd() -> ncclResult_t {
    twin!(pncclGroupEnd = group_end() -> ncclResult_t)
}

unsafe fn group_end() -> ncclResult_t {
    boundary::run("ncclGroupEnd", group::end)
}

/// Closes a group without launching, and would estimate the time it would have taken: not finished, so it only closes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupSimulateEnd(simInfo: *mut ncclSimInfo_t) -> ncclResult_t {
    twin!(pncclGroupSimulateEnd = group_simulate_end(simInfo: *mut ncclSimInfo_t) -> ncclResult_t)
}

unsafe fn group_simulate_end(simInfo: *mut ncclSimInfo_t) -> ncclResult_t {
    boundary::run("ncclGroupSimulateEnd", || {
        let mut why = unfinished();
        if !simInfo.is_null() {
            // SAFETY: not NULL, and the caller promises an ncclSimInfo_t there.
            let magic = unsafe { (&raw const (*simInfo).magic).read_unaligned() };
            if magic != SIM_INFO_MAGIC {
                why = Error::argument(format!(
                    "simInfo->magic is {magic:#x} instead of {SIM_INFO_MAGIC:#x}: start from NCCL_SIM_INFO_INITIALIZER"
                ));
            }
        }
        group::cancel(why)
    })
}
