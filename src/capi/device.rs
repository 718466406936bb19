//! The host side of the device API: device communicators, window addresses, teams.

use std::ffi::{c_int, c_void};

use super::boundary::{self, not_null, unfinished};
use super::types::*;
use crate::error::Error;

/// What functions that return a team return after a failure: they have no code.
const NO_TEAM: ncclTeam_t = ncclTeam { nRanks: 0, rank: 0, stride: 0 };
/// The same for functions that return a rank.
const NO_RANK: c_int = -1;

/// What a communicator can do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommQueryProperties(
    comm: ncclComm_t,
    props: *mut ncclCommProperties_t,
) -> ncclResult_t {
    twin!(
        pncclCommQueryProperties = comm_query_properties(
            comm: ncclComm_t,
            props: *mut ncclCommProperties_t,
        ) -> ncclResult_t
    )
}

unsafe fn comm_query_properties(comm: ncclComm_t, props: *mut ncclCommProperties_t) -> ncclResult_t {
    boundary::on_comm("ncclCommQueryProperties", comm, |_| {
        not_null(props, "props")?;
        Err(unfinished())
    })
}

/// Makes the form of a communicator that kernels use. All ranks call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclDevCommCreate(
    comm: ncclComm_t,
    reqs: *const ncclDevCommRequirements_t,
    outDevComm: *mut ncclDevComm_t,
) -> ncclResult_t {
    twin!(
        pncclDevCommCreate = dev_comm_create(
            comm: ncclComm_t,
            reqs: *const ncclDevCommRequirements_t,
            outDevComm: *mut ncclDevComm_t,
        ) -> ncclResult_t
    )
}

unsafe fn dev_comm_create(
    comm: ncclComm_t,
    reqs: *const ncclDevCommRequirements_t,
    outDevComm: *mut ncclDevComm_t,
) -> ncclResult_t {
    boundary::enqueue("ncclDevCommCreate", comm, |_| {
        not_null(reqs, "reqs")?;
        not_null(outDevComm, "outDevComm")?;
        Err(unfinished())
    })
}

/// Ends what ncclDevCommCreate made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclDevCommDestroy(comm: ncclComm_t, devComm: *const ncclDevComm_t) -> ncclResult_t {
    twin!(pncclDevCommDestroy = dev_comm_destroy(comm: ncclComm_t, devComm: *const ncclDevComm_t) -> ncclResult_t)
}

unsafe fn dev_comm_destroy(comm: ncclComm_t, devComm: *const ncclDevComm_t) -> ncclResult_t {
    boundary::on_comm("ncclDevCommDestroy", comm, |_| {
        not_null(devComm, "devComm")?;
        Err(unfinished())
    })
}

/// Address through which a store reaches all LSA ranks; NULL where there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetLsaMultimemDevicePointer(
    window: ncclWindow_t,
    offset: usize,
    outPtr: *mut *mut c_void,
) -> ncclResult_t {
    twin!(
        pncclGetLsaMultimemDevicePointer = get_lsa_multimem_device_pointer(
            window: ncclWindow_t,
            offset: usize,
            outPtr: *mut *mut c_void,
        ) -> ncclResult_t
    )
}

unsafe fn get_lsa_multimem_device_pointer(
    window: ncclWindow_t,
    offset: usize,
    outPtr: *mut *mut c_void,
) -> ncclResult_t {
    boundary::run("ncclGetLsaMultimemDevicePointer", || {
        let _ = offset;
        not_null(window, "window")?;
        not_null(outPtr, "outPtr")?;
        Err(unfinished())
    })
}

/// Address through which a store reaches all ranks of a team.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetMultimemDevicePointer(
    window: ncclWindow_t,
    offset: usize,
    multimem: ncclMultimemHandle_t,
    outPtr: *mut *mut c_void,
) -> ncclResult_t {
    twin!(
        pncclGetMultimemDevicePointer = get_multimem_device_pointer(
            window: ncclWindow_t,
            offset: usize,
            multimem: ncclMultimemHandle_t,
            outPtr: *mut *mut c_void,
        ) -> ncclResult_t
    )
}

unsafe fn get_multimem_device_pointer(
    window: ncclWindow_t,
    offset: usize,
    multimem: ncclMultimemHandle_t,
    outPtr: *mut *mut c_void,
) -> ncclResult_t {
    boundary::run("ncclGetMultimemDevicePointer", || {
        let _ = (offset, multimem);
        not_null(window, "window")?;
        not_null(outPtr, "outPtr")?;
        Err(unfinished())
    })
}

