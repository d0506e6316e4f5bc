//! The user of the process at the other end of an accepted TCP connection.
//!
//! An address of this host does not identify the user, nor does a port below 1024, and a client may
//! claim any identity. The kernel knows the owner of each socket.
//!
//! Invariants
//! * The owner is that of the socket with the same two addresses in reverse, while both sockets are
//!   established. A socket with the same port at another address of this host does not count.
//! * A peer at an address of this host whose socket is not found is never taken for another host:
//!   it may be about to close, in another network namespace, or bound to a device.
//! * A query takes microseconds, independent of the number of connections, and never waits.

mod diag;
mod groups;

use crate::{PeerInfo, PeerProcess};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Once;

/// Identifies the peer of an accepted TCP connection.
///
/// # Errors
/// When there is no file descriptor or memory for the query; then the connection must not be used.
pub fn tcp_peer(socket: impl AsFd, peer: SocketAddr) -> io::Result<PeerInfo> {
    let uid = match owner(socket.as_fd(), peer) {
        Err(error) if is_shortage(&error) => return Err(error),
        Err(error) => {
            complain(&error);
            None
        }
        Ok(uid) => uid,
    };
    let is_local = uid.is_some() || find_address(peer)?;
    let process = match uid {
        Some(uid) => Some(PeerProcess { pid: 0, uid, gid: groups::primary(uid)? }),
        None => None,
    };
    Ok(PeerInfo { address: Some(peer), process, is_local, ..PeerInfo::default() })
}

/// True for an error that passes when other code frees descriptors or memory.
fn is_shortage(error: &io::Error) -> bool {
    let codes = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Logs once why this server knows no local users.
fn complain(error: &io::Error) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tracing::warn!(
            %error,
            "the kernel does not tell whose processes of this host connect over TCP, so all of them \
             are strangers; let this process use AF_NETLINK (systemd: RestrictAddressFamilies), and \
             load the kernel's module tcp_diag"
        );
    });
}

/// True if an address belongs to this host, or if that is unknown.
pub fn is_of_this_host(address: SocketAddr) -> bool {
    find_address(address).unwrap_or(true)
}

fn find_address(address: SocketAddr) -> io::Result<bool> {
    let address = canonical(address);
    if address.ip().is_loopback() {
        return Ok(true);
    }
    match diag::is_local(address) {
        Err(error) if is_shortage(&error) => return Err(error),
        Err(_) => {}
        known => return known,
    }
    // Without the routing table: this is the one error that only addresses of other hosts cause. In
    // doubt a peer counts as local, because then it is refused and not trusted.
    match UdpSocket::bind(with_port(address, 0)) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(false),
        Err(error) if is_shortage(&error) => Err(error),
        _ => Ok(true),
    }
}

/// The user of the socket at the other end of `socket`, if it is on this host.
fn owner(socket: BorrowedFd<'_>, peer: SocketAddr) -> io::Result<Option<u32>> {
    let own = canonical(SocketAddr::try_from(rustix::net::getsockname(socket)?)?);
    let peer = canonical(peer);
    let Some(found) = diag::find(peer, own)? else {
        // A kernel without the module reports every socket as missing.
        let is_blind = diag::find(own, peer)?.is_none() && is_established(socket)?;
        return if is_blind { Err(io::ErrorKind::Unsupported.into()) } else { Ok(None) };
    };
    // A socket that is closed during the query has no owner any more, which the kernel reports as
    // user 0. Then it is not established.
    let again = diag::find(peer, own)?;
    let same = again.is_some_and(|again| again.cookie == found.cookie);
    // And the peer did not close and leave its port to another process before.
    Ok((same && is_established(socket)?).then_some(found.uid))
}

