//! Connections that this end has ended and whose peers may still send.
//!
//! A socket that is closed with unread input resets its connection (RFC 1122 4.2.2.13), and so does
//! input that comes later. The reset discards the bytes that the peer has not received yet: replies,
//! or the alert with the reason for the end. So the server ends its own direction, discards input
//! until the peer has ended the other one, and closes the socket then.
//!
//! Invariants
//! * The last record of TLS precedes the end of this direction, also where the socket was full. There
//!   is none behind a record that has left in part.
//! * A lingering connection costs its socket, that record, and what the kernel's TLS needs to be
//!   read. Its input is not copied, or goes to memory that all connections share.
//! * It ends within [`LINGER_TIMEOUT`] and the next tick. Their number is bounded, also for each
//!   host, and beyond it the socket is closed at once.
//! * It counts among the connections of its host until its socket is closed.

use super::tls::Goodbye;
use crate::call::ConnectionId;
use crate::connection::Ending;
use crate::limits::{LINGER_TIMEOUT, LINGERING_MAX, LINGERING_PER_HOST_MAX, READS_PER_TURN};
use crate::memory::source;
use dafs_dat::connections::{Admitted, Origin};
use dafs_mem::{VolatileSlice, sendmsg, unacknowledged_bytes};
use dafs_tls::ktls::KernelTls;
use rustc_hash::FxHashMap;
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

/// A connection that discards its input.
#[derive(Debug)]
pub(super) struct Lingering {
    pub(super) socket: Arc<OwnedFd>,
    /// The records, if the kernel protects them: plain reads fail at some of them.
    pub(super) tls: Option<KernelTls>,
    /// The last record, until it is sent. This end's direction ends behind it.
    pub(super) goodbye: Option<Goodbye>,
    /// True when this end's direction has ended.
    pub(super) has_ended: bool,
    pub(super) host: Origin,
    /// Its entry in the connection counts.
    pub(super) _admitted: Option<Arc<Admitted>>,
    /// The time at which it began.
    pub(super) since_ns: u64,
    /// True if a server that stops does not wait for the end of the peer's direction, but for its
    /// acknowledgement alone. Clients that are idle do not notice the end of the server's direction.
    pub(super) is_idle: bool,
}

/// The input of a connection.
#[derive(Debug, PartialEq, Eq)]
enum Input {
    /// There may be more now.
    More,
    /// An event tells when there is more.
    Awaited,
    /// No more is to come.
    Over,
}

impl Lingering {
    /// True if the peer could lose something if the socket were closed now.
    pub(super) fn is_needed(&mut self, ending: &Ending) -> bool {
        if !matches!(ending, Ending::Stopped) {
            return ending.lingers();
        }
        let unread = rustix::io::ioctl_fionread(&self.socket).unwrap_or(0);
        self.is_idle = unread == 0;
        !self.is_idle || !self.is_acknowledged()
    }

    /// True if the peer has acknowledged all that was sent, the end included.
    fn is_acknowledged(&self) -> bool {
        unacknowledged_bytes(self.socket.as_fd()) == 0
    }

