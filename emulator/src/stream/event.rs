//! Events: marks in the order of work, that other streams, threads and processes can wait for.
//!
//! Recording takes a snapshot: a wait refers to the latest record made before the wait was called. An event recorded in
//! a capturing stream holds the captured position instead and cannot be asked for its state.
//!
//! An interprocess event keeps two counters in shared memory: records made and records reached. A process that waits
//! for a record of another one polls them, and gives up when the process that recorded last is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::config;
use crate::context::{self, Context};
use crate::error::{
    CAPTURED_EVENT, ILLEGAL_STATE, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED,
    Result,
};
use crate::handle::Registry;
use crate::memory::ipc::{self, Ticket};
use crate::memory::map::SharedFile;
use crate::stream::capture::{self, Capture, Position};
use crate::stream::op::{Job, Op};
use crate::stream::{self, Placement};
use crate::types::{CUevent, CUipcHandle, CUstream, Out};
use crate::work::Work;

const BLOCKING_SYNC: u32 = 1;
const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;
/// The flag of records and waits that become nodes of the graph.
const EXTERNAL: u32 = 1;

pub struct Event {
    handle: CUevent,
    context: &'static Context,
    flags: u32,
    state: Mutex<State>,
    shared: Option<Shared>,
}

#[derive(Default)]
struct State {
    latest: Option<Record>,
    captured: Option<Position>,
}

#[derive(Clone)]
struct Record {
    op: Arc<Op>,
    /// Nanoseconds since the process's clock started, once the record was reached.
    time: Arc<AtomicU64>,
    /// The record's number in the shared counters.
    number: u64,
}

static EVENTS: Registry<Event> = Registry::new();

pub fn get(handle: CUevent) -> Result<Arc<Event>> {
    EVENTS.get(handle)
}

pub fn forget_context(context: &'static Context) {
    EVENTS.remove_where(|event| event.context.is(context));
}

impl Event {
    pub fn handle(&self) -> CUevent {
        self.handle
    }

    /// Queues a record behind the operations of `before`.
    pub fn record(self: &Arc<Event>, before: &[Arc<Op>], _context: &'static Context) -> Arc<Op> {
        let time = Arc::new(AtomicU64::new(0));
        let number = self.shared.as_ref().map_or(0, Shared::begin);
        let (event, reached) = (self.clone(), time.clone());
        let op = Op::submit(
            before,
            Job::Marker(Box::new(move || {
                // Relaxed: read only after the end of the operation was seen.
                reached.store(now(), Ordering::Relaxed);
                if let Some(shared) = &event.shared {
                    shared.reach(number);
                }
            })),
        );
        let mut state = self.state.lock();
        state.captured = None;
        state.latest = Some(Record { op: op.clone(), time, number });
        op
    }

    /// The operation that a wait for this event must follow, if there is any to come.
    pub fn to_wait_for(self: &Arc<Event>) -> Option<Arc<Op>> {
        let latest = self.state.lock().latest.clone();
        let Some(shared) = &self.shared else { return latest.map(|record| record.op) };
        let number = shared.recorded();
        if let Some(record) = latest.filter(|record| record.number == number) {
            return Some(record.op);
        }
        if shared.reached(number) {
            return None;
        }
        let event = self.clone();
        Some(Op::submit(&[], Job::Task(Box::new(move |_| event.wait_foreign(number)))))
    }

    /// Waits for a record of another process.
    fn wait_foreign(&self, number: u64) {
        let Some(shared) = &self.shared else { return };
        let mut turns = 0u32;
        while !shared.reached(number) && self.context.failure().is_none() {
            turns += 1;
            if turns < 200 {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(100));
                if turns.is_multiple_of(1000) && shared.recorder_is_gone() {
                    return;
                }
            }
        }
    }

    fn is_reached(&self) -> bool {
        if let Some(shared) = &self.shared {
            return shared.reached(shared.recorded());
        }
        self.state.lock().latest.as_ref().is_none_or(|record| record.op.is_done())
    }

    /// Fails if the event stands for a position in a capture, and says whether that is still under way.
    fn check_captured(&self) -> Result {
        match &self.state.lock().captured {
            Some(position) if position.session.is_open() => Err(CAPTURED_EVENT),
            Some(_) => Err(INVALID_VALUE),
            None => Ok(()),
        }
    }

    /// The same for calls that a capture does not survive.
    fn forbid_captured(&self) -> Result {
        self.check_captured().inspect_err(|code| {
            if let (CAPTURED_EVENT, Some(position)) = (*code, &self.state.lock().captured) {
                position.session.invalidate();
            }
        })
    }

    fn make(context: &'static Context, flags: u32, shared: Option<Shared>) -> Arc<Event> {
        EVENTS.insert_with(|handle| Event { handle, context, flags, state: Mutex::default(), shared })
    }
}

