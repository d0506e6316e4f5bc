//! The layout of a [`FileId`] of a posix store, and the check that rejects forged ids.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version: 1, or 2 with a secret for short ids |
//! | 1 | flags: 1 inode form, 2 directory of named attributes, 4 named attribute |
//! | 2, 3 | type and length of the kernel's file handle |
//! | 4..40 | the handle, zero-filled; or the inode form (28 bytes): number, birth time in seconds and nanoseconds, device if not the root's. In version 2 the seconds have 4 bytes; an object that was born before 1970 or after 2106 has an id of version 1 |
//! | 32..40 | for a named attribute, a hash of its name (its object's handle is at most 28 bytes) |
//! | 40..48 | a MAC: SipHash-2-4 of the file system's id and bytes 0..40, keyed with the secret |
//!
//! Invariants
//! * A [`Form`] comes only from an id with a valid MAC, or from the file system itself.
//! * One object has one id: all unused bytes are zero, and the secret decides the version.

use super::sys::{HANDLE_BYTES_MAX, KernelHandle};
use dafs_store::{ExportSecret, FILE_ID_BYTES, FileId, FsId, Result, StoreError};
use rustix::fs::Statx;
use siphasher::sip::SipHasher24;

const VERSION: u8 = 1;
const SHORT_VERSION: u8 = FileId::SHORT;
const FLAG_INODE: u8 = 0x01;
const FLAG_ATTR_DIR: u8 = 0x02;
const FLAG_NAMED_ATTR: u8 = 0x04;
const BODY: usize = 4;
const HASH: usize = 32;
const MAC: usize = 40;

/// The file system's name of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A kernel file handle.
    Handle(KernelHandle),
    /// Numbers, where there are no handles.
    Inode { ino: u64, birth_seconds: i64, birth_nanoseconds: u32, device: u64 },
}

/// The object that an id names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// An object with a name in the file system.
    Object(Form),
    /// The directory of named attributes of the object with this id.
    AttrDir(FileId),
    /// The named attribute with this hash of the object with this id.
    NamedAttr(FileId, u64),
}

/// Makes and checks ids.
#[derive(Debug)]
pub(super) struct Ids {
    fs_id: FsId,
    secret: ExportSecret,
    version: u8,
    root_device: u64,
}

impl Ids {
    pub(super) fn new(fs_id: FsId, secret: ExportSecret, root_device: u64) -> Self {
        let version = if secret.has_short_ids() { SHORT_VERSION } else { VERSION };
        Self { fs_id, secret, version, root_device }
    }

    pub(super) fn fs_id(&self) -> FsId {
        self.fs_id
    }

    fn sealed(&self, mut bytes: [u8; FILE_ID_BYTES]) -> FileId {
        let mut input = [0; 16 + MAC];
        input[..16].copy_from_slice(&self.fs_id.0);
        input[16..].copy_from_slice(&bytes[..MAC]);
        let mac = SipHasher24::new_with_key(self.secret.as_bytes()).hash(&input);
        bytes[MAC..].copy_from_slice(&mac.to_le_bytes());
        FileId(bytes)
    }

    /// Returns the id of an object that a kernel handle names.
    pub(super) fn of_handle(&self, handle: &KernelHandle) -> FileId {
        let mut bytes = [0; FILE_ID_BYTES];
        bytes[..BODY].copy_from_slice(&[self.version, 0, handle.kind, handle.len]);
        let len = usize::from(handle.len).min(HANDLE_BYTES_MAX);
        bytes[BODY..BODY + len].copy_from_slice(&handle.bytes[..len]);
        self.sealed(bytes)
    }

