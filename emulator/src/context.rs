//! Contexts: the primary one of each device, created ones, and the stack of current contexts of each thread.
//!
//! A context is never freed, so that a stale handle is recognised: destroying one, or releasing a primary context for
//! the last time, ends its work, takes its objects away and leaves it inactive. A kernel fault makes a context fail for
//! good: from then on every call that needs it returns the fault's code, and queued work is skipped. The process cannot
//! make another context on that device either.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use crate::device::{self, Device};
use crate::error::{
    CONTEXT_IS_DESTROYED, Code, INVALID_CONTEXT, INVALID_VALUE, NOT_PERMITTED, PEER_ACCESS_ALREADY_ENABLED,
    PEER_ACCESS_NOT_ENABLED, PEER_ACCESS_UNSUPPORTED, Result, UNSUPPORTED_LIMIT,
};
use crate::handle;
use crate::stream::op::Op;
use crate::stream::{Kind, Stream, capture};
use crate::types::{CUcontext, CUdevice, CUevent, Out};
use crate::{api, memory, module, stream};

pub struct Context {
    pub handle: CUcontext,
    /// A primary context keeps its handle for ever; the id tells its lives apart.
    id: AtomicU64,
    pub device: &'static Device,
    primary: bool,
    flags: AtomicU32,
    active: AtomicBool,
    failure: AtomicU32,
    /// Retains of a primary context.
    retained: Mutex<u32>,
    /// Held while work is queued on the legacy stream or on a stream that synchronises with it.
    pub order: Mutex<()>,
    /// Held for writing while a call waits for the whole context, and for reading while work is queued.
    pub gate: RwLock<()>,
    pub legacy: Mutex<Option<Arc<Stream>>>,
    peers: Mutex<BTreeSet<CUcontext>>,
    limits: Mutex<[usize; 7]>,
    /// Kernels that have started and not ended.
    pub running: Mutex<Vec<Arc<Op>>>,
    /// Names of the kernels whose code is in this context.
    pub loaded: Mutex<BTreeSet<&'static str>>,
}

const DEFAULT_LIMITS: [usize; 7] = [1024, 7 << 20, 8 << 20, 2, 2048, 128, 0];

static CONTEXTS: Mutex<Vec<&'static Context>> = Mutex::new(Vec::new());

thread_local! {
    /// Without a destructor, as a driver's: calls at exit, after the destructors of the main thread's variables, find their contexts.
    static CURRENT: ManuallyDrop<RefCell<Vec<&'static Context>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

impl Context {
    fn make(device: &'static Device, primary: bool, flags: u32) -> &'static Context {
        let context: &'static Context = Box::leak(Box::new(Context {
            handle: handle::next(),
            id: AtomicU64::new(0),
            device,
            primary,
            flags: AtomicU32::new(flags),
            active: AtomicBool::new(false),
            failure: AtomicU32::new(0),
            retained: Mutex::new(0),
            order: Mutex::new(()),
            gate: RwLock::new(()),
            legacy: Mutex::new(None),
            peers: Mutex::new(BTreeSet::new()),
            limits: Mutex::new(DEFAULT_LIMITS),
            running: Mutex::new(Vec::new()),
            loaded: Mutex::new(BTreeSet::new()),
        }));
        CONTEXTS.lock().push(context);
        context
    }

    fn activate(&'static self) {
        self.id.store(handle::next() as u64, Ordering::Relaxed);
        self.failure.store(0, Ordering::Relaxed);
        *self.legacy.lock() = Some(Stream::make(self, Kind::Legacy, 0, 0));
        *self.limits.lock() = DEFAULT_LIMITS;
        // Release: pairs with `is_active`; whoever sees the context active sees what was made for it.
        self.active.store(true, Ordering::Release);
    }

    /// Ends the context's work and takes its objects away.
    fn deactivate(&'static self) {
        self.fail(CONTEXT_IS_DESTROYED);
        // A kernel that never ends cannot be stopped: after the deadline it keeps its memory.
        let idle = stream::drain(self, Instant::now() + Duration::from_secs(2));
        self.active.store(false, Ordering::Release);
        capture::forget_context(self);
        stream::forget_context(self);
        module::forget_context(self);
        memory::forget_context(self, idle);
        *self.legacy.lock() = None;
        self.peers.lock().clear();
        self.loaded.lock().clear();
    }

    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Makes the context fail because a kernel did, and with it the process's later contexts on the device.
    pub fn break_by(&self, code: Code) {
        self.device.note_fault(code);
        self.fail(code);
    }

    /// Makes the context fail from now on; the first cause stays.
    pub fn fail(&self, code: Code) {
        // Relaxed: the code is all that is shared, and those who wait for work are ordered by its end.
        let _ = self.failure.compare_exchange(0, code.0, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub fn failure(&self) -> Option<Code> {
        match self.failure.load(Ordering::Relaxed) {
            0 => None,
            code => Some(Code(code)),
        }
    }

    /// Fails if the context is gone or broken.
    pub fn check(&self) -> Result {
        if !self.is_active() {
            return Err(CONTEXT_IS_DESTROYED);
        }
        self.failure().map_or(Ok(()), Err)
    }

    pub fn is(&self, other: &Context) -> bool {
        std::ptr::eq(self, other)
    }

    /// Whether kernels of this context may touch memory that another one's device has from cuMemAlloc.
    pub fn reaches(&self, device: &Device) -> bool {
        self.device.physical == device.physical
            || self
                .peers
                .lock()
                .iter()
                .any(|peer| find(*peer).is_ok_and(|peer| peer.device.ordinal == device.ordinal))
    }

    /// The stream that the handle NULL stands for, unless the caller asked for per-thread ones.
    pub fn legacy(&self) -> Result<Arc<Stream>> {
        self.legacy.lock().clone().ok_or(CONTEXT_IS_DESTROYED)
    }
}

/// The calling thread's current context, which must be usable.
pub fn current() -> Result<&'static Context> {
    // A program's function has no context, and may not use one.
    if api::is_in_callback() {
        return Err(NOT_PERMITTED);
    }
    let context = top().ok_or(INVALID_CONTEXT)?;
    context.check()?;
    Ok(context)
}