/// Address of an LSA rank's part of a window.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetLsaDevicePointer(
    window: ncclWindow_t,
    offset: usize,
    lsaRank: c_int,
    outPtr: *mut *mut c_void,
) -> ncclResult_t {
    twin!(
        pncclGetLsaDevicePointer = get_lsa_device_pointer(
            window: ncclWindow_t,
            offset: usize,
            lsaRank: c_int,
            outPtr: *mut *mut c_void,
        ) -> ncclResult_t
    )
}

unsafe fn get_lsa_device_pointer(
    window: ncclWindow_t,
    offset: usize,
    lsaRank: c_int,
    outPtr: *mut *mut c_void,
) -> ncclResult_t {
    boundary::run("ncclGetLsaDevicePointer", || {
        let _ = (offset, lsaRank);
        not_null(window, "window")?;
        not_null(outPtr, "outPtr")?;
        Err(unfinished())
    })
}

/// Address of a rank's part of a window; NULL where it cannot be reached by loads and stores.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetPeerDevicePointer(
    window: ncclWindow_t,
    offset: usize,
    peer: c_int,
    outPtr: *mut *mut c_void,
) -> ncclResult_t {
    twin!(
        pncclGetPeerDevicePointer = get_peer_device_pointer(
            window: ncclWindow_t,
            offset: usize,
            peer: c_int,
            outPtr: *mut *mut c_void,
        ) -> ncclResult_t
    )
}

unsafe fn get_peer_device_pointer(
    window: ncclWindow_t,
    offset: usize,
    peer: c_int,
    outPtr: *mut *mut c_void,
) -> ncclResult_t {
    boundary::run("ncclGetPeerDevicePointer", || {
        let _ = (offset, peer);
        not_null(window, "window")?;
        not_null(outPtr, "outPtr")?;
        Err(unfinished())
    })
}

/// Logical endpoint that reaches all ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetMultimemDeviceLeInfo(
    window: ncclWindow_t,
    offset: usize,
    leId: *mut ncclCftLeId,
    leOffset: *mut usize,
) -> ncclResult_t {
    twin!(
        pncclGetMultimemDeviceLeInfo = get_multimem_device_le_info(
            window: ncclWindow_t,
            offset: usize,
            leId: *mut ncclCftLeId,
            leOffset: *mut usize,
        ) -> ncclResult_t
    )
}

unsafe fn get_multimem_device_le_info(
    window: ncclWindow_t,
    offset: usize,
    leId: *mut ncclCftLeId,
    leOffset: *mut usize,
) -> ncclResult_t {
    boundary::run("ncclGetMultimemDeviceLeInfo", || {
        let _ = offset;
        not_null(window, "window")?;
        not_null(leId, "leId")?;
        not_null(leOffset, "leOffset")?;
        Err(unfinished())
    })
}

/// Logical endpoint of a rank of a CFT team.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetCftDeviceLeInfo(
    window: ncclWindow_t,
    offset: usize,
    peerCft: c_int,
    cftTeam: ncclTeam_t,
    leId: *mut ncclCftLeId,
    leOffset: *mut usize,
) -> ncclResult_t {
    twin!(
        pncclGetCftDeviceLeInfo = get_cft_device_le_info(
            window: ncclWindow_t,
            offset: usize,
            peerCft: c_int,
            cftTeam: ncclTeam_t,
            leId: *mut ncclCftLeId,
            leOffset: *mut usize,
        ) -> ncclResult_t
    )
}

unsafe fn get_cft_device_le_info(
    window: ncclWindow_t,
    offset: usize,
    peerCft: c_int,
    cftTeam: ncclTeam_t,
    leId: *mut ncclCftLeId,
    leOffset: *mut usize,
) -> ncclResult_t {
    boundary::run("ncclGetCftDeviceLeInfo", || {
        let _ = (offset, peerCft, cftTeam);
        not_null(window, "window")?;
        not_null(leId, "leId")?;
        not_null(leOffset, "leOffset")?;
        Err(unfinished())
    })
}

/// Logical endpoint of a rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetPeerDeviceLeInfo(
    window: ncclWindow_t,
    offset: usize,
    peerWorld: c_int,
    leId: *mut ncclCftLeId,
    leOffset: *mut usize,
) -> ncclResult_t {
    twin!(
        pncclGetPeerDeviceLeInfo = get_peer_device_le_info(
            window: ncclWindow_t,
            offset: usize,
            peerWorld: c_int,
            leId: *mut ncclCftLeId,
            leOffset: *mut usize,
        ) -> ncclResult_t
    )
}

