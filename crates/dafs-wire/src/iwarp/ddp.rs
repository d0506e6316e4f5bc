//! The headers of DDP segments with their RDMAP control byte.

use super::rdmap::Opcode;
use super::{read_u16, read_u32, read_u64};
use thiserror::Error;

/// Bytes of the length field and a tagged header: the least that is needed to validate any segment.
pub const TAGGED_FPDU_HEADER_BYTES: usize = 16;

/// Bytes of the length field and an untagged header.
pub const UNTAGGED_FPDU_HEADER_BYTES: usize = 20;

/// Bytes of a tagged header alone.
pub const TAGGED_HEADER_BYTES: usize = 14;

/// Bytes of an untagged header alone.
pub const UNTAGGED_HEADER_BYTES: usize = 18;

const CONTROL_TAGGED: u8 = 0x80;
const CONTROL_LAST: u8 = 0x40;
const DDP_VERSION_MASK: u8 = 0x03;
const DDP_VERSION: u8 = 0x01;
const RDMAP_VERSION_MASK: u8 = 0xc0;
const RDMAP_VERSION: u8 = 0x40;
const OPCODE_MASK: u8 = 0x0f;

/// A queue of untagged messages (RFC 5040 5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Queue {
    /// Sends of all kinds.
    Send = 0,
    /// RDMA read requests.
    ReadRequest = 1,
    /// Terminate.
    Terminate = 2,
}

/// The reason why a segment header is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DdpError {
    /// A DDP version other than 1.
    #[error("DDP version {0} is not 1")]
    DdpVersion(u8),
    /// The segment is shorter than its header.
    #[error("DDP segment of {0} bytes is shorter than its header")]
    Length(u16),
    /// An opcode that is undefined, or undefined in this kind of segment.
    #[error("RDMAP opcode {opcode} in {} segment", if *.tagged { "a tagged" } else { "an untagged" })]
    Opcode {
        /// The opcode.
        opcode: u8,
        /// True for a tagged segment.
        tagged: bool,
    },
    /// A queue that is undefined or does not match the opcode.
    #[error("RDMAP opcode {opcode} on queue {queue}")]
    Queue {
        /// The opcode.
        opcode: u8,
        /// The queue.
        queue: u32,
    },
    /// An RDMAP version other than 1.
    #[error("RDMAP version {0} is not 1")]
    RdmapVersion(u8),
}

/// The target of a segment's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Memory that the receiver has named (a tagged buffer).
    Tagged {
        /// The key of the memory.
        stag: u32,
        /// The address in the memory.
        offset: u64,
    },
    /// The next buffer of a queue (an untagged buffer).
    Untagged {
        /// The key to invalidate, for the sends with invalidate; else 0.
        invalidate_stag: u32,
        /// The queue.
        queue: Queue,
        /// Message sequence number, from 1 in each queue.
        msn: u32,
        /// Bytes of the message before this segment.
        offset: u32,
    },
}

/// A decoded segment header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The kind of message that the segment belongs to.
    pub opcode: Opcode,
    /// True for the last segment of its message.
    pub last: bool,
    /// The target of the payload.
    pub place: Place,
    /// Bytes of payload.
    pub payload_bytes: u16,
}

/// The length of an FPDU's header, given its first bytes. At least 16 bytes of any FPDU belong to
/// it, so a read of that many never takes bytes of the next one.
pub fn fpdu_header_bytes(start: &[u8]) -> usize {
    match start.get(2) {
        Some(control) if control & CONTROL_TAGGED == 0 => UNTAGGED_FPDU_HEADER_BYTES,
        _ => TAGGED_FPDU_HEADER_BYTES,
    }
}

