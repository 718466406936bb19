//! Host memory that devices can reach: allocated pinned, or pageable memory of the program that it registers.
//!
//! Device and host address are the same. Unregistered host memory is not kept from kernels.

use super::map::{self, Area, PAGE};
use super::{Origin, Range};
use crate::context;
use crate::error::{
    HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, OUT_OF_MEMORY, Result,
};
use crate::stream::{self, capture};
use crate::types::{CUdeviceptr, Out};

const ALLOC_FLAGS: u32 = 1 | 2 | 4;
const REGISTER_FLAGS: u32 = 1 | 2 | 4 | READ_ONLY;
const READ_ONLY: u32 = 8;
const DEVICEMAP: u32 = 2;

/// Memory from cuMemHostAlloc.
pub struct Pinned {
    _area: Area,
}

fn allocate(out: Out<usize>, size: usize, flags: u32) -> Result {
    out.check()?;
    let context = context::current()?;
    capture::forbid_unsafe()?;
    if flags & !ALLOC_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    if size == 0 {
        return out.set(0);
    }
    let len = (size as u64).checked_next_multiple_of(PAGE).ok_or(OUT_OF_MEMORY)?;
    let area = Area::reserve(len, PAGE, 0)?;
    map::protect(area.start, len, libc::PROT_READ | libc::PROT_WRITE)?;
    let start = area.start;
    super::insert(Range {
        start,
        size: size as u64,
        origin: Origin::Host(Pinned { _area: area }),
        device: Some(context.device),
        context: Some(context),
        id: super::next_id(),
        // With unified addressing all pinned memory is mapped and portable.
        host_flags: flags | DEVICEMAP,
    })?;
    out.set(start as usize)
}

/// Whether the program has memory at all of these addresses that can be read, and written if that is wanted.
fn is_mapped(start: u64, end: u64, writable: bool) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
    let areas = maps.lines().filter_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let open = rest.starts_with('r') && (!writable || rest.as_bytes().get(1) == Some(&b'w'));
        Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?, open))
    });
    let mut at = start;
    for (from, to, open) in areas {
        if at >= end || from > at {
            break;
        }
        if to > at {
            if !open {
                return false;
            }
            at = to;
        }
    }
    at >= end
}

cu! {
    fn cuMemHostAlloc(out: Out<usize>, size: usize, flags: u32) {
        allocate(out, size, flags)
    }

    fn cuMemAllocHost_v2(out: Out<usize>, size: usize) {
        allocate(out, size, 0)
    }

    fn cuMemFreeHost(p: usize) {
        let context = context::current()?;
        capture::forbid_unsafe()?;
        if p == 0 {
            return Ok(());
        }
        let range = super::find(p as u64).filter(|range| range.start == p as u64).ok_or(INVALID_VALUE)?;
        if !matches!(range.origin, Origin::Host(_)) {
            return Err(INVALID_VALUE);
        }
        stream::synchronize_device(range.device.unwrap_or(context.device));
        drop(range);
        super::remove(p as u64, |_| true).ok_or(INVALID_VALUE)?;
        Ok(())
    }

    fn cuMemHostRegister_v2(p: usize, size: usize, flags: u32) {
        let context = context::current()?;
        capture::forbid_unsafe()?;
        let start = p as u64;
        let end = start.checked_add(size as u64).ok_or(INVALID_VALUE)?;
        let writable = flags & READ_ONLY == 0;
        if p == 0 || size == 0 || flags & !REGISTER_FLAGS != 0 || !is_mapped(start, end, writable) {
            return Err(INVALID_VALUE);
        }
        if super::find(p as u64).is_some_and(|range| matches!(range.origin, Origin::Host(_))) {
            return Err(INVALID_VALUE);
        }
        super::insert(Range {
            start,
            size: size as u64,
            origin: Origin::Registered,
            device: Some(context.device),
            context: Some(context),
            id: super::next_id(),
            host_flags: flags | DEVICEMAP,
        })
        .map(|_| ())
        .map_err(|_| HOST_MEMORY_ALREADY_REGISTERED)
    }

    fn cuMemHostUnregister(p: usize) {
        let context = context::current()?;
        capture::forbid_unsafe()?;
        let registered = |range: &Range| matches!(range.origin, Origin::Registered);
        let known = super::find(p as u64);
        if p == 0 || known.as_ref().is_some_and(|range| range.start != p as u64 || !registered(range)) {
            return Err(INVALID_VALUE);
        }
        drop(known.ok_or(HOST_MEMORY_NOT_REGISTERED)?);
        stream::synchronize_device(context.device);
        super::remove(p as u64, registered).ok_or(HOST_MEMORY_NOT_REGISTERED)?;
        Ok(())
    }

    fn cuMemHostGetDevicePointer_v2(out: Out<CUdeviceptr>, p: usize, flags: u32) {
        context::current()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        super::find(p as u64).filter(|range| range.is_host()).ok_or(INVALID_VALUE)?;
        out.set(p as u64)
    }

    fn cuMemHostGetFlags(out: Out<u32>, p: usize) {
        context::current()?;
        out.set(super::find(p as u64).filter(|range| range.is_host()).ok_or(INVALID_VALUE)?.host_flags)
    }
}
