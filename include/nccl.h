/* nccl.h of OxCCL: the C API of NCCL, as of version 2.32.3.
 *
 * Printed from src/capi; do not edit. Programs need nothing but this file: it brings in the CUDA runtime's types, or, where the
 * runtime's headers are missing or OXCCL_NO_CUDA_RUNTIME is defined, declares the two it uses.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if !defined(OXCCL_NO_CUDA_RUNTIME) && defined(__has_include)
#if !__has_include(<cuda_runtime.h>)
#define OXCCL_NO_CUDA_RUNTIME
#endif
#endif

#ifdef OXCCL_NO_CUDA_RUNTIME
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
#else
#include <cuda_runtime.h>
/* Programs rely on getting these too. An installation of the runtime alone lacks what they include. */
#ifdef __has_include
#if __has_include(<nv/target>)
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#if defined(__cplusplus) && CUDART_VERSION >= 11080
#include <cuda_fp8.h>
#endif
#endif
#endif
#endif

/* The version that ncclGetVersion reports. Later functions are declared below as well; docs/compatibility.md says which functions are
 * finished. */
#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_SUFFIX ""
#define NCCL_VERSION_CODE 22809
#define NCCL_VERSION(X, Y, Z) \
  (((X) <= 2 && (Y) <= 8) ? (X) * 1000 + (Y) * 100 + (Z) : (X) * 10000 + (Y) * 100 + (Z))

/* The NCCL whose struct layouts this header has; initialisers write it into the structs. */
#define OXCCL_NCCL_API_VERSION 23203

#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_COMM_NULL NULL
#define NCCL_API_MAGIC 0xcafebeef

/* "Not set" in configuration structs. */
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_UNDEF_FLOAT -1.0f

/* color of ncclCommSplit: this rank gets no communicator. */
#define NCCL_SPLIT_NOCOLOR -1

/* winFlags of ncclCommWindowRegister. */
#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_STRICT_ORDERING 0x02
#define NCCL_WIN_GIN_ONLY 0x04
#define NCCL_WIN_CFT_COUNTED 0x08
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

/* CTAPolicy. */
#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02

/* Flags of ncclCommShrink, ncclCommRevoke and ncclCommSuspend. */
#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01
#define NCCL_REVOKE_DEFAULT 0x00
#define NCCL_SUSPEND_MEM 0x01

/* Device API. */
#define NCCL_GIN_MAX_CONNECTIONS 4
#define NCCL_GIN_MAX_ACTIVE_BACKENDS 4
#define NCCL_LE_ID_INVALID ((ncclCftLeId_t)-1)