fn now() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// The counters of an interprocess event.
struct Shared {
    file: SharedFile,
}

impl Shared {
    fn new() -> Result<Shared> {
        Ok(Shared { file: SharedFile::create(c"oxccl-emu-event", 4096)? })
    }

    fn counter(&self, index: usize) -> &AtomicU64 {
        // SAFETY: the mapping is a page, lives as long as `self`, and is only accessed as atomics, here and in the
        // other processes.
        unsafe { AtomicU64::from_ptr(self.file.address().cast::<u64>().add(index)) }
    }

    fn begin(&self) -> u64 {
        self.counter(2).store(u64::from(std::process::id()), Ordering::Relaxed);
        // Release: whoever sees the number also sees who made it.
        self.counter(0).fetch_add(1, Ordering::AcqRel) + 1
    }

    fn reach(&self, number: u64) {
        // Release: the work before the record is visible to whoever sees it reached.
        self.counter(1).fetch_max(number, Ordering::AcqRel);
    }

    fn recorded(&self) -> u64 {
        self.counter(0).load(Ordering::Acquire)
    }

    fn reached(&self, number: u64) -> bool {
        self.counter(1).load(Ordering::Acquire) >= number
    }

    fn recorder_is_gone(&self) -> bool {
        let pid = self.counter(2).load(Ordering::Relaxed) as libc::pid_t;
        // SAFETY: signal 0 only asks whether the process exists.
        let answer = unsafe { libc::kill(pid, 0) };
        answer != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
    }
}

fn record(event: CUevent, stream: CUstream, flags: u32) -> Result {
    let (event, stream) = (get(event)?, stream::get(stream)?);
    if !event.context.is(stream.context) {
        return Err(INVALID_HANDLE);
    }
    if flags > EXTERNAL {
        return Err(INVALID_VALUE);
    }
    stream
        .submit_with(|state| match &mut state.capture {
            Some(capture) if flags == EXTERNAL => {
                capture.add(Work::Record(event))?;
                Ok(Placement::Captured)
            }
            Some(capture) => {
                let position = capture.position()?;
                event.state.lock().captured = Some(position);
                Ok(Placement::Captured)
            }
            None if flags == EXTERNAL => Err(ILLEGAL_STATE),
            None => Ok(Placement::Queue(Work::Record(event), Vec::new())),
        })
        .map(|_| ())
}

fn wait(stream: CUstream, event: CUevent, flags: u32) -> Result {
    let (stream, event) = (stream::get(stream)?, get(event)?);
    if flags > EXTERNAL {
        return Err(INVALID_VALUE);
    }
    let captured = event.state.lock().captured.clone();
    // A place in a capture that has ended is nowhere.
    let is_nowhere = captured.as_ref().is_some_and(|position| !position.session.is_open());
    let recorded = event.state.lock().latest.is_some() || event.shared.is_some();
    stream
        .clone()
        .submit_with(|state| {
            if is_nowhere {
                state.capture.iter().for_each(Capture::invalidate);
                return Err(INVALID_VALUE);
            }
            if flags == EXTERNAL {
                let capture = state.capture.as_mut().ok_or(ILLEGAL_STATE)?;
                capture.add(Work::Wait(event))?;
                return Ok(Placement::Captured);
            }
            if capture::join(&stream, state, captured, recorded)? {
                return Ok(Placement::Captured);
            }
            Ok(Placement::Queue(Work::Wait(event), Vec::new()))
        })
        .map(|_| ())
}

/// Records the end of all work that is queued in a context.
pub fn record_context(context: &'static Context, event: CUevent) -> Result {
    let event = get(event)?;
    capture::forbid_during_capture_in(context)?;
    let before: Vec<_> = stream::all_of(context).iter().flat_map(|stream| stream.outstanding()).collect();
    event.record(&before, context);
    Ok(())
}

