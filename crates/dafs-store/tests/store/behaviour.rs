//! The suite of behaviour, in memory.

use dafs_store::{Cred, MemoryOptions, MemoryStore};
use dafs_testkit::store_suite;
use dafs_testkit::stores::World;
use std::sync::Arc;

fn in_memory() -> Option<World> {
    let cred = Cred::new(1000, 100);
    let options = MemoryOptions { root_owner: (1000, 100), ..MemoryOptions::default() };
    Some(World { store: Arc::new(MemoryStore::new(options)), cred, dir: None })
}

store_suite! { memory: in_memory() }
