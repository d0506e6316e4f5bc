//! MPA: the connection set-up frames and the arithmetic of FPDUs.
//!
//! Invariants
//! * A frame is decoded only when it is complete; its length is known after 20 bytes.
//! * Private data is at most 512 bytes (RFC 5044 7.1.1), including the enhanced words.

use super::read_u16;
use thiserror::Error;

/// Bytes of a frame before its private data.
pub const FRAME_HEADER_BYTES: usize = 20;

/// The most private data of a frame (RFC 5044 7.1.1).
pub const PRIVATE_DATA_BYTES_MAX: usize = 512;

/// Bytes of the length field before each segment.
pub const FPDU_LENGTH_BYTES: usize = 2;

/// Bytes of the CRC field after each segment; it exists even when CRC is off.
pub const FPDU_CRC_BYTES: usize = 4;

/// The most bytes of a DDP segment that the length field can state.
pub const SEGMENT_BYTES_MAX: usize = 0xffff;

/// The sender requests markers.
const FLAG_MARKERS: u8 = 0x80;
/// The sender requests CRC.
const FLAG_CRC: u8 = 0x40;
/// The connection is rejected.
const FLAG_REJECT: u8 = 0x20;
/// The private data starts with the enhanced words (RFC 6581 9).
const FLAG_ENHANCED: u8 = 0x10;

/// IRD word: the sender requests the peer-to-peer model.
const IRD_PEER_TO_PEER: u16 = 0x8000;
/// IRD word: ready-to-receive by an FPDU of length zero.
const IRD_RTR_EMPTY: u16 = 0x4000;
/// ORD word: ready-to-receive by an RDMA write of length zero.
const ORD_RTR_WRITE: u16 = 0x8000;
/// ORD word: ready-to-receive by an RDMA read of length zero.
const ORD_RTR_READ: u16 = 0x4000;

/// The value of IRD and ORD that means "not negotiated" (RFC 6581 9.1).
pub const DEPTH_UNNEGOTIATED: u16 = 0x3fff;

/// Bytes of the block by which peers of this implementation recognize each other.
pub const DAFS_BLOCK_BYTES: usize = 8;

const DAFS_BLOCK_MAGIC: [u8; 4] = *b"SOFT";
const DAFS_BLOCK_LARGE_FPDU: u16 = 0x0001;
const DAFS_BLOCK_CRC: u16 = 0x0002;

/// The kind of a set-up frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// Sent by the side that connects.
    Request,
    /// The answer.
    Reply,
}

impl FrameKind {
    const fn key(self) -> &'static [u8; 16] {
        match self {
            FrameKind::Request => b"MPA ID Req Frame",
            FrameKind::Reply => b"MPA ID Rep Frame",
        }
    }

    /// True if `bytes` can begin a frame of this kind: they agree with its key as far as they go.
    pub fn is_begun_by(self, bytes: &[u8]) -> bool {
        let known = bytes.len().min(self.key().len());
        bytes[..known] == self.key()[..known]
    }
}

/// The reason why bytes are not a set-up frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MpaError {
    /// The enhanced flag is set but the words are missing.
    #[error("MPA frame with the enhanced flag is too short for IRD and ORD")]
    EnhancedMissing,
    /// The frame does not start with the key.
    #[error("not an MPA {0:?} frame")]
    Key(FrameKind),
    /// More private data than allowed.
    #[error("MPA frame with {0} bytes of private data; 512 are allowed")]
    PrivateDataLength(u16),
    /// An unsupported revision.
    #[error("MPA revision {0} is not supported; 1 and 2 are")]
    Revision(u8),
}

