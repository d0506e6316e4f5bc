//! Bodies of answers, and the head that goes before them.

use super::errno::Errno;
use super::request::{NodeId, Time};
use std::ops::Range;
use std::time::Duration;

/// Length of the head of an answer, in bytes.
const HEAD_BYTES: usize = 16;

/// The attributes of a node for the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeAttributes {
    pub(crate) node: NodeId,
    pub(crate) size: u64,
    /// Space that it takes, in units of 512 bytes.
    pub(crate) blocks: u64,
    pub(crate) accessed: Time,
    pub(crate) modified: Time,
    pub(crate) changed: Time,
    /// With the type bits of the object.
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) device: u32,
    /// The preferred unit of transfers, in bytes.
    pub(crate) block_bytes: u32,
}

/// The answer about a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) attributes: NodeAttributes,
    /// Differs when the number of the node is reused for another object.
    pub(crate) generation: u64,
    /// The timeout of the kernel's cache for it.
    pub(crate) cache_timeout: Duration,
}

/// The kernel's treatment of a file that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct OpenHow {
    /// The kernel caches no content.
    pub(crate) direct: bool,
    /// The kernel keeps its cached content.
    pub(crate) keeps: bool,
}

/// The kernel caches no content of the file and asks for all of it.
const OPEN_DIRECT: u32 = 1;

/// The kernel keeps its cached content.
const OPEN_KEEPS: u32 = 1 << 1;

/// The holder of a conflicting lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockFound {
    pub(crate) start: u64,
    /// Last byte.
    pub(crate) end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub(crate) kind: i32,
    /// The process of this host that holds it; 0 for one of another host.
    pub(crate) process: u32,
}

/// The head of an answer with a body of so many bytes.
pub(super) fn head(unique: u64, result: Result<usize, Errno>) -> [u8; HEAD_BYTES] {
    let (body, error) = match result {
        Ok(body) => (body, 0),
        Err(error) => (0, -error.number()),
    };
    let mut bytes = [0; HEAD_BYTES];
    bytes[..4].copy_from_slice(&((HEAD_BYTES + body) as u32).to_ne_bytes());
    bytes[4..8].copy_from_slice(&error.to_ne_bytes());
    bytes[8..].copy_from_slice(&unique.to_ne_bytes());
    bytes
}

/// The notice FUSE_NOTIFY_INVAL_INODE.
const FORGET_CONTENT: u32 = 2;

/// Makes the kernel drop its cached attributes of a node, and a part of the content; all of it, if
/// the range is empty.
pub(super) fn forget_content(node: NodeId, range: Range<u64>) -> Vec<u8> {
    let mut writer = Writer::with_room(HEAD_BYTES + 24);
    writer.u32(HEAD_BYTES as u32 + 24);
    writer.u32(FORGET_CONTENT);
    // A notice, and not an answer.
    writer.u64(0);
    writer.u64(node);
    writer.u64(range.start);
    writer.u64(range.end - range.start);
    writer.0
}

/// Encodes numbers one after the other.
#[derive(Debug, Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    fn with_room(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    pub(super) fn u16(&mut self, number: u16) {
        self.0.extend_from_slice(&number.to_ne_bytes());
    }

    pub(super) fn u32(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_ne_bytes());
    }

    pub(super) fn u64(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_ne_bytes());
    }

    fn attributes(&mut self, from: &NodeAttributes) {
        for number in [from.node, from.size, from.blocks] {
            self.u64(number);
        }
        let times = [from.accessed, from.modified, from.changed];
        times.iter().for_each(|time| self.u64(time.seconds as u64));
        times.iter().for_each(|time| self.u32(time.nanoseconds));
        for number in [from.mode, from.links, from.uid, from.gid, from.device, from.block_bytes, 0]
        {
            self.u32(number);
        }
    }

    fn entry(&mut self, entry: &Entry) {
        self.u64(entry.attributes.node);
        self.u64(entry.generation);
        self.u64(entry.cache_timeout.as_secs());
        self.u64(entry.cache_timeout.as_secs());
        self.u32(entry.cache_timeout.subsec_nanos());
        self.u32(entry.cache_timeout.subsec_nanos());
        self.attributes(&entry.attributes);
    }

    fn opened(&mut self, handle: u64, how: OpenHow) {
        self.u64(handle);
        let direct = if how.direct { OPEN_DIRECT } else { 0 };
        self.u32(direct | if how.keeps { OPEN_KEEPS } else { 0 });
        self.u32(0);
    }
}

/// Length of an entry, in bytes.
const ENTRY_BYTES: usize = 128;

/// Answers LOOKUP and the operations that create a name.
pub(crate) fn entry(entry: &Entry) -> Vec<u8> {
    let mut writer = Writer::with_room(ENTRY_BYTES);
    writer.entry(entry);
    debug_assert_eq!(writer.0.len(), ENTRY_BYTES);
    writer.0
}

/// Answers GETATTR and SETATTR.
pub(crate) fn attributes(from: &NodeAttributes, cache_timeout: Duration) -> Vec<u8> {
    let mut writer = Writer::with_room(104);
    writer.u64(cache_timeout.as_secs());
    writer.u32(cache_timeout.subsec_nanos());
    writer.u32(0);
    writer.attributes(from);
    writer.0
}

