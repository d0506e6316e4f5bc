//! Listening sockets that were open before this server: passed by systemd (`sd_listen_fds(3)`), or by
//! the server whose place this one takes. They outlive a restart. So clients that connect meanwhile
//! wait in the queue, instead of a refusal and a retry seconds later.
//!
//! Invariants
//! * A socket is known by its kind and its bound address, and one listener uses it. A configured
//!   port 0 stands for the first socket of that host that is left: a server binds them in the order
//!   of its configuration.
//! * A server keeps copies of the sockets in use until it is dropped, for the next one.

use super::BACKLOG;
use dafs_dat::shm_socket_name;
use dafs_wire::hand_over::{SocketKind, SocketName};
use rustix::net::{SocketAddrUnix, sockopt};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};

/// The first descriptor that is passed.
const FIRST: RawFd = 3;

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) name: SocketName,
    pub(crate) fd: OwnedFd,
}

impl Socket {
    /// Takes a socket that another process has passed. `None` if it does not listen, or is another
    /// one than its name says.
    pub(crate) fn adopt(name: SocketName, fd: OwnedFd) -> Option<Self> {
        let is_listening = sockopt::socket_acceptconn(&fd).ok()?;
        let fd = match name.kind {
            SocketKind::Tcp => {
                let listener = TcpListener::from(fd);
                let bound = listener.local_addr().ok()?;
                listener.set_nonblocking(true).ok()?;
                (bound == name.address).then(|| OwnedFd::from(listener))?
            }
            SocketKind::Shm => {
                let bound = rustix::net::getsockname(&fd).ok()?;
                let bound = SocketAddrUnix::try_from(bound).ok()?;
                let wanted = shm_socket_name(name.address);
                (bound.abstract_name() == Some(wanted.as_bytes())).then_some(fd)?
            }
        };
        is_listening.then_some(Self { name, fd })
    }

    fn copy(&self) -> io::Result<Self> {
        Ok(Self { name: self.name, fd: self.fd.try_clone()? })
    }
}

/// The listening sockets of a server.
#[derive(Debug, Default)]
pub struct Sockets {
    /// Those passed to it and not in use yet.
    passed: Vec<Socket>,
    /// Copies of those in use.
    in_use: Vec<Socket>,
}

impl Sockets {
    /// Takes the sockets that systemd has passed to this process. A second call finds none.
    pub(super) fn inherited() -> Self {
        static TAKEN: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
        if TAKEN.swap(true, std::sync::atomic::Ordering::Relaxed) {
            return Self::default();
        }
        let variable = |name| std::env::var(name).ok();
        let own = variable("LISTEN_PID").and_then(|pid| pid.parse::<u32>().ok());
        let count = variable("LISTEN_FDS").and_then(|count| count.parse::<RawFd>().ok());
        match (own, count) {
            (Some(pid), Some(count)) if pid == std::process::id() => {
                let passed = FIRST..FIRST.saturating_add(count.clamp(0, 256));
                Self::passed(passed.filter_map(adopt).collect())
            }
            _ => Self::default(),
        }
    }

    /// Begins with sockets that another process has passed.
    pub(crate) fn passed(passed: Vec<Socket>) -> Self {
        Self { passed, in_use: Vec::new() }
    }

    /// Returns the sockets in use.
    pub(crate) fn in_use(&self) -> &[Socket] {
        &self.in_use
    }