#ifdef __cplusplus
extern "C" {
#endif

/* What every call returns. */
typedef enum ncclResult_t {
  ncclSuccess = 0,
  /* A call to CUDA failed. */
  ncclUnhandledCudaError = 1,
  /* A call to the operating system failed. */
  ncclSystemError = 2,
  /* A fault of the library itself. */
  ncclInternalError = 3,
  /* An argument has a value that no call may have. */
  ncclInvalidArgument = 4,
  /* The arguments are possible, but not now or not together. */
  ncclInvalidUsage = 5,
  /* Another rank failed or went away. */
  ncclRemoteError = 6,
  /* Not an error: the call goes on in the background. */
  ncclInProgress = 7,
  /* A device-side wait took too long. */
  ncclTimeout = 8,
  ncclNumResults = 9,
} ncclResult_t;

/* Types of elements. */
typedef enum ncclDataType_t {
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
} ncclDataType_t;

/* Reduction operations; values from ncclNumOps on are operations made by ncclRedOpCreatePreMulSum. */
typedef enum ncclRedOp_t {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5,
  ncclMaxRedOp = 2147483647,
} ncclRedOp_t;

/* Where the scalar of ncclRedOpCreatePreMulSum lives. */
typedef enum ncclScalarResidence_t {
  /* In device memory, read when the collective runs. */
  ncclScalarDevice = 0,
  /* In host memory, read before the call returns. */
  ncclScalarHostImmediate = 1,
} ncclScalarResidence_t;

/* What ncclCommMemStats reports. */
typedef enum ncclCommMemStat_t {
  ncclStatGpuMemSuspend = 0,
  ncclStatGpuMemSuspended = 1,
  ncclStatGpuMemPersist = 2,
  ncclStatGpuMemTotal = 3,
} ncclCommMemStat_t;

typedef enum ncclGinType_t {
  NCCL_GIN_TYPE_NONE = 0,
  NCCL_GIN_TYPE_PROXY = 2,
  NCCL_GIN_TYPE_GDAKI = 3,
  NCCL_GIN_TYPE_GPI = 4,
  NCCL_GIN_TYPE_EFA_GDA = 5,
  NCCL_GIN_MAX_TYPES = 6,
} ncclGinType_t;

typedef enum ncclGinConnectionType_t {
  NCCL_GIN_CONNECTION_NONE = 0,
  NCCL_GIN_CONNECTION_FULL = 1,
  NCCL_GIN_CONNECTION_RAIL = 2,
  NCCL_GIN_CONNECTION_CUSTOM_STRIDE = 3,
} ncclGinConnectionType_t;

typedef enum ncclCftTeamMode_t {
  NCCL_CFT_TEAM_FLAT = 0,
  NCCL_CFT_TEAM_HIER_MULTIMEM = 1,
  NCCL_CFT_TEAM_HIER_LSA = 2,
} ncclCftTeamMode_t;

typedef enum ncclCftCap_t {
  NCCL_CFT_NONE = 0,
  NCCL_CFT = 1,
  NCCL_CFT_MULTIMEM = 2,
} ncclCftCap_t;

typedef enum ncclEncryptionMode_t {
  NCCL_ENCRYPTION_MODE_NONE = 0,
  NCCL_ENCRYPTION_MODE_PSK = 1,
} ncclEncryptionMode_t;

typedef enum ncclHostCftMode_t {
  ncclHostCftDefault = -2147483648,
  ncclHostCftEnable = 1,
  ncclHostCftDisable = 2,
  ncclHostCftFallback = 3,
} ncclHostCftMode_t;

typedef enum ncclNvlsHostMode_t {
  ncclNvlsHostModeDefault = -2147483648,
  ncclNvlsHostModeEnable = 0,
  ncclNvlsHostModeDisableTransport = 1,
  ncclNvlsHostModeDisableSymmetricMultimem = 2,
  ncclNvlsHostModeDisable = 2147483647,
} ncclNvlsHostMode_t;

/* A communicator; only its address is ever seen. */
typedef struct ncclComm ncclComm;

/* A setting opened by ncclParamBind. */
typedef struct ncclParamHandle ncclParamHandle;

/* Per-segment part of a window. */
typedef struct ncclSegmentWindow ncclSegmentWindow;

/* A communicator of one rank; valid from creation until ncclCommDestroy or ncclCommAbort. */
typedef struct ncclComm *ncclComm_t;

/* Names a communicator before it exists: one rank makes it, all ranks pass it to ncclCommInitRank. Only the bytes matter; move
 * them as you like. */
typedef struct ncclUniqueId {
  char internal[128];
} ncclUniqueId;

/* Settings of a communicator. Start from NCCL_CONFIG_INITIALIZER. */
typedef struct ncclConfig_t {
  /* Set by the initialiser, like the next two. */
  size_t size;
  unsigned int magic;
  unsigned int version;
  /* 1: calls return when they are done; 0: they may return ncclInProgress. */
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  /* Name of the network to use. */
  const char *netName;
  /* 1: children made by ncclCommSplit use the parent's resources. */
  int splitShare;
  int trafficClass;
  /* Shown in messages. */
  const char *commName;
  int collnetEnable;
  /* NCCL_CTA_POLICY_* bits. */
  int CTAPolicy;
  /* 1: children made by ncclCommShrink use the parent's resources. */
  int shrinkShare;
  int nvlsCTAs;
  int nChannelsPerNetPeer;
  int nvlinkCentricSched;
  int graphUsageMode;
  int numRmaCtx;
  int maxP2pPeers;
  int graphStreamOrdering;
  int launchOrderImplicit;
  int numRmaSig;
  int rmaEagerInit;
  int hostCftMode;
  int nvlsHostMode;
} ncclConfig_t;

/* Result of ncclGroupSimulateEnd. Start from NCCL_SIM_INFO_INITIALIZER. */
typedef struct ncclSimInfo_t {
  /* Set by the initialiser, like the next two. */
  size_t size;
  unsigned int magic;
  unsigned int version;
  /* Microseconds, negative where unknown. */
  float estimatedTime;
} ncclSimInfo_t;

/* Who defines an option of ncclConfigExt_t, and which one it is. */
typedef struct ncclConfigExtKey {
  int vendorId;
  int optionId;
} ncclConfigExtKey;

typedef union ncclConfigExtValue {
  int i;
  const char *s;
  void *raw;
} ncclConfigExtValue;

/* One option of a vendor's own; options form a list that ends with a NULL `next`. */
typedef struct ncclConfigExt_t {
  struct ncclConfigExt_t *next;
  struct ncclConfigExtKey key;
  union ncclConfigExtValue val;
} ncclConfigExt_t;

/* Settings of one collective call. Start from NCCL_COLLCONFIG_INITIALIZER. */
typedef struct ncclCollConfig_t {
  /* Set by the initialiser, like the next two. */
  size_t size;
  unsigned int magic;
  unsigned int version;
  struct ncclConfigExt_t *ext;
  int minCTAs;
  int maxCTAs;
  int nvlsCTAs;
  int cgaClusterSize;
  const char *algSelection;
  /* 1: an algorithm selection that cannot be met is an error. */
  int forceAlgSelection;
  /* NCCL_CTA_POLICY_* bits. */
  int CTAPolicy;
  /* Handed to profilers as it is. */
  uint64_t userProfilerTag;
  /* Recorded when the collective's launch is complete. */
  cudaEvent_t launchCompletionEvent;
} ncclCollConfig_t;

typedef void *ncclGinWindow_t;

typedef uint32_t ncclCftLeId;

typedef ncclCftLeId ncclCftLeId_t;

/* A window as kernels see it; lives in device memory. */
typedef struct ncclWindow_vidmem {
  void *winHost;
  /* Address of LSA rank 0's memory; rank r's lies r * stride4G * 4 GiB further. */
  char *lsaFlatBase;
  int lsaRank;
  int worldRank;
  uint32_t stride4G;
  uint32_t mcOffset4K;
  uint32_t ginOffset4K;
  uint32_t winFlags;
  ncclGinWindow_t ginWinsDefaultBackend[4];
  struct ncclSegmentWindow *ginMultiSegmentWins;
  int numSegments;
  int cftFlatRank;
  ncclCftLeId_t ucLeIdBase;
} ncclWindow_vidmem;

/* A window: memory of every rank of a communicator that the other ranks can reach. */
typedef struct ncclWindow_vidmem *ncclWindow_t;

/* What ncclWaitSignal waits for. */
typedef struct ncclWaitSignalDesc_t {
  /* Number of signals. */
  int opCnt;
  /* Rank that sends them. */
  int peer;
  int sigIdx;
  int ctx;
} ncclWaitSignalDesc_t;

/* Argument of ncclSetEncryption. Start from NCCL_ENCRYPTION_CONFIG_INITIALIZER. */
typedef struct ncclEncryptionConfig_t {
  /* Set by the initialiser, like the next two. */
  size_t size;
  unsigned int magic;
  unsigned int version;
  /* An ncclEncryptionMode_t. */
  int mode;
  /* Pre-shared key. */
  const char *psk;
} ncclEncryptionConfig_t;

typedef struct ncclParamHandle *ncclParamHandle_t;

/* Result of ncclCommQueryProperties. Start from NCCL_COMM_PROPERTIES_INITIALIZER. */
typedef struct ncclCommProperties {
  /* Set by the initialiser, like the next two. */
  size_t size;
  unsigned int magic;
  unsigned int version;
  int rank;
  int nRanks;
  int cudaDev;
  int nvmlDev;
  bool deviceApiSupport;
  bool multimemSupport;
  enum ncclGinType_t ginType;
  int nLsaTeams;
  bool hostRmaSupport;
  enum ncclGinType_t railedGinType;
  uint64_t commHash;
  int ginMinStride;
  enum ncclGinConnectionType_t ginConnectionType;
  bool ginSupport[64];
  size_t devCommRuntimeVersionSize;
  bool cftSupport;
  bool cftMulticastSupport;
  bool cftCountedSupport;
} ncclCommProperties;

typedef struct ncclCommProperties ncclCommProperties_t;

typedef uint32_t ncclDevResourceHandle;

typedef ncclDevResourceHandle ncclDevResourceHandle_t;

typedef uint32_t ncclGinSignal_t;

typedef uint32_t ncclGinCounter_t;

/* One piece of memory or signals that ncclDevCommCreate should provide; pieces form a list. */
typedef struct ncclDevResourceRequirements {
  struct ncclDevResourceRequirements *next;
  size_t bufferSize;
  size_t bufferAlign;
  /* Written by ncclDevCommCreate unless NULL. */
  ncclDevResourceHandle_t *outBufferHandle;
  int ginSignalCount;
  int ginCounterCount;
  /* Written by ncclDevCommCreate unless NULL. */
  ncclGinSignal_t *outGinSignalStart;
  /* Written by ncclDevCommCreate unless NULL. */
  ncclGinCounter_t *outGinCounterStart;
} ncclDevResourceRequirements;

typedef struct ncclDevResourceRequirements ncclDevResourceRequirements_t;

/* A set of ranks with a fixed distance, seen from one of them. */
typedef struct ncclTeam {
  int nRanks;
  int rank;
  int stride;
} ncclTeam;

typedef struct ncclTeam ncclTeam_t;

typedef struct ncclMultimemHandle {
  void *mcBasePtr;
} ncclMultimemHandle;

typedef struct ncclMultimemHandle ncclMultimemHandle_t;

/* One team that ncclDevCommCreate should prepare; teams form a list. */
typedef struct ncclTeamRequirements {
  struct ncclTeamRequirements *next;
  ncclTeam_t team;
  bool multimem;
  /* Written by ncclDevCommCreate unless NULL. */
  ncclMultimemHandle_t *outMultimemHandle;
} ncclTeamRequirements;

typedef struct ncclTeamRequirements ncclTeamRequirements_t;

/* What a device communicator should offer. Start from NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER. */
typedef struct ncclDevCommRequirements {
  /* Set by the initialiser, like the next two. */
  size_t size;
  unsigned int magic;
  unsigned int version;
  ncclDevResourceRequirements_t *resourceRequirementsList;
  ncclTeamRequirements_t *teamRequirementsList;
  bool lsaMultimem;
  int barrierCount;
  int lsaBarrierCount;
  int railGinBarrierCount;
  int lsaLLA2ABlockCount;
  int lsaLLA2ASlotCount;
  bool ginForceEnable;
  int ginContextCount;
  int ginSignalCount;
  int ginCounterCount;
  enum ncclGinConnectionType_t ginConnectionType;
  bool ginExclusiveContexts;
  int ginQueueDepth;
  int ginTrafficClass;
  int worldGinBarrierCount;
  bool ginStrongSignalsRequired;
  bool ginVaSignalsRequired;
  int ginCustomStride;
  enum ncclGinType_t ginType;
  bool useRuntimeVersion;
  /* ncclCftCap_t bits. */
  int cftCaps;
  int cftBarrierCount;
} ncclDevCommRequirements;

typedef struct ncclDevCommRequirements ncclDevCommRequirements_t;

typedef struct ncclDevCommWindowTableEntry {
  size_t base;
  size_t size;
  ncclWindow_t window;
} ncclDevCommWindowTableEntry;

typedef struct ncclDevCommWindowTable {
  struct ncclDevCommWindowTableEntry entries[32];
  struct ncclDevCommWindowTable *next;
} ncclDevCommWindowTable;

typedef struct ncclDevCommWindowTable *ncclDevCommWindowTable_t;

/* The part of a window that a device communicator carries by value. */
typedef struct ncclResourceWindow_vidmem {
  char *lsaFlatBase;
  uint32_t stride4G;
  uint32_t mcOffset4K;
} ncclResourceWindow_vidmem;

typedef struct ncclResourceWindow_vidmem ncclResourceWindow_vidmem_t;

typedef struct ncclGinBarrierHandle {
  ncclGinSignal_t signal0;
  ncclDevResourceHandle_t unused;
} ncclGinBarrierHandle;

typedef struct ncclGinBarrierHandle ncclGinBarrierHandle_t;

typedef struct ncclLsaBarrierHandle {
  ncclDevResourceHandle_t bufHandle;
  int nBarriers;
} ncclLsaBarrierHandle;

typedef struct ncclLsaBarrierHandle ncclLsaBarrierHandle_t;

typedef struct ncclCftBarrierHandle {
  ncclDevResourceHandle_t bufHandle;
  int nBarriers;
} ncclCftBarrierHandle;

typedef struct ncclCftBarrierHandle ncclCftBarrierHandle_t;

/* A communicator as kernels see it; passed to them by value. */
typedef struct ncclDevComm {
  unsigned int magic;
  unsigned int version;
  int rank;
  int nRanks;
  uint32_t nRanks_rcp32;
  int lsaRank;
  int lsaSize;
  uint32_t lsaSize_rcp32;
  ncclDevCommWindowTable_t windowTable;
  ncclWindow_t resourceWindow;
  ncclResourceWindow_vidmem_t resourceWindow_inlined;
  ncclGinBarrierHandle_t hybridDenseGinBarrier;
  ncclMultimemHandle_t lsaMultimem;
  ncclLsaBarrierHandle_t lsaBarrier;
  ncclGinBarrierHandle_t railGinBarrier;
  uint8_t ginConnectionCount;
  uint8_t backendIndex;
  uint8_t ginNetDeviceTypes[4];
  void *ginHandles[4];
  int ginSignalCount;
  int ginCounterCount;
  uint64_t *ginSignalShadows;
  uint32_t ginContextCount;
  int ginConnectionStride;
  int ginContextStride;
  bool ginStrongLegacySignals;
  uint32_t *abortFlag;
  ncclLsaBarrierHandle_t hybridLsaBarrier;
  ncclGinBarrierHandle_t hybridRailGinBarrier;
  ncclGinBarrierHandle_t worldGinBarrier;
  uint32_t ginConnectionStride_rcp32;
  int cftRank;
  int cftSize;
  int cftMultimemRank;
  int cftMultimemSize;
  uint32_t cftMultimemSize_rcp32;
  ncclCftLeId_t ucLeId;
  ncclCftLeId_t mcLeId;
  ncclCftBarrierHandle_t cftBarrier;
  ncclCftBarrierHandle_t cftMultimemBarrier;
} ncclDevComm;

typedef struct ncclDevComm ncclDevComm_t;

typedef struct ncclLLA2AHandle {
  ncclDevResourceHandle_t bufHandle;
  uint32_t nSlots;
} ncclLLA2AHandle;

typedef struct ncclLLA2AHandle ncclLLA2AHandle_t;

typedef struct ncclGinOutboxHandle {
  ncclDevResourceHandle_t bufHandle;
  uint32_t size_log2;
} ncclGinOutboxHandle;

typedef struct ncclGinInboxA2AHandle {
  ncclDevResourceHandle_t bufHandle;
  ncclGinSignal_t signals;
  uint32_t size_log2;
  uint32_t nPeers_rcp32;
} ncclGinInboxA2AHandle;

typedef struct ncclWindow_vidmem ncclWindow_vidmem_t;

/* Version of NCCL that programs may expect here, as 10000 * major + 100 * minor + patch. */
ncclResult_t ncclGetVersion(int *version);
ncclResult_t pncclGetVersion(int *version);

/* A short text for a result code, never NULL. ncclGetLastError says what happened. */
const char *ncclGetErrorString(ncclResult_t result);
const char *pncclGetErrorString(ncclResult_t result);

/* The last failure as a sentence: the communicator's own where it had one, else the process's. Never NULL; empty before any failure. */
const char *ncclGetLastError(ncclComm_t comm);
const char *pncclGetLastError(ncclComm_t comm);

/* State of a communicator: ncclSuccess, ncclInProgress, or the failure that ended its use. Any thread may ask at any time. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);
ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);

/* Reads the NCCL_DEBUG settings again. Deprecated. */
void ncclResetDebugInit(void);
void pncclResetDebugInit(void);

/* Makes the id with which all ranks of a new communicator call ncclCommInitRank. */
ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId);
ncclResult_t pncclGetUniqueId(ncclUniqueId *uniqueId);

