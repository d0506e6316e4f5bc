//! Locks whose changes are undone when they are lost (DAFS 9.4, 9.5).

use crate::common::*;
use crate::kept_locks::{reclaim_lock, try_lock, unlock};
use dafs_mem::VolatileSlice;
use dafs_service::{
    Client, LockError, LockExtras, LockKind, LockStatus, OpenHow, OpenRequest, Opened,
    ServiceError, UndoError,
};
use dafs_store::{CreateHow, SetAttr, Stability, StoreError, Wait};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

const RECOVER: LockExtras = LockExtras { persist: false, autorecover: true, repair: false };
const BOTH_KINDS: LockExtras = LockExtras { persist: true, ..RECOVER };
const REPAIR: LockExtras = LockExtras { persist: false, autorecover: false, repair: true };
const PLAIN: LockExtras = LockExtras { persist: false, autorecover: false, repair: false };
const ALL: (u64, u64) = (0, u64::MAX);
const BEFORE: &[u8] = b"what was there before";
const AFTER: &[u8] = b"WHAT cameTHERE after it";

/// A world that keeps undo logs.
struct Undoing {
    world: World,
    dir: tempfile::TempDir,
}

impl Undoing {
    fn new() -> Self {
        let undoing = Self { world: World::new(), dir: tempfile::tempdir().unwrap() };
        undoing.world.service.locks.keep_undo_in(&undoing.logs()).unwrap();
        undoing
    }

    /// A holder of a lock of this kind has changed a file. Returns it and its open, too.
    fn changed(extras: LockExtras) -> (Self, Arc<Client>, Opened) {
        let undoing = Self::new();
        let one = undoing.client("a", 1);
        let mine = undoing.filled(&one);
        undoing.lock(&one, &mine, extras).unwrap();
        undoing.change(&one, &mine);
        (undoing, one, mine)
    }

    fn logs(&self) -> PathBuf {
        self.dir.path().join("undo")
    }

    fn restart(&mut self) -> Result<(), UndoError> {
        self.world.restart();
        self.world.service.locks.keep_undo_in(&self.logs())
    }

    fn client(&self, name: &str, verifier: u64) -> Arc<Client> {
        self.world.instance(name, verifier)
    }

    fn open(&self, client: &Arc<Client>) -> Opened {
        self.world.open_patiently(client, "f", BOTH).unwrap()
    }

    /// A file with content, open.
    fn filled(&self, client: &Arc<Client>) -> Opened {
        let opened = self.open(client);
        self.write(client, &opened, 0, BEFORE);
        opened
    }

    fn lock(
        &self,
        client: &Arc<Client>,
        opened: &Opened,
        extras: LockExtras,
    ) -> Result<(), LockError> {
        try_lock(&self.world, client, opened, ALL, LockKind::Write, extras)
    }

    fn abort(&self, client: &Arc<Client>, opened: &Opened) -> Result<(), ServiceError> {
        let caller = self.world.patient(client);
        self.world.service.locks.abort(caller, opened.state.handle(), opened.state.id())
    }

    fn write(&self, client: &Arc<Client>, opened: &Opened, offset: u64, bytes: &[u8]) {
        let (caller, handle) = (self.world.patient(client), opened.state.handle());
        let state = opened.state.reference();
        let file = self.world.service.opens.io_file(caller, handle, state, MODE_WRITE).unwrap();
        let mut bytes = bytes.to_vec();
        let views = [VolatileSlice::from_mut(&mut bytes)];
        file.write_at(&views, offset, Stability::Unstable, Wait::Allowed).unwrap();
    }

    /// Writes, cuts and extends, by the holder and by an NFS client that ignores locks.
    fn change(&self, client: &Arc<Client>, opened: &Opened) {
        let (service, handle) = (&self.world.service, opened.state.handle());
        let size = SetAttr { size: Some(9), ..SetAttr::default() };
        let caller = self.world.patient(client);
        service.setattr(caller, handle, opened.state.reference(), &size).unwrap();
        let nfs = self.world.patient(service.stateless_client());
        let file = service.opens.stateless_file(nfs, handle, MODE_WRITE).unwrap().file;
        let mut bytes = *b"WHAT came";
        let views = [VolatileSlice::from_mut(&mut bytes)];
        file.write_at(&views, 0, Stability::Unstable, Wait::Allowed).unwrap();
        let mut bytes = *b"THERE after it";
        let views = [VolatileSlice::from_mut(&mut bytes)];
        let state = opened.state.reference();
        assert_eq!(service.opens.append(caller, handle, state, &views, Stability::File), Ok(9));
    }

