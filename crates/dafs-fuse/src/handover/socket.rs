//! The socket between the two processes, and messages on it: a length, and so many bytes.

use crate::limits::{HANDOVER_BYTES_MAX, HANDOVER_PATIENCE};
use crate::pass;
use std::io::{self, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

/// The first message of each side; the last digits are the version of the protocol.
const HELLO: &[u8] = b"dafs mount handover 5";
/// The second is connected to the server.
pub(super) const CONNECTED: &[u8] = b"connected";
/// The second has everything.
pub(super) const TAKEN: &[u8] = b"taken";
/// The first will do nothing more.
pub(super) const GO_ON: &[u8] = b"go on";

/// The address on which the process that serves a mount listens.
pub(super) fn address(device: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("dafs-mount-{device}"))
}

/// Checks the user of the peer, since anybody may listen or connect, and sets timeouts.
pub(super) fn check(stream: &UnixStream) -> io::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        let reason = format!("the other process belongs to user {}", peer.uid.as_raw());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    stream.set_read_timeout(Some(HANDOVER_PATIENCE))?;
    stream.set_write_timeout(Some(HANDOVER_PATIENCE))
}

fn length(bytes: &[u8]) -> [u8; 8] {
    (bytes.len() as u64).to_ne_bytes()
}

pub(super) fn send(mut stream: &UnixStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(&length(bytes))?;
    stream.write_all(bytes)
}

/// Each side sends its version before it reads that of the other, so that both can report a
/// mismatch.
pub(super) fn greet(stream: &UnixStream) -> io::Result<()> {
    send(stream, HELLO)?;
    match receive(stream)? == HELLO {
        true => Ok(()),
        false => Err(io::Error::other("it speaks another version of this")),
    }
}

/// Sends a message with a descriptor.
pub(super) fn send_with(
    mut stream: &UnixStream,
    bytes: &[u8],
    with: BorrowedFd<'_>,
) -> io::Result<()> {
    let length = length(bytes);
    let sent = pass::send(stream, &length, with)?;
    stream.write_all(&length[sent..])?;
    stream.write_all(bytes)
}

pub(super) fn receive(stream: &UnixStream) -> io::Result<Vec<u8>> {
    receive_with(stream).map(|(bytes, _)| bytes)
}

/// Receives a message, and the descriptor that came with it.
pub(super) fn receive_with(mut stream: &UnixStream) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut length = [0; 8];
    let (begun, descriptor) = pass::receive(stream, &mut length)?;
    if begun == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    stream.read_exact(&mut length[begun..])?;
    let length = u64::from_ne_bytes(length);
    if length > HANDOVER_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    let mut bytes = Vec::new();
    // Grows with the data that arrives, not with the announced length.
    stream.take(length).read_to_end(&mut bytes)?;
    if (bytes.len() as u64) < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((bytes, descriptor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn messages_arrive_whole_and_with_their_descriptor() {
        let (a, b) = UnixStream::pair().unwrap();
        check(&a).unwrap();
        let long = vec![7; 1 << 20];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                send(&a, b"").unwrap();
                send_with(&a, &long, a.as_fd()).unwrap();
            });
            assert_eq!(receive(&b).unwrap(), b"");
            let (bytes, descriptor) = receive_with(&b).unwrap();
            assert!(bytes == long && descriptor.is_some());
        });
        (&a).write_all(&u64::MAX.to_ne_bytes()).unwrap();
        assert!(receive(&b).is_err(), "a length that nobody means");
        (&a).write_all(&9_u64.to_ne_bytes()).unwrap();
        drop(a);
        assert!(receive(&b).is_err(), "an end in the middle");
    }

    #[test]
    fn both_hear_that_they_do_not_speak_the_same() {
        let (a, b) = UnixStream::pair().unwrap();
        send(&a, b"dafs mount handover 0").unwrap();
        let error = greet(&b).unwrap_err();
        assert!(error.to_string().contains("another version"), "{error}");
        drop(b);
        assert_eq!(receive(&a).unwrap(), HELLO);
        let (a, b) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| greet(&a).unwrap());
            greet(&b).unwrap();
        });
    }
}