/* Joins a new communicator as `rank` of `nranks`, with the calling thread's current device. Returns when all ranks are there; a
 * thread that makes several ranks does it inside a group. */
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank);
ncclResult_t pncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank);

/* ncclCommInitRank with settings; config may be NULL. */
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t *config);
ncclResult_t pncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                     ncclConfig_t *config);

/* ncclCommInitRankConfig with several ids, which large jobs use to spread the start; every rank passes the same ones. */
ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId,
                                      ncclUniqueId *commIds, ncclConfig_t *config);
ncclResult_t pncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId,
                                       ncclUniqueId *commIds, ncclConfig_t *config);

/* Makes one communicator per device of this process; devlist NULL stands for devices 0 to ndev - 1. */
ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist);
ncclResult_t pncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist);

/* Completes what a communicator has to do; its end (ncclCommDestroy) is then local. All ranks call it. NULL is nothing to do. */
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t pncclCommFinalize(ncclComm_t comm);

/* Ends a communicator, after ncclCommFinalize if that was not called. NULL is nothing to do. */
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t pncclCommDestroy(ncclComm_t comm);

/* Ends a communicator at once: its waits on device and host give up. Every live rank calls it. NULL is nothing to do. */
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t pncclCommAbort(ncclComm_t comm);

