//! Making communicators.
//!
//! A new handle is written to the caller's variable when the communicator is ready: before the call returns, or, inside a group, at
//! the outermost ncclGroupEnd. After a failure the variable keeps what it held.

use std::ffi::{c_char, c_int};
use std::ptr;

use super::boundary::{self, from_handle, not_null};
use super::config;
use super::types::*;
use crate::bootstrap;
use crate::comm::Publish;
use crate::error::{Error, Result};
use crate::group;

/// Makes the id with which all ranks of a new communicator call ncclCommInitRank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(uniqueId: *mut ncclUniqueId) -> ncclResult_t {
    twin!(pncclGetUniqueId = get_unique_id(uniqueId: *mut ncclUniqueId) -> ncclResult_t)
}

unsafe fn get_unique_id(uniqueId: *mut ncclUniqueId) -> ncclResult_t {
    boundary::run("ncclGetUniqueId", || {
        not_null(uniqueId, "uniqueId")?;
        let internal = bootstrap::unique_id()?.map(|byte| byte as c_char);
        put!(uniqueId, ncclUniqueId { internal })
    })
}

/// Joins a new communicator as `rank` of `nranks`, with the calling thread's current device. Returns when all ranks are there; a
/// thread that makes several ranks does it inside a group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRank(
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
) -> ncclResult_t {
    twin!(
        pncclCommInitRank = comm_init_rank(
            comm: *mut ncclComm_t,
            nranks: c_int,
            commId: ncclUniqueId,
            rank: c_int,
        ) -> ncclResult_t
    )
}

unsafe fn comm_init_rank(
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
) -> ncclResult_t {
    boundary::joins_group("ncclCommInitRank", || {
        // SAFETY: the caller promises that comm is NULL or writable until the communicator is ready.
        unsafe { join(comm, "comm", nranks, commId, rank, ptr::null()) }
    })
}

/// ncclCommInitRank with settings; config may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    twin!(
        pncclCommInitRankConfig = comm_init_rank_config(
            comm: *mut ncclComm_t,
            nranks: c_int,
            commId: ncclUniqueId,
            rank: c_int,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t
    )
}

unsafe fn comm_init_rank_config(
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    boundary::joins_group("ncclCommInitRankConfig", || {
        // SAFETY: as in comm_init_rank; config is NULL or a struct of the version that it names.
        unsafe { join(comm, "comm", nranks, commId, rank, config) }
    })
}

/// ncclCommInitRankConfig with several ids, which large jobs use to spread the start; every rank passes the same ones.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankScalable(
    newcomm: *mut ncclComm_t,
    nranks: c_int,
    myrank: c_int,
    nId: c_int,
    commIds: *mut ncclUniqueId,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    twin!(
        pncclCommInitRankScalable = comm_init_rank_scalable(
            newcomm: *mut ncclComm_t,
            nranks: c_int,
            myrank: c_int,
            nId: c_int,
            commIds: *mut ncclUniqueId,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t
    )
}

unsafe fn comm_init_rank_scalable(
    newcomm: *mut ncclComm_t,
    nranks: c_int,
    myrank: c_int,
    nId: c_int,
    commIds: *mut ncclUniqueId,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    boundary::joins_group("ncclCommInitRankScalable", || {
        not_null(commIds, "commIds")?;
        if !(1..=nranks.max(1)).contains(&nId) {
            return Err(Error::argument(format!("nId is {nId}: there are 1 to nranks ({nranks}) ids")));
        }
        // All ranks pass the same ids, so all meet at the first.
        // SAFETY: not NULL, and the caller promises nId ids there.
        let first = unsafe { commIds.read_unaligned() };
        for index in 1..nId as usize {
            // SAFETY: as above.
            let other = unsafe { commIds.add(index).read_unaligned() };
            bootstrap::forget_id(&other.internal.map(|byte| byte as u8))?;
        }
        // SAFETY: as in comm_init_rank_config.
        unsafe { join(newcomm, "newcomm", nranks, first, myrank, config) }
    })
}

/// Makes one communicator per device of this process; devlist NULL stands for devices 0 to ndev - 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitAll(
    comm: *mut ncclComm_t,
    ndev: c_int,
    devlist: *const c_int,
) -> ncclResult_t {
    twin!(
        pncclCommInitAll = comm_init_all(comm: *mut ncclComm_t, ndev: c_int, devlist: *const c_int) -> ncclResult_t
    )
}

unsafe fn comm_init_all(comm: *mut ncclComm_t, ndev: c_int, devlist: *const c_int) -> ncclResult_t {
    boundary::joins_group("ncclCommInitAll", || {
        not_null(comm, "comm")?;
        if ndev < 1 {
            return Err(Error::argument(format!("ndev is {ndev}: there is at least one device")));
        }
        let devices: Vec<c_int> = if devlist.is_null() {
            (0..ndev).collect()
        } else {
            // SAFETY: not NULL, and the caller promises ndev numbers there.
            (0..ndev as usize).map(|index| unsafe { devlist.add(index).read_unaligned() }).collect()
        };
        for (index, handle) in group::init_all(&devices)?.into_iter().enumerate() {
            // SAFETY: the caller promises room for ndev handles, and init_all returns one per device.
            unsafe { comm.add(index).write_unaligned(from_handle(handle)) };
        }
        Ok(())
    })
}

/// # Safety
/// `comm` is NULL or writable until the communicator is ready; `config` is NULL or a struct of the version that it names.
unsafe fn join(
    comm: *mut ncclComm_t,
    argument: &str,
    nranks: c_int,
    id: ncclUniqueId,
    rank: c_int,
    config: *const ncclConfig_t,
) -> Result<()> {
    not_null(comm, argument)?;
    if nranks < 1 {
        return Err(Error::argument(format!("nranks is {nranks}: a communicator has at least one rank")));
    }
    if !(0..nranks).contains(&rank) {
        return Err(Error::argument(format!(
            "rank is {rank}: ranks of this communicator go from 0 to {}",
            nranks - 1
        )));
    }
    // SAFETY: passed on.
    let config = unsafe { config::communicator(config) }?;
    // SAFETY: the caller promises that the variable stays writable until the communicator is ready.
    let publish = unsafe { publish_to(comm) };
    group::init_rank(nranks, id.internal.map(|byte| byte as u8), rank, config, publish)
}

/// What writes a communicator's handle to the caller's variable once it is ready.
///
/// # Safety
/// `comm` stays writable until then.
pub(super) unsafe fn publish_to(comm: *mut ncclComm_t) -> Publish {
    let variable = comm.expose_provenance();
    Box::new(move |handle| {
        let variable = ptr::with_exposed_provenance_mut::<ncclComm_t>(variable);
        // SAFETY: as the caller of `publish_to` promises.
        unsafe { variable.write_unaligned(from_handle(handle)) };
    })
}