    /// Sends the last record of TLS. Returns false while the socket has no room for it.
    pub(super) fn say_goodbye(&mut self) -> io::Result<bool> {
        let socket = self.socket.as_fd();
        while let Some(goodbye) = &mut self.goodbye {
            let sent = match (goodbye, &self.tls) {
                (Goodbye::Sealed(rest), _) => {
                    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
                    sendmsg(socket, &[source(rest)], flags).map(|sent| {
                        rest.drain(..sent);
                        rest.is_empty()
                    })
                }
                (Goodbye::Alert(alert), Some(tls)) => tls.close(socket, *alert).map(|()| true),
                (Goodbye::Alert(_), None) => Ok(true),
            };
            match sent {
                Ok(true) => self.goodbye = None,
                Ok(false) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Ends this end's direction, behind the last record. The kernel's TLS may hold a record back for
    /// which the socket had no room, and the end would overtake it. So there it waits until the peer
    /// has acknowledged everything.
    fn end_direction(&mut self) -> io::Result<()> {
        let is_due = !self.has_ended && self.say_goodbye()?;
        if is_due && (self.tls.is_none() || self.is_acknowledged()) {
            rustix::net::shutdown(&self.socket, Shutdown::Write)?;
            self.has_ended = true;
        }
        Ok(())
    }

    /// Goes on to end this end's direction, and discards input.
    fn advance(&mut self, scratch: &mut [u8]) -> Input {
        if self.end_direction().is_err() {
            return Input::Over;
        }
        match self.discard(scratch) {
            Input::Over if self.goodbye.is_some() => Input::Awaited,
            input => input,
        }
    }

    fn discard(&mut self, scratch: &mut [u8]) -> Input {
        for _ in 0..READS_PER_TURN {
            let mut is_more = true;
            let is_over = match &mut self.tls {
                Some(tls) => {
                    let views = [VolatileSlice::from_mut(&mut *scratch)];
                    super::tls::read(tls, &self.socket, &views, &mut is_more).is_err()
                }
                // TCP copies nothing then.
                None => match recv(&self.socket, &mut *scratch, RecvFlags::TRUNC) {
                    Ok((_, read)) => read == 0,
                    Err(Errno::INTR) => false,
                    Err(error) => {
                        is_more = false;
                        error != Errno::AGAIN
                    }
                },
            };
            if is_over {
                return Input::Over;
            }
            if !is_more {
                return Input::Awaited;
            }
            self.is_idle = false;
        }
        Input::More
    }
}

/// The lingering connections of a reactor.
#[derive(Debug, Default)]
pub(super) struct LingeringSet(FxHashMap<ConnectionId, Lingering>);

impl LingeringSet {
    /// Ends this end's direction of a connection, and keeps its socket. The caller discards its
    /// input for the first time. Returns false if the socket is closed instead.
    pub(super) fn keep(&mut self, id: ConnectionId, mut lingering: Lingering) -> bool {
        let of_host = self.0.values().filter(|other| other.host == lingering.host).count();
        let has_room = self.0.len() < LINGERING_MAX && of_host < LINGERING_PER_HOST_MAX;
        // A connection that was lost has no direction to end.
        let is_kept = lingering.end_direction().is_ok() && has_room;
        if is_kept {
            self.0.insert(id, lingering);
        }
        is_kept
    }

    /// Goes on with a connection, if it is one of these. Returns true if there may be more input
    /// now.
    pub(super) fn advance(&mut self, id: ConnectionId, scratch: &mut [u8]) -> bool {
        let Some(lingering) = self.0.get_mut(&id) else { return false };
        let input = lingering.advance(scratch);
        if input == Input::Over {
            self.0.remove(&id);
        }
        input == Input::More
    }

    /// Closes the sockets whose time is over. No event tells that a peer has acknowledged everything,
    /// so directions that wait for that end here.
    pub(super) fn tick(&mut self, now_ns: u64) {
        let timeout_ns = LINGER_TIMEOUT.as_nanos() as u64;
        self.0.retain(|_, lingering| {
            now_ns < lingering.since_ns.saturating_add(timeout_ns)
                && lingering.end_direction().is_ok()
        });
    }

    /// True if a server that stops need not wait. Closes the sockets of idle peers that have
    /// received everything.
    pub(super) fn may_stop(&mut self) -> bool {
        self.0.retain(|_, lingering| {
            !lingering.is_idle || lingering.goodbye.is_some() || !lingering.is_acknowledged()
        });
        self.0.is_empty()
    }

    /// Closes all sockets, because descriptors are short.
    pub(super) fn clear(&mut self) {
        self.0.clear();
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
        let (tls, goodbye, has_ended, _admitted, is_idle) = (None, None, false, None, false);
        (peer, Lingering { socket, tls, goodbye, has_ended, host, _admitted, since_ns, is_idle })
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
        assert!(!set.advance(id(1), &mut scratch) && !set.0.is_empty());
        // More than one turn discards.
        peer.write_all(&[0; 8 * READS_PER_TURN + 1]).unwrap();
        assert!(set.advance(id(1), &mut scratch));
        assert!(!set.advance(id(1), &mut scratch) && !set.0.is_empty());
        drop(peer);
        assert!(!set.advance(id(1), &mut scratch) && set.0.is_empty());
        assert!(!set.advance(id(1), &mut scratch), "nothing is left of it");
    }

    #[test]
    fn the_last_record_waits_for_room_and_precedes_the_end() {
        let mut set = LingeringSet::default();
        for peer_ends in [false, true] {
            let (mut peer, mut own) = lingering(1, 0);
            let mut filled = 0;
            while let Ok(written) = rustix::io::write(&own.socket, &[0; 4096]) {
                filled += written;
            }
            own.goodbye = Some(Goodbye::Sealed(b"goodbye".to_vec()));
            assert!(set.keep(id(1), own));
            if peer_ends {
                peer.shutdown(std::net::Shutdown::Write).unwrap();
            }
            // There is no room yet, whatever wakes it up.
            assert!(!set.advance(id(1), &mut [0; 8]) && !set.may_stop());
            peer.read_exact(&mut vec![0; filled]).unwrap();
            assert!(!set.advance(id(1), &mut [0; 8]));
            assert_eq!(set.0.is_empty(), peer_ends);
            let mut rest = Vec::new();
            peer.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b"goodbye");
            set.clear();
        }
    }

    #[test]
    fn a_stop_waits_until_idle_peers_have_received_everything() {
        let mut set = LingeringSet::default();
        let (_idle, mut own) = lingering(1, 0);
        assert!(!own.is_needed(&Ending::Stopped), "nothing can be lost");
        let (mut reader, mut own) = lingering(1, 0);
        rustix::io::write(&own.socket, b"reply").unwrap();
        assert!(own.is_needed(&Ending::Stopped) && set.keep(id(1), own));
        assert!(!set.advance(id(1), &mut [0; 8]) && !set.may_stop());
        reader.read_exact(&mut [0; 5]).unwrap();
        assert!(set.may_stop(), "it need not end its direction");
        // A peer that goes on to send gets what was sent only without a reset.
        let (mut sender, mut own) = lingering(1, 0);
        sender.write_all(b"call").unwrap();
        assert!(own.is_needed(&Ending::Stopped) && set.keep(id(1), own));
        assert!(!set.advance(id(1), &mut [0; 8]) && !set.may_stop());
        drop(sender);
        assert!(!set.advance(id(1), &mut [0; 8]) && set.may_stop());
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
        assert!(set.0.is_empty());
    }
}
