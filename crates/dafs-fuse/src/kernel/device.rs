//! The device `/dev/fuse`, which carries the kernel's requests.
//!
//! Invariants
//! * The data of a write is received in memory that the server can read, and the data of a read is
//!   sent from memory that the server has written: neither is copied in between.

use super::answer;
use super::errno::Errno;
use super::request::{NodeId, Operation, Request, WRITE, waits_for_others};
use super::{REQUEST_HEAD_BYTES, WRITE_DATA_AT};
use crate::limits::WRITE_BYTES_MAX;
use dafs_client::IoBuffer;
use dafs_mem::{Site, VolatileSlice};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The device, opened and bound to a mount.
#[derive(Debug)]
pub(crate) struct Device(OwnedFd);

/// The buffers of one thread, for requests and for the data of reads.
#[derive(Debug)]
pub(crate) struct Room {
    /// The heads of requests, and whole requests without data.
    plain: Vec<u8>,
    /// The data behind the head of a write. The server can reach it.
    data: IoBuffer,
    /// The server may still write there, for a transfer that was given up: it must not be reused.
    is_unsafe: bool,
}

/// The result of a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// A request of so many bytes.
    Request(usize),
    /// No request, because of a signal or without waiting.
    Nothing,
    /// The mount is gone.
    Unmounted,
}

impl Room {
    /// # Errors
    /// There is no memory, or the session is over.
    pub(crate) fn new(client: &dafs_client::Client) -> dafs_client::Result<Self> {
        let plain = vec![0; WRITE_DATA_AT + WRITE_BYTES_MAX as usize];
        Ok(Self { plain, data: client.buffer(WRITE_BYTES_MAX as usize)?, is_unsafe: false })
    }

    /// Marks the data buffer as unusable, because a transfer has failed.
    pub(crate) fn give_up(&mut self) {
        self.is_unsafe = true;
    }

    pub(crate) fn is_unsafe(&self) -> bool {
        self.is_unsafe
    }

    /// Replaces a buffer that was given up.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn renew(&mut self, client: &dafs_client::Client) -> dafs_client::Result<()> {
        if self.is_unsafe {
            self.data = client.buffer(WRITE_BYTES_MAX as usize)?;
            self.is_unsafe = false;
        }
        Ok(())
    }

    /// The request that was received. Its body is copied, unless it is data of a write.
    ///
    /// # Errors
    /// As [`Request::parse`]; a write whose data is not as long as it says.
    pub(crate) fn request(
        &mut self,
        bytes: usize,
    ) -> Result<(Request<'_>, &mut IoBuffer), Option<u64>> {
        let Self { plain, data, is_unsafe } = self;
        let at_once = if *is_unsafe { bytes } else { bytes.min(WRITE_DATA_AT) };
        let is_write = at_once >= REQUEST_HEAD_BYTES && plain[4..8] == WRITE.to_ne_bytes();
        if is_write {
            return Ok((write(&plain[..at_once.min(WRITE_DATA_AT)], bytes)?, data));
        }
        if bytes == at_once {
            return Ok((Request::parse(&plain[..at_once])?, data));
        }
        gather(plain, data, at_once..bytes);
        Ok((Request::parse(&plain[..bytes])?, data))
    }

    /// A copy of the request that was received, if it may wait for operations of other mounts.
    pub(crate) fn copy_to_set_aside(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let operation = self.plain.get(4..8).filter(|_| bytes >= REQUEST_HEAD_BYTES)?;
        if !waits_for_others(u32::from_ne_bytes(operation.try_into().ok()?)) {
            return None;
        }
        let at_once = if self.is_unsafe { bytes } else { bytes.min(WRITE_DATA_AT) };
        gather(&mut self.plain, &self.data, at_once..bytes);
        Some(self.plain[..bytes].to_vec())
    }
}

/// Copies the part of a request that was received in the data buffer to its place.
fn gather(plain: &mut [u8], data: &IoBuffer, part: Range<usize>) {
    if let Some(behind) = data.slice(0, part.len()) {
        behind.copy_to(&mut plain[part], Site::Inspect);
    }
}

/// A write, of whose request so many bytes have arrived. The bytes behind them in the buffer belong
/// to an earlier request, perhaps of another user.
fn write(head: &[u8], bytes: usize) -> Result<Request<'_>, Option<u64>> {
    let request = Request::parse(head)?;
    match request.operation {
        Operation::Write { len, .. } if bytes != WRITE_DATA_AT + len as usize => {
            Err(Some(request.unique))
        }
        _ => Ok(request),
    }
}

