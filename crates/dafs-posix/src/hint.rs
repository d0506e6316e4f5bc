//! Guesses if the store holds the object of a name. If so, a lookup asks for its id first; else it
//! opens the object at once. A wrong guess costs a system call and nothing else.

use crate::limits::NAME_HINTS;
use dafs_store::FileId;
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// Hashes of names that led to held objects lately. The hash is also the index.
pub(super) struct NameHints(Box<[AtomicU64]>);

fn hash_of(dir: &FileId, name: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    (dir, name).hash(&mut hasher);
    hasher.finish()
}

impl NameHints {
    pub(super) fn new() -> Self {
        Self((0..NAME_HINTS).map(|_| AtomicU64::new(0)).collect())
    }

    fn place(&self, hash: u64) -> &AtomicU64 {
        &self.0[hash as usize % NAME_HINTS]
    }

    pub(super) fn remember(&self, dir: &FileId, name: &[u8]) {
        let hash = hash_of(dir, name);
        self.place(hash).store(hash, Ordering::Relaxed);
    }

    pub(super) fn knows(&self, dir: &FileId, name: &[u8]) -> bool {
        let hash = hash_of(dir, name);
        self.place(hash).load(Ordering::Relaxed) == hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_store::FILE_ID_BYTES;

    #[test]
    fn names_are_known_by_their_directory() {
        let hints = NameHints::new();
        let dirs = [1, 2].map(|byte| FileId([byte; FILE_ID_BYTES]));
        hints.remember(&dirs[0], b"name");
        assert!(hints.knows(&dirs[0], b"name"));
        assert!(!hints.knows(&dirs[1], b"name") && !hints.knows(&dirs[0], b"other"));
    }
}
