//! Structs that host code shares with kernels (`nccl_device`). The header generator prints this file.
//!
//! User kernels have these layouts compiled in, so they are as fixed as the functions. The forms here are those of 2.32.3; older
//! programs use shorter ones, told by the version word of their requirements.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::enums::{ncclGinConnectionType_t, ncclGinType_t};

pub type ncclDevResourceHandle = u32;
pub type ncclDevResourceHandle_t = ncclDevResourceHandle;
pub type ncclGinSignal_t = u32;
pub type ncclGinCounter_t = u32;
pub type ncclGinWindow_t = *mut c_void;
pub type ncclCftLeId = u32;
pub type ncclCftLeId_t = ncclCftLeId;

/// A set of ranks with a fixed distance, seen from one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ncclTeam {
    pub nRanks: c_int,
    pub rank: c_int,
    pub stride: c_int,
}

pub type ncclTeam_t = ncclTeam;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclMultimemHandle {
    pub mcBasePtr: *mut c_void,
}

pub type ncclMultimemHandle_t = ncclMultimemHandle;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclLsaBarrierHandle {
    pub bufHandle: ncclDevResourceHandle_t,
    pub nBarriers: c_int,
}

pub type ncclLsaBarrierHandle_t = ncclLsaBarrierHandle;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclGinBarrierHandle {
    pub signal0: ncclGinSignal_t,
    pub unused: ncclDevResourceHandle_t,
}

pub type ncclGinBarrierHandle_t = ncclGinBarrierHandle;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclCftBarrierHandle {
    pub bufHandle: ncclDevResourceHandle_t,
    pub nBarriers: c_int,
}

pub type ncclCftBarrierHandle_t = ncclCftBarrierHandle;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclLLA2AHandle {
    pub bufHandle: ncclDevResourceHandle_t,
    pub nSlots: u32,
}

pub type ncclLLA2AHandle_t = ncclLLA2AHandle;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclGinOutboxHandle {
    pub bufHandle: ncclDevResourceHandle_t,
    pub size_log2: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclGinInboxA2AHandle {
    pub bufHandle: ncclDevResourceHandle_t,
    pub signals: ncclGinSignal_t,
    pub size_log2: u32,
    pub nPeers_rcp32: u32,
}

/// Per-segment part of a window.
#[derive(Debug)]
pub struct ncclSegmentWindow {
    _opaque: [u8; 0],
}

/// A window as kernels see it; lives in device memory.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclWindow_vidmem {
    pub winHost: *mut c_void,
    /// Address of LSA rank 0's memory; rank r's lies r * stride4G * 4 GiB further.
    pub lsaFlatBase: *mut c_char,
    pub lsaRank: c_int,
    pub worldRank: c_int,
    pub stride4G: u32,
    pub mcOffset4K: u32,
    pub ginOffset4K: u32,
    pub winFlags: u32,
    pub ginWinsDefaultBackend: [ncclGinWindow_t; 4],
    pub ginMultiSegmentWins: *mut ncclSegmentWindow,
    pub numSegments: c_int,
    pub cftFlatRank: c_int,
    pub ucLeIdBase: ncclCftLeId_t,
}

pub type ncclWindow_vidmem_t = ncclWindow_vidmem;

/// A window: memory of every rank of a communicator that the other ranks can reach.
pub type ncclWindow_t = *mut ncclWindow_vidmem;

/// The part of a window that a device communicator carries by value.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclResourceWindow_vidmem {
    pub lsaFlatBase: *mut c_char,
    pub stride4G: u32,
    pub mcOffset4K: u32,
}

pub type ncclResourceWindow_vidmem_t = ncclResourceWindow_vidmem;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclDevCommWindowTableEntry {
    pub base: usize,
    pub size: usize,
    pub window: ncclWindow_t,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclDevCommWindowTable {
    pub entries: [ncclDevCommWindowTableEntry; 32],
    pub next: *mut ncclDevCommWindowTable,
}

pub type ncclDevCommWindowTable_t = *mut ncclDevCommWindowTable;

/// A communicator as kernels see it; passed to them by value.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclDevComm {
    pub magic: c_uint,
    pub version: c_uint,
    pub rank: c_int,
    pub nRanks: c_int,
    pub nRanks_rcp32: u32,
    pub lsaRank: c_int,
    pub lsaSize: c_int,
    pub lsaSize_rcp32: u32,
    pub windowTable: ncclDevCommWindowTable_t,
    pub resourceWindow: ncclWindow_t,
    pub resourceWindow_inlined: ncclResourceWindow_vidmem_t,
    pub hybridDenseGinBarrier: ncclGinBarrierHandle_t,
    pub lsaMultimem: ncclMultimemHandle_t,
    pub lsaBarrier: ncclLsaBarrierHandle_t,
    pub railGinBarrier: ncclGinBarrierHandle_t,
    pub ginConnectionCount: u8,
    pub backendIndex: u8,
    pub ginNetDeviceTypes: [u8; 4],
    pub ginHandles: [*mut c_void; 4],
    pub ginSignalCount: c_int,
    pub ginCounterCount: c_int,
    pub ginSignalShadows: *mut u64,
    pub ginContextCount: u32,
    pub ginConnectionStride: c_int,
    pub ginContextStride: c_int,
    pub ginStrongLegacySignals: bool,
    pub abortFlag: *mut u32,
    pub hybridLsaBarrier: ncclLsaBarrierHandle_t,
    pub hybridRailGinBarrier: ncclGinBarrierHandle_t,
    pub worldGinBarrier: ncclGinBarrierHandle_t,
    pub ginConnectionStride_rcp32: u32,
    pub cftRank: c_int,
    pub cftSize: c_int,
    pub cftMultimemRank: c_int,
    pub cftMultimemSize: c_int,
    pub cftMultimemSize_rcp32: u32,
    pub ucLeId: ncclCftLeId_t,
    pub mcLeId: ncclCftLeId_t,
    pub cftBarrier: ncclCftBarrierHandle_t,
    pub cftMultimemBarrier: ncclCftBarrierHandle_t,
}

