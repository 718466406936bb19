//! Streams: queues of work that run beside each other.
//!
//! A stream remembers its last operation; new work is queued behind that. The legacy stream, and streams that
//! synchronise with it, also queue behind each other: work on the legacy stream waits for all earlier work of the
//! context's blocking streams, and their later work waits for it. While such work is queued the context's `order` lock
//! is held, so that all threads see one order.
//!
//! Lock order: `Context::order`, then streams, then graphs; operations are last.

pub mod callback;
pub mod capture;
pub mod event;
pub mod memop;
pub mod op;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::api;
use crate::context::{self, Context};
use crate::error::{INVALID_HANDLE, INVALID_VALUE, NOT_READY, Result, STREAM_CAPTURE_UNSUPPORTED};
use crate::handle::Registry;
use crate::types::{CUcontext, CUdevice, CUstream, Out};
use crate::work::{self, Work};
use capture::Capture;
use op::Op;

/// Handles that stand for streams which nobody created.
const LEGACY: CUstream = 1;
const PER_THREAD: CUstream = 2;

pub const LEAST_PRIORITY: i32 = 0;
pub const GREATEST_PRIORITY: i32 = -5;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Legacy,
    PerThread,
    Blocking,
    NonBlocking,
}

pub struct Stream {
    pub handle: CUstream,
    pub context: &'static Context,
    pub kind: Kind,
    flags: u32,
    priority: i32,
    pub state: Mutex<State>,
}

#[derive(Default)]
pub struct State {
    tail: Option<Arc<Op>>,
    pub capture: Option<Capture>,
}

static STREAMS: Registry<Stream> = Registry::new();

thread_local! {
    /// This thread's own default streams, one per context it used.
    static OWN: RefCell<Vec<Arc<Stream>>> = const { RefCell::new(Vec::new()) };
}

impl Stream {
    pub fn make(context: &'static Context, kind: Kind, flags: u32, priority: i32) -> Arc<Stream> {
        STREAMS.insert_with(|handle| Stream {
            handle,
            context,
            kind,
            flags,
            priority,
            state: Mutex::default(),
        })
    }

    /// Whether the stream is ordered with the legacy stream, or is it.
    pub fn blocks(&self) -> bool {
        self.kind != Kind::NonBlocking
    }

    /// Queues work, or adds it to the graph that the stream is capturing; then there is no operation to wait for.
    pub fn submit(&self, work: Work) -> Result<Option<Arc<Op>>> {
        self.submit_with(|state| {
            if let Some(capture) = &mut state.capture {
                capture.add(work)?;
                return Ok(Placement::Captured);
            }
            Ok(Placement::Queue(work, Vec::new()))
        })
    }

    /// Queues behind this stream's work what `place` decides while no other work can be queued here.
    pub fn submit_with(
        &self,
        place: impl FnOnce(&mut State) -> Result<Placement>,
    ) -> Result<Option<Arc<Op>>> {
        self.context.check()?;
        // Held up while a call of another thread waits for the whole context. What is captured does not go to the device.
        let is_captured = self.state.lock().capture.is_some();
        let _gate = (!is_captured).then(|| self.context.gate.read());
        let _order = self.blocks().then(|| self.context.order.lock());
        if self.kind == Kind::Legacy {
            capture::forbid_legacy(self.context)?;
        }
        let mut state = self.state.lock();
        let (work, mut before) = match place(&mut state)? {
            Placement::Captured => return Ok(None),
            Placement::Queue(work, before) => (work, before),
        };
        before.extend(state.tail.clone());
        before.extend(self.neighbours());
        before.retain(|op| !op.is_done());
        let op = work::start(work, self.context, &before);
        state.tail = Some(op.clone());
        Ok(Some(op))
    }

    /// The last operations of the streams that this one waits for without being told to.
    fn neighbours(&self) -> Vec<Arc<Op>> {
        match self.kind {
            Kind::NonBlocking => Vec::new(),
            Kind::Legacy => {
                let blocking = |stream: &Arc<Stream>| {
                    stream.kind != Kind::Legacy && stream.blocks() && stream.context.is(self.context)
                };
                let streams = STREAMS.all().into_iter().filter(blocking);
                let tails = streams.filter_map(|stream| stream.state.lock().tail.clone());
                tails.chain(detached(self.context, true)).collect()
            }
            Kind::PerThread | Kind::Blocking => {
                let legacy = self.context.legacy.lock().clone();
                legacy.and_then(|legacy| legacy.state.lock().tail.clone()).into_iter().collect()
            }
        }
    }

