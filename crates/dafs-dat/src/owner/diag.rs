//! Queries the kernel for one TCP connection (sock_diag(7)) and for one address (rtnetlink(7)).
//!
//! Invariants
//! * A query takes microseconds, independent of the number of connections, and never waits.

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const HEADER_BYTES: usize = 16;
const ANSWER_BYTES_MAX: usize = 1024;
const FLAG_REQUEST: u16 = 1;

/// Netlink protocol 0.
const NETLINK_ROUTE: Option<Protocol> = None;

/// Message types.
const ERROR: u16 = 2;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const ROUTE_IS: u16 = 24;
const ROUTE_ASKED: u16 = 26;

/// Bytes of ports, addresses and device in a connection query; below, offsets in the answer.
const ENDS_BYTES: usize = 40;
const FAMILY_AT: usize = 0;
const STATE_AT: usize = 1;
const ENDS_AT: usize = 4;
const COOKIE_AT: usize = 44;
const UID_AT: usize = 64;
const STATE_ESTABLISHED: u8 = 1;

/// A route: its length, the offset of its type, the type of a local address, and attributes of the
/// query.
const ROUTE_BYTES: usize = 12;
const ROUTE_TYPE_AT: usize = 7;
const ROUTE_LOCAL: u8 = 2;
const ROUTE_TO: u16 = 1;
const ROUTE_BY: u16 = 4;

/// An established socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    /// The user that owns the socket.
    pub(super) uid: u32,
    /// The socket's cookie, which is never reused.
    pub(super) cookie: u64,
}

/// Finds the established connection between `own` and `other`, both of one family; `None` when this
/// host has no such connection.
///
/// # Errors
/// When the kernel does not answer such queries.
pub(super) fn find(own: SocketAddr, other: SocketAddr) -> io::Result<Option<Found>> {
    let mut body = vec![family(own), libc::IPPROTO_TCP as u8, 0, 0];
    // A socket in any state.
    body.extend([0xff; 4]);
    body.extend(ends(own, other));
    // A socket with any cookie.
    body.extend([0xff; 8]);
    match ask(Some(netlink::SOCK_DIAG), SOCK_DIAG_BY_FAMILY, &body) {
        Ok(Answer::Message(SOCK_DIAG_BY_FAMILY, answer)) => read(&answer, own, other),
        Ok(Answer::Refusal(libc::ENOENT)) => Ok(None),
        Ok(answer) => Err(answer.unexpected()),
        Err(error) => Err(error),
    }
}

/// True if an address is one of this host's own.
///
/// # Errors
/// When the kernel does not answer such queries.
pub(super) fn is_local(address: SocketAddr) -> io::Result<bool> {
    let mut body = vec![0; ROUTE_BYTES];
    let mut attribute = |kind: u16, value: &[u8]| {
        body.extend((4 + value.len() as u16).to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(value);
    };
    let bits = match address.ip() {
        IpAddr::V4(ip) => {
            attribute(ROUTE_TO, &ip.octets());
            32
        }
        IpAddr::V6(ip) => {
            attribute(ROUTE_TO, &ip.octets());
            128
        }
    };
    if device(address) != 0 {
        attribute(ROUTE_BY, &device(address).to_ne_bytes());
    }
    (body[0], body[1]) = (family(address), bits);
    match ask(NETLINK_ROUTE, ROUTE_ASKED, &body) {
        Ok(Answer::Message(ROUTE_IS, answer)) => {
            Ok(answer.get(ROUTE_TYPE_AT) == Some(&ROUTE_LOCAL))
        }
        // There is no route to it.
        Ok(Answer::Refusal(libc::ENETUNREACH | libc::EHOSTUNREACH)) => Ok(false),
        Ok(answer) => Err(answer.unexpected()),
        Err(error) => Err(error),
    }
}

/// The kernel's answer to a delivered query. An error of the delivery, such as that of a sandbox,
/// is not an answer.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// The type and the body of a message.
    Message(u16, Vec<u8>),
    /// An error code.
    Refusal(i32),
}

impl Answer {
    fn unexpected(self) -> io::Error {
        match self {
            Self::Message(..) => io::ErrorKind::InvalidData.into(),
            Self::Refusal(code) => io::Error::from_raw_os_error(code),
        }
    }
}