pub type ncclDevComm_t = ncclDevComm;

/// One piece of memory or signals that ncclDevCommCreate should provide; pieces form a list.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclDevResourceRequirements {
    pub next: *mut ncclDevResourceRequirements,
    pub bufferSize: usize,
    pub bufferAlign: usize,
    /// Written by ncclDevCommCreate unless NULL.
    pub outBufferHandle: *mut ncclDevResourceHandle_t,
    pub ginSignalCount: c_int,
    pub ginCounterCount: c_int,
    /// Written by ncclDevCommCreate unless NULL.
    pub outGinSignalStart: *mut ncclGinSignal_t,
    /// Written by ncclDevCommCreate unless NULL.
    pub outGinCounterStart: *mut ncclGinCounter_t,
}

pub type ncclDevResourceRequirements_t = ncclDevResourceRequirements;

/// One team that ncclDevCommCreate should prepare; teams form a list.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclTeamRequirements {
    pub next: *mut ncclTeamRequirements,
    pub team: ncclTeam_t,
    pub multimem: bool,
    /// Written by ncclDevCommCreate unless NULL.
    pub outMultimemHandle: *mut ncclMultimemHandle_t,
}

pub type ncclTeamRequirements_t = ncclTeamRequirements;

/// What a device communicator should offer. Start from NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclDevCommRequirements {
    /// Set by the initialiser, like the next two.
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub resourceRequirementsList: *mut ncclDevResourceRequirements_t,
    pub teamRequirementsList: *mut ncclTeamRequirements_t,
    pub lsaMultimem: bool,
    pub barrierCount: c_int,
    pub lsaBarrierCount: c_int,
    pub railGinBarrierCount: c_int,
    pub lsaLLA2ABlockCount: c_int,
    pub lsaLLA2ASlotCount: c_int,
    pub ginForceEnable: bool,
    pub ginContextCount: c_int,
    pub ginSignalCount: c_int,
    pub ginCounterCount: c_int,
    pub ginConnectionType: ncclGinConnectionType_t,
    pub ginExclusiveContexts: bool,
    pub ginQueueDepth: c_int,
    pub ginTrafficClass: c_int,
    pub worldGinBarrierCount: c_int,
    pub ginStrongSignalsRequired: bool,
    pub ginVaSignalsRequired: bool,
    pub ginCustomStride: c_int,
    pub ginType: ncclGinType_t,
    pub useRuntimeVersion: bool,
    /// ncclCftCap_t bits.
    pub cftCaps: c_int,
    pub cftBarrierCount: c_int,
}

pub type ncclDevCommRequirements_t = ncclDevCommRequirements;

/// Result of ncclCommQueryProperties. Start from NCCL_COMM_PROPERTIES_INITIALIZER.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclCommProperties {
    /// Set by the initialiser, like the next two.
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub rank: c_int,
    pub nRanks: c_int,
    pub cudaDev: c_int,
    pub nvmlDev: c_int,
    pub deviceApiSupport: bool,
    pub multimemSupport: bool,
    pub ginType: ncclGinType_t,
    pub nLsaTeams: c_int,
    pub hostRmaSupport: bool,
    pub railedGinType: ncclGinType_t,
    pub commHash: u64,
    pub ginMinStride: c_int,
    pub ginConnectionType: ncclGinConnectionType_t,
    pub ginSupport: [bool; 64],
    pub devCommRuntimeVersionSize: usize,
    pub cftSupport: bool,
    pub cftMulticastSupport: bool,
    pub cftCountedSupport: bool,
}

pub type ncclCommProperties_t = ncclCommProperties;
