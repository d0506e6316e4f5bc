//! The layout of a [`FileId`] of such a store, and the check that rejects forged ids.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version, which differs between engines |
//! | 8..24 | the object's key in its file system |
//! | 40..48 | a MAC: SipHash-2-4 of the file system's id and bytes 0..40, keyed with the secret |
//!
//! Unused bytes are zero.
//!
//! Invariants
//! * A key comes only from an id with a valid MAC, or from the file system itself.
//! * The engine never reuses a key, so an id never names another object later.

use crate::{DataKeys, ExportSecret, FILE_ID_BYTES, FileId, FsId, Result, StoreError};
use siphasher::sip::SipHasher24;
use siphasher::sip128::{Hasher128, SipHasher24 as SipHasher128};
use std::hash::Hasher;

const KEY: usize = 8;
const KEY_END: usize = KEY + 16;
const MAC: usize = 40;

/// Makes and checks the ids of the objects of a file system.
#[derive(Debug)]
pub struct Ids {
    version: u8,
    fs_id: FsId,
    keys: DataKeys,
}

impl Ids {
    /// Makes the ids of a file system. `version` differs between engines.
    pub fn new(version: u8, fs_id: FsId, secret: ExportSecret) -> Self {
        Self { version, fs_id, keys: DataKeys::new(fs_id.0, *secret.as_bytes()) }
    }

    /// Makes the file ids for data servers. The keys are known to them and to the metadata server.
    pub fn of_data_servers(version: u8, keys: DataKeys) -> Self {
        let mut hasher = SipHasher128::new_with_key(keys.store());
        hasher.write(b"data servers");
        Self { version, fs_id: FsId(hasher.finish128().as_bytes()), keys }
    }

    /// Returns the identity of the file system.
    pub fn fs_id(&self) -> FsId {
        self.fs_id
    }

    pub(super) fn own_key(&self) -> [u8; 16] {
        self.keys.own()
    }

    fn mac(&self, key: &[u8; 16], bytes: &[u8; FILE_ID_BYTES]) -> [u8; 8] {
        let mut input = [0; 16 + MAC];
        input[..16].copy_from_slice(&self.fs_id.0);
        input[16..].copy_from_slice(&bytes[..MAC]);
        SipHasher24::new_with_key(key).hash(&input).to_le_bytes()
    }

    /// Encodes the id of an object.
    pub fn seal(&self, key: impl Into<[u8; 16]>) -> FileId {
        let mut bytes = [0; FILE_ID_BYTES];
        bytes[0] = self.version;
        bytes[KEY..KEY_END].copy_from_slice(&key.into());
        let mac = self.mac(&self.own_key(), &bytes);
        bytes[MAC..].copy_from_slice(&mac);
        FileId(bytes)
    }

    /// Decodes the id of an object.
    ///
    /// # Errors
    /// [`StoreError::BadHandle`] for an id that this store did not make.
    pub fn open<K: From<[u8; 16]>>(&self, id: &FileId) -> Result<K> {
        let bytes = &id.0;
        // The MAC covers all bytes, so unused ones need no check.
        let is_own = self.keys.accepted().any(|key| bytes[MAC..] == self.mac(&key, bytes));
        if bytes[0] != self.version || !is_own {
            return Err(StoreError::BadHandle);
        }
        let mut key = [0; 16];
        key.copy_from_slice(&bytes[KEY..KEY_END]);
        Ok(key.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_ids_are_opened() {
        let ids = Ids::new(7, FsId([1; 16]), ExportSecret::from_bytes([2; 16]));
        let key: [u8; 16] = std::array::from_fn(|at| at as u8);
        let id = ids.seal(key);
        assert_eq!(ids.open(&id), Ok(key));
        for byte in 0..FILE_ID_BYTES {
            let mut forged = id;
            forged.0[byte] ^= 1;
            assert_eq!(ids.open::<[u8; 16]>(&forged), Err(StoreError::BadHandle), "byte {byte}");
        }
        let others = [
            Ids::new(7, FsId([3; 16]), ExportSecret::from_bytes([2; 16])),
            Ids::new(8, FsId([1; 16]), ExportSecret::from_bytes([2; 16])),
        ];
        for other in others {
            assert_eq!(other.open::<[u8; 16]>(&id), Err(StoreError::BadHandle));
        }
    }

    #[test]
    fn an_id_for_data_servers_is_valid_while_its_key_is_accepted() {
        let (old, new) = ([1; 16], [2; 16]);
        // Those of the metadata server, and of a data server.
        let ids = Ids::of_data_servers(7, DataKeys::new([9; 16], old));
        let keys = DataKeys::new([9; 16], old);
        let there = Ids::of_data_servers(7, keys.clone());
        let key = [5_u8; 16];
        let before = ids.seal(key);
        keys.replace(old, Some(new));
        ids.keys.replace(new, Some(old));
        let after = ids.seal(key);
        assert_eq!((there.open(&before), there.open(&after)), (Ok(key), Ok(key)));
        assert_eq!(there.fs_id(), ids.fs_id(), "clients see no other file system");
        keys.replace(new, None);
        assert_eq!(there.open::<[u8; 16]>(&before), Err(StoreError::BadHandle));
        assert_eq!(there.open(&after), Ok(key));
    }
}
