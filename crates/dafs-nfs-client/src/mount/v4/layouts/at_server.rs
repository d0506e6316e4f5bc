//! The files of which the metadata server may have unstable data. A commit of any other file needs no
//! COMMIT there.
//!
//! Invariants
//! * A file is marked before a write to the server returns to its caller. So a commit that begins later
//!   finds the mark, whichever open of the file it comes from.
//! * A COMMIT removes a mark only if no write has renewed it since the COMMIT was sent.
//! * The number of marks is bounded. If there were more, all files count as marked from then on.

use super::Layouts;
use crate::files::Handle;
use crate::mount::limits::MARKED_FILES_MAX;
use rustc_hash::FxHashMap;

/// The marks of a mount.
#[derive(Debug, Default)]
pub(super) struct AtServer {
    /// The number of the last write to each marked file.
    files: FxHashMap<Handle, u64>,
    writes: u64,
    /// There were too many marks to keep.
    is_full: bool,
}

impl AtServer {
    fn mark(&mut self, file: &Handle) {
        self.writes += 1;
        if let Some(last) = self.files.get_mut(file) {
            *last = self.writes;
            return;
        }
        if self.files.len() >= MARKED_FILES_MAX {
            self.is_full = true;
            self.files = FxHashMap::default();
        }
        if !self.is_full {
            self.files.insert(file.clone(), self.writes);
        }
    }

    fn mark_of(&self, file: &Handle) -> Option<u64> {
        if self.is_full { Some(self.writes) } else { self.files.get(file).copied() }
    }

    fn committed(&mut self, file: &Handle, mark: u64) {
        if self.files.get(file) == Some(&mark) {
            self.files.remove(file);
        }
    }
}

impl Layouts {
    /// Marks a file of which the server has unstable data, or may get some.
    pub(crate) fn mark_at_server(&self, file: &Handle) {
        self.at_server.lock().mark(file);
    }

    /// Returns the mark of a file that a COMMIT at the server may concern. After a loss at data servers
    /// it concerns every file: the server may reach data that was written by an earlier layout.
    pub(crate) fn mark_of(&self, file: &Handle) -> Option<u64> {
        let mark = self.at_server.lock().mark_of(file);
        let is_lossless = self.known(file).is_some_and(|layout| !layout.has_lost());
        if is_lossless { mark } else { Some(mark.unwrap_or_default()) }
    }

    /// Removes a mark after a COMMIT at the server that was sent when the file had this one.
    pub(crate) fn committed_at_server(&self, file: &Handle, mark: u64) {
        self.at_server.lock().committed(file, mark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(number: usize) -> Handle {
        Handle(number.to_be_bytes().to_vec())
    }

    #[test]
    fn a_mark_stays_until_a_commit_that_began_behind_the_last_write() {
        let mut marks = AtServer::default();
        assert_eq!(marks.mark_of(&file(1)), None);
        marks.mark(&file(1));
        marks.mark(&file(2));
        let early = marks.mark_of(&file(1)).unwrap();
        marks.mark(&file(1));
        marks.committed(&file(1), early);
        let late = marks.mark_of(&file(1)).unwrap();
        assert_ne!(late, early);
        marks.committed(&file(1), late);
        assert_eq!(marks.mark_of(&file(1)), None);
        assert!(marks.mark_of(&file(2)).is_some());
    }

    #[test]
    fn with_too_many_marks_every_file_has_one() {
        let mut marks = AtServer::default();
        (0..MARKED_FILES_MAX).for_each(|number| marks.mark(&file(number)));
        assert_eq!(marks.mark_of(&file(MARKED_FILES_MAX)), None);
        marks.mark(&file(MARKED_FILES_MAX));
        let mark = marks.mark_of(&file(MARKED_FILES_MAX + 1)).unwrap();
        marks.committed(&file(MARKED_FILES_MAX + 1), mark);
        assert!(marks.mark_of(&file(MARKED_FILES_MAX + 1)).is_some() && marks.files.is_empty());
    }

    #[test]
    fn a_file_without_a_layout_or_with_losses_counts_as_marked() {
        let layouts = Layouts::new(&[]);
        assert_eq!(layouts.mark_of(&file(1)), Some(0));
        let layout = layouts.file(&file(1));
        assert_eq!(layouts.mark_of(&file(1)), None);
        layouts.mark_at_server(&file(1));
        let mark = layouts.mark_of(&file(1)).unwrap();
        layouts.committed_at_server(&file(1), mark);
        assert_eq!(layouts.mark_of(&file(1)), None);
        layout.with(dafs_parallel::LayoutState::lose);
        assert_eq!(layouts.mark_of(&file(1)), Some(0));
    }
}
