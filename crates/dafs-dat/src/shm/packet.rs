//! The packets on the control socket of a connection: set-up, doorbell, regions, end.
//!
//! Both ends run on one host and one processor architecture, so numbers are in native order. The
//! socket keeps packet boundaries.
//!
//! Invariants
//! * Every packet is parsed into a type before it takes effect; any other packet is an error that
//!   ends the connection.

use super::limits::PACKET_BYTES_MAX;
use crate::PRIVATE_DATA_BYTES_MAX;
use crate::types::{Access, PrivateData};

/// "DAFSSHM" and the version of the whole protocol: packets, layout, records.
const MAGIC: [u8; 8] = *b"DAFSSHM\x01";

/// Bytes of text that travel with an error.
const TEXT_BYTES_MAX: usize = 200;

const _: () = assert!(2 + TEXT_BYTES_MAX <= PACKET_BYTES_MAX);
const _: () = assert!(16 + PRIVATE_DATA_BYTES_MAX <= PACKET_BYTES_MAX);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Packet {
    /// The initiator's first packet, with the connection memory as descriptor.
    Hello { ring_bytes: u32, private_data: PrivateData },
    /// The acceptor accepts the connection.
    Accept { private_data: PrivateData },
    /// The acceptor's consumer rejects it.
    Reject { private_data: PrivateData },
    /// The acceptor's transport refuses it.
    Refuse { text: String },
    /// Wakes the receiver: the rings have changed.
    Doorbell,
    /// A region that the sender shares, with its memory file as descriptor.
    Region(RegionPacket),
    /// The region with this key is withdrawn.
    Withdraw { key: u32 },
    /// The sender closes gracefully.
    Close,
    /// The sender closes because the receiver broke a rule.
    Terminate { text: String },
}

/// The description of a shared region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RegionPacket {
    pub(super) key: u32,
    pub(super) slot: u16,
    pub(super) access: Access,
    pub(super) address: u64,
    pub(super) len: u64,
}

const HELLO: u8 = 1;
const ACCEPT: u8 = 2;
const REJECT: u8 = 3;
const REFUSE: u8 = 4;
const DOORBELL: u8 = 5;
const REGION: u8 = 6;
const WITHDRAW: u8 = 7;
const CLOSE: u8 = 8;
const TERMINATE: u8 = 9;

/// The encoded doorbell; it is frequent, so it bypasses the encoder.
pub(super) const DOORBELL_BYTES: &[u8] = &[DOORBELL];

impl Packet {
    /// The bytes on the socket. Text and private data are truncated to the limits of a packet.
    pub(super) fn encode(&self) -> Vec<u8> {
        let private = |kind, data: &[u8]| {
            let mut bytes = vec![kind];
            bytes.extend_from_slice(&MAGIC);
            bytes.extend_from_slice(&data[..data.len().min(PRIVATE_DATA_BYTES_MAX)]);
            bytes
        };
        let text = |kind, text: &str| {
            let mut bytes = vec![kind];
            bytes.extend_from_slice(&text.as_bytes()[..text.len().min(TEXT_BYTES_MAX)]);
            bytes
        };
        match self {
            Packet::Hello { ring_bytes, private_data } => {
                let mut bytes = vec![HELLO];
                bytes.extend_from_slice(&MAGIC);
                bytes.extend_from_slice(&ring_bytes.to_ne_bytes());
                bytes.extend_from_slice(private_data);
                bytes
            }
            Packet::Accept { private_data } => private(ACCEPT, private_data),
            Packet::Reject { private_data } => private(REJECT, private_data),
            Packet::Refuse { text: reason } => text(REFUSE, reason),
            Packet::Doorbell => DOORBELL_BYTES.to_vec(),
            Packet::Region(region) => {
                let mut bytes = vec![REGION, region.access.bits()];
                bytes.extend_from_slice(&region.slot.to_ne_bytes());
                bytes.extend_from_slice(&region.key.to_ne_bytes());
                bytes.extend_from_slice(&region.address.to_ne_bytes());
                bytes.extend_from_slice(&region.len.to_ne_bytes());
                bytes
            }
            Packet::Withdraw { key } => {
                let mut bytes = vec![WITHDRAW];
                bytes.extend_from_slice(&key.to_ne_bytes());
                bytes
            }
            Packet::Close => vec![CLOSE],
            Packet::Terminate { text: reason } => text(TERMINATE, reason),
        }
    }