impl Device {
    pub(crate) fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Waits for a request.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn receive(&self, room: &mut Room) -> io::Result<Received> {
        let received = match room.is_unsafe {
            true => dafs_mem::readv(self.as_fd(), &[VolatileSlice::from_mut(&mut room.plain)]),
            false => {
                let head = VolatileSlice::from_mut(&mut room.plain[..WRITE_DATA_AT]);
                dafs_mem::readv(self.as_fd(), &[head, room.data.view()])
            }
        };
        match received {
            Ok(bytes) => Ok(Received::Request(bytes)),
            Err(error) => match error.raw_os_error() {
                // ENOENT: the request was interrupted before it was received.
                Some(libc::EINTR | libc::EAGAIN | libc::ENOENT) => Ok(Received::Nothing),
                Some(libc::ENODEV) => Ok(Received::Unmounted),
                _ => Err(error),
            },
        }
    }

    /// Answers a request.
    pub(crate) fn answer(&self, unique: u64, body: Result<&[u8], Errno>) {
        let head = answer::head(unique, body.map(<[u8]>::len));
        let parts = [io::IoSlice::new(&head), io::IoSlice::new(body.unwrap_or_default())];
        let count = if body.is_ok_and(|body| !body.is_empty()) { 2 } else { 1 };
        check(unique, rustix::io::writev(&self.0, &parts[..count]).map_err(io::Error::from));
    }

    /// Answers a read with the data in place.
    pub(crate) fn answer_data(&self, unique: u64, data: VolatileSlice<'_>) {
        let mut head = answer::head(unique, Ok(data.len()));
        let parts = [VolatileSlice::from_mut(&mut head), data];
        let count = if data.is_empty() { 1 } else { 2 };
        check(unique, dafs_mem::writev(self.as_fd(), &parts[..count]));
    }

    /// Makes the kernel drop its cached content and attributes of a node. Waits for reads and
    /// writes of the node that are under way.
    ///
    /// # Errors
    /// Those of the kernel.
    pub(crate) fn forget_content(&self, node: NodeId) -> io::Result<()> {
        self.notify(&answer::forget_content(node, 0..0))
    }

    /// As [`forget_content`](Self::forget_content), for a part of the content, which is not empty.
    ///
    /// # Errors
    /// Those of the kernel.
    pub(crate) fn forget_part(&self, node: NodeId, range: Range<u64>) -> io::Result<()> {
        debug_assert!(!range.is_empty() && range.end <= i64::MAX as u64);
        self.notify(&answer::forget_content(node, range))
    }

    fn notify(&self, notice: &[u8]) -> io::Result<()> {
        match rustix::io::write(&self.0, notice) {
            // The kernel has forgotten the node.
            Ok(_) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::NODEV) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes [`receive`](Self::receive) non-blocking, or blocking again. A signal wakes threads
    /// that wait already.
    pub(crate) fn set_waiting(&self, waits: bool) -> io::Result<()> {
        let mut flags = fcntl_getfl(&self.0)?;
        flags.set(OFlags::NONBLOCK, !waits);
        Ok(fcntl_setfl(&self.0, flags)?)
    }
}

/// The kernel takes no answer to a request that was interrupted (ENOENT), or of a mount that is
/// gone.
fn check(unique: u64, sent: io::Result<usize>) {
    if let Err(error) = sent {
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV) => {
                tracing::debug!(unique, "nobody waits for the answer")
            }
            _ => tracing::warn!(unique, %error, "the kernel did not take an answer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_has_as_much_data_as_it_says() {
        let mut head = vec![0; WRITE_DATA_AT];
        head[..4].copy_from_slice(&(WRITE_DATA_AT as u32 + 10).to_ne_bytes());
        head[4..8].copy_from_slice(&WRITE.to_ne_bytes());
        head[8..16].copy_from_slice(&77_u64.to_ne_bytes());
        head[REQUEST_HEAD_BYTES + 16..REQUEST_HEAD_BYTES + 20]
            .copy_from_slice(&10_u32.to_ne_bytes());
        let found = write(&head, WRITE_DATA_AT + 10).unwrap();
        assert!(matches!(found.operation, Operation::Write { len: 10, .. }));
        for bytes in [WRITE_DATA_AT, WRITE_DATA_AT + 9, WRITE_DATA_AT + 11] {
            assert_eq!(write(&head, bytes).unwrap_err(), Some(77));
        }
    }
}
