//! The checksum by which `--verify` compares: CRC-64/NVME over the whole content, holes as zeros.

use crc_fast::CrcAlgorithm;
use dafs_mem::VolatileSlice;
use std::fmt;

/// A running checksum, or none.
pub(super) struct Digest(Option<crc_fast::Digest>);

impl Digest {
    /// A checksum if one is `wanted`.
    pub(super) fn new(wanted: bool) -> Self {
        Self(wanted.then(|| crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme)))
    }

    /// Adds the content of `view`.
    pub(super) fn add(&mut self, view: VolatileSlice<'_>) {
        if let Some(digest) = &mut self.0 {
            view.scan(|piece| digest.update(piece));
        }
    }

    /// Adds bytes of this process's own memory.
    pub(super) fn add_bytes(&mut self, bytes: &[u8]) {
        if let Some(digest) = &mut self.0 {
            digest.update(bytes);
        }
    }

    /// Adds a hole. Each step uses the checksum of twice as many zeros, so that a hole of any
    /// length takes at most 64 steps.
    pub(super) fn add_zeros(&mut self, mut bytes: u64) {
        let Some(digest) = &mut self.0 else { return };
        let mut zeros = crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme);
        zeros.update(&[0]);
        while bytes > 0 {
            if bytes & 1 == 1 {
                digest.combine(&zeros);
            }
            bytes >>= 1;
            if bytes > 0 {
                let half = zeros;
                zeros.combine(&half);
            }
        }
    }

    /// The checksum, if one was wanted.
    pub(super) fn value(&self) -> Option<u64> {
        self.0.as_ref().map(crc_fast::Digest::finalize)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({:x?})", self.value())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_count_as_zeros() {
        let (mut dense, mut sparse) = (Digest::new(true), Digest::new(true));
        let mut bytes = vec![0; 100_000];
        bytes[0] = 1;
        dense.add(VolatileSlice::from_mut(&mut bytes));
        sparse.add(VolatileSlice::from_mut(&mut bytes[..10]));
        sparse.add_zeros(99_990);
        assert!(dense.value().is_some() && dense.value() == sparse.value());
        // The longest hole at once has the same checksum as in pieces.
        let (mut whole, mut pieces) = (Digest::new(true), Digest::new(true));
        whole.add_zeros(i64::MAX as u64);
        pieces.add_zeros(i64::MAX as u64 - 70_000);
        pieces.add(VolatileSlice::from_mut(&mut vec![0; 70_000]));
        assert_eq!(whole.value(), pieces.value());
        // The check value of the algorithm's definition.
        let mut check = Digest::new(true);
        check.add(VolatileSlice::from_mut(&mut b"123456789".to_owned()));
        assert_eq!(check.value(), Some(0xae8b_1486_0a79_9888));
    }
}
