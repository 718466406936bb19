//! Memory pools and stream-ordered allocation, in their simple form.
//!
//! Memory is there as soon as cuMemAllocAsync returns and goes when the stream reaches cuMemFreeAsync. Pools are names:
//! they keep no memory, their attributes can be set and read, and every peer can use what comes from them. Captured,
//! the two calls become nodes, and the memory is there from the capture to the end of the graph and its copies.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Origin, alloc};
use crate::config;
use crate::device;
use crate::error::{INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::stream::{self, Placement, capture};
use crate::types::{CUdevice, CUdeviceptr, CUmemAccessDesc, CUmemLocation, CUmemoryPool, CUstream, In, Out};
use crate::work::{GraphMemory, MemoryNode, Work};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUmemPoolProps {
    pub kind: u32,
    pub handle_types: u32,
    pub location: CUmemLocation,
    pub security: usize,
    pub max_size: usize,
    pub reserved: [u8; 56],
}

struct Pool {
    device: CUdevice,
    default: bool,
    attributes: BTreeMap<u32, u64>,
}

static POOLS: Mutex<BTreeMap<CUmemoryPool, Pool>> = Mutex::new(BTreeMap::new());
/// The pool that each device allocates from.
static CURRENT: Mutex<BTreeMap<CUdevice, CUmemoryPool>> = Mutex::new(BTreeMap::new());

/// Reuse policies are on at first; the attributes from 5 on are counts that the driver keeps.
const ATTRIBUTE_END: u32 = 9;
const RELEASE_THRESHOLD: u32 = 4;

fn supported() -> Result {
    if config::get().without.pools { Err(NOT_SUPPORTED) } else { Ok(()) }
}

fn default_pool(dev: CUdevice) -> Result<CUmemoryPool> {
    supported()?;
    let device = device::get(dev)?.ordinal;
    let mut pools = POOLS.lock();
    if let Some((handle, _)) = pools.iter().find(|(_, pool)| pool.default && pool.device == device) {
        return Ok(*handle);
    }
    let handle = crate::handle::next();
    pools.insert(handle, Pool { device, default: true, attributes: BTreeMap::new() });
    Ok(handle)
}

fn current_pool(dev: CUdevice) -> Result<CUmemoryPool> {
    let set = CURRENT.lock().get(&dev).copied();
    set.map_or_else(|| default_pool(dev), Ok)
}

fn with<R>(pool: CUmemoryPool, act: impl FnOnce(&mut Pool) -> Result<R>) -> Result<R> {
    act(POOLS.lock().get_mut(&pool).ok_or(INVALID_HANDLE)?)
}

fn allocate(out: Out<CUdeviceptr>, size: usize, pool: Option<CUmemoryPool>, stream: CUstream) -> Result {
    supported()?;
    out.check()?;
    let stream = stream::get(stream)?;
    if stream.state.lock().capture.is_none() {
        capture::forbid_unsafe()?;
    }
    if size == 0 {
        return out.set(0);
    }
    let pool = match pool {
        Some(pool) => pool,
        None => current_pool(stream.context.device.ordinal)?,
    };
    let device = with(pool, |pool| Ok(pool.device))?;
    if device != stream.context.device.ordinal {
        return Err(INVALID_VALUE);
    }
    let address = alloc::allocate(stream.context, size, |memory| Origin::Pool(memory, pool))?;
    let queued = stream.submit_with(|state| match &mut state.capture {
        Some(capture) => {
            capture.add(Work::Memory(Arc::new(GraphMemory { address }), MemoryNode::Alloc))?;
            Ok(Placement::Captured)
        }
        None => Ok(Placement::Queue(Work::Empty, Vec::new())),
    });
    queued.inspect_err(|_| alloc::free_now(address))?;
    out.set(address)
}

cu! {
    fn cuDeviceGetDefaultMemPool(out: Out<CUmemoryPool>, dev: CUdevice) {
        out.set(default_pool(dev)?)
    }

    fn cuDeviceGetMemPool(out: Out<CUmemoryPool>, dev: CUdevice) {
        device::get(dev)?;
        out.set(current_pool(dev)?)
    }

    fn cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool) {
        device::get(dev)?;
        if with(pool, |pool| Ok(pool.device))? != dev {
            return Err(INVALID_VALUE);
        }
        CURRENT.lock().insert(dev, pool);
        Ok(())
    }

    fn cuMemPoolCreate(out: Out<CUmemoryPool>, props: In<CUmemPoolProps>) {
        supported()?;
        out.check()?;
        let props = props.get()?;
        if props.kind != 1 || props.handle_types != 0 {
            return Err(NOT_SUPPORTED);
        }
        let device = device::from_location(props.location.kind, props.location.id)?.ordinal;
        let handle = crate::handle::next();
        POOLS.lock().insert(handle, Pool { device, default: false, attributes: BTreeMap::new() });
        out.set(handle)
    }

    fn cuMemPoolDestroy(pool: CUmemoryPool) {
        if with(pool, |pool| Ok(pool.default))? {
            return Err(INVALID_VALUE);
        }
        CURRENT.lock().retain(|_, current| *current != pool);
        POOLS.lock().remove(&pool);
        Ok(())
    }

    fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) {
        let _ = keep;
        with(pool, |_| Ok(()))
    }

    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: u32, value: In<u64>) {
        with(pool, |pool| {
            let value = match attribute {
                1..RELEASE_THRESHOLD => u64::from(In::new(value.raw().cast::<u32>()).get()?),
                RELEASE_THRESHOLD..ATTRIBUTE_END => value.get()?,
                _ => return Err(INVALID_VALUE),
            };
            pool.attributes.insert(attribute, value);
            Ok(())
        })
    }

    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: u32, value: Out<u64>) {
        with(pool, |pool| {
            let known = pool.attributes.get(&attribute).copied();
            match attribute {
                1..RELEASE_THRESHOLD => Out::new(value.raw().cast::<u32>()).set(known.unwrap_or(1) as u32),
                RELEASE_THRESHOLD..ATTRIBUTE_END => value.set(known.unwrap_or(0)),
                _ => Err(INVALID_VALUE),
            }
        })
    }

    fn cuMemPoolSetAccess(pool: CUmemoryPool, desc: In<CUmemAccessDesc>, count: usize) {
        let owner = device::get(with(pool, |pool| Ok(pool.device))?)?;
        for desc in desc.array(count)? {
            let device = device::from_location(desc.location.kind, desc.location.id)?;
            if device.physical != owner.physical && !device.can_access(owner) {
                return Err(crate::error::INVALID_DEVICE);
            }
        }
        Ok(())
    }

    fn cuMemPoolGetAccess(flags: Out<u32>, pool: CUmemoryPool, location: In<CUmemLocation>) {
        let owner = device::get(with(pool, |pool| Ok(pool.device))?)?;
        let location = location.get()?;
        let device = device::from_location(location.kind, location.id)?;
        flags.set(if device.physical == owner.physical || device.can_access(owner) { 3 } else { 0 })
    }

    fn cuMemAllocAsync / cuMemAllocAsync_ptsz (out: Out<CUdeviceptr>, size: usize, stream: CUstream) {
        allocate(out, size, None, stream)
    }

    fn cuMemAllocFromPoolAsync / cuMemAllocFromPoolAsync_ptsz (
        out: Out<CUdeviceptr>, size: usize, pool: CUmemoryPool, stream: CUstream,
    ) {
        allocate(out, size, Some(pool), stream)
    }

    fn cuMemFreeAsync / cuMemFreeAsync_ptsz (ptr: CUdeviceptr, stream: CUstream) {
        supported()?;
        if ptr == 0 {
            return Ok(());
        }
        let range = super::find(ptr).filter(|range| range.start == ptr).ok_or(INVALID_VALUE)?;
        if !matches!(range.origin, Origin::Device(_) | Origin::Managed(_) | Origin::Pool(..)) {
            return Err(INVALID_VALUE);
        }
        let place = |state: &mut stream::State| match &mut state.capture {
            // Only memory of the same graph can be freed by it.
            Some(capture) => {
                let memory = capture.graph().memory_at(ptr).ok_or(INVALID_VALUE)?;
                capture.add(Work::Memory(memory, MemoryNode::Free))?;
                Ok(Placement::Captured)
            }
            None => Ok(Placement::Queue(Work::Free(ptr), Vec::new())),
        };
        stream::get(stream)?.submit_with(place).map(|_| ())
    }
}
