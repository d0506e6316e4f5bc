//! The socket of one connection, and its readiness.
//!
//! Invariants
//! * Readiness is edge triggered. A flag is cleared only when a system call returned EAGAIN, and
//!   then the kernel reports the next change.

use super::tls::PeerTls;
use crate::connection::{Connection, Ending};
use crate::output::Parts;
use dafs_mem::{VolatileSlice, readv, sendmsg};
use rustix::event::epoll::EventFlags;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The events that epoll watches on every connection, for its whole life.
pub(super) const EVENTS: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) connection: Connection,
    /// True while there may be input.
    pub(super) readable: bool,
    /// True while there may be room for output.
    pub(super) writable: bool,
    /// The peer has closed its side or the connection is broken, so the reactor must read to the
    /// end.
    hung_up: bool,
    /// True while the connection is in a list of connections to resume.
    pub(super) listed: bool,
    /// True if there was no memory for its partial record.
    pub(super) starved: bool,
    /// True while it is in the list of such connections.
    pub(super) starved_listed: bool,
    /// Memory of its queued replies and calls at the last count.
    pub(super) waiting_bytes: usize,
    /// True while output waits for room in the socket.
    blocked: bool,
    /// TLS, from the answer to its probe on.
    pub(super) tls: Option<Box<PeerTls>>,
}

impl Peer {
    pub(super) fn new(socket: Arc<OwnedFd>, connection: Connection) -> Self {
        Self {
            socket,
            connection,
            readable: true,
            writable: true,
            hung_up: false,
            listed: false,
            starved: false,
            starved_listed: false,
            waiting_bytes: 0,
            blocked: false,
            tls: None,
        }
    }

    /// Records the readiness that epoll reports.
    pub(super) fn note(&mut self, events: EventFlags) {
        self.readable |= events.intersects(EventFlags::IN);
        self.writable |= events.intersects(EventFlags::OUT);
        if events.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            self.hung_up = true;
            self.readable = true;
            self.writable = true;
        }
    }

    /// Reads once: first into the rest of the partial record, then into `more`. Returns the bytes
    /// that went into each; none when there is no input now.
    pub(super) fn read(
        &mut self,
        more: VolatileSlice<'_>,
    ) -> Result<Option<(usize, usize)>, Ending> {
        let space = self.connection.reader().space();
        let views = [space, more];
        let views = if space.is_empty() { &views[1..] } else { &views[..] };
        let wanted = space.len() + more.len();
        if let Some(tls) = self.tls.as_deref_mut().and_then(PeerTls::kernel) {
            return super::tls::read(tls, &self.socket, views, &mut self.readable).map(|read| {
                read.map(|read| (read.min(space.len()), read.saturating_sub(space.len())))
            });
        }
        let read = match readv(self.socket.as_fd(), views) {
            Ok(0) => return Err(Ending::Closed),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                return Ok(None);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if read < wanted && !self.hung_up {
            self.readable = false;
        }
        let direct = read.min(space.len());
        Ok(Some((direct, read - direct)))
    }

    /// Sends as much output as the socket takes; returns the bytes sent.
    pub(super) fn flush(&mut self, now_ns: u64) -> Result<u64, Ending> {
        let mut sent_bytes = 0;
        let output = &mut self.connection.output;
        if let Some(tls) = self.tls.as_deref_mut()
            && !tls.is_kernel()
        {
            sent_bytes = tls.flush(&self.socket, output, &mut self.writable)?;
            return Ok(self.flushed(sent_bytes, now_ns));
        }
        while self.writable && !output.is_empty() {
            let mut parts = Parts::new();
            output.gather(&mut parts);
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            let sent = sendmsg(self.socket.as_fd(), &parts, flags);
            drop(parts);
            match sent {
                Ok(sent) => {
                    output.sent(sent);
                    sent_bytes += sent as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.flushed(sent_bytes, now_ns))
    }

    fn flushed(&mut self, sent_bytes: u64, now_ns: u64) -> u64 {
        let blocked = !self.connection.output.is_empty();
        if blocked && (sent_bytes > 0 || !self.blocked) {
            self.connection.output_moved(now_ns);
        }
        self.blocked = blocked;
        sent_bytes
    }

    /// True when the reactor need not wait for the socket before it serves the connection.
    pub(super) fn has_input(&self) -> bool {
        let tls = self.tls.as_deref();
        self.readable || self.connection.has_deferred_input() || tls.is_some_and(PeerTls::is_ready)
    }

    /// Memory in queued replies, waiting calls and records of TLS.
    pub(super) fn held_bytes(&self) -> usize {
        let tls = self.tls.as_deref();
        self.connection.waiting_bytes() + tls.map_or(0, PeerTls::held_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_is_small() {
        assert!(size_of::<Peer>() <= 512, "{}", size_of::<Peer>());
    }
}
