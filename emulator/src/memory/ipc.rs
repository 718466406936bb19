//! Legacy IPC: 64-byte handles with which another process of the same user opens memory or an event.
//!
//! A handle names a descriptor of the exporting process; opening goes through `/proc/<pid>/fd/<n>`, and the file's
//! identity is compared so that a descriptor number which is used again by then opens nothing. Exported memory is
//! labelled with the allocation's number, which goes with the allocation: a handle of freed memory opens nothing either.
//! A process cannot open its own handles, as with the real driver. An opened piece is kept, and counted, until it is
//! closed as often as it was opened.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::alloc::{self, DeviceMemory};
use super::map::{self, Area};
use super::{Origin, Range};
use crate::config;
use crate::context;
use crate::device;
use crate::error::{INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::stream::{self, capture};
use crate::types::{CUdeviceptr, CUipcHandle, CUuuid, Out};

pub const MEMORY: u8 = 1;
pub const EVENT: u8 = 2;
const MAGIC: [u8; 3] = *b"oxe";

/// Memory of another process.
pub struct Opened {
    _area: Area,
    ticket: Ticket,
    /// Opens without their closes.
    count: AtomicUsize,
}

/// What a handle says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    kind: u8,
    /// Bytes by which the allocation begins after `offset`.
    skip: u32,
    pid: u32,
    fd: i32,
    inode: u64,
    offset: u64,
    size: u64,
    uuid: CUuuid,
    /// The number of the allocation in its process.
    id: u64,
}

impl Ticket {
    pub fn for_event(fd: RawFd) -> Result<Ticket> {
        let (_, inode, size) = map::identity(fd)?;
        let uuid = CUuuid::default();
        Ok(Ticket { kind: EVENT, skip: 0, pid: std::process::id(), fd, inode, offset: 0, size, uuid, id: 0 })
    }

    fn for_memory(range: &Range, memory: &DeviceMemory) -> Result<Ticket> {
        let device = range.device.ok_or(INVALID_VALUE)?;
        let fd = alloc::arena_fd(device)?;
        let (_, inode, _) = map::identity(fd)?;
        map::write_word(fd, memory.file_offset - alloc::LABEL, range.id)?;
        Ok(Ticket {
            kind: MEMORY,
            skip: (range.start % map::PAGE) as u32,
            pid: std::process::id(),
            fd,
            inode,
            offset: memory.file_offset,
            size: range.size,
            uuid: device.uuid,
            id: range.id,
        })
    }

    pub fn pack(&self) -> CUipcHandle {
        let mut reserved = [0; 64];
        reserved[..3].copy_from_slice(&MAGIC);
        reserved[3] = self.kind;
        reserved[4..8].copy_from_slice(&self.skip.to_le_bytes());
        reserved[8..12].copy_from_slice(&self.pid.to_le_bytes());
        reserved[12..16].copy_from_slice(&self.fd.to_le_bytes());
        reserved[16..24].copy_from_slice(&self.inode.to_le_bytes());
        reserved[24..32].copy_from_slice(&self.offset.to_le_bytes());
        reserved[32..40].copy_from_slice(&self.size.to_le_bytes());
        reserved[40..56].copy_from_slice(&self.uuid.bytes);
        reserved[56..].copy_from_slice(&self.id.to_le_bytes());
        CUipcHandle { reserved }
    }

    pub fn unpack(handle: &CUipcHandle, kind: u8) -> Result<Ticket> {
        let bytes = &handle.reserved;
        if bytes[..3] != MAGIC || bytes[3] != kind {
            return Err(INVALID_VALUE);
        }
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        Ok(Ticket {
            kind,
            skip: word(4),
            pid: word(8),
            fd: word(12) as i32,
            inode: long(16),
            offset: long(24),
            size: long(32),
            uuid: CUuuid { bytes: std::array::from_fn(|i| bytes[40 + i]) },
            id: long(56),
        })
    }

    pub fn is_own(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Opens the file that the handle names, if it is still the same file.
    pub fn open(&self) -> Result<OwnedFd> {
        let path = std::ffi::CString::new(format!("/proc/{}/fd/{}", self.pid, self.fd))
            .map_err(|_| INVALID_HANDLE)?;
        // SAFETY: the path ends with a zero byte.
        let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(INVALID_HANDLE);
        }
        // SAFETY: the descriptor is fresh and belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let (_, inode, size) = map::identity(fd.as_raw_fd())?;
        let fits = self.offset.checked_add(self.size).is_some_and(|end| end <= size);
        if inode == self.inode && fits { Ok(fd) } else { Err(INVALID_HANDLE) }
    }
}

