//! The few calls of the CUDA driver that the benchmark needs, loaded at run time.
//!
//! The driver is found as every program finds it (`libcuda.so.1` on the loader's path), so the emulated driver serves
//! as well. Errors come back as text with the call and CUDA's own name for the code.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use libloading::Library;

pub type DevicePtr = u64;
pub type Stream = *mut c_void;
type Handle = *mut c_void;

/// Declares a table of functions of one library and the code that fills it.
macro_rules! functions {
    ($table:ident { $($field:ident = $name:literal : fn($($arg:ty),*);)* }) => {
        pub struct $table {
            $(pub $field: unsafe extern "C" fn($($arg),*) -> c_int,)*
            _library: Library,
        }
        impl $table {
            fn resolve(library: Library) -> Result<Self, String> {
                Ok($table {
                    $($field: {
                        // SAFETY: the prototypes are those of the public header of that library.
                        let found = unsafe { library.get(concat!($name, "\0").as_bytes()) };
                        *found.map_err(|e| format!("{}: {e}", $name))?
                    },)*
                    _library: library,
                })
            }
        }
    };
}
pub(crate) use functions;

functions!(Driver {
    init = "cuInit": fn(c_uint);
    device_get_count = "cuDeviceGetCount": fn(*mut c_int);
    device_get = "cuDeviceGet": fn(*mut c_int, c_int);
    device_get_name = "cuDeviceGetName": fn(*mut c_char, c_int, c_int);
    primary_ctx_retain = "cuDevicePrimaryCtxRetain": fn(*mut Handle, c_int);
    ctx_set_current = "cuCtxSetCurrent": fn(Handle);
    mem_alloc = "cuMemAlloc_v2": fn(*mut DevicePtr, usize);
    mem_free = "cuMemFree_v2": fn(DevicePtr);
    memcpy_to_device = "cuMemcpyHtoD_v2": fn(DevicePtr, *const c_void, usize);
    memcpy_to_host = "cuMemcpyDtoH_v2": fn(*mut c_void, DevicePtr, usize);
    memset = "cuMemsetD8_v2": fn(DevicePtr, u8, usize);
    stream_create = "cuStreamCreate": fn(*mut Stream, c_uint);
    stream_synchronize = "cuStreamSynchronize": fn(Stream);
    stream_begin_capture = "cuStreamBeginCapture_v2": fn(Stream, c_int);
    stream_end_capture = "cuStreamEndCapture": fn(Stream, *mut Handle);
    graph_instantiate = "cuGraphInstantiateWithFlags": fn(*mut Handle, Handle, u64);
    graph_launch = "cuGraphLaunch": fn(Handle, Stream);
    graph_destroy = "cuGraphDestroy": fn(Handle);
    graph_exec_destroy = "cuGraphExecDestroy": fn(Handle);
    error_name = "cuGetErrorName": fn(c_int, *mut *const c_char);
});

const STREAM_NON_BLOCKING: c_uint = 1;
const CAPTURE_THREAD_LOCAL: c_int = 1;

impl Driver {
    /// Loads and initialises the driver.
    pub fn open() -> Result<Driver, String> {
        // SAFETY: a CUDA driver's initialisers have no requirement on the caller.
        let library = unsafe { Library::new("libcuda.so.1") }.map_err(|e| format!("no CUDA driver: {e}"))?;
        let driver = Driver::resolve(library)?;
        // SAFETY: no pointers.
        driver.check("cuInit", unsafe { (driver.init)(0) })?;
        Ok(driver)
    }

