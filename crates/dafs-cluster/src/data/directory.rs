//! The identity of a data server's directory: the marker of the node, and its mark.
//!
//! Invariants
//! * A directory other than the one that the metadata server knows is neither used nor changed.

use crate::hello::{HelloError, Wanted};
use crate::mark::Mark;
use crate::memory::{self, MarkError};
use dafs_store::node::{DirectoryError, DirectoryNode};
use dafs_wire::cluster::{Membership, Refusal};
use std::io;
use std::path::Path;

/// The store and node that the directory belongs to, if any.
pub(super) fn found(path: &Path) -> Result<Option<([u8; 16], u32)>, DirectoryError> {
    DirectoryNode::marked(path)
}

/// Makes an empty directory into that of a node that was never used.
pub(super) fn adopt(path: &Path, wanted: &Wanted) -> Result<(), Refusal> {
    if wanted.membership != Membership::New {
        return Err(Refusal::Empty);
    }
    DirectoryNode::make(path, &wanted.store, wanted.number).map_err(|error| {
        tracing::error!(%error, "the directory cannot become a node's");
        Refusal::Failed
    })
}

/// Returns the mark of the directory, if the metadata server knows the directory.
pub(super) fn marked(path: &Path, membership: Membership) -> Result<Mark, Refusal> {
    memory::marked(path, membership).map_err(|error| match error {
        MarkError::Hello(HelloError::Older) => Refusal::Older,
        MarkError::Hello(_) => Refusal::OtherDirectory,
        MarkError::Io(error) => failed(path, &error),
    })
}

/// Increments the count of joins in the directory.
pub(super) fn join(path: &Path, mark: Mark) -> Result<Mark, Refusal> {
    memory::join(path, mark).map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &io::Error) -> Refusal {
    tracing::error!(%error, directory = %path.display(), "the directory cannot be used");
    Refusal::Failed
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_wire::cluster::VERSION;
    use std::fs;

    fn wanted(membership: Membership) -> Wanted {
        Wanted { version: VERSION, store: [1; 16], number: 2, membership }
    }

    #[test]
    fn only_a_new_node_gets_an_empty_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        let known = Membership::Known { incarnation: [3; 16], joins: 1 };
        for membership in [Membership::Marked, known] {
            assert_eq!(adopt(dir.path(), &wanted(membership)), Err(Refusal::Empty));
        }
        assert_eq!(fs::read_dir(dir.path()).expect("the directory").count(), 0);
        adopt(dir.path(), &wanted(Membership::New)).expect("a node");
        assert_eq!(found(dir.path()).expect("a marker"), Some(([1; 16], 2)));
    }

    #[test]
    fn a_directory_is_known_by_its_mark() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path();
        adopt(path, &wanted(Membership::New)).expect("a node");
        let known =
            |mark: Mark| Membership::Known { incarnation: mark.incarnation, joins: mark.joins };
        let other = Mark { incarnation: [3; 16], joins: 0 };
        assert_eq!(marked(path, known(other)), Err(Refusal::OtherDirectory));
        let made = marked(path, Membership::New).expect("made");
        let joined = join(path, made).expect("joined");
        assert_eq!(joined, made.joined());
        for membership in [Membership::Marked, known(made), known(joined)] {
            assert_eq!(marked(path, membership), Ok(joined));
        }
        assert_eq!(marked(path, known(joined.joined())), Err(Refusal::Older));
        assert_eq!(marked(path, known(other)), Err(Refusal::OtherDirectory));
        // A node whose directory was given up gets a new mark.
        let anew = marked(path, Membership::New).expect("made");
        assert_ne!(anew.incarnation, joined.incarnation);
    }
}
