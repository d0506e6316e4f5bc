//! File descriptors above the range that a program uses. It has a process of its own, because the
//! setting holds for the whole process.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use dafs_dat::descriptors::{is_kept, keep_from, kept, kept_between, release, release_all};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

#[test]
fn descriptors_are_moved_and_noted_once_asked_for() {
    let fd = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let first = kept(fd()).unwrap();
    assert!(!is_kept(first.as_raw_fd()));
    keep_from(700);
    let moved = kept(fd()).unwrap();
    assert!(moved.as_raw_fd() >= 700 && is_kept(moved.as_raw_fd()));
    assert_eq!(kept_between(0, RawFd::MAX), [moved.as_raw_fd()]);
    // Above every limit: the descriptor keeps its number, and is recorded there.
    keep_from(RawFd::MAX);
    let stayed = kept(fd()).unwrap();
    keep_from(0);
    assert!(stayed.as_raw_fd() < 700 && is_kept(stayed.as_raw_fd()));
    release(moved.as_raw_fd());
    assert!(!is_kept(moved.as_raw_fd()));
    release_all();
    assert_eq!(kept_between(0, RawFd::MAX), []);
}
