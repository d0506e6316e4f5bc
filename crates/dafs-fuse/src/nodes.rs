//! The nodes that the kernel knows: a number for each, and its file handle.
//!
//! Invariants
//! * A node has one handle for as long as it is known, and a handle has one node: the kernel never
//!   reaches another object by a number that it was given.
//! * The table holds a node exactly while the kernel owes a `forget` for it, and the root always.
//!   So its size is bounded by the kernel's cache.
//! * The number of a node is the server's file number, which users see, unless another node has it;
//!   then it is a number above all of these. Below other exports than that of the root it is a hash
//!   of export and file number, so that equal numbers there do not look like hard links.

use crate::kernel::NodeId;
use dafs_client::{Attributes, FileHandle};
use dafs_mem::Mutex;
use rustc_hash::FxHashMap;
use std::sync::MutexGuard;

/// The number of the root, as the kernel knows it.
pub(crate) const ROOT: NodeId = 1;

/// The first number that is made here, because the server's is in use.
const OWN_NUMBERS: u64 = 1 << 63;

/// The first number of objects in other exports than that of the root.
const OTHER_EXPORTS: u64 = 1 << 62;

/// A hash with few collisions, the same in every version (FNV-1a).
fn hash(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().copied().flatten();
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Distinguishes objects that have the same number one after the other. The root is always the
/// same, and the kernel has given it 0 before its first request.
pub(crate) fn generation(node: NodeId, handle: &FileHandle) -> u64 {
    if node == ROOT { 0 } else { hash(&[&handle.fs, &handle.file]) }
}

#[derive(Debug)]
struct Node {
    handle: FileHandle,
    /// Lookups that the kernel has not forgotten.
    lookups: u64,
    /// The attributes of a directory before it was removed, for processes that are still in it.
    removed: Option<Box<Attributes>>,
}

#[derive(Debug, Default)]
struct Tables {
    nodes: FxHashMap<NodeId, Node>,
    by_handle: FxHashMap<FileHandle, NodeId>,
    own_numbers: u64,
}

/// The table of nodes.
#[derive(Debug)]
pub(crate) struct Nodes {
    root: FileHandle,
    tables: Mutex<Tables>,
}

impl Nodes {
    pub(crate) fn new(root: FileHandle) -> Self {
        Self { root, tables: Mutex::default() }
    }

    /// The mounted root.
    pub(crate) fn root(&self) -> FileHandle {
        self.root
    }

    /// The handle of a number; `None` for one that the kernel was not given.
    pub(crate) fn handle(&self, node: NodeId) -> Option<FileHandle> {
        match node {
            ROOT => Some(self.root),
            _ => self.lock().nodes.get(&node).map(|node| node.handle),
        }
    }

    /// The number of an object that the kernel is told of; the kernel owes a `forget` from now on.
    pub(crate) fn enter(&self, attributes: &Attributes) -> NodeId {
        if attributes.handle == self.root {
            return ROOT;
        }
        let mut tables = self.lock();
        if let Some(&id) = tables.by_handle.get(&attributes.handle) {
            if let Some(node) = tables.nodes.get_mut(&id) {
                node.lookups += 1;
            }
            return id;
        }
        let mut id = self.wish(attributes);
        while id <= ROOT || tables.nodes.contains_key(&id) {
            tables.own_numbers += 1;
            id = OWN_NUMBERS + tables.own_numbers;
        }
        tables.nodes.insert(id, Node { handle: attributes.handle, lookups: 1, removed: None });
        tables.by_handle.insert(attributes.handle, id);
        debug_assert_eq!(tables.nodes.len(), tables.by_handle.len());
        id
    }

    /// The number that an object has, or would get.
    pub(crate) fn number(&self, attributes: &Attributes) -> NodeId {
        if attributes.handle == self.root {
            return ROOT;
        }
        let known = self.lock().by_handle.get(&attributes.handle).copied();
        known.unwrap_or_else(|| self.wish(attributes).max(ROOT + 1))
    }

    /// The number that an object gets if it is free.
    fn wish(&self, attributes: &Attributes) -> NodeId {
        let Attributes { file_id, handle, .. } = attributes;
        match handle.fs == self.root.fs {
            true => *file_id,
            false => OTHER_EXPORTS | (hash(&[&handle.fs, &file_id.to_ne_bytes()]) % OTHER_EXPORTS),
        }
    }

    /// The number of an object, if the kernel knows it.
    pub(crate) fn known(&self, handle: &FileHandle) -> Option<NodeId> {
        self.lock().by_handle.get(handle).copied()
    }

    /// Records that a directory with these attributes was removed.
    pub(crate) fn note_removed(&self, attributes: Attributes) {
        let mut tables = self.lock();
        let Some(id) = tables.by_handle.get(&attributes.handle).copied() else { return };
        if let Some(node) = tables.nodes.get_mut(&id) {
            node.removed = Some(Box::new(Attributes { links: 0, ..attributes }));
        }
    }

    /// The attributes of a directory that was removed.
    pub(crate) fn removed(&self, node: NodeId) -> Option<Attributes> {
        self.lock().nodes.get(&node)?.removed.as_deref().cloned()
    }

    /// The kernel forgets some of its lookups; returns the handle if it was the last one.
    pub(crate) fn forget(&self, node: NodeId, lookups: u64) -> Option<FileHandle> {
        let mut tables = self.lock();
        let known = tables.nodes.get_mut(&node)?;
        debug_assert!(known.lookups >= lookups, "more is forgotten than was looked up");
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups > 0 {
            return None;
        }
        let handle = known.handle;
        tables.nodes.remove(&node);
        tables.by_handle.remove(&handle);
        Some(handle)
    }

    /// All nodes that the kernel knows beside the root: number, handle, and lookups not forgotten.
    pub(crate) fn all(&self) -> Vec<(NodeId, FileHandle, u64)> {
        let tables = self.lock();
        tables.nodes.iter().map(|(id, node)| (*id, node.handle, node.lookups)).collect()
    }

    /// Takes over a node that another process had given the kernel. True when it fits into the
    /// table.
    pub(crate) fn take_over(&self, node: NodeId, handle: FileHandle, lookups: u64) -> bool {
        let mut tables = self.lock();
        let is_new = node != ROOT
            && lookups > 0
            && handle != self.root
            && !tables.nodes.contains_key(&node)
            && !tables.by_handle.contains_key(&handle);
        if is_new {
            tables.nodes.insert(node, Node { handle, lookups, removed: None });
            tables.by_handle.insert(handle, node);
            tables.own_numbers = tables.own_numbers.max(node.saturating_sub(OWN_NUMBERS));
        }
        is_new
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        // No code between two changes of a table can panic.
        self.tables.lock()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use dafs_client::{ObjectType, Owner};

    pub(crate) fn object(file_id: u64, handle: u8) -> Attributes {
        Attributes {
            kind: ObjectType::Regular,
            mode: 0,
            links: 1,
            owner: Owner::Unknown,
            group: Owner::Unknown,
            size: 0,
            space_used: 0,
            file_id,
            change: 0,
            raw_device: (0, 0),
            accessed: None,
            modified: None,
            changed: None,
            created: None,
            has_named_attributes: false,
            handle: FileHandle { fs: [9; 16], file: [handle; 48] },
        }
    }

    fn root() -> Nodes {
        Nodes::new(object(2, 200).handle)
    }

    #[test]
    fn a_node_lives_until_all_lookups_are_forgotten() {
        let nodes = root();
        let file = object(7, 1);
        assert_eq!((nodes.enter(&file), nodes.enter(&file)), (7, 7));
        nodes.forget(7, 1);
        assert_eq!(nodes.handle(7), Some(file.handle));
        nodes.forget(7, 1);
        assert_eq!(nodes.handle(7), None);
        let tables = nodes.lock();
        assert!(tables.nodes.is_empty() && tables.by_handle.is_empty());
    }

    #[test]
    fn a_file_number_that_is_used_again_does_not_lead_to_the_old_file() {
        let nodes = root();
        let (old, new) = (object(7, 1), object(7, 2));
        assert_eq!(nodes.enter(&old), 7);
        let id = nodes.enter(&new);
        assert!(id > OWN_NUMBERS);
        assert_eq!(nodes.handle(7), Some(old.handle));
        assert_eq!((nodes.handle(id), nodes.number(&new)), (Some(new.handle), id));
        nodes.forget(7, 1);
        assert_eq!(nodes.enter(&new), id, "a node keeps its number");
    }

    #[test]
    fn equal_numbers_of_two_exports_stay_apart() {
        let nodes = root();
        let here = object(7, 1);
        let mut there = object(7, 2);
        there.handle.fs = [1; 16];
        let number = nodes.number(&there);
        assert!(number >= OTHER_EXPORTS);
        assert_eq!((nodes.enter(&there), nodes.enter(&here)), (number, 7));
        nodes.forget(7, 1);
        assert_eq!(nodes.enter(&there), number);
        assert_ne!(generation(7, &here.handle), generation(7, &object(7, 2).handle));
        assert_eq!(generation(ROOT, &nodes.root()), 0);
    }

    #[test]
    fn a_new_process_takes_the_nodes_over() {
        let (nodes, next) = (root(), root());
        nodes.enter(&object(7, 1));
        nodes.enter(&object(7, 2));
        nodes.enter(&object(7, 2));
        for (node, handle, lookups) in nodes.all() {
            assert!(next.take_over(node, handle, lookups));
            assert!(!next.take_over(node, handle, lookups), "twice");
        }
        let by_number = |nodes: &Nodes| {
            let mut all = nodes.all();
            all.sort_unstable_by_key(|(node, ..)| *node);
            all
        };
        assert_eq!(by_number(&next), by_number(&nodes));
        assert_ne!(next.enter(&object(7, 3)), nodes.enter(&object(7, 2)));
        assert!(!next.take_over(ROOT, object(9, 9).handle, 1));
        assert!(!next.take_over(9, object(9, 200).handle, 1), "the root's handle");
    }

    #[test]
    fn a_removed_directory_is_known_while_somebody_is_in_it() {
        let nodes = root();
        nodes.note_removed(object(7, 1));
        let id = nodes.enter(&object(7, 1));
        assert!(nodes.removed(id).is_none());
        nodes.note_removed(object(7, 1));
        assert_eq!(nodes.removed(id).map(|found| found.links), Some(0));
        nodes.forget(id, 1);
        assert!(nodes.removed(id).is_none());
    }

    #[test]
    fn the_root_is_never_forgotten_and_its_number_is_nobody_elses() {
        let nodes = root();
        let root = object(2, 200);
        assert_eq!(nodes.enter(&root), ROOT);
        nodes.forget(ROOT, 5);
        assert_eq!(nodes.handle(ROOT), Some(root.handle));
        assert!(nodes.enter(&object(ROOT, 3)) > OWN_NUMBERS);
        assert_eq!(nodes.enter(&object(2, 4)), 2);
    }
}
