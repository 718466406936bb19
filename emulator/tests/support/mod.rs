//! What the tests of the emulated driver share: calls that must succeed, and small wrappers around the most used ones.
//!
//! Each file of tests is a process of its own with its own settings; inside one, tests run on threads of one driver.
#![allow(dead_code, unused_imports, clippy::unwrap_used)]

use std::ffi::{CString, c_void};
use std::sync::Once;

pub use cuda_emulator::context::*;
pub use cuda_emulator::device::*;
pub use cuda_emulator::graph::{build::*, exec::*, params::*, user_object::*};
pub use cuda_emulator::launch::*;
pub use cuda_emulator::memory::{alloc::*, attributes::*, copy::*, host::*, ipc::*, pool::*, vmm::*};
pub use cuda_emulator::module::*;
pub use cuda_emulator::stream::{callback::*, capture::*, event::*, memop::*, *};
pub use cuda_emulator::types::*;

/// A call that must succeed.
#[macro_export]
macro_rules! ok {
    ($call:expr) => {{
        // SAFETY: the test passes what the function asks for.
        let code = unsafe { $call };
        assert_eq!(code, 0, "{}", stringify!($call));
    }};
}

/// A call that must fail with a code.
#[macro_export]
macro_rules! fails {
    ($code:expr, $call:expr) => {{
        // SAFETY: the function checks what it is given.
        let code = unsafe { $call };
        assert_eq!(code, $code, "{}", stringify!($call));
    }};
}

/// A call that hands out one value.
#[macro_export]
macro_rules! out {
    (|$out:ident| $call:expr) => {{
        let mut value = Default::default();
        {
            let $out = cuda_emulator::types::Out::from(&mut value);
            $crate::ok!($call);
        }
        value
    }};
}

/// Settings for this process; the first call decides.
pub fn init(settings: &[(&str, &str)]) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (name, value) in settings {
            // SAFETY: called before anything else of the process reads the environment.
            unsafe { std::env::set_var(name, value) };
        }
        ok!(cuInit(0));
    });
}

/// Makes the primary context of a device current on this thread.
pub fn use_device(device: i32) -> usize {
    let context: usize = out!(|out| cuDevicePrimaryCtxRetain(out, device));
    ok!(cuCtxSetCurrent(context));
    context
}

pub fn alloc(size: usize) -> u64 {
    out!(|out| cuMemAlloc_v2(out, size))
}

pub fn stream(flags: u32) -> usize {
    out!(|out| cuStreamCreate(out, flags))
}

pub fn event() -> usize {
    out!(|out| cuEventCreate(out, 0))
}

pub fn read(ptr: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; len];
    ok!(cuMemcpyDtoH_v2(bytes.as_mut_ptr() as usize, ptr, len));
    bytes
}

pub fn read_word(ptr: u64) -> u32 {
    u32::from_le_bytes(read(ptr, 4).try_into().unwrap())
}

/// A word of pinned memory, zero.
pub fn pinned_word() -> u64 {
    let p: usize = out!(|out| cuMemAllocHost_v2(out, 64));
    p as u64
}

pub fn store(ptr: u64, value: u32) {
    use std::sync::atomic::{AtomicU32, Ordering};
    // SAFETY: tests pass live pinned words.
    unsafe { AtomicU32::from_ptr(ptr as *mut u32) }.store(value, Ordering::Release);
}

pub fn load(ptr: u64) -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    // SAFETY: tests pass live pinned words.
    unsafe { AtomicU32::from_ptr(ptr as *mut u32) }.load(Ordering::Acquire)
}

pub fn function(name: &str) -> usize {
    function_of(b"image", name)
}

/// How PTX begins.
pub const PTX: &[u8] = b".version 7.0";

/// The function of an image: one that begins like PTX is loaded with its module, others when they are needed.
pub fn function_of(image: &[u8], name: &str) -> usize {
    let module: usize = out!(|out| cuModuleLoadData(out, In::from(&image[0])));
    let name = CString::new(name).unwrap();
    out!(|out| cuModuleGetFunction(out, module, Text::new(&name)))
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Spin {
    pub flag: u64,
    pub until: u32,
    pub pad: u32,
    pub started: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Fill {
    pub data: u64,
    pub count: u64,
    pub value: u32,
    pub pad: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct OutOfBounds {
    pub p: u64,
    pub block: u32,
    pub read: u32,
}

pub fn launch_code<T>(function: usize, grid: u32, stream: usize, arg: &T) -> u32 {
    let list = [std::ptr::from_ref(arg) as usize];
    let params = In::new(list.as_ptr());
    // SAFETY: the list holds the one parameter.
    unsafe { cuLaunchKernel(function, grid, 1, 1, 1, 1, 1, 0, stream, params, In::NULL) }
}

pub fn launch<T>(function: usize, grid: u32, stream: usize, arg: &T) {
    assert_eq!(launch_code(function, grid, stream, arg), 0, "launch");
}

/// Keeps a stream busy until the word is 1.
pub fn hold(stream: usize, word: u64) {
    ok!(cuStreamWaitValue32_v2(stream, word, 1, 1));
}

pub fn query(stream: usize) -> u32 {
    // SAFETY: any handle may be asked.
    unsafe { cuStreamQuery(stream) }
}

/// Waits for a condition, at most ten seconds.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Runs a body in a forked child and returns its exit status: 0 if the body returned, 1 if it panicked.
pub fn in_child(body: impl FnOnce()) -> i32 {
    // SAFETY: the child only runs the body and leaves with _exit.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // SAFETY: ends the child without the parent's clean-up.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    let mut status = 0;
    // SAFETY: the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

pub fn opaque<T>(p: &T) -> Opaque {
    Opaque(std::ptr::from_ref(p).cast_mut().cast::<c_void>())
}

pub fn vmm_prop(device: i32) -> CUmemAllocationProp {
    CUmemAllocationProp {
        kind: 1,
        requested_handle_types: 1,
        location: CUmemLocation { kind: 1, id: device },
        win32: 0,
        compression: 0,
        rdma_capable: 0,
        usage: 0,
        reserved: [0; 4],
    }
}

pub const GRANULE: usize = 2 << 20;

/// Reserves, maps and opens an allocation.
pub fn map(handle: u64, device: i32, size: usize) -> u64 {
    let ptr: u64 = out!(|out| cuMemAddressReserve(out, size, 0, 0, 0));
    ok!(cuMemMap(ptr, size, 0, handle, 0));
    let desc = CUmemAccessDesc { location: CUmemLocation { kind: 1, id: device }, flags: 3 };
    ok!(cuMemSetAccess(ptr, size, In::from(&desc), 1));
    ptr
}
