//! Structs of nccl.h proper. The header generator prints this file, so the comments here speak to users of the header.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::enums::cudaEvent_t;

/// A communicator; only its address is ever seen.
#[derive(Debug)]
pub struct ncclComm {
    _opaque: [u8; 0],
}

/// A communicator of one rank; valid from creation until ncclCommDestroy or ncclCommAbort.
pub type ncclComm_t = *mut ncclComm;

/// A setting opened by ncclParamBind.
#[derive(Debug)]
pub struct ncclParamHandle {
    _opaque: [u8; 0],
}

pub type ncclParamHandle_t = *mut ncclParamHandle;

/// Names a communicator before it exists: one rank makes it, all ranks pass it to ncclCommInitRank. Only the bytes matter; move
/// them as you like.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclUniqueId {
    pub internal: [c_char; 128],
}

/// Settings of a communicator. Start from NCCL_CONFIG_INITIALIZER.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclConfig_t {
    /// Set by the initialiser, like the next two.
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    /// 1: calls return when they are done; 0: they may return ncclInProgress.
    pub blocking: c_int,
    pub cgaClusterSize: c_int,
    pub minCTAs: c_int,
    pub maxCTAs: c_int,
    /// Name of the network to use.
    pub netName: *const c_char,
    /// 1: children made by ncclCommSplit use the parent's resources.
    pub splitShare: c_int,
    pub trafficClass: c_int,
    /// Shown in messages.
    pub commName: *const c_char,
    pub collnetEnable: c_int,
    /// NCCL_CTA_POLICY_* bits.
    pub CTAPolicy: c_int,
    /// 1: children made by ncclCommShrink use the parent's resources.
    pub shrinkShare: c_int,
    pub nvlsCTAs: c_int,
    pub nChannelsPerNetPeer: c_int,
    pub nvlinkCentricSched: c_int,
    pub graphUsageMode: c_int,
    pub numRmaCtx: c_int,
    pub maxP2pPeers: c_int,
    pub graphStreamOrdering: c_int,
    pub launchOrderImplicit: c_int,
    pub numRmaSig: c_int,
    pub rmaEagerInit: c_int,
    pub hostCftMode: c_int,
    pub nvlsHostMode: c_int,
}

/// Who defines an option of ncclConfigExt_t, and which one it is.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclConfigExtKey {
    pub vendorId: c_int,
    pub optionId: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union ncclConfigExtValue {
    pub i: c_int,
    pub s: *const c_char,
    pub raw: *mut c_void,
}

/// One option of a vendor's own; options form a list that ends with a NULL `next`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ncclConfigExt_t {
    pub next: *mut ncclConfigExt_t,
    pub key: ncclConfigExtKey,
    pub val: ncclConfigExtValue,
}

/// Settings of one collective call. Start from NCCL_COLLCONFIG_INITIALIZER.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclCollConfig_t {
    /// Set by the initialiser, like the next two.
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub ext: *mut ncclConfigExt_t,
    pub minCTAs: c_int,
    pub maxCTAs: c_int,
    pub nvlsCTAs: c_int,
    pub cgaClusterSize: c_int,
    pub algSelection: *const c_char,
    /// 1: an algorithm selection that cannot be met is an error.
    pub forceAlgSelection: c_int,
    /// NCCL_CTA_POLICY_* bits.
    pub CTAPolicy: c_int,
    /// Handed to profilers as it is.
    pub userProfilerTag: u64,
    /// Recorded when the collective's launch is complete.
    pub launchCompletionEvent: cudaEvent_t,
}

/// Result of ncclGroupSimulateEnd. Start from NCCL_SIM_INFO_INITIALIZER.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclSimInfo_t {
    /// Set by the initialiser, like the next two.
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    /// Microseconds, negative where unknown.
    pub estimatedTime: f32,
}

/// What ncclWaitSignal waits for.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclWaitSignalDesc_t {
    /// Number of signals.
    pub opCnt: c_int,
    /// Rank that sends them.
    pub peer: c_int,
    pub sigIdx: c_int,
    pub ctx: c_int,
}

/// Argument of ncclSetEncryption. Start from NCCL_ENCRYPTION_CONFIG_INITIALIZER.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ncclEncryptionConfig_t {
    /// Set by the initialiser, like the next two.
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    /// An ncclEncryptionMode_t.
    pub mode: c_int,
    /// Pre-shared key.
    pub psk: *const c_char,
}
