//! The suite of behaviour, on stripes and on copies: as the current user, as another user of a
//! privileged server, and again without privileges.

use crate::common::striped::{world, world_of_other_user};
use dafs_testkit::store_suite;
use dafs_testkit::stores::{run_again_as_root_in_a_container, run_again_without_privileges};

store_suite! {
    striped: world(1),
    striped_other_user: world_of_other_user(1),
    copied: world(2),
    copied_other_user: world_of_other_user(2),
}

#[test]
fn everything_again_without_privileges() {
    run_again_without_privileges(&["behaviour::"]);
}

#[test]
fn everything_again_as_root_in_a_container() {
    run_again_as_root_in_a_container(&["behaviour::"]);
}