    /// Parses a packet. The error is worded for the receiver's log.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let (&kind, rest) = bytes.split_first().ok_or("an empty packet")?;
        let packet = match kind {
            HELLO => {
                let (ring_bytes, data) = after_magic(rest)?
                    .split_first_chunk::<4>()
                    .ok_or("a hello that is too short")?;
                Packet::Hello {
                    ring_bytes: u32::from_ne_bytes(*ring_bytes),
                    private_data: private_data(data)?,
                }
            }
            ACCEPT => Packet::Accept { private_data: private_data(after_magic(rest)?)? },
            REJECT => Packet::Reject { private_data: private_data(after_magic(rest)?)? },
            REFUSE => Packet::Refuse { text: text(rest) },
            DOORBELL if rest.is_empty() => Packet::Doorbell,
            REGION => Packet::Region(region(rest).ok_or("a malformed region packet")?),
            WITHDRAW => Packet::Withdraw {
                key: rest.try_into().map(u32::from_ne_bytes).map_err(|_| "a malformed packet")?,
            },
            CLOSE if rest.is_empty() => Packet::Close,
            TERMINATE => Packet::Terminate { text: text(rest) },
            _ => return Err("a packet of unknown kind"),
        };
        Ok(packet)
    }
}

fn after_magic(bytes: &[u8]) -> Result<&[u8], &'static str> {
    bytes.strip_prefix(&MAGIC).ok_or("a hello of another protocol or version")
}

fn private_data(bytes: &[u8]) -> Result<PrivateData, &'static str> {
    if bytes.len() > PRIVATE_DATA_BYTES_MAX {
        return Err("private data that is too long");
    }
    Ok(bytes.to_vec())
}

/// Text from a peer goes to logs, so only its printable ASCII is kept.
fn text(bytes: &[u8]) -> String {
    bytes
        .iter()
        .take(TEXT_BYTES_MAX)
        .map(|&byte| if (b' '..=b'~').contains(&byte) { byte as char } else { '?' })
        .collect()
}

fn region(bytes: &[u8]) -> Option<RegionPacket> {
    let (&access, bytes) = bytes.split_first()?;
    let (slot, bytes) = bytes.split_first_chunk::<2>()?;
    let (key, bytes) = bytes.split_first_chunk::<4>()?;
    let (address, bytes) = bytes.split_first_chunk::<8>()?;
    Some(RegionPacket {
        key: u32::from_ne_bytes(*key),
        slot: u16::from_ne_bytes(*slot),
        access: Access::from_bits(access)?,
        address: u64::from_ne_bytes(*address),
        len: u64::from_ne_bytes(bytes.try_into().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packets() -> impl Strategy<Value = Packet> {
        let data = || prop::collection::vec(any::<u8>(), 0..=PRIVATE_DATA_BYTES_MAX);
        prop_oneof![
            (any::<u32>(), data())
                .prop_map(|(ring_bytes, private_data)| Packet::Hello { ring_bytes, private_data }),
            data().prop_map(|private_data| Packet::Accept { private_data }),
            data().prop_map(|private_data| Packet::Reject { private_data }),
            "[ -~]{0,200}".prop_map(|text| Packet::Refuse { text }),
            Just(Packet::Doorbell),
            (any::<u32>(), any::<u16>(), 0u8..8, any::<u64>(), any::<u64>()).prop_map(
                |(key, slot, access, address, len)| {
                    let access = Access::from_bits_truncate(access);
                    Packet::Region(RegionPacket { key, slot, access, address, len })
                }
            ),
            any::<u32>().prop_map(|key| Packet::Withdraw { key }),
            Just(Packet::Close),
            "[ -~]{0,200}".prop_map(|text| Packet::Terminate { text }),
        ]
    }

    proptest! {
        #[test]
        fn packets_survive_the_socket(packet in packets()) {
            let bytes = packet.encode();
            prop_assert!(bytes.len() <= PACKET_BYTES_MAX);
            prop_assert_eq!(Packet::decode(&bytes), Ok(packet));
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            if let Ok(packet) = Packet::decode(&bytes) {
                prop_assert!(Packet::decode(&packet.encode()).is_ok());
            }
        }
    }
}
