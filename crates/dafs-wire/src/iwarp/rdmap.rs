//! RDMAP: opcodes, the payload of a read request, Terminate.

use super::ddp::Queue;
use super::{read_u16, read_u32, read_u64};
use std::fmt;

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// The kind of message that a segment belongs to (RFC 5040 4.1).
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Opcode { $($(#[$doc])* $name = $code,)* }

        impl Opcode {
            /// The opcode of a code.
            pub fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Opcode::$name),)* _ => None }
            }
        }
    };
}

opcodes! {
    /// RDMA write.
    Write = 0x0,
    /// RDMA read request.
    ReadRequest = 0x1,
    /// RDMA read response.
    ReadResponse = 0x2,
    /// Send.
    Send = 0x3,
    /// Send that invalidates a key of the receiver.
    SendInvalidate = 0x4,
    /// Send with solicited event.
    SendSolicited = 0x5,
    /// Send with solicited event that invalidates a key of the receiver.
    SendSolicitedInvalidate = 0x6,
    /// The peer ends the connection because of an error.
    Terminate = 0x7,
}

impl Opcode {
    /// The code on the wire.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// True if its segments are tagged.
    pub fn is_tagged(self) -> bool {
        matches!(self, Opcode::Write | Opcode::ReadResponse)
    }

    /// The queue of an untagged message.
    pub fn queue(self) -> Option<Queue> {
        match self {
            Opcode::Write | Opcode::ReadResponse => None,
            Opcode::ReadRequest => Some(Queue::ReadRequest),
            Opcode::Terminate => Some(Queue::Terminate),
            Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate => Some(Queue::Send),
        }
    }
}

/// The payload of a read request (RFC 5040 4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRequest {
    /// The key (STag) that the response must carry.
    pub sink_stag: u32,
    /// The address at which the response must start.
    pub sink_offset: u64,
    /// Bytes to read.
    pub length: u32,
    /// The key of the memory to read.
    pub source_stag: u32,
    /// The address in it.
    pub source_offset: u64,
}

impl ReadRequest {
    /// Bytes on the wire.
    pub const BYTES: usize = 28;

    /// Decodes the payload; `None` unless it has exactly the right length.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        (bytes.len() == Self::BYTES).then(|| Self {
            sink_stag: read_u32(bytes, 0),
            sink_offset: read_u64(bytes, 4),
            length: read_u32(bytes, 12),
            source_stag: read_u32(bytes, 16),
            source_offset: read_u64(bytes, 20),
        })
    }

    /// Appends the payload to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.sink_stag.to_be_bytes());
        out.extend_from_slice(&self.sink_offset.to_be_bytes());
        out.extend_from_slice(&self.length.to_be_bytes());
        out.extend_from_slice(&self.source_stag.to_be_bytes());
        out.extend_from_slice(&self.source_offset.to_be_bytes());
    }
}

/// The error codes of a Terminate (RFC 5040 4.8). A peer's values serve the log only: some
/// implementations swap the nibbles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminate {
    /// 0 RDMAP, 1 DDP, 2 the layer below (MPA).
    pub layer: u8,
    /// Error type within the layer.
    pub error_type: u8,
    /// Code within the type.
    pub code: u8,
}

impl Terminate {
    /// Bytes of the control field, the only part that this side sends.
    pub const BYTES: usize = 4;

    /// The most payload a Terminate can have: control field, segment length, the headers of the
    /// offending segment.
    pub const BYTES_MAX: usize = 64;

