//! Records with MACs: length, message, MAC.
//!
//! Invariants
//! * A MAC covers the number of its record, so that no record is omitted, repeated or moved.

use crate::secret::ClusterSecret;
use dafs_wire::cluster::RECORD_BYTES_MAX;
use dafs_wire::xdr::{Encode, Encoder};
use thiserror::Error;

pub(crate) const MAC_BYTES: usize = 16;

/// The most bytes behind the length of a record.
pub(crate) const SEALED_BYTES_MAX: usize = RECORD_BYTES_MAX + MAC_BYTES;

/// A record that the peer has not made, or not for this position.
#[derive(Debug, Error)]
#[error("a record with a wrong MAC came")]
pub(crate) struct Forged;

/// Makes records.
pub(crate) struct Sealer {
    key: ClusterSecret,
    count: u64,
}

impl Sealer {
    pub(crate) fn new(key: ClusterSecret) -> Self {
        Self { key, count: 0 }
    }

    /// Encodes the next record, with its length in front.
    pub(crate) fn seal(&mut self, message: &impl Encode) -> Vec<u8> {
        let mut record = vec![0; 4];
        message.encode(&mut Encoder::new(&mut record));
        self.seal_room(record)
    }

    /// Encodes a message that has four free bytes in front.
    pub(crate) fn seal_room(&mut self, mut record: Vec<u8>) -> Vec<u8> {
        let mac = self.key.mac(b"record", &[&self.count.to_be_bytes(), &record[4..]]);
        self.count += 1;
        record.extend_from_slice(&mac[..MAC_BYTES]);
        let len = record.len() - 4;
        assert!(len <= SEALED_BYTES_MAX, "a message of {len} bytes");
        record[..4].copy_from_slice(&(len as u32).to_be_bytes());
        record
    }
}

/// Checks and opens records.
pub(crate) struct Opener {
    key: ClusterSecret,
    count: u64,
}

impl Opener {
    pub(crate) fn new(key: ClusterSecret) -> Self {
        Self { key, count: 0 }
    }

    /// Returns the message of the next record, which comes without its length.
    pub(crate) fn open<'a>(&mut self, record: &'a [u8]) -> Result<&'a [u8], Forged> {
        let at = record.len().checked_sub(MAC_BYTES).ok_or(Forged)?;
        let (message, mac) = record.split_at(at);
        if !self.key.verify(b"record", &[&self.count.to_be_bytes(), message], mac) {
            return Err(Forged);
        }
        self.count += 1;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_wire::cluster::Frame;

    #[test]
    fn records_are_taken_in_their_order_unchanged_and_once() {
        let key = ClusterSecret::from_bytes([1; 32]);
        let mut sealer = Sealer::new(key.clone());
        let records = [sealer.seal(&Frame::Alive), sealer.seal(&Frame::Alive)];
        let mut opener = Opener::new(key.clone());
        assert!(opener.open(&records[1][4..]).is_err());
        assert!(opener.open(&records[0][4..]).is_ok());
        assert!(opener.open(&records[0][4..]).is_err());
        assert!(opener.open(&records[1][4..]).is_ok());
        for bit in 0..(records[0].len() - 4) * 8 {
            let mut changed = records[0][4..].to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(Opener::new(key.clone()).open(&changed).is_err(), "bit {bit}");
        }
        assert!(Opener::new(key).open(b"short").is_err());
    }
}