    /// Returns the id of an object without a kernel handle.
    pub(super) fn of_inode(&self, stat: &Statx) -> FileId {
        let device = device(stat);
        let device = if device == self.root_device { 0 } else { device };
        let mut bytes = [0; FILE_ID_BYTES];
        bytes[4..12].copy_from_slice(&stat.stx_ino.to_le_bytes());
        let (seconds, nanoseconds) = (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec);
        let seconds_short = u32::try_from(seconds).ok().filter(|_| self.version == SHORT_VERSION);
        let (version, at) = match seconds_short {
            Some(seconds) => {
                bytes[12..16].copy_from_slice(&seconds.to_le_bytes());
                (SHORT_VERSION, 16)
            }
            None => {
                bytes[12..20].copy_from_slice(&seconds.to_le_bytes());
                (VERSION, 20)
            }
        };
        bytes[..2].copy_from_slice(&[version, FLAG_INODE]);
        bytes[at..at + 4].copy_from_slice(&nanoseconds.to_le_bytes());
        bytes[at + 4..at + 12].copy_from_slice(&device.to_le_bytes());
        self.sealed(bytes)
    }

    /// Returns the id of the directory of named attributes of an object.
    pub(super) fn attr_dir(&self, object: &FileId) -> Result<FileId> {
        self.attr(object, FLAG_ATTR_DIR, 0)
    }

    pub(super) fn named_attr(&self, object: &FileId, hash: u64) -> Result<FileId> {
        self.attr(object, FLAG_NAMED_ATTR, hash)
    }

    fn attr(&self, object: &FileId, flag: u8, hash: u64) -> Result<FileId> {
        let mut bytes = object.0;
        if bytes[HASH..MAC] != [0; 8] || usize::from(bytes[3]) > HASH - BODY {
            return Err(StoreError::NotSupported);
        }
        bytes[1] |= flag;
        bytes[HASH..MAC].copy_from_slice(&hash.to_le_bytes());
        Ok(self.sealed(bytes))
    }

    /// Returns a keyed hash of the name of a named attribute.
    pub(super) fn name_hash(&self, name: &[u8]) -> u64 {
        SipHasher24::new_with_key(self.secret.as_bytes()).hash(name)
    }

    /// True if the id claims to be a named attribute or a directory of them. This is a hint only.
    pub(super) fn claims_attr(id: &FileId) -> bool {
        id.0[1] & (FLAG_ATTR_DIR | FLAG_NAMED_ATTR) != 0
    }

    /// True if this secret gives its object an id of this version. The same key with the other form
    /// of ids may have made this one.
    fn makes(&self, id: &FileId) -> bool {
        match id.0[0] {
            VERSION if self.version == SHORT_VERSION => {
                let seconds = i64::from_le_bytes(field(&id.0[12..20]));
                id.0[1] & FLAG_INODE != 0 && u32::try_from(seconds).is_err()
            }
            version => version == self.version,
        }
    }

    /// Decodes an id. `BadHandle` if this export did not make it.
    pub(super) fn parse(&self, id: &FileId) -> Result<Target> {
        if self.sealed(id.0) != *id || !self.makes(id) {
            return Err(StoreError::BadHandle);
        }
        let flags = id.0[1];
        if flags & (FLAG_ATTR_DIR | FLAG_NAMED_ATTR) != 0 {
            let mut object = id.0;
            object[1] &= FLAG_INODE;
            object[HASH..MAC].fill(0);
            let object = self.sealed(object);
            let hash = u64::from_le_bytes(field(&id.0[HASH..MAC]));
            return Ok(if flags & FLAG_ATTR_DIR != 0 {
                Target::AttrDir(object)
            } else {
                Target::NamedAttr(object, hash)
            });
        }
        if flags & FLAG_INODE != 0 {
            let (birth_seconds, at) = match id.0[0] {
                SHORT_VERSION => (i64::from(u32::from_le_bytes(field(&id.0[12..16]))), 16),
                _ => (i64::from_le_bytes(field(&id.0[12..20])), 20),
            };
            return Ok(Target::Object(Form::Inode {
                ino: u64::from_le_bytes(field(&id.0[4..12])),
                birth_seconds,
                birth_nanoseconds: u32::from_le_bytes(field(&id.0[at..at + 4])),
                device: u64::from_le_bytes(field(&id.0[at + 4..at + 12])),
            }));
        }
        if usize::from(id.0[3]) > HANDLE_BYTES_MAX {
            return Err(StoreError::BadHandle);
        }
        let bytes = field(&id.0[BODY..MAC]);
        Ok(Target::Object(Form::Handle(KernelHandle { kind: id.0[2], len: id.0[3], bytes })))
    }
}

