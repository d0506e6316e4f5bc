//! Decoding of the kernel's requests.

use super::REQUEST_HEAD_BYTES;
use super::bytes::{Malformed, Reader};

/// The number of a node.
pub(crate) type NodeId = u64;

/// The user that makes a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// A moment, before or after 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Time {
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeChange {
    Now,
    To(Time),
}

/// Attributes that are to be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Change {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) accessed: Option<TimeChange>,
    pub(crate) modified: Option<TimeChange>,
    /// The open file of the change.
    pub(crate) handle: Option<u64>,
    /// Clears setuid and setgid (FATTR_KILL_SUIDGID).
    pub(crate) kills_suid: bool,
}

/// A request about a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockWanted {
    pub(crate) handle: u64,
    pub(crate) owner: u64,
    /// First byte.
    pub(crate) start: u64,
    /// Last byte.
    pub(crate) end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub(crate) kind: i32,
    /// The process that asks.
    pub(crate) process: u32,
}

/// The operation that the kernel requests.
///
/// * `Forget`: lookups of some nodes are forgotten. No answer.
/// * `Write`: the data lies behind the head of the request. `kills_suid` clears setuid and setgid
///   (FUSE_WRITE_KILL_SUIDGID).
/// * `Release`: with the owner of whole-file locks, if they are to be released.
/// * `Seek`: the start of data or of a hole at an offset or behind it.
/// * `Interrupt`: the caller no longer waits for a request.
/// * `Unknown`: an operation that the mount does not support.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Operation<'a> {
    Lookup { name: &'a [u8] },
    Forget(Vec<(NodeId, u64)>),
    GetAttributes,
    SetAttributes(Change),
    ReadLink,
    Symlink { name: &'a [u8], target: &'a [u8] },
    MakeNode { name: &'a [u8], mode: u32, device: u32 },
    MakeDirectory { name: &'a [u8], mode: u32 },
    Remove { name: &'a [u8], is_directory: bool },
    Rename { name: &'a [u8], to: NodeId, new_name: &'a [u8], flags: u32 },
    Link { source: NodeId, name: &'a [u8] },
    Open { flags: i32 },
    Create { name: &'a [u8], flags: i32, mode: u32 },
    Read { handle: u64, offset: u64, len: u32 },
    Write { handle: u64, offset: u64, len: u32, appends: bool, kills_suid: bool },
    Space,
    Release { handle: u64, owner: Option<u64> },
    Sync { handle: u64 },
    SetXattr { name: &'a [u8], value: &'a [u8], flags: i32 },
    GetXattr { name: &'a [u8], size: u32 },
    ListXattr { size: u32 },
    RemoveXattr { name: &'a [u8] },
    Flush { handle: u64, owner: u64 },
    Init { major: u32, minor: u32, read_ahead: u32, flags: u32, more_flags: u32 },
    OpenDirectory,
    ReadDirectory { handle: u64, position: u64, len: u32, with_attributes: bool },
    ReleaseDirectory { handle: u64 },
    SyncDirectory,
    TestLock(LockWanted),
    Lock { wanted: LockWanted, waits: bool },
    Seek { handle: u64, offset: u64, hole: bool },
    Interrupt { unique: u64 },
    Destroy,
    Unknown(u32),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    /// Its number, for the answer.
    pub(crate) unique: u64,
    pub(crate) node: NodeId,
    pub(crate) caller: Caller,
    pub(crate) thread: u32,
    pub(crate) operation: Operation<'a>,
}

// Numbers of the operations.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const READLINK: u32 = 5;
const SYMLINK: u32 = 6;
const MKNOD: u32 = 8;
const MKDIR: u32 = 9;
const UNLINK: u32 = 10;
const RMDIR: u32 = 11;
const RENAME: u32 = 12;
const LINK: u32 = 13;
const OPEN: u32 = 14;
const READ: u32 = 15;
pub(super) const WRITE: u32 = 16;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const SETXATTR: u32 = 21;
const GETXATTR: u32 = 22;
const LISTXATTR: u32 = 23;
const REMOVEXATTR: u32 = 24;
const FLUSH: u32 = 25;
pub(super) const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const RELEASEDIR: u32 = 29;
const FSYNCDIR: u32 = 30;
const GETLK: u32 = 31;
const SETLK: u32 = 32;
const SETLKW: u32 = 33;
const CREATE: u32 = 35;
const INTERRUPT: u32 = 36;
const DESTROY: u32 = 38;
const BATCH_FORGET: u32 = 42;
const READDIRPLUS: u32 = 44;
const RENAME2: u32 = 45;
const LSEEK: u32 = 46;

/// True when the server may delay an operation until others have returned delegations.
pub(super) fn waits_for_others(operation: u32) -> bool {
    matches!(
        operation,
        SETATTR | UNLINK | RENAME | RENAME2 | LINK | OPEN | CREATE | SETXATTR | REMOVEXATTR
    )
}

// The attributes that a SETATTR changes.
const WITH_MODE: u32 = 1;
const WITH_UID: u32 = 1 << 1;
const WITH_GID: u32 = 1 << 2;
const WITH_SIZE: u32 = 1 << 3;
const WITH_ACCESSED: u32 = 1 << 4;
const WITH_MODIFIED: u32 = 1 << 5;
const WITH_HANDLE: u32 = 1 << 6;
const ACCESSED_NOW: u32 = 1 << 7;
const MODIFIED_NOW: u32 = 1 << 8;
const TAKES_RIGHTS: u32 = 1 << 11;

/// A RELEASE that ends the owner's locks of the whole file.
const RELEASE_UNLOCKS: u32 = 1 << 1;

/// A WRITE of pages that were changed in memory some time ago.
const WRITE_OF_PAGES: u32 = 1;

/// A WRITE that must clear setuid and setgid.
const WRITE_TAKES_RIGHTS: u32 = 1 << 2;

impl<'a> Request<'a> {
    /// Decodes a request; for a write, the bytes may end before the data.
    ///
    /// # Errors
    /// It is too short. The number of the request, if the error can be answered.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Option<u64>> {
        let mut head = Reader::new(bytes);
        let numbers = (|| {
            let (_len, opcode) = (head.u32()?, head.u32()?);
            let (unique, node) = (head.u64()?, head.u64()?);
            let caller = Caller { uid: head.u32()?, gid: head.u32()? };
            let thread = head.u32()?;
            head.bytes(4)?;
            Ok((opcode, unique, node, caller, thread))
        })();
        let (opcode, unique, node, caller, thread) = numbers.map_err(|_: Malformed| None)?;
        debug_assert_eq!(bytes.len() - head.rest().len(), REQUEST_HEAD_BYTES);
        let operation = operation(opcode, node, head).map_err(|_| Some(unique))?;
        Ok(Self { unique, node, caller, thread, operation })
    }
}

fn operation(opcode: u32, node: NodeId, mut body: Reader<'_>) -> Result<Operation<'_>, Malformed> {
    let body = &mut body;
    Ok(match opcode {
        LOOKUP => Operation::Lookup { name: body.text()? },
        FORGET => Operation::Forget(vec![(node, body.u64()?)]),
        BATCH_FORGET => forgotten(body)?,
        GETATTR => Operation::GetAttributes,
        SETATTR => Operation::SetAttributes(change(body)?),
        READLINK => Operation::ReadLink,
        SYMLINK => Operation::Symlink { name: body.text()?, target: body.text()? },
        MKNOD => {
            let (mode, device, _umask, _) = (body.u32()?, body.u32()?, body.u32()?, body.u32()?);
            Operation::MakeNode { name: body.text()?, mode, device }
        }
        MKDIR => {
            let (mode, _umask) = (body.u32()?, body.u32()?);
            Operation::MakeDirectory { name: body.text()?, mode }
        }
        UNLINK | RMDIR => Operation::Remove { name: body.text()?, is_directory: opcode == RMDIR },
        RENAME => {
            let to = body.u64()?;
            Operation::Rename { name: body.text()?, to, new_name: body.text()?, flags: 0 }
        }
        RENAME2 => {
            let (to, flags, _) = (body.u64()?, body.u32()?, body.u32()?);
            Operation::Rename { name: body.text()?, to, new_name: body.text()?, flags }
        }
        LINK => {
            let source = body.u64()?;
            Operation::Link { source, name: body.text()? }
        }
        OPEN => Operation::Open { flags: body.i32()? },
        CREATE => {
            let (flags, mode, _umask, _) = (body.i32()?, body.u32()?, body.u32()?, body.u32()?);
            Operation::Create { name: body.text()?, flags, mode }
        }
        READ | READDIR | READDIRPLUS => {
            let (handle, offset, len) = (body.u64()?, body.u64()?, body.u32()?);
            let with_attributes = opcode == READDIRPLUS;
            match opcode {
                READ => Operation::Read { handle, offset, len },
                _ => Operation::ReadDirectory { handle, position: offset, len, with_attributes },
            }
        }
        WRITE => {
            let (handle, offset, len) = (body.u64()?, body.u64()?, body.u32()?);
            let (how, _owner, flags) = (body.u32()?, body.u64()?, body.i32()?);
            let appends = flags & libc::O_APPEND != 0 && how & WRITE_OF_PAGES == 0;
            let kills_suid = how & WRITE_TAKES_RIGHTS != 0;
            Operation::Write { handle, offset, len, appends, kills_suid }
        }
        STATFS => Operation::Space,
        RELEASE => {
            let (handle, _flags, how, owner) = (body.u64()?, body.u32()?, body.u32()?, body.u64()?);
            Operation::Release { handle, owner: (how & RELEASE_UNLOCKS != 0).then_some(owner) }
        }
        FSYNC => Operation::Sync { handle: body.u64()? },
        SETXATTR => {
            let (len, flags) = (body.u32()?, body.i32()?);
            Operation::SetXattr { name: body.text()?, value: body.bytes(len as usize)?, flags }
        }
        GETXATTR => {
            let (size, _) = (body.u32()?, body.u32()?);
            Operation::GetXattr { name: body.text()?, size }
        }
        LISTXATTR => Operation::ListXattr { size: body.u32()? },
        REMOVEXATTR => Operation::RemoveXattr { name: body.text()? },
        FLUSH => {
            let (handle, _) = (body.u64()?, body.u64()?);
            Operation::Flush { handle, owner: body.u64()? }
        }
        INIT => Operation::Init {
            major: body.u32()?,
            minor: body.u32()?,
            read_ahead: body.u32()?,
            flags: body.u32()?,
            // Older kernels end here.
            more_flags: body.u32().unwrap_or(0),
        },
        OPENDIR => Operation::OpenDirectory,
        RELEASEDIR => Operation::ReleaseDirectory { handle: body.u64()? },
        FSYNCDIR => Operation::SyncDirectory,
        GETLK => Operation::TestLock(lock(body)?),
        SETLK | SETLKW => Operation::Lock { wanted: lock(body)?, waits: opcode == SETLKW },
        LSEEK => {
            let (handle, offset, whence) = (body.u64()?, body.u64()?, body.u32()?);
            match i32::try_from(whence) {
                Ok(libc::SEEK_DATA) => Operation::Seek { handle, offset, hole: false },
                Ok(libc::SEEK_HOLE) => Operation::Seek { handle, offset, hole: true },
                // The kernel implements the others itself.
                _ => Operation::Unknown(opcode),
            }
        }
        INTERRUPT => Operation::Interrupt { unique: body.u64()? },
        DESTROY => Operation::Destroy,
        other => Operation::Unknown(other),
    })
}

fn forgotten<'a>(body: &mut Reader<'a>) -> Result<Operation<'a>, Malformed> {
    let (count, _) = (body.u32()?, body.u32()?);
    // The end of the input stops this; the count alone allocates nothing.
    (0..count)
        .map(|_| Ok((body.u64()?, body.u64()?)))
        .collect::<Result<_, _>>()
        .map(Operation::Forget)
}

fn change(body: &mut Reader<'_>) -> Result<Change, Malformed> {
    let (with, _) = (body.u32()?, body.u32()?);
    let (handle, size, _lock_owner) = (body.u64()?, body.u64()?, body.u64()?);
    let (accessed, modified, _changed) = (body.i64()?, body.i64()?, body.i64()?);
    let (accessed_ns, modified_ns, _changed_ns) = (body.u32()?, body.u32()?, body.u32()?);
    let (mode, _, uid, gid) = (body.u32()?, body.u32()?, body.u32()?, body.u32()?);
    let has = |bit: u32| with & bit != 0;
    let time = |to: u32, now: u32, seconds: i64, nanoseconds: u32| match (has(to), has(now)) {
        (false, _) => None,
        (true, true) => Some(TimeChange::Now),
        (true, false) => Some(TimeChange::To(Time { seconds, nanoseconds })),
    };
    Ok(Change {
        mode: has(WITH_MODE).then_some(mode),
        uid: has(WITH_UID).then_some(uid),
        gid: has(WITH_GID).then_some(gid),
        size: has(WITH_SIZE).then_some(size),
        accessed: time(WITH_ACCESSED, ACCESSED_NOW, accessed, accessed_ns),
        modified: time(WITH_MODIFIED, MODIFIED_NOW, modified, modified_ns),
        handle: has(WITH_HANDLE).then_some(handle),
        kills_suid: has(TAKES_RIGHTS),
    })
}

fn lock(body: &mut Reader<'_>) -> Result<LockWanted, Malformed> {
    let (handle, owner, start, end) = (body.u64()?, body.u64()?, body.u64()?, body.u64()?);
    let (kind, process) = (body.i32()?, body.u32()?);
    Ok(LockWanted { handle, owner, start, end, kind, process })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&(40 + body.len() as u32).to_ne_bytes());
        bytes.extend_from_slice(&opcode.to_ne_bytes());
        for number in [77_u64, 5] {
            bytes.extend_from_slice(&number.to_ne_bytes());
        }
        for number in [1000_u32, 100, 4242, 0] {
            bytes.extend_from_slice(&number.to_ne_bytes());
        }
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn names_end_with_a_zero() {
        let bytes = request(SYMLINK, b"name\0target\0");
        let caller = Caller { uid: 1000, gid: 100 };
        let operation = Operation::Symlink { name: b"name", target: b"target" };
        let wanted = Request { unique: 77, node: 5, caller, thread: 4242, operation };
        assert_eq!(Request::parse(&bytes), Ok(wanted));
        assert_eq!(Request::parse(&request(SYMLINK, b"name\0target")), Err(Some(77)));
    }

    #[test]
    fn a_count_is_not_believed() {
        let mut body = Vec::new();
        body.extend_from_slice(&u32::MAX.to_ne_bytes());
        body.extend_from_slice(&[0; 4 + 16]);
        assert_eq!(Request::parse(&request(BATCH_FORGET, &body)), Err(Some(77)));
        let mut xattr = Vec::new();
        xattr.extend_from_slice(&u32::MAX.to_ne_bytes());
        xattr.extend_from_slice(b"\0\0\0\0user.a\0value");
        assert_eq!(Request::parse(&request(SETXATTR, &xattr)), Err(Some(77)));
    }

    #[test]
    fn only_what_is_to_be_changed_is() {
        let mut body = vec![0; 88];
        body[..4].copy_from_slice(&(WITH_SIZE | WITH_ACCESSED | ACCESSED_NOW).to_ne_bytes());
        body[16..24].copy_from_slice(&9_u64.to_ne_bytes());
        let bytes = request(SETATTR, &body);
        let accessed = Some(TimeChange::Now);
        let change = Change { size: Some(9), accessed, ..Change::default() };
        let parsed = Request::parse(&bytes).unwrap();
        assert_eq!(parsed.operation, Operation::SetAttributes(change));
        body[..4].copy_from_slice(&TAKES_RIGHTS.to_ne_bytes());
        let change = Change { kills_suid: true, ..Change::default() };
        let bytes = request(SETATTR, &body);
        let parsed = Request::parse(&bytes).unwrap();
        assert_eq!(parsed.operation, Operation::SetAttributes(change));
    }

    #[test]
    fn a_privileged_writer_keeps_suid_bits() {
        for (how, wanted) in [(0, false), (WRITE_TAKES_RIGHTS, true), (!0, true)] {
            let mut body = [0; 40];
            body[20..24].copy_from_slice(&how.to_ne_bytes());
            let bytes = request(WRITE, &body);
            let Operation::Write { kills_suid, .. } = Request::parse(&bytes).unwrap().operation
            else {
                panic!("no write");
            };
            assert_eq!(kills_suid, wanted);
        }
    }

    #[test]
    fn cut_anywhere_a_request_is_refused_or_another_one_and_never_a_panic() {
        for opcode in 0..60 {
            let whole = request(opcode, &[b'a'; 120]);
            for len in 0..whole.len() {
                match Request::parse(&whole[..len]) {
                    Err(None) => assert!(len < REQUEST_HEAD_BYTES),
                    Err(Some(unique)) => assert_eq!(unique, 77),
                    Ok(request) => assert_eq!(request.unique, 77),
                }
            }
        }
    }
}
