//! The metadata server's record of its nodes' directories, one file for each: no file, an empty one
//! for some directory, or its mark. Also the join of directories of its own machine.
//!
//! Invariants
//! * A directory is used only if it is the known one, and not an older state of it.

use crate::hello::HelloError;
use crate::mark::Mark;
use dafs_store::node::{DirectoryError, DirectoryNode};
use dafs_store::own;
use dafs_wire::cluster::Membership;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The name of the file with the mark in a directory.
pub(crate) const INCARNATION: &str = "incarnation";

pub(crate) fn recall(memory: &Path) -> io::Result<Membership> {
    match fs::symlink_metadata(memory) {
        // Earlier versions recorded directories of this machine like this, and the node may have
        // been one.
        Ok(metadata) if metadata.is_file() && metadata.len() == 0 => {
            tracing::warn!(
                "{} is empty, as earlier versions left it or as an administrator made it: a directory of \
                 this node is taken whatever its mark",
                memory.display()
            );
            return Ok(Membership::Marked);
        }
        _ => {}
    }
    let known = Mark::read(memory)?;
    Ok(known.map_or(Membership::New, |Mark { incarnation, joins }| Membership::Known {
        incarnation,
        joins,
    }))
}

pub(crate) fn remember(memory: &Path, mark: Mark) -> io::Result<()> {
    own::make_directory(memory.parent().unwrap_or(Path::new(".")))?;
    mark.keep(memory)
}

/// Makes the node count as never used.
pub(crate) fn give_up(memory: &Path) -> io::Result<()> {
    match fs::remove_file(memory) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::open(memory.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// Returns the mark of a directory of the node, and makes one if allowed. A node that counts as
/// never used gets a new mark, so that no other state of the directory is taken for this one later.
pub(crate) fn marked(directory: &Path, membership: Membership) -> Result<Mark, MarkError> {
    let there = Mark::read(&directory.join(INCARNATION))?;
    match (there, membership) {
        (Some(mark), Membership::Known { .. } | Membership::Marked) => {
            mark.check(membership)?;
            Ok(mark)
        }
        (None, Membership::Known { .. }) => Err(HelloError::OtherDirectory.into()),
        (_, Membership::New) | (None, Membership::Marked) => Ok(Mark::make()?),
    }
}

/// Increments the count of joins in the directory. A directory that cannot be written keeps its
/// state: it goes on with its mark, if it has one.
pub(crate) fn join(directory: &Path, mark: Mark) -> io::Result<Mark> {
    let (joined, path) = (mark.joined(), directory.join(INCARNATION));
    match joined.keep(&path) {
        Err(error) if takes_nothing(&error) && Mark::read(&path)? == Some(mark) => Ok(mark),
        kept => kept.map(|()| joined),
    }
}

fn takes_nothing(error: &io::Error) -> bool {
    use ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), ReadOnlyFilesystem | StorageFull | QuotaExceeded)
}

/// Why a directory is not the known one.
#[derive(Debug, Error)]
pub(crate) enum MarkError {
    #[error(transparent)]
    Hello(#[from] HelloError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Why a directory of this machine cannot be used.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum JoinError {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(
        "{0} is not the directory that this node was used with: is it a copy? If it is the right one, and only \
         {path} is lost, copy {1} there",
        path = .0.join(INCARNATION).display()
    )]
    Other(PathBuf, PathBuf),
    #[error(
        "{0} has gone back in time, as by a restored snapshot or backup: what was written since is not in \
         it. Put the newer one back. If that is lost, and old content is better than none, remove the \
         second line of {1}"
    )]
    Older(PathBuf, PathBuf),
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
}