impl Header {
    /// Decodes the length field and the header from the start of an FPDU, of which
    /// [`fpdu_header_bytes`] must be there; `None` if they are not.
    ///
    /// # Errors
    /// The fault in the header.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, DdpError> {
        if bytes.len() < TAGGED_FPDU_HEADER_BYTES || bytes.len() < fpdu_header_bytes(bytes) {
            return Ok(None);
        }
        let (length, control, rdmap) = (read_u16(bytes, 0), bytes[2], bytes[3]);
        if control & DDP_VERSION_MASK != DDP_VERSION {
            return Err(DdpError::DdpVersion(control & DDP_VERSION_MASK));
        }
        if rdmap & RDMAP_VERSION_MASK != RDMAP_VERSION {
            return Err(DdpError::RdmapVersion(rdmap >> 6));
        }
        let tagged = control & CONTROL_TAGGED != 0;
        let code = rdmap & OPCODE_MASK;
        let opcode = Opcode::from_code(code)
            .filter(|opcode| opcode.is_tagged() == tagged)
            .ok_or(DdpError::Opcode { opcode: code, tagged })?;
        let header_bytes = if tagged { TAGGED_HEADER_BYTES } else { UNTAGGED_HEADER_BYTES } as u16;
        let payload_bytes = length.checked_sub(header_bytes).ok_or(DdpError::Length(length))?;
        let place = if tagged {
            Place::Tagged { stag: read_u32(bytes, 4), offset: read_u64(bytes, 8) }
        } else {
            let queue = read_u32(bytes, 8);
            let queue = opcode
                .queue()
                .filter(|known| *known as u32 == queue)
                .ok_or(DdpError::Queue { opcode: code, queue })?;
            Place::Untagged {
                invalidate_stag: read_u32(bytes, 4),
                queue,
                msn: read_u32(bytes, 12),
                offset: read_u32(bytes, 16),
            }
        };
        Ok(Some(Self { opcode, last: control & CONTROL_LAST != 0, place, payload_bytes }))
    }

    /// Bytes of the DDP segment, header and payload.
    pub fn segment_bytes(&self) -> usize {
        let header_bytes = match self.place {
            Place::Tagged { .. } => TAGGED_HEADER_BYTES,
            Place::Untagged { .. } => UNTAGGED_HEADER_BYTES,
        };
        header_bytes + usize::from(self.payload_bytes)
    }

    /// Appends length field and header to `out`. The payload must leave room for the header in the
    /// 16-bit length, which [`super::mpa::segment_bytes_within`] ensures.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let length = self.segment_bytes() as u16;
        let control = DDP_VERSION | if self.last { CONTROL_LAST } else { 0 };
        let rdmap = RDMAP_VERSION | self.opcode.code();
        out.extend_from_slice(&length.to_be_bytes());
        match self.place {
            Place::Tagged { stag, offset } => {
                out.extend_from_slice(&[control | CONTROL_TAGGED, rdmap]);
                out.extend_from_slice(&stag.to_be_bytes());
                out.extend_from_slice(&offset.to_be_bytes());
            }
            Place::Untagged { invalidate_stag, queue, msn, offset } => {
                out.extend_from_slice(&[control, rdmap]);
                for word in [invalidate_stag, queue as u32, msn, offset] {
                    out.extend_from_slice(&word.to_be_bytes());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(bytes: &[u8]) -> Result<Option<Header>, DdpError> {
        Header::decode(bytes)
    }

    #[test]
    fn a_tagged_header_has_the_layout_of_the_rfc() {
        let header = Header {
            opcode: Opcode::Write,
            last: true,
            place: Place::Tagged { stag: 0x0102_0304, offset: 0x1112_1314_1516_1718 },
            payload_bytes: 100,
        };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        let want = [0, 114, 0xc1, 0x40, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];
        assert_eq!(bytes, want);
        assert_eq!(decode(&bytes), Ok(Some(header)));
    }

    #[test]
    fn an_untagged_header_has_the_layout_of_the_rfc() {
        let place =
            Place::Untagged { invalidate_stag: 7, queue: Queue::Send, msn: 2, offset: 0x1000 };
        let header =
            Header { opcode: Opcode::SendInvalidate, last: false, place, payload_bytes: 2 };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        let want = [0, 20, 0x01, 0x44, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0x10, 0];
        assert_eq!(bytes, want);
        assert_eq!(decode(&bytes), Ok(Some(header)));
        assert_eq!(decode(&bytes[..19]), Ok(None));
    }

    #[test]
    fn headers_that_disagree_with_themselves_are_refused() {
        let good = [0, 20, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        assert!(matches!(decode(&good), Ok(Some(_))));
        let with = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            decode(&bytes).unwrap_err()
        };
        assert_eq!(with(1, 17), DdpError::Length(17));
        assert_eq!(with(2, 0x42), DdpError::DdpVersion(2));
        assert_eq!(with(3, 0x83), DdpError::RdmapVersion(2));
        assert_eq!(with(3, 0x40), DdpError::Opcode { opcode: 0, tagged: false });
        assert_eq!(with(3, 0x48), DdpError::Opcode { opcode: 8, tagged: false });
        assert_eq!(with(2, 0xc1), DdpError::Opcode { opcode: 3, tagged: true });
        assert_eq!(with(11, 1), DdpError::Queue { opcode: 3, queue: 1 });
        assert_eq!(with(8, 1), DdpError::Queue { opcode: 3, queue: 1 << 24 });
    }

    proptest! {
        #[test]
        fn a_decoded_header_encodes_to_the_same_bytes(bytes in proptest::array::uniform20(any::<u8>())) {
            if let Ok(Some(header)) = Header::decode(&bytes) {
                let mut again = Vec::new();
                header.encode(&mut again);
                prop_assert_eq!(Header::decode(&again), Ok(Some(header)));
                prop_assert_eq!(&again[4..], &bytes[4..again.len()]);
            }
        }
    }
}
