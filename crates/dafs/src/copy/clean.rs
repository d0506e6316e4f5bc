//! Unfinished files that killed copies have left: `dafs clean`.
//!
//! Invariants
//! * Only regular files whose names have the form of unfinished files are removed.
//! * The file of a live copy is not: its process holds its lock, or its client has it open for writing.
//!   Where neither can be seen, a file that was changed within a day counts as one of a live copy.

use super::local;
use super::temporary::{is_taken, is_temporary_name};
use super::view::{Opened, Tree, Trouble, Visited, walk};
use crate::failure::Failure;
use crate::limits::PART_AGE;
use crate::output::say;
use crate::remote::{Attributes, Handle, ObjectType, OpenOptions, Remote, Status};
use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// The fate of an unfinished file.
enum Found {
    Removed,
    /// A copy is writing it, or may be.
    Alive,
    /// It is gone meanwhile.
    Gone,
}

/// Removes the unfinished files below a tree, and prints each. On a dry run none is removed.
pub(crate) fn run(tree: &Tree, dry_run: bool) -> Result<(), Failure> {
    walk(tree, |visited| {
        let Some(attributes) = &visited.entry.attributes else { return Ok(()) };
        if attributes.kind != ObjectType::Regular || !is_temporary_name(&visited.entry.name) {
            return Ok(());
        }
        let place = tree.top.join(visited.path);
        match remove(tree, visited, attributes, dry_run) {
            Ok(Found::Removed) if dry_run => say!("would be removed: {place}"),
            Ok(Found::Removed) => say!("removed: {place}"),
            Ok(Found::Alive) => say!("left, a copy may be writing it: {place}"),
            Ok(Found::Gone) => Ok(()),
            Err(error) => Err(tree.failure(visited.path, &error)),
        }
    })
}

fn remove(
    tree: &Tree,
    visited: &Visited<'_>,
    attributes: &Attributes,
    dry_run: bool,
) -> Result<Found, Trouble> {
    let name = &visited.entry.name;
    match (visited.directory, &tree.remote) {
        (Opened::Local(parent), _) => {
            remove_here(parent, OsString::from_vec(name.clone()), attributes, dry_run)
        }
        (Opened::Remote(directory), Some(client)) => {
            remove_there(client, (directory, name), attributes, dry_run)
        }
        (Opened::Remote(_), None) => Ok(Found::Gone),
    }
}

fn remove_here(
    parent: &OwnedFd,
    name: OsString,
    attributes: &Attributes,
    dry_run: bool,
) -> Result<Found, Trouble> {
    let file = match local::open_for_reading(parent, &name) {
        Err(Errno::NOENT) => return Ok(Found::Gone),
        other => other?,
    };
    // The lock is kept until the name is gone, so no copy goes on with the file meanwhile.
    if is_taken(&file) || (local::is_shared_by_hosts(&file) && !is_old(attributes)) {
        return Ok(Found::Alive);
    }
    if !dry_run {
        match unlinkat(parent, name.as_os_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Found::Removed)
}

fn remove_there(
    client: &Remote,
    (directory, name): (&Handle, &[u8]),
    attributes: &Attributes,
    dry_run: bool,
) -> Result<Found, Trouble> {
    // Held until the name is gone, so no copy opens the file for writing meanwhile.
    let held = match client {
        Remote::Dafs(_) => {
            match client.open_at(directory, name, &OpenOptions::read().deny_write()) {
                Ok(file) => Some(file),
                Err(error) if error.status() == Some(Status::NoEnt) => return Ok(Found::Gone),
                Err(error)
                    if matches!(error.status(), Some(Status::Denied | Status::ShareDenied)) =>
                {
                    return Ok(Found::Alive);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Remote::Nfs(_) if !is_old(attributes) => return Ok(Found::Alive),
        Remote::Nfs(_) => None,
    };
    if !dry_run {
        match client.remove(directory, name) {
            Err(error) if error.status() == Some(Status::NoEnt) => {}
            other => other?,
        }
    }
    drop(held);
    Ok(Found::Removed)
}

/// True if the file was last changed long ago by the clock of this host.
fn is_old(attributes: &Attributes) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let age = |seconds: i64| now.saturating_sub(seconds);
    let least = i64::try_from(PART_AGE.as_secs()).unwrap_or(i64::MAX);
    attributes.modified.is_some_and(|modified| age(modified.seconds) >= least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FlockOperation, flock};

    #[test]
    fn a_live_copy_keeps_its_file_and_a_dead_one_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let parent: OwnedFd = std::fs::File::open(dir.path()).unwrap().into();
        let path = dir.path().join(".dafs-abcdef.part");
        let file = std::fs::File::create(&path).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        let attributes = Attributes::of_stat(&rustix::fs::stat(&path).unwrap());
        let remove = |dry_run| {
            remove_here(&parent, ".dafs-abcdef.part".into(), &attributes, dry_run).unwrap()
        };
        assert!(matches!(remove(false), Found::Alive));
        drop(file);
        assert!(matches!(remove(true), Found::Removed));
        assert!(path.exists(), "a dry run removes nothing");
        assert!(matches!(remove(false), Found::Removed));
        assert!(matches!(remove(false), Found::Gone));
        assert!(!is_old(&attributes));
    }
}