/// Opens a directory of this machine as that of a node. An empty one is accepted only if the node
/// was never used. Clients reach it at `addresses` without the store. `memory` is the file with the
/// record of the directory's mark.
///
/// # Errors
/// The directory is not the node's, or an older state of it, and the errors of the system.
pub fn join_directory(
    directory: &Path,
    (store, number): (&[u8; 16], u32),
    addresses: Vec<SocketAddr>,
    memory: &Path,
) -> Result<DirectoryNode, JoinError> {
    let forgotten = |error| JoinError::Io(memory.to_owned(), error);
    let membership = recall(memory).map_err(forgotten)?;
    if membership == Membership::New {
        DirectoryNode::make(directory, store, number)?;
    }
    let node = DirectoryNode::open(directory, store, number, addresses)?;
    let mark = marked(directory, membership).map_err(|error| match error {
        MarkError::Hello(HelloError::Older) => {
            JoinError::Older(directory.to_owned(), memory.to_owned())
        }
        MarkError::Hello(_) => JoinError::Other(directory.to_owned(), memory.to_owned()),
        MarkError::Io(error) => JoinError::Io(directory.to_owned(), error),
    })?;
    match join(directory, mark) {
        Ok(mark) => remember(memory, mark).map_err(forgotten)?,
        // A directory of an earlier version gets its mark when it can be written.
        Err(error) if takes_nothing(&error) && membership == Membership::Marked => {}
        Err(error) => return Err(JoinError::Io(directory.to_owned(), error)),
    }
    Ok(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Rig {
        dir: tempfile::TempDir,
    }

    impl Rig {
        fn new() -> Self {
            let rig = Self { dir: tempfile::tempdir().expect("a directory") };
            fs::create_dir(rig.directory()).expect("a directory");
            rig
        }

        fn directory(&self) -> PathBuf {
            self.dir.path().join("data")
        }

        fn memory(&self) -> PathBuf {
            self.dir.path().join("nodes/memory")
        }

        fn join(&self) -> Result<(), JoinError> {
            join_directory(&self.directory(), (&[1; 16], 2), Vec::new(), &self.memory()).map(drop)
        }

        fn known(&self) -> Mark {
            Mark::read(&self.memory()).expect("a memory").expect("a mark")
        }
    }

    #[test]
    fn each_joining_is_counted_on_both_sides() {
        let rig = Rig::new();
        for joins in 1..4 {
            rig.join().expect("joined");
            assert_eq!(rig.known().joins, joins);
            let there = Mark::read(&rig.directory().join(INCARNATION)).expect("a mark");
            assert_eq!(there, Some(rig.known()));
        }
    }

    #[test]
    fn a_directory_that_went_back_in_time_is_refused_until_it_is_there_again() {
        let rig = Rig::new();
        rig.join().expect("joined");
        let mark = rig.directory().join(INCARNATION);
        let old = fs::read(&mark).expect("a mark");
        rig.join().expect("joined");
        let new = fs::read_to_string(&mark).expect("a mark");
        fs::write(&mark, old).expect("restored");
        let Err(error @ JoinError::Older(..)) = rig.join() else { panic!("it was let in") };
        assert!(error.to_string().contains(&rig.memory().display().to_string()), "{error}");
        // As earlier versions left it.
        fs::write(&mark, new.lines().next().expect("a line")).expect("restored");
        assert!(matches!(rig.join(), Err(JoinError::Older(..))));
        fs::write(&mark, new).expect("back");
        rig.join().expect("joined");
        fs::remove_file(&mark).expect("removed");
        assert!(matches!(rig.join(), Err(JoinError::Other(..))));
    }

    #[test]
    fn an_administrator_can_accept_the_old_state() {
        let rig = Rig::new();
        rig.join().expect("joined");
        let mark = rig.directory().join(INCARNATION);
        let old = fs::read(&mark).expect("a mark");
        rig.join().expect("joined");
        fs::write(&mark, old).expect("restored");
        assert!(matches!(rig.join(), Err(JoinError::Older(..))));
        let text = fs::read_to_string(rig.memory()).expect("a memory");
        fs::write(rig.memory(), text.lines().next().expect("a line")).expect("one line");
        rig.join().expect("joined");
        assert_eq!(rig.known().joins, 2);
    }

    #[test]
    fn a_crash_between_the_marks_and_an_older_record_refuse_no_node() {
        let rig = Rig::new();
        rig.join().expect("joined");
        let (directory, memory) = (rig.directory(), rig.memory());
        let old = fs::read(&memory).expect("a memory");
        let mark = rig.known();
        assert_eq!(join(&directory, mark).expect("counted, and then the crash").joins, 2);
        rig.join().expect("joined");
        assert_eq!(rig.known().joins, 3);
        fs::write(&memory, old).expect("restored");
        rig.join().expect("joined");
        assert_eq!(rig.known().joins, 4);
        // As earlier versions recorded it.
        fs::write(&memory, "").expect("written");
        rig.join().expect("joined");
        assert_eq!(rig.known().joins, 5);
    }

    #[test]
    fn of_a_directory_that_was_given_up_no_other_state_is_taken_for_it() {
        let rig = Rig::new();
        rig.join().expect("joined");
        let mark = rig.directory().join(INCARNATION);
        rig.join().expect("joined");
        let before = fs::read(&mark).expect("a mark");
        give_up(&rig.memory()).expect("given up");
        rig.join().expect("joined");
        assert_eq!(rig.known().joins, 1);
        fs::write(&mark, before).expect("back");
        assert!(matches!(rig.join(), Err(JoinError::Other(..))));
    }
}
