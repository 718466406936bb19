//! Execution contexts: how a block switches between its fibers, and how a fault leaves the kernel it happened in.
//!
//! A context is a stack pointer below which the callee-saved registers lie. Every context that is not running was left
//! by [`switch`] or [`enter`], so that [`resume`] continues either. Frames that are left for good are those of kernels
//! and of the functions of `abi.rs`, which own nothing that would need to be dropped. Floating-point control words are
//! not switched: kernels do not change them.

use std::ffi::c_void;
use std::ptr;

use parking_lot::Mutex;

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("the emulated driver runs on x86-64 Linux: its kernel runtime switches stacks in assembly");

pub(super) type Context = *mut u8;

/// Bytes of a fiber's stack. Kernels have no stack frame worth the name on a GPU.
const STACK_SIZE: usize = 64 << 10;
const PAGE: usize = 4096;

unsafe extern "C" {
    /// Leaves the running context in `*from` and continues `to`. Returns what `resume` was given, 0 after a `switch`.
    #[link_name = "oxccl_emu_switch"]
    pub(super) fn switch(from: *mut Context, to: Context) -> usize;

    /// Calls `body(data)` on the running stack and returns 0, or what `resume(*point, value)` was given meanwhile.
    #[link_name = "oxccl_emu_enter"]
    pub(super) fn enter(point: *mut Context, body: extern "C" fn(*mut c_void), data: *mut c_void) -> usize;

    /// Continues `to` and gives it `value`; the running context is lost.
    #[link_name = "oxccl_emu_resume"]
    pub(super) fn resume(to: Context, value: usize) -> !;

    #[link_name = "oxccl_emu_start"]
    fn start();
}

// System V: rbx, rbp and r12 to r15 belong to the caller; everything else the compiler has already given up at a call.
std::arch::global_asm!(
    ".text",
    ".p2align 4",
    ".hidden oxccl_emu_switch",
    ".globl oxccl_emu_switch",
    ".type oxccl_emu_switch,@function",
    "oxccl_emu_switch:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov [rdi], rsp",
    "mov rdi, rsi",
    "xor esi, esi",
    // Falls through: the rest of a switch is a resume with 0.
    ".hidden oxccl_emu_resume",
    ".globl oxccl_emu_resume",
    ".type oxccl_emu_resume,@function",
    "oxccl_emu_resume:",
    "mov rsp, rdi",
    "mov rax, rsi",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".size oxccl_emu_switch, . - oxccl_emu_switch",
    ".p2align 4",
    ".hidden oxccl_emu_enter",
    ".globl oxccl_emu_enter",
    ".type oxccl_emu_enter,@function",
    "oxccl_emu_enter:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov [rdi], rsp",
    "mov rdi, rdx",
    "sub rsp, 8",
    "call rsi",
    "add rsp, 8",
    "xor eax, eax",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".size oxccl_emu_enter, . - oxccl_emu_enter",
    // First instructions of a fiber: the body and its data came in callee-saved registers. The body never returns.
    ".p2align 4",
    ".hidden oxccl_emu_start",
    ".globl oxccl_emu_start",
    ".type oxccl_emu_start,@function",
    "oxccl_emu_start:",
    "mov rdi, r12",
    "call rbx",
    "ud2",
    ".size oxccl_emu_start, . - oxccl_emu_start",
);

/// A mapped stack with a page below it that no access survives.
pub(super) struct Stack {
    base: *mut c_void,
}

// SAFETY: a stack is plain memory; who holds it may run on it.
unsafe impl Send for Stack {}

/// Stacks that no block uses. It never shrinks: its size is that of the largest set of blocks that ran at once.
static SPARE: Mutex<Vec<Stack>> = Mutex::new(Vec::new());

impl Stack {
    /// Adds `count` stacks to `stacks`, or says why the system refused.
    pub(super) fn take(count: usize, stacks: &mut Vec<Stack>) -> std::io::Result<()> {
        let mut spare = SPARE.lock();
        let reused = spare.len().saturating_sub(count);
        stacks.extend(spare.drain(reused..));
        drop(spare);
        while stacks.len() < count {
            stacks.push(Stack::map()?);
        }
        Ok(())
    }

    pub(super) fn give_back(stacks: &mut Vec<Stack>) {
        SPARE.lock().append(stacks);
    }

    fn map() -> std::io::Result<Stack> {
        // SAFETY: a fresh anonymous mapping touches no memory that exists.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                PAGE + STACK_SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let stack = Stack { base };
        // SAFETY: the page belongs to the mapping made above.
        if unsafe { libc::mprotect(base, PAGE, libc::PROT_NONE) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(stack)
    }

    /// A context on this stack that calls `body(data)` when it is first switched to.
    pub(super) fn prepare(&self, body: extern "C" fn(*mut c_void), data: *mut c_void) -> Context {
        // What `resume` pops, lowest address first: r15, r14, r13, r12, rbx, rbp, return address; then two words, so
        // that the stack is 16-byte aligned when `start` makes its call.
        let frame: [usize; 9] =
            [0, 0, 0, data as usize, body as *const () as usize, 0, start as *const () as usize, 0, 0];
        // SAFETY: the frame lies inside the mapping, at its upper end, and nothing else uses the stack.
        unsafe {
            let context = self.base.cast::<u8>().add(PAGE + STACK_SIZE - size_of_val(&frame));
            context.cast::<[usize; 9]>().write(frame);
            context
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own and nothing runs on it any more.
        unsafe { libc::munmap(self.base, PAGE + STACK_SIZE) };
    }
}