    pub fn device_count(&self) -> Result<usize, String> {
        let mut count = 0;
        // SAFETY: a valid out pointer.
        self.check("cuDeviceGetCount", unsafe { (self.device_get_count)(&mut count) })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    pub fn device_name(&self, ordinal: usize) -> Result<String, String> {
        let (mut device, mut name) = (0, [0 as c_char; 128]);
        // SAFETY: valid out pointers, and the length of the buffer, which the driver terminates.
        unsafe {
            self.check("cuDeviceGet", (self.device_get)(&mut device, ordinal as c_int))?;
            self.check("cuDeviceGetName", (self.device_get_name)(name.as_mut_ptr(), 127, device))?;
            Ok(CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned())
        }
    }

    /// Makes the device's primary context current on this thread and returns a stream of its own on it.
    pub fn enter(&self, ordinal: usize) -> Result<Stream, String> {
        let (mut device, mut context, mut stream) = (0, ptr::null_mut(), ptr::null_mut());
        // SAFETY: valid out pointers. The context stays retained until the process ends.
        unsafe {
            self.check("cuDeviceGet", (self.device_get)(&mut device, ordinal as c_int))?;
            self.check("cuDevicePrimaryCtxRetain", (self.primary_ctx_retain)(&mut context, device))?;
            self.check("cuCtxSetCurrent", (self.ctx_set_current)(context))?;
            // Non-blocking, so that copies on the legacy stream do not wait for other ranks' kernels.
            self.check("cuStreamCreate", (self.stream_create)(&mut stream, STREAM_NON_BLOCKING))?;
        }
        Ok(stream)
    }

    pub fn alloc(&self, bytes: usize) -> Result<DevicePtr, String> {
        let mut pointer = 0;
        // SAFETY: a valid out pointer.
        self.check(&format!("cuMemAlloc of {bytes} bytes"), unsafe {
            (self.mem_alloc)(&mut pointer, bytes)
        })?;
        Ok(pointer)
    }

    pub fn free(&self, pointer: DevicePtr) -> Result<(), String> {
        // SAFETY: the driver checks device pointers.
        self.check("cuMemFree", unsafe { (self.mem_free)(pointer) })
    }

    pub fn write(&self, to: DevicePtr, data: &[u8]) -> Result<(), String> {
        // SAFETY: the slice is valid for its length; the driver checks the device range.
        self.check("cuMemcpyHtoD", unsafe { (self.memcpy_to_device)(to, data.as_ptr().cast(), data.len()) })
    }

    pub fn read(&self, from: DevicePtr, data: &mut [u8]) -> Result<(), String> {
        // SAFETY: the slice is valid for its length; the driver checks the device range.
        self.check("cuMemcpyDtoH", unsafe {
            (self.memcpy_to_host)(data.as_mut_ptr().cast(), from, data.len())
        })
    }

    pub fn set(&self, to: DevicePtr, value: u8, bytes: usize) -> Result<(), String> {
        // SAFETY: the driver checks the device range.
        self.check("cuMemsetD8", unsafe { (self.memset)(to, value, bytes) })
    }

    pub fn synchronize(&self, stream: Stream) -> Result<(), String> {
        // SAFETY: a stream made by `enter`.
        self.check("cuStreamSynchronize", unsafe { (self.stream_synchronize)(stream) })
    }

    /// Captures what `record` enqueues on the stream into an executable graph. An error of `record` comes first.
    pub fn capture(
        &self,
        stream: Stream,
        record: impl FnOnce() -> Result<(), crate::nccl::Failure>,
    ) -> Result<Graph<'_>, crate::nccl::Failure> {
        let (mut graph, mut exec) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: a stream made by `enter`, valid out pointers; the graph is destroyed once instantiated.
        unsafe {
            self.check("cuStreamBeginCapture", (self.stream_begin_capture)(stream, CAPTURE_THREAD_LOCAL))?;
            let recorded = record();
            let ended = self.check("cuStreamEndCapture", (self.stream_end_capture)(stream, &mut graph));
            recorded?;
            ended?;
            let made = self.check("cuGraphInstantiate", (self.graph_instantiate)(&mut exec, graph, 0));
            (self.graph_destroy)(graph);
            made?;
        }
        Ok(Graph { driver: self, exec })
    }

    fn check(&self, what: &str, rc: c_int) -> Result<(), String> {
        if rc == 0 {
            return Ok(());
        }
        let mut name = ptr::null();
        // SAFETY: a valid out pointer; the driver returns a static string or NULL.
        let name = unsafe {
            (self.error_name)(rc, &mut name);
            if name.is_null() { "unknown".into() } else { CStr::from_ptr(name).to_string_lossy() }
        };
        Err(format!("{what}: {name} ({rc})"))
    }
}

/// An executable graph, destroyed on drop.
pub struct Graph<'a> {
    driver: &'a Driver,
    exec: Handle,
}

impl Graph<'_> {
    pub fn launch(&self, stream: Stream) -> Result<(), String> {
        // SAFETY: the graph lives as long as `self`.
        self.driver.check("cuGraphLaunch", unsafe { (self.driver.graph_launch)(self.exec, stream) })
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `capture`, destroyed once. A failure has no one to tell.
        unsafe { (self.driver.graph_exec_destroy)(self.exec) };
    }
}
