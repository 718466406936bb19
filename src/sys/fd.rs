//! File descriptors: anonymous shared memory, wake-ups, process descriptors, and passing descriptors between processes.
//!
//! All are close-on-exec and kept from forked children, and every call is repeated when a signal interrupts it.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::MFdFlags;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags};
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::sys::fork::{self, PrivateFd};

/// Most descriptors that one message carries (the kernel allows 253).
pub const MAX_PASSED: usize = 64;

/// Memory without a name, of a size that can no longer change: a peer that maps it cannot be made to fault.
pub fn memfd(name: &str, bytes: u64) -> Result<PrivateFd> {
    let failed =
        |error: Errno| Error::system(format_args!("creating {bytes} bytes of shared memory ({name})"), error);
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = PrivateFd::create(|| nix::sys::memfd::memfd_create(name, flags)).map_err(failed)?;
    let length = libc::off_t::try_from(bytes).map_err(|_| failed(Errno::EFBIG))?;
    retry(|| nix::unistd::ftruncate(&fd, length)).map_err(failed)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    nix::fcntl::fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).map_err(failed)?;
    Ok(fd)
}

/// Whether `fd` is memory of at least `bytes` bytes that nobody can shrink: to be asked before memory of a peer is mapped.
pub fn is_sealed_memory(fd: BorrowedFd<'_>, bytes: u64) -> bool {
    let seals = nix::fcntl::fcntl(fd, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_retain);
    let size = nix::sys::stat::fstat(fd).map(|data| data.st_size);
    seals.is_ok_and(|seals| seals.contains(SealFlag::F_SEAL_SHRINK))
        && size.is_ok_and(|size| u64::try_from(size).is_ok_and(|size| size >= bytes))
}

/// Wakes a thread that sleeps in poll.
#[derive(Debug)]
pub struct Waker {
    event: PrivateFd,
}

impl Waker {
    pub fn new() -> Result<Waker> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let event = PrivateFd::create(|| EventFd::from_value_and_flags(0, flags).map(OwnedFd::from))
            .map_err(|error| Error::system("creating an event descriptor", error))?;
        Ok(Waker { event })
    }

    /// Never blocks; a full counter means that the sleeper has not yet seen earlier wake-ups.
    pub fn wake(&self) {
        let _ = retry(|| nix::unistd::write(&self.event, &1u64.to_ne_bytes()));
    }

    pub fn clear(&self) {
        let _ = retry(|| nix::unistd::read(&self.event, &mut [0; 8]));
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// A descriptor that becomes readable when the process ends, whoever else holds its sockets; `None` where the kernel has none (before
/// 5.3), or the process is not visible here.
pub fn process_end(pid: i32) -> Option<PrivateFd> {
    if pid <= 0 {
        return None;
    }
    let open = || {
        // SAFETY: the system call takes two integers; what it returns is a new descriptor or an error.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or(())?;
        // SAFETY: the kernel has just given us this descriptor (close-on-exec by definition), and nobody else knows it.
        Ok::<_, ()>(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    PrivateFd::create(open).ok()
}

/// As [`process_end`], one descriptor for all who ask about the same process; `None` for this process.
pub fn shared_process_end(pid: i32) -> Option<Arc<PrivateFd>> {
    static KNOWN: Mutex<BTreeMap<i32, Weak<PrivateFd>>> = Mutex::new(BTreeMap::new());
    if u32::try_from(pid) == Ok(std::process::id()) {
        return None;
    }
    // Held for a moment only; a child forked in that moment does without.
    let mut known = KNOWN.try_lock_for(Duration::from_secs(1))?;
    known.retain(|_, end| end.strong_count() > 0);
    // A descriptor that says "ended" belongs to an earlier process of this number.
    let alive = |end: &Arc<PrivateFd>| !wait_for(end.as_fd(), PollFlags::POLLIN, Duration::ZERO);
    if let Some(end) = known.get(&pid).and_then(Weak::upgrade).filter(alive) {
        return Some(end);
    }
    let end = Arc::new(process_end(pid)?);
    known.insert(pid, Arc::downgrade(&end));
    Some(end)
}

/// Whether the call failed for want of descriptors.
pub fn is_shortage(error: Errno) -> bool {
    matches!(error, Errno::EMFILE | Errno::ENFILE)
}

/// Allows this process as many descriptors as the system grants it; `false` when it has them already. Only for when there are none
/// left: programs that use select() must not see large numbers without need.
pub fn raise_limit() -> bool {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return false;
    };
    soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok()
}

/// Waits until one of `wanted` holds; `false` when the time is over. Errors and hang-ups count as ready: the next call tells.
pub fn wait_for(fd: BorrowedFd<'_>, wanted: PollFlags, time: Duration) -> bool {
    // Rounded up, so that a wait for less than a millisecond does not spin.
    let milliseconds = i32::try_from(time.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    let timeout = PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX);
    // An interrupted wait counts as one that found nothing: callers look at their deadline and come again.
    nix::poll::poll(&mut [PollFd::new(fd, wanted)], timeout).is_ok_and(|count| count > 0)
}

/// Sends what fits, the descriptors with the first byte. `WouldBlock` when nothing fits; never raises SIGPIPE.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8], passed: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let raw: Vec<RawFd> = passed.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    let sent = retry(|| {
        nix::sys::socket::sendmsg::<()>(fd.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None)
    });
    Ok(sent?)
}

