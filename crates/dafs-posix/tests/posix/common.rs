//! Local directories as stores for tests.

use dafs_posix::{PosixOptions, PosixStore};
use dafs_store::Cred;
use dafs_testkit::stores::{World, is_root, me, secret, skipped};
use std::sync::Arc;
use tempfile::TempDir;

/// Opens a store as a server does, with as many descriptors as it can get.
pub(crate) fn open_posix(dir: &TempDir) -> PosixStore {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit })
        .unwrap();
    PosixStore::open(dir.path(), PosixOptions::new(secret())).unwrap()
}

/// A store in a temporary directory, with the current user as its caller.
pub(crate) fn world() -> Option<World> {
    let dir = tempfile::tempdir().unwrap();
    Some(World { store: Arc::new(open_posix(&dir)), cred: me(), dir: Some(dir) })
}

/// A temporary directory that belongs to an ordinary caller of a privileged server.
pub(crate) fn world_of_other_user() -> Option<World> {
    if !is_root() {
        skipped("acting as another user needs root");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(dir.path(), Some(1000), Some(100)).unwrap();
    let cred = Cred::new(1000, 100);
    Some(World { store: Arc::new(open_posix(&dir)), cred, dir: Some(dir) })
}