    /// What must end before the stream is idle.
    pub fn outstanding(&self) -> Vec<Arc<Op>> {
        let mut ops: Vec<Arc<Op>> = self.state.lock().tail.clone().into_iter().collect();
        if self.kind == Kind::Legacy {
            ops.extend(self.neighbours());
        }
        ops.retain(|op| !op.is_done());
        ops
    }

    pub fn synchronize(&self) -> Result {
        for op in self.outstanding() {
            op.wait();
        }
        self.context.check()
    }

    /// Fails if the stream is capturing, which then cannot go on either.
    fn forbid_capture(&self) -> Result {
        match &mut self.state.lock().capture {
            Some(capture) => {
                capture.invalidate();
                Err(STREAM_CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }
}

/// What becomes of work that is submitted.
pub enum Placement {
    Captured,
    Queue(Work, Vec<Arc<Op>>),
}

/// The stream that a handle stands for in the present call.
pub fn get(handle: CUstream) -> Result<Arc<Stream>> {
    let handle = match handle {
        0 if api::per_thread_default() => PER_THREAD,
        0 => LEGACY,
        other => other,
    };
    match handle {
        LEGACY => context::current()?.legacy(),
        PER_THREAD => Ok(own(context::current()?)),
        handle => {
            let stream = STREAMS.get(handle)?;
            stream.context.check()?;
            Ok(stream)
        }
    }
}

fn own(context: &'static Context) -> Arc<Stream> {
    OWN.with_borrow_mut(|own| {
        // A context that was reset has forgotten its streams: those are not in the table any more.
        own.retain(|stream| STREAMS.get(stream.handle).is_ok());
        if let Some(stream) = own.iter().find(|stream| stream.context.is(context)) {
            return stream.clone();
        }
        let stream = Stream::make(context, Kind::PerThread, 0, 0);
        own.push(stream.clone());
        stream
    })
}

/// All streams of a context, its legacy stream among them.
pub fn all_of(context: &'static Context) -> Vec<Arc<Stream>> {
    STREAMS.all().into_iter().filter(|stream| stream.context.is(context)).collect()
}

/// Waits for all work that was queued in the context so far.
pub fn synchronize_context(context: &'static Context) -> Result {
    drain_without_deadline(context);
    context.check()
}

pub fn drain_without_deadline(context: &'static Context) {
    for stream in all_of(context) {
        for op in stream.outstanding() {
            op.wait();
        }
    }
    for op in detached(context, false) {
        op.wait();
    }
}

/// Waits until the context has nothing to do; false if the deadline came first.
pub fn drain(context: &'static Context, deadline: Instant) -> bool {
    let outstanding = all_of(context).into_iter().flat_map(|stream| stream.outstanding());
    outstanding.chain(detached(context, false)).all(|op| op.wait_until(Some(deadline)))
}

pub fn forget_context(context: &'static Context) {
    STREAMS.remove_where(|stream| stream.context.is(context));
    event::forget_context(context);
}

/// The last operation of a stream that was destroyed before it was idle.
struct Detached {
    context: &'static Context,
    blocks: bool,
    op: Arc<Op>,
}

static DETACHED: Mutex<Vec<Detached>> = Mutex::new(Vec::new());

/// What is left of destroyed streams, of all of them or of those that the legacy stream waits for.
fn detached(context: &'static Context, blocking_only: bool) -> Vec<Arc<Op>> {
    let mut all = DETACHED.lock();
    all.retain(|detached| !detached.op.is_done());
    let wanted = |detached: &&Detached| detached.context.is(context) && (detached.blocks || !blocking_only);
    all.iter().filter(wanted).map(|detached| detached.op.clone()).collect()
}

fn create(out: Out<CUstream>, flags: u32, priority: i32) -> Result {
    out.check()?;
    let context = context::current()?;
    let kind = match flags {
        0 => Kind::Blocking,
        1 => Kind::NonBlocking,
        _ => return Err(INVALID_VALUE),
    };
    let priority = priority.clamp(GREATEST_PRIORITY, LEAST_PRIORITY);
    out.set(Stream::make(context, kind, flags, priority).handle)
}

cu! {
    fn cuStreamCreate(out: Out<CUstream>, flags: u32) {
        create(out, flags, 0)
    }

    fn cuStreamCreateWithPriority(out: Out<CUstream>, flags: u32, priority: i32) {
        create(out, flags, priority)
    }

    fn cuStreamDestroy_v2(stream: CUstream) {
        let stream = STREAMS.get(stream)?;
        if matches!(stream.kind, Kind::Legacy | Kind::PerThread) {
            return Err(INVALID_HANDLE);
        }
        STREAMS.remove(stream.handle)?;
        capture::abandon(&stream);
        let tail = stream.state.lock().tail.clone();
        let (context, blocks) = (stream.context, stream.blocks());
        DETACHED.lock().extend(tail.map(|op| Detached { context, blocks, op }));
        context.check()
    }

    [stream] fn cuStreamQuery / cuStreamQuery_ptsz (stream: CUstream) {
        let stream = get(stream)?;
        stream.forbid_capture()?;
        if stream.kind == Kind::Legacy {
            capture::forbid_legacy(stream.context)?;
        }
        capture::forbid_unsafe()?;
        if stream.outstanding().is_empty() { stream.context.check() } else { Err(NOT_READY) }
    }

    [stream] fn cuStreamSynchronize / cuStreamSynchronize_ptsz (stream: CUstream) {
        let stream = get(stream)?;
        stream.forbid_capture()?;
        if stream.kind == Kind::Legacy {
            capture::forbid_legacy(stream.context)?;
        }
        capture::forbid_unsafe()?;
        stream.synchronize()
    }

    fn cuStreamGetFlags / cuStreamGetFlags_ptsz (stream: CUstream, flags: Out<u32>) {
        flags.set(get(stream)?.flags)
    }

    fn cuStreamGetPriority / cuStreamGetPriority_ptsz (stream: CUstream, priority: Out<i32>) {
        priority.set(get(stream)?.priority)
    }

    fn cuStreamGetCtx / cuStreamGetCtx_ptsz (stream: CUstream, ctx: Out<CUcontext>) {
        ctx.set(get(stream)?.context.handle)
    }

    fn cuStreamGetCtx_v2 / cuStreamGetCtx_v2_ptsz (stream: CUstream, ctx: Out<CUcontext>, green: Out<usize>) {
        green.set_opt(0);
        ctx.set(get(stream)?.context.handle)
    }

    fn cuStreamGetDevice / cuStreamGetDevice_ptsz (stream: CUstream, device: Out<CUdevice>) {
        device.set(get(stream)?.context.device.ordinal)
    }

    fn cuStreamGetGreenCtx(stream: CUstream, green: Out<usize>) {
        get(stream)?;
        green.set(0)
    }

    fn cuStreamGetId / cuStreamGetId_ptsz (stream: CUstream, id: Out<u64>) {
        id.set(get(stream)?.handle as u64)
    }

    fn cuStreamCopyAttributes / cuStreamCopyAttributes_ptsz (dst: CUstream, src: CUstream) {
        let (dst, src) = (get(dst)?, get(src)?);
        if dst.context.is(src.context) { Ok(()) } else { Err(INVALID_VALUE) }
    }

    fn cuStreamAttachMemAsync / cuStreamAttachMemAsync_ptsz (stream: CUstream, ptr: u64, len: usize, flags: u32) {
        let _ = (len, flags);
        crate::memory::find(ptr).ok_or(INVALID_VALUE)?;
        get(stream)?.submit(Work::Empty).map(|_| ())
    }
}

/// Waits, as calls do that act on a whole device, for everything queued in contexts of that device. Until then nothing
/// more can be queued there.
pub fn synchronize_device(device: &crate::device::Device) {
    for context in context::all_active() {
        if context.device.ordinal == device.ordinal {
            synchronize_behind_gate(context);
        }
    }
}

/// The same for one context.
pub fn synchronize_behind_gate(context: &'static Context) {
    let _gate = context.gate.write();
    drain_without_deadline(context);
}
