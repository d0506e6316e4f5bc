//! The files of which the metadata server may have unstable data. A commit of any other file needs no
//! COMMIT there.
//!
//! Invariants
//! * A file is marked before a write to the server returns to its caller. So a commit that begins later
//!   finds the mark, whichever open of the file it comes from.
//! * A COMMIT removes a mark only if no write has renewed it since the COMMIT was sent.
//! * The number of notes is bounded. When there are more, all are dropped. From then on, a file without a
//!   note counts as marked, and its next COMMIT notes that it is not.

use super::Layouts;
use crate::files::Handle;
use crate::mount::limits::MARKED_FILES_MAX;
use rustc_hash::FxHashMap;

/// The marks of a mount.
#[derive(Debug, Default)]
pub(super) struct AtServer {
    /// The number of the last write to each marked file. After a drop there are also files without a mark.
    files: FxHashMap<Handle, Option<u64>>,
    writes: u64,
    /// The number of the last write when notes were last dropped.
    dropped: Option<u64>,
}

impl AtServer {
    fn mark(&mut self, file: &Handle) {
        self.writes += 1;
        self.note(file, Some(self.writes));
    }

    /// Notes a file. Too many notes are dropped first.
    fn note(&mut self, file: &Handle, mark: Option<u64>) {
        if let Some(known) = self.files.get_mut(file) {
            *known = mark;
            return;
        }
        if self.files.len() >= MARKED_FILES_MAX {
            self.dropped = Some(self.writes);
            self.files = FxHashMap::default();
        }
        self.files.insert(file.clone(), mark);
    }

    fn mark_of(&self, file: &Handle) -> Option<u64> {
        match self.files.get(file) {
            Some(mark) => *mark,
            None => self.dropped.map(|_| self.writes),
        }
    }

    fn committed(&mut self, file: &Handle, mark: u64) {
        let is_last = match self.files.get(file) {
            Some(last) => *last == Some(mark),
            // A write behind the drop would be noted.
            None => self.dropped.is_some_and(|dropped| mark >= dropped),
        };
        match (is_last, self.dropped) {
            (false, _) => {}
            (true, None) => {
                self.files.remove(file);
            }
            (true, Some(_)) => self.note(file, None),
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

    /// Returns marks of which the first ones were dropped, and the number of a file with a mark.
    fn dropped() -> (AtServer, usize) {
        let mut marks = AtServer::default();
        (0..MARKED_FILES_MAX).for_each(|number| marks.mark(&file(number)));
        assert_eq!(marks.mark_of(&file(MARKED_FILES_MAX)), None);
        marks.mark(&file(MARKED_FILES_MAX));
        assert_eq!(marks.files.len(), 1);
        (marks, MARKED_FILES_MAX)
    }

    #[test]
    fn with_too_many_marks_every_file_has_one_until_its_commit() {
        let (mut marks, last) = dropped();
        for number in [0, last, last + 1] {
            let mark = marks.mark_of(&file(number)).unwrap();
            marks.committed(&file(number), mark);
            assert_eq!(marks.mark_of(&file(number)), None, "{number}");
        }
        assert!(marks.mark_of(&file(1)).is_some() && marks.mark_of(&file(last + 2)).is_some());
        marks.mark(&file(0));
        assert!(marks.mark_of(&file(0)).is_some());
    }

    #[test]
    fn a_write_behind_the_commit_of_a_file_without_a_note_renews_its_mark() {
        let (mut marks, _) = dropped();
        let early = marks.mark_of(&file(1)).unwrap();
        marks.mark(&file(1));
        marks.committed(&file(1), early);
        assert!(marks.mark_of(&file(1)).is_some());
    }

    #[test]
    fn a_commit_from_before_a_drop_notes_nothing() {
        let mut marks = AtServer::default();
        marks.mark(&file(0));
        let early = marks.mark_of(&file(0)).unwrap();
        marks.mark(&file(0));
        (1..=MARKED_FILES_MAX).for_each(|number| marks.mark(&file(number)));
        marks.committed(&file(0), early);
        assert!(marks.mark_of(&file(0)).is_some(), "its second write may be unstable");
    }

    #[test]
    fn notes_of_committed_files_are_bounded_too() {
        let (mut marks, last) = dropped();
        for number in last + 1..=last + 2 * MARKED_FILES_MAX {
            let mark = marks.mark_of(&file(number)).unwrap();
            marks.committed(&file(number), mark);
            assert!(marks.files.len() <= MARKED_FILES_MAX);
        }
        assert!(marks.mark_of(&file(last)).is_some(), "its write may still be unstable");
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
