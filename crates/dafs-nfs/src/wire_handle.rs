//! File handles on the wire, for all versions of NFS: the 64 bytes of the service's handle.

use dafs_service::Handle;
use dafs_store::{FileId, FsId};

/// Decodes a handle, if the bytes have its length. The service decides if the handle is valid.
pub(crate) fn decode(bytes: &[u8]) -> Option<Handle> {
    if bytes.len() != Handle::BYTES {
        return None;
    }
    let (fs, file) = bytes.split_first_chunk::<16>()?;
    Some(Handle { fs: FsId(*fs), file: FileId(*file.first_chunk()?) })
}

/// Encodes a handle.
pub(crate) fn encode(handle: &Handle) -> [u8; Handle::BYTES] {
    let mut bytes = [0; Handle::BYTES];
    bytes[..16].copy_from_slice(&handle.fs.0);
    bytes[16..].copy_from_slice(&handle.file.0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_come_back_and_other_lengths_do_not() {
        let handle = Handle { fs: FsId([3; 16]), file: FileId([5; 48]) };
        let bytes = encode(&handle);
        assert_eq!(decode(&bytes), Some(handle));
        assert_eq!(decode(&bytes[1..]), None);
        assert_eq!(decode(b""), None);
        assert_eq!(decode(&[0; 128]), None);
    }
}
