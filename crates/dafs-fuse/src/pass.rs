//! Passing descriptors through a Unix socket.

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Two sockets that are connected.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Sends bytes, and a descriptor with the first of them.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], with: BorrowedFd<'_>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let with = [with];
    let fits = control.push(SendAncillaryMessage::ScmRights(&with));
    assert!(fits, "there is room for one");
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Receives bytes, and a descriptor if one comes with them.
pub(crate) fn receive(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let message = loop {
        match recvmsg(socket.as_fd(), &mut [IoSliceMut::new(bytes)], &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok((message.bytes, rights.next().and_then(|mut descriptors| descriptors.next())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_descriptor_arrives_with_its_bytes() {
        let (a, b) = pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        assert_eq!(send(&a, b"hello", writer.as_fd()).unwrap(), 5);
        drop(writer);
        let mut bytes = [0; 8];
        let (len, descriptor) = receive(&b, &mut bytes).unwrap();
        assert_eq!(&bytes[..len], b"hello");
        rustix::io::write(descriptor.unwrap(), b"x").unwrap();
        let mut said = Vec::new();
        reader.read_to_end(&mut said).unwrap();
        assert_eq!(said, b"x");
        drop(a);
        assert!(matches!(receive(&b, &mut bytes), Ok((0, None))));
    }
}
