//! Result codes of the driver API, with their names and sentences.
//!
//! Inside the crate a code is used as an error value; 0, success, never is one.

use std::ffi::{CStr, c_char};

use crate::types::Out;

/// A `CUresult` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u32);

pub type Result<T = ()> = std::result::Result<T, Code>;

pub const INVALID_VALUE: Code = Code(1);
pub const OUT_OF_MEMORY: Code = Code(2);
pub const NOT_INITIALIZED: Code = Code(3);
pub const STUB_LIBRARY: Code = Code(34);
pub const NO_DEVICE: Code = Code(100);
pub const INVALID_DEVICE: Code = Code(101);
pub const INVALID_IMAGE: Code = Code(200);
pub const INVALID_CONTEXT: Code = Code(201);
pub const ALREADY_MAPPED: Code = Code(208);
pub const NOT_MAPPED: Code = Code(211);
pub const UNSUPPORTED_LIMIT: Code = Code(215);
pub const PEER_ACCESS_UNSUPPORTED: Code = Code(217);
pub const FILE_NOT_FOUND: Code = Code(301);
pub const OPERATING_SYSTEM: Code = Code(304);
pub const INVALID_HANDLE: Code = Code(400);
pub const ILLEGAL_STATE: Code = Code(401);
pub const NOT_FOUND: Code = Code(500);
pub const NOT_READY: Code = Code(600);
pub const ILLEGAL_ADDRESS: Code = Code(700);
pub const LAUNCH_OUT_OF_RESOURCES: Code = Code(701);
pub const PEER_ACCESS_ALREADY_ENABLED: Code = Code(704);
pub const PEER_ACCESS_NOT_ENABLED: Code = Code(705);
pub const PRIMARY_CONTEXT_ACTIVE: Code = Code(708);
pub const CONTEXT_IS_DESTROYED: Code = Code(709);
pub const HOST_MEMORY_ALREADY_REGISTERED: Code = Code(712);
pub const HOST_MEMORY_NOT_REGISTERED: Code = Code(713);
pub const MISALIGNED_ADDRESS: Code = Code(716);
pub const INVALID_PC: Code = Code(718);
pub const LAUNCH_FAILED: Code = Code(719);
pub const COOPERATIVE_LAUNCH_TOO_LARGE: Code = Code(720);
pub const NOT_PERMITTED: Code = Code(800);
pub const NOT_SUPPORTED: Code = Code(801);
pub const STREAM_CAPTURE_UNSUPPORTED: Code = Code(900);
pub const STREAM_CAPTURE_INVALIDATED: Code = Code(901);
pub const STREAM_CAPTURE_MERGE: Code = Code(902);
pub const STREAM_CAPTURE_UNMATCHED: Code = Code(903);
pub const STREAM_CAPTURE_UNJOINED: Code = Code(904);
pub const STREAM_CAPTURE_ISOLATION: Code = Code(905);
pub const STREAM_CAPTURE_IMPLICIT: Code = Code(906);
pub const CAPTURED_EVENT: Code = Code(907);
pub const STREAM_CAPTURE_WRONG_THREAD: Code = Code(908);
pub const GRAPH_EXEC_UPDATE_FAILURE: Code = Code(910);
pub const UNKNOWN: Code = Code(999);

/// The C name of a code, such as `CUDA_ERROR_INVALID_VALUE`.
pub fn name(code: u32) -> Option<&'static CStr> {
    entry(code).map(|(_, name, _)| *name)
}

/// A sentence about a code.
pub fn sentence(code: u32) -> Option<&'static CStr> {
    entry(code).map(|(_, _, sentence)| *sentence)
}

fn entry(code: u32) -> Option<&'static (u32, &'static CStr, &'static CStr)> {
    TABLE.binary_search_by_key(&code, |(code, _, _)| *code).ok().map(|index| &TABLE[index])
}

