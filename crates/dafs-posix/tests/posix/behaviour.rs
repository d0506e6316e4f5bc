//! The suite of behaviour, on a local directory: as the current user, and as another user of a
//! privileged server.

use crate::common::{world, world_of_other_user};
use dafs_testkit::store_suite;

store_suite! {
    own_user: world(),
    other_user: world_of_other_user(),
}
