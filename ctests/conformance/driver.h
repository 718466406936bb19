// The part of the CUDA driver API that the conformance programs call, declared here so that they build without a
// toolkit, and looked up by dlopen, so that the same executable runs on any driver.
//
// A function that the driver lacks ends the section that calls it with a line that names the function.
#pragma once
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct context_opaque* CUcontext;
typedef struct module_opaque* CUmodule;
typedef struct function_opaque* CUfunction;
typedef struct stream_opaque* CUstream;
typedef struct event_opaque* CUevent;
typedef struct graph_opaque* CUgraph;
typedef struct graph_exec_opaque* CUgraphExec;
typedef struct graph_node_opaque* CUgraphNode;
typedef struct user_object_opaque* CUuserObject;
typedef unsigned long long CUmemGenericAllocationHandle;

typedef struct { char bytes[16]; } CUuuid;
typedef struct { char reserved[64]; } CUipcMemHandle;
typedef struct { char reserved[64]; } CUipcEventHandle;

typedef struct { int type, id; } CUmemLocation;
typedef struct {
  int type, requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  struct { unsigned char compressionType, gpuDirectRDMACapable; unsigned short usage; unsigned char reserved[4]; } allocFlags;
} CUmemAllocationProp;
typedef struct { CUmemLocation location; int flags; } CUmemAccessDesc;

typedef union {
  int operation;
  struct { int operation; CUdeviceptr address; union { uint32_t value; uint64_t value64; }; unsigned flags; CUdeviceptr alias; } waitValue;
  struct { int operation; CUdeviceptr address; union { uint32_t value; uint64_t value64; }; unsigned flags; CUdeviceptr alias; } writeValue;
  struct { int operation; unsigned flags; } flushRemoteWrites, memoryBarrier;
  uint64_t pad[6];
} CUstreamBatchMemOpParams;