/* Stops what a communicator is doing; it can still be split, shrunk and destroyed. NULL is nothing to do. */
ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags);
ncclResult_t pncclCommRevoke(ncclComm_t comm, int revokeFlags);

/* Divides a communicator: ranks with the same color form a new one, ordered by key. A rank with NCCL_SPLIT_NOCOLOR takes part in
 * the call and gets none. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);
ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);

/* Makes a communicator of the ranks that are not in a list; only they call it. Flags: NCCL_SHRINK_DEFAULT or NCCL_SHRINK_ABORT. */
ncclResult_t ncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
                            ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags);
ncclResult_t pncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
                             ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags);

/* Makes the id with which new ranks join ncclCommGrow. */
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *uniqueId);
ncclResult_t pncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *uniqueId);

/* Makes a larger communicator: ranks of the old one pass it with rank -1, new ranks pass NULL, the id and their rank. */
ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank,
                          ncclComm_t *newcomm, ncclConfig_t *config);
ncclResult_t pncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank,
                           ncclComm_t *newcomm, ncclConfig_t *config);

/* Number of ranks of a communicator. */
ncclResult_t ncclCommCount(ncclComm_t comm, int *count);
ncclResult_t pncclCommCount(ncclComm_t comm, int *count);

/* CUDA device of a communicator, by its number in this process. */
ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device);
ncclResult_t pncclCommCuDevice(ncclComm_t comm, int *device);

/* This rank's number in the communicator. */
ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank);
ncclResult_t pncclCommUserRank(ncclComm_t comm, int *rank);

/* Opens a group on the calling thread. Groups nest; the outermost ncclGroupEnd launches. */
ncclResult_t ncclGroupStart(void);
ncclResult_t pncclGroupStart(void);

