//! The socket of one connection, and what is known about it.
//!
//! Invariants
//! * Readiness is edge triggered: a flag is cleared only when the system call showed that there
//!   is nothing more, and then the system reports the next change.

use crate::connection::{Connection, Ending};
use crate::output::Parts;
use dafs_mem::{VolatileSlice, readv, sendmsg};
use rustix::event::epoll::EventFlags;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// What is watched on every connection, for all of its life.
pub(super) const EVENTS: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

/// One connection and its socket.
#[derive(Debug)]
pub(super) struct Peer {
    socket: Arc<OwnedFd>,
    pub(super) connection: Connection,
    /// There may be something to read.
    pub(super) readable: bool,
    /// There may be room to write.
    writable: bool,
    /// The other end has finished or the connection is broken, so reading must reach the end.
    hung_up: bool,
    /// It waits in a list of connections to go on with.
    pub(super) listed: bool,
    /// It did not get the memory for the record that it is in.
    pub(super) starved: bool,
    /// It waits in the list of those.
    pub(super) starved_listed: bool,
    /// Memory that waited in it when that was last counted.
    pub(super) waiting_bytes: usize,
    /// Output waits for room.
    blocked: bool,
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
        }
    }

    /// Takes note of what the system reports.
    pub(super) fn note(&mut self, events: EventFlags) {
        self.readable |= events.intersects(EventFlags::IN);
        self.writable |= events.intersects(EventFlags::OUT);
        if events.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            self.hung_up = true;
            self.readable = true;
            self.writable = true;
        }
    }

    /// Reads once: first into the rest of the half record, then into `more`. Gives the bytes that
    /// went into each; none when there is nothing to read now.
    pub(super) fn read(
        &mut self,
        more: VolatileSlice<'_>,
    ) -> Result<Option<(usize, usize)>, Ending> {
        let space = self.connection.reader().space();
        let views = [space, more];
        let views = if space.is_empty() { &views[1..] } else { &views[..] };
        let wanted = space.len() + more.len();
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

    /// Sends as much output as there is room for; gives the bytes sent.
    pub(super) fn flush(&mut self, now_ns: u64) -> Result<u64, Ending> {
        let mut sent_bytes = 0;
        let output = &mut self.connection.output;
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
        let blocked = !output.is_empty();
        if blocked && (sent_bytes > 0 || !self.blocked) {
            self.connection.output_moved(now_ns);
        }
        self.blocked = blocked;
        Ok(sent_bytes)
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