/// Returns a part of an id as an array. The ranges above are constants of the right length.
fn field<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}

/// Returns the device number as one value.
pub(super) fn device(stat: &Statx) -> u64 {
    u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor)
}

/// Derives the identity of a file system from facts that outlive a restart.
pub(super) fn stable_fs_id(file_system: u64, kind: u64, root: &FileId) -> FsId {
    let mut input = [0; 16 + MAC];
    input[..8].copy_from_slice(&file_system.to_le_bytes());
    input[8..16].copy_from_slice(&kind.to_le_bytes());
    input[16..].copy_from_slice(&root.0[..MAC]);
    let mut bytes = [0; 16];
    for (half, key) in bytes.chunks_exact_mut(8).zip([*b"dafs export id 1", *b"dafs export id 2"]) {
        half.copy_from_slice(&SipHasher24::new_with_key(&key).hash(&input).to_le_bytes());
    }
    FsId(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(secret: u8, fs: u8) -> Ids {
        Ids::new(FsId([fs; 16]), ExportSecret::from_bytes([secret; 16]), 0)
    }

    fn handle(len: u8) -> KernelHandle {
        let mut bytes = [0; HANDLE_BYTES_MAX];
        bytes[..usize::from(len)].fill(0x5a);
        KernelHandle { kind: 1, len, bytes }
    }

    #[test]
    fn an_id_gives_back_what_went_in() {
        let ids = ids(1, 2);
        let id = ids.of_handle(&handle(12));
        assert_eq!(ids.parse(&id), Ok(Target::Object(Form::Handle(handle(12)))));
        let attr_dir = ids.attr_dir(&id).unwrap();
        assert_eq!(ids.parse(&attr_dir), Ok(Target::AttrDir(id)));
        let attr = ids.named_attr(&id, 77).unwrap();
        assert_eq!(ids.parse(&attr), Ok(Target::NamedAttr(id, 77)));
        assert_eq!(ids.attr_dir(&ids.of_handle(&handle(36))), Err(StoreError::NotSupported));
    }

    #[test]
    fn a_short_id_has_few_bytes() {
        use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
        let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let stat = statx(CWD, c"/", AtFlags::empty(), mask).unwrap();
        let secret = ExportSecret::from_bytes([1; 16]).with_short_ids();
        let ids = Ids::new(FsId([2; 16]), secret, device(&stat));
        let inode = Form::Inode {
            ino: stat.stx_ino,
            birth_seconds: stat.stx_btime.tv_sec,
            birth_nanoseconds: stat.stx_btime.tv_nsec,
            device: 0,
        };
        let handle = handle(12);
        for (id, form, bytes) in
            [(ids.of_handle(&handle), Form::Handle(handle), 16), (ids.of_inode(&stat), inode, 20)]
        {
            assert_eq!(ids.parse(&id), Ok(Target::Object(form)));
            assert_eq!(id.0[0], FileId::SHORT);
            assert!(id.0[bytes..MAC].iter().all(|byte| *byte == 0), "{id:?}");
        }
    }

    #[test]
    fn a_key_with_the_other_form_refuses_the_ids() {
        let long = ids(1, 2);
        let secret = ExportSecret::from_bytes([1; 16]).with_short_ids();
        let short = Ids::new(FsId([2; 16]), secret, 0);
        for (ours, other) in [(&long, &short), (&short, &long)] {
            let id = ours.of_handle(&handle(12));
            assert!(ours.parse(&id).is_ok());
            assert_eq!(other.parse(&id), Err(StoreError::BadHandle));
        }
    }

    #[test]
    fn every_changed_bit_and_every_other_export_is_noticed() {
        let id = ids(1, 2).of_handle(&handle(12));
        for bit in 0..FILE_ID_BYTES * 8 {
            let mut forged = id;
            forged.0[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(ids(1, 2).parse(&forged), Err(StoreError::BadHandle), "bit {bit}");
        }
        assert_eq!(ids(9, 2).parse(&id), Err(StoreError::BadHandle));
        assert_eq!(ids(1, 9).parse(&id), Err(StoreError::BadHandle));
    }
}