/* Closes a group. The outermost end launches what the group collected and returns the first failure of any call in it. */
ncclResult_t ncclGroupEnd(void);
ncclResult_t pncclGroupEnd(void);

/* Closes a group without launching, and would estimate the time it would have taken: not finished, so it only closes. */
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *simInfo);
ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t *simInfo);

/* Reduces over all ranks; every rank gets the result. In place where sendbuff == recvbuff. */
ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                            ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);

/* Copies root's sendbuff to every rank's recvbuff. In place where sendbuff == recvbuff. */
ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                           int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                            int root, ncclComm_t comm, cudaStream_t stream);

/* ncclBroadcast in place. */
ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream);
ncclResult_t pncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                        cudaStream_t stream);

/* Reduces over all ranks; root gets the result. In place where sendbuff == recvbuff. */
ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                         ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);

/* Every rank gets all ranks' sendbuff, in rank order. In place where sendbuff == recvbuff + rank * sendcount elements. */
ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                            ncclComm_t comm, cudaStream_t stream);

/* Reduces over all ranks; rank i gets the i-th part of recvcount elements. In place where recvbuff == sendbuff + rank * recvcount
 * elements. */
ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream);
ncclResult_t pncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                                ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                cudaStream_t stream);

/* Rank i's j-th part of count elements becomes rank j's i-th part. */
ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                          ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream);

/* root gets all ranks' sendbuff, in rank order. In place where sendbuff == recvbuff + root * count elements on root. */
ncclResult_t ncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                        ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                         int root, ncclComm_t comm, cudaStream_t stream);

/* Rank i gets the i-th part of root's sendbuff. In place where recvbuff == sendbuff + root * count elements on root. */
ncclResult_t ncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                         int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                          int root, ncclComm_t comm, cudaStream_t stream);

/* Sends to `peer`, which calls ncclRecv with the same count and type. */
ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t pncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                       cudaStream_t stream);

/* Receives from `peer`, which calls ncclSend with the same count and type. */
ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t pncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                       cudaStream_t stream);

/* Makes an operation that multiplies this rank's input by a scalar before summing. */
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                       ncclScalarResidence_t residence, ncclComm_t comm);

/* Ends an operation; collectives that were enqueued with it keep it. */
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);
ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

/* ncclAllReduce with settings for this call; config may be NULL. */
ncclResult_t ncclAllReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                 const ncclCollConfig_t *config);
ncclResult_t pncclAllReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                  ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                  const ncclCollConfig_t *config);

/* ncclBroadcast with settings for this call; config may be NULL. */
ncclResult_t ncclBroadcastConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                 int root, ncclComm_t comm, cudaStream_t stream,
                                 const ncclCollConfig_t *config);
ncclResult_t pncclBroadcastConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                  int root, ncclComm_t comm, cudaStream_t stream,
                                  const ncclCollConfig_t *config);

/* ncclReduce with settings for this call; config may be NULL. */
ncclResult_t ncclReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                              ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream,
                              const ncclCollConfig_t *config);
ncclResult_t pncclReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                               ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream,
                               const ncclCollConfig_t *config);

/* ncclAllGather with settings for this call; config may be NULL. */
ncclResult_t ncclAllGatherConfig(const void *sendbuff, void *recvbuff, size_t sendcount,
                                 ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
                                 const ncclCollConfig_t *config);
ncclResult_t pncclAllGatherConfig(const void *sendbuff, void *recvbuff, size_t sendcount,
                                  ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
                                  const ncclCollConfig_t *config);

/* ncclReduceScatter with settings for this call; config may be NULL. */
ncclResult_t ncclReduceScatterConfig(const void *sendbuff, void *recvbuff, size_t recvcount,
                                     ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                     cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclReduceScatterConfig(const void *sendbuff, void *recvbuff, size_t recvcount,
                                      ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                      cudaStream_t stream, const ncclCollConfig_t *config);

/* ncclAlltoAll with settings for this call; config may be NULL. */
ncclResult_t ncclAlltoAllConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclAlltoAllConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);

/* ncclGather with settings for this call; config may be NULL. */
ncclResult_t ncclGatherConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                              int root, ncclComm_t comm, cudaStream_t stream,
                              const ncclCollConfig_t *config);
ncclResult_t pncclGatherConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                               int root, ncclComm_t comm, cudaStream_t stream,
                               const ncclCollConfig_t *config);

/* ncclScatter with settings for this call; config may be NULL. */
ncclResult_t ncclScatterConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                               int root, ncclComm_t comm, cudaStream_t stream,
                               const ncclCollConfig_t *config);
ncclResult_t pncclScatterConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                int root, ncclComm_t comm, cudaStream_t stream,
                                const ncclCollConfig_t *config);

/* Makes a buffer known, so that later collectives may use it without copies. */
ncclResult_t ncclCommRegister(ncclComm_t comm, void *buff, size_t size, void **handle);
ncclResult_t pncclCommRegister(ncclComm_t comm, void *buff, size_t size, void **handle);

/* Forgets a buffer of ncclCommRegister; a NULL handle is nothing to forget. */
ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle);
ncclResult_t pncclCommDeregister(ncclComm_t comm, void *handle);

/* Makes memory of all ranks reachable by all ranks. Every rank calls it; flags: NCCL_WIN_* bits. */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
                                    int winFlags);
ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
                                     int winFlags);

/* Ends a window; NULL is nothing to end. */
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);
ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);

/* The address with which a window was registered on this rank. */
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **outUserPtr);
ncclResult_t pncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **outUserPtr);

/* Allocates device memory that peers can map. */
ncclResult_t ncclMemAlloc(void **ptr, size_t size);
ncclResult_t pncclMemAlloc(void **ptr, size_t size);

/* Frees memory of ncclMemAlloc; NULL is nothing to free. */
ncclResult_t ncclMemFree(void *ptr);
ncclResult_t pncclMemFree(void *ptr);

/* Gives back what a communicator holds and can restore; all ranks call it. Flags: NCCL_SUSPEND_MEM. */
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t pncclCommSuspend(ncclComm_t comm, int flags);