typedef struct {
  CUfunction func;
  unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  void** kernelParams;
  void** extra;
  void* kern;
  CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;
typedef struct { CUdeviceptr dst; size_t pitch; unsigned value, elementSize; size_t width, height; } CUDA_MEMSET_NODE_PARAMS;
typedef struct { int result; CUgraphNode errorNode, errorFromNode; } CUgraphExecUpdateResultInfo;
typedef struct { unsigned from_port, to_port; } CUgraphEdgeDataWords;

enum {
  STREAM_DEFAULT = 0, STREAM_NON_BLOCKING = 1,
  EVENT_DEFAULT = 0, EVENT_BLOCKING_SYNC = 1, EVENT_DISABLE_TIMING = 2, EVENT_INTERPROCESS = 4,
  CAPTURE_GLOBAL = 0, CAPTURE_THREAD_LOCAL = 1, CAPTURE_RELAXED = 2,
  CAPTURE_STATUS_NONE = 0, CAPTURE_STATUS_ACTIVE = 1, CAPTURE_STATUS_INVALIDATED = 2,
  WAIT_GEQ = 0, WAIT_EQ = 1, WAIT_AND = 2, WAIT_NOR = 3,
  MEM_OP_WAIT_32 = 1, MEM_OP_WRITE_32 = 2, MEM_OP_FLUSH = 3, MEM_OP_WAIT_64 = 4, MEM_OP_WRITE_64 = 5, MEM_OP_BARRIER = 6,
  HOST_PORTABLE = 1, HOST_DEVICEMAP = 2, HOST_WRITECOMBINED = 4,
  REGISTER_PORTABLE = 1, REGISTER_DEVICEMAP = 2, REGISTER_READ_ONLY = 8,
  IPC_LAZY_PEER = 1,
  MEM_PINNED = 1, LOCATION_DEVICE = 1, HANDLE_NONE = 0, HANDLE_POSIX_FD = 1,
  ACCESS_NONE = 0, ACCESS_READ = 1, ACCESS_READ_WRITE = 3,
};
#define STREAM_LEGACY ((CUstream)1)
#define STREAM_PER_THREAD ((CUstream)2)

// name in the programs, symbol of the library, parameters
#define DRIVER_FUNCTIONS(F) \
  F(cuInit, cuInit, (unsigned)) \
  F(cuDriverGetVersion, cuDriverGetVersion, (int*)) \
  F(cuGetErrorName, cuGetErrorName, (CUresult, const char**)) \
  F(cuGetErrorString, cuGetErrorString, (CUresult, const char**)) \
  F(cuDeviceGet, cuDeviceGet, (CUdevice*, int)) \
  F(cuDeviceGetCount, cuDeviceGetCount, (int*)) \
  F(cuDeviceGetName, cuDeviceGetName, (char*, int, CUdevice)) \
  F(cuDeviceGetUuid, cuDeviceGetUuid_v2, (CUuuid*, CUdevice)) \
  F(cuDeviceTotalMem, cuDeviceTotalMem_v2, (size_t*, CUdevice)) \
  F(cuDeviceGetAttribute, cuDeviceGetAttribute, (int*, int, CUdevice)) \
  F(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, (char*, int, CUdevice)) \
  F(cuDeviceGetByPCIBusId, cuDeviceGetByPCIBusId, (CUdevice*, const char*)) \
  F(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, (int*, CUdevice, CUdevice)) \
  F(cuDeviceGetP2PAttribute, cuDeviceGetP2PAttribute, (int*, int, CUdevice, CUdevice)) \
  F(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext*, CUdevice)) \
  F(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice)) \
  F(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, (CUdevice)) \
  F(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2, (CUdevice, unsigned)) \
  F(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, (CUdevice, unsigned*, int*)) \
  F(cuCtxCreate, cuCtxCreate_v2, (CUcontext*, unsigned, CUdevice)) \
  F(cuCtxDestroy, cuCtxDestroy_v2, (CUcontext)) \
  F(cuCtxPushCurrent, cuCtxPushCurrent_v2, (CUcontext)) \
  F(cuCtxPopCurrent, cuCtxPopCurrent_v2, (CUcontext*)) \
  F(cuCtxSetCurrent, cuCtxSetCurrent, (CUcontext)) \
  F(cuCtxGetCurrent, cuCtxGetCurrent, (CUcontext*)) \
  F(cuCtxGetDevice, cuCtxGetDevice, (CUdevice*)) \
  F(cuCtxGetFlags, cuCtxGetFlags, (unsigned*)) \
  F(cuCtxGetId, cuCtxGetId, (CUcontext, unsigned long long*)) \
  F(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, (int*, int*)) \
  F(cuCtxSynchronize, cuCtxSynchronize, (void)) \
  F(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, (CUcontext, unsigned)) \
  F(cuCtxDisablePeerAccess, cuCtxDisablePeerAccess, (CUcontext)) \
  F(cuModuleLoadData, cuModuleLoadData, (CUmodule*, const void*)) \
  F(cuModuleUnload, cuModuleUnload, (CUmodule)) \
  F(cuModuleGetFunction, cuModuleGetFunction, (CUfunction*, CUmodule, const char*)) \
  F(cuFuncGetAttribute, cuFuncGetAttribute, (int*, int, CUfunction)) \
  F(cuFuncSetAttribute, cuFuncSetAttribute, (CUfunction, int, int)) \
  F(cuFuncGetModule, cuFuncGetModule, (CUmodule*, CUfunction)) \
  F(cuFuncGetName, cuFuncGetName, (const char**, CUfunction)) \
  F(cuFuncGetParamInfo, cuFuncGetParamInfo, (CUfunction, size_t, size_t*, size_t*)) \
  F(cuFuncIsLoaded, cuFuncIsLoaded, (int*, CUfunction)) \
  F(cuFuncLoad, cuFuncLoad, (CUfunction)) \
  F(cuOccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxActiveBlocksPerMultiprocessor, (int*, CUfunction, int, size_t)) \
  F(cuOccupancyMaxPotentialBlockSize, cuOccupancyMaxPotentialBlockSize, (int*, int*, CUfunction, size_t (*)(int), size_t, int)) \
  F(cuLaunchKernel, cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**, void**)) \
  F(cuLaunchHostFunc, cuLaunchHostFunc, (CUstream, void (*)(void*), void*)) \
  F(cuMemGetInfo, cuMemGetInfo_v2, (size_t*, size_t*)) \
  F(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr*, size_t)) \
  F(cuMemFree, cuMemFree_v2, (CUdeviceptr)) \
  F(cuMemAllocManaged, cuMemAllocManaged, (CUdeviceptr*, size_t, unsigned)) \
  F(cuMemAllocAsync, cuMemAllocAsync, (CUdeviceptr*, size_t, CUstream)) \
  F(cuMemFreeAsync, cuMemFreeAsync, (CUdeviceptr, CUstream)) \
  F(cuMemGetAddressRange, cuMemGetAddressRange_v2, (CUdeviceptr*, size_t*, CUdeviceptr)) \
  F(cuMemAllocHost, cuMemAllocHost_v2, (void**, size_t)) \
  F(cuMemHostAlloc, cuMemHostAlloc, (void**, size_t, unsigned)) \
  F(cuMemFreeHost, cuMemFreeHost, (void*)) \
  F(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, (CUdeviceptr*, void*, unsigned)) \
  F(cuMemHostGetFlags, cuMemHostGetFlags, (unsigned*, void*)) \
  F(cuMemHostRegister, cuMemHostRegister_v2, (void*, size_t, unsigned)) \
  F(cuMemHostUnregister, cuMemHostUnregister, (void*)) \
  F(cuPointerGetAttribute, cuPointerGetAttribute, (void*, int, CUdeviceptr)) \
  F(cuPointerGetAttributes, cuPointerGetAttributes, (unsigned, int*, void**, CUdeviceptr)) \
  F(cuPointerSetAttribute, cuPointerSetAttribute, (const void*, int, CUdeviceptr)) \
  F(cuMemcpy, cuMemcpy, (CUdeviceptr, CUdeviceptr, size_t)) \
  F(cuMemcpyAsync, cuMemcpyAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
  F(cuMemcpyHtoD, cuMemcpyHtoD_v2, (CUdeviceptr, const void*, size_t)) \
  F(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void*, CUdeviceptr, size_t)) \
  F(cuMemcpyDtoD, cuMemcpyDtoD_v2, (CUdeviceptr, CUdeviceptr, size_t)) \
  F(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void*, size_t, CUstream)) \
  F(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void*, CUdeviceptr, size_t, CUstream)) \
  F(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
  F(cuMemcpyPeer, cuMemcpyPeer, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t)) \
  F(cuMemcpyPeerAsync, cuMemcpyPeerAsync, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream)) \
  F(cuMemsetD8, cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t)) \
  F(cuMemsetD16, cuMemsetD16_v2, (CUdeviceptr, unsigned short, size_t)) \
  F(cuMemsetD32, cuMemsetD32_v2, (CUdeviceptr, unsigned, size_t)) \
  F(cuMemsetD8Async, cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream)) \
  F(cuMemsetD32Async, cuMemsetD32Async, (CUdeviceptr, unsigned, size_t, CUstream)) \
  F(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, (size_t*, const CUmemAllocationProp*, int)) \
  F(cuMemCreate, cuMemCreate, (CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, unsigned long long)) \
  F(cuMemRelease, cuMemRelease, (CUmemGenericAllocationHandle)) \
  F(cuMemAddressReserve, cuMemAddressReserve, (CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long)) \
  F(cuMemAddressFree, cuMemAddressFree, (CUdeviceptr, size_t)) \
  F(cuMemMap, cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long)) \
  F(cuMemUnmap, cuMemUnmap, (CUdeviceptr, size_t)) \
  F(cuMemSetAccess, cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc*, size_t)) \
  F(cuMemGetAccess, cuMemGetAccess, (unsigned long long*, const CUmemLocation*, CUdeviceptr)) \
  F(cuMemExportToShareableHandle, cuMemExportToShareableHandle, (void*, CUmemGenericAllocationHandle, int, unsigned long long)) \
  F(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle*, void*, int)) \
  F(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, (CUmemAllocationProp*, CUmemGenericAllocationHandle)) \
  F(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle*, void*)) \
  F(cuIpcGetMemHandle, cuIpcGetMemHandle, (CUipcMemHandle*, CUdeviceptr)) \
  F(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, (CUdeviceptr*, CUipcMemHandle, unsigned)) \
  F(cuIpcCloseMemHandle, cuIpcCloseMemHandle, (CUdeviceptr)) \
  F(cuIpcGetEventHandle, cuIpcGetEventHandle, (CUipcEventHandle*, CUevent)) \
  F(cuIpcOpenEventHandle, cuIpcOpenEventHandle, (CUevent*, CUipcEventHandle)) \
  F(cuStreamCreate, cuStreamCreate, (CUstream*, unsigned)) \
  F(cuStreamCreateWithPriority, cuStreamCreateWithPriority, (CUstream*, unsigned, int)) \
  F(cuStreamGetPriority, cuStreamGetPriority, (CUstream, int*)) \
  F(cuStreamGetFlags, cuStreamGetFlags, (CUstream, unsigned*)) \
  F(cuStreamGetCtx, cuStreamGetCtx, (CUstream, CUcontext*)) \
  F(cuStreamGetId, cuStreamGetId, (CUstream, unsigned long long*)) \
  F(cuStreamDestroy, cuStreamDestroy_v2, (CUstream)) \
  F(cuStreamQuery, cuStreamQuery, (CUstream)) \
  F(cuStreamSynchronize, cuStreamSynchronize, (CUstream)) \
  F(cuStreamWaitEvent, cuStreamWaitEvent, (CUstream, CUevent, unsigned)) \
  F(cuStreamAddCallback, cuStreamAddCallback, (CUstream, void (*)(CUstream, CUresult, void*), void*, unsigned)) \
  F(cuStreamWaitValue32, cuStreamWaitValue32_v2, (CUstream, CUdeviceptr, uint32_t, unsigned)) \
  F(cuStreamWaitValue64, cuStreamWaitValue64_v2, (CUstream, CUdeviceptr, uint64_t, unsigned)) \
  F(cuStreamWriteValue32, cuStreamWriteValue32_v2, (CUstream, CUdeviceptr, uint32_t, unsigned)) \
  F(cuStreamWriteValue64, cuStreamWriteValue64_v2, (CUstream, CUdeviceptr, uint64_t, unsigned)) \
  F(cuStreamBatchMemOp, cuStreamBatchMemOp_v2, (CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned)) \
  F(cuStreamBeginCapture, cuStreamBeginCapture_v2, (CUstream, int)) \
  F(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph, (CUstream, CUgraph, const CUgraphNode*, const void*, size_t, int)) \
  F(cuStreamEndCapture, cuStreamEndCapture, (CUstream, CUgraph*)) \
  F(cuStreamIsCapturing, cuStreamIsCapturing, (CUstream, int*)) \
  F(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v2, (CUstream, int*, uint64_t*, CUgraph*, const CUgraphNode**, size_t*)) \
  F(cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies, (CUstream, CUgraphNode*, size_t, unsigned)) \
  F(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, (int*)) \
  F(cuEventCreate, cuEventCreate, (CUevent*, unsigned)) \
  F(cuEventDestroy, cuEventDestroy_v2, (CUevent)) \
  F(cuEventRecord, cuEventRecord, (CUevent, CUstream)) \
  F(cuEventRecordWithFlags, cuEventRecordWithFlags, (CUevent, CUstream, unsigned)) \
  F(cuEventQuery, cuEventQuery, (CUevent)) \
  F(cuEventSynchronize, cuEventSynchronize, (CUevent)) \
  F(cuEventElapsedTime, cuEventElapsedTime, (float*, CUevent, CUevent)) \
  F(cuGraphCreate, cuGraphCreate, (CUgraph*, unsigned)) \
  F(cuGraphDestroy, cuGraphDestroy, (CUgraph)) \
  F(cuGraphClone, cuGraphClone, (CUgraph*, CUgraph)) \
  F(cuGraphGetNodes, cuGraphGetNodes, (CUgraph, CUgraphNode*, size_t*)) \
  F(cuGraphGetRootNodes, cuGraphGetRootNodes, (CUgraph, CUgraphNode*, size_t*)) \
  F(cuGraphGetEdges, cuGraphGetEdges, (CUgraph, CUgraphNode*, CUgraphNode*, size_t*)) \
  F(cuGraphNodeGetType, cuGraphNodeGetType, (CUgraphNode, int*)) \
  F(cuGraphAddEmptyNode, cuGraphAddEmptyNode, (CUgraphNode*, CUgraph, const CUgraphNode*, size_t)) \
  F(cuGraphAddMemsetNode, cuGraphAddMemsetNode, (CUgraphNode*, CUgraph, const CUgraphNode*, size_t, const CUDA_MEMSET_NODE_PARAMS*, CUcontext)) \
  F(cuGraphAddKernelNode, cuGraphAddKernelNode_v2, (CUgraphNode*, CUgraph, const CUgraphNode*, size_t, const CUDA_KERNEL_NODE_PARAMS*)) \
  F(cuGraphKernelNodeGetParams, cuGraphKernelNodeGetParams_v2, (CUgraphNode, CUDA_KERNEL_NODE_PARAMS*)) \
  F(cuGraphInstantiate, cuGraphInstantiateWithFlags, (CUgraphExec*, CUgraph, unsigned long long)) \
  F(cuGraphExecDestroy, cuGraphExecDestroy, (CUgraphExec)) \
  F(cuGraphExecUpdate, cuGraphExecUpdate_v2, (CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo*)) \
  F(cuGraphLaunch, cuGraphLaunch, (CUgraphExec, CUstream)) \
  F(cuGraphUpload, cuGraphUpload, (CUgraphExec, CUstream)) \
  F(cuUserObjectCreate, cuUserObjectCreate, (CUuserObject*, void*, void (*)(void*), unsigned, unsigned)) \
  F(cuUserObjectRetain, cuUserObjectRetain, (CUuserObject, unsigned)) \
  F(cuUserObjectRelease, cuUserObjectRelease, (CUuserObject, unsigned)) \
  F(cuGraphRetainUserObject, cuGraphRetainUserObject, (CUgraph, CUuserObject, unsigned, unsigned)) \
  F(cuGraphReleaseUserObject, cuGraphReleaseUserObject, (CUgraph, CUuserObject, unsigned))

static void driver_lacks(const char* symbol) {
  printf("the driver lacks %s\n", symbol);
  fflush(stdout);
  _Exit(1);
}

#define DRIVER_DECLARE(name, symbol, parameters)                                      \
  static CUresult lacks_##name() { driver_lacks(#symbol); return 0; }                 \
  static __attribute__((unused)) CUresult (*name) parameters = (CUresult (*) parameters)lacks_##name;
DRIVER_FUNCTIONS(DRIVER_DECLARE)

// Opens the driver and looks every function up. The name is the one that programs link to.
static void driver_open(void) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    printf("no driver: %s\n", dlerror());
    fflush(stdout);
    _Exit(1);
  }
  void* found;
#define DRIVER_FIND(name, symbol, parameters) \
  if ((found = dlsym(library, #symbol))) name = (CUresult (*) parameters)found;
  DRIVER_FUNCTIONS(DRIVER_FIND)
}
