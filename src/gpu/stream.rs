//! Streams, events and stream capture.
//!
//! Streams that callers pass are plain handles ([`CallerStream`]): they are never kept beyond the call, since
//! the caller may destroy them.

use std::sync::Arc;

use cudarc::driver::sys;

use super::context::Context;
use super::driver::check;
use crate::error::{Error, Result};

/// A stream handle of the caller: 0 is the legacy default stream, 1 the same by name, 2 the per-thread
/// default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallerStream(pub u64);

impl CallerStream {
    pub fn raw(self) -> sys::CUstream {
        self.0 as usize as sys::CUstream
    }

    /// Whether two equal handles are the same stream on any thread.
    pub fn is_unique(self) -> bool {
        self.0 != 2
    }

    /// The state of capture on the stream. The context of the stream must be current.
    pub fn capture(self) -> Result<Capture> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut id, mut graph) = (0, std::ptr::null_mut());
        // SAFETY: out pointers to live values; dependencies are not asked for.
        let result = unsafe {
            sys::cuStreamGetCaptureInfo_v2(
                self.raw(),
                &mut status,
                &mut id,
                &mut graph,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
        match result {
            // The legacy stream cannot be captured, and may not even be asked while another blocking stream
            // is.
            sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => {
                return Err(Error::usage(
                    "the legacy default stream cannot be used while another stream of this context is being captured",
                ));
            }
            result => check(result, "cuStreamGetCaptureInfo on the caller's stream")?,
        }
        match status {
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Ok(Capture::None),
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE => {
                Ok(Capture::Active { id, graph: Graph(graph) })
            }
            _ => Err(Error::usage("the capture of the caller's stream was invalidated by an earlier error")),
        }
    }

    pub fn wait(self, event: &Event) -> Result<()> {
        // SAFETY: a live event; the stream is the caller's to keep alive during the call.
        check(
            unsafe { sys::cuStreamWaitEvent(self.raw(), event.raw, 0) },
            "cuStreamWaitEvent on the caller's stream",
        )
    }

    pub fn copy(self, destination: u64, source: u64, bytes: usize) -> Result<()> {
        // SAFETY: the addresses are the caller's buffers, checked by the enqueueing code.
        check(
            unsafe { sys::cuMemcpyAsync(destination, source, bytes, self.raw()) },
            "cuMemcpyAsync on the caller's stream",
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capture {
    None,
    /// `id` is unique to the capture in this process.
    Active {
        id: u64,
        graph: Graph,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Graph(sys::CUgraph);

impl Graph {
    /// Keeps `object` alive as long as the graph or an executable made of it lives; then `release` gets it,
    /// on a thread of the driver that may not call CUDA.
    pub fn keep<T: Send + Sync + 'static>(self, object: Arc<T>, release: fn(Arc<T>)) -> Result<()> {
        let kept = Box::into_raw(Box::new(Kept { object, release }));
        let mut handle = std::ptr::null_mut();
        let flags = sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
        // SAFETY: `let_go` takes back the box that `into_raw` gave away, once.
        let created =
            unsafe { sys::cuUserObjectCreate(&mut handle, kept.cast(), Some(let_go::<T>), 1, flags) };
        if let Err(error) = check(created, "cuUserObjectCreate") {
            // SAFETY: the driver did not take the box. As in every other failure, the object is released.
            unsafe { let_go::<T>(kept.cast()) };
            return Err(error);
        }
        let retain = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
        // SAFETY: moves our one reference of the user object into the graph that is being captured.
        let retained = unsafe { sys::cuGraphRetainUserObject(self.0, handle, 1, retain) };
        check(retained, "cuGraphRetainUserObject").inspect_err(|_| {
            // SAFETY: the graph did not take our reference; giving it up runs `let_go`.
            let _ = unsafe { sys::cuUserObjectRelease(handle, 1) };
        })
    }
}

/// What a graph keeps, and what becomes of it.
struct Kept<T> {
    object: Arc<T>,
    release: fn(Arc<T>),
}

unsafe extern "C" fn let_go<T>(kept: *mut std::ffi::c_void) {
    // SAFETY: the pointer of `Graph::keep`, handed back by the driver once.
    let kept = unsafe { Box::from_raw(kept.cast::<Kept<T>>()) };
    (kept.release)(kept.object);
}

/// A non-blocking stream of our own.
#[derive(Debug)]
pub struct Stream {
    raw: sys::CUstream,
    context: Arc<Context>,
}

// SAFETY: a CUstream may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub fn new(context: &Arc<Context>) -> Result<Stream> {
        let _bound = context.bind()?;
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: out pointer to a live pointer; a context is current.
        check(unsafe { sys::cuStreamCreate(&mut raw, flags) }, "cuStreamCreate")?;
        Ok(Stream { raw, context: context.clone() })
    }

    pub fn handle(&self) -> CallerStream {
        CallerStream(self.raw as usize as u64)
    }

    pub fn synchronize(&self) -> Result<()> {
        let _bound = self.context.bind()?;
        // SAFETY: a live stream.
        check(unsafe { sys::cuStreamSynchronize(self.raw) }, "cuStreamSynchronize")
    }

    /// Copies host bytes to the device and waits.
    pub fn write(&self, destination: u64, bytes: &[u8]) -> Result<()> {
        let _bound = self.context.bind()?;
        // SAFETY: `bytes` outlives the copy, which is waited for below; `destination` is memory of the
        // library.
        let copied =
            unsafe { sys::cuMemcpyHtoDAsync_v2(destination, bytes.as_ptr().cast(), bytes.len(), self.raw) };
        check(copied, "cuMemcpyHtoDAsync")?;
        self.synchronize()
    }

    /// Copies device bytes to the host and waits.
    pub fn read(&self, source: u64, bytes: &mut [u8]) -> Result<()> {
        let _bound = self.context.bind()?;
        // SAFETY: `bytes` outlives the copy, which is waited for below; `source` is memory of the library.
        let copied =
            unsafe { sys::cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), source, bytes.len(), self.raw) };
        check(copied, "cuMemcpyDtoHAsync")?;
        self.synchronize()
    }

    /// Sets device bytes to zero and waits.
    pub fn zero(&self, destination: u64, bytes: usize) -> Result<()> {
        let _bound = self.context.bind()?;
        // SAFETY: `destination` is memory of the library.
        check(unsafe { sys::cuMemsetD8Async(destination, 0, bytes, self.raw) }, "cuMemsetD8Async")?;
        self.synchronize()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.bind() {
            let _relaxed = RelaxedCapture::enter();
            // SAFETY: our own stream, used by nobody else.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}

/// An event without timing.
#[derive(Debug)]
pub struct Event {
    raw: sys::CUevent,
    context: Arc<Context>,
}

// SAFETY: a CUevent may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub fn new(context: &Arc<Context>) -> Result<Event> {
        let _bound = context.bind()?;
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: out pointer to a live pointer; a context is current.
        check(unsafe { sys::cuEventCreate(&mut raw, flags) }, "cuEventCreate")?;
        Ok(Event { raw, context: context.clone() })
    }

    /// The context of the stream must be current.
    pub fn record(&self, stream: CallerStream) -> Result<()> {
        // SAFETY: a live event; the stream is the caller's to keep alive during the call.
        check(unsafe { sys::cuEventRecord(self.raw, stream.raw()) }, "cuEventRecord on the caller's stream")
    }

    /// Whether all work before the last record is done (also true when nothing was recorded, or when the
    /// context is lost).
    pub fn is_done(&self) -> bool {
        let Ok(_bound) = self.context.bind() else { return true };
        // A query is refused, and breaks the capture, while any thread captures in the global mode.
        let _relaxed = RelaxedCapture::enter();
        // SAFETY: a live event.
        unsafe { sys::cuEventQuery(self.raw) != sys::CUresult::CUDA_ERROR_NOT_READY }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.bind() {
            let _relaxed = RelaxedCapture::enter();
            // SAFETY: our own event, used by nobody else.
            let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}

/// While it lives, calls of this thread that are unsafe during a capture are allowed; they do not go into the
/// graph.
#[must_use]
#[derive(Debug)]
pub struct RelaxedCapture {
    previous: sys::CUstreamCaptureMode,
}

impl RelaxedCapture {
    pub fn enter() -> Result<RelaxedCapture> {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        check(
            // SAFETY: in-out pointer to a live value.
            unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) },
            "cuThreadExchangeStreamCaptureMode",
        )?;
        Ok(RelaxedCapture { previous: mode })
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        let mut mode = self.previous;
        // SAFETY: in-out pointer to a live value; restores what `enter` found.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    }
}
