//! The bytes of a segment. All numbers are little-endian.
//!
//! Header, 64 bytes:
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 8 | "dafsjrnl" |
//! | 8 | 4 | version |
//! | 12 | 4 | CRC32C of the whole header with this field zero |
//! | 16 | 8 | number of the segment, from 1 |
//! | 24 | 8 | size of the segment, in bytes |
//! | 32 | 8 | sequence number of its first record |
//! | 40 | 16 | which run of the system wrote it |
//! | 56 | 4 | CRC32C of the journal's key and the segment's number; zero in version 3 |
//! | 60 | 4 | zero |
//!
//! Then records, each on a multiple of 8 bytes:
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 4 | CRC32C of the journal's key, the segment's number, the rest of this header and the payload |
//! | 4 | 4 | length of the payload, in bytes |
//! | 8 | 8 | sequence number: one more than that of the record before |
//! | 16 | 8 | all records up to this number were stable when this one was written |
//! | 24 | 1 | kind: 1 record, 2 record of the checkpoint, 3 end of the checkpoint, 4 confirmation |
//! | 25 | 3 | zero |
//! | 28 | 4 | CRC32C of the key, the segment's number and bytes 4 to 24 |
//! | 32 | | payload, then zeros up to a multiple of 8 |
//!
//! A confirmation is written when all records before it are stable, and no caller waits for it. It
//! confirms the last records of the log, which no other record follows. Version 3 had none.
//!
//! The segment's number in the checksum distinguishes records from those of an earlier use of the
//! file. The key, which no client knows, distinguishes them from payloads that clients have made to
//! look like records. The second checksum saves a search from reading the payloads of data that
//! only looks like a record.

use crate::limits::RECORD_BYTES_MAX;
use crc_fast::{CrcAlgorithm, Digest};

pub(crate) const MAGIC: [u8; 8] = *b"dafsjrnl";
pub(crate) const VERSION: u32 = 4;
const VERSION_BEFORE: u32 = 3;
pub(crate) const HEADER_BYTES: usize = 64;
pub(crate) const RECORD_HEADER_BYTES: usize = 32;
pub(crate) const ALIGN: usize = 8;
pub(crate) const KEY_BYTES: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) segment: u64,
    pub(crate) len_bytes: u64,
    pub(crate) first: u64,
    pub(crate) boot: [u8; 16],
    /// The checksum of its key, or zero where that is not known.
    pub(crate) key_sum: u32,
}

/// The content of the first bytes of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Head {
    Known(Header),
    /// They were never written.
    Blank,
    Other(u32),
    Foreign,
    Damaged,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Record = 1,
    Checkpoint = 2,
    CheckpointEnd = 3,
    Confirmation = 4,
}

/// The context of a record's checksum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seal {
    pub(crate) key: [u8; KEY_BYTES],
    pub(crate) segment: u64,
}

impl Seal {
    /// The checksum by which a segment recognises its key.
    pub(crate) fn key_sum(&self) -> u32 {
        crc(&[&self.key, &self.segment.to_le_bytes()])
    }

    /// The checksum of a record with `head`, without the checksum field, and `payload`.
    fn of(&self, head: &[u8], payload: &[u8]) -> u32 {
        crc(&[&self.key, &self.segment.to_le_bytes(), head, payload])
    }
}

/// A record in a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a> {
    pub(crate) sequence: u64,
    pub(crate) stable: u64,
    pub(crate) kind: Kind,
    pub(crate) payload: &'a [u8],
}

