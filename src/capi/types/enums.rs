//! C enums as transparent integers, and the CUDA handles that the ABI mentions.
//!
//! A Rust enum with a value outside its list is undefined behaviour, and C callers (ctypes above all) pass any value; these types
//! carry every value, and the code that uses one checks it.

use std::ffi::c_int;

/// Opaque, from the CUDA headers.
#[derive(Debug)]
pub enum CUstream_st {}
/// Opaque, from the CUDA headers.
#[derive(Debug)]
pub enum CUevent_st {}

pub type cudaStream_t = *mut CUstream_st;
pub type cudaEvent_t = *mut CUevent_st;

macro_rules! c_enum {
    ($name:ident { $($variant:ident = $value:expr),* $(,)? }) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(transparent)]
        pub struct $name(pub c_int);

        $(pub const $variant: $name = $name($value);)*
    };
}

c_enum!(ncclResult_t {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
    ncclTimeout = 8,
});

c_enum!(ncclRedOp_t { ncclNumOps = 5 });
c_enum!(ncclDataType_t { ncclNumTypes = 12 });
c_enum!(ncclScalarResidence_t { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 });
c_enum!(ncclCommMemStat_t { ncclStatGpuMemTotal = 3 });
c_enum!(ncclGinConnectionType_t { NCCL_GIN_CONNECTION_NONE = 0 });
c_enum!(ncclGinType_t { NCCL_GIN_TYPE_NONE = 0 });
c_enum!(ncclCftTeamMode_t { NCCL_CFT_TEAM_FLAT = 0 });
