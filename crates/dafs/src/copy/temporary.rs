//! Unfinished files on this host: they have temporary names, by which they are removed unless they
//! get their final one.
//!
//! Invariants
//! * A name is in the registry before the file exists, so a signal handler finds every file. That of one
//!   that another run goes on with is there after its lock, because another process may have the file.
//! * The process that makes a file holds its lock (flock), so `dafs clean` tells it from one that a
//!   killed process left.
//! * Of a file that another run goes on with, bytes behind a multiple of `RESUME_BYTES` are written only
//!   when those before it, up to a piece, are on stable storage.

use super::local::Parent;
use crate::limits::{PIECE_BYTES, RESUME_BYTES, TEMPORARY_NAME_TRIES};
use dafs_mem::Mutex;
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, flock, fstat, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsString;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Letters of temporary names; 64, so that six random bits choose one.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";

/// A name for an unfinished file: `.dafs-XXXXXX.part`. The names are hashes of numbers under a random key
/// of this process, so other processes cannot foretell them.
pub(super) fn temporary_name() -> String {
    static KEY: OnceLock<RandomState> = OnceLock::new();
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let bits = KEY.get_or_init(RandomState::new).hash_one(number);
    let letters: String = (0..6).map(|index| letter(bits.into(), index)).collect();
    format!(".dafs-{letters}.part")
}

/// The letter of six bits of a hash.
fn letter(bits: u128, index: u32) -> char {
    char::from(LETTERS[((bits >> (6 * index)) & 63) as usize])
}

/// The name of an unfinished file that a later run goes on with. `key` names the original in its
/// present state.
pub(super) fn resumable_name(key: impl Hash) -> String {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, &key).hash(&mut hasher);
        hasher.finish()
    };
    let bits = (u128::from(half(0)) << 64) | u128::from(half(1));
    let letters: String = (0..16).map(|index| letter(bits, index)).collect();
    format!(".dafs-{letters}.part")
}

/// The number of bytes at the start of an unfinished file of `size` bytes that are certainly those of
/// its original.
pub(super) fn resumable_bytes(size: u64) -> u64 {
    (size.saturating_sub(1) / RESUME_BYTES * RESUME_BYTES).saturating_sub(PIECE_BYTES as u64)
}

/// True if a write of `bytes` at `offset` begins a part for which all data before it must be stable.
pub(super) fn crosses_stable_step(offset: u64, bytes: usize) -> bool {
    let end = offset + bytes as u64;
    offset > 0 && end.saturating_sub(1) / RESUME_BYTES != (offset - 1) / RESUME_BYTES
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
                // `dafs clean` may take it for a file of a killed process before it is locked.
                Ok(file) if is_taken(&file) => drop(registry.files.lock().remove(&name)),
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

    /// Goes on with the file of that name if an earlier process has left one, and begins it otherwise.
    /// Returns the number of its bytes that need not be copied again.
    pub(super) fn resume(
        registry: &'a Registry,
        parent: &Parent,
        name: String,
    ) -> Result<(Self, u64), Errno> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = openat(parent.as_fd(), &name, flags, Mode::RUSR | Mode::WUSR);
        let Some(file) = opened.ok().filter(|file| !is_taken(file) && is_own(file)) else {
            return Ok((Self::create(registry, parent)?, 0));
        };
        let start = resumable_bytes(fstat(&file)?.st_size.unsigned_abs());
        rustix::fs::ftruncate(&file, start)?;
        registry.files.lock().insert(name.clone(), parent.clone());
        Ok((Self { registry, parent: parent.clone(), name, file }, start))
    }

    /// Leaves the file for a later run.
    pub(super) fn keep(self) {
        self.registry.files.lock().remove(&self.name);
    }

    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Renames the complete file, and replaces an object of that name.
    pub(super) fn rename(self, name: &OsString) -> Result<(), Errno> {
        renameat(&self.parent, &self.name, &self.parent, name.as_os_str())?;
        self.registry.files.lock().remove(&self.name);
        Ok(())
    }
}

/// Locks an unfinished file. True if another process has it, or has removed it.
pub(super) fn is_taken(file: &OwnedFd) -> bool {
    let is_locked = flock(file, FlockOperation::NonBlockingLockExclusive);
    is_locked == Err(Errno::WOULDBLOCK) || fstat(file).is_ok_and(|stat| stat.st_nlink == 0)
}

/// True for a file that only this user can have written.
fn is_own(file: &OwnedFd) -> bool {
    fstat(file).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_nlink == 1
            && stat.st_uid == rustix::process::geteuid().as_raw()
            && stat.st_mode & 0o077 == 0
    })
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
    use std::collections::HashSet;
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
    fn each_unfinished_file_has_a_name_of_its_own() {
        let names: HashSet<String> = (0..100).map(|_| temporary_name()).collect();
        assert_eq!(names.len(), 100);
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
    fn a_later_run_goes_on_behind_stable_data() {
        let dir = tempfile::tempdir().unwrap();
        let (registry, parent) = (Registry::default(), parent(&dir));
        let name = resumable_name(("original", 7));
        assert!(is_temporary_name(name.as_bytes()) && name == resumable_name(("original", 7)));
        assert_ne!(name, resumable_name(("original", 8)));
        let (first, start) = Temporary::resume(&registry, &parent, name.clone()).unwrap();
        assert_eq!(start, 0);
        rustix::fs::ftruncate(first.file(), 2 * RESUME_BYTES + 1).unwrap();
        let (other, start) = Temporary::resume(&registry, &parent, name.clone()).unwrap();
        assert!(start == 0 && other.name != name, "the first is alive");
        first.keep();
        drop(other);
        let (_again, start) = Temporary::resume(&registry, &parent, name.clone()).unwrap();
        assert_eq!(start, 2 * RESUME_BYTES - PIECE_BYTES as u64);
        assert_eq!(names(&dir), [OsString::from(name)]);
    }

    #[test]
    fn data_is_stable_before_any_behind_a_step_is_written() {
        let piece = PIECE_BYTES as u64;
        assert!(!crosses_stable_step(0, PIECE_BYTES));
        assert!(!crosses_stable_step(RESUME_BYTES - piece, PIECE_BYTES));
        assert!(crosses_stable_step(RESUME_BYTES, PIECE_BYTES));
        assert!(crosses_stable_step(RESUME_BYTES - 1, PIECE_BYTES));
        assert!(!crosses_stable_step(RESUME_BYTES + piece, PIECE_BYTES));
        assert_eq!(resumable_bytes(RESUME_BYTES), 0);
        assert_eq!(resumable_bytes(RESUME_BYTES + 1), RESUME_BYTES - piece);
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
