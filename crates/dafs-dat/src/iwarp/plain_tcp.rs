//! Clients that speak plain TCP to an iWARP listener: a guess at their protocol for the log, at a
//! limited rate.
//!
//! Invariants
//! * The log has one line per address and [`COMPLAINT_INTERVAL_SECONDS`], for a limited number of
//!   addresses. Further addresses are not logged, so no client can flood memory or log.

use super::limits::{COMPLAINT_COUNT_MAX, COMPLAINT_INTERVAL_SECONDS};
use crate::Instant;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

/// Guesses the protocol of the first bytes of a stream that is not MPA.
pub(super) fn guess(bytes: &[u8]) -> &'static str {
    let word = |at: usize| {
        let word: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_be_bytes(word))
    };
    // A record mark, then xid, call, RPC version 2, the program (RFC 5531 9 and 11).
    let is_call = word(8) == Some(0) && word(12) == Some(2);
    if is_call && bytes[0] & 0x80 != 0 {
        return match word(16) {
            Some(100_003) => {
                "an NFS client; it should mount with proto=rdma, or use the port of \
                              NFS over TCP, by default 2049"
            }
            Some(100_005) => {
                "an NFS client that looks for the MOUNT protocol; over TCP it is on \
                              the port of NFS over TCP, by default 2049"
            }
            _ => "an ONC RPC client; RPC over TCP is on another port",
        };
    }
    match bytes {
        [0x16, 0x03, ..] => "a TLS client; this server has no certificate: write [tls]",
        [b'G', b'E', b'T', b' ', ..] | [b'P', b'O', b'S', b'T', ..] => "an HTTP client",
        _ => "what it sent is no MPA request (RFC 5044)",
    }
}

/// The addresses that were logged lately.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    /// Oldest first.
    recent: VecDeque<(IpAddr, Instant)>,
}

impl Complaints {
    /// True if the log may have a line about this peer now.
    pub(super) fn may_complain(&mut self, peer: IpAddr, now: Instant) -> bool {
        let interval = Duration::from_secs(COMPLAINT_INTERVAL_SECONDS);
        while self.recent.front().is_some_and(|(_, at)| *at + interval <= now) {
            self.recent.pop_front();
        }
        let known = self.recent.iter().any(|(ip, _)| *ip == peer);
        if known || self.recent.len() >= COMPLAINT_COUNT_MAX {
            return false;
        }
        self.recent.push_back((peer, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(program: u32) -> Vec<u8> {
        [0x8000_0028, 0x1234_5678, 0, 2, program].map(u32::to_be_bytes).concat()
    }

    #[test]
    fn the_server_names_the_protocol_of_a_client() {
        assert!(guess(&call(100_003)).contains("proto=rdma"));
        assert!(guess(&call(100_005)).contains("MOUNT"));
        assert!(guess(&call(100_000)).contains("ONC RPC"));
        assert!(guess(&[0x16, 3, 1, 0]).contains("TLS"));
        assert!(guess(b"GET / HTTP/1.1").contains("HTTP"));
        for cut in 0..16 {
            assert!(guess(&call(100_003)[..cut]).contains("no MPA request"), "{cut}");
        }
    }

    #[test]
    fn one_line_for_each_peer_and_minute_and_not_too_many_peers() {
        let mut complaints = Complaints::default();
        let peer = |n: u32| IpAddr::from(n.to_be_bytes());
        let start = Instant(5);
        assert!(complaints.may_complain(peer(1), start));
        assert!(!complaints.may_complain(peer(1), start + Duration::from_secs(59)));
        assert!(complaints.may_complain(peer(1), start + Duration::from_secs(60)));
        let told = (0..1000).filter(|n| complaints.may_complain(peer(*n), start)).count();
        assert_eq!(told, COMPLAINT_COUNT_MAX - 1);
        assert!(complaints.recent.len() <= COMPLAINT_COUNT_MAX);
        let later = start + Duration::from_secs(121);
        assert!(complaints.may_complain(peer(5), later));
        assert_eq!(complaints.recent.len(), 1);
    }
}