/// IRD and ORD with their flags (RFC 6581 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Enhanced {
    /// Inbound reads that the sender answers at a time (IRD); at most 0x3fff.
    pub ird: u16,
    /// Outbound reads that the sender will have in progress (ORD); at most 0x3fff.
    pub ord: u16,
    /// The peer-to-peer model: the initiator sends a ready-to-receive frame.
    pub peer_to_peer: bool,
    /// That frame may be an FPDU of length zero.
    pub rtr_empty: bool,
    /// That frame may be an RDMA write of length zero.
    pub rtr_write: bool,
    /// That frame may be an RDMA read of length zero.
    pub rtr_read: bool,
}

impl Enhanced {
    /// Bytes on the wire.
    pub const BYTES: usize = 4;

    fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < Self::BYTES {
            return None;
        }
        let (ird, ord) = (read_u16(bytes, 0), read_u16(bytes, 2));
        Some(Self {
            ird: ird & DEPTH_UNNEGOTIATED,
            ord: ord & DEPTH_UNNEGOTIATED,
            peer_to_peer: ird & IRD_PEER_TO_PEER != 0,
            rtr_empty: ird & IRD_RTR_EMPTY != 0,
            rtr_write: ord & ORD_RTR_WRITE != 0,
            rtr_read: ord & ORD_RTR_READ != 0,
        })
    }

    fn encode(self) -> [u8; 4] {
        let flag = |set: bool, bit: u16| if set { bit } else { 0 };
        let ird = self.ird & DEPTH_UNNEGOTIATED
            | flag(self.peer_to_peer, IRD_PEER_TO_PEER)
            | flag(self.rtr_empty, IRD_RTR_EMPTY);
        let ord = self.ord & DEPTH_UNNEGOTIATED
            | flag(self.rtr_write, ORD_RTR_WRITE)
            | flag(self.rtr_read, ORD_RTR_READ);
        let (ird, ord) = (ird.to_be_bytes(), ord.to_be_bytes());
        [ird[0], ird[1], ord[0], ord[1]]
    }
}

/// A set-up frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Request or reply.
    pub kind: FrameKind,
    /// The sender requests markers.
    pub markers: bool,
    /// The sender requests CRC.
    pub crc: bool,
    /// The responder rejects the connection.
    pub reject: bool,
    /// Revision, 0 to 2.
    pub revision: u8,
    /// The enhanced words, if their flag is set.
    pub enhanced: Option<Enhanced>,
    /// The private data after the enhanced words.
    pub private_data: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Decodes a frame from the start of `bytes`. Returns the frame and its length, or the number
    /// of bytes that are needed to continue.
    ///
    /// # Errors
    /// As soon as the bytes cannot become such a frame.
    pub fn decode(kind: FrameKind, bytes: &'a [u8]) -> Result<Decoded<'a>, MpaError> {
        if !kind.is_begun_by(bytes) {
            return Err(MpaError::Key(kind));
        }
        if bytes.len() < FRAME_HEADER_BYTES {
            return Ok(Decoded::Need(FRAME_HEADER_BYTES));
        }
        let (flags, revision, length) = (bytes[16], bytes[17], read_u16(bytes, 18));
        if revision > 2 {
            return Err(MpaError::Revision(revision));
        }
        if usize::from(length) > PRIVATE_DATA_BYTES_MAX {
            return Err(MpaError::PrivateDataLength(length));
        }
        let total = FRAME_HEADER_BYTES + usize::from(length);
        if bytes.len() < total {
            return Ok(Decoded::Need(total));
        }
        let mut private_data = &bytes[FRAME_HEADER_BYTES..total];
        // The flag is defined from revision 2 on; before, the bit is reserved (RFC 5044 7.1.1).
        let enhanced = if revision >= 2 && flags & FLAG_ENHANCED != 0 {
            let words = Enhanced::decode(private_data).ok_or(MpaError::EnhancedMissing)?;
            private_data = &private_data[Enhanced::BYTES..];
            Some(words)
        } else {
            None
        };
        let frame = Frame {
            kind,
            markers: flags & FLAG_MARKERS != 0,
            crc: flags & FLAG_CRC != 0,
            reject: flags & FLAG_REJECT != 0,
            revision,
            enhanced,
            private_data,
        };
        Ok(Decoded::Frame(frame, total))
    }

    /// Appends the frame to `out`.
    ///
    /// # Errors
    /// When the private data is too long; `out` stays unchanged.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), MpaError> {
        let words = self.enhanced.map(Enhanced::encode);
        let length = self.private_data.len() + words.map_or(0, |words| words.len());
        if length > PRIVATE_DATA_BYTES_MAX {
            return Err(MpaError::PrivateDataLength(u16::try_from(length).unwrap_or(u16::MAX)));
        }
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = flag(self.markers, FLAG_MARKERS)
            | flag(self.crc, FLAG_CRC)
            | flag(self.reject, FLAG_REJECT)
            | flag(words.is_some(), FLAG_ENHANCED);
        out.extend_from_slice(self.kind.key());
        out.extend_from_slice(&[flags, self.revision]);
        out.extend_from_slice(&(length as u16).to_be_bytes());
        if let Some(words) = words {
            out.extend_from_slice(&words);
        }
        out.extend_from_slice(self.private_data);
        Ok(())
    }
}

