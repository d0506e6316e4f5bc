//! The system calls for TLS in the kernel, which rustix does not have.
//!
//! Invariants
//! * All unsafe code of this crate is here.
//! * The kernel gets only pointers to memory that lives and stays mapped for the call.

use dafs_mem::{IOV_COUNT_MAX, VolatileSlice};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The levels and names of options (`linux/tcp.h`, `linux/tls.h`).
pub(super) const SOL_TCP: i32 = 6;
pub(super) const SOL_TLS: i32 = 282;
pub(super) const TCP_ULP: i32 = 31;
pub(super) const TLS_TX: i32 = 1;
pub(super) const TLS_RX: i32 = 2;
pub(super) const TLS_RX_EXPECT_NO_PAD: i32 = 4;

/// The types of control messages.
const TLS_SET_RECORD_TYPE: i32 = 1;
const TLS_GET_RECORD_TYPE: i32 = 2;

/// A view has the layout of an `iovec`, so that no list has to be built per call.
const _: () = {
    assert!(size_of::<VolatileSlice<'_>>() == size_of::<libc::iovec>());
    assert!(align_of::<VolatileSlice<'_>>() == align_of::<libc::iovec>());
};

/// Memory for control messages, aligned for their headers.
type ControlSpace = [u64; 8];

fn check(returned: i32) -> io::Result<()> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `setsockopt` with these bytes.
pub(super) fn set_option(
    socket: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &[u8],
) -> io::Result<()> {
    // An option has tens of bytes.
    let length = value.len() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of `value`, which lives for the call.
    check(unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, value.as_ptr().cast(), length)
    })
}

/// `getsockopt` into these bytes. Returns how many the kernel wrote.
pub(super) fn get_option(
    socket: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &mut [u8],
) -> io::Result<usize> {
    let mut length = value.len() as libc::socklen_t;
    // SAFETY: the kernel writes up to `length` bytes to `value`, and its own length to `length`;
    // both live for the call.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    })?;
    Ok(value.len().min(length as usize))
}

/// The result of `recvmsg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// Bytes in the views.
    pub(super) count: usize,
    /// The content type of their record, if the kernel told it.
    pub(super) kind: Option<u8>,
    /// True at the end of a record. A longer record that is no data comes in several parts.
    pub(super) is_end: bool,
}

/// `recvmsg` into the views.
pub(super) fn receive(socket: BorrowedFd<'_>, views: &[VolatileSlice<'_>]) -> io::Result<Message> {
    let mut space: ControlSpace = [0; 8];
    // SAFETY: msghdr is plain data for which all zero is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = views.as_ptr().cast::<libc::iovec>().cast_mut();
    message.msg_iovlen = views.len().min(IOV_COUNT_MAX);
    message.msg_control = space.as_mut_ptr().cast();
    message.msg_controllen = size_of::<ControlSpace>();
    // SAFETY: the message points at iovecs whose memory the views keep mapped and writable, and at
    // aligned control space; all of it lives for the call.
    let count =
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    let is_end = message.msg_flags & libc::MSG_EOR != 0;
    Ok(Message { count, kind: record_type(&message), is_end })
}

