//! Digests of ranges of components.

use super::ComponentId;
use crate::{Result, StoreError};
use dafs_mem::VolatileSlice;
use siphasher::sip128::SipHasher24;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// The most bytes of one [digest](super::Node::digest).
pub const DIGEST_BYTES_MAX: usize = 1 << 20;

/// The alignment of direct reads, which suffices for all common devices.
const BLOCK_BYTES: usize = 4096;

/// The digest of a range of a component. It shows accidental differences, and no forgery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest {
    /// Bytes of the range that the component has.
    pub count: usize,
    /// A hash of the whole range. Bytes that the component lacks are zeros, as readers see them.
    pub hash: [u8; 16],
}

impl Digest {
    /// Computes the digest of a range, of which the component has the first `count` bytes.
    pub fn of(component: &ComponentId, range: &[u8], count: usize) -> Self {
        let hash = SipHasher24::new_with_key(&component.0).hash(range).as_bytes();
        Self { count, hash }
    }
}

/// Computes the digest of a range of a component's file. It reads the device, because the system's
/// page cache may have the content from before a damage. Where that is not possible, `read` reads
/// the range.
pub(super) fn of_file(
    component: &ComponentId,
    path: &Path,
    (offset, len): (u64, usize),
    read: impl FnOnce(VolatileSlice<'_>) -> Result<usize>,
) -> Result<Digest> {
    let len = len.min(DIGEST_BYTES_MAX);
    let whole = len.next_multiple_of(BLOCK_BYTES);
    let mut space = vec![0_u8; whole + BLOCK_BYTES];
    let start = space.as_ptr().align_offset(BLOCK_BYTES);
    let bytes = &mut space[start..start + whole];
    let count = match read_device(path, bytes, offset) {
        Some(count) => count?.min(len),
        None => read(VolatileSlice::from_mut(&mut bytes[..len]))?,
    };
    bytes[count..].fill(0);
    Ok(Digest::of(component, &bytes[..len], count))
}

/// Reads a file past the system's page cache, up to its end. `None` if that is not possible.
fn read_device(path: &Path, bytes: &mut [u8], offset: u64) -> Option<Result<usize>> {
    match read_direct(path, bytes, offset) {
        // A short read in the middle cannot go on at an aligned offset.
        Ok((count, left)) if count as u64 >= left.min(bytes.len() as u64) => Some(Ok(count)),
        Err(error) if error.raw_os_error() == Some(libc::EIO) => Some(Err(StoreError::Io)),
        _ => None,
    }
}

/// Reads once, past the system's page cache. Returns the number of bytes, and how many there are up
/// to the end of the file.
fn read_direct(path: &Path, bytes: &mut [u8], offset: u64) -> io::Result<(usize, u64)> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_DIRECT | libc::O_NOFOLLOW | libc::O_CLOEXEC);
    let file = options.open(path)?;
    let count = file.read_at(bytes, offset)?;
    Ok((count, file.metadata()?.len().saturating_sub(offset)))
}

#[cfg(test)]
mod tests {
    use super::super::{DirectoryNode, Node};
    use super::*;
    use crate::Stability;

    const COMPONENT: ComponentId = ComponentId([7; 16]);

    #[test]
    fn a_digest_of_the_device_is_that_of_what_was_written() {
        let dir = tempfile::tempdir().expect("a directory");
        DirectoryNode::make(dir.path(), &[1; 16], 1).expect("made");
        let node = DirectoryNode::open(dir.path(), &[1; 16], 1, vec![]).expect("opened");
        let nothing = Digest::of(&COMPONENT, &[0; 9], 0);
        assert_eq!(node.digest(&COMPONENT, 0, 9), Ok(nothing), "it is missing");
        let mut content: Vec<_> = (0..10_000_u32).map(|at| (at / 3) as u8).collect();
        let view = VolatileSlice::from_mut(&mut content);
        node.write(&COMPONENT, &[view], 0, Stability::Unstable).expect("written");
        // Ranges that a direct read takes, and others.
        for (offset, len) in [(0, 10_000), (0, 10), (4096, 5000), (3, 50), (8192, 9000), (64, 0)] {
            let count = len.min(content.len() - offset);
            let mut range = content[offset..offset + count].to_vec();
            range.resize(len, 0);
            let expected = Digest::of(&COMPONENT, &range, count);
            assert_eq!(node.digest(&COMPONENT, offset as u64, len), Ok(expected), "{offset}");
        }
        let behind = Digest::of(&COMPONENT, &[0; 4096], 0);
        assert_eq!(node.digest(&COMPONENT, 1 << 20, 4096), Ok(behind));
        // A file system that is not mounted shows no damage.
        std::fs::remove_file(dir.path().join("node")).expect("the marker");
        assert_eq!(node.digest(&ComponentId([8; 16]), 0, 9), Err(StoreError::NoDevice));
    }
}