fn crc(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    // The algorithm has 32 bits, so the conversion loses none.
    digest.finalize() as u32
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn half(bytes: &[u8], at: usize) -> u32 {
    let mut half = [0; 4];
    half.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(half)
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.segment.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.len_bytes.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.first.to_le_bytes());
        bytes[40..56].copy_from_slice(&self.boot);
        bytes[56..60].copy_from_slice(&self.key_sum.to_le_bytes());
        let sum = crc(&[&bytes]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes the header of a segment's content, which may be shorter than a header.
    pub(crate) fn decode(content: &[u8]) -> Head {
        let known = content.len().min(HEADER_BYTES);
        let head = &content[..known];
        if head.iter().all(|&byte| byte == 0) {
            return Head::Blank;
        }
        let magic = known.min(MAGIC.len());
        if head[..magic] != MAGIC[..magic] {
            return Head::Foreign;
        }
        let Some(version) = (known >= 12).then(|| half(head, 8)) else { return Head::Damaged };
        if ![VERSION, VERSION_BEFORE, 0].contains(&version) {
            return Head::Other(version);
        }
        if known < HEADER_BYTES || version == 0 {
            return Head::Damaged;
        }
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(head);
        bytes[12..16].fill(0);
        if crc(&[&bytes]) != half(head, 12) {
            return Head::Damaged;
        }
        let mut boot = [0; 16];
        boot.copy_from_slice(&head[40..56]);
        let (segment, len_bytes, first) = (word(head, 16), word(head, 24), word(head, 32));
        Head::Known(Header { segment, len_bytes, first, boot, key_sum: half(head, 56) })
    }
}

impl<'a> Record<'a> {
    /// The space that a record takes, in bytes.
    pub(crate) const fn room(payload_bytes: usize) -> usize {
        RECORD_HEADER_BYTES + payload_bytes.next_multiple_of(ALIGN)
    }

    /// Appends the record in the format of a segment.
    pub(crate) fn encode(&self, seal: &Seal, out: &mut Vec<u8>) {
        assert!(self.payload.len() <= RECORD_BYTES_MAX, "a record of {}", self.payload.len());
        let mut head = [0; RECORD_HEADER_BYTES];
        head[4..8].copy_from_slice(&(self.payload.len() as u32).to_le_bytes());
        head[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        head[16..24].copy_from_slice(&self.stable.to_le_bytes());
        head[24] = self.kind as u8;
        let own = seal.of(&head[4..25], &[]);
        head[28..].copy_from_slice(&own.to_le_bytes());
        let sum = seal.of(&head[4..], self.payload);
        head[..4].copy_from_slice(&sum.to_le_bytes());
        out.reserve(Self::room(self.payload.len()));
        out.extend_from_slice(&head);
        out.extend_from_slice(self.payload);
        out.resize(out.len().next_multiple_of(ALIGN), 0);
    }

    /// Decodes the record at `offset` of a segment's content, if there is one. Adds the number of
    /// bytes in checksums to `effort`.
    pub(crate) fn decode(
        seal: &Seal,
        content: &'a [u8],
        offset: usize,
        effort: &mut u64,
    ) -> Option<Self> {
        let rest = content.get(offset..)?;
        let head = rest.get(..RECORD_HEADER_BYTES)?;
        let (sequence, len) = (word(head, 8), half(head, 4) as usize);
        if sequence == 0 || len > RECORD_BYTES_MAX || head[25..28] != [0; 3] {
            return None;
        }
        let kind = match head[24] {
            1 => Kind::Record,
            2 => Kind::Checkpoint,
            3 => Kind::CheckpointEnd,
            4 => Kind::Confirmation,
            _ => return None,
        };
        let payload = rest.get(RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + len)?;
        if seal.of(&head[4..25], &[]) != half(head, 28) {
            return None;
        }
        *effort += (RECORD_HEADER_BYTES + len) as u64;
        let sum = seal.of(&head[4..], payload);
        (sum == half(head, 0)).then_some(Self { sequence, stable: word(head, 16), kind, payload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_noticed() {
        let header = Header { segment: 3, len_bytes: 4096, first: 17, boot: [9; 16], key_sum: 5 };
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Head::Known(header));
        let mut content = Vec::new();
        let payload = b"thirteen byte";
        let record = Record { sequence: 18, stable: 16, kind: Kind::Record, payload };
        let seal = Seal { key: [5; KEY_BYTES], segment: 3 };
        record.encode(&seal, &mut content);
        assert_eq!(content.len(), Record::room(payload.len()));
        let found = Record::decode(&seal, &content, 0, &mut 0).unwrap();
        assert_eq!((found.sequence, found.stable, found.payload), (18, 16, &payload[..]));
        let other = Seal { segment: 4, ..seal };
        assert!(Record::decode(&other, &content, 0, &mut 0).is_none(), "of another segment");
        let other = Seal { key: [6; KEY_BYTES], ..seal };
        assert!(Record::decode(&other, &content, 0, &mut 0).is_none(), "of another journal");
        for bit in 0..HEADER_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(Header::decode(&flipped), Head::Known(_)), "bit {bit}");
        }
        for bit in 0..(RECORD_HEADER_BYTES + payload.len()) * 8 {
            let mut flipped = content.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Record::decode(&seal, &flipped, 0, &mut 0).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn beginnings_are_told_apart() {
        let header = Header { segment: 1, len_bytes: 64, first: 1, boot: [0; 16], key_sum: 0 };
        let bytes = header.encode();
        assert_eq!(Header::decode(&[0; 100]), Head::Blank);
        assert_eq!(Header::decode(&[]), Head::Blank);
        assert_eq!(Header::decode(b"#!/bin/sh"), Head::Foreign);
        assert_eq!(Header::decode(&bytes[..20]), Head::Damaged);
        for version in [2, 5] {
            let mut other = bytes;
            other[8] = version;
            assert_eq!(Header::decode(&other), Head::Other(version.into()));
        }
    }
}
