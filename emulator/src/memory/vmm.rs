//! Virtual memory management: physical allocations, address reservations and mappings between them.
//!
//! A physical allocation is a memfd. Behind its memory lies one page that says what it is, which lets another process
//! that receives the descriptor import it. The file's size is sealed, so that no process can take pages away from
//! another. Access rights apply to the process, not to one device: the first location that is given access opens the
//! memory for all.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::map::{self, Area, PAGE};
use super::{Origin, Range};
use crate::config;
use crate::device::{self, Device};
use crate::error::{INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, Result, UNKNOWN};
use crate::handle::Registry;
use crate::types::{
    CUdeviceptr, CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation, CUuuid,
    In, Out,
};

pub const GRANULARITY: u64 = 2 << 20;
const PINNED: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub const POSIX_FD: u32 = 1;
const LOCATION_DEVICE: i32 = 1;
const MAGIC: [u8; 8] = *b"oxemuvmm";

/// Memory that exists as long as a handle, a mapping or an exported descriptor does.
pub struct Allocation {
    file: OwnedFd,
    pub size: u64,
    pub prop: CUmemAllocationProp,
    /// None for host memory.
    pub device: Option<&'static Device>,
    /// Bytes counted against the device: those of the process that made the allocation.
    counted: u64,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Some(device) = self.device {
            device.give_back(self.counted);
        }
    }
}

/// A mapping of an allocation at an address.
pub struct Mapped {
    pub allocation: Arc<Allocation>,
    handle: CUmemGenericAllocationHandle,
    access: Mutex<Vec<(CUmemLocation, u32)>>,
}

impl Mapped {
    pub fn accessible(&self) -> bool {
        self.access.lock().iter().any(|(_, flags)| *flags != 0)
    }

    pub fn accessible_from(&self, device: &Device) -> bool {
        self.access_of(CUmemLocation { kind: LOCATION_DEVICE, id: device.ordinal }) != 0
    }

    /// The access flags that a location was given.
    pub fn access_of(&self, location: CUmemLocation) -> u32 {
        self.access.lock().iter().find(|(known, _)| *known == location).map_or(0, |(_, flags)| *flags)
    }
}

struct Handle {
    allocation: Arc<Allocation>,
    /// Creations, imports and retains that were not released.
    count: AtomicUsize,
}

static HANDLES: Registry<Handle> = Registry::new();
static RESERVED: Mutex<BTreeMap<u64, (u64, Area)>> = Mutex::new(BTreeMap::new());

/// What the page behind the memory says.
#[repr(C)]
#[derive(Clone, Copy)]
struct Label {
    magic: [u8; 8],
    size: u64,
    uuid: CUuuid,
    prop: CUmemAllocationProp,
}

fn write_label(file: &OwnedFd, label: &Label) -> Result {
    // SAFETY: the structure is plain data without pointers, and lives through the call.
    let written = unsafe {
        let len = size_of::<Label>();
        libc::pwrite(file.as_raw_fd(), std::ptr::from_ref(label).cast(), len, label.size as libc::off_t)
    };
    if written != size_of::<Label>() as isize {
        return Err(OUT_OF_MEMORY);
    }
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: plain system call.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    Ok(())
}

fn read_label(file: &OwnedFd) -> Result<Label> {
    let (_, _, size) = map::identity(file.as_raw_fd())?;
    let offset = size.checked_sub(PAGE).ok_or(INVALID_VALUE)?;
    // SAFETY: all-zero bytes are a valid label, if not a meaningful one.
    let mut label: Label = unsafe { std::mem::zeroed() };
    // SAFETY: the buffer is a local of the stated size, for which any bytes are valid.
    let read = unsafe {
        let len = size_of::<Label>();
        libc::pread(file.as_raw_fd(), (&raw mut label).cast(), len, offset as libc::off_t)
    };
    let whole = read == size_of::<Label>() as isize;
    if whole && label.magic == MAGIC && label.size == offset { Ok(label) } else { Err(INVALID_VALUE) }
}

fn supported() -> Result {
    if config::get().without.vmm { Err(NOT_SUPPORTED) } else { Ok(()) }
}

