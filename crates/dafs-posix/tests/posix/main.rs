//! The store of a local directory.
//!
//! Most tests run again without privileges, and as root without the capability to open objects by
//! handle.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod advice;
mod behaviour;
mod change;
mod clone;
mod common;
mod escape;
mod handles;
mod listing;
mod model_prop;
mod permissions;
mod read_only;
mod watch;

use dafs_testkit::stores::{run_again_as_root_in_a_container, run_again_without_privileges};

#[test]
fn everything_again_without_privileges() {
    run_again_without_privileges(&[
        "behaviour::",
        "change::",
        "escape::",
        "handles::",
        "model_prop::",
        "watch::",
    ]);
}

#[test]
fn everything_again_as_root_in_a_container() {
    run_again_as_root_in_a_container(&["behaviour::", "change::", "handles::", "watch::"]);
}
