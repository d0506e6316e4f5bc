//! The layout of a [`FileId`] of this store, and the check that rejects forged ids.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version |
//! | 8..16 | inode number |
//! | 16..24 | snapshot; 2^64 - 2 for none |
//! | 40..48 | a MAC: SipHash-2-4 of the file system's id and bytes 0..40, keyed with the secret |
//!
//! Numbers are in little-endian order. Unused bytes are zero.
//!
//! Invariants
//! * An [`Object`] comes only from an id with a valid MAC, or from the file system itself.
//! * CephFS never reuses an inode number, so an id never names another object later.

use dafs_store::{ExportSecret, FILE_ID_BYTES, FileId, FsId, Result, StoreError};
use siphasher::sip::SipHasher24;

const VERSION: u8 = 0xce;
const MAC: usize = 40;

/// The identity of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Object {
    pub(crate) ino: u64,
    pub(crate) snap: u64,
}

/// Makes and checks ids.
#[derive(Debug)]
pub(crate) struct Ids {
    fs_id: FsId,
    secret: ExportSecret,
}

impl Ids {
    pub(crate) fn new(fs_id: FsId, secret: ExportSecret) -> Self {
        Self { fs_id, secret }
    }

    pub(crate) fn fs_id(&self) -> FsId {
        self.fs_id
    }

    fn code(&self, bytes: &[u8; FILE_ID_BYTES]) -> [u8; 8] {
        let mut input = [0; 16 + MAC];
        input[..16].copy_from_slice(&self.fs_id.0);
        input[16..].copy_from_slice(&bytes[..MAC]);
        SipHasher24::new_with_key(self.secret.as_bytes()).hash(&input).to_le_bytes()
    }

    /// Encodes the id of an object.
    pub(crate) fn seal(&self, object: Object) -> FileId {
        let mut bytes = [0; FILE_ID_BYTES];
        bytes[0] = VERSION;
        bytes[8..16].copy_from_slice(&object.ino.to_le_bytes());
        bytes[16..24].copy_from_slice(&object.snap.to_le_bytes());
        let code = self.code(&bytes);
        bytes[MAC..].copy_from_slice(&code);
        FileId(bytes)
    }

    /// Decodes the id of an object.
    ///
    /// # Errors
    /// [`StoreError::BadHandle`] for an id that this store did not make.
    pub(crate) fn open(&self, id: &FileId) -> Result<Object> {
        let bytes = &id.0;
        // The MAC covers all bytes, so unused ones need no check.
        if bytes[0] != VERSION || bytes[MAC..] != self.code(bytes) {
            return Err(StoreError::BadHandle);
        }
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        Ok(Object { ino: number(8), snap: number(16) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_ids_are_opened() {
        let ids = Ids::new(FsId([1; 16]), ExportSecret::from_bytes([2; 16]));
        let object = Object { ino: 0x100_0000_0001, snap: u64::MAX - 1 };
        let id = ids.seal(object);
        assert_eq!(ids.open(&id), Ok(object));
        for byte in 0..FILE_ID_BYTES {
            let mut forged = id;
            forged.0[byte] ^= 1;
            assert_eq!(ids.open(&forged), Err(StoreError::BadHandle), "byte {byte}");
        }
        let other = Ids::new(FsId([3; 16]), ExportSecret::from_bytes([2; 16]));
        assert_eq!(other.open(&id), Err(StoreError::BadHandle));
    }
}
