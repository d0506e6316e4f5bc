//! Clears setuid and setgid of a file when a user changes it who may not keep them.
//!
//! A mount that acts as each program leaves it to the server: there, the kernel clears them when
//! the user of the program changes the file. Otherwise the mount changes all files as one user.
//!
//! The kernel leaves this to the mount (FUSE_HANDLE_KILLPRIV_V2). Otherwise it would ask for
//! `security.capability` before each write, which costs as much as the write itself.
//!
//! Invariants
//! * The bits are cleared before the change is carried out that requires it.
//! * An empty change is a `chown` with neither owner nor group, or the kernel's only notice before
//!   a write. It clears bits for the owner and root; for others only while the file is open for
//!   writing.
//! * A file found without the bits is assumed to have none for as long as the kernel caches
//!   attributes, and no longer.

use crate::callers::groups_in;
use crate::kernel::{Caller, Change, Errno, NodeId, Operation, Request};
use crate::limits::PLAIN_FILES_MAX;
use crate::tree::{Outcome, Tree};
use dafs_client::{Attributes, SetAttributes};
use dafs_mem::Mutex;
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// The thread that changes a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Changer {
    caller: Caller,
    thread: u32,
}

impl Changer {
    pub(crate) fn of(request: &Request<'_>) -> Self {
        Self { caller: request.caller, thread: request.thread }
    }

    /// The mode that a file is left with.
    pub(crate) fn leaves(self, file: &Attributes) -> u32 {
        without_rights(file.mode, || file.group.id().is_some_and(|group| self.is_in(group)))
    }

    /// True when it is in a group. The kernel passes the first one; a group list that cannot be
    /// read counts as no.
    fn is_in(self, group: u32) -> bool {
        let status = || std::fs::read_to_string(format!("/proc/{}/status", self.thread));
        let is_among = |status: String| groups_in(&status).any(|other| other == group);
        self.caller.gid == group || status().is_ok_and(is_among)
    }
}

/// A mode without setuid and setgid. Without execute permission of the group, setgid has no effect,
/// and members of the group keep it (`setattr_should_drop_sgid` of Linux).
fn without_rights(mode: u32, is_member: impl FnOnce() -> bool) -> u32 {
    let left = mode & !(libc::S_ISUID | libc::S_ISGID);
    let keeps_group = mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP == 0 && is_member();
    if keeps_group { left | libc::S_ISGID } else { left }
}

/// Files that were found without the bits, with the time.
#[derive(Debug, Default)]
pub(crate) struct PlainFiles(Mutex<FxHashMap<NodeId, Instant>>);

impl PlainFiles {
    /// Called before a request is carried out. True when it has changed the file's mode.
    ///
    /// # Errors
    /// The bits could not be cleared; the request must not be carried out.
    pub(crate) fn before(
        &self,
        request: &Request<'_>,
        tree: &Tree,
        cache_timeout: Duration,
        is_written: impl FnOnce() -> bool,
    ) -> Outcome<bool> {
        match request.operation {
            Operation::Write { kills_suid: true, .. } => self.take(request, tree, cache_timeout),
            // The program that sets them may not be the one that writes next.
            Operation::SetAttributes(Change { mode: Some(_), .. }) => {
                self.forget(request.node);
                Ok(false)
            }
            // A change of the content clears the bits, without a check of permission.
            Operation::SetAttributes(change) if change.kills_suid => {
                let gives = change.uid.is_some() || change.gid.is_some();
                let by = if gives { By::Giver } else { By::Writer };
                Ok(take_now(request, tree, by, || true)?.has_changed)
            }
            Operation::SetAttributes(change) if changes_nothing(change) => {
                Ok(take_now(request, tree, By::Giver, is_written)?.has_changed)
            }
            _ => Ok(false),
        }
    }

    fn take(&self, request: &Request<'_>, tree: &Tree, cache_timeout: Duration) -> Outcome<bool> {
        let node = request.node;
        let now = Instant::now();
        {
            let mut plain = self.0.lock();
            let is_valid = |found: &Instant| now.duration_since(*found) < cache_timeout;
            if plain.get(&node).is_some_and(is_valid) {
                return Ok(false);
            }
            if plain.len() >= PLAIN_FILES_MAX {
                plain.clear();
            }
            // Inserted before the server is asked, so that a concurrent change of the mode
            // prevails.
            plain.insert(node, now);
        }
        let taken =
            take_now(request, tree, By::Writer, || true).inspect_err(|_| self.forget(node))?;
        if taken.leaves_some {
            // This user may keep them, and others may not.
            self.forget(node);
        }
        Ok(taken.has_changed)
    }

    fn forget(&self, node: NodeId) {
        self.0.lock().remove(&node);
    }
}

/// The kernel sends this, too, when clearing the bits is all that is left of a change.
pub(crate) fn changes_nothing(change: Change) -> bool {
    Change { handle: None, ..change } == Change::default()
}

/// The result of clearing the bits of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Taken {
    has_changed: bool,
    leaves_some: bool,
}

/// The operation for which the bits are cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// A change of the content. The kernel sends none for a user who may keep the bits.
    Writer,
    /// A change of the owner. Root may do what members of all groups may.
    Giver,
}

/// Clears the bits of a file, if the caller is the owner or root, or if `may` allows it for others.
fn take_now(
    request: &Request<'_>,
    tree: &Tree,
    by: By,
    may: impl FnOnce() -> bool,
) -> Outcome<Taken> {
    let found = tree.attributes(request.node)?;
    // On a directory the bits give no privileges.
    if found.is_directory() || found.mode & (libc::S_ISUID | libc::S_ISGID) == 0 {
        return Ok(Taken { has_changed: false, leaves_some: false });
    }
    let uid = request.caller.uid;
    let left = match by == By::Giver && uid == 0 {
        true => without_rights(found.mode, || true),
        false => Changer::of(request).leaves(&found),
    };
    let has_changed = left != found.mode;
    if has_changed {
        if uid != 0 && found.owner.id() != Some(uid) && !may() {
            return Err(Errno::EPERM);
        }
        let change = SetAttributes { mode: Some(left), ..SetAttributes::default() };
        tree.set_attributes(request.node, None, &change)?;
    }
    Ok(Taken { has_changed, leaves_some: left & libc::S_ISGID != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bit_of_a_group_that_may_not_execute_is_kept_by_its_members() {
        for (mode, of_members, of_others) in [
            (0o6777, 0o777, 0o777),
            (0o6767, 0o2767, 0o767),
            (0o2644, 0o2644, 0o644),
            (0o1644, 0o1644, 0o1644),
        ] {
            assert_eq!(without_rights(mode, || true), of_members);
            assert_eq!(without_rights(mode, || false), of_others);
        }
    }
}
