//! The messages between two servers (`dafs_wire::hand_over`), one of which has descriptors with it.
//!
//! Invariants
//! * Each side waits for the answer of the other one, so no bytes follow a line before it was read.
//! * A line, and the number of descriptors, are bounded.

use crate::limits::{HAND_OVER_LINE_BYTES_MAX, HAND_OVER_SOCKETS_MAX};
use crate::server::Socket;
use dafs_wire::hand_over::Message;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// The line by which a process asks for the sockets, at the administrators' socket.
pub(crate) const HAND_OVER: &str = "\"hand_over\"";

/// The bytes of a line of another version that an error shows.
const SHOWN_BYTES: usize = 200;

pub(super) fn send(mut stream: &UnixStream, message: &Message) -> io::Result<()> {
    stream.write_all(message.to_line().as_bytes())
}

/// Sends sockets, with copies of their descriptors.
///
/// # Errors
/// There are too many, or the peer is gone.
pub(super) fn send_sockets(mut stream: &UnixStream, sockets: &[Socket]) -> io::Result<()> {
    let names = sockets.iter().map(|socket| socket.name).collect();
    let line = Message::Sockets(names).to_line().into_bytes();
    let descriptors: Vec<BorrowedFd<'_>> = sockets.iter().map(|socket| socket.fd.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HAND_OVER_SOCKETS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = descriptors.len() <= HAND_OVER_SOCKETS_MAX
        && control.push(SendAncillaryMessage::ScmRights(&descriptors));
    if !fits {
        let text = format!("a server with more than {HAND_OVER_SOCKETS_MAX} sockets is restarted");
        return Err(io::Error::other(text));
    }
    let sent = sendmsg(stream, &[IoSlice::new(&line)], &mut control, SendFlags::NOSIGNAL)?;
    stream.write_all(&line[sent..])
}

/// Receives a message, and the descriptors with it.
///
/// # Errors
/// The peer is gone or silent, or the line is none of these.
pub(super) fn receive(stream: &UnixStream) -> io::Result<(Message, Vec<OwnedFd>)> {
    let (mut line, mut descriptors) = (Vec::new(), Vec::new());
    while !line.ends_with(b"\n") {
        if line.len() > HAND_OVER_LINE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
        }
        receive_some(stream, &mut line, &mut descriptors)?;
    }
    let message = Message::parse(&line);
    let other = || {
        let line = &line[..line.len().min(SHOWN_BYTES)];
        let line = String::from_utf8_lossy(line);
        io::Error::other(format!(
            "the other server is of another version, so restart: {}",
            line.trim_end()
        ))
    };
    Ok((message.ok_or_else(other)?, descriptors))
}

fn receive_some(
    stream: &UnixStream,
    line: &mut Vec<u8>,
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<()> {
    let mut bytes = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HAND_OVER_SOCKETS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            other => break other?.bytes,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    if received == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    line.extend_from_slice(&bytes[..received]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Sockets;
    use dafs_wire::hand_over::{Released, SocketKind, SocketName};
    use std::net::TcpListener;

    fn messages() -> [Message; 5] {
        [
            Message::Failed("a reason\nof two lines".to_owned()),
            Message::Go,
            Message::Released(Released {
                write_verifier: Some([0, 1, 127, 128, 254, 255, 6, 7]),
                states: vec![0, 1, u64::MAX],
            }),
            Message::Released(Released::default()),
            Message::Serving,
        ]
    }

    #[test]
    fn messages_arrive_whole() {
        let (a, b) = UnixStream::pair().unwrap();
        for message in messages() {
            send(&a, &message).unwrap();
            let (arrived, descriptors) = receive(&b).unwrap();
            assert!(arrived == message && descriptors.is_empty(), "{arrived:?}");
        }
        let long = Message::Failed("x".repeat(HAND_OVER_LINE_BYTES_MAX / 2));
        send(&a, &long).unwrap();
        assert_eq!(receive(&b).unwrap().0, long);
    }

    #[test]
    fn sockets_arrive_with_their_names() {
        let listeners: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let sockets: Vec<_> = listeners
            .iter()
            .map(|listener| {
                let address = listener.local_addr().unwrap();
                let name = SocketName { kind: SocketKind::Tcp, address };
                Socket::adopt(name, listener.try_clone().unwrap().into()).unwrap()
            })
            .collect();
        let (a, b) = UnixStream::pair().unwrap();
        send_sockets(&a, &sockets).unwrap();
        let (Message::Sockets(names), descriptors) = receive(&b).unwrap() else {
            panic!("another message");
        };
        let adopted = names.iter().zip(descriptors);
        let adopted: Vec<_> =
            adopted.map(|(name, descriptor)| Socket::adopt(*name, descriptor).unwrap()).collect();
        assert_eq!(adopted.len(), 3);
        let copies = Sockets::passed(adopted).copies().unwrap();
        assert!(copies.in_use().is_empty());
    }

    #[test]
    fn a_damaged_line_is_an_error_or_another_message() {
        for line in messages().map(|message| message.to_line().into_bytes()) {
            for bit in 0..8 * line.len() {
                let mut damaged = line.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let (a, b) = UnixStream::pair().unwrap();
                (&a).write_all(&damaged).unwrap();
                drop(a);
                if let Ok((message, descriptors)) = receive(&b) {
                    assert!(descriptors.is_empty(), "{message:?}");
                }
            }
        }
    }

    #[test]
    fn other_lines_are_errors() {
        for bytes in [b"nonsense\n".to_vec(), b"serving".to_vec(), b"\n".to_vec(), Vec::new()] {
            let (a, b) = UnixStream::pair().unwrap();
            (&a).write_all(&bytes).unwrap();
            drop(a);
            receive(&b).unwrap_err();
        }
        let (a, b) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let long = "x".repeat(4 * HAND_OVER_LINE_BYTES_MAX);
            scope.spawn(move || drop((&a).write_all(long.as_bytes())));
            assert!(receive(&b).unwrap_err().to_string().contains("too long"));
            drop(b);
        });
    }
}