/// The context with this handle, which must be usable.
pub fn get(handle: CUcontext) -> Result<&'static Context> {
    let context = find(handle)?;
    context.check()?;
    Ok(context)
}

/// The context with this handle, or the current one for 0.
pub fn get_or_current(handle: CUcontext) -> Result<&'static Context> {
    if handle == 0 { current() } else { get(handle) }
}

fn find(handle: CUcontext) -> Result<&'static Context> {
    CONTEXTS.lock().iter().find(|context| context.handle == handle).copied().ok_or(INVALID_CONTEXT)
}

/// The context with this handle, for calls that do not take NULL for one.
fn find_given(handle: CUcontext) -> Result<&'static Context> {
    if handle == 0 { Err(INVALID_VALUE) } else { find(handle) }
}

/// All contexts that work could be queued in.
pub fn all_active() -> Vec<&'static Context> {
    CONTEXTS.lock().iter().filter(|context| context.is_active()).copied().collect()
}

fn with_stack<T>(body: impl FnOnce(&mut Vec<&'static Context>) -> T) -> T {
    CURRENT.with(|stack| body(&mut stack.borrow_mut()))
}

fn top() -> Option<&'static Context> {
    with_stack(|stack| stack.last().copied())
}

fn primary(dev: CUdevice) -> Result<&'static Context> {
    let device = device::get(dev)?;
    // One lock around looking and making, so that two threads do not make two.
    static MAKING: Mutex<()> = Mutex::new(());
    let _guard = MAKING.lock();
    let known =
        CONTEXTS.lock().iter().find(|context| context.primary && context.device.ordinal == dev).copied();
    Ok(known.unwrap_or_else(|| Context::make(device, true, 0)))
}

fn create(out: Out<CUcontext>, flags: u32, dev: CUdevice) -> Result {
    out.check()?;
    let device = device::get(dev)?;
    check_flags(flags)?;
    device.check_fault()?;
    let context = Context::make(device, false, flags);
    context.activate();
    with_stack(|stack| stack.push(context));
    out.set(context.handle)
}

/// One way of waiting at most, and the flags that there are.
fn check_flags(flags: u32) -> Result {
    const WAITING: u32 = 7;
    const ALL: u32 = 0xff;
    let one = matches!(flags & WAITING, 0 | 1 | 2 | 4);
    if one && flags & !ALL == 0 { Ok(()) } else { Err(INVALID_VALUE) }
}

/// Ends a primary context; its next life begins with the flags that a context has at first.
fn end_primary(context: &'static Context) {
    if context.is_active() {
        context.deactivate();
    }
    context.flags.store(0, Ordering::Relaxed);
}

