//! Objects held by a descriptor, and the bounded table of them.
//!
//! Invariants
//! * A node's descriptor and id name the same inode.
//! * The cache holds no descriptor that was opened for data, because the kernel would refuse to
//!   execute the file (ETXTBSY).
//! * Nodes of open files can be found until the last close, even after the cache has dropped them.

use super::cache::ClockCache;
use crate::limits::{NODE_SHARDS, NODES_EVICTED_ON_SHORTAGE, SWEEP_NODES};
use dafs_mem::Mutex;
use dafs_mem::Shrinking as _;
use dafs_store::{FileId, Kind};
use rustc_hash::FxHashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// One object of the file system.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: FileId,
    pub(super) kind: Kind,
    /// Opened with `O_PATH`. A new file lends the descriptor of its open for data instead.
    pub(super) fd: Arc<OwnedFd>,
    /// The time when it was last seen below the root, in milliseconds of the export's clock plus
    /// one; 0 for never.
    pub(super) contained_at_ms: AtomicU64,
    /// The highest change attribute that was reported for it; 0 for none yet.
    pub(super) told_change: AtomicU64,
}

impl Node {
    pub(super) fn new(id: FileId, kind: Kind, fd: Arc<OwnedFd>) -> Self {
        let (contained_at_ms, told_change) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { id, kind, fd, contained_at_ms, told_change }
    }
}

impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Nodes by id.
pub(super) struct NodeTable {
    shards: [Mutex<ClockCache<FileId, Arc<Node>>>; NODE_SHARDS],
    open: Mutex<FxHashMap<FileId, (usize, Arc<Node>)>>,
    /// The shard at which the next sweep goes on.
    sweep_at: AtomicUsize,
}

impl NodeTable {
    pub(super) fn new(nodes_max: usize) -> Self {
        let per_shard = nodes_max.div_ceil(NODE_SHARDS);
        let shards = std::array::from_fn(|_| Mutex::new(ClockCache::new(per_shard)));
        Self { shards, open: Mutex::new(FxHashMap::default()), sweep_at: AtomicUsize::new(0) }
    }

    fn shard(&self, id: &FileId) -> &Mutex<ClockCache<FileId, Arc<Node>>> {
        // The last byte belongs to the MAC, whose values are spread evenly.
        &self.shards[usize::from(id.0[47]) % NODE_SHARDS]
    }

    pub(super) fn get(&self, id: &FileId) -> Option<Arc<Node>> {
        self.shard(id).lock().get(id).cloned()
    }

    pub(super) fn open_node(&self, id: &FileId) -> Option<Arc<Node>> {
        self.open.lock().get(id).map(|(_, node)| node.clone())
    }

    /// Inserts a node. Returns the node that another thread has inserted before, if there is one.
    pub(super) fn keep(&self, node: Node) -> Arc<Node> {
        let mut shard = self.shard(&node.id).lock();
        if let Some(known) = shard.get(&node.id) {
            return known.clone();
        }
        let node = Arc::new(node);
        let evicted = shard.insert(node.id, node.clone());
        drop(shard);
        // Closing may wait for the file system, so it happens without the lock.
        drop(evicted);
        node
    }

    /// Drops a node, so that a removed object's space is freed.
    pub(super) fn forget(&self, id: &FileId) {
        let node = self.shard(id).lock().remove(id);
        drop(node);
    }

    /// Frees descriptors when the process has none left.
    pub(super) fn evict_some(&self) {
        let mut evicted = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            evicted.extend(
                (0..NODES_EVICTED_ON_SHORTAGE.div_ceil(NODE_SHARDS)).map_while(|_| shard.evict()),
            );
        }
    }

    /// Returns the next nodes to sweep: those of one or more whole shards.
    pub(super) fn next_to_sweep(&self) -> Vec<Arc<Node>> {
        let mut nodes = Vec::new();
        for _ in 0..NODE_SHARDS {
            let at = self.sweep_at.fetch_add(1, Ordering::Relaxed);
            nodes.extend(self.shards[at % NODE_SHARDS].lock().values().cloned());
            if nodes.len() >= SWEEP_NODES {
                break;
            }
        }
        nodes
    }

    pub(super) fn opened(&self, node: &Arc<Node>) {
        self.open.lock().entry(node.id).or_insert_with(|| (0, node.clone())).0 += 1;
    }

    /// True if the file has another open besides the caller's.
    pub(super) fn is_open_elsewhere(&self, node: &Node) -> bool {
        self.open.lock().get(&node.id).is_some_and(|&(opens, _)| opens > 1)
    }

    pub(super) fn closed(&self, node: &Arc<Node>) {
        let mut open = self.open.lock();
        if let Some(entry) = open.get_mut(&node.id) {
            entry.0 -= 1;
            if entry.0 == 0 {
                open.remove_and_shrink(&node.id);
            }
        }
    }
}
