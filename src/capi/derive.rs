//! Communicators made from communicators: split, shrink, grow.

use std::ffi::c_int;
use std::ptr;

use super::boundary::{self, handle, not_null, unfinished};
use super::config;
use super::init::publish_to;
use super::types::*;
use crate::comm::lookup;
use crate::error::Error;
use crate::group;

/// Divides a communicator: ranks with the same color form a new one, ordered by key. A rank with NCCL_SPLIT_NOCOLOR takes part in
/// the call and gets none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommSplit(
    comm: ncclComm_t,
    color: c_int,
    key: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    twin!(
        pncclCommSplit = comm_split(
            comm: ncclComm_t,
            color: c_int,
            key: c_int,
            newcomm: *mut ncclComm_t,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t
    )
}

unsafe fn comm_split(
    comm: ncclComm_t,
    color: c_int,
    key: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    boundary::enqueue("ncclCommSplit", comm, |comm| {
        put!(newcomm, ptr::null_mut())?;
        let config = match config.is_null() {
            true => None,
            // SAFETY: not NULL, so the caller promises a struct of the version that it names.
            false => Some(unsafe { config::communicator(config) }?),
        };
        // A bad color goes on: the other ranks have to hear of it.
        // SAFETY: the caller promises that the variable stays writable until the communicator is ready.
        group::split(comm, color, key, config, unsafe { publish_to(newcomm) })
    })
}

/// Makes a communicator of the ranks that are not in a list; only they call it. Flags: NCCL_SHRINK_DEFAULT or NCCL_SHRINK_ABORT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommShrink(
    comm: ncclComm_t,
    excludeRanksList: *mut c_int,
    excludeRanksCount: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
    shrinkFlags: c_int,
) -> ncclResult_t {
    twin!(
        pncclCommShrink = comm_shrink(
            comm: ncclComm_t,
            excludeRanksList: *mut c_int,
            excludeRanksCount: c_int,
            newcomm: *mut ncclComm_t,
            config: *mut ncclConfig_t,
            shrinkFlags: c_int,
        ) -> ncclResult_t
    )
}

unsafe fn comm_shrink(
    comm: ncclComm_t,
    excludeRanksList: *mut c_int,
    excludeRanksCount: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
    shrinkFlags: c_int,
) -> ncclResult_t {
    boundary::enqueue("ncclCommShrink", comm, |_| {
        let _ = (config, shrinkFlags);
        put!(newcomm, ptr::null_mut())?;
        not_null(excludeRanksList, "excludeRanksList")?;
        if excludeRanksCount <= 0 {
            return Err(Error::argument(format!(
                "excludeRanksCount is {excludeRanksCount}: no rank to leave out"
            )));
        }
        Err(unfinished())
    })
}

/// Makes the id with which new ranks join ncclCommGrow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetUniqueId(comm: ncclComm_t, uniqueId: *mut ncclUniqueId) -> ncclResult_t {
    twin!(pncclCommGetUniqueId = comm_get_unique_id(comm: ncclComm_t, uniqueId: *mut ncclUniqueId) -> ncclResult_t)
}

unsafe fn comm_get_unique_id(comm: ncclComm_t, uniqueId: *mut ncclUniqueId) -> ncclResult_t {
    boundary::on_comm("ncclCommGetUniqueId", comm, |_| {
        not_null(uniqueId, "uniqueId")?;
        Err(unfinished())
    })
}

/// Makes a larger communicator: ranks of the old one pass it with rank -1, new ranks pass NULL, the id and their rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGrow(
    comm: ncclComm_t,
    nRanks: c_int,
    uniqueId: *const ncclUniqueId,
    rank: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    twin!(
        pncclCommGrow = comm_grow(
            comm: ncclComm_t,
            nRanks: c_int,
            uniqueId: *const ncclUniqueId,
            rank: c_int,
            newcomm: *mut ncclComm_t,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t
    )
}

unsafe fn comm_grow(
    comm: ncclComm_t,
    nRanks: c_int,
    uniqueId: *const ncclUniqueId,
    rank: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    // A new rank has no communicator yet.
    boundary::joins_group("ncclCommGrow", || {
        let _ = (nRanks, config);
        if comm.is_null() {
            not_null(uniqueId, "uniqueId")?;
            if rank < 0 {
                return Err(Error::argument(format!("rank is {rank}: a new rank names its place")));
            }
        } else {
            lookup(handle(comm))?;
        }
        put!(newcomm, ptr::null_mut())?;
        Err(unfinished())
    })
}