/// True if a connected socket has neither failed nor received the end of its peer.
fn is_established(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let mut sockets = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    poll(&mut sockets, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    let over = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    Ok(!sockets[0].revents().intersects(over))
}

/// The same address, as IPv4 if it is an IPv4-mapped IPv6 address.
fn canonical(end: SocketAddr) -> SocketAddr {
    match (end, end.ip().to_canonical()) {
        (SocketAddr::V6(_), ip @ IpAddr::V4(_)) => SocketAddr::new(ip, end.port()),
        _ => end,
    }
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Uid, geteuid};
    use socket2::{Domain, Socket, Type};
    use std::io::Write;
    use std::net::{Shutdown, TcpListener, TcpStream};

    fn listener(address: &str) -> TcpListener {
        TcpListener::bind(address).unwrap()
    }

    fn accept(listener: &TcpListener) -> (TcpStream, PeerInfo) {
        let (stream, peer) = listener.accept().unwrap();
        let info = tcp_peer(&stream, peer).unwrap();
        (stream, info)
    }

    /// Connects from a port that other sockets use too.
    fn dial(from: SocketAddr, to: SocketAddr) -> Socket {
        let socket = Socket::new(Domain::for_address(from), Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&from.into()).unwrap();
        socket.connect(&to.into()).unwrap();
        socket
    }

    /// Runs `work` on a thread with the credentials of this user.
    fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> T {
        let run = move || {
            let uid = Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            work()
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    #[test]
    fn the_kernel_names_the_owner_of_a_connection() {
        let own = geteuid().as_raw();
        for (address, way) in [
            ("127.0.0.1:0", None),
            ("127.0.0.2:0", None),
            ("[::1]:0", None),
            // A socket of one family may accept connections of the other.
            ("[::]:0", Some("127.0.0.1")),
            ("127.0.0.1:0", Some("::ffff:127.0.0.1")),
        ] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let mut to = listener.local_addr().unwrap();
            if let Some(way) = way {
                to.set_ip(way.parse().unwrap());
            }
            let Ok(_stream) = TcpStream::connect(to) else { continue };
            let (_accepted, info) = accept(&listener);
            assert_eq!(info.process.map(|process| process.uid), Some(own), "{address} {way:?}");
            assert!(info.is_local);
        }
    }

    #[test]
    fn the_same_port_to_another_address_is_another_connection() {
        if !geteuid().is_root() {
            return;
        }
        let listener = listener("0.0.0.0:0");
        let port = listener.local_addr().unwrap().port();
        let to = |last: u8| SocketAddr::from(([127, 0, 0, last], port));
        let roots = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        roots.set_reuse_address(true).unwrap();
        roots.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        roots.connect(&to(1).into()).unwrap();
        let from = roots.local_addr().unwrap().as_socket().unwrap();
        let (_first, info) = accept(&listener);
        assert_eq!(info.process.unwrap().uid, 0);
        let _theirs = as_user(1234, || dial(from, to(2)));
        let (_second, info) = accept(&listener);
        assert_eq!((info.address, info.process.unwrap().uid), (Some(from), 1234));
    }

    #[test]
    fn a_peer_that_has_closed_is_nobody() {
        let listener = listener("127.0.0.1:0");
        let to = listener.local_addr().unwrap();
        for half in [false, true] {
            let mut stream = TcpStream::connect(to).unwrap();
            stream.write_all(b"a request").unwrap();
            let kept = half.then(|| stream.shutdown(Shutdown::Write).map(|()| stream));
            let (_accepted, info) = accept(&listener);
            assert_eq!((info.process, info.is_local), (None, true), "{half}");
            drop(kept);
        }
    }

    #[test]
    fn a_port_that_another_socket_has_taken_over_is_not_asked_about() {
        let listener = listener("127.0.0.1:0");
        let to = listener.local_addr().unwrap();
        let first = dial("127.0.0.1:0".parse().unwrap(), to);
        let from = first.local_addr().unwrap().as_socket().unwrap();
        let (old, _) = listener.accept().unwrap();
        // The reset frees both ends at once.
        first.set_linger(Some(std::time::Duration::ZERO)).unwrap();
        drop(first);
        let _second = dial(from, to);
        let (new, _) = listener.accept().unwrap();
        assert_eq!(tcp_peer(&old, from).unwrap().process, None);
        assert!(tcp_peer(&new, from).unwrap().process.is_some());
    }

    #[test]
    fn addresses_of_this_host_are_told_from_others() {
        let is_ours = |text: &str| is_of_this_host(text.parse().unwrap());
        assert!(is_ours("127.9.9.9:1") && is_ours("[::1]:1") && is_ours("[::ffff:127.0.0.1]:1"));
        assert!(!is_ours("192.0.2.77:1") && !is_ours("[2001:db8::77]:1"));
        // The address of this host on a network, if it has one.
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        if socket.connect("192.0.2.77:9").is_ok() {
            assert!(is_of_this_host(socket.local_addr().unwrap()));
        }
    }
}
