//! The functions that kernels call, as `kernels/emulator.h` declares them.
//!
//! Every one of them runs on the thread of a block, inside a kernel, and may be left through the fault handler or
//! [`super::context::resume`]: none holds a lock or owns memory across such a point.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::block::{self, Block};
use super::memory;

const ACQUIRE_RELEASE: u32 = 2;

/// Whether `kernels/device.h` has to route every store through [`emu_store`].
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub static emu_weak_memory: AtomicU32 = AtomicU32::new(0);

/// The block that called. A kernel cannot call without one.
fn caller() -> *mut Block {
    block::running()
}

#[unsafe(no_mangle)]
extern "C" fn emu_block_id() -> u32 {
    // SAFETY: see `caller`; the fields are plain data of this thread's block.
    unsafe { (*caller()).id }
}

#[unsafe(no_mangle)]
extern "C" fn emu_grid_size() -> u32 {
    // SAFETY: see `caller`; the grid outlives its blocks.
    unsafe { (*(*caller()).grid).blocks }
}

#[unsafe(no_mangle)]
extern "C" fn emu_thread_id() -> u32 {
    // SAFETY: see `emu_block_id`.
    unsafe { (*caller()).current }
}

#[unsafe(no_mangle)]
extern "C" fn emu_block_size() -> u32 {
    // SAFETY: see `emu_block_id`.
    unsafe { (*caller()).threads }
}

#[unsafe(no_mangle)]
extern "C" fn emu_shared() -> *mut c_void {
    // SAFETY: see `emu_block_id`.
    unsafe { (*caller()).shared.cast() }
}

#[unsafe(no_mangle)]
extern "C" fn emu_barrier(id: u32, count: u32) {
    // SAFETY: see `caller`.
    unsafe { block::barrier(caller(), id, count) };
}

#[unsafe(no_mangle)]
extern "C" fn emu_relax() {
    // SAFETY: see `caller`.
    unsafe { block::relax(caller()) };
}

/// # Safety
/// `value` holds `bytes` bytes, which is 1, 2, 4, 8 or 16. `p` is aligned to it; a bad `p` ends the block.
#[unsafe(no_mangle)]
unsafe extern "C" fn emu_store(p: *mut c_void, value: *const c_void, bytes: u32, order: u32) {
    let block = caller();
    // SAFETY: see `caller`; the rest is the kernel's word. References into the block end before the next access to it.
    unsafe {
        if order >= ACQUIRE_RELEASE {
            block::flush(block);
            memory::store(p.cast(), value.cast(), bytes as usize, Ordering::Release);
            return;
        }
        let block = &mut *block;
        match &mut block.buffers {
            Some(buffers) => {
                buffers.push(block.current, p.cast(), value.cast(), bytes as usize, &mut block.random);
            }
            None => memory::store(p.cast(), value.cast(), bytes as usize, Ordering::Relaxed),
        }
    }
}

/// # Safety
/// As [`emu_store`], with room for `bytes` bytes at `value`.
#[unsafe(no_mangle)]
unsafe extern "C" fn emu_load(p: *const c_void, value: *mut c_void, bytes: u32, order: u32) {
    let order = if order >= ACQUIRE_RELEASE { Ordering::Acquire } else { Ordering::Relaxed };
    // SAFETY: see `emu_store`.
    unsafe {
        memory::load(p.cast(), value.cast(), bytes as usize, order);
        let block = &*caller();
        if let Some(buffers) = &block.buffers {
            buffers.forward(block.current, p as usize, value.cast(), bytes as usize);
        }
    }
}

/// # Safety
/// `p` is aligned; a bad one ends the block.
#[unsafe(no_mangle)]
unsafe extern "C" fn emu_exchange(p: *mut u32, value: u32) -> u32 {
    // SAFETY: see `emu_store`.
    unsafe {
        let block = &mut *caller();
        if let Some(buffers) = &mut block.buffers {
            buffers.flush_range(block.current, p as usize, 4);
        }
        AtomicU32::from_ptr(p).swap(value, Ordering::Relaxed)
    }
}

/// # Safety
/// As [`emu_exchange`].
#[unsafe(no_mangle)]
unsafe extern "C" fn emu_compare_exchange(p: *mut u32, old: u32, value: u32) -> u32 {
    // SAFETY: see `emu_store`.
    unsafe {
        block::flush(caller());
        match AtomicU32::from_ptr(p).compare_exchange(old, value, Ordering::AcqRel, Ordering::Acquire) {
            Ok(found) | Err(found) => found,
        }
    }
}

/// # Safety
/// As [`emu_exchange`].
#[unsafe(no_mangle)]
unsafe extern "C" fn emu_add(p: *mut u32, value: u32) -> u32 {
    // SAFETY: see `emu_store`.
    unsafe {
        block::flush(caller());
        AtomicU32::from_ptr(p).fetch_add(value, Ordering::AcqRel)
    }
}

#[unsafe(no_mangle)]
extern "C" fn emu_fence() {
    // SAFETY: see `caller`.
    unsafe { block::flush(caller()) };
    // Sequentially consistent, like __threadfence_system: it also keeps a load behind an earlier store.
    fence(Ordering::SeqCst);
}

#[unsafe(no_mangle)]
extern "C" fn emu_timer() -> u64 {
    block::nanoseconds()
}
