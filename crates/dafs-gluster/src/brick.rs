//! A brick of this machine: files by their gfids, bypassing the daemon of the brick.
//!
//! Notes
//! * A brick has each object a second time, as a link named after its gfid. So the path of a file
//!   in the volume does not matter here.
//! * A file that is being moved to another brick has the sticky bit, and so has the link that it
//!   leaves behind. All operations on such a file must go through GlusterFS, which handles both
//!   bricks. A move may begin at any time, so the bit is checked before and after. Data that was
//!   written before the bit was set is moved, too.
//!
//! Invariants
//! * Only regular files below the brick are opened, and no link is followed.

use crate::limits::MOVED_BIT;
use crate::sys::Gfid;
use dafs_store::{Attr, Result, StoreError};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The attribute with the id of the brick's volume.
const VOLUME_ID: &str = "trusted.glusterfs.volume-id";

/// A brick, open.
#[derive(Debug)]
pub(crate) struct Brick {
    directory: OwnedFd,
}

/// Returns the path of an object on the brick.
fn path_of(gfid: &Gfid) -> String {
    let mut hex = String::with_capacity(36);
    for (at, byte) in gfid.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            hex.push('-');
        }
        // INVARIANT: writing to a String never fails.
        let _ = write!(hex, "{byte:02x}");
    }
    format!(".glusterfs/{}/{}/{hex}", &hex[..2], &hex[2..4])
}

impl Brick {
    /// Opens a brick, which must belong to this volume.
    ///
    /// # Errors
    /// The fault of the brick.
    pub(crate) fn open(path: &Path, volume_id: &[u8; 16]) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        let mut id = [0; 17];
        let len = rustix::fs::fgetxattr(&directory, VOLUME_ID, &mut id)?;
        if id[..len] != volume_id[..] {
            return Err(io::Error::other("the directory is a brick of another volume"));
        }
        Ok(Self { directory })
    }

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// [`StoreError::NoDevice`] for a file that is not here or is being moved.
    pub(crate) fn file(&self, gfid: &Gfid) -> Result<(File, Attr)> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV;
        let path = path_of(gfid);
        let opened = rustix::fs::openat2(&self.directory, path, flags, Mode::empty(), resolve);
        let file = match opened {
            Ok(file) => File::from(file),
            Err(error) => {
                let gone = [
                    rustix::io::Errno::NOENT,
                    rustix::io::Errno::LOOP,
                    rustix::io::Errno::ISDIR,
                    rustix::io::Errno::NXIO,
                ];
                return Err(match gone.contains(&error) {
                    true => StoreError::NoDevice,
                    false => io::Error::from(error).into(),
                });
            }
        };
        match look(&file)? {
            Some(attr) => Ok((file, attr)),
            None => Err(StoreError::NoDevice),
        }
    }
}

/// Returns the attributes of a file that is here and is not being moved. `None` for one that is or
/// was moved, for a removed one, and for an object that is not a file.
pub(crate) fn look(file: &File) -> Result<Option<Attr>> {
    let found = file.metadata()?;
    // One link is the gfid's, which GlusterFS removes with the last name.
    if !found.is_file() || found.mode() & MOVED_BIT != 0 || found.nlink() < 2 {
        return Ok(None);
    }
    Ok(Some(crate::attr::of_brick(&found)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const GFID: Gfid = [
        0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67,
        0x89,
    ];

    #[test]
    fn objects_lie_where_glusterfs_puts_them() {
        assert_eq!(path_of(&GFID), ".glusterfs/ab/cd/abcdef01-2345-6789-abcd-ef0123456789");
    }

    /// A brick with a file `f` and the link of its gfid.
    fn world() -> (tempfile::TempDir, Brick) {
        let dir = tempfile::tempdir().expect("a directory");
        let gfid = dir.path().join(path_of(&GFID));
        std::fs::create_dir_all(gfid.parent().expect("a parent")).expect("directories");
        std::fs::write(dir.path().join("f"), b"content").expect("a file");
        std::fs::hard_link(dir.path().join("f"), gfid).expect("a link");
        let directory = File::open(dir.path()).expect("a directory").into();
        (dir, Brick { directory })
    }

    #[test]
    fn files_that_stay_are_opened() {
        let (_dir, brick) = world();
        let (file, _) = brick.file(&GFID).expect("a file");
        assert_eq!(look(&file).expect("attributes").expect("here").size, 7);
        assert_eq!(brick.file(&[1; 16]).map(drop).err(), Some(StoreError::NoDevice));
    }

    #[test]
    fn moving_and_removed_files_are_not_on_the_brick() {
        let (dir, brick) = world();
        let (file, _) = brick.file(&GFID).expect("a file");
        let mode = |bits| {
            let bits = std::fs::Permissions::from_mode(bits);
            std::fs::set_permissions(dir.path().join("f"), bits).expect("a mode");
        };
        mode(0o1000);
        assert_eq!(look(&file), Ok(None));
        assert_eq!(brick.file(&GFID).map(drop).err(), Some(StoreError::NoDevice));
        mode(0o3644);
        assert_eq!(look(&file), Ok(None));
        mode(0o644);
        assert!(look(&file).expect("attributes").is_some());
        std::fs::remove_file(dir.path().join("f")).expect("removed");
        assert_eq!(look(&file), Ok(None));
    }

    #[test]
    fn links_are_not_followed_and_nothing_outside_is_reached() {
        let (dir, brick) = world();
        let gfid = dir.path().join(path_of(&GFID));
        std::fs::remove_file(&gfid).expect("removed");
        std::os::unix::fs::symlink("../../../f", &gfid).expect("a link");
        assert_eq!(brick.file(&GFID).map(drop).err(), Some(StoreError::NoDevice));
        let other = tempfile::tempdir().expect("a directory");
        let above = gfid.parent().expect("a parent");
        std::fs::remove_dir_all(above).expect("removed");
        std::os::unix::fs::symlink(other.path(), above).expect("a link");
        std::fs::write(other.path().join(gfid.file_name().expect("a name")), b"x").expect("a file");
        assert_eq!(brick.file(&GFID).map(drop).err(), Some(StoreError::NoDevice));
    }

    #[test]
    fn only_bricks_of_the_volume_are_opened() {
        let dir = tempfile::tempdir().expect("a directory");
        // The directory has no such attribute, or, for root, that of another volume.
        assert!(Brick::open(dir.path(), &[1; 16]).is_err());
        let other = rustix::fs::XattrFlags::empty();
        if rustix::fs::setxattr(dir.path(), VOLUME_ID, &[2; 16], other).is_ok() {
            let error = Brick::open(dir.path(), &[1; 16]).expect_err("of another volume");
            assert!(error.to_string().contains("another volume"), "{error}");
            Brick::open(dir.path(), &[2; 16]).expect("of this one");
        }
    }
}
