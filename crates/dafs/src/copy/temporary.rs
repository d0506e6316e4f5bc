//! Unfinished files on this host: they have temporary names, by which they are removed unless they
//! get their final one.
//!
//! Invariants
//! * A name is in the registry before the file exists, so a signal handler finds every file.

use super::local::Parent;
use crate::limits::TEMPORARY_NAME_TRIES;
use dafs_mem::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Letters of temporary names; 64, so that six random bits choose one.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";

/// A name for an unfinished file: `.dafs-XXXXXX.part`.
pub(super) fn temporary_name() -> String {
    let mut random = [0; 6];
    if getrandom::fill(&mut random).is_err() {
        // Only uniqueness matters here: making the file fails if the name exists.
        random.copy_from_slice(&std::process::id().to_ne_bytes().repeat(2)[..6]);
    }
    let letters: String =
        random.iter().map(|byte| char::from(LETTERS[usize::from(byte & 63)])).collect();
    format!(".dafs-{letters}.part")
}

/// True for the name of an unfinished file.
pub(super) fn is_temporary_name(name: &[u8]) -> bool {
    let inner = name.strip_prefix(b".dafs-").and_then(|rest| rest.strip_suffix(b".part"));
    inner.is_some_and(|inner| {
        matches!(inner.len(), 6 | 16) && inner.iter().all(|letter| LETTERS.contains(letter))
    })
}

/// Every unfinished file of this process.
#[derive(Debug, Default)]
pub(super) struct Registry {
    files: Mutex<HashMap<String, Arc<OwnedFd>>>,
}

impl Registry {
    /// Removes all unfinished files, at the end of the process.
    pub(super) fn remove_all(&self) {
        for (name, parent) in self.files.lock().drain() {
            // There is no caller to report an error to.
            let _ = unlinkat(&parent, &name, AtFlags::empty());
        }
    }
}

/// An unfinished file. Removed when dropped.
#[derive(Debug)]
pub(super) struct Temporary<'a> {
    registry: &'a Registry,
    parent: Parent,
    name: String,
    file: OwnedFd,
}

impl<'a> Temporary<'a> {
    /// Makes a file that only its owner can access, open for writing and reading.
    pub(super) fn create(registry: &'a Registry, parent: &Parent) -> Result<Self, Errno> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..TEMPORARY_NAME_TRIES {
            let name = temporary_name();
            registry.files.lock().insert(name.clone(), parent.clone());
            match openat(parent.as_fd(), &name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => return Ok(Self { registry, parent: parent.clone(), name, file }),
                Err(error) => {
                    registry.files.lock().remove(&name);
                    if error != Errno::EXIST {
                        return Err(error);
                    }
                }
            }
        }
        Err(Errno::EXIST)
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Renames the complete file, and replaces an object of that name.
    pub(super) fn rename(self, name: &OsString) -> Result<(), Errno> {
        renameat(&self.parent, &self.name, &self.parent, name.as_os_str())?;
        self.registry.files.lock().remove(&self.name);
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        // After `rename` the name is not in the registry, and no file is removed.
        if self.registry.files.lock().remove(&self.name).is_some() {
            let _ = unlinkat(&self.parent, &self.name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn parent(dir: &tempfile::TempDir) -> Parent {
        Arc::new(fs::File::open(dir.path()).unwrap().into())
    }

    fn names(dir: &tempfile::TempDir) -> Vec<OsString> {
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn an_unfinished_file_vanishes_and_a_finished_one_stays() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::default();
        drop(Temporary::create(&registry, &parent(&dir)).unwrap());
        assert!(names(&dir).is_empty());
        let temporary = Temporary::create(&registry, &parent(&dir)).unwrap();
        assert!(names(&dir)[0].to_str().unwrap().starts_with(".dafs-"));
        temporary.rename(&"final".into()).unwrap();
        assert_eq!(names(&dir), ["final"]);
    }

    #[test]
    fn names_of_unfinished_files_are_known_by_their_form() {
        assert!(is_temporary_name(temporary_name().as_bytes()));
        for other in [".dafs-.part", ".dafs-abcde.part", ".dafs-abc/ef.part", "a.dafs-abcdef.part"]
        {
            assert!(!is_temporary_name(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_signal_finds_every_file() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::default();
        let kept: Vec<_> =
            (0..3).map(|_| Temporary::create(&registry, &parent(&dir)).unwrap()).collect();
        registry.remove_all();
        assert!(names(&dir).is_empty());
        drop(kept);
    }
}
