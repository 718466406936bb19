//! Stream capture: work of a capturing stream becomes nodes of a graph.
//!
//! A [`Session`] lasts from begin to end of a capture. Each stream in it holds the nodes that its next node depends on;
//! recording an event notes that position, and a stream that waits for such an event joins the session. An operation
//! that capture does not allow fails and invalidates the session, which then can only be ended.
//!
//! Calls that might synchronise ("unsafe" ones) are refused while a capture is under way, depending on the mode in
//! which it began and on the calling thread's own mode.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::ThreadId;

use parking_lot::Mutex;

use crate::context::Context;
use crate::error::{
    Code, ILLEGAL_STATE, INVALID_VALUE, Result, STREAM_CAPTURE_IMPLICIT, STREAM_CAPTURE_INVALIDATED,
    STREAM_CAPTURE_ISOLATION, STREAM_CAPTURE_MERGE, STREAM_CAPTURE_UNJOINED, STREAM_CAPTURE_UNMATCHED,
    STREAM_CAPTURE_UNSUPPORTED, STREAM_CAPTURE_WRONG_THREAD,
};
use crate::graph::{self, Graph, Node};
use crate::stream::{self, Kind, State, Stream};
use crate::types::{CUgraph, CUgraphEdgeData, CUgraphNode, CUstream, In, Out};
use crate::work::Work;

/// A mode as C gives it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mode(u32);

impl Mode {
    const GLOBAL: Mode = Mode(0);
    const RELAXED: Mode = Mode(2);

    fn is_known(self) -> bool {
        self.0 <= Mode::RELAXED.0
    }
}

pub struct Session {
    id: u64,
    mode: Mode,
    thread: ThreadId,
    origin: CUstream,
    graph: Arc<Graph>,
    /// Whether the capture made the graph, which then goes if the capture fails.
    owns_graph: bool,
    invalidated: AtomicBool,
    streams: Mutex<Vec<Arc<Stream>>>,
    /// Where streams had come to that were destroyed.
    orphans: Mutex<Vec<Arc<Node>>>,
}

impl Session {
    pub fn invalidate(&self) {
        // Relaxed: streams look at it under their locks.
        self.invalidated.store(true, Ordering::Relaxed);
    }

    /// Whether the capture is still under way.
    pub fn is_open(&self) -> bool {
        SESSIONS.lock().iter().any(|session| session.is(self))
    }

    fn check(&self) -> Result {
        if self.invalidated.load(Ordering::Relaxed) { Err(STREAM_CAPTURE_INVALIDATED) } else { Ok(()) }
    }

    /// Whether a stream of the session synchronises with the context's legacy stream.
    fn blocks_in(&self, context: &Context) -> bool {
        self.streams.lock().iter().any(|stream| stream.context.is(context) && stream.blocks())
    }

    fn is(&self, other: &Session) -> bool {
        std::ptr::eq(self, other)
    }
}

/// A place in a capture, as an event holds it.
#[derive(Clone)]
pub struct Position {
    pub session: Arc<Session>,
    after: Vec<Arc<Node>>,
}

/// A stream's part in a session.
pub struct Capture {
    session: Arc<Session>,
    after: Vec<Arc<Node>>,
    /// What cuStreamGetCaptureInfo pointed the caller to, valid until the next call on the stream.
    shown: Vec<CUgraphNode>,
    shown_edges: Vec<CUgraphEdgeData>,
}

impl Capture {
    /// Adds a node behind what the stream has captured so far.
    pub fn add(&mut self, work: Work) -> Result {
        self.session.check()?;
        let node = self.session.graph.add(work, &self.after)?;
        self.after = vec![node];
        Ok(())
    }

    /// Adds a node, or nothing if it would have nothing to do.
    pub fn add_unless(&mut self, empty: bool, work: Work) -> Result {
        if empty { self.session.check() } else { self.add(work) }
    }

    pub fn position(&self) -> Result<Position> {
        self.session.check()?;
        Ok(Position { session: self.session.clone(), after: self.after.clone() })
    }

    pub fn invalidate(&self) {
        self.session.invalidate();
    }