pub(crate) fn opened(handle: u64, how: OpenHow) -> Vec<u8> {
    let mut writer = Writer::with_room(16);
    writer.opened(handle, how);
    writer.0
}

pub(crate) fn created(made: &Entry, handle: u64, how: OpenHow) -> Vec<u8> {
    let mut writer = Writer::with_room(ENTRY_BYTES + 16);
    writer.entry(made);
    writer.opened(handle, how);
    writer.0
}

pub(crate) fn written(bytes: u32) -> Vec<u8> {
    size(bytes)
}

/// Answers a query for the length of an extended attribute, or of their names.
pub(crate) fn size(bytes: u32) -> Vec<u8> {
    let mut writer = Writer::with_room(8);
    writer.u32(bytes);
    writer.u32(0);
    writer.0
}

/// Answers LSEEK.
pub(crate) fn offset(bytes: u64) -> Vec<u8> {
    bytes.to_ne_bytes().to_vec()
}

/// Answers GETLK.
pub(crate) fn lock(found: &LockFound) -> Vec<u8> {
    let mut writer = Writer::with_room(24);
    writer.u64(found.start);
    writer.u64(found.end);
    writer.u32(found.kind as u32);
    writer.u32(found.process);
    writer.0
}

/// Answers STATFS: blocks in all, free, and free for users; files in all and free.
pub(crate) fn space(numbers: [u64; 5], block_bytes: u32, name_bytes_max: u32) -> Vec<u8> {
    let mut writer = Writer::with_room(80);
    numbers.into_iter().for_each(|number| writer.u64(number));
    writer.u32(block_bytes);
    writer.u32(name_bytes_max);
    writer.u32(block_bytes);
    // One word of padding, and six that are spare.
    (0..7).for_each(|_| writer.u32(0));
    writer.0
}

/// Entries of a directory, as many as there is room for.
#[derive(Debug)]
pub(crate) struct Listing {
    writer: Writer,
    room: usize,
}

impl Listing {
    /// An empty listing with room for so many bytes.
    pub(crate) fn new(room: usize) -> Self {
        Self { writer: Writer::with_room(room), room }
    }

    /// Adds an entry with the position behind it, and with the answer about the name if that is
    /// asked for; false when there is no more room.
    pub(crate) fn add(
        &mut self,
        entry: Option<&Entry>,
        node: NodeId,
        mode: u32,
        behind: u64,
        name: &[u8],
    ) -> bool {
        let plain = (24 + name.len()).next_multiple_of(8);
        let len = plain + entry.map_or(0, |_| ENTRY_BYTES);
        if self.writer.0.len() + len > self.room {
            return false;
        }
        let end = self.writer.0.len() + len;
        if let Some(entry) = entry {
            self.writer.entry(entry);
        }
        self.writer.u64(node);
        self.writer.u64(behind);
        self.writer.u32(name.len() as u32);
        self.writer.u32((mode & libc::S_IFMT) >> 12);
        self.writer.0.extend_from_slice(name);
        self.writer.0.resize(end, 0);
        true
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.writer.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn some() -> NodeAttributes {
        NodeAttributes {
            node: 7,
            size: 1 << 40,
            blocks: 3,
            accessed: Time { seconds: -1, nanoseconds: 5 },
            modified: Time::default(),
            changed: Time::default(),
            mode: libc::S_IFREG | 0o644,
            links: 1,
            uid: 2,
            gid: 3,
            device: 0,
            block_bytes: 4096,
        }
    }

    #[test]
    fn answers_have_the_lengths_that_the_kernel_wants() {
        let one =
            Entry { attributes: some(), generation: 3, cache_timeout: Duration::from_millis(1500) };
        assert_eq!(entry(&one).len(), 128);
        assert_eq!(attributes(&one.attributes, one.cache_timeout).len(), 104);
        assert_eq!(created(&one, 1, OpenHow::default()).len(), 144);
        assert_eq!(opened(1, OpenHow::default()).len(), 16);
        assert_eq!((written(1).len(), space([0; 5], 1, 1).len()), (8, 80));
        assert_eq!(lock(&LockFound { start: 0, end: 0, kind: 0, process: 0 }).len(), 24);
    }

    #[test]
    fn errors_are_negative() {
        let head = head(9, Err(Errno::EINTR));
        assert_eq!(head[..4], 16_u32.to_ne_bytes());
        assert_eq!(head[4..8], (-libc::EINTR).to_ne_bytes());
        assert_eq!(head[8..], 9_u64.to_ne_bytes());
    }

    #[test]
    fn a_listing_never_outgrows_its_room() {
        let one = Entry { attributes: some(), generation: 3, cache_timeout: Duration::ZERO };
        for (entry, each) in [(None, 32), (Some(&one), 160)] {
            let mut listing = Listing::new(3 * each + 7);
            let mut count = 0;
            while listing.add(entry, 7, libc::S_IFDIR, 1, b"12345678") {
                count += 1;
            }
            assert_eq!((count, listing.into_bytes().len()), (3, 3 * each));
        }
    }
}
