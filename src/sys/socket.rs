//! Stream sockets that never block: abstract Unix names for ranks of one host, TCP for others.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr, sockopt};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use crate::sys::fd::{retry, wait_for};
use crate::sys::fork::PrivateFd;

/// Connections that the kernel keeps until they are accepted; a burst beyond it is retried by its senders.
const BACKLOG: i32 = 1024;
/// A peer whose host vanished without a word is noticed after about this time.
const SILENCE: Duration = Duration::from_secs(20);

/// Listens on an abstract name: it needs no file, and vanishes with its last descriptor.
pub fn listen_unix(name: &[u8]) -> nix::Result<PrivateFd> {
    let fd = unix_socket()?;
    socket::bind(fd.as_raw_fd(), &UnixAddr::new_abstract(name)?)?;
    socket::listen(&fd, Backlog::new(BACKLOG).unwrap_or(Backlog::MAXCONN))?;
    Ok(fd)
}

/// Connects at once or fails: `ECONNREFUSED` when nobody listens in this network namespace, `EAGAIN` when the listener is busy.
pub fn connect_unix(name: &[u8]) -> nix::Result<PrivateFd> {
    let fd = unix_socket()?;
    let address = UnixAddr::new_abstract(name)?;
    retry(|| socket::connect(fd.as_raw_fd(), &address))?;
    Ok(fd)
}

fn unix_socket() -> nix::Result<PrivateFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    PrivateFd::create(|| socket::socket(AddressFamily::Unix, SockType::Stream, flags, None))
}

/// Process and user behind a Unix connection; the process is 0 when it is not visible in this PID namespace.
pub fn unix_peer(fd: BorrowedFd<'_>) -> Option<(i32, u32)> {
    let credentials = socket::getsockopt(&fd, sockopt::PeerCredentials).ok()?;
    Some((credentials.pid(), credentials.uid()))
}

/// Listens on one address. With port 0 the system chooses.
pub fn listen_tcp(address: SocketAddr, reuse: bool) -> std::io::Result<(PrivateFd, SocketAddr)> {
    let fd = tcp_socket(address)?;
    let socket = SockRef::from(&fd);
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(reuse)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    let bound = socket.local_addr()?.as_socket().unwrap_or(address);
    Ok((fd, bound))
}

/// Begins to connect; [`connected`] says how it ended.
pub fn connect_tcp(address: SocketAddr, from: Option<SocketAddr>) -> std::io::Result<PrivateFd> {
    let fd = tcp_socket(address)?;
    let socket = SockRef::from(&fd);
    if let Some(from) = from {
        socket.bind(&SockAddr::from(from))?;
    }
    match socket.connect(&SockAddr::from(address)) {
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        // An interrupted connect goes on in the background.
        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
        other => other?,
    }
    Ok(fd)
}

/// Waits for the end of a connect: `None` when it is still under way after `time`.
pub fn connected(fd: BorrowedFd<'_>, time: Duration) -> Option<nix::Result<()>> {
    if !wait_for(fd, PollFlags::POLLOUT, time) {
        return None;
    }
    let error = socket::getsockopt(&fd, sockopt::SocketError).unwrap_or(libc::EIO);
    Some(if error == 0 { Ok(()) } else { Err(Errno::from_raw(error)) })
}

fn tcp_socket(address: SocketAddr) -> std::io::Result<PrivateFd> {
    let (domain, kind) = (Domain::for_address(address), Type::STREAM.nonblocking());
    PrivateFd::create(|| Socket::new(domain, kind, Some(Protocol::TCP)).map(OwnedFd::from))
}

/// The next connection of a listener; `None` when there is none.
pub fn accept(listener: BorrowedFd<'_>) -> nix::Result<Option<PrivateFd>> {
    match PrivateFd::create(|| {
        retry(|| socket::accept4(listener, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK))
    }) {
        Ok(fd) => Ok(Some(fd)),
        // A connection that was taken back before it was accepted is none.
        Err(Errno::EAGAIN | Errno::ECONNABORTED | Errno::EPROTO) => Ok(None),
        Err(error) => Err(error),
    }
}

/// For TCP connections that live long: short messages leave at once, and a vanished peer is noticed.
pub fn tune_tcp(fd: &PrivateFd) {
    let socket = SockRef::from(fd);
    let keepalive = TcpKeepalive::new().with_time(SILENCE / 2).with_interval(SILENCE / 8).with_retries(4);
    // Each is an improvement that the connection can do without.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&keepalive);
    let _ = socket.set_tcp_user_timeout(Some(SILENCE));
}

/// The address at the other end of a TCP connection.
pub fn tcp_peer(fd: &PrivateFd) -> Option<SocketAddr> {
    SockRef::from(fd).peer_addr().ok()?.as_socket()
}