/// Lets all streams of a context wait for an event.
pub fn wait_context(context: &'static Context, event: CUevent) -> Result {
    let event = get(event)?;
    event.forbid_captured()?;
    capture::forbid_during_capture_in(context)?;
    for stream in stream::all_of(context) {
        stream.submit(Work::Wait(event.clone()))?;
    }
    Ok(())
}

fn elapsed(out: Out<f32>, start: CUevent, end: CUevent) -> Result {
    let (start, end) = (get(start)?, get(end)?);
    if out.is_null() || !start.context.is(end.context) {
        return Err(INVALID_HANDLE);
    }
    let mut times = [0; 2];
    for (event, time) in [&start, &end].into_iter().zip(&mut times) {
        event.check_captured()?;
        let latest = event.state.lock().latest.clone();
        let record = latest.filter(|_| event.flags & DISABLE_TIMING == 0).ok_or(INVALID_HANDLE)?;
        if !record.op.is_done() {
            return Err(NOT_READY);
        }
        *time = record.time.load(Ordering::Relaxed);
    }
    out.set((times[1] as f64 - times[0] as f64) as f32 / 1e6)
}

cu! {
    fn cuEventCreate(out: Out<CUevent>, flags: u32) {
        out.check()?;
        let context = context::current()?;
        let timed_across = flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0;
        if flags & !(BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS) != 0 || timed_across {
            return Err(INVALID_VALUE);
        }
        let shared = if flags & INTERPROCESS != 0 { Some(Shared::new()?) } else { None };
        out.set(Event::make(context, flags, shared).handle)
    }

    fn cuEventDestroy_v2(event: CUevent) {
        EVENTS.remove(event)?.context.check()
    }

    [stream] fn cuEventRecord / cuEventRecord_ptsz (event: CUevent, stream: CUstream) {
        record(event, stream, 0)
    }

    [stream] fn cuEventRecordWithFlags / cuEventRecordWithFlags_ptsz (event: CUevent, stream: CUstream, flags: u32) {
        record(event, stream, flags)
    }

    [stream] fn cuStreamWaitEvent / cuStreamWaitEvent_ptsz (stream: CUstream, event: CUevent, flags: u32) {
        wait(stream, event, flags)
    }

    fn cuEventQuery(event: CUevent) {
        let event = get(event)?;
        event.forbid_captured()?;
        capture::forbid_unsafe()?;
        if event.is_reached() { event.context.check() } else { Err(NOT_READY) }
    }

    fn cuEventSynchronize(event: CUevent) {
        let event = get(event)?;
        event.forbid_captured()?;
        capture::forbid_unsafe()?;
        if let Some(op) = event.to_wait_for() {
            op.wait();
        }
        event.context.check()
    }

    fn cuEventElapsedTime(out: Out<f32>, start: CUevent, end: CUevent) {
        elapsed(out, start, end)
    }

    fn cuEventElapsedTime_v2(out: Out<f32>, start: CUevent, end: CUevent) {
        elapsed(out, start, end)
    }

    fn cuIpcGetEventHandle(out: Out<CUipcHandle>, event: CUevent) {
        out.check()?;
        if config::get().without.ipc {
            return Err(NOT_SUPPORTED);
        }
        let event = get(event).map_err(|_| INVALID_VALUE)?;
        let shared = event.shared.as_ref().ok_or(INVALID_HANDLE)?;
        out.set(Ticket::for_event(shared.file.fd())?.pack())
    }

    fn cuIpcOpenEventHandle(out: Out<CUevent>, handle: CUipcHandle) {
        out.check()?;
        if config::get().without.ipc {
            return Err(NOT_SUPPORTED);
        }
        let context = context::current()?;
        let ticket = Ticket::unpack(&handle, ipc::EVENT)?;
        if ticket.is_own() {
            return Err(INVALID_CONTEXT);
        }
        let file = SharedFile::adopt(ticket.open()?, 4096)?;
        let event = Event::make(context, DISABLE_TIMING | INTERPROCESS, Some(Shared { file }));
        out.set(event.handle)
    }
}
