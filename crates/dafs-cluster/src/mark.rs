//! The mark by which a node's directory is recognised: a random number that is made with it, and
//! the count of its joins.
//!
//! A server that begins to work with a directory joins it. Both sides keep the count, and the
//! directory is written first. A directory with a lower count than that of the metadata server is
//! an older state. A higher count means that the metadata server has not written it, or was itself
//! restored from a backup.
//!
//! A checksum of both follows the count, to detect damage. Marks are safe from other users of the
//! host: it is checked that others cannot write to the directories. A keyed MAC would have no use:
//! a directory can be moved to other servers, and an administrator may have to edit a mark.
//!
//! Invariants
//! * A mark on the disk is the earlier one or the later one, also after a crash.

use crate::hello::HelloError;
use crate::limits::MARK_BYTES_MAX;
use dafs_store::node::ComponentId;
use dafs_store::own;
use dafs_wire::cluster::Membership;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The mark of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Random.
    pub(crate) incarnation: [u8; 16],
    /// The count of its joins.
    pub(crate) joins: u64,
}

impl Mark {
    /// Makes the mark of a directory that was never joined.
    pub(crate) fn make() -> io::Result<Self> {
        let mut incarnation = [0; 16];
        getrandom::fill(&mut incarnation).map_err(io::Error::other)?;
        Ok(Self { incarnation, joins: 0 })
    }

    /// Returns the mark after one more join.
    pub(crate) fn joined(self) -> Self {
        Self { joins: self.joins.saturating_add(1), ..self }
    }

    /// Checks that a directory with this mark is the known one.
    pub(crate) fn check(&self, membership: Membership) -> Result<(), HelloError> {
        match membership {
            Membership::Known { incarnation, .. } if incarnation != self.incarnation => {
                Err(HelloError::OtherDirectory)
            }
            Membership::Known { joins, .. } if joins > self.joins => Err(HelloError::Older),
            _ => Ok(()),
        }
    }

    /// Reads a mark from a file. `None` if the file is missing.
    pub(crate) fn read(path: &Path) -> io::Result<Option<Self>> {
        let text = match own::read(path, MARK_BYTES_MAX) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == ErrorKind::InvalidData => Vec::new(),
            Err(error) => return Err(error),
        };
        let damaged = || {
            let text = format!(
                "{} is damaged. The metadata server keeps the same text in `nodes` of its state directory as \
                 the node in `incarnation` of its directory: copy the one that is whole to the other. If \
                 neither is, empty the first and remove the second: the directory is then taken as it is",
                path.display()
            );
            io::Error::new(ErrorKind::InvalidData, text)
        };
        let parsed = String::from_utf8(text).ok().and_then(|text| Self::parse(&text));
        parsed.ok_or_else(damaged).map(Some)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let incarnation = ComponentId::parse(lines.next()?)?.0;
        // Earlier versions kept no count, and later ones a count without a checksum.
        let (joins, sum) = match lines.next() {
            Some(line) => {
                line.split_once(' ').map_or((line, None), |(joins, sum)| (joins, Some(sum)))
            }
            None => ("0", None),
        };
        let mark = Self { incarnation, joins: joins.parse().ok()? };
        let sound = sum.is_none_or(|sum| sum == mark.sum());
        (sound && lines.next().is_none()).then_some(mark)
    }

    fn sum(&self) -> String {
        let mac = own::mac(&[0; 16], &[b"mark", &self.incarnation, &self.joins.to_be_bytes()]);
        format!("{:016x}", u128::from_be_bytes(mac) >> 64)
    }

    fn text(&self) -> String {
        // The length is the same for each count.
        format!("{}\n{:020} {}\n", ComponentId(self.incarnation), self.joins, self.sum())
    }

    /// Writes it to a file, durably. This works on a full file system, too: a new count is written
    /// in place, and is shorter than a disk's atomic write.
    pub(crate) fn keep(&self, path: &Path) -> io::Result<()> {
        let text = self.text();
        match own::open(path, false) {
            Ok(file) if file.metadata()?.len() == text.len() as u64 => {
                file.write_all_at(text.as_bytes(), 0)?;
                return file.sync_all();
            }
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let directory = path.parent().unwrap_or(Path::new("."));
        own::replace(path, &path.with_extension("new"), text.as_bytes())?;
        File::open(directory)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

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
    fn a_mark_of_an_earlier_version_has_no_joins() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("mark");
        let mark = Mark { incarnation: [0xab; 16], joins: 0 };
        fs::write(&path, format!("{}\n", "ab".repeat(16))).expect("written");
        assert_eq!(Mark::read(&path).expect("read"), Some(mark));
        mark.joined().keep(&path).expect("kept");
        assert_eq!(Mark::read(&path).expect("read"), Some(mark.joined()));
        let counted = Mark { joins: 7, ..mark };
        fs::write(&path, format!("{}\n{:020}\n", "ab".repeat(16), 7)).expect("written");
        assert_eq!(Mark::read(&path).expect("read"), Some(counted));
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

    #[test]
    fn the_error_for_a_damaged_mark_names_the_remedy() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("mark");
        let mark = Mark { joins: 41, ..Mark::make().expect("made") };
        mark.keep(&path).expect("kept");
        let text = fs::read(&path).expect("a mark");
        for at in 0..text.len() - 1 {
            let mut damaged = text.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).expect("damaged");
            // An administrator who accepts an older directory leaves one line alone.
            let error = Mark::read(&path).expect_err("it is told").to_string();
            assert!(error.contains("is damaged") && error.contains("copy"), "{at}: {error}");
        }
        fs::write(&path, text).expect("copied from the other side");
        assert_eq!(Mark::read(&path).expect("read"), Some(mark));
    }

    #[test]
    fn a_mark_is_not_written_through_a_symlink() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, victim) = (dir.path().join("mark"), dir.path().join("victim"));
        let mark = Mark::make().expect("made");
        // As long as a mark, which is written in place.
        let precious = "x".repeat(mark.text().len());
        fs::write(&victim, &precious).expect("written");
        for name in ["mark", "mark.new"] {
            let link = dir.path().join(name);
            std::os::unix::fs::symlink(&victim, &link).expect("a symlink");
            let kept = mark.keep(&path);
            assert_eq!(fs::read_to_string(&victim).expect("content"), precious);
            assert_eq!(kept.is_ok(), name != "mark", "{kept:?}");
            let _ = fs::remove_file(link);
        }
        assert_eq!(Mark::read(&path).expect("read"), Some(mark));
    }
}
