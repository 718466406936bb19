//! Mappings and memfds, the pieces that device memory is made of. Everything is released by `Drop`.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;

use crate::error::{INVALID_VALUE, OUT_OF_MEMORY, Result};

pub const PAGE: u64 = 4096;
/// Inaccessible bytes on each side of a mapping.
const GUARD: u64 = 64 << 10;

/// An area of address space with inaccessible borders; what is inside is put there by `place`.
pub struct Area {
    base: u64,
    total: u64,
    /// First usable address.
    pub start: u64,
}

impl Area {
    /// Reserves `size` bytes at a multiple of `alignment` (a power of two), at `hint` if that is free.
    pub fn reserve(size: u64, alignment: u64, hint: u64) -> Result<Area> {
        let total =
            size.checked_add(alignment).and_then(|sum| sum.checked_add(2 * GUARD)).ok_or(OUT_OF_MEMORY)?;
        let wanted =
            hint.checked_sub(GUARD).filter(|_| hint != 0 && hint.is_multiple_of(alignment)).unwrap_or(0);
        // SAFETY: without MAP_FIXED a new mapping replaces nothing.
        let base = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(wanted as *mut _, total as usize, libc::PROT_NONE, flags, -1, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(OUT_OF_MEMORY);
        }
        let base = base as u64;
        Ok(Area { base, total, start: (base + GUARD).next_multiple_of(alignment) })
    }

    /// Maps `len` bytes of a file at `offset` bytes into the area.
    pub fn place(&self, offset: u64, len: u64, fd: RawFd, file_offset: u64, protection: i32) -> Result {
        place_file(self.start + offset, len, fd, file_offset, protection)
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the area is ours; whoever used it is through, or the memory would not be released.
        unsafe { libc::munmap(self.base as *mut _, self.total as usize) };
    }
}

/// Maps a file over part of an [`Area`].
pub fn place_file(address: u64, len: u64, fd: RawFd, file_offset: u64, protection: i32) -> Result {
    // SAFETY: the addresses lie in a reservation of ours, where only inaccessible pages are replaced.
    let mapped = unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let address =
            libc::mmap(address as *mut _, len as usize, protection, flags, fd, file_offset as libc::off_t);
        if address != libc::MAP_FAILED {
            // A forked child cannot use the driver and must not keep the device's memory.
            libc::madvise(address, len as usize, libc::MADV_DONTFORK);
        }
        address
    };
    if mapped == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { Ok(()) }
}

/// Makes part of an [`Area`] inaccessible and empty again.
pub fn clear(address: u64, len: u64) {
    // SAFETY: the addresses lie in a reservation of ours and nobody uses them any more.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        libc::mmap(address as *mut _, len as usize, libc::PROT_NONE, flags, -1, 0);
    }
}

pub fn protect(address: u64, len: u64, protection: i32) -> Result {
    // SAFETY: the addresses lie in a reservation of ours.
    let result = unsafe { libc::mprotect(address as *mut _, len as usize, protection) };
    if result == 0 { Ok(()) } else { Err(OUT_OF_MEMORY) }
}

/// A nameless file in memory, gone with its last descriptor and mapping.
pub fn memfd(name: &CStr, size: u64) -> Result<OwnedFd> {
    // SAFETY: the name ends with a zero byte.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(OUT_OF_MEMORY);
    }
    // SAFETY: the descriptor is fresh and belongs to nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    resize(&fd, size)?;
    Ok(fd)
}

pub fn resize(fd: &OwnedFd, size: u64) -> Result {
    // SAFETY: plain system call on a descriptor of ours.
    let result = unsafe { libc::ftruncate(fd.as_raw_fd(), size as libc::off_t) };
    if result == 0 { Ok(()) } else { Err(OUT_OF_MEMORY) }
}

/// Fills a new file with a byte, if there is one to fill it with.
pub fn fill(fd: &OwnedFd, size: u64, byte: Option<u8>) -> Result {
    let Some(byte) = byte else { return Ok(()) };
    let block = vec![byte; 1 << 20];
    let mut at = 0;
    while at < size {
        let len = (size - at).min(block.len() as u64) as usize;
        // SAFETY: the buffer holds `len` bytes.
        let written = unsafe { libc::pwrite(fd.as_raw_fd(), block.as_ptr().cast(), len, at as libc::off_t) };
        at += u64::try_from(written).ok().filter(|written| *written > 0).ok_or(OUT_OF_MEMORY)?;
    }
    Ok(())
}

/// Gives the pages of part of a file back.
pub fn punch(fd: RawFd, offset: u64, len: u64) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: plain system call. Failing only means that the pages stay until the file is gone.
    unsafe { libc::fallocate(fd, mode, offset as libc::off_t, len as libc::off_t) };
}

/// Writes a word into a file.
pub fn write_word(fd: RawFd, offset: u64, word: u64) -> Result {
    let bytes = word.to_ne_bytes();
    // SAFETY: the buffer holds eight bytes.
    let written = unsafe { libc::pwrite(fd, bytes.as_ptr().cast(), bytes.len(), offset as libc::off_t) };
    if written == 8 { Ok(()) } else { Err(OUT_OF_MEMORY) }
}

/// Reads a word from a file.
pub fn read_word(fd: RawFd, offset: u64) -> Result<u64> {
    let mut bytes = [0; 8];
    // SAFETY: the buffer has room for eight bytes.
    let read = unsafe { libc::pread(fd, bytes.as_mut_ptr().cast(), bytes.len(), offset as libc::off_t) };
    if read == 8 { Ok(u64::from_ne_bytes(bytes)) } else { Err(INVALID_VALUE) }
}

/// Another descriptor of the same file, closed on exec.
pub fn duplicate(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: plain system call.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the descriptor is fresh and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Device and inode: the identity of a file across processes.
pub fn identity(fd: RawFd) -> Result<(u64, u64, u64)> {
    // SAFETY: `stat` is plain data for the call to fill.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a local of the right type.
    if unsafe { libc::fstat(fd, &mut stat) } != 0 {
        return Err(INVALID_VALUE);
    }
    Ok((stat.st_dev, stat.st_ino, stat.st_size as u64))
}

/// A whole file mapped for reading and writing.
pub struct SharedFile {
    fd: OwnedFd,
    address: *mut u8,
    len: usize,
}

// SAFETY: the mapping may be used from any thread; users access it as atomics only.
unsafe impl Send for SharedFile {}
// SAFETY: as above.
unsafe impl Sync for SharedFile {}

impl SharedFile {
    pub fn create(name: &CStr, len: usize) -> Result<SharedFile> {
        SharedFile::adopt(memfd(name, len as u64)?, len)
    }

    pub fn adopt(fd: OwnedFd, len: usize) -> Result<SharedFile> {
        if identity(fd.as_raw_fd())?.2 < len as u64 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: without MAP_FIXED a new mapping replaces nothing.
        let address = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(null_mut(), len, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED {
            return Err(OUT_OF_MEMORY);
        }
        Ok(SharedFile { fd, address: address.cast(), len })
    }

    pub fn address(&self) -> *mut u8 {
        self.address
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and ends with its owner.
        unsafe { libc::munmap(self.address.cast(), self.len) };
    }
}
