//! Advice, seen in the kernel's cache.

use crate::common::open_posix;
use dafs_mem::VolatileSlice;
use dafs_posix::{PosixOptions, PosixStore};
use dafs_store::{
    Advised, CacheAdvice, CreateHow, OpenFile, OpenMode, SetAttr, Stability, Store,
    WILL_NEED_BYTES_MAX, Wait,
};
use dafs_testkit::stores::{READ, READ_WRITE, me, secret};
use dafs_testkit::{Cached, PAGE_BYTES, eventually};
use std::sync::Arc;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const MIB_BYTES: usize = 1 << 20;

/// A store in a directory on a disk.
struct OnDisk {
    dir: TempDir,
    store: PosixStore,
}

impl OnDisk {
    /// Makes one; `None` where content never leaves memory, or the kernel does not tell.
    fn new(leaving_bytes_max: u64) -> Option<Self> {
        // Not the usual place for temporary files, which may live in memory.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let options = PosixOptions { leaving_bytes_max, ..PosixOptions::new(secret()) };
        let store = PosixStore::open(dir.path(), options).unwrap();
        Cached::cold(&dir.path().join("probe"), b"probe")?;
        Some(Self { dir, store })
    }

    /// Makes a file that is not in memory.
    fn local(&self, name: &str, bytes: u64) -> Cached {
        let content: Vec<u8> = (0..bytes).map(|at| (at / 7) as u8).collect();
        Cached::cold(&self.dir.path().join(name), &content).unwrap()
    }

    fn open(&self, name: &str, mode: OpenMode) -> Arc<dyn OpenFile> {
        let (id, _) = self.store.lookup(&me(), &self.store.root(), name.as_bytes()).unwrap();
        self.store.open(&me(), &id, mode).unwrap()
    }
}

fn read(file: &dyn OpenFile, offset: u64, len: usize) {
    let mut bytes = vec![0; len];
    let view = VolatileSlice::from_mut(&mut bytes);
    assert_eq!(file.read_at(&[view], offset, Wait::Allowed), Ok(len));
}

fn write(file: &dyn OpenFile, offset: u64, len: usize, stability: Stability) {
    let mut bytes = vec![7; len];
    let view = VolatileSlice::from_mut(&mut bytes);
    assert_eq!(file.write_at(&[view], offset, stability, Wait::Allowed), Ok(len));
}

#[test]
fn needed_data_is_read_ahead_within_the_limit() {
    let Some(disk) = OnDisk::new(MIB) else { return };
    let bytes = WILL_NEED_BYTES_MAX + 8 * MIB;
    let local = disk.local("f", bytes);
    let file = disk.open("f", READ);
    assert_eq!(file.advise(MIB, 2 * MIB, CacheAdvice::WillNeed), Ok(Advised::Followed));
    eventually("the range is in memory", || local.bytes_in(MIB..3 * MIB) == 2 * MIB_BYTES);
    assert!(local.bytes() < 4 * MIB_BYTES, "and little else");
    // Most of the file: a client asks for more than it gets.
    assert_eq!(file.advise(0, 0, CacheAdvice::WillNeed), Ok(Advised::Followed));
    eventually("the beginning is in memory", || {
        local.bytes_in(0..WILL_NEED_BYTES_MAX) as u64 == WILL_NEED_BYTES_MAX
    });
    let behind = local.bytes_in(WILL_NEED_BYTES_MAX + MIB..bytes);
    assert_eq!(behind, 0, "the rest is not read");
    assert_eq!(file.advise(bytes + 5, 7, CacheAdvice::WillNeed), Ok(Advised::Followed));
}

#[test]
fn unneeded_data_leaves_at_once_and_other_data_stays() {
    let Some(disk) = OnDisk::new(MIB) else { return };
    let local = disk.local("f", 4 * MIB);
    let file = disk.open("f", READ);
    read(&*file, 0, 4 * MIB as usize);
    assert_eq!(local.bytes(), 4 * MIB_BYTES);
    for advice in [CacheAdvice::Keep, CacheAdvice::Sequential, CacheAdvice::Normal] {
        assert_eq!(file.advise(0, 0, advice), Ok(Advised::Followed));
        assert_eq!(local.bytes(), 4 * MIB_BYTES, "{advice:?}");
    }
    // In pieces that are smaller than the kernel's pages may be.
    for at in (0..2 * MIB).step_by(64 << 10) {
        assert_eq!(file.advise(at, 64 << 10, CacheAdvice::DontNeed), Ok(Advised::Followed));
    }
    assert_eq!(local.bytes_in(0..2 * MIB), 0);
    assert_eq!(local.bytes(), 2 * MIB_BYTES);
    assert_eq!(file.advise(0, 0, CacheAdvice::DontNeed), Ok(Advised::Followed));
    assert_eq!(local.bytes(), 0);
    read(&*file, 5, 9);
}

