//! By what a directory of a node is known: a random number made with it, and how often it was joined.
//!
//! Whoever begins to work with a directory joins it. Both sides keep the count, the directory first. One
//! that comes back with a lower count than the metadata server has is an older state of itself. A higher
//! one means that the metadata server did not come to keep it, or is itself from a backup.
//!
//! Invariants
//! * A mark on the disk is an earlier one or a later one, also after a crash.

use crate::hello::HelloError;
use dafs_store::striped::ComponentId;
use dafs_wire::cluster::Membership;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The mark of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Random.
    pub(crate) incarnation: [u8; 16],
    /// How often it was joined.
    pub(crate) joins: u64,
}

impl Mark {
    /// That of a directory that was never joined.
    pub(crate) fn make() -> io::Result<Self> {
        let mut incarnation = [0; 16];
        getrandom::fill(&mut incarnation).map_err(io::Error::other)?;
        Ok(Self { incarnation, joins: 0 })
    }

    /// The next one.
    pub(crate) fn joined(self) -> Self {
        Self { joins: self.joins.saturating_add(1), ..self }
    }

    /// Whether a directory with this mark is the one that is known.
    pub(crate) fn check(&self, membership: Membership) -> Result<(), HelloError> {
        match membership {
            Membership::Known { incarnation, .. } if incarnation != self.incarnation => {
                Err(HelloError::OtherDirectory)
            }
            Membership::Known { joins, .. } if joins > self.joins => Err(HelloError::Older),
            _ => Ok(()),
        }
    }

    /// What a file says; `None` if it is not there.
    pub(crate) fn read(path: &Path) -> io::Result<Option<Self>> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let damaged = || {
            let text = format!("the file {} is damaged", path.display());
            io::Error::new(ErrorKind::InvalidData, text)
        };
        Self::parse(&text).ok_or_else(damaged).map(Some)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let incarnation = ComponentId::parse(lines.next()?)?.0;
        // Earlier versions counted nothing.
        let joins = lines.next().map_or(Some(0), |joins| joins.parse().ok())?;
        lines.next().is_none().then_some(Self { incarnation, joins })
    }

    fn text(&self) -> String {
        // As long for each count.
        format!("{}\n{:020}\n", ComponentId(self.incarnation), self.joins)
    }

    /// Writes it to a file, to outlive a crash. A full file system takes a new count, too: that is written
    /// in place, and less than disks write at once.
    pub(crate) fn keep(&self, path: &Path) -> io::Result<()> {
        let text = self.text();
        match OpenOptions::new().write(true).open(path) {
            Ok(file) if file.metadata()?.len() == text.len() as u64 => {
                file.write_all_at(text.as_bytes(), 0)?;
                return file.sync_all();
            }
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let directory = path.parent().unwrap_or(Path::new("."));
        let unfinished = path.with_extension("new");
        let mut file = File::create(&unfinished)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(unfinished, path)?;
        File::open(directory)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_kept_and_counted() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("mark");
        assert_eq!(Mark::read(&path).expect("nothing"), None);
        let mut mark = Mark::make().expect("made");
        for joins in 0..12 {
            assert_eq!(mark.joins, joins);
            mark.keep(&path).expect("kept");
            assert_eq!(Mark::read(&path).expect("read"), Some(mark));
            mark = mark.joined();
        }
        mark = Mark { joins: u64::MAX, ..mark };
        mark.keep(&path).expect("kept");
        assert_eq!(Mark::read(&path).expect("read"), Some(mark.joined()));
        assert_eq!(fs::read_dir(dir.path()).expect("the directory").count(), 1);
    }

    #[test]
    fn what_an_earlier_version_wrote_has_counted_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("mark");
        let mark = Mark { incarnation: [0xab; 16], joins: 0 };
        fs::write(&path, format!("{}\n", "ab".repeat(16))).expect("written");
        assert_eq!(Mark::read(&path).expect("read"), Some(mark));
        mark.joined().keep(&path).expect("kept");
        assert_eq!(Mark::read(&path).expect("read"), Some(mark.joined()));
        let half = "ab".repeat(16);
        for wrong in ["", "\n", "ab\n", &format!("{half}\nx\n"), &format!("{half}\n-1\n")] {
            fs::write(&path, wrong).expect("written");
            assert!(Mark::read(&path).is_err(), "{wrong:?}");
        }
        fs::write(&path, format!("{half}\n1\n2\n")).expect("written");
        assert!(Mark::read(&path).is_err());
    }

    #[test]
    fn an_older_state_of_a_directory_is_not_the_one_that_is_known_and_a_later_one_is() {
        let mark = Mark { incarnation: [1; 16], joins: 5 };
        let known = |incarnation, joins| mark.check(Membership::Known { incarnation, joins });
        for joins in 0..=5 {
            known([1; 16], joins).expect("it is");
        }
        assert!(matches!(known([1; 16], 6), Err(HelloError::Older)));
        assert!(matches!(known([2; 16], 5), Err(HelloError::OtherDirectory)));
        mark.check(Membership::New).expect("any");
        mark.check(Membership::Marked).expect("any");
    }
}
