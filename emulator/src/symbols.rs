//! The list of what the emulator exports, and cuGetProcAddress, which looks in it.
//!
//! A test compares the list with the functions that the sources define.

use std::ffi::c_void;

use crate::config;
use crate::error::{INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED, Result};
use crate::fault::base_name;
use crate::types::{In, Out, Text};

use crate::context::*;
use crate::device::*;
use crate::error::{cuGetErrorName, cuGetErrorString};
use crate::graph::build::*;
use crate::graph::exec::*;
use crate::graph::params::*;
use crate::graph::user_object::*;
use crate::launch::*;
use crate::memory::alloc::*;
use crate::memory::attributes::*;
use crate::memory::copy::*;
use crate::memory::host::*;
use crate::memory::ipc::*;
use crate::memory::pool::*;
use crate::memory::vmm::*;
use crate::module::*;
use crate::stream::callback::*;
use crate::stream::capture::*;
use crate::stream::event::*;
use crate::stream::memop::*;
use crate::stream::*;

/// An exported function, as an address that only C code calls.
struct Symbol(&'static str, *const c_void);

// SAFETY: the pointer is the address of a function.
unsafe impl Sync for Symbol {}

macro_rules! symbols {
    ($($name:ident),* $(,)?) => { &[$(Symbol(stringify!($name), $name as *const c_void)),*] };
}

const PER_THREAD_DEFAULT_STREAM: u64 = 2;

/// Versions with other parameters than those before, and the first CUDA version whose programs expect them.
const NEWER: &[(&str, i32)] = &[
    ("cuCtxCreate_v3", 11040),
    ("cuCtxCreate_v4", 12050),
    ("cuGraphAddDependencies_v2", 12030),
    ("cuGraphGetEdges_v2", 12030),
    ("cuGraphNodeGetDependencies_v2", 12030),
    ("cuGraphNodeGetDependentNodes_v2", 12030),
    ("cuGraphRemoveDependencies_v2", 12030),
    ("cuStreamGetCaptureInfo_v3", 12030),
    ("cuStreamGetCtx_v2", 12050),
    ("cuStreamUpdateCaptureDependencies_v2", 12030),
];

/// The newest version of a function that a program written for `cuda` can use.
fn resolve(name: &str, cuda: i32, per_thread: bool) -> Option<*const c_void> {
    let too_new = |symbol: &Symbol| NEWER.iter().any(|(n, since)| symbol.0.starts_with(n) && cuda < *since);
    let versions = |symbol: &&Symbol| symbol.0 == name || (base_name(symbol.0) == name && !too_new(symbol));
    let is_per_thread = |symbol: &&Symbol| symbol.0.ends_with("_ptsz") || symbol.0.ends_with("_ptds");
    let newest = |wanted: bool| {
        let found = SYMBOLS.iter().filter(versions).filter(|symbol| is_per_thread(symbol) == wanted);
        found.max_by_key(|symbol| version(symbol.0)).map(|symbol| symbol.1)
    };
    if per_thread { newest(true).or_else(|| newest(false)) } else { newest(false) }
}

/// 2 for `cuMemAlloc_v2`, 1 for a name without a version.
fn version(name: &str) -> u32 {
    let digits = |part: &str| part.strip_prefix('v').and_then(|digits| digits.parse().ok());
    name.split('_').filter_map(digits).next_back().unwrap_or(1)
}

fn find(symbol: Text, out: Out<*const c_void>, cuda: i32, flags: u64, status: Out<u32>) -> Result {
    const FOUND: u32 = 0;
    const UNKNOWN: u32 = 1;
    out.check()?;
    let name = symbol.get()?;
    match resolve(&name, cuda, flags & PER_THREAD_DEFAULT_STREAM != 0) {
        Some(address) => {
            status.set_opt(FOUND);
            out.set(address)
        }
        None => {
            config::log(&format!("cuGetProcAddress: {name} is not there"));
            status.set_opt(UNKNOWN);
            out.set(std::ptr::null())?;
            Err(NOT_FOUND)
        }
    }
}

cu! {
    [any] fn cuGetProcAddress(symbol: Text, out: Out<*const c_void>, version: i32, flags: u64) {
        find(symbol, out, version, flags, Out::NULL)
    }

    [any] fn cuGetProcAddress_v2(symbol: Text, out: Out<*const c_void>, version: i32, flags: u64, status: Out<u32>) {
        // With a status to tell, a name that is not there is no error of the call.
        match find(symbol, out, version, flags, status) {
            Err(NOT_FOUND) if !status.is_null() => Ok(()),
            other => other,
        }
    }

    [any] fn cuGetExportTable(table: Out<*const c_void>, id: In<[u8; 16]>) {
        let _ = id.get()?;
        table.set(std::ptr::null())?;
        Err(NOT_SUPPORTED)
    }

    fn cuProfilerInitialize(config: usize, output: usize, mode: u32) {
        let _ = (config, output);
        if mode > 1 { Err(INVALID_VALUE) } else { Ok(()) }
    }

    fn cuProfilerStart() {
        Ok(())
    }

    fn cuProfilerStop() {
        Ok(())
    }
}

#[rustfmt::skip]
static SYMBOLS: &[Symbol] = symbols![
    cuCtxCreate_v2,
    cuCtxCreate_v3,
    cuCtxCreate_v4,
    cuCtxDestroy_v2,
    cuCtxDisablePeerAccess,
    cuCtxEnablePeerAccess,
    cuCtxGetApiVersion,
    cuCtxGetCacheConfig,
    cuCtxGetCurrent,
    cuCtxGetDevice,
    cuCtxGetFlags,
    cuCtxGetId,
    cuCtxGetLimit,
    cuCtxGetSharedMemConfig,
    cuCtxGetStreamPriorityRange,
    cuCtxPopCurrent_v2,
    cuCtxPushCurrent_v2,
    cuCtxRecordEvent,
    cuCtxResetPersistingL2Cache,
    cuCtxSetCacheConfig,
    cuCtxSetCurrent,
    cuCtxSetFlags,
    cuCtxSetLimit,
    cuCtxSetSharedMemConfig,
    cuCtxSynchronize,
    cuCtxWaitEvent,
    cuDeviceCanAccessPeer,
    cuDeviceComputeCapability,
    cuDeviceGet,
    cuDeviceGetAttribute,
    cuDeviceGetByPCIBusId,
    cuDeviceGetCount,
    cuDeviceGetDefaultMemPool,
    cuDeviceGetExecAffinitySupport,
    cuDeviceGetLuid,
    cuDeviceGetMemPool,
    cuDeviceGetName,
    cuDeviceGetP2PAttribute,
    cuDeviceGetPCIBusId,
    cuDeviceGetProperties,
    cuDeviceGetUuid,
    cuDeviceGetUuid_v2,
    cuDevicePrimaryCtxGetState,
    cuDevicePrimaryCtxRelease_v2,
    cuDevicePrimaryCtxReset_v2,
    cuDevicePrimaryCtxRetain,
    cuDevicePrimaryCtxSetFlags_v2,
    cuDeviceSetMemPool,
    cuDeviceTotalMem_v2,
    cuDriverGetVersion,
    cuEventCreate,
    cuEventDestroy_v2,
    cuEventElapsedTime,
    cuEventElapsedTime_v2,
    cuEventQuery,
    cuEventRecord,
    cuEventRecordWithFlags,
    cuEventRecordWithFlags_ptsz,
    cuEventRecord_ptsz,
    cuEventSynchronize,
    cuFlushGPUDirectRDMAWrites,
    cuFuncGetAttribute,
    cuFuncGetModule,
    cuFuncGetName,
    cuFuncGetParamInfo,
    cuFuncIsLoaded,
    cuFuncLoad,
    cuFuncSetAttribute,
    cuFuncSetCacheConfig,
    cuFuncSetSharedMemConfig,
    cuGetErrorName,
    cuGetErrorString,
    cuGetExportTable,
    cuGetProcAddress,
    cuGetProcAddress_v2,
    cuGraphAddBatchMemOpNode,
    cuGraphAddChildGraphNode,
    cuGraphAddDependencies,
    cuGraphAddDependencies_v2,
    cuGraphAddEmptyNode,
    cuGraphAddEventRecordNode,
    cuGraphAddEventWaitNode,
    cuGraphAddHostNode,
    cuGraphAddKernelNode_v2,
    cuGraphAddMemcpyNode,
    cuGraphAddMemsetNode,
    cuGraphBatchMemOpNodeSetParams,
    cuGraphChildGraphNodeGetGraph,
    cuGraphClone,
    cuGraphCreate,
    cuGraphDebugDotPrint,
    cuGraphDestroy,
    cuGraphDestroyNode,
    cuGraphEventRecordNodeGetEvent,
    cuGraphEventRecordNodeSetEvent,
    cuGraphEventWaitNodeGetEvent,
    cuGraphEventWaitNodeSetEvent,
    cuGraphExecBatchMemOpNodeSetParams,
    cuGraphExecDestroy,
    cuGraphExecEventRecordNodeSetEvent,
    cuGraphExecEventWaitNodeSetEvent,
    cuGraphExecGetFlags,
    cuGraphExecHostNodeSetParams,
    cuGraphExecKernelNodeSetParams_v2,
    cuGraphExecMemcpyNodeSetParams,
    cuGraphExecMemsetNodeSetParams,
    cuGraphExecUpdate_v2,
    cuGraphGetEdges,
    cuGraphGetEdges_v2,
    cuGraphGetNodes,
    cuGraphGetRootNodes,
    cuGraphHostNodeGetParams,
    cuGraphHostNodeSetParams,
    cuGraphInstantiateWithFlags,
    cuGraphInstantiateWithParams,
    cuGraphInstantiateWithParams_ptsz,
    cuGraphInstantiate_v2,
    cuGraphKernelNodeGetParams_v2,
    cuGraphKernelNodeSetParams_v2,
    cuGraphLaunch,
    cuGraphLaunch_ptsz,
    cuGraphMemcpyNodeGetParams,
    cuGraphMemcpyNodeSetParams,
    cuGraphMemsetNodeGetParams,
    cuGraphMemsetNodeSetParams,
    cuGraphNodeFindInClone,
    cuGraphNodeGetDependencies,
    cuGraphNodeGetDependencies_v2,
    cuGraphNodeGetDependentNodes,
    cuGraphNodeGetDependentNodes_v2,
    cuGraphNodeGetEnabled,
    cuGraphNodeGetType,
    cuGraphNodeSetEnabled,
    cuGraphReleaseUserObject,
    cuGraphRemoveDependencies,
    cuGraphRemoveDependencies_v2,
    cuGraphRetainUserObject,
    cuGraphUpload,
    cuGraphUpload_ptsz,
    cuInit,
    cuIpcCloseMemHandle,
    cuIpcGetEventHandle,
    cuIpcGetMemHandle,
    cuIpcOpenEventHandle,
    cuIpcOpenMemHandle_v2,
    cuKernelGetAttribute,
    cuKernelGetFunction,
    cuKernelGetLibrary,
    cuKernelGetName,
    cuKernelGetParamInfo,
    cuKernelSetAttribute,
    cuKernelSetCacheConfig,
    cuLaunchCooperativeKernel,
    cuLaunchCooperativeKernel_ptsz,
    cuLaunchHostFunc,
    cuLaunchHostFunc_ptsz,
    cuLaunchKernel,
    cuLaunchKernelEx,
    cuLaunchKernelEx_ptsz,
    cuLaunchKernel_ptsz,
    cuLibraryGetGlobal,
    cuLibraryGetKernel,
    cuLibraryGetModule,
    cuLibraryLoadData,
    cuLibraryLoadFromFile,
    cuLibraryUnload,
    cuMemAddressFree,
    cuMemAddressReserve,
    cuMemAdvise,
    cuMemAllocAsync,
    cuMemAllocAsync_ptsz,
    cuMemAllocFromPoolAsync,
    cuMemAllocFromPoolAsync_ptsz,
    cuMemAllocHost_v2,
    cuMemAllocManaged,
    cuMemAllocPitch_v2,
    cuMemAlloc_v2,
    cuMemCreate,
    cuMemExportToShareableHandle,
    cuMemFreeAsync,
    cuMemFreeAsync_ptsz,
    cuMemFreeHost,
    cuMemFree_v2,
    cuMemGetAccess,
    cuMemGetAddressRange_v2,
    cuMemGetAllocationGranularity,
    cuMemGetAllocationPropertiesFromHandle,
    cuMemGetHandleForAddressRange,
    cuMemGetInfo_v2,
    cuMemHostAlloc,
    cuMemHostGetDevicePointer_v2,
    cuMemHostGetFlags,
    cuMemHostRegister_v2,
    cuMemHostUnregister,
    cuMemImportFromShareableHandle,
    cuMemMap,
    cuMemPoolCreate,
    cuMemPoolDestroy,
    cuMemPoolGetAccess,
    cuMemPoolGetAttribute,
    cuMemPoolSetAccess,
    cuMemPoolSetAttribute,
    cuMemPoolTrimTo,
    cuMemPrefetchAsync,
    cuMemPrefetchAsync_ptsz,
    cuMemRelease,
    cuMemRetainAllocationHandle,
    cuMemSetAccess,
    cuMemUnmap,
    cuMemcpy,
    cuMemcpy2DAsync_v2,
    cuMemcpy2DAsync_v2_ptsz,
    cuMemcpy2DUnaligned_v2,
    cuMemcpy2DUnaligned_v2_ptds,
    cuMemcpy2D_v2,
    cuMemcpy2D_v2_ptds,
    cuMemcpy3DAsync_v2,
    cuMemcpy3DAsync_v2_ptsz,
    cuMemcpy3D_v2,
    cuMemcpy3D_v2_ptds,
    cuMemcpyAsync,
    cuMemcpyAsync_ptsz,
    cuMemcpyDtoDAsync_v2,
    cuMemcpyDtoDAsync_v2_ptsz,
    cuMemcpyDtoD_v2,
    cuMemcpyDtoD_v2_ptds,
    cuMemcpyDtoHAsync_v2,
    cuMemcpyDtoHAsync_v2_ptsz,
    cuMemcpyDtoH_v2,
    cuMemcpyDtoH_v2_ptds,
    cuMemcpyHtoDAsync_v2,
    cuMemcpyHtoDAsync_v2_ptsz,
    cuMemcpyHtoD_v2,
    cuMemcpyHtoD_v2_ptds,
    cuMemcpyPeer,
    cuMemcpyPeerAsync,
    cuMemcpyPeerAsync_ptsz,
    cuMemcpyPeer_ptds,
    cuMemcpy_ptds,
    cuMemsetD16Async,
    cuMemsetD16Async_ptsz,
    cuMemsetD16_v2,
    cuMemsetD16_v2_ptds,
    cuMemsetD2D16Async,
    cuMemsetD2D16Async_ptsz,
    cuMemsetD2D16_v2,
    cuMemsetD2D16_v2_ptds,
    cuMemsetD2D32Async,
    cuMemsetD2D32Async_ptsz,
    cuMemsetD2D32_v2,
    cuMemsetD2D32_v2_ptds,
    cuMemsetD2D8Async,
    cuMemsetD2D8Async_ptsz,
    cuMemsetD2D8_v2,
    cuMemsetD2D8_v2_ptds,
    cuMemsetD32Async,
    cuMemsetD32Async_ptsz,
    cuMemsetD32_v2,
    cuMemsetD32_v2_ptds,
    cuMemsetD8Async,
    cuMemsetD8Async_ptsz,
    cuMemsetD8_v2,
    cuMemsetD8_v2_ptds,
    cuModuleGetFunction,
    cuModuleGetGlobal_v2,
    cuModuleGetLoadingMode,
    cuModuleLoad,
    cuModuleLoadData,
    cuModuleLoadDataEx,
    cuModuleLoadFatBinary,
    cuModuleUnload,
    cuOccupancyAvailableDynamicSMemPerBlock,
    cuOccupancyMaxActiveBlocksPerMultiprocessor,
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
    cuOccupancyMaxPotentialBlockSize,
    cuPointerGetAttribute,
    cuPointerGetAttributes,
    cuPointerSetAttribute,
    cuProfilerInitialize,
    cuProfilerStart,
    cuProfilerStop,
    cuStreamAddCallback,
    cuStreamAddCallback_ptsz,
    cuStreamAttachMemAsync,
    cuStreamAttachMemAsync_ptsz,
    cuStreamBatchMemOp,
    cuStreamBatchMemOp_ptsz,
    cuStreamBatchMemOp_v2,
    cuStreamBatchMemOp_v2_ptsz,
    cuStreamBeginCaptureToGraph,
    cuStreamBeginCaptureToGraph_ptsz,
    cuStreamBeginCapture_v2,
    cuStreamBeginCapture_v2_ptsz,
    cuStreamCopyAttributes,
    cuStreamCopyAttributes_ptsz,
    cuStreamCreate,
    cuStreamCreateWithPriority,
    cuStreamDestroy_v2,
    cuStreamEndCapture,
    cuStreamEndCapture_ptsz,
    cuStreamGetCaptureInfo_v2,
    cuStreamGetCaptureInfo_v2_ptsz,
    cuStreamGetCaptureInfo_v3,
    cuStreamGetCaptureInfo_v3_ptsz,
    cuStreamGetCtx,
    cuStreamGetCtx_ptsz,
    cuStreamGetCtx_v2,
    cuStreamGetCtx_v2_ptsz,
    cuStreamGetDevice,
    cuStreamGetDevice_ptsz,
    cuStreamGetFlags,
    cuStreamGetFlags_ptsz,
    cuStreamGetGreenCtx,
    cuStreamGetId,
    cuStreamGetId_ptsz,
    cuStreamGetPriority,
    cuStreamGetPriority_ptsz,
    cuStreamIsCapturing,
    cuStreamIsCapturing_ptsz,
    cuStreamQuery,
    cuStreamQuery_ptsz,
    cuStreamSynchronize,
    cuStreamSynchronize_ptsz,
    cuStreamUpdateCaptureDependencies,
    cuStreamUpdateCaptureDependencies_ptsz,
    cuStreamUpdateCaptureDependencies_v2,
    cuStreamUpdateCaptureDependencies_v2_ptsz,
    cuStreamWaitEvent,
    cuStreamWaitEvent_ptsz,
    cuStreamWaitValue32,
    cuStreamWaitValue32_ptsz,
    cuStreamWaitValue32_v2,
    cuStreamWaitValue32_v2_ptsz,
    cuStreamWaitValue64,
    cuStreamWaitValue64_ptsz,
    cuStreamWaitValue64_v2,
    cuStreamWaitValue64_v2_ptsz,
    cuStreamWriteValue32,
    cuStreamWriteValue32_ptsz,
    cuStreamWriteValue32_v2,
    cuStreamWriteValue32_v2_ptsz,
    cuStreamWriteValue64,
    cuStreamWriteValue64_ptsz,
    cuStreamWriteValue64_v2,
    cuStreamWriteValue64_v2_ptsz,
    cuThreadExchangeStreamCaptureMode,
    cuUserObjectCreate,
    cuUserObjectRelease,
    cuUserObjectRetain,
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// The names that `cu!` blocks below a folder define.
    fn defined(folder: &Path, names: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                defined(&path, names);
                continue;
            }
            for line in std::fs::read_to_string(&path).unwrap().lines() {
                let line = line.strip_prefix("    ").unwrap_or("");
                let line =
                    ["[any] ", "[stream] "].iter().find_map(|mark| line.strip_prefix(mark)).unwrap_or(line);
                let Some(rest) =
                    line.strip_prefix("fn cu").filter(|rest| rest.starts_with(char::is_uppercase))
                else {
                    continue;
                };
                let heads = rest.split('(').next().unwrap().split('/');
                names.extend(heads.map(str::trim).enumerate().map(|(place, name)| match place {
                    0 => format!("cu{name}"),
                    _ => name.to_owned(),
                }));
            }
        }
    }

    #[test]
    fn the_list_holds_what_is_defined() {
        let mut names = Vec::new();
        defined(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut names);
        names.sort();
        let listed: Vec<&str> = SYMBOLS.iter().map(|symbol| symbol.0).collect();
        assert_eq!(listed, names);
    }

    #[test]
    fn the_newest_version_is_found() {
        assert_eq!(resolve("cuMemAlloc", 12080, false), Some(cuMemAlloc_v2 as *const c_void));
        assert_eq!(resolve("cuCtxCreate", 12080, false), Some(cuCtxCreate_v4 as *const c_void));
        assert_eq!(resolve("cuCtxCreate", 11000, false), Some(cuCtxCreate_v2 as *const c_void));
        assert_eq!(
            resolve("cuStreamSynchronize", 12080, true),
            Some(cuStreamSynchronize_ptsz as *const c_void)
        );
        assert_eq!(resolve("cuMemCreate", 12080, true), Some(cuMemCreate as *const c_void));
        assert_eq!(resolve("cuNothing", 12080, false), None);
    }
}
