//! The changes that this mount has made lately. A listing fetches more than the kernel takes at
//! once, and must not report attributes from before a change as current ones.
//!
//! Invariants
//! * A change is recorded when it is done, before the kernel gets the answer. Data fetched from the
//!   server before that is stale from then on.
//! * The table is bounded: changes share places, so an entry may be taken for stale although it is
//!   not, but never the other way round.

use crate::kernel::NodeId;
use crate::limits::CHANGE_PLACES;
use dafs_client::FileHandle;
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time of a request to the server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    at: Instant,
    changes: u64,
}

impl Asked {
    /// The remaining validity of the answer, of a timeout of `cache_timeout`.
    pub(crate) fn left_of(&self, cache_timeout: Duration) -> Duration {
        cache_timeout.saturating_sub(self.at.elapsed())
    }
}

#[derive(Debug)]
pub(crate) struct Changes {
    count: AtomicU64,
    /// The last change of all that share a place.
    last: Box<[AtomicU64]>,
}

impl Default for Changes {
    fn default() -> Self {
        let last = std::iter::repeat_with(AtomicU64::default).take(CHANGE_PLACES).collect();
        Self { count: AtomicU64::new(0), last }
    }
}

impl Changes {
    /// Called before a request to the server.
    pub(crate) fn asking(&self) -> Asked {
        Asked { at: Instant::now(), changes: self.count.load(Ordering::SeqCst) }
    }

    /// Records a change of a file's content or attributes.
    pub(crate) fn file(&self, handle: &FileHandle) {
        self.note(handle);
    }

    /// Records that a name of a directory was created, removed, or replaced.
    pub(crate) fn name(&self, dir: NodeId, name: &[u8]) {
        self.note(&(dir, name));
    }

    /// True when a file was changed since the request.
    pub(crate) fn is_file_old(&self, handle: &FileHandle, asked: Asked) -> bool {
        self.is_old(handle, asked)
    }

    /// True when a name was changed since the request.
    pub(crate) fn is_name_old(&self, dir: NodeId, name: &[u8], asked: Asked) -> bool {
        self.is_old(&(dir, name), asked)
    }

    fn place(&self, what: &impl Hash) -> &AtomicU64 {
        let mut hasher = FxHasher::default();
        what.hash(&mut hasher);
        &self.last[hasher.finish() as usize % CHANGE_PLACES]
    }

    fn note(&self, what: &impl Hash) {
        let number = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        self.place(what).fetch_max(number, Ordering::SeqCst);
    }

    fn is_old(&self, what: &impl Hash, asked: Asked) -> bool {
        self.place(what).load(Ordering::SeqCst) > asked.changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_asked_before_a_change_is_old() {
        let changes = Changes::default();
        let before = changes.asking();
        assert!(!changes.is_file_old(&FileHandle::ZERO, before));
        assert!(!changes.is_name_old(1, b"name", before));
        changes.file(&FileHandle::ZERO);
        changes.name(1, b"name");
        assert!(changes.is_file_old(&FileHandle::ZERO, before));
        assert!(changes.is_name_old(1, b"name", before));
        let behind = changes.asking();
        assert!(!changes.is_file_old(&FileHandle::ZERO, behind));
        assert!(!changes.is_name_old(1, b"name", behind));
    }

    #[test]
    fn other_names_stay_as_they_are() {
        let changes = Changes::default();
        let before = changes.asking();
        changes.name(1, b"name");
        let names: Vec<Vec<u8>> = (0..100).map(|number| format!("{number}").into()).collect();
        let old = names.iter().filter(|name| changes.is_name_old(1, name, before)).count();
        assert!(old < 10, "{old} of 100 names share a place with one");
    }

    #[test]
    fn no_more_changes_are_lost_than_there_is_room_for() {
        let changes = Changes::default();
        let before = changes.asking();
        let names = || (0..10 * CHANGE_PLACES as u64).map(u64::to_le_bytes);
        names().for_each(|name| changes.name(1, &name));
        assert!(names().all(|name| changes.is_name_old(1, &name, before)));
    }

    #[test]
    fn an_answer_times_out_from_when_it_was_given() {
        let (age, hour) = (Duration::from_secs(5), Duration::from_secs(3600));
        let asked = Asked { at: Instant::now().checked_sub(age).unwrap(), changes: 0 };
        assert_eq!(asked.left_of(Duration::ZERO), Duration::ZERO);
        assert_eq!(asked.left_of(age), Duration::ZERO);
        assert!(asked.left_of(hour) <= hour - age && !asked.left_of(hour).is_zero());
    }
}