/* Restores what ncclCommSuspend gave back; all ranks call it. */
ncclResult_t ncclCommResume(ncclComm_t comm);
ncclResult_t pncclCommResume(ncclComm_t comm);

/* Device memory that a communicator holds. */
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);
ncclResult_t pncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);

/* Writes to a peer's window, then raises a signal there. */
ncclResult_t ncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
                           ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
                           unsigned int flags, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
                            ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
                            unsigned int flags, ncclComm_t comm, cudaStream_t stream);

/* Raises a signal at a peer. */
ncclResult_t ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                        cudaStream_t stream);
ncclResult_t pncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                         cudaStream_t stream);

/* Makes the stream wait for signals of peers. */
ncclResult_t ncclWaitSignal(int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm,
                            cudaStream_t stream);
ncclResult_t pncclWaitSignal(int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm,
                             cudaStream_t stream);

/* Sets the key for all communicators made later in this process; NULL changes nothing. */
ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t *config);
ncclResult_t pncclSetEncryption(const ncclEncryptionConfig_t *config);

/* Opens a setting by its name. */
ncclResult_t ncclParamBind(ncclParamHandle_t *out, const char *key);
ncclResult_t pncclParamBind(ncclParamHandle_t *out, const char *key);

/* Value of a setting of exactly this type; here no setting has it, numbers are int64_t. */
ncclResult_t ncclParamGetI8(ncclParamHandle_t h, int8_t *out);
ncclResult_t pncclParamGetI8(ncclParamHandle_t h, int8_t *out);

/* Value of a setting of exactly this type; here no setting has it, numbers are int64_t. */
ncclResult_t ncclParamGetI16(ncclParamHandle_t h, int16_t *out);
ncclResult_t pncclParamGetI16(ncclParamHandle_t h, int16_t *out);

/* Value of a setting of exactly this type; here no setting has it, numbers are int64_t. */
ncclResult_t ncclParamGetI32(ncclParamHandle_t h, int32_t *out);
ncclResult_t pncclParamGetI32(ncclParamHandle_t h, int32_t *out);

/* Value of a setting of exactly this type: a number, or -2 where the library is to choose. */
ncclResult_t ncclParamGetI64(ncclParamHandle_t h, int64_t *out);
ncclResult_t pncclParamGetI64(ncclParamHandle_t h, int64_t *out);

/* Value of a setting of exactly this type; here no setting has it, numbers are int64_t. */
ncclResult_t ncclParamGetU8(ncclParamHandle_t h, uint8_t *out);
ncclResult_t pncclParamGetU8(ncclParamHandle_t h, uint8_t *out);

/* Value of a setting of exactly this type; here no setting has it, numbers are int64_t. */
ncclResult_t ncclParamGetU16(ncclParamHandle_t h, uint16_t *out);
ncclResult_t pncclParamGetU16(ncclParamHandle_t h, uint16_t *out);

/* Value of a setting of exactly this type; here no setting has it, numbers are int64_t. */
ncclResult_t ncclParamGetU32(ncclParamHandle_t h, uint32_t *out);
ncclResult_t pncclParamGetU32(ncclParamHandle_t h, uint32_t *out);

/* Value of a setting of exactly this type; here no setting has it, numbers are int64_t. */
ncclResult_t ncclParamGetU64(ncclParamHandle_t h, uint64_t *out);
ncclResult_t pncclParamGetU64(ncclParamHandle_t h, uint64_t *out);

/* Value of a text setting; valid until the next such call on this thread. */
ncclResult_t ncclParamGetStr(ncclParamHandle_t h, const char **out);
ncclResult_t pncclParamGetStr(ncclParamHandle_t h, const char **out);

/* Bytes of the value of a setting: a text with its NUL, a switch as one byte, a number as int64_t. */
ncclResult_t ncclParamGet(ncclParamHandle_t h, void *out, int maxLen, int *len);
ncclResult_t pncclParamGet(ncclParamHandle_t h, void *out, int maxLen, int *len);

/* Value of a setting by its name, as text. */
ncclResult_t ncclParamGetParameter(const char *key, const char **value, int *valueLen);
ncclResult_t pncclParamGetParameter(const char *key, const char **value, int *valueLen);

/* Names of all settings. */
ncclResult_t ncclParamGetAllParameterKeys(const char ***table, int *tableLen);
ncclResult_t pncclParamGetAllParameterKeys(const char ***table, int *tableLen);

/* Prints all settings. */
void ncclParamDumpAll(void);
void pncclParamDumpAll(void);

/* What a communicator can do. */
ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *props);
ncclResult_t pncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *props);

/* Makes the form of a communicator that kernels use. All ranks call it. */
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t *reqs,
                               ncclDevComm_t *outDevComm);
ncclResult_t pncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t *reqs,
                                ncclDevComm_t *outDevComm);

/* Ends what ncclDevCommCreate made. */
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t *devComm);
ncclResult_t pncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t *devComm);

/* Address through which a store reaches all LSA ranks; NULL where there is none. */
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void **outPtr);
ncclResult_t pncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void **outPtr);

/* Address through which a store reaches all ranks of a team. */
ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset, ncclMultimemHandle_t multimem,
                                          void **outPtr);
ncclResult_t pncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset, ncclMultimemHandle_t multimem,
                                           void **outPtr);

/* Address of an LSA rank's part of a window. */
ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank, void **outPtr);
ncclResult_t pncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank, void **outPtr);

/* Address of a rank's part of a window; NULL where it cannot be reached by loads and stores. */
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **outPtr);
ncclResult_t pncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **outPtr);

/* Logical endpoint that reaches all ranks. */
ncclResult_t ncclGetMultimemDeviceLeInfo(ncclWindow_t window, size_t offset, ncclCftLeId *leId,
                                         size_t *leOffset);
ncclResult_t pncclGetMultimemDeviceLeInfo(ncclWindow_t window, size_t offset, ncclCftLeId *leId,
                                          size_t *leOffset);

