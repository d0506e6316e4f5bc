//! Asks the kernel about one TCP connection, by netlink (sock_diag(7)).
//!
//! Invariants
//! * It takes microseconds however many connections there are, and never waits.

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::net::{IpAddr, SocketAddr};

const REQUEST_BYTES: usize = 72;
const MESSAGE_HEADER_BYTES: usize = 16;
/// The type of a request and of its answer.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const FLAG_REQUEST: u16 = 1;
const STATE_ESTABLISHED: u8 = 1;

/// Where things stand in an answer, behind the header of the message.
const STATE_AT: usize = 1;
const IDENTITY_AT: usize = 4;
/// Of an identity, what is ports and addresses.
const ENDS_BYTES: usize = 36;
const UID_AT: usize = 64;

/// The user of the established connection whose own end is `own` and whose other end is `other`, both
/// of one family; `None` when there is no such connection on this host.
///
/// # Errors
/// When the kernel does not answer such questions.
pub(super) fn owner(own: SocketAddr, other: SocketAddr) -> io::Result<Option<u32>> {
    let kind = (AddressFamily::NETLINK, SocketType::DGRAM, Some(netlink::SOCK_DIAG));
    let socket = rustix::net::socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, kind.2)?;
    let (question, kernel) = (request(own, other), SocketAddrNetlink::new(0, 0));
    rustix::net::sendto(&socket, &question, SendFlags::empty(), &kernel)?;
    // The kernel has answered before it returned from sending.
    let mut answer = [0; 512];
    let (len, _) = rustix::net::recv(&socket, answer.as_mut_slice(), RecvFlags::DONTWAIT)?;
    read(&question, &answer[..len])
}

fn request(own: SocketAddr, other: SocketAddr) -> [u8; REQUEST_BYTES] {
    let family = if own.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..4].copy_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&FLAG_REQUEST.to_ne_bytes());
    let body = &mut bytes[MESSAGE_HEADER_BYTES..];
    body[0] = family as u8;
    body[1] = libc::IPPROTO_TCP as u8;
    // In any state, and with any cookie.
    body[4..8].fill(0xff);
    body[48..56].fill(0xff);
    let ends = &mut body[8..8 + ENDS_BYTES];
    for (at, end) in [(0, own), (1, other)] {
        ends[2 * at..2 * at + 2].copy_from_slice(&end.port().to_be_bytes());
        let address = 4 + 16 * at;
        match end.ip() {
            IpAddr::V4(ip) => ends[address..address + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => ends[address..address + 16].copy_from_slice(&ip.octets()),
        }
    }
    bytes
}

fn read(question: &[u8; REQUEST_BYTES], answer: &[u8]) -> io::Result<Option<u32>> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidData);
    let word = |bytes: Option<&[u8]>| {
        bytes.and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes).ok_or_else(wrong)
    };
    let kind = answer.get(4..6).and_then(|kind| kind.try_into().ok()).map(u16::from_ne_bytes);
    let body = answer.get(MESSAGE_HEADER_BYTES..).ok_or_else(wrong)?;
    match kind {
        Some(SOCK_DIAG_BY_FAMILY) => {}
        Some(_) => {
            let code = word(body.get(..4))?.cast_signed().wrapping_neg();
            return match code {
                libc::ENOENT => Ok(None),
                code => Err(io::Error::from_raw_os_error(code)),
            };
        }
        None => return Err(wrong()),
    }
    // The kernel answers for a listener in place of a connection that is gone.
    let asked = &question[MESSAGE_HEADER_BYTES + 8..][..ENDS_BYTES];
    let same = body.get(IDENTITY_AT..IDENTITY_AT + ENDS_BYTES) == Some(asked);
    let uid = word(body.get(UID_AT..UID_AT + 4))?;
    Ok((same && body[STATE_AT] == STATE_ESTABLISHED).then_some(uid))
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
            // Where the kernel cannot be asked, the table is read.
            let Ok(found) = owner(peer, here) else { return };
            assert_eq!(found, Some(rustix::process::geteuid().as_raw()));
            assert_eq!(owner(here, peer).unwrap(), found);
            let mut nobody = peer;
            nobody.set_port(peer.port().wrapping_add(1));
            assert_eq!(owner(here, nobody).unwrap(), None, "a listener is no connection");
            assert_eq!(owner(nobody, here).unwrap(), None);
            // What has been closed belongs to nobody.
            drop(stream);
            assert_eq!(owner(peer, here).unwrap(), None);
            drop(server);
        }
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        let end = "127.0.0.1:7".parse().unwrap();
        let question = request(end, end);
        for len in 0..REQUEST_BYTES {
            let mut bytes = question;
            bytes[7] = 0xff;
            assert!(read(&question, &bytes[..len]).is_err(), "{len}");
        }
    }
}
