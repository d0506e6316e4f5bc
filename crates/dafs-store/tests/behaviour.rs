//! The suite of behaviour, in memory, on a local directory and spread over nodes, in stripes and copies:
//! as whoever runs the tests, as another user of a privileged server, and again without privileges.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{posix, striped};
use dafs_store::{Cred, MemoryOptions, MemoryStore};
use dafs_testkit::store_suite;
use dafs_testkit::stores::{World, run_again_as_root_in_a_container, run_again_without_privileges};
use std::sync::Arc;

fn in_memory() -> Option<World> {
    let cred = Cred::new(1000, 100);
    let options = MemoryOptions { root_owner: (1000, 100), ..MemoryOptions::default() };
    Some(World { store: Arc::new(MemoryStore::new(options)), cred, dir: None })
}

store_suite! {
    memory: in_memory(),
    one_user: posix::world(),
    other_user: posix::world_of_other_user(),
    stripes: striped::world(1),
    stripes_other_user: striped::world_of_other_user(1),
    copies: striped::world(2),
    copies_other_user: striped::world_of_other_user(2),
}

#[test]
fn everything_again_without_privileges() {
    run_again_without_privileges();
}

#[test]
fn everything_again_as_root_in_a_container() {
    run_again_as_root_in_a_container();
}
