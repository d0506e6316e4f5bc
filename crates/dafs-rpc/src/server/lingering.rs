//! Connections that this end has ended and whose peers may still send.
//!
//! A socket that is closed with unread input resets its connection (RFC 1122 4.2.2.13). The reset
//! discards the bytes that the peer has not received yet: replies, or the alert with the reason for
//! the end. So the server ends its own direction, discards input until the peer has ended the other
//! one, and closes the socket then.
//!
//! Invariants
//! * A lingering connection costs its socket alone: input goes to memory that all connections
//!   share.
//! * It ends within [`LINGER_TIMEOUT`] and the next tick. Their number is bounded, also for each
//!   host, and beyond it the socket is closed at once.
//! * It counts among the connections of its host until its socket is closed.

use super::tls::PeerTls;
use crate::call::ConnectionId;
use crate::limits::{LINGER_TIMEOUT, LINGERING_MAX, LINGERING_PER_HOST_MAX, READS_PER_TURN};
use dafs_dat::connections::{Admitted, Origin};
use dafs_mem::{VolatileSlice, readv};
use rustc_hash::FxHashMap;
use rustix::net::Shutdown;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

/// A connection that discards its input.
#[derive(Debug)]
pub(super) struct Lingering {
    pub(super) socket: Arc<OwnedFd>,
    /// The records, if the kernel protects them: plain reads fail at some of them.
    pub(super) tls: Option<Box<PeerTls>>,
    pub(super) host: Origin,
    /// Its entry in the connection counts.
    pub(super) _admitted: Option<Arc<Admitted>>,
    /// The time at which it began.
    pub(super) since_ns: u64,
}

impl Lingering {
    /// Discards input; returns true when nothing more is to come.
    fn discard(&mut self, scratch: &mut [u8], is_more: &mut bool) -> bool {
        *is_more = true;
        for _ in 0..READS_PER_TURN {
            let views = [VolatileSlice::from_mut(&mut *scratch)];
            let read = match self.tls.as_deref_mut().and_then(PeerTls::kernel) {
                Some(tls) => {
                    let read = super::tls::read(tls, &self.socket, &views, is_more);
                    read.map_or(true, |_| false)
                }
                None => match readv(self.socket.as_fd(), &views) {
                    Ok(read) => read == 0,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => false,
                    Err(error) => {
                        *is_more = false;
                        error.kind() != io::ErrorKind::WouldBlock
                    }
                },
            };
            if read || !*is_more {
                return read;
            }
        }
        false
    }
}

/// The lingering connections of a reactor.
#[derive(Debug, Default)]
pub(super) struct LingeringSet(FxHashMap<ConnectionId, Lingering>);

impl LingeringSet {
    /// Ends this end's direction of a connection, and keeps its socket. The caller discards its
    /// input for the first time. Returns false if the socket is closed instead.
    pub(super) fn keep(&mut self, id: ConnectionId, lingering: Lingering) -> bool {
        let of_host = self.0.values().filter(|other| other.host == lingering.host).count();
        let has_room = self.0.len() < LINGERING_MAX && of_host < LINGERING_PER_HOST_MAX;
        // A connection that was lost has nothing to shut down.
        let is_kept = has_room && rustix::net::shutdown(&lingering.socket, Shutdown::Write).is_ok();
        if is_kept {
            self.0.insert(id, lingering);
        }
        is_kept
    }

    /// Discards input of a connection, if it is one of these. Returns true if there may be more
    /// now.
    pub(super) fn discard(&mut self, id: ConnectionId, scratch: &mut [u8]) -> bool {
        let Some(lingering) = self.0.get_mut(&id) else { return false };
        let mut is_more = false;
        if lingering.discard(scratch, &mut is_more) {
            self.0.remove(&id);
            return false;
        }
        is_more
    }

    /// Closes the sockets whose time is over.
    pub(super) fn tick(&mut self, now_ns: u64) {
        let timeout_ns = LINGER_TIMEOUT.as_nanos() as u64;
        self.0.retain(|_, lingering| now_ns < lingering.since_ns.saturating_add(timeout_ns));
    }

    /// Closes all sockets, because descriptors are short.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::Ipv4Addr;
    use std::os::unix::net::UnixStream;

    fn lingering(host: u8, since_ns: u64) -> (UnixStream, Lingering) {
        let (peer, own) = UnixStream::pair().unwrap();
        own.set_nonblocking(true).unwrap();
        let host = Origin::Address(Ipv4Addr::new(192, 0, 2, host).into());
        let socket = Arc::new(OwnedFd::from(own));
        (peer, Lingering { socket, tls: None, host, _admitted: None, since_ns })
    }

    fn id(number: u32) -> ConnectionId {
        ConnectionId::new(0, number, 1)
    }

    #[test]
    fn input_is_discarded_until_the_peer_ends() {
        let (mut peer, own) = lingering(1, 0);
        let mut set = LingeringSet::default();
        assert!(set.keep(id(1), own));
        assert_eq!(peer.read(&mut [0; 9]).unwrap(), 0, "this end has ended its direction");
        let mut scratch = [0; 8];
        assert!(!set.discard(id(1), &mut scratch) && !set.is_empty());
        // More than one turn discards.
        peer.write_all(&[0; 8 * READS_PER_TURN + 1]).unwrap();
        assert!(set.discard(id(1), &mut scratch));
        assert!(!set.discard(id(1), &mut scratch) && !set.is_empty());
        drop(peer);
        assert!(!set.discard(id(1), &mut scratch) && set.is_empty());
        assert!(!set.discard(id(1), &mut scratch), "nothing is left of it");
    }

    #[test]
    fn time_and_number_are_bounded_also_for_a_host() {
        let mut set = LingeringSet::default();
        let mut peers = Vec::new();
        let mut keep = |set: &mut LingeringSet, number: usize, host, since_ns| {
            let (peer, own) = lingering(host, since_ns);
            peers.push(peer);
            set.keep(id(number as u32), own)
        };
        for number in 0..LINGERING_PER_HOST_MAX {
            assert!(keep(&mut set, number, 1, number as u64));
        }
        assert!(!keep(&mut set, 1000, 1, 0), "a host has its share");
        assert!(keep(&mut set, 1001, 2, 0), "and others have theirs");
        let timeout_ns = LINGER_TIMEOUT.as_nanos() as u64;
        set.tick(timeout_ns);
        assert_eq!(set.0.len(), LINGERING_PER_HOST_MAX - 1);
        assert!(keep(&mut set, 1002, 1, 0));
        set.tick(timeout_ns + LINGERING_PER_HOST_MAX as u64);
        assert!(set.is_empty());
    }
}
