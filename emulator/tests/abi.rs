//! The C side: layouts of structures against an independent definition, and the library as programs load it.

#![allow(clippy::unwrap_used, clippy::missing_transmute_annotations)]

use std::ffi::{CStr, CString, c_void};
use std::mem::{align_of, offset_of, size_of};

use cuda_emulator::memory::pool::CUmemPoolProps;
use cuda_emulator::types::*;
use cudarc::driver::sys;

macro_rules! same_layout {
    ($($ours:ty = $theirs:ty),* $(,)?) => {$(
        assert_eq!(size_of::<$ours>(), size_of::<$theirs>(), stringify!($ours));
        assert_eq!(align_of::<$ours>(), align_of::<$theirs>(), stringify!($ours));
    )*};
}

#[test]
fn structures_are_laid_out_as_in_the_c_header() {
    same_layout!(
        CUuuid = sys::CUuuid,
        CUipcHandle = sys::CUipcMemHandle,
        CUipcHandle = sys::CUipcEventHandle,
        CUmemLocation = sys::CUmemLocation,
        CUmemAllocationProp = sys::CUmemAllocationProp,
        CUmemAccessDesc = sys::CUmemAccessDesc,
        CUmemPoolProps = sys::CUmemPoolProps,
        CUlaunchAttribute = sys::CUlaunchAttribute,
        CUlaunchConfig = sys::CUlaunchConfig,
        CUmemcpy2D = sys::CUDA_MEMCPY2D,
        CUmemcpy3D = sys::CUDA_MEMCPY3D,
        CUkernelNodeParams = sys::CUDA_KERNEL_NODE_PARAMS,
        CUmemsetNodeParams = sys::CUDA_MEMSET_NODE_PARAMS,
        CUhostNodeParams = sys::CUDA_HOST_NODE_PARAMS,
        CUbatchMemOpNodeParams = sys::CUDA_BATCH_MEM_OP_NODE_PARAMS,
        CUstreamBatchMemOpParams = sys::CUstreamBatchMemOpParams,
        CUgraphEdgeData = sys::CUgraphEdgeData,
        CUgraphExecUpdateResultInfo = sys::CUgraphExecUpdateResultInfo,
        CUgraphInstantiateParams = sys::CUDA_GRAPH_INSTANTIATE_PARAMS,
    );
}

#[test]
fn members_are_where_the_c_header_has_them() {
    macro_rules! same_offset {
        ($($ours:ty, $our:ident = $theirs:ty, $their:ident);* $(;)?) => {$(
            assert_eq!(offset_of!($ours, $our), offset_of!($theirs, $their), stringify!($our));
        )*};
    }
    same_offset!(
        CUmemAllocationProp, location = sys::CUmemAllocationProp, location;
        CUmemAllocationProp, compression = sys::CUmemAllocationProp, allocFlags;
        CUlaunchConfig, shared_bytes = sys::CUlaunchConfig, sharedMemBytes;
        CUlaunchConfig, stream = sys::CUlaunchConfig, hStream;
        CUlaunchConfig, attrs = sys::CUlaunchConfig, attrs;
        CUlaunchAttribute, value = sys::CUlaunchAttribute, value;
        CUmemcpy2D, src_device = sys::CUDA_MEMCPY2D, srcDevice;
        CUmemcpy2D, dst_pitch = sys::CUDA_MEMCPY2D, dstPitch;
        CUmemcpy3D, src_device = sys::CUDA_MEMCPY3D, srcDevice;
        CUmemcpy3D, dst_device = sys::CUDA_MEMCPY3D, dstDevice;
        CUmemcpy3D, width = sys::CUDA_MEMCPY3D, WidthInBytes;
        CUkernelNodeParams, params = sys::CUDA_KERNEL_NODE_PARAMS, kernelParams;
        CUkernelNodeParams, kern = sys::CUDA_KERNEL_NODE_PARAMS, kern;
        CUmemsetNodeParams, element_size = sys::CUDA_MEMSET_NODE_PARAMS, elementSize;
        CUbatchMemOpNodeParams, ops = sys::CUDA_BATCH_MEM_OP_NODE_PARAMS, paramArray;
        CUgraphInstantiateParams, result = sys::CUDA_GRAPH_INSTANTIATE_PARAMS, result_out;
    );
    type Wait = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st;
    type Write = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st;
    same_offset!(
        CUstreamBatchMemOpParams, address = Wait, address;
        CUstreamBatchMemOpParams, value = Wait, __bindgen_anon_1;
        CUstreamBatchMemOpParams, flags = Wait, flags;
        CUstreamBatchMemOpParams, value = Write, __bindgen_anon_1;
        CUstreamBatchMemOpParams, flags = Write, flags;
    );
}

#[test]
fn every_error_has_the_name_of_the_c_header() {
    let known = [
        sys::CUresult::CUDA_SUCCESS,
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        sys::CUresult::CUDA_ERROR_NOT_READY,
        sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
        sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
        sys::CUresult::CUDA_ERROR_UNKNOWN,
    ];
    for code in known {
        let name = cuda_emulator::error::name(code as u32).unwrap();
        assert_eq!(name.to_str().unwrap(), format!("{code:?}"));
        assert!(cuda_emulator::error::sentence(code as u32).is_some());
    }
    let mut text = std::ptr::null();
    // SAFETY: the pointer is to a local.
    let code = unsafe { cuda_emulator::error::cuGetErrorName(12345, Out::from(&mut text)) };
    assert_eq!((code, text.is_null()), (1, true));
}

#[test]
fn the_shared_library_works_through_dlopen() {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let file = folder.join("libcuda_emulator.so");
    let path = CString::new(file.to_str().unwrap()).unwrap();
    // SAFETY: loading the library runs no code of its own.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "{file:?}");
    let find = |name: &CStr| {
        // SAFETY: the library is loaded.
        let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?}");
        symbol
    };
    type Init = unsafe extern "C" fn(u32) -> u32;
    type Address = unsafe extern "C" fn(*const i8, *mut *mut c_void, i32, u64, *mut u32) -> u32;
    // SAFETY: the functions have these types in the driver API.
    let (init, address): (Init, Address) =
        unsafe { (std::mem::transmute(find(c"cuInit")), std::mem::transmute(find(c"cuGetProcAddress_v2"))) };
    // SAFETY: as the driver API asks for.
    unsafe {
        assert_eq!(init(0), 0);
        let (mut function, mut status) = (std::ptr::null_mut(), 9);
        assert_eq!(address(c"cuMemAlloc".as_ptr(), &mut function, 12080, 0, &mut status), 0);
        assert_eq!((function, status), (find(c"cuMemAlloc_v2"), 0));
        assert_eq!(address(c"cuNothing".as_ptr(), &mut function, 12080, 0, &mut status), 0);
        assert_eq!((function.is_null(), status), (true, 1));
    }
}