    /// Returns copies of all sockets, for another start of the server.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn copies(&self) -> io::Result<Self> {
        let all = self.passed.iter().chain(&self.in_use);
        Ok(Self::passed(all.map(Socket::copy).collect::<io::Result<_>>()?))
    }

    /// Takes the TCP socket of an address, if it was passed.
    pub(super) fn find_tcp(&mut self, address: SocketAddr) -> Option<TcpListener> {
        self.find(SocketName { kind: SocketKind::Tcp, address }).map(TcpListener::from)
    }

    /// Takes the socket for shared memory beside a TCP socket, if it was passed.
    pub(super) fn find_shm(&mut self, address: SocketAddr) -> Option<OwnedFd> {
        let fd = self.find(SocketName { kind: SocketKind::Shm, address })?;
        // Clients are told the process that has called this last: the one that serves.
        rustix::net::listen(&fd, BACKLOG).ok()?;
        Some(fd)
    }

    fn find(&mut self, name: SocketName) -> Option<OwnedFd> {
        let is_it = |found: &SocketName| {
            let may_be_other = name.address.port() == 0;
            let is_of_host = found.kind == name.kind && found.address.ip() == name.address.ip();
            *found == name || may_be_other && is_of_host
        };
        let place = self.passed.iter().position(|socket| is_it(&socket.name))?;
        Some(self.passed.remove(place).fd)
    }

    /// Keeps a copy of a socket in use.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(super) fn keep(
        &mut self,
        kind: SocketKind,
        address: SocketAddr,
        socket: impl AsFd,
    ) -> io::Result<()> {
        let fd = socket.as_fd().try_clone_to_owned()?;
        self.in_use.push(Socket { name: SocketName { kind, address }, fd });
        Ok(())
    }

    /// Closes the passed sockets that no listener uses.
    pub(super) fn close_others(&mut self) {
        for Socket { name: SocketName { kind, address }, .. } in self.passed.drain(..) {
            tracing::warn!(%address, ?kind, "a socket was passed that the configuration does not name");
        }
    }
}

fn adopt(fd: RawFd) -> Option<Socket> {
    // SAFETY: the process that set LISTEN_PID to this process's id gave it the ownership of these
    // descriptors. They are taken once, at the start, before any other code could have opened
    // descriptors of these numbers.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC).ok()?;
    let listener = TcpListener::from(fd);
    let address = listener.local_addr().ok()?;
    Socket::adopt(SocketName { kind: SocketKind::Tcp, address }, listener.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_dat::shm;

    fn tcp(address: SocketAddr) -> SocketName {
        SocketName { kind: SocketKind::Tcp, address }
    }

    #[test]
    fn a_socket_is_the_one_that_its_name_says() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let other = SocketAddr::new(address.ip(), address.port() ^ 1);
        let copy = || OwnedFd::from(listener.try_clone().unwrap());
        assert!(Socket::adopt(tcp(address), copy()).is_some());
        assert!(Socket::adopt(tcp(other), copy()).is_none());
        let shm_name = |address| SocketName { kind: SocketKind::Shm, address };
        assert!(Socket::adopt(shm_name(address), copy()).is_none());
        let local = shm::bind_listener(&shm_socket_name(address)).unwrap();
        let copy = || local.try_clone().unwrap();
        assert!(Socket::adopt(shm_name(address), copy()).is_some());
        assert!(Socket::adopt(shm_name(other), copy()).is_none());
        assert!(Socket::adopt(tcp(address), copy()).is_none());
        let stream = std::net::TcpStream::connect(address).unwrap();
        let own = stream.local_addr().unwrap();
        assert!(Socket::adopt(tcp(own), stream.into()).is_none(), "it does not listen");
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Socket::adopt(tcp(address), file.into()).is_none());
    }

    #[test]
    fn a_copy_listens_when_the_first_server_has_ended() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut first = Sockets::default();
        first.keep(SocketKind::Tcp, address, &listener).unwrap();
        let mut second = first.copies().unwrap();
        drop((first, listener));
        let waiting = std::net::TcpStream::connect(address).unwrap();
        assert!(second.find_shm(address).is_none());
        let listener = second.find_tcp(address).unwrap();
        assert!(second.find_tcp(address).is_none(), "it is in use");
        let (_, peer) = listener.accept().unwrap();
        assert_eq!(peer, waiting.local_addr().unwrap());
    }

    #[test]
    fn port_0_stands_for_the_next_socket_of_that_host() {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let mut first = Sockets::default();
        let mut bind = || {
            let listener = TcpListener::bind(any).unwrap();
            let address = listener.local_addr().unwrap();
            first.keep(SocketKind::Tcp, address, &listener).unwrap();
            address
        };
        let addresses = [bind(), bind(), bind()];
        let mut second = first.copies().unwrap();
        let mut found = |address| Some(second.find_tcp(address)?.local_addr().unwrap());
        assert_eq!(found("127.0.0.2:0".parse().unwrap()), None);
        assert_eq!(found(addresses[1]), Some(addresses[1]));
        assert_eq!([found(any), found(any)], [Some(addresses[0]), Some(addresses[2])]);
        assert_eq!(found(any), None);
    }
}
