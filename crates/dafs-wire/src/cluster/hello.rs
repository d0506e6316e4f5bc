//! The handshake of a metadata server and a data server.
//!
//! | sender | message |
//! |---|---|
//! | metadata server | [`Hello`]: the requested node and its store, and a random number |
//! | data server | [`Challenge`]: a random number, and a MAC over both numbers |
//! | metadata server | [`Join`]: the other MAC, and its record of the node's directory |
//! | data server | [`Joined`]: acceptance, or the reason for a refusal |
//!
//! The MACs also cover the channel binding of the TLS connection that carries all messages (RFC 9266).

use super::{ADDRESS_BYTES_MAX, ADDRESSES_MAX};
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError};

/// The version of these messages.
pub const VERSION: u32 = 8;

/// "dafs", to distinguish a data server from another program on the port.
const MAGIC: u32 = 0x6461_6673;

/// The first message of a metadata server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The protocol version of the metadata server.
    pub version: u32,
    /// The identifier of its store.
    pub store: [u8; 16],
    /// The number of the requested node.
    pub number: u32,
    /// Random.
    pub nonce: [u8; 32],
}

impl Decode<'_> for Hello {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, XdrError> {
        match d.u32()? {
            MAGIC => {}
            value => return Err(XdrError::UnknownValue { what: "a hello", value }),
        }
        let (version, store, number) = (d.u32()?, *d.fixed()?, d.u32()?);
        Ok(Self { version, store, number, nonce: *d.fixed()? })
    }
}

impl Encode for Hello {
    fn encode(&self, e: &mut Encoder<'_>) {
        e.u32(MAGIC);
        e.u32(self.version);
        e.fixed(&self.store);
        e.u32(self.number);
        e.fixed(&self.nonce);
    }
}

/// The second message, of the data server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Challenge {
    /// Random.
    pub nonce: [u8; 32],
    /// A MAC that proves that the data server knows the secret.
    pub mac: [u8; 32],
}

impl Decode<'_> for Challenge {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, XdrError> {
        Ok(Self { nonce: *d.fixed()?, mac: *d.fixed()? })
    }
}

impl Encode for Challenge {
    fn encode(&self, e: &mut Encoder<'_>) {
        e.fixed(&self.nonce);
        e.fixed(&self.mac);
    }
}

/// The record of the metadata server about the directory of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membership {
    /// The node was never used: it may take an empty directory.
    New,
    /// The directory was used, but its identity was not recorded: it must be a marked one.
    Marked,
    /// The directory has this identity, and at least this many joins.
    Known {
        /// Random, made with the directory.
        incarnation: [u8; 16],
        /// The number of joins that the metadata server has recorded.
        joins: u64,
    },
}

impl Decode<'_> for Membership {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, XdrError> {
        match d.u32()? {
            0 => Ok(Self::New),
            1 => Ok(Self::Marked),
            2 => Ok(Self::Known { incarnation: *d.fixed()?, joins: d.u64()? }),
            value => Err(XdrError::UnknownValue { what: "a membership", value }),
        }
    }
}

impl Encode for Membership {
    fn encode(&self, e: &mut Encoder<'_>) {
        match self {
            Self::New => e.u32(0),
            Self::Marked => e.u32(1),
            Self::Known { incarnation, joins } => {
                e.u32(2);
                e.fixed(incarnation);
                e.u64(*joins);
            }
        }
    }
}

/// The third message, of the metadata server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Join {
    /// A MAC that proves that the metadata server knows the secret.
    pub mac: [u8; 32],
    /// Its record of the node's directory.
    pub membership: Membership,
}

impl Decode<'_> for Join {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, XdrError> {
        Ok(Self { mac: *d.fixed()?, membership: d.value()? })
    }
}

impl Encode for Join {
    fn encode(&self, e: &mut Encoder<'_>) {
        e.fixed(&self.mac);
        e.value(&self.membership);
    }
}

/// The reason why a data server refuses a metadata server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Refusal {
    /// It does not support the version.
    Version = 1,
    /// Its directory belongs to another node or another store.
    OtherNode = 2,
    /// Its directory is empty, but should not be.
    Empty = 3,
    /// Its directory is one of that node, but not the one that was used last.
    OtherDirectory = 4,
    /// The directory cannot be used; the data server's log has the reason.
    Failed = 5,
    /// Calls of the previous metadata server are still in progress.
    Busy = 6,
    /// Its directory is the right one, but in a state from before its last join.
    Older = 7,
}

