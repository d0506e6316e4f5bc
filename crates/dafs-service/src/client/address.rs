//! Where NFS clients call from. A name alone tells nobody from somebody else who gives the same one.
//!
//! Invariants
//! * An address is a client's when its record was made from there, or when a request of one of its
//!   sessions came from there: ids of sessions cannot be guessed, names and verifiers can.

use super::Client;
use crate::limits::CLIENT_ADDRESSES_MAX;
use std::net::IpAddr;
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
        self.ip == known.ip && (self.privileged || !known.privileged)
    }

    /// The host as it is kept with a durable record.
    pub(crate) fn host(&self) -> Vec<u8> {
        match self.ip.to_canonical() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        }
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

    /// The host that it called from last for the first time; empty if that is not known.
    pub(crate) fn recorded_host(&self) -> Vec<u8> {
        let known = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        known.last().map_or_else(Vec::new, ClientAddress::host)
    }
}