fn supported() -> Result {
    if config::get().without.ipc { Err(NOT_SUPPORTED) } else { Ok(()) }
}

cu! {
    fn cuIpcGetMemHandle(out: Out<CUipcHandle>, ptr: CUdeviceptr) {
        out.check()?;
        supported()?;
        context::current()?;
        let range = super::find(ptr).ok_or(INVALID_VALUE)?;
        let Origin::Device(memory) = &range.origin else { return Err(INVALID_VALUE) };
        out.set(Ticket::for_memory(&range, memory)?.pack())
    }

    fn cuIpcOpenMemHandle_v2(out: Out<CUdeviceptr>, handle: CUipcHandle, flags: u32) {
        out.check()?;
        supported()?;
        let context = context::current()?;
        capture::forbid_unsafe()?;
        // Lazy enabling of peer access is the one flag, and a must.
        if flags != 1 {
            return Err(INVALID_VALUE);
        }
        let ticket = Ticket::unpack(&handle, MEMORY)?;
        if ticket.is_own() {
            return Err(INVALID_CONTEXT);
        }
        let opened = opened_already(&ticket);
        if let Some(range) = opened
            && let Origin::Ipc(opened) = &range.origin
        {
            opened.count.fetch_add(1, Ordering::AcqRel);
            return out.set(range.start);
        }
        let owner = device::by_uuid(&ticket.uuid).ok_or(INVALID_DEVICE)?;
        if owner.physical != context.device.physical && !context.device.can_access(owner) {
            return Err(crate::error::PEER_ACCESS_UNSUPPORTED);
        }
        let fd = ticket.open()?;
        let label = ticket.offset.checked_sub(alloc::LABEL).ok_or(INVALID_VALUE)?;
        if map::read_word(fd.as_raw_fd(), label)? != ticket.id {
            return Err(INVALID_VALUE);
        }
        let len = (u64::from(ticket.skip) + ticket.size).next_multiple_of(map::PAGE);
        let area = Area::reserve(len, map::PAGE, 0)?;
        area.place(0, len, fd.as_raw_fd(), ticket.offset, libc::PROT_READ | libc::PROT_WRITE)?;
        let start = area.start + u64::from(ticket.skip);
        super::insert(Range {
            start,
            size: ticket.size,
            origin: Origin::Ipc(Opened { _area: area, ticket, count: AtomicUsize::new(1) }),
            device: Some(owner),
            context: Some(context),
            id: super::next_id(),
            host_flags: 0,
        })?;
        out.set(start)
    }

    fn cuIpcCloseMemHandle(ptr: CUdeviceptr) {
        context::current()?;
        capture::forbid_unsafe()?;
        let range = super::find(ptr).filter(|range| range.start == ptr).ok_or(INVALID_VALUE)?;
        let Origin::Ipc(opened) = &range.origin else { return Err(INVALID_VALUE) };
        if opened.count.fetch_sub(1, Ordering::AcqRel) > 1 {
            return Ok(());
        }
        if let Some(context) = range.context {
            stream::synchronize_device(context.device);
        }
        super::remove(ptr, |_| true);
        Ok(())
    }
}

fn opened_already(ticket: &Ticket) -> Option<Arc<Range>> {
    let same = |range: &Arc<Range>| matches!(&range.origin, Origin::Ipc(opened) if opened.ticket == *ticket);
    super::within(0, u64::MAX).into_iter().find(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_survives_packing() {
        let uuid = CUuuid { bytes: *b"0123456789abcdef" };
        let ticket = Ticket {
            kind: MEMORY,
            skip: 512,
            pid: 7,
            fd: 5,
            inode: 1 << 40,
            offset: 4096,
            size: 100,
            uuid,
            id: 9,
        };
        assert!(Ticket::unpack(&ticket.pack(), MEMORY).is_ok_and(|back| back == ticket));
        assert!(Ticket::unpack(&ticket.pack(), EVENT).is_err());
        assert!(Ticket::unpack(&CUipcHandle { reserved: [0; 64] }, MEMORY).is_err());
    }
}