    pub fn graph(&self) -> &Graph {
        &self.session.graph
    }
}

static SESSIONS: Mutex<Vec<Arc<Session>>> = Mutex::new(Vec::new());
/// Sessions under way, so that the common case costs one load.
static COUNT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static THREAD_MODE: Cell<Mode> = const { Cell::new(Mode::GLOBAL) };
}

fn sessions() -> Vec<Arc<Session>> {
    if COUNT.load(Ordering::Acquire) == 0 { Vec::new() } else { SESSIONS.lock().clone() }
}

/// Refuses a call that might synchronise with work that is being captured.
pub fn forbid_unsafe() -> Result {
    let mode = THREAD_MODE.get();
    if mode == Mode::RELAXED {
        return Ok(());
    }
    let me = std::thread::current().id();
    let concerned = |session: &&Arc<Session>| {
        (session.thread == me && session.mode != Mode::RELAXED)
            || (mode == Mode::GLOBAL && session.mode == Mode::GLOBAL)
    };
    invalidate_all(sessions().iter().filter(concerned), STREAM_CAPTURE_UNSUPPORTED)
}

/// Refuses a call that concerns everything in a context.
pub fn forbid_during_capture_in(context: &'static Context) -> Result {
    let sessions = sessions();
    let concerned = |session: &&Arc<Session>| session.streams.lock().iter().any(|s| s.context.is(context));
    invalidate_all(sessions.iter().filter(concerned), STREAM_CAPTURE_UNSUPPORTED)
}

/// Refuses use of the legacy stream, which would wait for a stream that is capturing.
pub fn forbid_legacy(context: &'static Context) -> Result {
    let sessions = sessions();
    invalidate_all(sessions.iter().filter(|session| session.blocks_in(context)), STREAM_CAPTURE_IMPLICIT)
}

fn invalidate_all<'a>(sessions: impl Iterator<Item = &'a Arc<Session>>, code: Code) -> Result {
    let mut result = Ok(());
    for session in sessions {
        session.invalidate();
        result = Err(code);
    }
    result
}

/// Lets a stream wait for an event that was recorded at `captured`, or outside any capture. True if the wait is part of
/// a capture and nothing needs to be queued.
pub fn join(
    stream: &Arc<Stream>,
    state: &mut State,
    captured: Option<Position>,
    recorded: bool,
) -> Result<bool> {
    match (&mut state.capture, captured) {
        (None, None) => Ok(false),
        (None, Some(position)) => {
            if stream.kind == Kind::Legacy {
                position.session.invalidate();
                return Err(STREAM_CAPTURE_IMPLICIT);
            }
            position.session.check()?;
            position.session.streams.lock().push(stream.clone());
            state.capture = Some(Capture {
                session: position.session,
                after: position.after,
                shown: Vec::new(),
                shown_edges: Vec::new(),
            });
            Ok(true)
        }
        (Some(capture), Some(position)) => {
            if !capture.session.is(&position.session) {
                capture.session.invalidate();
                position.session.invalidate();
                return Err(STREAM_CAPTURE_MERGE);
            }
            capture.session.check()?;
            for node in position.after {
                if !capture.after.iter().any(|known| known.handle == node.handle) {
                    capture.after.push(node);
                }
            }
            Ok(true)
        }
        // An event that was never recorded stands for no work at all.
        (Some(capture), None) if !recorded => capture.session.check().map(|()| true),
        (Some(capture), None) => {
            capture.invalidate();
            Err(STREAM_CAPTURE_ISOLATION)
        }
    }
}