/// Receives what is there; `Ok(0)` is the end of the stream, `WouldBlock` says that nothing is there.
///
/// Descriptors that arrive are appended to `passed` when it is given, and closed when it is not.
pub fn receive(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    passed: Option<&mut Vec<PrivateFd>>,
) -> io::Result<usize> {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let Some(passed) = passed else {
        // Without room for control data the kernel drops passed descriptors.
        return Ok(retry(|| nix::sys::socket::recv(fd.as_raw_fd(), buffer, flags))?);
    };
    let mut control = nix::cmsg_space!([RawFd; MAX_PASSED]);
    let mut slices = [IoSliceMut::new(buffer)];
    // Descriptors that arrive are known to the fork handlers before a fork can follow.
    fork::hold(|held| {
        let message = loop {
            match nix::sys::socket::recvmsg::<()>(fd.as_raw_fd(), &mut slices, Some(&mut control), flags) {
                Err(Errno::EINTR) => continue,
                other => break other?,
            }
        };
        for item in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(received) = item {
                // SAFETY: the kernel has just installed these descriptors for this message, and nobody else knows them.
                passed.extend(received.into_iter().map(|fd| held.adopt(unsafe { OwnedFd::from_raw_fd(fd) })));
            }
        }
        Ok(message.bytes)
    })
}

/// Repeats a system call that a signal interrupted.
pub fn retry<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => continue,
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    #[test]
    fn memory_is_sealed_against_a_change_of_size() {
        let memory = memfd("test", 8192).unwrap();
        assert!(is_sealed_memory(memory.as_fd(), 8192));
        assert!(!is_sealed_memory(memory.as_fd(), 8193));
        assert_eq!(nix::unistd::ftruncate(&memory, 0), Err(Errno::EPERM));
        let unsealed = nix::sys::memfd::memfd_create("test", MFdFlags::MFD_CLOEXEC).unwrap();
        assert!(!is_sealed_memory(unsealed.as_fd(), 0));
    }

    #[test]
    fn descriptors_travel_with_bytes() {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (left, right) = socketpair(AddressFamily::Unix, SockType::Stream, None, flags).unwrap();
        let memory = memfd("passed", 4096).unwrap();
        assert_eq!(send(left.as_fd(), b"hello", &[memory.as_fd(), memory.as_fd()]).unwrap(), 5);
        let mut passed = Vec::new();
        let mut buffer = [0; 16];
        assert_eq!(receive(right.as_fd(), &mut buffer, Some(&mut passed)).unwrap(), 5);
        assert_eq!(passed.len(), 2);
        assert!(passed.iter().all(|fd| is_sealed_memory(fd.as_fd(), 4096)));
        let closes_on_exec = nix::fcntl::fcntl(&passed[0], FcntlArg::F_GETFD).unwrap();
        assert_eq!(closes_on_exec & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        let empty = receive(right.as_fd(), &mut buffer, None).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
        drop(right);
        assert_eq!(send(left.as_fd(), b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(receive(left.as_fd(), &mut buffer, None).unwrap(), 0);
    }

    #[test]
    fn a_waker_wakes_until_cleared() {
        let waker = Waker::new().unwrap();
        assert!(!wait_for(waker.as_fd(), PollFlags::POLLIN, Duration::ZERO));
        waker.wake();
        waker.wake();
        assert!(wait_for(waker.as_fd(), PollFlags::POLLIN, Duration::ZERO));
        waker.clear();
        assert!(!wait_for(waker.as_fd(), PollFlags::POLLIN, Duration::ZERO));
    }

    #[test]
    fn the_end_of_a_process_is_seen() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let end = process_end(child.id() as i32).expect("this kernel has process descriptors");
        assert!(!wait_for(end.as_fd(), PollFlags::POLLIN, Duration::ZERO));
        let shared = shared_process_end(child.id() as i32).unwrap();
        assert!(Arc::ptr_eq(&shared, &shared_process_end(child.id() as i32).unwrap()));
        child.kill().unwrap();
        assert!(wait_for(end.as_fd(), PollFlags::POLLIN, Duration::from_secs(10)));
        let later = shared_process_end(child.id() as i32);
        assert!(
            later.is_none_or(|later| !Arc::ptr_eq(&shared, &later)),
            "an ended process is asked about anew"
        );
        child.wait().unwrap();
        assert!(shared_process_end(std::process::id() as i32).is_none());
        assert!(process_end(0).is_none() && process_end(-1).is_none());
    }
}
