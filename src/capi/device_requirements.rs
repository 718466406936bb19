//! What kernels need of a device communicator, to be listed for ncclDevCommCreate.
//!
//! ncclCftBarrierCreateRequirement is declared in the header and missing here, as in NCCL 2.32.3: no program can have linked it.

use std::ffi::c_int;

use super::boundary::{self, not_null, unfinished};
use super::types::*;

/// Memory that barriers of LSA ranks need.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclLsaBarrierCreateRequirement(
    team: ncclTeam_t,
    nBarriers: c_int,
    outHandle: *mut ncclLsaBarrierHandle_t,
    outReq: *mut ncclDevResourceRequirements_t,
) -> ncclResult_t {
    twin!(
        pncclLsaBarrierCreateRequirement = lsa_barrier_create_requirement(
            team: ncclTeam_t,
            nBarriers: c_int,
            outHandle: *mut ncclLsaBarrierHandle_t,
            outReq: *mut ncclDevResourceRequirements_t,
        ) -> ncclResult_t
    )
}

unsafe fn lsa_barrier_create_requirement(
    team: ncclTeam_t,
    nBarriers: c_int,
    outHandle: *mut ncclLsaBarrierHandle_t,
    outReq: *mut ncclDevResourceRequirements_t,
) -> ncclResult_t {
    boundary::run("ncclLsaBarrierCreateRequirement", || {
        let _ = (team, nBarriers);
        not_null(outHandle, "outHandle")?;
        not_null(outReq, "outReq")?;
        Err(unfinished())
    })
}

/// Signals that barriers over the network need.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGinBarrierCreateRequirement(
    comm: ncclComm_t,
    team: ncclTeam_t,
    nBarriers: c_int,
    outHandle: *mut ncclGinBarrierHandle_t,
    outReq: *mut ncclDevResourceRequirements_t,
) -> ncclResult_t {
    twin!(
        pncclGinBarrierCreateRequirement = gin_barrier_create_requirement(
            comm: ncclComm_t,
            team: ncclTeam_t,
            nBarriers: c_int,
            outHandle: *mut ncclGinBarrierHandle_t,
            outReq: *mut ncclDevResourceRequirements_t,
        ) -> ncclResult_t
    )
}

unsafe fn gin_barrier_create_requirement(
    comm: ncclComm_t,
    team: ncclTeam_t,
    nBarriers: c_int,
    outHandle: *mut ncclGinBarrierHandle_t,
    outReq: *mut ncclDevResourceRequirements_t,
) -> ncclResult_t {
    boundary::on_comm("ncclGinBarrierCreateRequirement", comm, |_| {
        let _ = (team, nBarriers);
        not_null(outHandle, "outHandle")?;
        not_null(outReq, "outReq")?;
        Err(unfinished())
    })
}

/// Slots that ncclLLA2ACreateRequirement needs for this many elements of this size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclLLA2ACalcSlots(maxElts: c_int, maxEltSize: c_int) -> c_int {
    twin!(pncclLLA2ACalcSlots = ll_a2a_calc_slots(maxElts: c_int, maxEltSize: c_int) -> c_int)
}

unsafe fn ll_a2a_calc_slots(maxElts: c_int, maxEltSize: c_int) -> c_int {
    let slots_per_element = (i64::from(maxEltSize) + 7).div_euclid(8);
    let slots = i64::from(maxElts).max(0) * slots_per_element.max(0);
    c_int::try_from(slots).unwrap_or(c_int::MAX)
}

/// Memory that low-latency all-to-all needs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclLLA2ACreateRequirement(
    nBlocks: c_int,
    nSlots: c_int,
    outHandle: *mut ncclLLA2AHandle_t,
    outReq: *mut ncclDevResourceRequirements_t,
) -> ncclResult_t {
    twin!(
        pncclLLA2ACreateRequirement = ll_a2a_create_requirement(
            nBlocks: c_int,
            nSlots: c_int,
            outHandle: *mut ncclLLA2AHandle_t,
            outReq: *mut ncclDevResourceRequirements_t,
        ) -> ncclResult_t
    )
}

unsafe fn ll_a2a_create_requirement(
    nBlocks: c_int,
    nSlots: c_int,
    outHandle: *mut ncclLLA2AHandle_t,
    outReq: *mut ncclDevResourceRequirements_t,
) -> ncclResult_t {
    boundary::run("ncclLLA2ACreateRequirement", || {
        let _ = (nBlocks, nSlots);
        not_null(outHandle, "outHandle")?;
        not_null(outReq, "outReq")?;
        Err(unfinished())
    })
}

/// Memory that outgoing messages over the network need.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGinOutboxCreateRequirement(
    nBlocks: c_int,
    size_log2: c_int,
    outHandle: *mut ncclGinOutboxHandle,
    outReq: *mut ncclDevResourceRequirements,
) -> ncclResult_t {
    twin!(
        pncclGinOutboxCreateRequirement = gin_outbox_create_requirement(
            nBlocks: c_int,
            size_log2: c_int,
            outHandle: *mut ncclGinOutboxHandle,
            outReq: *mut ncclDevResourceRequirements,
        ) -> ncclResult_t
    )
}

unsafe fn gin_outbox_create_requirement(
    nBlocks: c_int,
    size_log2: c_int,
    outHandle: *mut ncclGinOutboxHandle,
    outReq: *mut ncclDevResourceRequirements,
) -> ncclResult_t {
    boundary::run("ncclGinOutboxCreateRequirement", || {
        let _ = (nBlocks, size_log2);
        not_null(outHandle, "outHandle")?;
        not_null(outReq, "outReq")?;
        Err(unfinished())
    })
}

/// Memory that incoming messages of all peers need.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGinInboxA2ACreateRequirement(
    peers: ncclTeam,
    nBlocks: c_int,
    size_log2: c_int,
    outHandle: *mut ncclGinInboxA2AHandle,
    outReq: *mut ncclDevResourceRequirements,
) -> ncclResult_t {
    twin!(
        pncclGinInboxA2ACreateRequirement = gin_inbox_a2a_create_requirement(
            peers: ncclTeam,
            nBlocks: c_int,
            size_log2: c_int,
            outHandle: *mut ncclGinInboxA2AHandle,
            outReq: *mut ncclDevResourceRequirements,
        ) -> ncclResult_t
    )
}

unsafe fn gin_inbox_a2a_create_requirement(
    peers: ncclTeam,
    nBlocks: c_int,
    size_log2: c_int,
    outHandle: *mut ncclGinInboxA2AHandle,
    outReq: *mut ncclDevResourceRequirements,
) -> ncclResult_t {
    boundary::run("ncclGinInboxA2ACreateRequirement", || {
        let _ = (peers, nBlocks, size_log2);
        not_null(outHandle, "outHandle")?;
        not_null(outReq, "outReq")?;
        Err(unfinished())
    })
}