/// Sends one query.
fn ask(protocol: Option<Protocol>, kind: u16, body: &[u8]) -> io::Result<Answer> {
    let (family, sort) = (AddressFamily::NETLINK, SocketType::DGRAM);
    let socket = rustix::net::socket_with(family, sort, SocketFlags::CLOEXEC, protocol)?;
    let mut question = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
    question.extend(kind.to_ne_bytes());
    question.extend(FLAG_REQUEST.to_ne_bytes());
    question.resize(HEADER_BYTES, 0);
    question.extend(body);
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(&socket, &question, SendFlags::empty(), &kernel)?;
    // The kernel has answered before the send returns.
    let mut answer = [0; ANSWER_BYTES_MAX];
    let (len, _) = rustix::net::recv(&socket, answer.as_mut_slice(), RecvFlags::DONTWAIT)?;
    take_apart(&answer[..len])
}

fn take_apart(answer: &[u8]) -> io::Result<Answer> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidData);
    let kind = answer.get(4..6).and_then(|kind| kind.try_into().ok()).map(u16::from_ne_bytes);
    let (kind, body) = kind.zip(answer.get(HEADER_BYTES..)).ok_or_else(wrong)?;
    if kind != ERROR {
        return Ok(Answer::Message(kind, body.to_vec()));
    }
    let code = word(body, 0).ok_or_else(wrong)?.cast_signed().wrapping_neg();
    Ok(Answer::Refusal(code))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn family(end: SocketAddr) -> u8 {
    (if end.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

/// The device of a link-local address; 0 for other addresses.
fn device(end: SocketAddr) -> u32 {
    if let SocketAddr::V6(end) = end { end.scope_id() } else { 0 }
}

fn ends(own: SocketAddr, other: SocketAddr) -> [u8; ENDS_BYTES] {
    let mut bytes = [0; ENDS_BYTES];
    for (at, end) in [(0, own), (1, other)] {
        bytes[2 * at..2 * at + 2].copy_from_slice(&end.port().to_be_bytes());
        let address = 4 + 16 * at;
        match end.ip() {
            IpAddr::V4(ip) => bytes[address..address + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes[address..address + 16].copy_from_slice(&ip.octets()),
        }
    }
    bytes[36..].copy_from_slice(&device(own).max(device(other)).to_ne_bytes());
    bytes
}

/// Parses an answer. The kernel may answer with a listener if the connection has ended, and with an
/// IPv6 socket for an IPv4 socket at the same address.
fn read(answer: &[u8], own: SocketAddr, other: SocketAddr) -> io::Result<Option<Found>> {
    let found = || {
        let cookie = answer.get(COOKIE_AT..COOKIE_AT + 8)?.try_into().ok()?;
        let uid = word(answer, UID_AT)?;
        Some(Found { uid, cookie: u64::from_ne_bytes(cookie) })
    };
    let found = found().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    let ends = [(0, own), (1, other)].into_iter().all(|(at, end)| {
        let port = &answer[ENDS_AT + 2 * at..][..2];
        let address = &answer[ENDS_AT + 4 + 16 * at..][..16];
        port == end.port().to_be_bytes() && ip(answer[FAMILY_AT], address) == Some(end.ip())
    });
    Ok((ends && answer[STATE_AT] == STATE_ESTABLISHED).then_some(found))
}

fn ip(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    if i32::from(family) == libc::AF_INET {
        let bytes: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
        return Some(Ipv4Addr::from(bytes).into());
    }
    let bytes: [u8; 16] = bytes.try_into().ok()?;
    Some(IpAddr::from(Ipv6Addr::from(bytes)).to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn connections_are_told_from_listeners_and_from_nothing() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let here = listener.local_addr().unwrap();
            let stream = TcpStream::connect(here).unwrap();
            let (server, _) = listener.accept().unwrap();
            let peer = stream.local_addr().unwrap();
            let uid = |own, other| find(own, other).unwrap().map(|found| found.uid);
            assert_eq!(uid(peer, here), Some(rustix::process::geteuid().as_raw()));
            assert_eq!(uid(here, peer), uid(peer, here));
            assert_ne!(find(here, peer).unwrap(), find(peer, here).unwrap());
            let mut nobody = peer;
            nobody.set_port(peer.port().wrapping_add(1));
            assert_eq!(uid(here, nobody), None, "a listener is no connection");
            assert_eq!(uid(nobody, here), None);
            // A closed socket has no owner.
            drop(stream);
            assert_eq!(uid(peer, here), None);
            drop(server);
        }
    }

    #[test]
    fn a_malformed_answer_is_refused() {
        let end = "127.0.0.1:7".parse().unwrap();
        let bytes = [0xff; UID_AT + 4];
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len], end, end).is_err(), "{len}");
        }
        assert_eq!(read(&bytes, end, end).unwrap(), None);
        assert!((0..HEADER_BYTES).all(|len| take_apart(&bytes[..len]).is_err()));
    }
}