    fn content(&self) -> Vec<u8> {
        let service = &self.world.service;
        let reader = self.world.patient(service.stateless_client());
        let path = [b"f".as_slice()];
        let handle = service.lookup(reader, &self.world.root, path).unwrap().handle;
        let file = service.opens.stateless_file(reader, &handle, MODE_READ).unwrap().file;
        let mut bytes = vec![0; 100];
        let views = [VolatileSlice::from_mut(&mut bytes)];
        let len = file.read_at(&views, 0, Wait::Allowed).unwrap();
        bytes.truncate(len);
        bytes
    }

    fn logged(&self) -> usize {
        let logs = std::fs::read_dir(self.logs()).unwrap().count();
        assert_eq!(logs, self.world.service.counts().undo_files);
        logs
    }
}

/// Runs work that waits for the disk, when the test says so.
#[derive(Default)]
struct Elsewhere(Arc<Mutex<Vec<Job>>>);

type Job = Box<dyn FnOnce() + Send>;

impl Elsewhere {
    fn spawn(&self) -> Arc<dyn Fn(Job) + Send + Sync> {
        let jobs = self.0.clone();
        Arc::new(move |job| jobs.lock().unwrap().push(job))
    }

    fn run(&self) -> usize {
        let jobs = std::mem::take(&mut *self.0.lock().unwrap());
        let count = jobs.len();
        jobs.into_iter().for_each(|job| job());
        count
    }
}

#[test]
fn unlock_and_close_commit_and_abort_rolls_back() {
    let undoing = Undoing::new();
    let one = undoing.client("a", 1);
    let file = undoing.filled(&one);
    undoing.lock(&one, &file, RECOVER).unwrap();
    undoing.change(&one, &file);
    assert_eq!(undoing.content(), AFTER);
    assert_eq!(undoing.logged(), 1);
    let infos = undoing.world.service.locks.info(10, undoing.world.now_ns.get());
    assert!(matches!(&infos[..], [info] if info.autorecover && !info.persist), "{infos:?}");
    undoing.abort(&one, &file).unwrap();
    assert_eq!((undoing.content(), undoing.logged()), (BEFORE.to_vec(), 0));
    // It has released the lock as well.
    assert_eq!(undoing.world.service.counts().lock_ranges, 0);
    assert_eq!(undoing.abort(&one, &file), Err(StoreError::Invalid.into()));
    undoing.lock(&one, &file, RECOVER).unwrap();
    undoing.change(&one, &file);
    unlock(&undoing.world, &one, &file, ALL).unwrap();
    assert_eq!((undoing.content(), undoing.logged()), (AFTER.to_vec(), 0));
    undoing.lock(&one, &file, RECOVER).unwrap();
    undoing.write(&one, &file, 0, b"more");
    undoing.world.close(&one, &file);
    undoing.world.pass(LEASE_NS / 2);
    assert_eq!((&undoing.content()[..4], undoing.logged()), (&b"more"[..], 0));
}

#[test]
fn a_live_holder_loses_nothing_to_those_who_read() {
    for extras in [RECOVER, BOTH_KINDS] {
        let (undoing, one, mine) = Undoing::changed(extras);
        let two = undoing.client("b", 1);
        let theirs = undoing.open(&two);
        let read = |client, opened, range| {
            try_lock(&undoing.world, client, opened, range, LockKind::Read, PLAIN)
        };
        // A lock for reading in its place, in part or as a whole, would let others in.
        let refused = Err(LockError::Service(ServiceError::LockRange));
        assert_eq!(read(&one, &mine, (0, 5)), refused);
        assert_eq!(read(&one, &mine, ALL), refused);
        assert!(matches!(read(&two, &theirs, (0, 5)), Err(LockError::Denied(_))));
        assert_eq!((undoing.content(), undoing.logged()), (AFTER.to_vec(), 1));
        unlock(&undoing.world, &one, &mine, ALL).unwrap();
        read(&two, &theirs, (0, 5)).unwrap();
        assert_eq!(undoing.content(), AFTER);
    }
}

