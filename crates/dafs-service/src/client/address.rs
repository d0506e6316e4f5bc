//! Where NFS clients call from. A name alone tells nobody from somebody else who gives the same one.
//!
//! Invariants
//! * An address is a client's when its record was made from there, or when a request of one of its
//!   sessions came from there: ids of sessions cannot be guessed, names and verifiers can.

use super::Client;
use crate::limits::CLIENT_ADDRESSES_MAX;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::PoisonError;

/// Where a client calls from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientAddress {
    /// The host.
    pub ip: IpAddr,
    /// Whether the port, or the kernel of this host, vouches for the caller.
    pub privileged: bool,
}

impl ClientAddress {
    /// Whether a caller from here may be the client that has called from there. Other users of a host
    /// are no client that its administrator vouched for.
    fn may_be(&self, known: &Self) -> bool {
        self.is_at(known.ip) && (self.privileged || !known.privileged)
    }

    /// Whether the address is the same one. Of the network of 64 bits that counts as one host for shares
    /// this is not true: all machines of a LAN are in it.
    fn is_at(&self, ip: IpAddr) -> bool {
        let [own, other] = [self.ip, ip].map(|ip| ip.to_canonical());
        own == other || own.is_loopback() && other.is_loopback()
    }

    /// The same of what a durable record has kept.
    pub(super) fn may_be_recorded(&self, record: &[u8]) -> bool {
        let (ip, privileged) = match record.len() {
            5 | 17 => record.split_at(record.len() - 1),
            // Earlier versions kept no more than the address, or not even that.
            _ => (record, &[][..]),
        };
        let known = match *ip {
            [a, b, c, d] => Some(Ipv4Addr::new(a, b, c, d).into()),
            _ => <[u8; 16]>::try_from(ip).ok().map(|ip| Ipv6Addr::from(ip).into()),
        };
        let is_at = known.is_some_and(|ip| self.is_at(ip));
        record.is_empty() || is_at && (self.privileged || *privileged != [1])
    }

    /// The address as it is kept with a durable record, and whether it was privileged.
    fn to_record(self) -> Vec<u8> {
        let mut record = match self.ip.to_canonical() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        record.push(self.privileged.into());
        record
    }
}

impl Client {
    /// Whether the client calls from there.
    pub fn calls_from(&self, address: &ClientAddress) -> bool {
        let known = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().any(|known| address.may_be(known))
    }

    /// Remembers that it does; of too many addresses the one that was told first is forgotten.
    pub fn add_address(&self, address: ClientAddress) {
        let mut known = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(&address) {
            return;
        }
        if known.len() >= CLIENT_ADDRESSES_MAX {
            known.remove(0);
        }
        known.push(address);
    }

    /// What earlier versions took for its host: the address that it calls from, of IPv6 the network.
    pub(crate) fn earlier_hosts(&self) -> Vec<Vec<u8>> {
        let known = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let host = |address: &ClientAddress| match address.ip.to_canonical() {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets()[..8].to_vec(),
        };
        known.iter().map(host).collect()
    }

    /// The host that it called from last for the first time; empty if that is not known.
    pub(crate) fn recorded_host(&self) -> Vec<u8> {
        let known = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        known.last().map_or_else(Vec::new, |address| address.to_record())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, privileged: bool) -> ClientAddress {
        ClientAddress { ip: text.parse().unwrap(), privileged }
    }

    #[test]
    fn a_neighbour_is_no_client_and_an_address_has_several_texts() {
        let may_be = |one: &str, other: &str| {
            let recorded = at(one, true).may_be_recorded(&at(other, true).to_record());
            assert_eq!(at(one, true).may_be(&at(other, true)), recorded, "{one} {other}");
            recorded
        };
        assert!(!may_be("2001:db8::1", "2001:db8::2") && may_be("2001:db8::1", "2001:db8::1"));
        assert!(!may_be("fe80::1", "fe80::2") && may_be("fe80::1", "fe80::1"));
        assert!(!may_be("192.0.2.1", "192.0.2.2") && may_be("192.0.2.1", "::ffff:192.0.2.1"));
        assert!(may_be("127.0.0.1", "::1"));
    }

    #[test]
    fn a_record_says_whether_the_port_was_privileged() {
        for text in ["192.0.2.1", "2001:db8::1"] {
            let (root, user) = (at(text, true), at(text, false));
            assert!(root.may_be_recorded(&user.to_record()));
            assert!(user.may_be_recorded(&user.to_record()));
            assert!(!user.may_be_recorded(&root.to_record()));
            // That of an earlier version does not.
            let mut record = root.to_record();
            record.pop();
            assert!(user.may_be_recorded(&record) && user.may_be_recorded(&[]));
        }
    }
}