cu! {
    fn cuDevicePrimaryCtxRetain(out: Out<CUcontext>, dev: CUdevice) {
        out.check()?;
        let context = primary(dev)?;
        let mut retained = context.retained.lock();
        // After a reset it is retained and yet not active.
        if !context.is_active() {
            context.device.check_fault()?;
            context.activate();
        }
        *retained += 1;
        out.set(context.handle)
    }

    fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) {
        let context = primary(dev)?;
        let mut retained = context.retained.lock();
        match *retained {
            0 => return Err(INVALID_CONTEXT),
            1 => end_primary(context),
            _ => {}
        }
        *retained -= 1;
        Ok(())
    }

    fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) {
        let context = primary(dev)?;
        let _retained = context.retained.lock();
        end_primary(context);
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(dev: CUdevice, flags: Out<u32>, active: Out<i32>) {
        let context = primary(dev)?;
        flags.set_opt(context.flags.load(Ordering::Relaxed));
        active.set_opt(i32::from(context.is_active()));
        Ok(())
    }

    fn cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: u32) {
        check_flags(flags)?;
        primary(dev)?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxCreate_v2(out: Out<CUcontext>, flags: u32, dev: CUdevice) {
        create(out, flags, dev)
    }

    fn cuCtxCreate_v3(out: Out<CUcontext>, affinity: usize, count: i32, flags: u32, dev: CUdevice) {
        let _ = affinity;
        if count != 0 {
            return Err(crate::error::NOT_SUPPORTED);
        }
        create(out, flags, dev)
    }

    fn cuCtxCreate_v4(out: Out<CUcontext>, params: usize, flags: u32, dev: CUdevice) {
        if params != 0 {
            return Err(crate::error::NOT_SUPPORTED);
        }
        create(out, flags, dev)
    }

    fn cuCtxDestroy_v2(ctx: CUcontext) {
        let context = find_given(ctx)?;
        if context.primary || !context.is_active() {
            return Err(INVALID_CONTEXT);
        }
        context.deactivate();
        with_stack(|stack| {
            if stack.last().is_some_and(|top| top.is(context)) {
                stack.pop();
            }
        });
        Ok(())
    }

    fn cuCtxGetCurrent(out: Out<CUcontext>) {
        out.set(top().map_or(0, |context| context.handle))
    }

    fn cuCtxSetCurrent(ctx: CUcontext) {
        let context = if ctx == 0 { None } else { Some(find(ctx)?) };
        if context.is_some_and(|context| !context.is_active()) {
            return Err(if context.is_some_and(|c| c.primary) { CONTEXT_IS_DESTROYED } else { INVALID_CONTEXT });
        }
        with_stack(|stack| {
            stack.pop();
            stack.extend(context);
        });
        Ok(())
    }

    fn cuCtxPushCurrent_v2(ctx: CUcontext) {
        let context = find_given(ctx)?;
        if !context.is_active() {
            return Err(INVALID_CONTEXT);
        }
        with_stack(|stack| stack.push(context));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(out: Out<CUcontext>) {
        let context = with_stack(Vec::pop).ok_or(INVALID_CONTEXT)?;
        out.set_opt(context.handle);
        Ok(())
    }

    fn cuCtxGetDevice(out: Out<CUdevice>) {
        out.set(top().ok_or(INVALID_CONTEXT)?.device.ordinal)
    }

    fn cuCtxGetFlags(out: Out<u32>) {
        out.set(current()?.flags.load(Ordering::Relaxed))
    }

    fn cuCtxSetFlags(flags: u32) {
        current()?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxGetId(ctx: CUcontext, out: Out<u64>) {
        out.set(get_or_current(ctx)?.id.load(Ordering::Relaxed))
    }

    fn cuCtxGetApiVersion(ctx: CUcontext, out: Out<u32>) {
        get_or_current(ctx)?;
        out.set(3020)
    }

    fn cuCtxSynchronize() {
        let context = current()?;
        capture::forbid_during_capture_in(context)?;
        stream::synchronize_context(context)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        current()?;
        least.set_opt(stream::LEAST_PRIORITY);
        greatest.set_opt(stream::GREATEST_PRIORITY);
        Ok(())
    }

    fn cuCtxGetLimit(out: Out<usize>, limit: u32) {
        let limits = current()?.limits.lock();
        out.set(*limits.get(limit as usize).ok_or(UNSUPPORTED_LIMIT)?)
    }

    fn cuCtxSetLimit(limit: u32, value: usize) {
        let mut limits = current()?.limits.lock();
        *limits.get_mut(limit as usize).ok_or(UNSUPPORTED_LIMIT)? = value;
        Ok(())
    }

    fn cuCtxGetCacheConfig(out: Out<u32>) {
        current()?;
        out.set(0)
    }

    fn cuCtxSetCacheConfig(config: u32) {
        current()?;
        if config > 3 { Err(INVALID_VALUE) } else { Ok(()) }
    }

    fn cuCtxGetSharedMemConfig(out: Out<u32>) {
        current()?;
        out.set(1)
    }

    fn cuCtxSetSharedMemConfig(config: u32) {
        current()?;
        if config > 2 { Err(INVALID_VALUE) } else { Ok(()) }
    }

    fn cuCtxResetPersistingL2Cache() {
        current().map(|_| ())
    }

    fn cuCtxEnablePeerAccess(peer: CUcontext, flags: u32) {
        let (context, peer) = (current()?, get(peer)?);
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if context.device.physical == peer.device.physical {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        if !context.device.can_access(peer.device) {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        let fresh = context.peers.lock().insert(peer.handle);
        if fresh { Ok(()) } else { Err(PEER_ACCESS_ALREADY_ENABLED) }
    }

    fn cuCtxDisablePeerAccess(peer: CUcontext) {
        let (context, peer) = (current()?, get(peer)?);
        let known = context.peers.lock().remove(&peer.handle);
        if known { Ok(()) } else { Err(PEER_ACCESS_NOT_ENABLED) }
    }

    fn cuCtxRecordEvent(ctx: CUcontext, event: CUevent) {
        stream::event::record_context(get(ctx)?, event)
    }

    fn cuCtxWaitEvent(ctx: CUcontext, event: CUevent) {
        stream::event::wait_context(get(ctx)?, event)
    }
}