#[test]
fn a_change_of_size_that_saves_much_is_left_to_those_who_may_wait() {
    let undoing = Undoing::new();
    let one = undoing.client("a", 1);
    let file = undoing.filled(&one);
    undoing.lock(&one, &file, RECOVER).unwrap();
    let service = &undoing.world.service;
    let elsewhere = Elsewhere::default();
    service.locks.undo_elsewhere(elsewhere.spawn());
    let size = SetAttr { size: Some(0), ..SetAttr::default() };
    let (handle, state) = (file.state.handle(), file.state.reference());
    let cut = |caller| service.setattr(caller, handle, state, &size).map(|attr| attr.size);
    assert_eq!(cut(undoing.world.caller(&one)), Err(ServiceError::WouldWait));
    assert_eq!(cut(undoing.world.caller(&one)), Err(ServiceError::WouldWait));
    let how = OpenHow::Create(CreateHow::Unchecked, size);
    let request = OpenRequest { how, ..undoing.world.plain("f", "owner", BOTH) };
    let empty = |caller| service.opens.open(caller, &request).map(|opened| opened.attr.size);
    assert_eq!(empty(undoing.world.caller(&one)).err(), Some(ServiceError::WouldWait));
    assert_eq!(undoing.content(), BEFORE);
    // The data is saved once, for any number of retries.
    assert_eq!(elsewhere.run(), 1);
    assert_eq!(cut(undoing.world.caller(&one)), Ok(0));
    assert_eq!(empty(undoing.world.caller(&one)), Ok(0));
    undoing.abort(&one, &file).unwrap();
    assert_eq!(undoing.content(), BEFORE);
}

#[test]
fn a_tick_leaves_the_disk_to_others() {
    let undoing = Undoing::new();
    let (one, two) = (undoing.client("a", 1), undoing.client("b", 1));
    let mine = undoing.filled(&one);
    let elsewhere = Elsewhere::default();
    undoing.world.service.locks.undo_elsewhere(elsewhere.spawn());
    undoing.lock(&one, &mine, RECOVER).unwrap();
    undoing.change(&one, &mine);
    // The client restarts.
    let again = undoing.client("a", 2);
    undoing.world.pass_with(&[&two, &again], SECOND_NS);
    undoing.world.pass_with(&[&two, &again], SECOND_NS);
    assert_eq!((undoing.content(), undoing.logged()), (AFTER.to_vec(), 1));
    assert_eq!(elsewhere.run(), 1);
    assert_eq!((undoing.content(), undoing.logged()), (BEFORE.to_vec(), 0));
    undoing.world.pass_with(&[&two, &again], SECOND_NS);
    assert_eq!(elsewhere.run(), 0);
}

#[test]
fn a_lease_that_ends_takes_its_changes_along() {
    let (undoing, _one, _mine) = Undoing::changed(RECOVER);
    let two = undoing.client("b", 1);
    let theirs = undoing.open(&two);
    assert!(matches!(undoing.lock(&two, &theirs, PLAIN), Err(LockError::Denied(_))));
    undoing.world.pass_with(&[&two], LEASE_NS + SECOND_NS);
    undoing.world.pass_with(&[&two], SECOND_NS);
    assert_eq!((undoing.content(), undoing.logged()), (BEFORE.to_vec(), 0));
    undoing.lock(&two, &theirs, PLAIN).unwrap();
}

#[test]
fn no_client_gets_a_lock_before_the_last_holder_is_rolled_back() {
    for nfs in [false, true] {
        let (undoing, _one, _mine) = Undoing::changed(RECOVER);
        let two = undoing.client("b", 1);
        let theirs = undoing.open(&two);
        // The client restarts, and no tick comes in between.
        let again = undoing.client("a", 2);
        assert_eq!(undoing.content(), AFTER);
        if nfs {
            let nfs = undoing.world.nfs("n");
            let opened = undoing.world.open(&nfs, "f", BOTH).unwrap();
            let request = lock_request(new_owner(&opened, b"x"), (5, 1), LockKind::Read);
            let try_lock = |caller| {
                undoing.world.service.locks.lock(caller, opened.state.handle(), &request).map(drop)
            };
            let waits = Err(LockError::Service(ServiceError::WouldWait));
            assert_eq!(try_lock(undoing.world.caller(&nfs)), waits);
            try_lock(undoing.world.patient(&nfs)).unwrap();
        } else {
            undoing.lock(&two, &theirs, RECOVER).unwrap();
        }
        assert_eq!(undoing.content(), BEFORE);
        assert_eq!(undoing.logged(), usize::from(!nfs), "the new holder's");
        drop(again);
    }
}

