//! The layout of clients' handles of components: the file part of the handles in layouts.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version |
//! | 2..4 | the node's place among the nodes of the file |
//! | 4..6 | the number of nodes of the file |
//! | 6..8 | the place that holds the first stripe |
//! | 8..12 | bytes of a stripe |
//! | 12..16 | the node's number |
//! | 16..32 | component id |
//! | 40..48 | a MAC: SipHash-2-4 of the file system id and of bytes 0..40, keyed with the secret |
//!
//! Numbers are in little-endian order. Unused bytes are zero.
//!
//! Invariants
//! * Only a server with the secret can make a handle. The handle itself shows the bytes that its
//!   node holds, so a data server needs no other knowledge of files.

use super::ComponentId;
use crate::layouts::DEVICE_SERVERS_MAX;
use crate::limits::{STRIPE_BYTES_MAX, STRIPE_BYTES_MIN};
use crate::{DataKeys, FILE_ID_BYTES, FileId, FsId, Result, StoreError};
use siphasher::sip::SipHasher24;
use std::num::NonZeroU32;

const VERSION: u8 = 0xc1;
const MAC: usize = 40;

/// The decoded handle of a component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComponentHandle {
    /// The component.
    pub component: ComponentId,
    /// The number of its node.
    pub node: u32,
    /// The node's place among those of the file.
    pub place: u16,
    /// The number of nodes of the file.
    pub count: u16,
    /// The place that holds the first stripe.
    pub first: u16,
    /// Bytes of a stripe.
    pub unit_bytes: NonZeroU32,
}

impl ComponentHandle {
    /// Encodes the handle for clients.
    pub fn seal(&self, fs: &FsId, secret: &[u8; 16]) -> FileId {
        let mut bytes = [0; FILE_ID_BYTES];
        bytes[0] = VERSION;
        bytes[2..4].copy_from_slice(&self.place.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.count.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.first.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.unit_bytes.get().to_le_bytes());
        bytes[12..16].copy_from_slice(&self.node.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.component.0);
        let mac = mac(fs, secret, &bytes);
        bytes[MAC..].copy_from_slice(&mac);
        FileId(bytes)
    }

    /// Decodes a handle.
    ///
    /// # Errors
    /// [`StoreError::BadHandle`] for a handle that was not made with this secret.
    pub fn open(id: &FileId, fs: &FsId, secret: &[u8; 16]) -> Result<Self> {
        if mac(fs, secret, &id.0) != id.0[MAC..] {
            return Err(StoreError::BadHandle);
        }
        Self::parse(&id.0).ok_or(StoreError::BadHandle)
    }

    /// Decodes a handle that was made with any of the accepted keys.
    ///
    /// # Errors
    /// [`StoreError::BadHandle`] for another one.
    pub fn open_with(id: &FileId, fs: &FsId, keys: &DataKeys) -> Result<Self> {
        let opened = keys.accepted().find_map(|key| Self::open(id, fs, &key).ok());
        opened.ok_or(StoreError::BadHandle)
    }

    fn parse(bytes: &[u8; FILE_ID_BYTES]) -> Option<Self> {
        let short = |at: usize| Some(u16::from_le_bytes(*bytes[at..].first_chunk()?));
        let long = |at: usize| Some(u32::from_le_bytes(*bytes[at..].first_chunk()?));
        let (place, count, first) = (short(2)?, short(4)?, short(6)?);
        let unit = long(8)?;
        let sound = bytes[0] == VERSION
            && place < count
            && first < count
            && usize::from(count) <= DEVICE_SERVERS_MAX
            && (STRIPE_BYTES_MIN..=STRIPE_BYTES_MAX).contains(&unit);
        sound.then_some(Self {
            component: ComponentId(*bytes[16..].first_chunk()?),
            node: long(12)?,
            place,
            count,
            first,
            unit_bytes: NonZeroU32::new(unit)?,
        })
    }

