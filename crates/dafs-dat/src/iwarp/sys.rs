//! System calls that neither the standard library nor socket2 offers. All `unsafe` of this provider
//! is here.

use super::limits::{KEEPALIVE_INTERVAL_SECONDS, KEEPALIVE_SECONDS, POLL_EVENT_COUNT};
use crate::descriptors::{Guarded, Watch, kept};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Readable, or the peer has closed.
pub(super) const READABLE: u32 = libc::EPOLLIN as u32;
/// Room to send.
pub(super) const WRITABLE: u32 = libc::EPOLLOUT as u32;
/// The peer has closed its side.
pub(super) const PEER_CLOSED: u32 = libc::EPOLLRDHUP as u32;
/// An error or a hang-up; always reported.
pub(super) const BROKEN: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// Wake only one of several pollers of a listening socket.
pub(super) const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// One readiness report.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ready {
    pub(super) token: u64,
    pub(super) events: u32,
}

/// An epoll instance, level-triggered, with room for the events of one call.
pub(super) struct Epoll {
    fd: Guarded<OwnedFd>,
    events: Box<[libc::epoll_event; POLL_EVENT_COUNT]>,
}

impl Epoll {
    pub(super) fn new(watch: &Watch) -> io::Result<Self> {
        // SAFETY: no pointer is involved.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just returned this descriptor, and it has no other owner.
        let fd = kept(unsafe { OwnedFd::from_raw_fd(fd) })?;
        let none = libc::epoll_event { events: 0, u64: 0 };
        let fd = Guarded::new(fd, watch);
        Ok(Self { fd, events: Box::new([none; POLL_EVENT_COUNT]) })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.fd.as_fd()
    }

    /// Checks that the descriptor still belongs to this instance.
    pub(super) fn check(&self) -> io::Result<()> {
        self.fd.check()
    }

    fn control(&self, what: i32, fd: RawFd, events: u32, token: u64) -> io::Result<()> {
        self.fd.check()?;
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: the event is a local variable that lives through the call.
        let returned = unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), what, fd, &mut event) };
        if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    pub(super) fn add(&self, fd: &impl AsRawFd, events: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd.as_raw_fd(), events, token)
    }

    pub(super) fn change(&self, fd: &impl AsRawFd, events: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd.as_raw_fd(), events, token)
    }

    pub(super) fn remove(&self, fd: &impl AsRawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd.as_raw_fd(), 0, 0)
    }

    /// Polls without waiting; returns how many sockets are ready, for [`Epoll::ready`]. It checks
    /// the descriptor each time: a call on an instance of the program would consume its
    /// edge-triggered events.
    pub(super) fn poll(&mut self) -> io::Result<usize> {
        self.fd.check()?;
        let room = POLL_EVENT_COUNT as i32;
        // SAFETY: the kernel writes at most `room` events into an array of that many.
        let count =
            unsafe { libc::epoll_wait(self.fd.as_raw_fd(), self.events.as_mut_ptr(), room, 0) };
        if count < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) };
        }
        Ok(count as usize)
    }

    /// One of the reports of the last poll.
    pub(super) fn ready(&self, index: usize) -> Ready {
        let event = self.events[index];
        Ready { token: event.u64, events: event.events }
    }
}

/// The current size of a TCP segment to the peer, in bytes (`TCP_INFO`).
pub(super) fn send_segment_bytes(fd: &impl AsRawFd) -> io::Result<usize> {
    // SAFETY: tcp_info is plain data for which all zero is valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into the struct.
    let returned = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &mut len,
        )
    };
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(info.tcpi_snd_mss as usize) }
}

/// Makes closing the socket reset the connection, so that the peer does not take an abort for a
/// graceful end.
pub(super) fn reset_on_close(stream: &std::net::TcpStream) {
    // It can only fail on a dead socket.
    let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Prepares a socket for a connection: it never blocks, does not delay small sends, and detects a
/// dead peer.
pub(super) fn prepare(socket: socket2::SockRef<'_>) -> io::Result<()> {
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(KEEPALIVE_SECONDS))
        .with_interval(Duration::from_secs(KEEPALIVE_INTERVAL_SECONDS));
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&keepalive)
}