impl Refusal {
    const ALL: [Self; 7] = [
        Self::Version,
        Self::OtherNode,
        Self::Empty,
        Self::OtherDirectory,
        Self::Failed,
        Self::Busy,
        Self::Older,
    ];
}

/// The last message of the handshake, of the data server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Joined<'a> {
    /// The data server accepts.
    Welcome {
        /// The identity of its directory: random, made with the directory.
        incarnation: [u8; 16],
        /// The number of joins of the directory, including this one; already stored in the
        /// directory.
        joins: u64,
        /// A number that differs after each start of the data server.
        run: u64,
        /// The addresses for NFS clients, as text.
        addresses: Vec<&'a [u8]>,
        /// The addresses for NFS over RDMA, as text.
        rdma_addresses: Vec<&'a [u8]>,
        /// The addresses for DAFS clients, as text.
        dafs_addresses: Vec<&'a [u8]>,
    },
    /// The data server refuses this metadata server.
    Refused(Refusal),
}

fn addresses<'a>(d: &mut Decoder<'a>) -> Result<Vec<&'a [u8]>, XdrError> {
    let count = d.array_len(ADDRESSES_MAX, 4)?;
    (0..count).map(|_| d.opaque(ADDRESS_BYTES_MAX)).collect()
}

impl<'a> Decode<'a> for Joined<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let code = d.u32()?;
        if code != 0 {
            let refusal = Refusal::ALL.into_iter().find(|refusal| *refusal as u32 == code);
            let unknown = XdrError::UnknownValue { what: "a refusal", value: code };
            return refusal.map(Self::Refused).ok_or(unknown);
        }
        let (incarnation, joins, run) = (*d.fixed()?, d.u64()?, d.u64()?);
        let [addresses, rdma_addresses, dafs_addresses] =
            [addresses(d)?, addresses(d)?, addresses(d)?];
        Ok(Self::Welcome { incarnation, joins, run, addresses, rdma_addresses, dafs_addresses })
    }
}

impl Encode for Joined<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        match self {
            Self::Refused(refusal) => e.u32(*refusal as u32),
            Self::Welcome {
                incarnation,
                joins,
                run,
                addresses,
                rdma_addresses,
                dafs_addresses,
            } => {
                e.u32(0);
                e.fixed(incarnation);
                e.u64(*joins);
                e.u64(*run);
                for addresses in [addresses, rdma_addresses, dafs_addresses] {
                    e.count(addresses.len());
                    addresses.iter().for_each(|address| e.opaque(address));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comes_back<'a, T: Encode + Decode<'a> + PartialEq + std::fmt::Debug>(
        value: &T,
        bytes: &'a mut Vec<u8>,
    ) {
        value.encode(&mut Encoder::new(bytes));
        let mut d = Decoder::new(bytes);
        assert_eq!(T::decode(&mut d).as_ref(), Ok(value));
        d.finish().expect("nothing else");
    }

    #[test]
    fn messages_come_back() {
        let nonce = [3; 32];
        let hello = Hello { version: VERSION, store: [1; 16], number: 7, nonce };
        comes_back(&hello, &mut Vec::new());
        comes_back(&Challenge { nonce, mac: [4; 32] }, &mut Vec::new());
        let known = Membership::Known { incarnation: [5; 16], joins: 1 << 40 };
        for membership in [Membership::New, Membership::Marked, known] {
            comes_back(&Join { mac: [6; 32], membership }, &mut Vec::new());
        }
        let addresses: Vec<&[u8]> = vec![b"192.0.2.1:2049", b"[2001:db8::1]:2049"];
        let rdma_addresses: Vec<&[u8]> = vec![b"192.0.2.1:20049"];
        let dafs_addresses: Vec<&[u8]> = vec![b"192.0.2.1:7070"];
        let (incarnation, joins, run) = ([7; 16], 1 << 41, 9);
        let welcome =
            Joined::Welcome { incarnation, joins, run, addresses, rdma_addresses, dafs_addresses };
        comes_back(&welcome, &mut Vec::new());
        for refusal in Refusal::ALL {
            comes_back(&Joined::Refused(refusal), &mut Vec::new());
        }
    }

    #[test]
    fn something_else_is_not_taken_for_a_hello() {
        let bytes = [0; 128];
        assert!(Hello::decode(&mut Decoder::new(&bytes)).is_err());
        assert!(Joined::decode(&mut Decoder::new(&[0, 0, 0, 99])).is_err());
    }
}