/// The content type in the control messages that the kernel wrote.
fn record_type(message: &libc::msghdr) -> Option<u8> {
    // SAFETY: the control space of `message` is alive, aligned, and has control messages of the
    // kernel in its first `msg_controllen` bytes.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return null or a whole header inside the control space.
    while let Some(header) = unsafe { next.as_ref() } {
        // SAFETY: CMSG_LEN only calculates.
        let with_one_byte = unsafe { libc::CMSG_LEN(1) } as usize;
        let is_type = header.cmsg_level == SOL_TLS && header.cmsg_type == TLS_GET_RECORD_TYPE;
        if is_type && header.cmsg_len >= with_one_byte {
            // SAFETY: the header says that a byte of data follows it.
            return Some(unsafe { *libc::CMSG_DATA(header) });
        }
        // SAFETY: as CMSG_FIRSTHDR.
        next = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    None
}

/// `sendmsg` of one record of another content type than data.
pub(super) fn send_record(socket: BorrowedFd<'_>, kind: u8, bytes: &[u8]) -> io::Result<usize> {
    let mut space: ControlSpace = [0; 8];
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: msghdr is plain data for which all zero is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = space.as_mut_ptr().cast();
    // SAFETY: CMSG_SPACE and CMSG_LEN only calculate.
    let (space_bytes, length) = unsafe { (libc::CMSG_SPACE(1), libc::CMSG_LEN(1)) };
    message.msg_controllen = space_bytes as usize;
    // SAFETY: the control space is aligned for a header and longer than one header with a byte of
    // data, so CMSG_FIRSTHDR points at a whole header in it, and CMSG_DATA at a byte behind that.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = SOL_TLS;
        (*header).cmsg_type = TLS_SET_RECORD_TYPE;
        (*header).cmsg_len = length as usize;
        *libc::CMSG_DATA(header) = kind;
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the message points at memory that lives for the call; the kernel only reads it.
    let count = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::fd::AsFd as _;

    /// A message as the kernel leaves it, with control messages of the given types.
    fn found(list: &[(i32, i32, u8)]) -> Option<u8> {
        let mut space: ControlSpace = [0; 8];
        // SAFETY: msghdr is plain data for which all zero is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = space.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE only calculates.
        let one = unsafe { libc::CMSG_SPACE(1) } as usize;
        message.msg_controllen = one * list.len();
        assert!(message.msg_controllen <= size_of::<ControlSpace>());
        for (index, (level, kind, byte)) in list.iter().enumerate() {
            // SAFETY: `one * list.len()` bytes of the space are used, so each header with its byte
            // of data is inside; the space is aligned, and so is each multiple of CMSG_SPACE.
            unsafe {
                let header =
                    space.as_mut_ptr().cast::<u8>().add(one * index).cast::<libc::cmsghdr>();
                (*header).cmsg_level = *level;
                (*header).cmsg_type = *kind;
                (*header).cmsg_len = libc::CMSG_LEN(1) as usize;
                *libc::CMSG_DATA(header) = *byte;
            }
        }
        record_type(&message)
    }

    #[test]
    fn the_content_type_is_found_among_control_messages() {
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[(SOL_TLS, TLS_GET_RECORD_TYPE, 21)]), Some(21));
        assert_eq!(found(&[(1, TLS_GET_RECORD_TYPE, 21)]), None);
        assert_eq!(found(&[(SOL_TLS, 9, 1), (SOL_TLS, TLS_GET_RECORD_TYPE, 22)]), Some(22));
    }

    #[test]
    fn a_socket_without_tls_gives_bytes_without_a_type() {
        let (mut one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        one.write_all(b"hello").unwrap();
        let (mut first, mut second) = ([0; 2], [0; 9]);
        let views = [VolatileSlice::from_mut(&mut first), VolatileSlice::from_mut(&mut second)];
        let got = |count| Message { count, kind: None, is_end: false };
        assert_eq!(receive(other.as_fd(), &views).unwrap(), got(5));
        assert_eq!((&first, &second[..3]), (b"he", &b"llo"[..]));
        drop(one);
        let views = [VolatileSlice::from_mut(&mut first)];
        assert_eq!(receive(other.as_fd(), &views).unwrap(), got(0));
    }

    #[test]
    fn options_are_set_and_read() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let wanted = 8192i32.to_ne_bytes();
        set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, &wanted).unwrap();
        let mut value = [0; 4];
        let bytes =
            get_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, &mut value).unwrap();
        assert_eq!(bytes, 4);
        assert!(i32::from_ne_bytes(value) >= 8192);
        let error = set_option(socket.as_fd(), SOL_TLS, TLS_TX, &wanted).unwrap_err();
        assert!(error.raw_os_error().is_some());
    }
}
