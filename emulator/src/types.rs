//! The C types of the driver API, as the exported functions take them.
//!
//! Enumerations are plain integers and handles plain words: a caller may pass any value, and each function checks what
//! it was given. [`Out`], [`In`] and [`Text`] are C pointers that are checked for NULL where they are used, so that the
//! functions themselves need no unsafe code.

use std::ffi::{CStr, c_char, c_void};

use crate::error::{INVALID_VALUE, Result};

pub type CUdevice = i32;
pub type CUdeviceptr = u64;
pub type CUcontext = usize;
pub type CUstream = usize;
pub type CUevent = usize;
pub type CUmodule = usize;
pub type CUlibrary = usize;
pub type CUfunction = usize;
pub type CUkernel = usize;
pub type CUgraph = usize;
pub type CUgraphNode = usize;
pub type CUgraphExec = usize;
pub type CUuserObject = usize;
pub type CUmemoryPool = usize;
pub type CUmemGenericAllocationHandle = u64;
pub type CUhostFn = Option<unsafe extern "C" fn(*mut c_void)>;
pub type CUstreamCallback = Option<unsafe extern "C" fn(CUstream, u32, *mut c_void)>;

/// A pointer through which a function hands out a value.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    pub const NULL: Self = Out(std::ptr::null_mut());

    pub fn new(p: *mut T) -> Self {
        Out(p)
    }

    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub fn raw(self) -> *mut T {
        self.0
    }

    /// Fails on NULL.
    pub fn check(self) -> Result {
        if self.0.is_null() { Err(INVALID_VALUE) } else { Ok(()) }
    }

    /// Writes the value; NULL is an error.
    pub fn set(self, value: T) -> Result {
        self.check()?;
        self.set_opt(value);
        Ok(())
    }

    /// Writes the value unless the caller did not want it.
    pub fn set_opt(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: by the contract of the driver API a non-null result pointer is writable. It may be unaligned
            // inside a packed structure of the caller.
            unsafe { self.0.write_unaligned(value) }
        }
    }

    /// Writes the value at position `index` of the array that the caller gave.
    pub fn set_at(self, index: usize, value: T) {
        if !self.0.is_null() {
            // SAFETY: the caller of the API promised an array of the size it stated, which `index` stays within.
            unsafe { self.0.add(index).write_unaligned(value) }
        }
    }
}

impl<T: Copy> Out<T> {
    /// Reads what is there, for arguments that go both ways.
    pub fn get(self) -> Result<T> {
        In(self.0.cast_const()).get()
    }
}

impl<T> From<&mut T> for Out<T> {
    fn from(p: &mut T) -> Self {
        Out(p)
    }
}

/// A pointer from which a function reads one value or an array.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T> In<T> {
    pub const NULL: Self = In(std::ptr::null());

    pub fn new(p: *const T) -> Self {
        In(p)
    }

    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub fn raw(self) -> *const T {
        self.0
    }
}

impl<T: Copy> In<T> {
    /// The value; NULL is an error.
    pub fn get(self) -> Result<T> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: by the contract of the driver API a non-null parameter pointer is readable.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// A copy of `count` values; NULL is an error unless `count` is 0.
    pub fn array(self, count: usize) -> Result<Vec<T>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: by the contract of the driver API the array holds `count` values.
        Ok((0..count).map(|i| unsafe { self.0.add(i).read_unaligned() }).collect())
    }
}

impl<T> From<&T> for In<T> {
    fn from(p: &T) -> Self {
        In(p)
    }
}

/// A C string that a function is given.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    pub fn new(text: &CStr) -> Self {
        Text(text.as_ptr())
    }

    pub fn get(self) -> Result<String> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: by the contract of the driver API the string ends with a zero byte.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_str().map_err(|_| INVALID_VALUE)?.to_owned())
    }
}

/// A pointer that is only carried along, to a callback or to an operation that runs later.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Opaque(pub *mut c_void);

// SAFETY: the pointer is only handed back; what it points to is the caller's to synchronise.
unsafe impl Send for Opaque {}
// SAFETY: as above.
unsafe impl Sync for Opaque {}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUuuid {
    pub bytes: [u8; 16],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUipcHandle {
    pub reserved: [u8; 64],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUmemLocation {
    pub kind: i32,
    pub id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUmemAllocationProp {
    pub kind: u32,
    pub requested_handle_types: u32,
    pub location: CUmemLocation,
    pub win32: usize,
    pub compression: u8,
    pub rdma_capable: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUmemAccessDesc {
    pub location: CUmemLocation,
    pub flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUlaunchAttribute {
    pub id: u32,
    pub pad: [u8; 4],
    pub value: [u64; 8],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUlaunchConfig {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub stream: CUstream,
    pub attrs: In<CUlaunchAttribute>,
    pub num_attrs: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUmemcpy2D {
    pub src_x: usize,
    pub src_y: usize,
    pub src_type: u32,
    pub src_host: usize,
    pub src_device: CUdeviceptr,
    pub src_array: usize,
    pub src_pitch: usize,
    pub dst_x: usize,
    pub dst_y: usize,
    pub dst_type: u32,
    pub dst_host: usize,
    pub dst_device: CUdeviceptr,
    pub dst_array: usize,
    pub dst_pitch: usize,
    pub width: usize,
    pub height: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CUmemcpy3D {
    pub src_x: usize,
    pub src_y: usize,
    pub src_z: usize,
    pub src_lod: usize,
    pub src_type: u32,
    pub src_host: usize,
    pub src_device: CUdeviceptr,
    pub src_array: usize,
    pub reserved0: usize,
    pub src_pitch: usize,
    pub src_height: usize,
    pub dst_x: usize,
    pub dst_y: usize,
    pub dst_z: usize,
    pub dst_lod: usize,
    pub dst_type: u32,
    pub dst_host: usize,
    pub dst_device: CUdeviceptr,
    pub dst_array: usize,
    pub reserved1: usize,
    pub dst_pitch: usize,
    pub dst_height: usize,
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUkernelNodeParams {
    pub func: CUfunction,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub params: In<usize>,
    pub extra: In<usize>,
    pub kern: CUkernel,
    pub ctx: CUcontext,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUmemsetNodeParams {
    pub dst: CUdeviceptr,
    pub pitch: usize,
    pub value: u32,
    pub element_size: u32,
    pub width: usize,
    pub height: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUhostNodeParams {
    pub function: CUhostFn,
    pub data: Opaque,
}

/// One entry of a batch of stream memory operations: the two forms that exist share this layout.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUstreamBatchMemOpParams {
    pub operation: u32,
    pub address: CUdeviceptr,
    pub value: u64,
    pub flags: u32,
    pub alias: CUdeviceptr,
    pub pad: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUbatchMemOpNodeParams {
    pub ctx: CUcontext,
    pub count: u32,
    pub ops: In<CUstreamBatchMemOpParams>,
    pub flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CUgraphEdgeData {
    pub from_port: u8,
    pub to_port: u8,
    pub kind: u8,
    pub reserved: [u8; 5],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUgraphExecUpdateResultInfo {
    pub result: u32,
    pub error_node: CUgraphNode,
    pub error_from_node: CUgraphNode,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUgraphInstantiateParams {
    pub flags: u64,
    pub upload_stream: CUstream,
    pub error_node: CUgraphNode,
    pub result: u32,
}