/* Logical endpoint of a rank of a CFT team. */
ncclResult_t ncclGetCftDeviceLeInfo(ncclWindow_t window, size_t offset, int peerCft, ncclTeam_t cftTeam,
                                    ncclCftLeId *leId, size_t *leOffset);
ncclResult_t pncclGetCftDeviceLeInfo(ncclWindow_t window, size_t offset, int peerCft, ncclTeam_t cftTeam,
                                     ncclCftLeId *leId, size_t *leOffset);

/* Logical endpoint of a rank. */
ncclResult_t ncclGetPeerDeviceLeInfo(ncclWindow_t window, size_t offset, int peerWorld, ncclCftLeId *leId,
                                     size_t *leOffset);
ncclResult_t pncclGetPeerDeviceLeInfo(ncclWindow_t window, size_t offset, int peerWorld, ncclCftLeId *leId,
                                      size_t *leOffset);

/* All ranks. All zero for a communicator that does not exist. */
ncclTeam_t ncclTeamWorld(ncclComm_t comm);
ncclTeam_t pncclTeamWorld(ncclComm_t comm);

/* The ranks whose memory this rank can load and store. */
ncclTeam_t ncclTeamLsa(ncclComm_t comm);
ncclTeam_t pncclTeamLsa(ncclComm_t comm);

/* The ranks with the same place in their LSA team. */
ncclTeam_t ncclTeamRail(ncclComm_t comm);
ncclTeam_t pncclTeamRail(ncclComm_t comm);

/* The ranks that share logical endpoints. */
ncclTeam_t ncclTeamCft(ncclComm_t comm, ncclCftTeamMode_t mode);
ncclTeam_t pncclTeamCft(ncclComm_t comm, ncclCftTeamMode_t mode);

/* The ranks that one multicast endpoint reaches. */
ncclTeam_t ncclTeamCftMultimem(ncclComm_t comm);
ncclTeam_t pncclTeamCftMultimem(ncclComm_t comm);

/* Number in the communicator of a team's rank. */
int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);
int pncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);

/* Number in the LSA team of a team's rank. */
int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);
int pncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);

/* Memory that barriers of LSA ranks need. */
ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t team, int nBarriers,
                                             ncclLsaBarrierHandle_t *outHandle,
                                             ncclDevResourceRequirements_t *outReq);
ncclResult_t pncclLsaBarrierCreateRequirement(ncclTeam_t team, int nBarriers,
                                              ncclLsaBarrierHandle_t *outHandle,
                                              ncclDevResourceRequirements_t *outReq);

/* Signals that barriers over the network need. */
ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int nBarriers,
                                             ncclGinBarrierHandle_t *outHandle,
                                             ncclDevResourceRequirements_t *outReq);
ncclResult_t pncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int nBarriers,
                                              ncclGinBarrierHandle_t *outHandle,
                                              ncclDevResourceRequirements_t *outReq);

/* Slots that ncclLLA2ACreateRequirement needs for this many elements of this size. */
int ncclLLA2ACalcSlots(int maxElts, int maxEltSize);
int pncclLLA2ACalcSlots(int maxElts, int maxEltSize);

/* Memory that low-latency all-to-all needs. */
ncclResult_t ncclLLA2ACreateRequirement(int nBlocks, int nSlots, ncclLLA2AHandle_t *outHandle,
                                        ncclDevResourceRequirements_t *outReq);
ncclResult_t pncclLLA2ACreateRequirement(int nBlocks, int nSlots, ncclLLA2AHandle_t *outHandle,
                                         ncclDevResourceRequirements_t *outReq);

/* Memory that outgoing messages over the network need. */
ncclResult_t ncclGinOutboxCreateRequirement(int nBlocks, int size_log2, ncclGinOutboxHandle *outHandle,
                                            ncclDevResourceRequirements *outReq);
ncclResult_t pncclGinOutboxCreateRequirement(int nBlocks, int size_log2, ncclGinOutboxHandle *outHandle,
                                             ncclDevResourceRequirements *outReq);

/* Memory that incoming messages of all peers need. */
ncclResult_t ncclGinInboxA2ACreateRequirement(ncclTeam peers, int nBlocks, int size_log2,
                                              ncclGinInboxA2AHandle *outHandle,
                                              ncclDevResourceRequirements *outReq);
ncclResult_t pncclGinInboxA2ACreateRequirement(ncclTeam peers, int nBlocks, int size_log2,
                                               ncclGinInboxA2AHandle *outHandle,
                                               ncclDevResourceRequirements *outReq);

/* Memory that barriers over logical endpoints need. Declared for source compatibility; like NCCL 2.32.3, the library does
 * not define it. */
ncclResult_t ncclCftBarrierCreateRequirement(ncclTeam_t team, int nBarriers,
                                             ncclCftBarrierHandle_t *outHandle,
                                             ncclDevResourceRequirements_t *outReq);

#ifdef __cplusplus
} /* extern "C" */

inline ncclTeam_t ncclTeamCft(ncclComm_t comm) {
  return ncclTeamCft(comm, NCCL_CFT_TEAM_FLAT);
}
#endif