    /// Returns the number of bytes from `offset` on that are on this node: 0 if the first one is
    /// not.
    pub fn local_bytes(&self, offset: u64) -> u64 {
        if self.count == 1 {
            return u64::MAX - offset;
        }
        let (first, count) = (usize::from(self.first), usize::from(self.count));
        if place_of(offset, self.unit_bytes, first, count) != usize::from(self.place) {
            return 0;
        }
        let unit = u64::from(self.unit_bytes.get());
        unit - offset % unit
    }
}

/// Returns the place of the node that holds a byte, of `count` nodes that begin with `first`.
pub fn place_of(offset: u64, unit_bytes: NonZeroU32, first: usize, count: usize) -> usize {
    let stripe = offset / u64::from(unit_bytes.get());
    let turn = (stripe % count as u64 + first as u64) % count as u64;
    usize::try_from(turn).unwrap_or(0)
}

fn mac(fs: &FsId, secret: &[u8; 16], bytes: &[u8; FILE_ID_BYTES]) -> [u8; 8] {
    let mut input = [0; 16 + MAC];
    input[..16].copy_from_slice(&fs.0);
    input[16..].copy_from_slice(&bytes[..MAC]);
    SipHasher24::new_with_key(secret).hash(&input).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FS: FsId = FsId([4; 16]);
    const SECRET: [u8; 16] = [7; 16];

    fn handle(place: u16) -> ComponentHandle {
        ComponentHandle {
            component: ComponentId([3; 16]),
            node: 12,
            place,
            count: 3,
            first: 1,
            unit_bytes: NonZeroU32::new(4096).unwrap(),
        }
    }

    #[test]
    fn handles_come_back_and_no_changed_bit_goes_unnoticed() {
        let id = handle(2).seal(&FS, &SECRET);
        assert_eq!(ComponentHandle::open(&id, &FS, &SECRET), Ok(handle(2)));
        for bit in 0..FILE_ID_BYTES * 8 {
            let mut forged = id;
            forged.0[bit / 8] ^= 1 << (bit % 8);
            let opened = ComponentHandle::open(&forged, &FS, &SECRET);
            assert_eq!(opened, Err(StoreError::BadHandle), "bit {bit}");
        }
        let other = ComponentHandle::open(&id, &FsId([5; 16]), &SECRET);
        assert_eq!(other, Err(StoreError::BadHandle));
        let other = ComponentHandle::open(&id, &FS, &[8; 16]);
        assert_eq!(other, Err(StoreError::BadHandle));
    }

    #[test]
    fn a_handle_is_valid_while_its_key_is_accepted() {
        let (old, new) = ([1; 16], [2; 16]);
        let keys = DataKeys::new([9; 16], old);
        let (before, after) = (handle(2).seal(&FS, &old), handle(2).seal(&FS, &new));
        let open = |id| ComponentHandle::open_with(id, &FS, &keys);
        assert_eq!((open(&before), open(&after)), (Ok(handle(2)), Err(StoreError::BadHandle)));
        for (key, other) in [(old, new), (new, old)] {
            keys.replace(key, Some(other));
            assert_eq!((open(&before), open(&after)), (Ok(handle(2)), Ok(handle(2))));
        }
        keys.replace(new, None);
        assert_eq!((open(&before), open(&after)), (Err(StoreError::BadHandle), Ok(handle(2))));
    }

    #[test]
    fn each_byte_is_local_to_one_place() {
        for stripe in 0..7_u64 {
            let at = stripe * 4096 + 5;
            let local = [0, 1, 2].map(|place| handle(place).local_bytes(at));
            let mut wanted = [0; 3];
            wanted[((stripe + 1) % 3) as usize] = 4091;
            assert_eq!(local, wanted);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_bad_handle(bytes in proptest::array::uniform32(any::<u8>())) {
            let mut id = [0; FILE_ID_BYTES];
            id[..32].copy_from_slice(&bytes);
            id[0] = VERSION;
            if let Some(handle) = ComponentHandle::parse(&id) {
                let sealed = handle.seal(&FS, &SECRET);
                prop_assert_eq!(ComponentHandle::open(&sealed, &FS, &SECRET), Ok(handle));
                handle.local_bytes(u64::MAX);
            }
        }
    }
}
