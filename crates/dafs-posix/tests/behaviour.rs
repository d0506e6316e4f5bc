//! The suite of behaviour, on a local directory: as the current user, as another user of a
//! privileged server, and again without privileges.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{world, world_of_other_user};
use dafs_testkit::store_suite;
use dafs_testkit::stores::{run_again_as_root_in_a_container, run_again_without_privileges};

store_suite! {
    own_user: world(),
    other_user: world_of_other_user(),
}

#[test]
fn everything_again_without_privileges() {
    run_again_without_privileges();
}

#[test]
fn everything_again_as_root_in_a_container() {
    run_again_as_root_in_a_container();
}
