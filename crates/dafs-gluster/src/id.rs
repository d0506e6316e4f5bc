//! The layout of a [`FileId`] of this store, and the check that rejects forged ids.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version |
//! | 8..24 | the object's permanent id in its volume (gfid) |
//! | 40..48 | a MAC: SipHash-2-4 of the file system's id and bytes 0..40, keyed with the secret |
//!
//! Unused bytes are zero.
//!
//! Invariants
//! * A gfid comes only from an id with a valid MAC, or from the volume itself.
//! * GlusterFS generates gfids at random, so an id never names another object later.

use crate::sys::Gfid;
use dafs_store::{ExportSecret, FILE_ID_BYTES, FileId, FsId, Result, StoreError};
use siphasher::sip::SipHasher24;

const VERSION: u8 = 0x61;
const GFID: usize = 8;
const GFID_END: usize = GFID + size_of::<Gfid>();
const MAC: usize = 40;

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
    pub(crate) fn seal(&self, gfid: &Gfid) -> FileId {
        let mut bytes = [0; FILE_ID_BYTES];
        bytes[0] = VERSION;
        bytes[GFID..GFID_END].copy_from_slice(gfid);
        let code = self.code(&bytes);
        bytes[MAC..].copy_from_slice(&code);
        FileId(bytes)
    }

    /// Decodes the id of an object.
    ///
    /// # Errors
    /// [`StoreError::BadHandle`] for an id that this store did not make.
    pub(crate) fn open(&self, id: &FileId) -> Result<Gfid> {
        let bytes = &id.0;
        // The MAC covers all bytes, so unused ones need no check.
        if bytes[0] != VERSION || bytes[MAC..] != self.code(bytes) {
            return Err(StoreError::BadHandle);
        }
        let mut gfid = [0; size_of::<Gfid>()];
        gfid.copy_from_slice(&bytes[GFID..GFID_END]);
        Ok(gfid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_ids_are_opened() {
        let ids = Ids::new(FsId([1; 16]), ExportSecret::from_bytes([2; 16]));
        let gfid = [7; 16];
        let id = ids.seal(&gfid);
        assert_eq!(ids.open(&id), Ok(gfid));
        for byte in 0..FILE_ID_BYTES {
            let mut forged = id;
            forged.0[byte] ^= 1;
            assert_eq!(ids.open(&forged), Err(StoreError::BadHandle), "byte {byte}");
        }
        let other = Ids::new(FsId([3; 16]), ExportSecret::from_bytes([2; 16]));
        assert_eq!(other.open(&id), Err(StoreError::BadHandle));
    }
}