/// The result of decoding a set-up frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// A whole frame and its length.
    Frame(Frame<'a>, usize),
    /// This many bytes are needed from the start of the frame.
    Need(usize),
}

/// The block that peers of this implementation append to the consumer's private data. Both sides
/// must send it before either relies on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DafsBlock {
    /// The sender takes FPDUs that are larger than a TCP segment.
    pub large_fpdu: bool,
    /// The sender requests CRC.
    pub crc: bool,
}

impl DafsBlock {
    /// The block on the wire: magic, flags, zero.
    pub fn encode(self) -> [u8; DAFS_BLOCK_BYTES] {
        let flags = if self.large_fpdu { DAFS_BLOCK_LARGE_FPDU } else { 0 }
            | if self.crc { DAFS_BLOCK_CRC } else { 0 };
        let flags = flags.to_be_bytes();
        let [a, b, c, d] = DAFS_BLOCK_MAGIC;
        [a, b, c, d, flags[0], flags[1], 0, 0]
    }

    /// Splits the block off the end of private data, if it is there.
    pub fn split(private_data: &[u8]) -> (&[u8], Option<DafsBlock>) {
        let Some(at) = private_data.len().checked_sub(DAFS_BLOCK_BYTES) else {
            return (private_data, None);
        };
        let (rest, block) = private_data.split_at(at);
        if block[..4] != DAFS_BLOCK_MAGIC || read_u16(block, 6) != 0 {
            return (private_data, None);
        }
        let flags = read_u16(block, 4);
        let dafs_block = DafsBlock {
            large_fpdu: flags & DAFS_BLOCK_LARGE_FPDU != 0,
            crc: flags & DAFS_BLOCK_CRC != 0,
        };
        (rest, Some(dafs_block))
    }
}

/// Padding after a segment of `segment_bytes`, so that the FPDU is a multiple of four.
pub const fn padding_bytes(segment_bytes: usize) -> usize {
    (4 - (FPDU_LENGTH_BYTES + segment_bytes) % 4) % 4
}