    /// An unspecified error.
    pub const UNSPECIFIED: Self = Self { layer: 0, error_type: 2, code: 0xff };
    /// RDMAP remote protection: the key is unknown.
    pub const READ_STAG: Self = Self { layer: 0, error_type: 1, code: 0x00 };
    /// RDMAP remote protection: base or bounds.
    pub const READ_BOUNDS: Self = Self { layer: 0, error_type: 1, code: 0x01 };
    /// RDMAP remote protection: access rights.
    pub const ACCESS: Self = Self { layer: 0, error_type: 1, code: 0x02 };
    /// RDMAP remote operation: unexpected opcode.
    pub const OPCODE: Self = Self { layer: 0, error_type: 2, code: 0x06 };
    /// RDMAP remote operation: the key cannot be invalidated.
    pub const INVALIDATE: Self = Self { layer: 0, error_type: 2, code: 0x09 };
    /// RDMAP remote operation: invalid RDMAP version.
    pub const RDMAP_VERSION: Self = Self { layer: 0, error_type: 2, code: 0x05 };
    /// DDP tagged buffer: the key is unknown.
    pub const WRITE_STAG: Self = Self { layer: 1, error_type: 1, code: 0x00 };
    /// DDP tagged buffer: base or bounds.
    pub const WRITE_BOUNDS: Self = Self { layer: 1, error_type: 1, code: 0x01 };
    /// DDP untagged buffer: no such queue.
    pub const QUEUE: Self = Self { layer: 1, error_type: 2, code: 0x01 };
    /// DDP untagged buffer: no buffer available.
    pub const NO_BUFFER: Self = Self { layer: 1, error_type: 2, code: 0x02 };
    /// DDP untagged buffer: message number out of order.
    pub const MSN: Self = Self { layer: 1, error_type: 2, code: 0x03 };
    /// DDP untagged buffer: message offset.
    pub const OFFSET: Self = Self { layer: 1, error_type: 2, code: 0x04 };
    /// DDP untagged buffer: the message is too long for the buffer.
    pub const TOO_LONG: Self = Self { layer: 1, error_type: 2, code: 0x05 };
    /// DDP untagged buffer: invalid DDP version.
    pub const DDP_VERSION: Self = Self { layer: 1, error_type: 2, code: 0x06 };
    /// MPA: the CRC does not match.
    pub const CRC: Self = Self { layer: 2, error_type: 0, code: 0x02 };

    /// Decodes the control field; `None` if the payload is too short for it.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < Self::BYTES {
            return None;
        }
        let word = read_u16(bytes, 0);
        Some(Self {
            layer: (word >> 12) as u8,
            error_type: (word >> 8 & 0x0f) as u8,
            code: (word & 0xff) as u8,
        })
    }

    /// Appends the control field to `out`, with no copy of the offending headers.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.layer << 4 | self.error_type & 0x0f, self.code, 0, 0]);
    }
}

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Self::READ_STAG => "read with an unknown key",
            Self::READ_BOUNDS => "read outside the bounds of its key",
            Self::ACCESS => "access right missing",
            Self::OPCODE => "unexpected opcode",
            Self::INVALIDATE => "key cannot be invalidated",
            Self::WRITE_STAG => "write with an unknown key",
            Self::WRITE_BOUNDS => "write outside the bounds of its key",
            Self::QUEUE => "no such queue",
            Self::NO_BUFFER => "no receive was posted",
            Self::MSN => "message number out of order",
            Self::OFFSET => "message offset out of order",
            Self::TOO_LONG => "message longer than the posted receive",
            Self::CRC => "CRC error",
            _ => "unspecified",
        };
        let Self { layer, error_type, code } = self;
        write!(f, "{text} (layer {layer}, type {error_type}, code {code:#04x})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_request_round_trips_in_28_bytes() {
        let request = ReadRequest {
            sink_stag: 0x0102_0304,
            sink_offset: 0x1112_1314_1516_1718,
            length: 0x2122_2324,
            source_stag: 0x3132_3334,
            source_offset: 0x4142_4344_4546_4748,
        };
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        assert_eq!(bytes.len(), ReadRequest::BYTES);
        assert_eq!(bytes[12..16], [0x21, 0x22, 0x23, 0x24]);
        assert_eq!(ReadRequest::decode(&bytes), Some(request));
        assert_eq!(ReadRequest::decode(&bytes[1..]), None);
        bytes.push(0);
        assert_eq!(ReadRequest::decode(&bytes), None);
    }

    #[test]
    fn a_terminate_has_its_layer_in_the_high_nibble() {
        let mut bytes = Vec::new();
        Terminate::NO_BUFFER.encode(&mut bytes);
        assert_eq!(bytes, [0x12, 0x02, 0, 0]);
        assert_eq!(Terminate::decode(&bytes), Some(Terminate::NO_BUFFER));
        assert!(Terminate::NO_BUFFER.to_string().contains("no receive"));
        assert_eq!(Terminate::decode(&bytes[..3]), None);
    }

    #[test]
    fn opcodes_are_those_of_the_rfc() {
        for code in 0..=7 {
            assert_eq!(Opcode::from_code(code).unwrap().code(), code);
        }
        assert_eq!(Opcode::from_code(8), None);
    }
}
