//! The enums of nccl.h as C sees them. Only the header generator reads this file: rustc never does, so a value may appear twice.

/// What every call returns.
#[repr(C)]
pub enum ncclResult_t {
    ncclSuccess = 0,
    /// A call to CUDA failed.
    ncclUnhandledCudaError = 1,
    /// A call to the operating system failed.
    ncclSystemError = 2,
    /// A fault of the library itself.
    ncclInternalError = 3,
    /// An argument has a value that no call may have.
    ncclInvalidArgument = 4,
    /// The arguments are possible, but not now or not together.
    ncclInvalidUsage = 5,
    /// Another rank failed or went away.
    ncclRemoteError = 6,
    /// Not an error: the call goes on in the background.
    ncclInProgress = 7,
    /// A device-side wait took too long.
    ncclTimeout = 8,
    ncclNumResults = 9,
}

/// Reduction operations; values from ncclNumOps on are operations made by ncclRedOpCreatePreMulSum.
#[repr(C)]
pub enum ncclRedOp_t {
    ncclSum = 0,
    ncclProd = 1,
    ncclMax = 2,
    ncclMin = 3,
    ncclAvg = 4,
    ncclNumOps = 5,
    ncclMaxRedOp = 0x7fffffff,
}

/// Types of elements.
#[repr(C)]
pub enum ncclDataType_t {
    ncclInt8 = 0,
    ncclChar = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclInt = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclHalf = 6,
    ncclFloat32 = 7,
    ncclFloat = 7,
    ncclFloat64 = 8,
    ncclDouble = 8,
    ncclBfloat16 = 9,
    ncclFloat8e4m3 = 10,
    ncclFloat8e5m2 = 11,
    ncclNumTypes = 12,
}

/// Where the scalar of ncclRedOpCreatePreMulSum lives.
#[repr(C)]
pub enum ncclScalarResidence_t {
    /// In device memory, read when the collective runs.
    ncclScalarDevice = 0,
    /// In host memory, read before the call returns.
    ncclScalarHostImmediate = 1,
}

/// What ncclCommMemStats reports.
#[repr(C)]
pub enum ncclCommMemStat_t {
    ncclStatGpuMemSuspend = 0,
    ncclStatGpuMemSuspended = 1,
    ncclStatGpuMemPersist = 2,
    ncclStatGpuMemTotal = 3,
}

#[repr(C)]
pub enum ncclEncryptionMode_t {
    NCCL_ENCRYPTION_MODE_NONE = 0,
    NCCL_ENCRYPTION_MODE_PSK = 1,
}

#[repr(C)]
pub enum ncclHostCftMode_t {
    ncclHostCftDefault = -2147483648,
    ncclHostCftEnable = 1,
    ncclHostCftDisable = 2,
    ncclHostCftFallback = 3,
}

#[repr(C)]
pub enum ncclNvlsHostMode_t {
    ncclNvlsHostModeDefault = -2147483648,
    ncclNvlsHostModeEnable = 0,
    ncclNvlsHostModeDisableTransport = 1,
    ncclNvlsHostModeDisableSymmetricMultimem = 2,
    ncclNvlsHostModeDisable = 2147483647,
}

#[repr(C)]
pub enum ncclGinConnectionType_t {
    NCCL_GIN_CONNECTION_NONE = 0,
    NCCL_GIN_CONNECTION_FULL = 1,
    NCCL_GIN_CONNECTION_RAIL = 2,
    NCCL_GIN_CONNECTION_CUSTOM_STRIDE = 3,
}

#[repr(C)]
pub enum ncclGinType_t {
    NCCL_GIN_TYPE_NONE = 0,
    NCCL_GIN_TYPE_PROXY = 2,
    NCCL_GIN_TYPE_GDAKI = 3,
    NCCL_GIN_TYPE_GPI = 4,
    NCCL_GIN_TYPE_EFA_GDA = 5,
    NCCL_GIN_MAX_TYPES = 6,
}

#[repr(C)]
pub enum ncclCftTeamMode_t {
    NCCL_CFT_TEAM_FLAT = 0,
    NCCL_CFT_TEAM_HIER_MULTIMEM = 1,
    NCCL_CFT_TEAM_HIER_LSA = 2,
}

#[repr(C)]
pub enum ncclCftCap_t {
    NCCL_CFT_NONE = 0,
    NCCL_CFT = 1,
    NCCL_CFT_MULTIMEM = 2,
}