fn begin(stream: CUstream, mode: u32, into: Option<(Arc<Graph>, Vec<Arc<Node>>)>) -> Result {
    let stream = stream::get(stream)?;
    let mode = Mode(mode);
    if !mode.is_known() {
        return Err(INVALID_VALUE);
    }
    if stream.kind == Kind::Legacy {
        return Err(STREAM_CAPTURE_UNSUPPORTED);
    }
    let mut state = stream.state.lock();
    if state.capture.is_some() {
        return Err(ILLEGAL_STATE);
    }
    // Relaxed: only uniqueness matters.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let owns_graph = into.is_none();
    let (graph, after) = into.unwrap_or_else(|| (graph::create(), Vec::new()));
    let session = Arc::new(Session {
        id: NEXT.fetch_add(1, Ordering::Relaxed),
        mode,
        thread: std::thread::current().id(),
        origin: stream.handle,
        graph,
        owns_graph,
        invalidated: AtomicBool::new(false),
        streams: Mutex::new(vec![stream.clone()]),
        orphans: Mutex::new(Vec::new()),
    });
    SESSIONS.lock().push(session.clone());
    COUNT.fetch_add(1, Ordering::AcqRel);
    state.capture = Some(Capture { session, after, shown: Vec::new(), shown_edges: Vec::new() });
    Ok(())
}

fn end(stream: CUstream) -> Result<Arc<Graph>> {
    let stream = stream::get(stream)?;
    let (session, last) = match &stream.state.lock().capture {
        None => return Err(ILLEGAL_STATE),
        Some(capture) => (capture.session.clone(), capture.after.clone()),
    };
    if session.origin != stream.handle {
        session.invalidate();
        return Err(STREAM_CAPTURE_UNMATCHED);
    }
    let mut open = std::mem::take(&mut *session.orphans.lock());
    for member in finish(&session) {
        if let Some(capture) = member.state.lock().capture.take()
            && member.handle != stream.handle
        {
            open.extend(capture.after);
        }
    }
    let result = if session.mode != Mode::RELAXED && session.thread != std::thread::current().id() {
        Err(STREAM_CAPTURE_WRONG_THREAD)
    } else if !session.graph.reach(&last, &open) {
        session.check().and(Err(STREAM_CAPTURE_UNJOINED))
    } else {
        session.check()
    };
    drop_failed(&session, result.is_err());
    result.map(|()| session.graph.clone())
}

/// A capture that failed leaves no graph.
fn drop_failed(session: &Session, failed: bool) {
    if failed && session.owns_graph {
        let _ = graph::destroy(session.graph.handle);
    }
}

/// Takes a session off the list and returns its streams.
fn finish(session: &Arc<Session>) -> Vec<Arc<Stream>> {
    let mut sessions = SESSIONS.lock();
    let before = sessions.len();
    sessions.retain(|known| !known.is(session));
    COUNT.fetch_sub(before - sessions.len(), Ordering::AcqRel);
    std::mem::take(&mut *session.streams.lock())
}

/// Takes a stream that is destroyed out of its capture, or ends the capture that began on it.
pub fn abandon(stream: &Arc<Stream>) {
    let Some(Capture { session, after, .. }) = stream.state.lock().capture.take() else { return };
    if session.origin == stream.handle {
        session.invalidate();
        for member in finish(&session) {
            member.state.lock().capture = None;
        }
        drop_failed(&session, true);
    } else {
        session.streams.lock().retain(|member| member.handle != stream.handle);
        // Nobody can join what it did.
        session.orphans.lock().extend(after);
    }
}

pub fn forget_context(context: &'static Context) {
    for stream in stream::all_of(context) {
        abandon(&stream);
    }
}

#[derive(Clone, Copy)]
struct InfoOut {
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<CUgraph>,
    nodes: Out<*const CUgraphNode>,
    edges: Option<Out<*const CUgraphEdgeData>>,
    count: Out<usize>,
}

fn info(stream: CUstream, out: InfoOut) -> Result {
    out.status.check()?;
    let stream = stream::get(stream)?;
    // Asking is harmless: unlike other uses of the legacy stream it leaves the captures valid.
    if stream.kind == Kind::Legacy && sessions().iter().any(|session| session.blocks_in(stream.context)) {
        return Err(STREAM_CAPTURE_IMPLICIT);
    }
    let mut state = stream.state.lock();
    let Some(capture) = &mut state.capture else { return out.status.set(0) };
    if capture.session.check().is_err() {
        return out.status.set(2);
    }
    capture.shown = capture.after.iter().map(|node| node.handle).collect();
    capture.shown_edges = vec![CUgraphEdgeData::default(); capture.shown.len()];
    out.id.set_opt(capture.session.id);
    out.graph.set_opt(capture.session.graph.handle);
    out.nodes.set_opt(capture.shown.as_ptr());
    if let Some(edges) = out.edges {
        edges.set_opt(capture.shown_edges.as_ptr());
    }
    out.count.set_opt(capture.shown.len());
    out.status.set(1)
}