fn check_prop(prop: &CUmemAllocationProp) -> Result<Option<&'static Device>> {
    if prop.kind != PINNED {
        return Err(INVALID_VALUE);
    }
    match prop.requested_handle_types {
        0 => {}
        POSIX_FD if !config::get().without.fd => {}
        _ => return Err(NOT_SUPPORTED),
    }
    match prop.location.kind {
        LOCATION_DEVICE => device::get(prop.location.id).map(Some),
        // The host, one of its NUMA nodes, the current NUMA node.
        2..=4 => Ok(None),
        _ => Err(INVALID_VALUE),
    }
}

fn find_handle(handle: CUmemGenericAllocationHandle) -> Result<Arc<Handle>> {
    HANDLES.get(handle as usize).map_err(|_| INVALID_VALUE)
}

fn hand_out(out: Out<CUmemGenericAllocationHandle>, allocation: Arc<Allocation>) -> Result {
    let number = crate::handle::next();
    HANDLES.insert(number, Arc::new(Handle { allocation, count: AtomicUsize::new(1) }));
    out.set(number as u64)
}

fn import(out: Out<CUmemGenericAllocationHandle>, fd: i32) -> Result {
    // The driver has no better word for a descriptor that is none of its own.
    let file = map::duplicate(fd).map_err(|_| UNKNOWN)?;
    let label = read_label(&file).map_err(|_| UNKNOWN)?;
    let device = match label.prop.location.kind {
        // Memory of a device that this process cannot see cannot be imported.
        LOCATION_DEVICE => Some(device::by_uuid(&label.uuid).ok_or(INVALID_DEVICE)?),
        _ => None,
    };
    // What was imported cannot be exported again.
    let mut prop = CUmemAllocationProp { requested_handle_types: 0, ..label.prop };
    if let Some(device) = device {
        prop.location.id = device.ordinal;
    }
    hand_out(out, Arc::new(Allocation { file, size: label.size, prop, device, counted: 0 }))
}

/// The reservation that holds all of the given addresses: its start and size.
fn reservation_in(reserved: &BTreeMap<u64, (u64, Area)>, ptr: CUdeviceptr, size: u64) -> Option<(u64, u64)> {
    let (start, (len, _)) = reserved.range(..=ptr).next_back()?;
    (ptr.checked_add(size)? <= start + len).then_some((*start, *len))
}

/// The reservation that an address lies in.
pub fn reservation(ptr: CUdeviceptr) -> Option<(u64, u64)> {
    reservation_in(&RESERVED.lock(), ptr, 1)
}

/// The mappings that exactly fill the given addresses.
fn mappings(ptr: CUdeviceptr, size: usize) -> Result<Vec<Arc<Range>>> {
    let end = ptr.checked_add(size as u64).ok_or(INVALID_VALUE)?;
    let ranges = super::within(ptr, end);
    let mut at = ptr;
    for range in &ranges {
        if range.start != at || !matches!(range.origin, Origin::Mapped(_)) {
            return Err(INVALID_VALUE);
        }
        at = range.end();
    }
    if at == end && size > 0 { Ok(ranges) } else { Err(INVALID_VALUE) }
}

