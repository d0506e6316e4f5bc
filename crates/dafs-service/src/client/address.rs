//! The addresses that NFS clients call from. A name alone does not identify a client, because
//! another may give the same name.
//!
//! Invariants
//! * An address belongs to a client when its record was made from there, or when a request of one
//!   of its sessions came from there. Session ids cannot be guessed, but names and verifiers can.

use super::Client;
use crate::limits::CLIENT_ADDRESSES_MAX;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address that a client calls from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientAddress {
    /// The host.
    pub ip: IpAddr,
    /// True if the port, or the kernel of this host, vouches for the caller.
    pub privileged: bool,
}

impl ClientAddress {
    /// True if a caller from here may be the client that has called from `known`. An unprivileged
    /// user of a host may not act for a client that the host's administrator has vouched for.
    fn may_be(&self, known: &Self) -> bool {
        self.is_at(known.ip) && (self.privileged || !known.privileged)
    }

    /// True if both are the same address. For shares a network of 64 bits counts as one host, but
    /// not here: all machines of a LAN are in it.
    fn is_at(&self, ip: IpAddr) -> bool {
        let [own, other] = [self.ip, ip].map(|ip| ip.to_canonical());
        own == other || own.is_loopback() && other.is_loopback()
    }

    /// Compares this address with that in a durable record.
    pub(super) fn may_be_recorded(&self, record: &[u8]) -> bool {
        let (ip, bits) = split(record);
        let known = match *ip {
            [a, b, c, d] => Some(Ipv4Addr::new(a, b, c, d).into()),
            _ => <[u8; 16]>::try_from(ip).ok().map(|ip| Ipv6Addr::from(ip).into()),
        };
        let is_at = known.is_some_and(|ip| self.is_at(ip));
        record.is_empty() || is_at && (self.privileged || bits & PRIVILEGED == 0)
    }

    /// Encodes the address for a durable record, with the flags.
    fn to_record(self, protected: bool) -> Vec<u8> {
        let mut record = match self.ip.to_canonical() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        record.push(bit(self.privileged, PRIVILEGED) | bit(protected, PROTECTED));
        record
    }
}

/// Bits of the byte behind an address in a durable record.
const PRIVILEGED: u8 = 1;
const PROTECTED: u8 = 2;

/// Splits the address in a durable record from its flags. Earlier versions recorded only the
/// address, or not even that.
fn split(record: &[u8]) -> (&[u8], u8) {
    match record {
        [ip @ .., bits] if matches!(record.len(), 5 | 17) => (ip, *bits),
        _ => (record, 0),
    }
}

/// True if a durable record of a client demands protection.
pub(crate) fn is_protected(record: &[u8]) -> bool {
    split(record).1 & PROTECTED != 0
}

impl Client {
    /// True if the client calls from this address.
    pub fn calls_from(&self, address: &ClientAddress) -> bool {
        let known = self.addresses.lock();
        known.iter().any(|known| address.may_be(known))
    }

    /// Adds an address. Above the limit, the oldest one is forgotten.
    pub fn add_address(&self, address: ClientAddress) {
        let mut known = self.addresses.lock();
        if known.contains(&address) {
            return;
        }
        if known.len() >= CLIENT_ADDRESSES_MAX {
            known.remove(0);
        }
        known.push(address);
    }

    /// Returns the hosts as earlier versions identified them: the address, or for IPv6 the network.
    pub(crate) fn earlier_hosts(&self) -> Vec<Vec<u8>> {
        let known = self.addresses.lock();
        let host = |address: &ClientAddress| match address.ip.to_canonical() {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets()[..8].to_vec(),
        };
        known.iter().map(host).collect()
    }

    /// The address that was added last. Empty if none is known.
    pub(crate) fn recorded_host(&self) -> Vec<u8> {
        let known = self.addresses.lock();
        known.last().map_or_else(Vec::new, |address| address.to_record(self.is_protected()))
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
            let recorded = at(one, true).may_be_recorded(&at(other, true).to_record(false));
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
            for protected in [false, true] {
                assert!(root.may_be_recorded(&user.to_record(protected)));
                assert!(user.may_be_recorded(&user.to_record(protected)));
                assert!(!user.may_be_recorded(&root.to_record(protected)));
                for address in [root, user] {
                    assert_eq!(is_protected(&address.to_record(protected)), protected);
                }
            }
            // The record of an earlier version does not contain the flags.
            let mut record = root.to_record(true);
            record.pop();
            assert!(user.may_be_recorded(&record) && user.may_be_recorded(&[]));
            assert!(!is_protected(&record) && !is_protected(&[]));
        }
    }
}
