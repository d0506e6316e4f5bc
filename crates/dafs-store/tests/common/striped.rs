//! Striped stores to test with: metadata, three nodes and a list of removals below one directory.

use dafs_store::striped::{DirectoryNode, Node};
use dafs_store::*;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a stripe.
pub(crate) const UNIT: u32 = 4096;

const STORE: [u8; 16] = [6; 16];

/// How often a store said that unstable data may be lost.
pub(crate) static LOST: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn node(base: &Path, number: u32) -> Arc<dyn Node> {
    let path = base.join(format!("node{number}"));
    std::fs::create_dir_all(&path).unwrap();
    DirectoryNode::make(&path, &STORE, number).unwrap();
    let address = format!("127.0.0.1:{}", 7000 + number).parse().unwrap();
    Arc::new(DirectoryNode::open(&path, &STORE, number, vec![address]).unwrap())
}

/// The metadata in `meta`, which has to be there.
pub(crate) fn open(base: &Path) -> StripedStore {
    open_with(base, (1..=3).map(|number| node(base, number)).collect())
}

pub(crate) fn open_with(base: &Path, nodes: Vec<Arc<dyn Node>>) -> StripedStore {
    open_copies(base, nodes, 1)
}

pub(crate) fn open_copies(base: &Path, nodes: Vec<Arc<dyn Node>>, copies: usize) -> StripedStore {
    let options = PosixOptions::new(super::secret());
    let meta = PosixStore::open(base.join("meta"), options).unwrap();
    let options = StripedOptions {
        secret: *b"a striped secret",
        component_secret: *b"a striped secret",
        component_fs: FsId([8; 16]),
        unit_bytes: NonZeroU32::new(UNIT).unwrap(),
        copies,
        removed: base.join("removed"),
        mends: base.join("mends"),
        lost: Box::new(|| {
            LOST.fetch_add(1, Ordering::SeqCst);
        }),
    };
    StripedStore::open(meta, nodes, options).unwrap()
}
