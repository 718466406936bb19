//! Bad memory accesses of kernels: a signal that arrives while a kernel runs on the thread ends that block.
//!
//! The handler changes the interrupted context so that the return from the signal continues where the block was
//! entered: the signal mask is restored and no frame of the handler is skipped. A signal that no kernel caused goes to
//! the handler that was there before, with its own arguments.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use super::KernelFault;
use super::block::{self, ABANDONED};
use super::context::resume;

const SIGNALS: [c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
const ALTERNATE_STACK_SIZE: usize = 64 << 10;

static PREVIOUS: OnceLock<[libc::sigaction; 4]> = OnceLock::new();

/// Makes faults of kernels on the calling thread catchable. Cheap after the thread's first call.
pub(super) fn arm_thread() {
    PREVIOUS.get_or_init(install);
    ALTERNATE_STACK.with(|stack| {
        if !stack.ready.get() {
            stack.install();
        }
    });
}

fn install() -> [libc::sigaction; 4] {
    SIGNALS.map(|signal| {
        // SAFETY: both structures are valid for the calls, and the handler is async-signal-safe: it reads a
        // thread-local without destructor and writes to the block of its own thread.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let mut previous: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            libc::sigemptyset(&mut action.sa_mask);
            let result = libc::sigaction(signal, &action, &mut previous);
            assert_eq!(result, 0, "sigaction accepts every fault signal");
            previous
        }
    })
}

unsafe extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo. Positive codes are faults; others were sent by someone.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let running = if code > 0 { block::running() } else { ptr::null_mut() };
    if running.is_null() {
        // SAFETY: the arguments are those that the kernel passed.
        unsafe { call_previous(signal, info, context) };
        return;
    }
    let fault = match signal {
        libc::SIGSEGV | libc::SIGBUS => KernelFault::IllegalAddress(address),
        _ => KernelFault::Trap,
    };
    // SAFETY: the block runs on this thread and is stopped inside a kernel, in frames that own nothing; `root` is the
    // context in which it was entered, whose frame is still there.
    unsafe {
        let root = block::fail(running, fault);
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        registers[libc::REG_RIP as usize] = resume as *const () as i64;
        registers[libc::REG_RSP as usize] = root as i64;
        registers[libc::REG_RDI as usize] = root as i64;
        registers[libc::REG_RSI as usize] = ABANDONED as i64;
        // The ABI wants the direction flag clear at every call.
        registers[libc::REG_EFL as usize] &= !0x400;
    }
}

/// # Safety
/// The arguments are those of a signal handler that is running.
unsafe fn call_previous(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let previous = SIGNALS.iter().position(|&known| known == signal).and_then(|i| Some(&PREVIOUS.get()?[i]));
    match previous {
        Some(action) if action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN => {
            // SAFETY: the action was installed by someone for this signal, in the form that its flags tell.
            unsafe {
                if action.sa_flags & libc::SA_SIGINFO != 0 {
                    let call: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                        std::mem::transmute(action.sa_sigaction);
                    call(signal, info, context);
                } else {
                    let call: extern "C" fn(c_int) = std::mem::transmute(action.sa_sigaction);
                    call(signal);
                }
            }
        }
        // Sent by someone and ignored: stay ignored.
        // SAFETY: `info` is valid, see above.
        Some(action) if action.sa_sigaction == libc::SIG_IGN && unsafe { (*info).si_code } <= 0 => {}
        // SAFETY: only async-signal-safe calls. The signal stays blocked until this handler returns, then it ends the
        // process, as it would have without the emulator.
        _ => unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        },
    }
}

thread_local! {
    static ALTERNATE_STACK: AlternateStack = const { AlternateStack { ready: Cell::new(false), base: Cell::new(ptr::null_mut()) } };
}

/// The stack on which a thread's fault handler runs, so that an overflown fiber stack is a fault too.
struct AlternateStack {
    ready: Cell<bool>,
    /// Null when the thread already had a stack from someone else.
    base: Cell<*mut c_void>,
}

impl AlternateStack {
    fn install(&self) {
        // SAFETY: the structures are valid for the calls and the mapping is fresh. On failure the thread keeps no
        // alternate stack: everything works but catching a stack overflow.
        unsafe {
            let mut stack: libc::stack_t = std::mem::zeroed();
            libc::sigaltstack(ptr::null(), &mut stack);
            if stack.ss_flags & libc::SS_DISABLE != 0 {
                let base = libc::mmap(
                    ptr::null_mut(),
                    ALTERNATE_STACK_SIZE,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                );
                if base != libc::MAP_FAILED {
                    stack = libc::stack_t { ss_sp: base, ss_flags: 0, ss_size: ALTERNATE_STACK_SIZE };
                    libc::sigaltstack(&stack, ptr::null_mut());
                    self.base.set(base);
                }
            }
        }
        self.ready.set(true);
    }
}

impl Drop for AlternateStack {
    fn drop(&mut self) {
        let base = self.base.get();
        if base.is_null() {
            return;
        }
        // SAFETY: the stack is disabled before its memory goes, unless someone has replaced it meanwhile.
        unsafe {
            let mut stack: libc::stack_t = std::mem::zeroed();
            libc::sigaltstack(ptr::null(), &mut stack);
            if stack.ss_sp == base {
                stack.ss_flags = libc::SS_DISABLE;
                libc::sigaltstack(&stack, ptr::null_mut());
            }
            libc::munmap(base, ALTERNATE_STACK_SIZE);
        }
    }
}
