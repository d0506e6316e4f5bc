//! File handles on the wire, for all versions of NFS.
//!
//! | bytes | what |
//! |---|---|
//! | 0..16 | the id of the file system |
//! | up to 40 | the id of the object without its MAC; the zeros at the end of a short one ([`FileId::SHORT`]) are left out |
//! | 8 | the MAC |
//!
//! So handles have at most the 64 bytes of the service's handle. Some clients keep no more than 44.
//!
//! Invariants
//! * One handle has one form, because clients compare handles by their bytes.

use dafs_service::Handle;
use dafs_store::{FILE_ID_BYTES, FileId, FsId};
use std::ops::Deref;

/// Bytes of an object's id before its MAC.
const BODY_BYTES: usize = FILE_ID_BYTES - FileId::MAC_BYTES;

/// The bytes of a handle on the wire.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WireHandle {
    bytes: [u8; Handle::BYTES],
    len: usize,
}

impl Deref for WireHandle {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Decodes a handle, if the bytes have its form. The service decides if the handle is valid.
pub(crate) fn decode(bytes: &[u8]) -> Option<Handle> {
    let (fs, id) = bytes.split_first_chunk::<16>()?;
    let (body, mac) = id.split_last_chunk::<{ FileId::MAC_BYTES }>()?;
    let is_one_of_ours = match *body {
        [FileId::SHORT, .., last] => last != 0 && body.len() <= BODY_BYTES,
        _ => body.len() == BODY_BYTES,
    };
    if !is_one_of_ours {
        return None;
    }
    let mut file = [0; FILE_ID_BYTES];
    file[..body.len()].copy_from_slice(body);
    file[BODY_BYTES..].copy_from_slice(mac);
    Some(Handle { fs: FsId(*fs), file: FileId(file) })
}

/// Encodes a handle.
pub(crate) fn encode(handle: &Handle) -> WireHandle {
    let (body, mac) = handle.file.0.split_at(BODY_BYTES);
    let body = match body[0] {
        FileId::SHORT => &body[..body.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1)],
        _ => body,
    };
    let (mut bytes, mut len) = ([0; Handle::BYTES], 0);
    for part in [&handle.fs.0[..], body, mac] {
        bytes[len..len + part.len()].copy_from_slice(part);
        len += part.len();
    }
    WireHandle { bytes, len }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn handles_come_back_and_other_lengths_do_not() {
        let handle = Handle { fs: FsId([3; 16]), file: FileId([5; 48]) };
        let bytes = encode(&handle);
        assert_eq!((bytes.len(), decode(&bytes)), (64, Some(handle)));
        assert_eq!(decode(&bytes[1..]), None);
        assert_eq!(decode(b""), None);
        assert_eq!(decode(&[0; 128]), None);
    }

    #[test]
    fn a_short_handle_has_one_form() {
        let mut file = [0; 48];
        file[..5].copy_from_slice(&[FileId::SHORT, 0, 1, 8, 7]);
        file[40..].fill(9);
        let handle = Handle { fs: FsId([3; 16]), file: FileId(file) };
        let short = encode(&handle);
        assert_eq!((short.len(), decode(&short)), (16 + 5 + 8, Some(handle)));
        let whole = [&handle.fs.0[..], &file].concat();
        assert_eq!(decode(&whole), None, "the zeros are sent");
        // A MAC that ends with zeros is sent whole.
        file[40..].fill(0);
        let handle = Handle { file: FileId(file), ..handle };
        assert_eq!(decode(&encode(&handle)), Some(handle));
    }

    proptest! {
        #[test]
        fn two_strings_of_bytes_are_two_handles(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..72),
            is_short in any::<bool>(),
        ) {
            if let Some(first) = bytes.get_mut(16).filter(|_| is_short) {
                *first = FileId::SHORT;
            }
            if let Some(handle) = decode(&bytes) {
                let encoded = encode(&handle);
                prop_assert_eq!(&encoded[..], &bytes[..]);
            }
        }
    }
}
