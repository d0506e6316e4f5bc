//! A store with copies on nodes in memory, and the helpers of its tests.

use super::nodes::SimNode;
use super::striped::{Surroundings, as_nodes, open_copies};
use dafs_mem::VolatileSlice;
use dafs_store::node::{ComponentId, Node};
use dafs_store::*;
use dafs_striped::StripedStore;
use dafs_testkit::stores::{READ_WRITE, me, write};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// A store with two copies of each file on three nodes.
pub(crate) struct World {
    pub(crate) dir: TempDir,
    pub(crate) nodes: Vec<Arc<SimNode>>,
    pub(crate) count: usize,
    pub(crate) store: Option<StripedStore>,
    pub(crate) around: Arc<Surroundings>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_copies(2)
    }

    pub(crate) fn with_copies(count: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("meta")).unwrap();
        let nodes = (1..=3).map(SimNode::new).collect();
        let mut world = Self { dir, nodes, count, store: None, around: Arc::default() };
        world.reopen();
        world
    }

    /// A world with two copies of the file `f`, whose content is written but not stable. Returns the
    /// nodes of both.
    pub(crate) fn with_file(
        content: &[u8],
    ) -> (Self, FileId, Arc<dyn OpenFile>, [Arc<SimNode>; 2]) {
        let world = Self::new();
        let (id, file) = world.create("f");
        write(&*file, 0, content).unwrap();
        let nodes: Vec<_> = world.copies(&id).into_iter().map(|(node, _)| node).collect();
        (world, id, file, nodes.try_into().unwrap_or_else(|_| panic!("two copies")))
    }

    /// The metadata server dies, and a new one starts.
    pub(crate) fn reopen(&mut self) {
        drop(self.store.take());
        let nodes = as_nodes(&self.nodes);
        self.store = Some(open_copies(self.dir.path(), nodes, self.count, &self.around));
    }

    pub(crate) fn store(&self) -> &StripedStore {
        self.store.as_ref().unwrap()
    }

    pub(crate) fn layouts(&self) -> &dyn Layouts {
        self.store().layouts().unwrap()
    }

    pub(crate) fn create(&self, name: &str) -> (FileId, Arc<dyn OpenFile>) {
        let (how, none) = (CreateHow::Guarded, SetAttr::default());
        let root = Store::root(self.store());
        let made = self.store().create(&me(), &root, name.as_bytes(), how, &none, READ_WRITE);
        let made = made.unwrap();
        (made.id, made.file)
    }

    pub(crate) fn file(&self, name: &str) -> Arc<dyn OpenFile> {
        let root = Store::root(self.store());
        let (id, _) = self.store().lookup(&me(), &root, name.as_bytes()).unwrap();
        self.store().open(&me(), &id, READ_WRITE).unwrap()
    }

    /// The nodes with a copy, and whether it is fresh.
    pub(crate) fn copies(&self, id: &FileId) -> Vec<(Arc<SimNode>, bool)> {
        let copies = self.layouts().copies(id).unwrap();
        let node = |copy: CopyState| (self.nodes[copy.node as usize - 1].clone(), copy.fresh);
        copies.into_iter().map(node).collect()
    }

    pub(crate) fn fresh(&self, id: &FileId) -> Vec<bool> {
        self.copies(id).into_iter().map(|(_, fresh)| fresh).collect()
    }

    /// Returns the content of each copy.
    pub(crate) fn contents(&self, id: &FileId) -> Vec<Vec<u8>> {
        let component = self.component(id);
        self.copies(id).iter().map(|(node, _)| node.content(&component)).collect()
    }

    pub(crate) fn component(&self, id: &FileId) -> ComponentId {
        let placement = self.layouts().placement(id, false).unwrap().unwrap();
        let handle = placement.handles().next().unwrap();
        ComponentId(*handle[32..].first_chunk().unwrap())
    }

    pub(crate) fn repair(&self) {
        self.store().repair(Duration::ZERO, &|_| true);
    }

    /// Clients return all layouts for writing.
    pub(crate) fn return_all(&self) {
        self.layouts().take_write_recalls(&mut |_, _| true);
    }

    pub(crate) fn to_repair(&self) -> u64 {
        self.store().to_repair().unwrap().values().sum()
    }
}

pub(crate) fn devices(placement: &Placement) -> Vec<DeviceKey> {
    match &placement.spread {
        Spread::Copies(copies) => copies.iter().map(|copy| copy.device).collect(),
        Spread::Stripes(_) => panic!("the store has copies"),
    }
}

pub(crate) fn put(node: &SimNode, id: &ComponentId, offset: u64, bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    let views = [VolatileSlice::from_mut(&mut bytes)];
    node.write(id, &views, offset, Stability::Data).unwrap();
}
