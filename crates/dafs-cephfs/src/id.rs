//! The identity of an object, which is the key in its id.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | inode number |
//! | 8..16 | snapshot; 2^64 - 2 for none |
//!
//! Numbers are in little-endian order.
//!
//! Invariants
//! * CephFS never reuses an inode number, so an id never names another object later.

/// The version of the ids of this store.
pub(crate) const ID_VERSION: u8 = 0xce;

/// The identity of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Object {
    pub(crate) ino: u64,
    pub(crate) snap: u64,
}

impl From<Object> for [u8; 16] {
    fn from(object: Object) -> Self {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&object.ino.to_le_bytes());
        key[8..].copy_from_slice(&object.snap.to_le_bytes());
        key
    }
}

impl From<[u8; 16]> for Object {
    fn from(key: [u8; 16]) -> Self {
        // The snapshot stands in the upper half of the little-endian number.
        let both = u128::from_le_bytes(key);
        Self { ino: both as u64, snap: (both >> 64) as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lead_back_to_objects() {
        let object = Object { ino: 0x100_0000_0001, snap: u64::MAX - 1 };
        assert_eq!(Object::from(<[u8; 16]>::from(object)), object);
    }
}