/// The longest segment whose whole FPDU fits in `fpdu_bytes`; zero if none does.
pub const fn segment_bytes_within(fpdu_bytes: usize) -> usize {
    let whole = fpdu_bytes / 4 * 4;
    let segment = whole.saturating_sub(FPDU_LENGTH_BYTES + FPDU_CRC_BYTES);
    if segment > SEGMENT_BYTES_MAX { SEGMENT_BYTES_MAX } else { segment }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_request_of_the_linux_nfs_client_decodes() {
        let mut bytes = b"MPA ID Req Frame".to_vec();
        bytes.extend_from_slice(&[0x10, 2, 0, 12, 0x00, 0x80, 0, 0]);
        bytes.extend_from_slice(&[0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3]);
        let Ok(Decoded::Frame(frame, 32)) = Frame::decode(FrameKind::Request, &bytes) else {
            panic!("not decoded");
        };
        assert_eq!(frame.revision, 2);
        assert!(!frame.crc && !frame.markers && !frame.reject);
        assert_eq!(frame.enhanced, Some(Enhanced { ird: 128, ..Enhanced::default() }));
        assert_eq!(frame.private_data, [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3]);
        let mut again = Vec::new();
        frame.encode(&mut again).unwrap();
        assert_eq!(again, bytes);
    }

    #[test]
    fn hostile_frames_are_refused_early() {
        let decode = |bytes: &[u8]| Frame::decode(FrameKind::Request, bytes).map(|_| ());
        assert_eq!(decode(b"GET / HT"), Err(MpaError::Key(FrameKind::Request)));
        let frame = |tail: &[u8]| [b"MPA ID Req Frame".as_slice(), tail].concat();
        assert_eq!(decode(&frame(&[0, 3, 0, 0])), Err(MpaError::Revision(3)));
        assert_eq!(decode(&frame(&[0, 1, 2, 1])), Err(MpaError::PrivateDataLength(513)));
        assert_eq!(decode(&frame(&[0x10, 2, 0, 2, 0, 0])), Err(MpaError::EnhancedMissing));
    }

    #[test]
    fn padding_completes_the_fpdu() {
        for segment in 14..200 {
            let total = FPDU_LENGTH_BYTES + segment + padding_bytes(segment) + FPDU_CRC_BYTES;
            assert_eq!(total % 4, 0);
            assert!(padding_bytes(segment) < 4);
        }
        for fpdu in 24..3000 {
            let segment = segment_bytes_within(fpdu);
            assert!(6 + segment + padding_bytes(segment) <= fpdu);
            assert!(6 + segment + 1 + padding_bytes(segment + 1) > fpdu);
        }
    }

    #[test]
    fn a_soft_block_is_found_only_at_the_end() {
        let dafs_block = DafsBlock { large_fpdu: true, crc: false };
        let data = [b"hello".as_slice(), &dafs_block.encode()].concat();
        assert_eq!(data[5..], *b"SOFT\0\x01\0\0");
        assert_eq!(DafsBlock::split(&data), (b"hello".as_slice(), Some(dafs_block)));
        assert_eq!(DafsBlock::split(b"SOFT"), (b"SOFT".as_slice(), None));
        assert_eq!(DafsBlock::split(b"SOFT\0\x01\0\x01").1, None);
        assert_eq!(DafsBlock::split(b"SOFT\0\x01\0\0x").1, None);
    }

    proptest! {
        #[test]
        fn frames_round_trip_and_every_prefix_asks_for_more(
            flags in any::<[bool; 7]>(), depth in 0u16..0x4000, reply in any::<bool>(),
            data in proptest::collection::vec(any::<u8>(), 0..500),
        ) {
            let [markers, crc, reject, peer_to_peer, rtr_empty, rtr_write, rtr_read] = flags;
            let kind = if reply { FrameKind::Reply } else { FrameKind::Request };
            let words = Enhanced {
                ird: depth, ord: depth ^ 1, peer_to_peer, rtr_empty, rtr_write, rtr_read,
            };
            let enhanced = (depth % 3 != 0).then_some(words);
            let frame = Frame {
                kind, markers, crc, reject, revision: 2, enhanced, private_data: &data,
            };
            let mut bytes = Vec::new();
            frame.encode(&mut bytes).unwrap();
            prop_assert_eq!(Frame::decode(kind, &bytes), Ok(Decoded::Frame(frame, bytes.len())));
            for cut in 0..bytes.len() {
                let Ok(Decoded::Need(need)) = Frame::decode(kind, &bytes[..cut]) else {
                    panic!("a prefix was taken for a frame");
                };
                prop_assert!(need > cut && need <= bytes.len());
            }
        }
    }
}
