//! The calls of the CUDA driver that the tests make, with errors as sentences.
//!
//! The driver is found as any program finds it, so the emulated driver and a real one serve alike. Handles are plain
//! numbers: tests pass them between threads, and pass wrong ones on purpose.

use std::ffi::CStr;
use std::os::raw::{c_int, c_uint, c_void};
use std::ptr;

use cudarc::driver::sys;

pub type Outcome<T = ()> = Result<T, String>;

/// A stream: 0 is the legacy default stream, 2 the calling thread's default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream(pub usize);

impl Stream {
    pub const NULL: Stream = Stream(0);
    pub const LEGACY: Stream = Stream(1);
    pub const PER_THREAD: Stream = Stream(2);

    fn raw(self) -> sys::CUstream {
        self.0 as sys::CUstream
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event(usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureMode {
    Global,
    ThreadLocal,
    Relaxed,
}

fn check(what: &str, code: sys::CUresult) -> Outcome {
    if code == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut name = ptr::null();
    // SAFETY: a valid out pointer; the driver answers with a static string or leaves NULL.
    let name = unsafe {
        sys::cuGetErrorName(code, &mut name);
        if name.is_null() { "unknown".into() } else { CStr::from_ptr(name).to_string_lossy() }
    };
    Err(format!("{what}: {name} ({})", code as u32))
}

/// Calls a driver function and names it in the error.
macro_rules! cu {
    ($function:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: out pointers are to live locals, slices are valid for the lengths passed with them, and the driver
        // checks handles and device addresses itself.
        check(stringify!($function), unsafe { sys::$function($($arg),*) })
    };
}

pub fn init() -> Outcome {
    cu!(cuInit(0))
}

pub fn device_count() -> Outcome<usize> {
    let mut count = 0;
    cu!(cuDeviceGetCount(&mut count))?;
    Ok(count as usize)
}

/// Makes the device's primary context current on this thread. It stays retained until the process ends.
pub fn enter(ordinal: usize) -> Outcome<usize> {
    let (mut device, mut context) = (0, ptr::null_mut());
    cu!(cuDeviceGet(&mut device, ordinal as c_int))?;
    cu!(cuDevicePrimaryCtxRetain(&mut context, device))?;
    cu!(cuCtxSetCurrent(context))?;
    Ok(context as usize)
}

pub fn current_context() -> Outcome<usize> {
    let mut context = ptr::null_mut();
    cu!(cuCtxGetCurrent(&mut context))?;
    Ok(context as usize)
}

pub fn set_current_context(context: usize) -> Outcome {
    cu!(cuCtxSetCurrent(context as sys::CUcontext))
}

/// Lower case, as in GPU-xxxxxxxx-….
pub fn device_uuid(ordinal: usize) -> Outcome<String> {
    let mut device = 0;
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    cu!(cuDeviceGet(&mut device, ordinal as c_int))?;
    cu!(cuDeviceGetUuid_v2(&mut uuid, device))?;
    let hex: String = uuid.bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect();
    Ok(format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

/// Free bytes of the current device.
pub fn free_memory() -> Outcome<usize> {
    let (mut free, mut total) = (0, 0);
    cu!(cuMemGetInfo_v2(&mut free, &mut total))?;
    Ok(free)
}

pub fn alloc(bytes: usize) -> Outcome<u64> {
    let mut address = 0;
    cu!(cuMemAlloc_v2(&mut address, bytes.max(1))).map_err(|e| format!("{e}, {bytes} bytes"))?;
    Ok(address)
}

pub fn free(address: u64) -> Outcome {
    cu!(cuMemFree_v2(address))
}

/// Copies to the device in stream order and waits.
pub fn upload(to: u64, data: &[u8], stream: Stream) -> Outcome {
    if data.is_empty() {
        return Ok(());
    }
    cu!(cuMemcpyHtoDAsync_v2(to, data.as_ptr().cast::<c_void>(), data.len(), stream.raw()))?;
    synchronize(stream)
}

/// Waits for the stream, then copies from the device.
///
/// A copy that is enqueued behind a kernel holds a queue of the copy engine until the kernel has ended. Ranks of one process that share
/// a GPU may share that queue, and the kernel may be waiting for what the rank behind does next.
pub fn download(from: u64, data: &mut [u8], stream: Stream) -> Outcome {
    if data.is_empty() {
        return Ok(());
    }
    synchronize(stream)?;
    cu!(cuMemcpyDtoHAsync_v2(data.as_mut_ptr().cast::<c_void>(), from, data.len(), stream.raw()))?;
    synchronize(stream)
}

/// Enqueues a copy inside the device's memory.
pub fn copy(to: u64, from: u64, bytes: usize, stream: Stream) -> Outcome {
    cu!(cuMemcpyDtoDAsync_v2(to, from, bytes, stream.raw()))
}

/// Enqueues a fill.
pub fn set(to: u64, value: u8, bytes: usize, stream: Stream) -> Outcome {
    cu!(cuMemsetD8Async(to, value, bytes, stream.raw()))
}

pub fn new_stream(blocking: bool) -> Outcome<Stream> {
    let mut stream = ptr::null_mut();
    cu!(cuStreamCreate(&mut stream, c_uint::from(!blocking)))?;
    Ok(Stream(stream as usize))
}

pub fn destroy_stream(stream: Stream) -> Outcome {
    cu!(cuStreamDestroy_v2(stream.raw()))
}

pub fn synchronize(stream: Stream) -> Outcome {
    cu!(cuStreamSynchronize(stream.raw()))
}

/// Whether everything enqueued so far is done.
pub fn is_idle(stream: Stream) -> Outcome<bool> {
    // SAFETY: the driver checks the handle.
    match unsafe { sys::cuStreamQuery(stream.raw()) } {
        sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        code => check("cuStreamQuery", code).map(|()| true),
    }
}

pub fn new_event() -> Outcome<Event> {
    let mut event = ptr::null_mut();
    cu!(cuEventCreate(&mut event, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint))?;
    Ok(Event(event as usize))
}

pub fn record(event: Event, stream: Stream) -> Outcome {
    cu!(cuEventRecord(event.0 as sys::CUevent, stream.raw()))
}

pub fn wait(stream: Stream, event: Event) -> Outcome {
    cu!(cuStreamWaitEvent(stream.raw(), event.0 as sys::CUevent, 0))
}

/// Enqueues a sleep: what follows on the stream comes late.
pub fn sleep(stream: Stream, micros: usize) -> Outcome {
    unsafe extern "C" fn nap(micros: *mut c_void) {
        std::thread::sleep(std::time::Duration::from_micros(micros as u64));
    }
    cu!(cuLaunchHostFunc(stream.raw(), Some(nap), micros as *mut c_void))
}

/// Captures what `enqueue` puts on the stream. The capture is ended also when it fails, and its error comes first.
pub fn capture(stream: Stream, mode: CaptureMode, enqueue: impl FnOnce() -> Outcome) -> Outcome<Graph> {
    capture_only(stream, mode, enqueue)?.instantiate()
}

/// A captured graph that is not executable yet.
#[derive(Debug)]
pub struct Captured(usize);

impl Captured {
    pub fn instantiate(self) -> Outcome<Graph> {
        let mut exec = ptr::null_mut();
        let graph = self.0 as sys::CUgraph;
        let made = cu!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        cu!(cuGraphDestroy(graph))?;
        made?;
        Ok(Graph(exec as usize))
    }

    /// Blocks of each kernel.
    pub fn grids(&self) -> Outcome<Vec<u32>> {
        let graph = self.0 as sys::CUgraph;
        let mut count = 0;
        cu!(cuGraphGetNodes(graph, ptr::null_mut(), &mut count))?;
        let mut nodes = vec![ptr::null_mut(); count];
        cu!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count))?;
        let mut grids = Vec::new();
        for node in nodes {
            let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
            cu!(cuGraphNodeGetType(node, &mut kind))?;
            if kind == sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL {
                let mut params = std::mem::MaybeUninit::zeroed();
                cu!(cuGraphKernelNodeGetParams_v2(node, params.as_mut_ptr()))?;
                // SAFETY: the driver has filled it.
                grids.push(unsafe { params.assume_init() }.gridDimX);
            }
        }
        Ok(grids)
    }

    /// Makes `graph` do what this capture holds; it must be of the same shape.
    pub fn update(self, graph: &Graph) -> Outcome {
        let mut info = std::mem::MaybeUninit::uninit();
        let updated =
            cu!(cuGraphExecUpdate_v2(graph.0 as sys::CUgraphExec, self.0 as sys::CUgraph, info.as_mut_ptr()));
        self.destroy()?;
        updated
    }

    pub fn destroy(self) -> Outcome {
        cu!(cuGraphDestroy(self.0 as sys::CUgraph))
    }
}

/// The capture alone.
pub fn capture_only(
    stream: Stream,
    mode: CaptureMode,
    enqueue: impl FnOnce() -> Outcome,
) -> Outcome<Captured> {
    let mode = match mode {
        CaptureMode::Global => sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        CaptureMode::ThreadLocal => sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CaptureMode::Relaxed => sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
    };
    cu!(cuStreamBeginCapture_v2(stream.raw(), mode))?;
    let enqueued = enqueue();
    let mut graph = ptr::null_mut();
    let ended = cu!(cuStreamEndCapture(stream.raw(), &mut graph));
    enqueued?;
    ended?;
    Ok(Captured(graph as usize))
}

/// An executable graph, destroyed on drop.
#[derive(Debug)]
pub struct Graph(usize);

impl Graph {
    pub fn launch(&self, stream: Stream) -> Outcome {
        cu!(cuGraphLaunch(self.0 as sys::CUgraphExec, stream.raw()))
    }

    pub fn destroy(self) -> Outcome {
        let exec = std::mem::ManuallyDrop::new(self).0;
        cu!(cuGraphExecDestroy(exec as sys::CUgraphExec))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // A failure has no one to tell.
        let _ = cu!(cuGraphExecDestroy(self.0 as sys::CUgraphExec));
    }
}
