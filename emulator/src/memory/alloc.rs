//! cuMemAlloc and its kin: memory of one device, cut from a file of that device.
//!
//! The file belongs to this process and grows sparsely; other processes reach a piece of it by legacy IPC. An
//! allocation ends at the end of a page, up to its 512-byte alignment, so that running over its end faults.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::map::{self, Area, PAGE};
use super::{Origin, Range};
use crate::config;
use crate::context::{self, Context};
use crate::device::{self, Device};
use crate::error::{INVALID_VALUE, OUT_OF_MEMORY, Result};
use crate::stream;
use crate::stream::capture;
use crate::types::{CUdeviceptr, Out};

/// Allocations start at multiples of this.
const ALIGNMENT: u64 = 512;
/// Bytes of a label. A page that is never written takes no memory.
pub const LABEL: u64 = PAGE;

/// A piece of a device's file, mapped. The page before it in the file is the label of what was exported by legacy IPC.
pub struct DeviceMemory {
    area: Option<Area>,
    device: &'static Device,
    /// Where the memory begins in the file, behind the label.
    pub file_offset: u64,
    file_len: u64,
    /// Whether transfers of this memory are to be synchronous (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`).
    pub sync_memops: AtomicU64,
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.area = None;
        if let Ok(arena) = arena(self.device) {
            map::punch(arena.file.as_raw_fd(), self.file_offset - LABEL, LABEL + self.file_len);
        }
        self.device.give_back(self.file_len);
    }
}

struct Arena {
    file: OwnedFd,
    size: Mutex<u64>,
}