#[test]
fn unlikely_data_leaves_first_and_only_beyond_the_bound() {
    let Some(disk) = OnDisk::new(3 * MIB) else { return };
    let [one, two, three] = ["one", "two", "three"].map(|name| disk.local(name, 2 * MIB));
    let files = ["one", "two", "three"].map(|name| disk.open(name, READ));
    for file in &files {
        read(&**file, 0, 2 * MIB as usize);
    }
    let unlikely = |at: usize| {
        let advised = files[at].advise(0, 2 * MIB, CacheAdvice::LeaveFirst);
        assert_eq!(advised, Ok(Advised::Followed));
    };
    unlikely(0);
    assert_eq!(one.bytes(), 2 * MIB_BYTES, "another client may still want it");
    unlikely(1);
    assert_eq!((one.bytes(), two.bytes()), (0, 2 * MIB_BYTES), "the oldest leaves");
    // A client wants it again after all.
    assert_eq!(files[1].advise(0, 0, CacheAdvice::Keep), Ok(Advised::Followed));
    unlikely(2);
    assert_eq!((two.bytes(), three.bytes()), (2 * MIB_BYTES, 2 * MIB_BYTES));
    // The file may be closed by then.
    let [_, _, third] = files;
    drop(third);
    let fourth = disk.local("four", 2 * MIB);
    let file = disk.open("four", READ);
    read(&*file, 0, 2 * MIB as usize);
    file.advise(0, 0, CacheAdvice::LeaveFirst).unwrap();
    assert_eq!((three.bytes(), fourth.bytes()), (0, 2 * MIB_BYTES));
}

#[test]
fn written_data_leaves_when_it_is_stable() {
    let Some(disk) = OnDisk::new(MIB) else { return };
    let local = disk.local("f", 0);
    let file = disk.open("f", READ_WRITE);
    write(&*file, 0, MIB as usize, Stability::File);
    file.advise(0, MIB, CacheAdvice::DontNeed).unwrap();
    assert_eq!(local.bytes(), 0);
    let commits: [fn(&dyn OpenFile); 2] =
        [|file| file.commit(0, 0).unwrap(), |file| file.sync().unwrap()];
    for commit in commits {
        for at in (0..MIB).step_by(128 << 10) {
            write(&*file, at, 128 << 10, Stability::Unstable);
            file.advise(at, 128 << 10, CacheAdvice::DontNeed).unwrap();
        }
        // Another open of the file may commit.
        let other = disk.open("f", READ_WRITE);
        commit(&*other);
        assert_eq!(local.bytes(), 0);
    }
    write(&*file, 0, MIB as usize, Stability::Unstable);
    file.commit(0, 0).unwrap();
    assert_eq!(local.bytes(), MIB_BYTES, "other data stays");
}

#[test]
fn a_pattern_changes_the_read_ahead_of_its_open() {
    let Some(disk) = OnDisk::new(MIB) else { return };
    let around = |advice| {
        let local = disk.local("f", 8 * MIB);
        let file = disk.open("f", READ);
        assert_eq!(file.advise(5, 7, advice), Ok(Advised::Followed));
        // The beginning of a file looks like a sequential use.
        read(&*file, 0, PAGE_BYTES);
        read(&*file, PAGE_BYTES as u64, PAGE_BYTES);
        local.bytes()
    };
    let (normal, random) = (around(CacheAdvice::Normal), around(CacheAdvice::Random));
    assert_eq!(random, 2 * PAGE_BYTES);
    assert!(normal > random, "{normal}");
    assert!(around(CacheAdvice::Sequential) >= normal);
}

#[test]
fn impossible_ranges_are_refused_and_odd_ones_harmless() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_posix(&dir);
    let how = CreateHow::Guarded;
    let made = store.create(&me(), &store.root(), b"f", how, &SetAttr::default(), READ_WRITE);
    let file = made.unwrap().file;
    write(&*file, 0, 10_000, Stability::Unstable);
    for advice in [
        CacheAdvice::Normal,
        CacheAdvice::Random,
        CacheAdvice::Sequential,
        CacheAdvice::WillNeed,
        CacheAdvice::Keep,
        CacheAdvice::LeaveFirst,
        CacheAdvice::DontNeed,
    ] {
        let longest = i64::MAX as u64;
        for (offset, len) in [
            (0, 0),
            (0, 1),
            (9_999, 1),
            (10_000, 5),
            (1 << 40, 0),
            (longest, 0),
            (longest, longest),
        ] {
            assert!(file.advise(offset, len, advice).is_ok(), "{advice:?} {offset} {len}");
        }
        for (offset, len) in [(longest + 1, 0), (0, longest + 1), (u64::MAX, u64::MAX)] {
            let advised = file.advise(offset, len, advice);
            assert_eq!(advised, Err(dafs_store::StoreError::Invalid), "{advice:?} {offset} {len}");
        }
    }
    let mut bytes = vec![0; 10_000];
    let view = VolatileSlice::from_mut(&mut bytes);
    assert_eq!(file.read_at(&[view], 0, Wait::Allowed), Ok(10_000));
    assert!(bytes == vec![7; 10_000]);
}
