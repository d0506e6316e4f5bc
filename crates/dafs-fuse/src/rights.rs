//! Takes away the bits that lend the rights of a file's owner and group when somebody changes the file
//! who may not keep them.
//!
//! The kernel leaves this to us (FUSE_HANDLE_KILLPRIV_V2): else it asks for `security.capability` before
//! each write, which costs as much as the write itself.
//!
//! Invariants
//! * The bits are gone before the change that takes them is carried out.
//! * That a file which is written has none is believed for as long as the kernel believes attributes, and no longer.

use crate::kernel::{Change, Errno, NodeId, Operation, Request};
use crate::limits::PLAIN_FILES_MAX;
use crate::tree::{Outcome, Tree};
use dafs_client::SetAttributes;
use rustc_hash::FxHashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A mode without the bits that lend the rights of the owner and of the group.
pub(crate) fn without_rights(mode: u32) -> u32 {
    match mode & libc::S_IXGRP {
        0 => mode & !libc::S_ISUID,
        _ => mode & !(libc::S_ISUID | libc::S_ISGID),
    }
}

/// Files that were found to lend no rights, and when.
#[derive(Debug, Default)]
pub(crate) struct PlainFiles(Mutex<FxHashMap<NodeId, Instant>>);

impl PlainFiles {
    /// To be called before a request is carried out. Tells whether it has changed the file's mode.
    ///
    /// # Errors
    /// The bits could not be taken; the request must not be carried out.
    pub(crate) fn before(
        &self,
        request: &Request<'_>,
        tree: &Tree,
        belief: Duration,
    ) -> Outcome<bool> {
        match request.operation {
            Operation::Write { takes_rights: true, .. } => self.take(request.node, tree, belief),
            // A program that sets them may be another than the one that writes next.
            Operation::SetAttributes(Change { mode: Some(_), .. }) => {
                self.forget(request.node);
                Ok(false)
            }
            // A change of the content takes the bits, whoever may write; one of nothing is the owner's.
            Operation::SetAttributes(change) if change.takes_rights => {
                take_now(request.node, tree, None)
            }
            Operation::SetAttributes(change) if changes_nothing(change) => {
                take_now(request.node, tree, Some(request.caller.uid))
            }
            _ => Ok(false),
        }
    }

    fn take(&self, node: NodeId, tree: &Tree, belief: Duration) -> Outcome<bool> {
        let now = Instant::now();
        {
            let mut plain = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let is_believed = |found: &Instant| now.duration_since(*found) < belief;
            if plain.get(&node).is_some_and(is_believed) {
                return Ok(false);
            }
            if plain.len() >= PLAIN_FILES_MAX {
                plain.clear();
            }
            // Before the server is asked, so that a change of the mode meanwhile has the last word.
            plain.insert(node, now);
        }
        take_now(node, tree, None).inspect_err(|_| self.forget(node))
    }

    fn forget(&self, node: NodeId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&node);
    }
}

/// The kernel asks for this, too, when all that is left of a change is that the bits go.
fn changes_nothing(change: Change) -> bool {
    Change { handle: None, ..change } == Change::default()
}

/// Takes the bits from a file; with `by`, for a user who must own it (as `chown` of Linux has it).
fn take_now(node: NodeId, tree: &Tree, by: Option<u32>) -> Outcome<bool> {
    let found = tree.attributes(node)?;
    let (mode, left) = (found.mode, without_rights(found.mode));
    // Those of a directory are no rights.
    let takes = left != mode && !found.is_directory();
    if takes {
        if by.is_some_and(|uid| uid != 0 && found.owner.id() != Some(uid)) {
            return Err(Errno::EPERM);
        }
        let change = SetAttributes { mode: Some(left), ..SetAttributes::default() };
        tree.set_attributes(node, None, &change)?;
    }
    Ok(takes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_may_not_execute_lends_nothing() {
        assert_eq!(without_rights(0o6777), 0o777);
        assert_eq!(without_rights(0o6767), 0o2767);
        assert_eq!(without_rights(0o1644), 0o1644);
    }
}
