//! Files and directories of this host, by descriptors of their directories.
//!
//! Invariants
//! * A name is one component, validated on input, and only used below an open directory.
//! * No symlink is followed. Changes by others in the directories lead to no object outside of
//!   them.

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, StatxFlags, Timespec, Timestamps, XattrFlags,
    openat, statx,
};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use crate::limits::XATTR_BYTES_MAX;
use crate::remote::{Attributes, ObjectType, Time};

/// An open directory.
pub(super) type Parent = Arc<OwnedFd>;

/// The name of one entry, or `None` for an invalid one, such as "..".
pub(super) fn component(name: Vec<u8>) -> Option<OsString> {
    let wrong = name.is_empty() || name == b"." || name == b"..";
    (!wrong && !name.contains(&b'/') && !name.contains(&0)).then(|| OsString::from_vec(name))
}

/// Opens a directory below another one.
pub(super) fn open_directory(parent: impl AsFd, name: &OsString) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name.as_os_str(), flags, Mode::empty())
}

/// Opens a file for reading, if possible without changing its time of access. Does not block if it
/// has become a pipe or a device meanwhile.
pub(super) fn open_for_reading(parent: impl AsFd, name: &OsString) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let quiet = openat(parent.as_fd(), name.as_os_str(), flags | OFlags::NOATIME, Mode::empty());
    match quiet {
        // Only the owner may use that flag.
        Err(Errno::PERM) => openat(parent, name.as_os_str(), flags, Mode::empty()),
        other => other,
    }
}

/// Opens a directory inside `root` by its relative path, one component at a time.
pub(super) fn open_below(root: &OwnedFd, path: &[OsString]) -> Result<OwnedFd, Errno> {
    let mut at = rustix::io::dup(root)?;
    for name in path {
        at = open_directory(&at, name)?;
    }
    Ok(at)
}

/// The names in an open directory.
pub(super) fn names(directory: impl AsFd) -> Result<BTreeSet<OsString>, Errno> {
    let mut names = BTreeSet::new();
    for entry in Dir::read_from(directory)? {
        names.extend(component(entry?.file_name().to_bytes().to_vec()));
    }
    Ok(names)
}

/// Removes a name, that of a directory with its contents. No symlink below `parent` is followed.
pub(super) fn remove(parent: &OwnedFd, name: &OsString) -> Result<(), Errno> {
    // The open directories on the way, their names, and the names left in them. A tree may be deeper
    // than the stack of a thread.
    let mut way: Vec<(OwnedFd, OsString, BTreeSet<OsString>)> = Vec::new();
    let (mut name, mut flags) = (name.clone(), AtFlags::empty());
    loop {
        let above = way.last().map_or(parent, |(directory, ..)| directory);
        match rustix::fs::unlinkat(above, name.as_os_str(), flags) {
            Err(Errno::ISDIR) => {
                let directory = open_directory(above, &name)?;
                let left = names(&directory)?;
                way.push((directory, name, left));
            }
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        let Some((directory, own, mut left)) = way.pop() else { return Ok(()) };
        if let Some(inner) = left.pop_first() {
            way.push((directory, own, left));
            (name, flags) = (inner, AtFlags::empty());
        } else {
            (name, flags) = (own, AtFlags::REMOVEDIR);
        }
    }
}

/// True for a file that other hosts may write, and whose locks they may not see: one on a network or
/// FUSE file system.
pub(super) fn is_shared_by_hosts(file: &OwnedFd) -> bool {
    // NFS, CIFS, SMB2, FUSE, CephFS and AFS, as statfs(2) has them.
    const TYPES: [u32; 6] =
        [0x6969, 0xff53_4d42, 0xfe53_4d42, 0x6573_5546, 0x00c3_6400, 0x5346_414f];
    match rustix::fs::fstatfs(file) {
        Ok(found) => TYPES.contains(&(found.f_type as u32)),
        Err(_) => true,
    }
}

/// The identity of a directory, as far as two hosts can compare it: its number and its birth time
/// or, if the file system has none, the time of its last change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity {
    number: u64,
    born: Option<(i64, u32)>,
    changed: (i64, u32),
}

/// The identity of an open directory.
pub(super) fn identity(directory: impl AsFd) -> Result<Identity, Errno> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let found = statx(directory, "", AtFlags::EMPTY_PATH, wanted)?;
    let knows_birth = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
    Ok(Identity {
        number: found.stx_ino,
        born: knows_birth.then_some((found.stx_btime.tv_sec, found.stx_btime.tv_nsec)),
        changed: (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec),
    })
}

impl Identity {
    /// The identity of a directory of a server.
    pub(super) fn of(attributes: &Attributes) -> Self {
        let parts = |time: Time| (time.seconds, time.nseconds);
        Self {
            number: attributes.file_id,
            born: attributes.created.map(parts),
            changed: attributes.changed.map_or((0, 0), parts),
        }
    }

    /// True if these are the attributes of that directory on a server.
    pub(super) fn is(&self, attributes: &Attributes) -> bool {
        let parts = |time: Time| (time.seconds, time.nseconds);
        self.number == attributes.file_id
            && match (self.born, attributes.created) {
                (Some(own), Some(other)) => own == parts(other),
                _ => attributes.changed.is_some_and(|other| self.changed == parts(other)),
            }
    }
}