/// In rising order of the codes.
#[rustfmt::skip]
static TABLE: &[(u32, &CStr, &CStr)] = &[
    (0, c"CUDA_SUCCESS", c"no error"),
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (4, c"CUDA_ERROR_DEINITIALIZED", c"driver shutting down"),
    (5, c"CUDA_ERROR_PROFILER_DISABLED", c"profiler disabled"),
    (6, c"CUDA_ERROR_PROFILER_NOT_INITIALIZED", c"profiler not initialized"),
    (7, c"CUDA_ERROR_PROFILER_ALREADY_STARTED", c"profiler already started"),
    (8, c"CUDA_ERROR_PROFILER_ALREADY_STOPPED", c"profiler already stopped"),
    (34, c"CUDA_ERROR_STUB_LIBRARY", c"CUDA driver is a stub library"),
    (36, c"CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", c"call requires newer driver"),
    (46, c"CUDA_ERROR_DEVICE_UNAVAILABLE", c"device unavailable"),
    (100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
    (101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (102, c"CUDA_ERROR_DEVICE_NOT_LICENSED", c"device not licensed"),
    (200, c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid"),
    (201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (202, c"CUDA_ERROR_CONTEXT_ALREADY_CURRENT", c"context already current"),
    (205, c"CUDA_ERROR_MAP_FAILED", c"mapping of buffer object failed"),
    (206, c"CUDA_ERROR_UNMAP_FAILED", c"unmapping of buffer object failed"),
    (207, c"CUDA_ERROR_ARRAY_IS_MAPPED", c"array is mapped"),
    (208, c"CUDA_ERROR_ALREADY_MAPPED", c"resource already mapped"),
    (209, c"CUDA_ERROR_NO_BINARY_FOR_GPU", c"no kernel image is available for execution on the device"),
    (210, c"CUDA_ERROR_ALREADY_ACQUIRED", c"already acquired"),
    (211, c"CUDA_ERROR_NOT_MAPPED", c"resource not mapped"),
    (212, c"CUDA_ERROR_NOT_MAPPED_AS_ARRAY", c"not mapped as array"),
    (213, c"CUDA_ERROR_NOT_MAPPED_AS_POINTER", c"not mapped as pointer"),
    (214, c"CUDA_ERROR_ECC_UNCORRECTABLE", c"ecc uncorrectable"),
    (215, c"CUDA_ERROR_UNSUPPORTED_LIMIT", c"unsupported limit"),
    (216, c"CUDA_ERROR_CONTEXT_ALREADY_IN_USE", c"context already in use"),
    (217, c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", c"peer access is not supported between these two devices"),
    (218, c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
    (219, c"CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", c"invalid graphics context"),
    (220, c"CUDA_ERROR_NVLINK_UNCORRECTABLE", c"nvlink uncorrectable"),
    (221, c"CUDA_ERROR_JIT_COMPILER_NOT_FOUND", c"jit compiler not found"),
    (222, c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION", c"unsupported ptx version"),
    (223, c"CUDA_ERROR_JIT_COMPILATION_DISABLED", c"jit compilation disabled"),
    (224, c"CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", c"unsupported exec affinity"),
    (225, c"CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", c"unsupported devside sync"),
    (226, c"CUDA_ERROR_CONTAINED", c"contained"),
    (300, c"CUDA_ERROR_INVALID_SOURCE", c"invalid source"),
    (301, c"CUDA_ERROR_FILE_NOT_FOUND", c"file not found"),
    (302, c"CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", c"shared object symbol not found"),
    (303, c"CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", c"shared object init failed"),
    (304, c"CUDA_ERROR_OPERATING_SYSTEM", c"OS call failed or operation not supported on this OS"),
    (400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (401, c"CUDA_ERROR_ILLEGAL_STATE", c"the operation cannot be performed in the present state"),
    (402, c"CUDA_ERROR_LOSSY_QUERY", c"lossy query"),
    (500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (600, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
    (701, c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", c"too many resources requested for launch"),
    (702, c"CUDA_ERROR_LAUNCH_TIMEOUT", c"the launch timed out and was terminated"),
    (703, c"CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", c"launch incompatible texturing"),
    (704, c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", c"peer access is already enabled"),
    (705, c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", c"peer access has not been enabled"),
    (708, c"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", c"cannot set while device is active in this process"),
    (709, c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed"),
    (710, c"CUDA_ERROR_ASSERT", c"assert"),
    (711, c"CUDA_ERROR_TOO_MANY_PEERS", c"too many peers"),
    (712, c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", c"part or all of the requested memory range is already mapped"),
    (713, c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", c"pointer does not correspond to a registered memory region"),
    (714, c"CUDA_ERROR_HARDWARE_STACK_ERROR", c"hardware stack error"),
    (715, c"CUDA_ERROR_ILLEGAL_INSTRUCTION", c"illegal instruction"),
    (716, c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address"),
    (717, c"CUDA_ERROR_INVALID_ADDRESS_SPACE", c"invalid address space"),
    (718, c"CUDA_ERROR_INVALID_PC", c"invalid pc"),
    (719, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
    (720, c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", c"too many blocks in cooperative launch"),
    (721, c"CUDA_ERROR_TENSOR_MEMORY_LEAK", c"tensor memory leak"),
    (800, c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted"),
    (801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
    (802, c"CUDA_ERROR_SYSTEM_NOT_READY", c"system not ready"),
    (803, c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", c"system driver mismatch"),
    (804, c"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", c"compat not supported on device"),
    (805, c"CUDA_ERROR_MPS_CONNECTION_FAILED", c"mps connection failed"),
    (806, c"CUDA_ERROR_MPS_RPC_FAILURE", c"mps rpc failure"),
    (807, c"CUDA_ERROR_MPS_SERVER_NOT_READY", c"mps server not ready"),
    (808, c"CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", c"mps max clients reached"),
    (809, c"CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", c"mps max connections reached"),
    (810, c"CUDA_ERROR_MPS_CLIENT_TERMINATED", c"mps client terminated"),
    (811, c"CUDA_ERROR_CDP_NOT_SUPPORTED", c"cdp not supported"),
    (812, c"CUDA_ERROR_CDP_VERSION_MISMATCH", c"cdp version mismatch"),
    (900, c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"operation not permitted when stream is capturing"),
    (901, c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", c"operation failed due to a previous error during capture"),
    (902, c"CUDA_ERROR_STREAM_CAPTURE_MERGE", c"operation would result in a merge of separate capture sequences"),
    (903, c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", c"capture was not ended in the same stream as it began"),
    (904, c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", c"capturing stream has unjoined work"),
    (905, c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION", c"dependency created on uncaptured work in another stream"),
    (906, c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", c"operation would make the legacy stream depend on a capturing blocking stream"),
    (907, c"CUDA_ERROR_CAPTURED_EVENT", c"operation not permitted on an event last recorded in a capturing stream"),
    (908, c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", c"attempt to terminate a thread-local capture sequence from another thread"),
    (909, c"CUDA_ERROR_TIMEOUT", c"timeout"),
    (910, c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", c"the graph update was not performed because it included changes which violated constraints specific to instantiated graph update"),
    (911, c"CUDA_ERROR_EXTERNAL_DEVICE", c"external device"),
    (912, c"CUDA_ERROR_INVALID_CLUSTER_SIZE", c"invalid cluster size"),
    (913, c"CUDA_ERROR_FUNCTION_NOT_LOADED", c"function not loaded"),
    (914, c"CUDA_ERROR_INVALID_RESOURCE_TYPE", c"invalid resource type"),
    (915, c"CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", c"invalid resource configuration"),
    (916, c"CUDA_ERROR_KEY_ROTATION", c"key rotation"),
    (999, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];

cu! {
    [any] fn cuGetErrorName(error: u32, text: Out<*const c_char>) {
        lookup(name(error), text)
    }

    [any] fn cuGetErrorString(error: u32, text: Out<*const c_char>) {
        lookup(sentence(error), text)
    }
}

fn lookup(found: Option<&'static CStr>, text: Out<*const c_char>) -> Result {
    text.set(found.map_or(std::ptr::null(), CStr::as_ptr))?;
    found.map(|_| ()).ok_or(INVALID_VALUE)
}