fn update(stream: CUstream, nodes: In<CUgraphNode>, count: usize, flags: u32) -> Result {
    let stream = stream::get(stream)?;
    let nodes = nodes.array(count)?;
    let mut state = stream.state.lock();
    let capture = state.capture.as_mut().ok_or(ILLEGAL_STATE)?;
    capture.session.check()?;
    let nodes = nodes.into_iter().map(|node| capture.session.graph.node(node)).collect::<Result<Vec<_>>>()?;
    match flags {
        0 => {
            for node in nodes {
                if !capture.after.iter().any(|known| known.handle == node.handle) {
                    capture.after.push(node);
                }
            }
        }
        1 => capture.after = nodes,
        _ => return Err(INVALID_VALUE),
    }
    Ok(())
}

cu! {
    fn cuStreamBeginCapture_v2 / cuStreamBeginCapture_v2_ptsz (stream: CUstream, mode: u32) {
        begin(stream, mode, None)
    }

    fn cuStreamBeginCaptureToGraph / cuStreamBeginCaptureToGraph_ptsz (
        stream: CUstream, graph: CUgraph, nodes: In<CUgraphNode>, edges: In<CUgraphEdgeData>, count: usize, mode: u32,
    ) {
        let _ = edges;
        let graph = graph::get(graph)?;
        let after = nodes.array(count)?.into_iter().map(|node| graph.node(node)).collect::<Result<Vec<_>>>()?;
        begin(stream, mode, Some((graph, after)))
    }

    fn cuStreamEndCapture / cuStreamEndCapture_ptsz (stream: CUstream, graph: Out<CUgraph>) {
        graph.set_opt(0);
        let made = end(stream)?;
        if graph.is_null() {
            return graph::destroy(made.handle);
        }
        graph.set(made.handle)
    }

    fn cuStreamIsCapturing / cuStreamIsCapturing_ptsz (stream: CUstream, status: Out<u32>) {
        let graph = Out::NULL;
        info(stream, InfoOut { status, id: Out::NULL, graph, nodes: Out::NULL, edges: None, count: Out::NULL })
    }

    fn cuStreamGetCaptureInfo_v2 / cuStreamGetCaptureInfo_v2_ptsz (
        stream: CUstream, status: Out<u32>, id: Out<u64>, graph: Out<CUgraph>, nodes: Out<*const CUgraphNode>,
        count: Out<usize>,
    ) {
        info(stream, InfoOut { status, id, graph, nodes, edges: None, count })
    }

    fn cuStreamGetCaptureInfo_v3 / cuStreamGetCaptureInfo_v3_ptsz (
        stream: CUstream, status: Out<u32>, id: Out<u64>, graph: Out<CUgraph>, nodes: Out<*const CUgraphNode>,
        edges: Out<*const CUgraphEdgeData>, count: Out<usize>,
    ) {
        info(stream, InfoOut { status, id, graph, nodes, edges: Some(edges), count })
    }

    fn cuStreamUpdateCaptureDependencies / cuStreamUpdateCaptureDependencies_ptsz (
        stream: CUstream, nodes: In<CUgraphNode>, count: usize, flags: u32,
    ) {
        update(stream, nodes, count, flags)
    }

    fn cuStreamUpdateCaptureDependencies_v2 / cuStreamUpdateCaptureDependencies_v2_ptsz (
        stream: CUstream, nodes: In<CUgraphNode>, edges: In<CUgraphEdgeData>, count: usize, flags: u32,
    ) {
        let _ = edges;
        update(stream, nodes, count, flags)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        // The driver takes any number here, though not where a capture begins.
        mode.set(THREAD_MODE.replace(Mode(mode.get()?)).0)
    }
}