#[test]
fn changes_survive_a_restart_for_those_who_come_back() {
    for comes_back in [true, false] {
        let (mut undoing, _one, mine) = Undoing::changed(RECOVER);
        undoing.restart().unwrap();
        assert_eq!(undoing.logged(), 1);
        undoing.world.pass(SECOND_NS);
        assert_eq!(undoing.content(), AFTER, "there is time to come back");
        let one = undoing.client("a", 1);
        if comes_back {
            let handle = *mine.state.handle();
            let mine = undoing.world.reclaim(&one, &handle, BOTH).unwrap();
            reclaim_lock(&undoing.world, &one, &mine, ALL, RECOVER).unwrap();
            undoing.write(&one, &mine, 0, b"once more");
            undoing.world.pass_with(&[&one], LEASE_NS - SECOND_NS);
            undoing.world.pass_with(&[&one], LEASE_NS - SECOND_NS);
            assert_eq!(&undoing.content()[..9], b"once more");
            // All changes since the first lock.
            undoing.abort(&one, &mine).unwrap();
        } else {
            undoing.world.pass_with(&[&one], LEASE_NS - SECOND_NS);
            undoing.world.pass_with(&[&one], 2 * SECOND_NS);
            undoing.world.pass_with(&[&one], SECOND_NS);
        }
        assert_eq!((undoing.content(), undoing.logged()), (BEFORE.to_vec(), 0));
    }
}

#[test]
fn a_persistent_lock_keeps_its_changes_until_somebody_else_comes() {
    for restart in [false, true] {
        let mut undoing = Undoing::new();
        let (one, two) = (undoing.client("a", 1), undoing.client("b", 1));
        let mine = undoing.filled(&one);
        undoing.lock(&one, &mine, BOTH_KINDS).unwrap();
        undoing.change(&one, &mine);
        let handle = *mine.state.handle();
        let two = if restart {
            undoing.restart().unwrap();
            undoing.client("b", 1)
        } else {
            two
        };
        undoing.world.pass_with(&[&two], LEASE_NS + SECOND_NS);
        undoing.world.pass_with(&[&two], LEASE_NS + SECOND_NS);
        assert_eq!((undoing.content(), undoing.logged()), (AFTER.to_vec(), 1), "breakable");
        let theirs = undoing.open(&two);
        assert!(matches!(undoing.lock(&two, &theirs, PLAIN), Err(LockError::Broken(_))));
        let broken = undoing.world.service.locks.check_span(&handle, 0, 1);
        assert_eq!(broken, Err(ServiceError::LockBroken), "nobody sees what is half done");
        undoing.lock(&two, &theirs, REPAIR).unwrap();
        assert_eq!((undoing.content(), undoing.logged()), (BEFORE.to_vec(), 0));
        unlock(&undoing.world, &two, &theirs, ALL).unwrap();
    }
}

#[test]
fn the_holder_of_a_persistent_lock_goes_on_where_it_was() {
    let (undoing, _one, _mine) = Undoing::changed(BOTH_KINDS);
    undoing.world.pass(LEASE_NS + SECOND_NS);
    undoing.world.pass(SECOND_NS);
    let one = undoing.client("a", 1);
    let mine = undoing.open(&one);
    undoing.lock(&one, &mine, BOTH_KINDS).unwrap();
    assert_eq!((undoing.content(), undoing.logged()), (AFTER.to_vec(), 1));
    undoing.abort(&one, &mine).unwrap();
    assert_eq!((undoing.content(), undoing.logged()), (BEFORE.to_vec(), 0));
}