unsafe fn get_peer_device_le_info(
    window: ncclWindow_t,
    offset: usize,
    peerWorld: c_int,
    leId: *mut ncclCftLeId,
    leOffset: *mut usize,
) -> ncclResult_t {
    boundary::run("ncclGetPeerDeviceLeInfo", || {
        let _ = (offset, peerWorld);
        not_null(window, "window")?;
        not_null(leId, "leId")?;
        not_null(leOffset, "leOffset")?;
        Err(unfinished())
    })
}

/// All ranks. All zero for a communicator that does not exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclTeamWorld(comm: ncclComm_t) -> ncclTeam_t {
    twin!(pncclTeamWorld = team_world(comm: ncclComm_t) -> ncclTeam_t)
}

unsafe fn team_world(comm: ncclComm_t) -> ncclTeam_t {
    boundary::value_on_comm("ncclTeamWorld", comm, NO_TEAM, |comm| {
        Ok(ncclTeam { nRanks: comm.nranks(), rank: comm.rank(), stride: 1 })
    })
}

/// The ranks whose memory this rank can load and store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclTeamLsa(comm: ncclComm_t) -> ncclTeam_t {
    twin!(pncclTeamLsa = team_lsa(comm: ncclComm_t) -> ncclTeam_t)
}

unsafe fn team_lsa(comm: ncclComm_t) -> ncclTeam_t {
    boundary::value_on_comm("ncclTeamLsa", comm, NO_TEAM, |_| Err(unfinished()))
}

/// The ranks with the same place in their LSA team.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclTeamRail(comm: ncclComm_t) -> ncclTeam_t {
    twin!(pncclTeamRail = team_rail(comm: ncclComm_t) -> ncclTeam_t)
}

unsafe fn team_rail(comm: ncclComm_t) -> ncclTeam_t {
    boundary::value_on_comm("ncclTeamRail", comm, NO_TEAM, |_| Err(unfinished()))
}

/// The ranks that share logical endpoints.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclTeamCft(comm: ncclComm_t, mode: ncclCftTeamMode_t) -> ncclTeam_t {
    twin!(pncclTeamCft = team_cft(comm: ncclComm_t, mode: ncclCftTeamMode_t) -> ncclTeam_t)
}

unsafe fn team_cft(comm: ncclComm_t, mode: ncclCftTeamMode_t) -> ncclTeam_t {
    let _ = mode;
    boundary::value_on_comm("ncclTeamCft", comm, NO_TEAM, |_| Err(unfinished()))
}

/// The ranks that one multicast endpoint reaches.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclTeamCftMultimem(comm: ncclComm_t) -> ncclTeam_t {
    twin!(pncclTeamCftMultimem = team_cft_multimem(comm: ncclComm_t) -> ncclTeam_t)
}

unsafe fn team_cft_multimem(comm: ncclComm_t) -> ncclTeam_t {
    boundary::value_on_comm("ncclTeamCftMultimem", comm, NO_TEAM, |_| Err(unfinished()))
}

/// Number in the communicator of a team's rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclTeamRankToWorld(comm: ncclComm_t, team: ncclTeam_t, rank: c_int) -> c_int {
    twin!(pncclTeamRankToWorld = team_rank_to_world(comm: ncclComm_t, team: ncclTeam_t, rank: c_int) -> c_int)
}

unsafe fn team_rank_to_world(comm: ncclComm_t, team: ncclTeam_t, rank: c_int) -> c_int {
    boundary::value_on_comm("ncclTeamRankToWorld", comm, NO_RANK, |comm| {
        let steps = i64::from(rank) - i64::from(team.rank);
        let world = i64::from(comm.rank()) + steps * i64::from(team.stride);
        c_int::try_from(world)
            .ok()
            .filter(|world| (0..comm.nranks()).contains(world))
            .ok_or_else(|| Error::argument(format!("rank {rank} of {team:?} is none of this communicator's")))
    })
}

/// Number in the LSA team of a team's rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclTeamRankToLsa(comm: ncclComm_t, team: ncclTeam_t, rank: c_int) -> c_int {
    twin!(pncclTeamRankToLsa = team_rank_to_lsa(comm: ncclComm_t, team: ncclTeam_t, rank: c_int) -> c_int)
}

unsafe fn team_rank_to_lsa(comm: ncclComm_t, team: ncclTeam_t, rank: c_int) -> c_int {
    let _ = (team, rank);
    boundary::value_on_comm("ncclTeamRankToLsa", comm, NO_RANK, |_| Err(unfinished()))
}
