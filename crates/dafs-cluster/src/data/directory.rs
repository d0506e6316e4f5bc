//! Which directory a data server has: the marker of the node, and a random number made with it.
//!
//! Invariants
//! * A directory that is not what the metadata server knows is never used, nor changed.

use crate::hello::Wanted;
use dafs_store::striped::{ComponentId, DirectoryError, DirectoryNode};
use dafs_wire::cluster::{Membership, Refusal};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// The name of the file with the random number.
const INCARNATION: &str = "incarnation";

/// Which node of which store the directory belongs to, if to any.
pub(super) fn found(path: &Path) -> Result<Option<([u8; 16], u32)>, DirectoryError> {
    DirectoryNode::marked(path)
}

/// Makes an empty directory that of a node that was never used.
pub(super) fn adopt(path: &Path, wanted: &Wanted) -> Result<(), Refusal> {
    if wanted.membership != Membership::New {
        return Err(Refusal::Empty);
    }
    DirectoryNode::make(path, &wanted.store, wanted.number).map_err(|error| {
        tracing::error!(%error, "the directory cannot become a node's");
        Refusal::Failed
    })
}

/// The random number of the directory, if it is the one that the metadata server knows.
pub(super) fn incarnation(path: &Path, membership: Membership) -> Result<[u8; 16], Refusal> {
    let failed = |error: io::Error| {
        tracing::error!(%error, directory = %path.display(), "the directory cannot be used");
        Refusal::Failed
    };
    match (read(path).map_err(failed)?, membership) {
        (Some(there), Membership::Known(known)) if there == known => Ok(there),
        (_, Membership::Known(_)) => Err(Refusal::OtherDirectory),
        (Some(there), _) => Ok(there),
        (None, _) => make(path).map_err(failed),
    }
}

fn read(path: &Path) -> io::Result<Option<[u8; 16]>> {
    match fs::read_to_string(path.join(INCARNATION)) {
        Ok(text) => match ComponentId::parse(text.trim_end()) {
            Some(id) => Ok(Some(id.0)),
            None => Err(io::Error::new(ErrorKind::InvalidData, "the file incarnation is damaged")),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn make(path: &Path) -> io::Result<[u8; 16]> {
    let mut incarnation = [0; 16];
    getrandom::fill(&mut incarnation).map_err(io::Error::other)?;
    let unfinished = path.join("incarnation.new");
    let mut file = File::create(&unfinished)?;
    writeln!(file, "{}", ComponentId(incarnation))?;
    file.sync_all()?;
    fs::rename(unfinished, path.join(INCARNATION))?;
    File::open(path)?.sync_all()?;
    Ok(incarnation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_wire::cluster::VERSION;

    fn wanted(membership: Membership) -> Wanted {
        Wanted { version: VERSION, store: [1; 16], number: 2, membership }
    }

    #[test]
    fn only_a_new_node_gets_an_empty_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        for membership in [Membership::Marked, Membership::Known([3; 16])] {
            assert_eq!(adopt(dir.path(), &wanted(membership)), Err(Refusal::Empty));
        }
        assert_eq!(fs::read_dir(dir.path()).expect("the directory").count(), 0);
        adopt(dir.path(), &wanted(Membership::New)).expect("a node");
        assert_eq!(found(dir.path()).expect("a marker"), Some(([1; 16], 2)));
    }

    #[test]
    fn a_directory_is_known_by_its_random_number() {
        let dir = tempfile::tempdir().expect("a directory");
        adopt(dir.path(), &wanted(Membership::New)).expect("a node");
        let other = incarnation(dir.path(), Membership::Known([3; 16]));
        assert_eq!(other, Err(Refusal::OtherDirectory));
        let made = incarnation(dir.path(), Membership::New).expect("made");
        for membership in [Membership::New, Membership::Marked, Membership::Known(made)] {
            assert_eq!(incarnation(dir.path(), membership), Ok(made));
        }
        let other = incarnation(dir.path(), Membership::Known([3; 16]));
        assert_eq!(other, Err(Refusal::OtherDirectory));
    }
}