/// Both times of an object for the kernel; times that the server has not sent are left unchanged.
pub(super) fn times(attributes: &Attributes) -> Timestamps {
    let time = |time: Option<Time>| match time {
        Some(time) => Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nseconds) },
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
    };
    Timestamps {
        last_access: time(attributes.accessed),
        last_modification: time(attributes.modified),
    }
}

/// A time of this host, for the server.
pub(super) fn time(seconds: i64, nanoseconds: u64) -> Time {
    Time { seconds, nseconds: u32::try_from(nanoseconds).unwrap_or(0) }
}

/// The permission bits of a mode.
pub(super) fn permissions(stat: &Stat) -> u32 {
    stat.st_mode & 0o7777
}

/// The kernel's type for an object made by `mknod`.
pub(super) fn special_type(kind: ObjectType) -> Option<FileType> {
    Some(match kind {
        ObjectType::BlockDevice => FileType::BlockDevice,
        ObjectType::CharDevice => FileType::CharacterDevice,
        ObjectType::Fifo => FileType::Fifo,
        ObjectType::Socket => FileType::Socket,
        _ => return None,
    })
}

/// Runs `make` with the final name. If that exists, makes the object under a temporary name and
/// renames it, so that the old one is replaced atomically.
pub(super) fn make_or_replace(
    parent: &Parent,
    name: &OsString,
    make: impl Fn(&OsString) -> Result<(), Errno>,
) -> Result<(), Errno> {
    match make(name) {
        Err(Errno::EXIST) => {}
        other => return other,
    }
    let aside = OsString::from(super::temporary::temporary_name());
    make(&aside)?;
    let renamed = rustix::fs::renameat(parent, aside.as_os_str(), parent, name.as_os_str());
    // Renaming one name of a file to another of its names has no effect, so the temporary one may
    // still be there even after success.
    match rustix::fs::unlinkat(parent, aside.as_os_str(), AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => renamed,
        Err(error) => renamed.and(Err(error)),
    }
}

/// Name without prefix, and value.
pub(super) type Xattr = (Vec<u8>, Vec<u8>);

/// The `user.*` extended attributes of an open file or directory, without the prefix.
pub(super) fn xattrs(file: impl AsFd) -> Result<Vec<Xattr>, Errno> {
    let mut names = vec![0; XATTR_BYTES_MAX];
    let length = match rustix::fs::flistxattr(file.as_fd(), &mut names) {
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for full in names[..length].split(|&byte| byte == 0) {
        let Some(name) = full.strip_prefix(XATTR_PREFIX) else { continue };
        let mut value = vec![0; XATTR_BYTES_MAX];
        let length = rustix::fs::fgetxattr(file.as_fd(), full, &mut value)?;
        value.truncate(length);
        found.push((name.to_vec(), value));
    }
    Ok(found)
}

/// Sets a `user.*` extended attribute; `name` has no prefix.
pub(super) fn set_xattr(file: impl AsFd, name: &[u8], value: &[u8]) -> Result<(), Errno> {
    rustix::fs::fsetxattr(file, [XATTR_PREFIX, name].concat(), value, XattrFlags::empty())
}

const XATTR_PREFIX: &[u8] = b"user.";

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_name_from_outside_is_one_component() {
        for wrong in ["", ".", "..", "a/b", "/", "a\0"] {
            assert!(component(wrong.into()).is_none(), "{wrong:?}");
        }
        assert!(component(b"...\xff".to_vec()).is_some());
    }

    #[test]
    fn no_symlink_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("inner")).unwrap();
        fs::write(dir.path().join("file"), "x").unwrap();
        symlink("inner", dir.path().join("to-inner")).unwrap();
        symlink("file", dir.path().join("to-file")).unwrap();
        let root: OwnedFd = fs::File::open(dir.path()).unwrap().into();
        assert!(open_directory(&root, &"inner".into()).is_ok());
        assert!(open_directory(&root, &"to-inner".into()).is_err());
        assert!(open_for_reading(&root, &"file".into()).is_ok());
        assert_eq!(open_for_reading(&root, &"to-file".into()).unwrap_err(), Errno::LOOP);
        assert!(open_below(&root, &["to-inner".into()]).is_err());
    }

    #[test]
    fn a_tree_is_removed_and_what_its_symlinks_name_is_not() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("tree/in/ner")).unwrap();
        fs::create_dir(dir.path().join("other")).unwrap();
        fs::write(dir.path().join("other/kept"), "x").unwrap();
        fs::write(dir.path().join("tree/in/file"), "x").unwrap();
        symlink("../other", dir.path().join("tree/link")).unwrap();
        let root: OwnedFd = fs::File::open(dir.path()).unwrap().into();
        for _ in 0..2 {
            remove(&root, &"tree".into()).unwrap();
            assert!(!dir.path().join("tree").exists());
        }
        assert!(dir.path().join("other/kept").exists());
    }

    #[test]
    fn an_existing_object_is_replaced_in_one_step() {
        let dir = tempfile::tempdir().unwrap();
        let parent: Parent = Arc::new(fs::File::open(dir.path()).unwrap().into());
        for text in ["a", "b"] {
            make_or_replace(&parent, &"link".into(), |name| {
                rustix::fs::symlinkat(text, &parent, name.as_os_str())
            })
            .unwrap();
            assert_eq!(fs::read_link(dir.path().join("link")).unwrap().to_str(), Some(text));
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
