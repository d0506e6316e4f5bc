//! Tickets: a client shows one to data servers that trust no claims. It names the client's identity
//! at this server, under a MAC of the store ([`Layouts::mac`]).
//!
//! Invariants
//! * A ticket identifies and allows nothing: each use is decided by the state-id that comes with it
//!   ([`Layouts::vouch`]).
//! * It is the same for all data servers of a store, and as long as the client has this name.

use super::Layouts;
use crate::client::{Client, Identity};
use crate::{Result, ServiceError};
use dafs_store::{Device, DeviceKey};
use std::net::SocketAddr;

/// Length of the MAC in bytes.
const WORD_BYTES: usize = 16;

/// The mechanisms by which clients authenticate.
const MECHANISMS: [&str; 5] = ["none", "sys", "text", "gss", "tls"];

/// The content of a ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// The client's own name.
    pub owner: Vec<u8>,
    /// The client's identity.
    pub identity: Identity,
}

/// A device, with the ticket for data servers that speak DAFS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceWithTicket {
    /// The device.
    pub device: Device,
    /// The addresses where its servers speak DAFS, in their order.
    pub servers: Vec<Vec<SocketAddr>>,
    /// The client's ticket.
    pub ticket: Vec<u8>,
}

impl Ticket {
    /// Encodes mechanism, principal and name, each but the last after its length, and appends the
    /// MAC.
    fn seal(client: &Client, mac: impl Fn(&[u8]) -> Option<[u8; 16]>) -> Option<Vec<u8>> {
        let Identity { mechanism, principal } = client.identity();
        let mut bytes = vec![u8::try_from(mechanism.len()).ok()?];
        bytes.extend_from_slice(mechanism.as_bytes());
        bytes.extend_from_slice(&u16::try_from(principal.len()).ok()?.to_be_bytes());
        bytes.extend_from_slice(principal);
        bytes.extend_from_slice(client.name());
        let mac = mac(&bytes)?;
        bytes.extend_from_slice(&mac);
        Some(bytes)
    }

    /// Returns the content of a ticket, if its MAC is one of the valid ones.
    pub fn open<M>(bytes: &[u8], macs: impl Fn(&[u8]) -> M) -> Option<Self>
    where
        M: IntoIterator<Item = [u8; WORD_BYTES]>,
    {
        let (said, code) = bytes.split_last_chunk::<WORD_BYTES>()?;
        // In constant time, so that an attacker learns no position of a difference.
        let is_equal = |mac: [u8; WORD_BYTES]| {
            let pairs = mac.into_iter().zip(code);
            pairs.fold(0, |all, (one, other)| all | (one ^ other)) == 0
        };
        if !macs(said).into_iter().fold(false, |any, mac| any | is_equal(mac)) {
            return None;
        }
        let (&len, rest) = said.split_first()?;
        let (mechanism, rest) = rest.split_at_checked(len.into())?;
        let mechanism = MECHANISMS.into_iter().find(|known| known.as_bytes() == mechanism)?;
        let (len, rest) = rest.split_first_chunk::<2>()?;
        let (principal, owner) = rest.split_at_checked(u16::from_be_bytes(*len).into())?;
        let identity = Identity { mechanism, principal: principal.to_vec() };
        Some(Self { owner: owner.to_vec(), identity })
    }
}

impl Layouts {
    /// Returns a device of any export, for a client that reaches it by DAFS.
    ///
    /// # Errors
    /// `LayoutUnavailable` for a device that is unknown or does not speak DAFS.
    pub fn device_for(&self, client: &Client, key: &DeviceKey) -> Result<DeviceWithTicket> {
        let namespace = self.exports.namespace();
        let mut layouts = namespace.exports().filter_map(|export| export.store().layouts());
        let found = layouts.find_map(|layouts| {
            let (device, servers) = (layouts.device(key)?, layouts.dafs_servers(key)?);
            let ticket = Ticket::seal(client, |bytes| layouts.mac(bytes))?;
            Some(DeviceWithTicket { device, servers, ticket })
        });
        found.ok_or(ServiceError::LayoutUnavailable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{ClientKey, ClientKind};

    /// A MAC that depends on each byte.
    fn mac(bytes: &[u8]) -> Option<[u8; 16]> {
        let sum = bytes.iter().fold(7u128, |sum, &byte| sum.wrapping_mul(257) + u128::from(byte));
        Some(sum.to_be_bytes())
    }

    #[test]
    fn a_ticket_says_who_and_nothing_else_opens() {
        let identity = Identity { mechanism: "text", principal: b"anna".to_vec() };
        let kind = ClientKind::Dafs;
        let client = Client::new(
            ClientKey(1),
            kind,
            b"a client",
            2,
            identity.clone(),
            Default::default(),
            0,
        );
        let bytes = Ticket::seal(&client, mac).expect("a ticket");
        let ticket = Ticket::open(&bytes, mac).expect("sealed so");
        assert_eq!(ticket, Ticket { owner: b"a client".to_vec(), identity });
        assert_eq!(Ticket::open(&bytes, |_| Some([0; 16])), None);
        assert_eq!(Ticket::open(&bytes, |_| None), None);
        // While keys change, two are valid.
        let both = |said: &[u8]| [[0; 16]].into_iter().chain(mac(said));
        assert_eq!(Ticket::open(&bytes, both).as_ref(), Some(&ticket));
        for at in 0..bytes.len() {
            assert_eq!(Ticket::open(&bytes[..at], mac), None, "{at}");
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(Ticket::open(&other, mac), None, "{at}");
        }
        // Lengths that reach too far, under a valid MAC.
        for said in [&[][..], &[9, 1], &[4, b't', b'e', b'x', b't', 0], &[1, b'x', 0, 0]] {
            let bytes = [said, &mac(said).expect("a MAC")].concat();
            assert_eq!(Ticket::open(&bytes, mac), None, "{said:?}");
        }
        let far = [&[4][..], b"text", &[0, 9], b"anna"].concat();
        let bytes = [&far[..], &mac(&far).expect("a MAC")].concat();
        assert_eq!(Ticket::open(&bytes, mac), None);
    }
}