/* Every field of a configuration struct unset. */
#define NCCL_CONFIG_INITIALIZER \
  { \
    sizeof(ncclConfig_t),   /* size */ \
    NCCL_API_MAGIC,         /* magic */ \
    OXCCL_NCCL_API_VERSION, /* version */ \
    NCCL_CONFIG_UNDEF_INT,  /* blocking */ \
    NCCL_CONFIG_UNDEF_INT,  /* cgaClusterSize */ \
    NCCL_CONFIG_UNDEF_INT,  /* minCTAs */ \
    NCCL_CONFIG_UNDEF_INT,  /* maxCTAs */ \
    NCCL_CONFIG_UNDEF_PTR,  /* netName */ \
    NCCL_CONFIG_UNDEF_INT,  /* splitShare */ \
    NCCL_CONFIG_UNDEF_INT,  /* trafficClass */ \
    NCCL_CONFIG_UNDEF_PTR,  /* commName */ \
    NCCL_CONFIG_UNDEF_INT,  /* collnetEnable */ \
    NCCL_CONFIG_UNDEF_INT,  /* CTAPolicy */ \
    NCCL_CONFIG_UNDEF_INT,  /* shrinkShare */ \
    NCCL_CONFIG_UNDEF_INT,  /* nvlsCTAs */ \
    NCCL_CONFIG_UNDEF_INT,  /* nChannelsPerNetPeer */ \
    NCCL_CONFIG_UNDEF_INT,  /* nvlinkCentricSched */ \
    NCCL_CONFIG_UNDEF_INT,  /* graphUsageMode */ \
    NCCL_CONFIG_UNDEF_INT,  /* numRmaCtx */ \
    NCCL_CONFIG_UNDEF_INT,  /* maxP2pPeers */ \
    NCCL_CONFIG_UNDEF_INT,  /* graphStreamOrdering */ \
    NCCL_CONFIG_UNDEF_INT,  /* launchOrderImplicit */ \
    NCCL_CONFIG_UNDEF_INT,  /* numRmaSig */ \
    NCCL_CONFIG_UNDEF_INT,  /* rmaEagerInit */ \
    NCCL_CONFIG_UNDEF_INT,  /* hostCftMode */ \
    NCCL_CONFIG_UNDEF_INT,  /* nvlsHostMode */ \
  }

/* A plain call. */
#define NCCL_COLLCONFIG_INITIALIZER \
  { \
    sizeof(ncclCollConfig_t), /* size */ \
    NCCL_API_MAGIC,           /* magic */ \
    OXCCL_NCCL_API_VERSION,   /* version */ \
    NCCL_CONFIG_UNDEF_PTR,    /* ext */ \
    NCCL_CONFIG_UNDEF_INT,    /* minCTAs */ \
    NCCL_CONFIG_UNDEF_INT,    /* maxCTAs */ \
    NCCL_CONFIG_UNDEF_INT,    /* nvlsCTAs */ \
    NCCL_CONFIG_UNDEF_INT,    /* cgaClusterSize */ \
    NCCL_CONFIG_UNDEF_PTR,    /* algSelection */ \
    1,                        /* forceAlgSelection */ \
    NCCL_CONFIG_UNDEF_INT,    /* CTAPolicy */ \
    0,                        /* userProfilerTag */ \
    NCCL_CONFIG_UNDEF_PTR,    /* launchCompletionEvent */ \
  }

#define NCCL_SIM_INFO_INITIALIZER \
  { \
    sizeof(ncclSimInfo_t),  /* size */ \
    0x74685283,             /* magic */ \
    OXCCL_NCCL_API_VERSION, /* version */ \
    NCCL_UNDEF_FLOAT,       /* estimatedTime */ \
  }

#define NCCL_ENCRYPTION_CONFIG_INITIALIZER \
  { \
    sizeof(ncclEncryptionConfig_t), /* size */ \
    NCCL_API_MAGIC,                 /* magic */ \
    OXCCL_NCCL_API_VERSION,         /* version */ \
    NCCL_ENCRYPTION_MODE_NONE,      /* mode */ \
    NCCL_CONFIG_UNDEF_PTR,          /* psk */ \
  }

#define NCCL_COMM_PROPERTIES_INITIALIZER \
  { \
    sizeof(ncclCommProperties_t), /* size */ \
    NCCL_API_MAGIC,               /* magic */ \
    OXCCL_NCCL_API_VERSION,       /* version */ \
    -1,                           /* rank */ \
    -1,                           /* nRanks */ \
    -1,                           /* cudaDev */ \
    -1,                           /* nvmlDev */ \
    false,                        /* deviceApiSupport */ \
    false,                        /* multimemSupport */ \
    NCCL_GIN_TYPE_NONE,           /* ginType */ \
    0,                            /* nLsaTeams */ \
    false,                        /* hostRmaSupport */ \
    NCCL_GIN_TYPE_NONE,           /* railedGinType */ \
    0,                            /* commHash */ \
    0,                            /* ginMinStride */ \
    NCCL_GIN_CONNECTION_NONE,     /* ginConnectionType */ \
    {false},                      /* ginSupport */ \
    0,                            /* devCommRuntimeVersionSize */ \
    false,                        /* cftSupport */ \
    false,                        /* cftMulticastSupport */ \
    false,                        /* cftCountedSupport */ \
  }

#define NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER \
  { \
    sizeof(ncclDevCommRequirements_t), /* size */ \
    NCCL_API_MAGIC,                    /* magic */ \
    OXCCL_NCCL_API_VERSION,            /* version */ \
    NULL,                              /* resourceRequirementsList */ \
    NULL,                              /* teamRequirementsList */ \
    false,                             /* lsaMultimem */ \
    0,                                 /* barrierCount */ \
    0,                                 /* lsaBarrierCount */ \
    0,                                 /* railGinBarrierCount */ \
    0,                                 /* lsaLLA2ABlockCount */ \
    0,                                 /* lsaLLA2ASlotCount */ \
    false,                             /* ginForceEnable */ \
    4,                                 /* ginContextCount */ \
    0,                                 /* ginSignalCount */ \
    0,                                 /* ginCounterCount */ \
    NCCL_GIN_CONNECTION_NONE,          /* ginConnectionType */ \
    false,                             /* ginExclusiveContexts */ \
    0,                                 /* ginQueueDepth */ \
    NCCL_CONFIG_UNDEF_INT,             /* ginTrafficClass */ \
    0,                                 /* worldGinBarrierCount */ \
    true,                              /* ginStrongSignalsRequired */ \
    true,                              /* ginVaSignalsRequired */ \
    1,                                 /* ginCustomStride */ \
    NCCL_GIN_TYPE_NONE,                /* ginType */ \
    false,                             /* useRuntimeVersion */ \
    NCCL_CFT_NONE,                     /* cftCaps */ \
    0,                                 /* cftBarrierCount */ \
  }

#endif /* NCCL_H_ */