fn arena(device: &'static Device) -> Result<&'static Arena> {
    static ARENAS: [OnceLock<Option<Arena>>; 64] = [const { OnceLock::new() }; 64];
    let make = || {
        let file = map::memfd(c"oxccl-emu-gpu", 0).ok()?;
        Some(Arena { file, size: Mutex::new(0) })
    };
    ARENAS.get(device.physical as usize).and_then(|slot| slot.get_or_init(make).as_ref()).ok_or(OUT_OF_MEMORY)
}

/// The descriptor of the file that a device's memory is cut from.
pub fn arena_fd(device: &'static Device) -> Result<RawFd> {
    Ok(arena(device)?.file.as_raw_fd())
}

fn make(device: &'static Device, size: u64) -> Result<(u64, DeviceMemory)> {
    let rounded = size.checked_next_multiple_of(ALIGNMENT).ok_or(OUT_OF_MEMORY)?;
    let len = rounded.checked_next_multiple_of(PAGE).ok_or(OUT_OF_MEMORY)?;
    device.take(len)?;
    let arena = arena(device)?;
    let file_offset = {
        let mut end = arena.size.lock();
        let offset = *end;
        map::resize(&arena.file, offset + LABEL + len)?;
        *end += LABEL + len;
        offset + LABEL
    };
    // From here on `Drop` undoes what was done.
    let mut memory =
        DeviceMemory { area: None, device, file_offset, file_len: len, sync_memops: AtomicU64::new(0) };
    let area = Area::reserve(len, PAGE, 0)?;
    area.place(0, len, arena.file.as_raw_fd(), file_offset, libc::PROT_READ | libc::PROT_WRITE)?;
    let start = area.start + (len - rounded);
    memory.area = Some(area);
    poison(start, size);
    Ok((start, memory))
}

/// Fills fresh memory with a pattern, if that was asked for: a GPU's is not zero either.
pub fn poison(start: u64, size: u64) {
    if let Some(byte) = config::get().poison {
        // SAFETY: the range was just mapped for writing and nobody else knows it.
        unsafe { std::ptr::write_bytes(start as *mut u8, byte, size as usize) };
    }
}

/// Allocates memory of a context's device.
pub fn allocate(
    context: &'static Context,
    size: usize,
    wrap: impl FnOnce(DeviceMemory) -> Origin,
) -> Result<u64> {
    if size == 0 {
        return Err(INVALID_VALUE);
    }
    let size = size as u64;
    let (start, memory) = make(context.device, size)?;
    super::insert(Range {
        start,
        size,
        origin: wrap(memory),
        device: Some(context.device),
        context: Some(context),
        id: super::next_id(),
        host_flags: 0,
    })?;
    Ok(start)
}

fn is_ours(range: &Range) -> bool {
    matches!(range.origin, Origin::Device(_) | Origin::Managed(_) | Origin::Pool(..))
}

/// Takes an allocation away without waiting for anything.
pub fn free_now(address: u64) {
    drop(super::remove(address, is_ours));
}

cu! {
    fn cuMemAlloc_v2(out: Out<CUdeviceptr>, size: usize) {
        out.check()?;
        let context = context::current()?;
        capture::forbid_unsafe()?;
        out.set(allocate(context, size, Origin::Device)?)
    }

    fn cuMemAllocManaged(out: Out<CUdeviceptr>, size: usize, flags: u32) {
        out.check()?;
        let context = context::current()?;
        capture::forbid_unsafe()?;
        if !(flags == 1 || flags == 2) {
            return Err(INVALID_VALUE);
        }
        out.set(allocate(context, size, Origin::Managed)?)
    }

    fn cuMemAllocPitch_v2(out: Out<CUdeviceptr>, pitch: Out<usize>, width: usize, height: usize, element: u32) {
        out.check()?;
        let context = context::current()?;
        capture::forbid_unsafe()?;
        if !matches!(element, 4 | 8 | 16) {
            return Err(INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(ALIGNMENT as usize).ok_or(INVALID_VALUE)?;
        let size = row.checked_mul(height).ok_or(INVALID_VALUE)?;
        pitch.set(row)?;
        out.set(allocate(context, size, Origin::Device)?)
    }

    fn cuMemFree_v2(ptr: CUdeviceptr) {
        capture::forbid_unsafe()?;
        if ptr == 0 {
            return Ok(());
        }
        let range = super::find(ptr).filter(|range| range.start == ptr && is_ours(range)).ok_or(INVALID_VALUE)?;
        if let Some(context) = range.context {
            context.check()?;
        }
        if let Some(device) = range.device {
            // As on a GPU: memory goes only when the device has nothing to do.
            stream::synchronize_device(device);
        }
        drop(range);
        super::remove(ptr, is_ours).ok_or(INVALID_VALUE)?;
        Ok(())
    }

    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let device = context::current()?.device;
        free.set_opt((device.total() - device.used()) as usize);
        total.set_opt(device.total() as usize);
        Ok(())
    }

    fn cuMemGetAddressRange_v2(base: Out<CUdeviceptr>, size: Out<usize>, ptr: CUdeviceptr) {
        context::current()?;
        let range = super::find(ptr).ok_or(crate::error::NOT_FOUND)?;
        base.set_opt(range.start);
        size.set_opt(range.size as usize);
        Ok(())
    }

    fn cuMemAdvise(ptr: CUdeviceptr, count: usize, advice: u32, device: i32) {
        let _ = (advice, device);
        super::check_device(ptr, count as u64)
    }

    fn cuMemPrefetchAsync / cuMemPrefetchAsync_ptsz (ptr: CUdeviceptr, count: usize, device: i32, stream: usize) {
        if device != -1 {
            device::get(device)?;
        }
        super::check_device(ptr, count as u64)?;
        stream::get(stream)?.submit(crate::work::Work::Empty).map(|_| ())
    }
}

/// Reads and sets the flag of an allocation.
pub fn sync_memops(range: &Range) -> Option<&AtomicU64> {
    match &range.origin {
        Origin::Device(memory) | Origin::Managed(memory) | Origin::Pool(memory, _) => {
            Some(&memory.sync_memops)
        }
        _ => None,
    }
}

/// Whether transfers of the memory at an address are to be synchronous.
pub fn is_synchronous(address: u64) -> bool {
    // Relaxed: a setting.
    super::find(address)
        .is_some_and(|r| sync_memops(&r).is_some_and(|flag| flag.load(Ordering::Relaxed) != 0))
}
