//! Forked children: what they get, what they do not, and who waits for whom.

use std::io::Read;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;

use nix::sys::wait::WaitStatus;
use nix::unistd::{ForkResult, Pid};
use parking_lot::{Mutex, MutexGuard};

use super::*;

/// One test at a time: they fork, and look at the one gate of the process.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock()
}

/// A forked child that runs `body` and leaves with its verdict; an alarm ends it if it hangs.
fn child(body: impl FnOnce() -> bool) -> Pid {
    // SAFETY: the bodies below take no locks that another thread may hold, and the child leaves through _exit.
    match unsafe { nix::unistd::fork() }.unwrap() {
        ForkResult::Child => {
            nix::unistd::alarm::set(60);
            let code = i32::from(!body());
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(code) }
        }
        ForkResult::Parent { child } => child,
    }
}

fn ends_well(child: Pid) {
    assert_eq!(nix::sys::wait::waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
}

fn pair() -> (UnixStream, OwnedFd) {
    let (left, right) = UnixStream::pair().unwrap();
    left.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    (left, right.into())
}

/// Whether the number stands for /dev/null: it takes all and gives nothing.
fn is_nowhere(fd: RawFd) -> bool {
    // SAFETY: the buffer is one byte long; any descriptor number may be asked.
    let taken = unsafe { libc::write(fd, c"x".as_ptr().cast(), 1) };
    // SAFETY: as above.
    taken == 1 && unsafe { libc::read(fd, [0u8; 1].as_mut_ptr().cast(), 1) } == 0
}

#[test]
fn a_child_does_not_keep_what_is_private() {
    let _alone = alone();
    let (mut closed, fd) = pair();
    let private = PrivateFd::from(fd);
    let copy = private.try_clone().unwrap();
    let numbers = [private.as_raw_fd(), copy.as_raw_fd()];
    let (mut open, inherited) = pair();
    let (go, mut gate) = UnixStream::pair().unwrap();
    let other_end = go.try_clone().unwrap().into_raw_fd();
    let child = child(|| {
        // SAFETY: this child's copies of the other end, so that the parent's end is the last.
        unsafe { libc::close(other_end) };
        // SAFETY: as above.
        unsafe { libc::close(go.as_raw_fd()) };
        numbers.iter().all(|fd| is_nowhere(*fd)) && gate.read(&mut [0]).is_ok_and(|count| count == 0)
    });
    drop((private, copy, inherited));
    assert_eq!(closed.read(&mut [0; 1]).unwrap(), 0, "only the parent had it");
    open.set_nonblocking(true).unwrap();
    assert!(open.read(&mut [0; 1]).is_err(), "the child still has the one that is not private");
    // SAFETY: made above, and given to nobody.
    drop((go, unsafe { OwnedFd::from_raw_fd(other_end) }));
    ends_well(child);
}

#[test]
fn a_fork_waits_for_a_descriptor_that_is_being_made() {
    let _alone = alone();
    let (mut left, fd) = pair();
    let (made, forking) = std::sync::mpsc::channel();
    let maker = std::thread::spawn(move || {
        PrivateFd::create(|| {
            made.send(()).unwrap();
            // The fork has begun and finds this thread here.
            let until = Instant::now() + Duration::from_secs(20);
            while GATE.load(Ordering::Relaxed) < ONE_FORK && Instant::now() < until {
                std::hint::spin_loop();
            }
            Ok::<_, ()>(fd)
        })
        .unwrap()
    });
    forking.recv().unwrap();
    let (go, mut gate) = UnixStream::pair().unwrap();
    let go_number = go.as_raw_fd();
    let child = child(|| {
        // SAFETY: this child's copy of the other end.
        unsafe { libc::close(go_number) };
        gate.read(&mut [0]).is_ok_and(|count| count == 0)
    });
    drop(maker.join().unwrap());
    assert_eq!(left.read(&mut [0; 1]).unwrap(), 0, "the child keeps a descriptor that was half made");
    drop(go);
    ends_well(child);
}

#[test]
fn a_descriptor_waits_for_a_fork_under_way() {
    static OVER: AtomicBool = AtomicBool::new(false);
    let _alone = alone();
    before();
    let started = Instant::now();
    let maker = std::thread::spawn(move || {
        let (_left, fd) = pair();
        PrivateFd::create(|| Ok::<_, bool>(fd)).unwrap();
        OVER.load(Ordering::SeqCst) || started.elapsed() >= PATIENCE
    });
    std::thread::sleep(Duration::from_millis(20));
    OVER.store(true, Ordering::SeqCst);
    after();
    assert!(maker.join().unwrap(), "it did not wait");
    assert_eq!(GATE.load(Ordering::Relaxed), 0);
}

#[test]
fn neither_side_waits_for_good() {
    let _alone = alone();
    hold(|_| before());
    let (_left, fd) = pair();
    drop(PrivateFd::from(fd));
    after();
    assert_eq!(GATE.load(Ordering::Relaxed), 0);
    after();
    assert_eq!(GATE.load(Ordering::Relaxed), 0, "an end without a beginning counts for nothing");
}

#[test]
fn children_that_close_everything_keep_what_they_open_then() {
    let _alone = alone();
    let (_left, fd) = pair();
    let private = PrivateFd::from(fd);
    let number = private.as_raw_fd();
    ends_well(child(move || {
        // SAFETY: a daemon closes what it has inherited.
        unsafe { libc::close(number) };
        // SAFETY: the flags ask for nothing; the name is a constant.
        let file = unsafe { libc::memfd_create(c"own".as_ptr(), 0) };
        // SAFETY: `file` is this child's.
        let own = file == number || unsafe { libc::dup2(file, number) } == number;
        drop(private);
        let is_memory = || {
            // SAFETY: asks about a number.
            unsafe { libc::fcntl(number, libc::F_GET_SEALS) >= 0 }
        };
        let inner = child(is_memory);
        own && is_memory() && nix::sys::wait::waitpid(inner, None) == Ok(WaitStatus::Exited(inner, 0))
    }));
}

#[test]
fn a_child_without_a_free_number_gets_rid_of_them_too() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let _alone = alone();
    let (mut left, fd) = pair();
    let private = PrivateFd::from(fd);
    let number = private.as_raw_fd();
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let (go, mut gate) = UnixStream::pair().unwrap();
    let go_number = go.as_raw_fd();
    let outer = child(|| {
        let (_own_left, fd) = pair();
        let own = PrivateFd::from(fd);
        // SAFETY: this child's copy of the other end.
        unsafe { libc::close(go_number) };
        // No further descriptor can be made.
        let limited = setrlimit(Resource::RLIMIT_NOFILE, 3, hard).is_ok() && own.try_clone().is_err();
        let own_number = own.as_raw_fd();
        let inner = child(|| own_number < 3 || !is_open(own_number) || is_nowhere(own_number));
        let inner = nix::sys::wait::waitpid(inner, None) == Ok(WaitStatus::Exited(inner, 0));
        limited && is_nowhere(number) && inner && gate.read(&mut [0]).is_ok_and(|count| count == 0)
    });
    drop(private);
    assert_eq!(left.read(&mut [0; 1]).unwrap(), 0);
    drop(go);
    ends_well(outer);
}

fn is_open(fd: RawFd) -> bool {
    // SAFETY: asks about a number.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

#[test]
fn many_forks_meet_many_descriptors() {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, getsockopt, socketpair, sockopt};
    static STOP: AtomicBool = AtomicBool::new(false);
    let _alone = alone();
    let makers: Vec<_> = (0..3)
        .map(|_| {
            std::thread::spawn(|| {
                while !STOP.load(Ordering::Relaxed) {
                    // A kind of socket by which these are told from all others.
                    let make = || {
                        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
                            .map(|(left, _)| left)
                    };
                    drop(PrivateFd::create(make).unwrap().try_clone().unwrap());
                }
            })
        })
        .collect();
    let ours = |fd: RawFd| {
        // SAFETY: only asked about, and while it is open.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        getsockopt(&fd, sockopt::SockType) == Ok(SockType::SeqPacket)
    };
    let children: Vec<Pid> =
        (0..200).map(|_| child(|| !(0..1024).any(|fd| is_open(fd) && ours(fd)))).collect();
    children.into_iter().for_each(ends_well);
    STOP.store(true, Ordering::Relaxed);
    makers.into_iter().for_each(|maker| maker.join().unwrap());
}