cu! {
    fn cuMemGetAllocationGranularity(out: Out<usize>, prop: In<CUmemAllocationProp>, option: u32) {
        supported()?;
        // It is the same for all memory, and what the properties say is looked at when memory is made.
        prop.get()?;
        if option > 1 {
            return Err(INVALID_VALUE);
        }
        out.set(GRANULARITY as usize)
    }

    fn cuMemCreate(
        out: Out<CUmemGenericAllocationHandle>, size: usize, prop: In<CUmemAllocationProp>, flags: u64,
    ) {
        supported()?;
        out.check()?;
        let prop = prop.get()?;
        let device = check_prop(&prop)?;
        let size = size as u64;
        if size == 0 || !size.is_multiple_of(GRANULARITY) || flags != 0 {
            return Err(INVALID_VALUE);
        }
        if let Some(device) = device {
            device.take(size)?;
        }
        let give_back = || device.iter().for_each(|device| device.give_back(size));
        let uuid = device.map_or_else(CUuuid::default, |device| device.uuid);
        let file = size
            .checked_add(PAGE)
            .ok_or(OUT_OF_MEMORY)
            .and_then(|total| map::memfd(c"oxccl-emu-vmm", total))
            .and_then(|file| map::fill(&file, size, config::get().poison).map(|()| file))
            .and_then(|file| write_label(&file, &Label { magic: MAGIC, size, uuid, prop }).map(|()| file))
            .inspect_err(|_| give_back())?;
        let counted = if device.is_some() { size } else { 0 };
        hand_out(out, Arc::new(Allocation { file, size, prop, device, counted }))
    }

    fn cuMemRelease(handle: CUmemGenericAllocationHandle) {
        let known = find_handle(handle)?;
        // AcqRel: the last release comes after all others.
        if known.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            HANDLES.remove(handle as usize).map_err(|_| INVALID_VALUE)?;
        }
        Ok(())
    }

    fn cuMemRetainAllocationHandle(out: Out<CUmemGenericAllocationHandle>, address: CUdeviceptr) {
        out.check()?;
        let range = super::find(address).ok_or(INVALID_VALUE)?;
        let Origin::Mapped(mapped) = &range.origin else { return Err(INVALID_VALUE) };
        match HANDLES.get(mapped.handle as usize) {
            Ok(known) => {
                known.count.fetch_add(1, Ordering::AcqRel);
            }
            // A mapping keeps the memory, and its handle can come back after its last release.
            Err(_) => {
                let handle = Handle { allocation: mapped.allocation.clone(), count: AtomicUsize::new(1) };
                HANDLES.insert(mapped.handle as usize, Arc::new(handle));
            }
        }
        out.set(mapped.handle)
    }

    fn cuMemGetAllocationPropertiesFromHandle(
        out: Out<CUmemAllocationProp>, handle: CUmemGenericAllocationHandle,
    ) {
        out.set(find_handle(handle)?.allocation.prop)
    }

    fn cuMemExportToShareableHandle(
        out: Out<i32>, handle: CUmemGenericAllocationHandle, kind: u32, flags: u64,
    ) {
        out.check()?;
        if config::get().without.fd {
            return Err(NOT_SUPPORTED);
        }
        let allocation = &find_handle(handle)?.allocation;
        if kind != POSIX_FD || flags != 0 || allocation.prop.requested_handle_types & POSIX_FD == 0 {
            return Err(INVALID_VALUE);
        }
        out.set(map::duplicate(allocation.file.as_raw_fd())?.into_raw_fd())
    }

    fn cuMemImportFromShareableHandle(out: Out<CUmemGenericAllocationHandle>, os_handle: usize, kind: u32) {
        supported()?;
        out.check()?;
        if config::get().without.fd {
            return Err(NOT_SUPPORTED);
        }
        // The descriptor travels as the value of a pointer.
        let fd = i32::try_from(os_handle as isize).map_err(|_| INVALID_VALUE)?;
        if kind != POSIX_FD {
            return Err(INVALID_VALUE);
        }
        import(out, fd)
    }

    fn cuMemAddressReserve(
        out: Out<CUdeviceptr>, size: usize, alignment: usize, address: CUdeviceptr, flags: u64,
    ) {
        supported()?;
        out.check()?;
        let (size, alignment) = (size as u64, alignment as u64);
        if size == 0 || !size.is_multiple_of(GRANULARITY) || flags != 0 {
            return Err(INVALID_VALUE);
        }
        if alignment != 0 && !alignment.is_power_of_two() {
            return Err(INVALID_VALUE);
        }
        let area = Area::reserve(size, alignment.max(GRANULARITY), address)?;
        let start = area.start;
        RESERVED.lock().insert(start, (size, area));
        out.set(start)
    }

    fn cuMemAddressFree(ptr: CUdeviceptr, size: usize) {
        let mut reserved = RESERVED.lock();
        if reserved.get(&ptr).is_none_or(|(len, _)| *len != size as u64) {
            return Err(INVALID_VALUE);
        }
        if !super::within(ptr, ptr + size as u64).is_empty() {
            return Err(INVALID_VALUE);
        }
        reserved.remove(&ptr);
        Ok(())
    }

    fn cuMemMap(ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64) {
        supported()?;
        let allocation = find_handle(handle)?.allocation.clone();
        let size = size as u64;
        if flags != 0 || size == 0 || !ptr.is_multiple_of(GRANULARITY) {
            return Err(INVALID_VALUE);
        }
        // The driver maps allocations only as a whole.
        if offset != 0 || size != allocation.size {
            return Err(NOT_SUPPORTED);
        }
        let reserved = RESERVED.lock();
        if reservation_in(&reserved, ptr, size).is_none() {
            return Err(INVALID_VALUE);
        }
        // Each mapping counts as memory of its own.
        let (device, id) = (allocation.device, super::next_id());
        let fd = allocation.file.as_raw_fd();
        let mapped = Mapped { allocation: allocation.clone(), handle, access: Mutex::new(Vec::new()) };
        super::insert(Range {
            start: ptr,
            size,
            origin: Origin::Mapped(mapped),
            device,
            context: None,
            id,
            host_flags: 0,
        })?;
        map::place_file(ptr, size, fd, 0, libc::PROT_NONE).inspect_err(|_| drop(super::remove(ptr, |_| true)))
    }

    fn cuMemUnmap(ptr: CUdeviceptr, size: usize) {
        let size = size as u64;
        let reserved = RESERVED.lock();
        let whole = size > 0 && size.is_multiple_of(GRANULARITY) && ptr.is_multiple_of(GRANULARITY);
        if !whole || reservation_in(&reserved, ptr, size).is_none() {
            return Err(INVALID_VALUE);
        }
        // Where nothing is mapped there is nothing to do, but no mapping is cut.
        let ranges = super::within(ptr, ptr + size);
        let cut = |range: &Range| range.start < ptr || range.end() > ptr + size;
        if super::find(ptr).is_some_and(|range| cut(&range)) || ranges.iter().any(|range| cut(range)) {
            return Err(INVALID_VALUE);
        }
        for range in ranges {
            super::remove(range.start, |_| true);
            map::clear(range.start, range.size);
        }
        Ok(())
    }

    fn cuMemSetAccess(ptr: CUdeviceptr, size: usize, desc: In<CUmemAccessDesc>, count: usize) {
        supported()?;
        let descriptions = desc.array(count)?;
        let ranges = mappings(ptr, size)?;
        if count == 0 {
            return Err(INVALID_VALUE);
        }
        for range in &ranges {
            for desc in &descriptions {
                if !matches!(desc.flags, 0 | 1 | 3) {
                    return Err(INVALID_VALUE);
                }
                check_location(range, desc.location)?;
            }
        }
        for range in &ranges {
            let Origin::Mapped(mapped) = &range.origin else { continue };
            let mut access = mapped.access.lock();
            for desc in &descriptions {
                access.retain(|(location, _)| *location != desc.location);
                access.push((desc.location, desc.flags));
            }
            let protection = match access.iter().map(|(_, flags)| *flags).max() {
                Some(3) => libc::PROT_READ | libc::PROT_WRITE,
                Some(1) => libc::PROT_READ,
                _ => libc::PROT_NONE,
            };
            map::protect(range.start, range.size, protection)?;
        }
        Ok(())
    }

    fn cuMemGetAccess(out: Out<u64>, location: In<CUmemLocation>, ptr: CUdeviceptr) {
        let location = location.get()?;
        let range = super::find(ptr).ok_or(INVALID_VALUE)?;
        let Origin::Mapped(mapped) = &range.origin else { return Err(INVALID_VALUE) };
        if location.kind == LOCATION_DEVICE {
            device::get(location.id)?;
        }
        out.set(u64::from(mapped.access_of(location)))
    }

    fn cuMemGetHandleForAddressRange(out: Out<i32>, ptr: CUdeviceptr, size: usize, kind: u32, flags: u64) {
        // Descriptors for network adapters (dma-buf): there is no adapter that could use one.
        let _ = (out, ptr, size, kind, flags);
        Err(NOT_SUPPORTED)
    }
}

/// A device can be given access to its own memory, to host memory and to that of its peers; the host only to its own.
fn check_location(range: &Range, location: CUmemLocation) -> Result {
    match (location.kind, range.device) {
        (LOCATION_DEVICE, owner) => {
            let device = device::get(location.id).map_err(|_| INVALID_VALUE)?;
            let reaches =
                owner.is_none_or(|owner| owner.physical == device.physical || device.can_access(owner));
            if reaches { Ok(()) } else { Err(INVALID_DEVICE) }
        }
        (2..=4, None) => Ok(()),
        _ => Err(INVALID_VALUE),
    }
}
