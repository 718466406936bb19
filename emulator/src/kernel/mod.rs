//! The kernel runtime: runs the kernels of `kernels/kernels.cu`, compiled by g++, on CPU threads.
//!
//! A launch runs every block of its grid at the same time, each on an OS thread of its own, because blocks of
//! different ranks wait for one another. The threads of a block are fibers of its OS thread. A bad memory access or a
//! barrier that can never complete ends the launch with a [`KernelFault`]; it never ends the process or hangs it.
//! The functions that kernels call are declared in `kernels/emulator.h` and defined in [`abi`].
//!
//! Settings, read once per process: `OXCCL_EMU_THREADS` (threads per block: a number, or `launch` for what the launch
//! asked for; 1 by default), `OXCCL_EMU_SEED` (order of fibers and of delayed stores), `OXCCL_EMU_WEAK=1` (delay
//! stores as the GPU's memory model allows).

mod abi;
mod block;
mod context;
mod fault;
mod launch;
mod memory;
#[cfg(test)]
mod tests;

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// One kernel that this library holds.
pub struct KernelInfo {
    /// What `cuModuleGetFunction` is asked for.
    pub name: &'static str,
    /// Bytes of the single parameter.
    pub arg_size: u32,
    /// Bytes of static shared memory per block.
    pub shared_size: u32,
    /// The kernel's launch bound.
    pub max_threads: u32,
    /// Runs one thread of one block.
    pub entry: unsafe extern "C" fn(*const c_void),
}

/// Why a launch ended early. The driver turns it into the sticky error of the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelFault {
    /// A thread accessed this address, where nothing is mapped for it.
    IllegalAddress(usize),
    /// A thread executed a trap, or a barrier could never complete.
    Trap,
}

/// Finds a kernel by the name that its image exports.
pub fn find(name: &str) -> Option<&'static KernelInfo> {
    table().iter().find(|kernel| kernel.name == name)
}

/// Runs a whole grid to its end, or to its first fault, on the calling thread and as many others as it needs.
///
/// `arg` is the launch's own copy of the parameter, `info.arg_size` bytes; `block` is what the launch asked for, which
/// the kernel sees only with `OXCCL_EMU_THREADS=launch`.
pub fn run(info: &'static KernelInfo, grid: u32, block: u32, arg: &[u8]) -> Result<(), KernelFault> {
    launch::run(Config::of_process(), info, grid, block, arg)
}

/// How launches run. Tests make their own; everything else uses the process's.
#[derive(Clone, Copy)]
struct Config {
    threads: Threads,
    seed: u64,
    weak_memory: bool,
}

#[derive(Clone, Copy)]
enum Threads {
    Fixed(u32),
    AsLaunched,
}

impl Config {
    fn of_process() -> &'static Self {
        static CONFIG: OnceLock<Config> = OnceLock::new();
        CONFIG.get_or_init(|| {
            let threads = match std::env::var("OXCCL_EMU_THREADS").as_deref() {
                Err(_) | Ok("") => Threads::Fixed(1),
                Ok("launch") => Threads::AsLaunched,
                Ok(text) => match text.parse() {
                    Ok(count @ 1..=1024) => Threads::Fixed(count),
                    _ => {
                        log(&format!("OXCCL_EMU_THREADS={text}: expected 1 to 1024 or `launch`, using 1"));
                        Threads::Fixed(1)
                    }
                },
            };
            let seed = match std::env::var("OXCCL_EMU_SEED").as_deref() {
                Err(_) | Ok("") => 0,
                Ok(text) => text.parse().unwrap_or_else(|_| {
                    log(&format!("OXCCL_EMU_SEED={text}: expected a number, using 0"));
                    0
                }),
            };
            let weak_memory = std::env::var_os("OXCCL_EMU_WEAK").is_some_and(|value| value == "1");
            // Relaxed: kernels read it after they were started, which orders it.
            abi::emu_weak_memory.store(u32::from(weak_memory), Ordering::Relaxed);
            Config { threads, seed, weak_memory }
        })
    }

    fn threads(&self, info: &KernelInfo, asked: u32) -> u32 {
        let wanted = match self.threads {
            Threads::Fixed(count) => count,
            Threads::AsLaunched => asked,
        };
        wanted.clamp(1, info.max_threads.max(1))
    }
}

/// `struct EmuKernel` of `kernels/emulator.h`.
#[repr(C)]
struct Row {
    name: *const c_char,
    entry: unsafe extern "C" fn(*const c_void),
    arg_size: u32,
    shared_size: u32,
    max_threads: u32,
}

unsafe extern "C" {
    #[cfg(not(no_project_kernels))]
    static emu_kernels: Row;
    #[cfg(not(no_project_kernels))]
    static emu_kernel_count: u32;
    static emu_probe_kernels: Row;
    static emu_probe_kernel_count: u32;
}

fn table() -> &'static [KernelInfo] {
    static TABLE: OnceLock<Vec<KernelInfo>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut kernels = Vec::new();
        // SAFETY: the C++ side defines both symbols as the header declares them, and never changes them.
        #[cfg(not(no_project_kernels))]
        unsafe {
            append(&mut kernels, &raw const emu_kernels, emu_kernel_count);
        }
        // SAFETY: as above, for the probe kernels.
        unsafe { append(&mut kernels, &raw const emu_probe_kernels, emu_probe_kernel_count) };
        kernels
    })
}

/// # Safety
/// `first` is the first of `count` rows that live for ever and hold valid names.
unsafe fn append(kernels: &mut Vec<KernelInfo>, first: *const Row, count: u32) {
    // SAFETY: the caller vouches for the table.
    let rows = unsafe { std::slice::from_raw_parts(first, count as usize) };
    kernels.extend(rows.iter().map(|row| KernelInfo {
        // SAFETY: the caller vouches for the names.
        name: unsafe { CStr::from_ptr(row.name) }.to_str().expect("kernel names are ASCII"),
        arg_size: row.arg_size,
        shared_size: row.shared_size,
        max_threads: row.max_threads,
        entry: row.entry,
    }));
}

/// Notes in the log what no error code can tell: which kernel failed, where, and why.
fn log(message: &str) {
    crate::config::log(message);
}
