//! Pointer attributes: what the driver knows about an address.
//!
//! For an address that it does not know, the single query fails, while the query of several succeeds with zeros, but for
//! the range, as on the real driver. Neither needs a context.

use std::sync::atomic::Ordering;

use super::alloc;
use super::map::PAGE;
use super::{Origin, Range};
use crate::config;
use crate::error::{INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::stream::capture;
use crate::types::{CUdeviceptr, CUmemLocation, In, Out};

const MEMORY_TYPE_HOST: u64 = 1;
const MEMORY_TYPE_DEVICE: u64 = 2;
const DEVICE_ORDINAL: u32 = 9;
const P2P_TOKENS: u32 = 5;
const SYNC_MEMOPS: u32 = 6;
const RANGE_START: u32 = 11;
const RANGE_SIZE: u32 = 12;

/// Bytes that an attribute's value takes.
fn width(attribute: u32) -> Result<usize> {
    Ok(match attribute {
        // Context, device and host pointer, buffer id, start, size, handle types, pool, mapping size and base, block id.
        1 | 3 | 4 | 7 | 11 | 12 | 14 | 17..=20 => 8,
        // The C type of booleans is `unsigned int`, except for the two that are `bool`.
        10 | 13 => 1,
        2 | 6 | 8 | 9 | 15 | 16 => 4,
        P2P_TOKENS => 16,
        _ => return Err(INVALID_VALUE),
    })
}

fn write(out: usize, attribute: u32, value: u64) -> Result {
    match width(attribute)? {
        8 => Out::new(out as *mut u64).set(value),
        4 => Out::new(out as *mut u32).set(value as u32),
        1 => Out::new(out as *mut u8).set(value as u8),
        _ => Err(NOT_SUPPORTED),
    }
}

fn value(range: &Range, address: CUdeviceptr, attribute: u32) -> Result<u64> {
    let vmm = match &range.origin {
        Origin::Mapped(mapped) => Some(&mapped.allocation),
        _ => None,
    };
    // Of virtual memory the range is the whole reservation, of which only the mapping is sure to be there.
    let reservation = vmm.and_then(|_| super::vmm::reservation(range.start));
    let pooled = matches!(range.origin, Origin::Pool(..));
    Ok(match attribute {
        // Memory of a pool belongs to the device.
        1 if pooled => 0,
        1 => range.context.map_or(0, |context| context.handle as u64),
        2 if range.is_host() => MEMORY_TYPE_HOST,
        2 => MEMORY_TYPE_DEVICE,
        3 if access(range) == 0 => return Err(INVALID_VALUE),
        3 => address,
        4 if range.is_host() || matches!(range.origin, Origin::Managed(_)) => address,
        4 => return Err(INVALID_VALUE),
        6 if matches!(range.origin, Origin::Managed(_)) => 1,
        6 => alloc::sync_memops(range).map_or(0, |flag| flag.load(Ordering::Relaxed)),
        7 => range.id,
        8 => u64::from(matches!(range.origin, Origin::Managed(_))),
        DEVICE_ORDINAL => range.device.map_or(-1i64, |device| i64::from(device.ordinal)) as u64,
        10 => u64::from(matches!(range.origin, Origin::Device(_)) && !config::get().without.ipc),
        11 => reservation.map_or(range.start, |(start, _)| start),
        12 => reservation.map_or(range.size, |(_, size)| size),
        18 => mapping(range).1,
        19 => mapping(range).0,
        13 => 1,
        14 => vmm.map_or(0, |allocation| u64::from(allocation.prop.requested_handle_types)),
        15 => 0,
        16 => u64::from(access(range)),
        17 => match range.origin {
            Origin::Pool(_, pool) => pool as u64,
            _ => 0,
        },
        20 => range.id,
        _ => return Err(INVALID_VALUE),
    })
}

/// How the device that the memory is of may access it: 0 not at all, 1 for reading, 3 for writing too.
fn access(range: &Range) -> u32 {
    match (&range.origin, range.device) {
        (Origin::Mapped(mapped), Some(device)) => {
            mapped.access_of(CUmemLocation { kind: 1, id: device.ordinal })
        }
        (Origin::Mapped(mapped), None) if !mapped.accessible() => 0,
        _ => 3,
    }
}

/// Start and size of the piece that the memory was cut from.
fn mapping(range: &Range) -> (u64, u64) {
    const PIECE: u64 = 2 << 20;
    const POOL_PIECE: u64 = 32 << 20;
    match &range.origin {
        Origin::Registered => {
            let start = range.start & !(PAGE - 1);
            (start, range.end().next_multiple_of(PAGE) - start)
        }
        Origin::Mapped(_) => (range.start, range.size),
        Origin::Pool(..) => (range.start, range.size.next_multiple_of(POOL_PIECE)),
        _ => (range.start, range.size.next_multiple_of(PIECE)),
    }
}

cu! {
    fn cuPointerGetAttribute(data: usize, attribute: u32, ptr: CUdeviceptr) {
        if data == 0 {
            return Err(INVALID_VALUE);
        }
        width(attribute)?;
        let range = super::find(ptr).ok_or(INVALID_VALUE)?;
        write(data, attribute, value(&range, ptr, attribute)?)
    }

    fn cuPointerGetAttributes(count: u32, attributes: In<u32>, data: In<usize>, ptr: CUdeviceptr) {
        if count == 0 {
            return Err(INVALID_VALUE);
        }
        let (attributes, data) = (attributes.array(count as usize)?, data.array(count as usize)?);
        let range = super::find(ptr);
        for (attribute, out) in attributes.into_iter().zip(data) {
            // Where an unknown range begins and ends is left as it was.
            let nothing = range.is_none() && matches!(attribute, RANGE_START | RANGE_SIZE);
            if width(attribute)? == 16 || nothing {
                continue;
            }
            let unknown = if attribute == DEVICE_ORDINAL { -2i64 as u64 } else { 0 };
            let value = range.as_ref().map_or(unknown, |range| value(range, ptr, attribute).unwrap_or(0));
            write(out, attribute, value)?;
        }
        Ok(())
    }

    fn cuPointerSetAttribute(data: In<u32>, attribute: u32, ptr: CUdeviceptr) {
        let wanted = data.get()?;
        capture::forbid_unsafe()?;
        let range = super::find(ptr).ok_or(INVALID_VALUE)?;
        if attribute != SYNC_MEMOPS {
            return Err(INVALID_VALUE);
        }
        let flag = alloc::sync_memops(&range).ok_or(INVALID_VALUE)?;
        flag.store(u64::from(wanted != 0), Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attribute_has_a_width() {
        for attribute in 1..=20 {
            assert!(width(attribute).is_ok(), "attribute {attribute}");
        }
        assert!(width(0).is_err() && width(21).is_err());
    }
}
