//! iWARP framing: MPA (RFC 5044, 6581), DDP (RFC 5041) and RDMAP (RFC 5040).
//!
//! One FPDU on the wire is a 16-bit length, a DDP segment of that length, padding to a multiple of
//! four and a CRC32C. A segment is a tagged header (14 bytes, with a memory address) or an untagged
//! header (18 bytes, with a queue), then payload.
//!
//! Invariants
//! * A decoded [`ddp::Header`] is consistent: opcode, kind of header and queue agree, and the
//!   segment length covers the header.
//! * Markers are never sent. The code that judges a frame refuses a peer that insists on them; this
//!   module does not.

pub mod crc;
pub mod ddp;
pub mod mpa;
pub mod rdmap;

/// Reads a big-endian `u16` at `at`. The caller has checked the length.
fn read_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Reads a big-endian `u32` at `at`. The caller has checked the length.
fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Reads a big-endian `u64` at `at`. The caller has checked the length.
fn read_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from(read_u32(bytes, at)) << 32 | u64::from(read_u32(bytes, at + 4))
}