#[test]
fn a_change_without_undo_gets_no_lock() {
    let undoing = Undoing::new();
    let one = undoing.client("a", 1);
    let mine = undoing.filled(&one);
    let refused = Err(LockError::Service(ServiceError::NotSupported));
    let write = LockKind::Write;
    for range in [(0, 10), (1, u64::MAX), (10, 10)] {
        assert_eq!(try_lock(&undoing.world, &one, &mine, range, write, RECOVER), refused);
    }
    // There are no changes under a lock for reading.
    try_lock(&undoing.world, &one, &mine, ALL, LockKind::Read, RECOVER).unwrap();
    assert_eq!(undoing.logged(), 0);
    undoing.lock(&one, &mine, RECOVER).unwrap();
    assert_eq!(unlock(&undoing.world, &one, &mine, (0, 10)), Err(ServiceError::LockRange));
    assert_eq!(undoing.logged(), 1);
    let stranger = undoing.client("b", 1);
    let theirs = undoing.open(&stranger);
    assert_eq!(undoing.abort(&stranger, &theirs), Err(StoreError::Invalid.into()));
    let foreign = undoing.world.patient(&stranger);
    let aborted = undoing.world.service.locks.abort(foreign, mine.state.handle(), mine.state.id());
    assert_eq!(aborted, Err(ServiceError::BadStateId));
    // Without a directory for logs there is no such lock.
    let world = World::new();
    let plain = Undoing { world, dir: tempfile::tempdir().unwrap() };
    let one = plain.client("a", 1);
    let mine = plain.filled(&one);
    assert_eq!(plain.lock(&one, &mine, RECOVER), refused);
}

/// The record of a persistent lock is removed first. A crash before the removal of the log undoes
/// no changes.
#[test]
fn a_crash_in_the_middle_of_an_unlock_keeps_what_was_unlocked() {
    let (mut undoing, one, mine) = Undoing::changed(BOTH_KINDS);
    let before = [undoing.logs().join("0.undo"), undoing.dir.path().join("undo.index")]
        .map(|file| (std::fs::read(&file).unwrap(), file));
    unlock(&undoing.world, &one, &mine, ALL).unwrap();
    assert_eq!(undoing.world.disk.locks.lock().unwrap().len(), 0);
    for (bytes, file) in before {
        std::fs::write(file, bytes).unwrap();
    }
    undoing.restart().unwrap();
    assert_eq!((undoing.content(), undoing.logged()), (AFTER.to_vec(), 0));
    let two = undoing.client("b", 1);
    undoing.world.pass_with(&[&two], 2 * LEASE_NS);
    undoing.world.pass_with(&[&two], 2 * LEASE_NS);
    let theirs = undoing.open(&two);
    undoing.lock(&two, &theirs, PLAIN).unwrap();
    assert_eq!(undoing.content(), AFTER);
}

/// It is not kept in part when the record cannot be removed.
#[test]
fn an_unlock_that_fails_leaves_the_lock_and_what_may_be_undone() {
    let (undoing, one, mine) = Undoing::changed(BOTH_KINDS);
    undoing.world.disk.broken.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(unlock(&undoing.world, &one, &mine, ALL), Err(StoreError::Io.into()));
    undoing.world.disk.broken.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!((undoing.content(), undoing.logged()), (AFTER.to_vec(), 1));
    undoing.abort(&one, &mine).unwrap();
    assert_eq!((undoing.content(), undoing.logged()), (BEFORE.to_vec(), 0));
}

#[test]
fn a_failed_rollback_is_reported_and_retried_with_backoff() {
    let (mut undoing, _one, _mine) = Undoing::changed(RECOVER);
    undoing.world.restart();
    undoing.world.serve(&[("", true)]);
    undoing.world.service.locks.keep_undo_in(&undoing.logs()).unwrap();
    let elsewhere = Elsewhere::default();
    let service = &undoing.world.service;
    service.locks.undo_elsewhere(elsewhere.spawn());
    let two = undoing.client("b", 1);
    let again = undoing.client("a", 2);
    let mut tried = 0;
    for _ in 0..100 {
        undoing.world.pass_with(&[&two, &again], SECOND_NS);
        tried += elsewhere.run();
    }
    assert!((4..=8).contains(&tried), "{tried} times in 100 seconds");
    let infos = service.locks.info(10, undoing.world.now_ns.get());
    let [info] = &infos[..] else { panic!("{infos:?}") };
    assert_eq!((info.status, &*info.holder.name), (LockStatus::Undone, &b"a"[..]));
    assert!(info.trouble.as_ref().unwrap().contains("read-only"), "{info:?}");
    assert_eq!((undoing.content(), undoing.logged()), (AFTER.to_vec(), 1));
    // Another export of the same files allows writes.
    undoing.world.serve(&[("one", true), ("other", false)]);
    for _ in 0..64 {
        undoing.world.pass_with(&[&two, &again], SECOND_NS);
        elsewhere.run();
    }
    assert_eq!(undoing.logged(), 0);
    assert_eq!(service.locks.info(10, undoing.world.now_ns.get()), []);
    undoing.world.serve(&[("", false)]);
    assert_eq!(undoing.content(), BEFORE);
}
