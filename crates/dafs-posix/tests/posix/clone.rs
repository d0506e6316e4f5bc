//! The extras again on a file system whose files can share content: XFS in a file, where the system
//! has the tools for it.

use crate::common::open_posix;
use dafs_testkit::stores::*;
use std::process::Command;
use std::sync::Arc;

/// A little more than the least size for mkfs.xfs. Only written blocks take space.
const DISK_BYTES: u64 = 400 << 20;

#[test]
fn files_share_content_on_xfs() {
    if !in_own_mounts("clone::files_share_content_on_xfs") {
        return;
    }
    let outer = tempfile::tempdir().unwrap();
    let (disk, point) = (outer.path().join("disk"), outer.path().join("mounted"));
    std::fs::File::create(&disk).unwrap().set_len(DISK_BYTES).unwrap();
    std::fs::create_dir(&point).unwrap();
    match Command::new("mkfs.xfs").arg("-q").arg(&disk).status() {
        Ok(status) if status.success() => {}
        Ok(status) => return skipped(&format!("mkfs.xfs: {status}")),
        Err(error) => return skipped(&format!("mkfs.xfs: {error}")),
    }
    if !mount(&["-o", "loop", disk.to_str().unwrap(), point.to_str().unwrap()]) {
        return;
    }
    {
        let dir = tempfile::tempdir_in(&point).unwrap();
        let store = Arc::new(open_posix(&dir));
        let w = World { store, cred: me(), dir: Some(dir) };
        assert!(w.store.capabilities().clone);
        extras::files_are_copied_and_cloned(&w);
        w.remove(&w.root(), "source").unwrap();
        extras::holes_and_data_are_found(&w);
        w.remove(&w.root(), "f").unwrap();
        extras::space_is_set_aside_and_given_back(&w);
    }
    let done = Command::new("umount").arg(&point).status().unwrap();
    assert!(done.success());
}
