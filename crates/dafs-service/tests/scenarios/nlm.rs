//! Locks and share reservations of NFSv3 clients beside those of the other protocols.

use crate::common::*;
use dafs_service::{
    Client, Front, Handle, LockError, LockKind, LockManager, OwnerRange, ServiceError, Share,
};
use dafs_store::Wait;
use std::sync::{Arc, Weak};

const ALL: (u64, u64) = (0, u64::MAX);

impl World {
    fn manager(&self, name: &str) -> Arc<Client> {
        let manager =
            LockManager { name: name.as_bytes(), address: from(7), host: self.host.get() };
        let front: Weak<dyn Front> = Arc::<Ear>::downgrade(&self.ear);
        let now_ns = self.now_ns.get();
        self.service.lock_manager(&manager, &front, now_ns, Wait::Allowed).unwrap()
    }

    fn nlm(
        &self,
        client: &Arc<Client>,
        handle: &Handle,
        owner: &str,
        (offset, length): (u64, u64),
        kind: LockKind,
    ) -> Result<(), LockError> {
        let place = OwnerRange { handle, owner: owner.as_bytes(), offset, length };
        self.service.nlm_lock(self.patient(client), &place, kind, true, false)
    }

    fn nlm_reclaim(&self, client: &Arc<Client>, handle: &Handle) -> Result<(), LockError> {
        let place = OwnerRange { handle, owner: b"o", offset: 0, length: 10 };
        self.service.nlm_lock(self.patient(client), &place, LockKind::Write, false, true)
    }

    fn nlm_unlock(&self, client: &Arc<Client>, handle: &Handle, owner: &str, range: (u64, u64)) {
        let (owner, (offset, length)) = (owner.as_bytes(), range);
        let place = OwnerRange { handle, owner, offset, length };
        self.service.nlm_unlock(self.patient(client), &place).unwrap();
    }

    fn file(&self) -> Handle {
        let maker = self.nfs("maker");
        let opened = self.open(&maker, "f", BOTH).unwrap();
        self.close(&maker, &opened);
        *opened.state.handle()
    }
}

fn is_denied(outcome: &Result<(), LockError>) -> bool {
    matches!(outcome, Err(LockError::Denied(_)))
}

#[test]
fn locks_of_all_protocols_exclude_each_other() {
    let world = World::new();
    let handle = world.file();
    let (old, nfs, dafs) = (world.manager("1 a"), world.nfs("n"), world.dafs("d"));
    world.nlm(&old, &handle, "o", (0, 10), LockKind::Write).unwrap();
    let theirs = world.open(&nfs, "f", BOTH).unwrap();
    let refused = world.lock(&nfs, &theirs, "l", (5, 1), LockKind::Read);
    assert!(matches!(refused, Err(LockError::Denied(_))), "{refused:?}");
    let ours = world.open_patiently(&dafs, "f", BOTH).unwrap();
    let refused = world.lock(&dafs, &ours, "owner", (0, 1), LockKind::Write);
    assert!(matches!(refused, Err(LockError::Denied(_))), "{refused:?}");
    world.lock(&nfs, &theirs, "l", (20, 10), LockKind::Read).unwrap();
    world.nlm(&old, &handle, "o", (20, 5), LockKind::Read).unwrap();
    assert!(is_denied(&world.nlm(&old, &handle, "p", (25, 1), LockKind::Write)));
    // A lock does not end with a lease, because there is none.
    world.pass_with(&[&nfs, &dafs], LEASE_NS + SECOND_NS);
    world.pass_with(&[&nfs, &dafs], LEASE_NS + SECOND_NS);
    assert!(world.lock(&nfs, &theirs, "l", (5, 1), LockKind::Read).is_err());
    world.nlm_unlock(&old, &handle, "o", (0, 6));
    world.lock(&nfs, &theirs, "l", (5, 1), LockKind::Read).unwrap();
    assert!(world.lock(&nfs, &theirs, "l", (6, 1), LockKind::Read).is_err());
}

#[test]
fn an_open_lasts_as_long_as_the_locks_of_its_owner() {
    let world = World::new();
    let handle = world.file();
    let old = world.manager("1 a");
    assert_eq!(world.service.counts().opens, 0);
    world.nlm(&old, &handle, "o", (0, 10), LockKind::Read).unwrap();
    world.nlm(&old, &handle, "o", (20, 10), LockKind::Write).unwrap();
    world.nlm(&old, &handle, "p", (40, 10), LockKind::Write).unwrap();
    assert_eq!(world.service.counts().opens, 2);
    world.nlm_unlock(&old, &handle, "o", (0, 10));
    assert_eq!(world.service.counts().opens, 2);
    world.nlm_unlock(&old, &handle, "o", ALL);
    world.nlm_unlock(&old, &handle, "p", ALL);
    world.nlm_unlock(&old, &handle, "p", ALL);
    let counts = world.service.counts();
    assert_eq!((counts.opens, counts.locks, counts.lock_ranges), (0, 0, 0));
    // The record of the client goes with the time.
    world.pass(SECOND_NS);
    world.pass(LEASE_NS + SECOND_NS);
    assert!(world.service.clients.lock_manager(b"1 a").is_none());
    assert!(old.is_gone());
}

#[test]
fn an_owner_that_waits_is_notified_and_one_that_gives_up_is_not() {
    let world = World::new();
    let handle = world.file();
    let (one, two) = (world.manager("1 a"), world.manager("2 b"));
    world.nlm(&one, &handle, "o", (0, 10), LockKind::Write).unwrap();
    for owner in ["o", "p"] {
        assert!(is_denied(&world.nlm(&two, &handle, owner, (5, 10), LockKind::Write)));
    }
    assert_eq!(world.service.counts().lock_waiters, 2);
    let place = OwnerRange { handle: &handle, owner: b"p", offset: 5, length: 10 };
    assert_eq!(world.service.nlm_cancel(world.patient(&two), &place), Ok(true));
    assert_eq!(world.service.nlm_cancel(world.patient(&two), &place), Ok(false));
    assert_eq!(world.service.counts().opens, 2);
    world.ear.take();
    world.nlm_unlock(&one, &handle, "o", ALL);
    let told = Told::LockAvailable(two.key(), handle, b"o".to_vec());
    assert_eq!(world.ear.take(), [told]);
    world.nlm(&two, &handle, "o", (5, 10), LockKind::Write).unwrap();
}

#[test]
fn the_end_of_a_client_ends_its_locks_and_reservations() {
    let world = World::new();
    let handle = world.file();
    let (old, nfs) = (world.manager("1 a"), world.nfs("n"));
    world.nlm(&old, &handle, "o", ALL, LockKind::Write).unwrap();
    let share = Share { read: true, deny_write: true, ..Share::default() };
    // A program may lock what it has reserved, but not what another host has.
    let service = &world.service;
    service.nlm_share(world.patient(&old), &handle, b"s1", share, false).unwrap();
    let other = world.manager("2 b");
    let refused = world.nlm(&other, &handle, "o", (0, 1), LockKind::Write);
    assert_eq!(refused, Err(ServiceError::ShareDenied.into()));
    let refused = service.nlm_share(world.patient(&old), &handle, b"s2", WRITE, false);
    assert_eq!(refused, Err(ServiceError::ShareDenied));
    world.nlm_unlock(&old, &handle, "o", ALL);
    let refused = world.open(&nfs, "f", BOTH).map(drop);
    assert_eq!(refused, Err(ServiceError::ShareDenied));
    world.service.clients.revoke(old.key()).unwrap();
    world.open(&nfs, "f", BOTH).unwrap();
    let again = world.manager("1 a");
    world.service.nlm_share(world.patient(&again), &handle, b"s3", READ, false).unwrap();
    world.service.nlm_unshare(world.patient(&again), &handle, b"s3").unwrap();
    world.service.nlm_unshare(world.patient(&again), &handle, b"s3").unwrap();
    assert_eq!(world.service.counts().opens, 1);
}

#[test]
fn a_delegation_is_recalled_before_a_lock_and_none_is_granted_beside_it() {
    let world = World::new();
    let nfs = world.nfs("n");
    let mut request = world.plain("f", "owner", READ);
    request.want.kind = dafs_service::WantKind::Any;
    let opened = world.service.opens.open(world.caller(&nfs), &request).unwrap();
    let (handle, delegation) = (*opened.state.handle(), opened.delegation.unwrap());
    let old = world.manager("1 a");
    world.ear.take();
    let place = OwnerRange { handle: &handle, owner: b"o", offset: 0, length: 1 };
    let caller = world.caller(&old);
    let refused = world.service.nlm_lock(caller, &place, LockKind::Write, false, false);
    // The client has no record on the disk yet, so the first call waits for that alone.
    assert!(refused.is_err());
    world.service.clients.record(&old);
    let refused = world.service.nlm_lock(caller, &place, LockKind::Write, false, false);
    assert_eq!(refused, Err(ServiceError::WouldWait.into()));
    assert!(world.ear.take().iter().any(|told| matches!(told, Told::Recall(..))));
    let state = delegation.state;
    world.service.delegations.take_back(world.caller(&nfs), Some(&handle), state).unwrap();
    world.service.nlm_lock(caller, &place, LockKind::Write, false, false).unwrap();
    let opened = world.service.opens.open(world.caller(&nfs), &request).unwrap();
    assert!(opened.delegation.is_err());
}

#[test]
fn after_a_hand_over_grace_ends_when_the_locks_are_back() {
    let mut world = World::new();
    let handle = world.file();
    let old = world.manager("1 a");
    world.nlm(&old, &handle, "o", (0, 10), LockKind::Write).unwrap();
    // The client that has made the file holds nothing.
    world.service.clients.settle_records();
    let states = world.service.clients.state_digests();
    world.restart();
    world.service.clients.expect_states(states);
    let old = world.manager("1 a");
    world.pass(SECOND_NS);
    assert!(world.service.clients.in_grace());
    world.nlm_reclaim(&old, &handle).unwrap();
    world.pass(SECOND_NS);
    assert!(!world.service.clients.in_grace());
}

#[test]
fn locks_are_reclaimed_in_the_time_of_grace_alone() {
    let mut world = World::new();
    let handle = world.file();
    let old = world.manager("1 a");
    world.nlm(&old, &handle, "o", (0, 10), LockKind::Write).unwrap();
    world.nlm(&world.manager("2 b"), &handle, "o", (20, 10), LockKind::Write).unwrap();
    world.restart();
    assert!(world.service.clients.in_grace());
    let mut awaited = world.service.clients.awaited_lock_managers();
    awaited.sort();
    assert_eq!(awaited, [b"1 a".to_vec(), b"2 b".to_vec()]);
    let (old, stranger) = (world.manager("1 a"), world.manager("3 c"));
    assert_eq!(world.service.clients.awaited_lock_managers(), [b"2 b".to_vec()]);
    let grace = Err(ServiceError::Grace.into());
    assert_eq!(world.nlm(&old, &handle, "o", (0, 10), LockKind::Write), grace);
    assert_eq!(world.nlm_reclaim(&stranger, &handle), Err(ServiceError::ReclaimBad.into()));
    world.nlm_reclaim(&old, &handle).unwrap();
    world.pass(2 * LEASE_NS + SECOND_NS);
    assert!(!world.service.clients.in_grace());
    assert_eq!(world.nlm_reclaim(&old, &handle), Err(ServiceError::NoGrace.into()));
    let stranger = world.manager("3 c");
    assert!(is_denied(&world.nlm(&stranger, &handle, "o", (0, 10), LockKind::Write)));
    // The lock that was not reclaimed is gone, and so is its record.
    world.nlm(&stranger, &handle, "o", (20, 10), LockKind::Write).unwrap();
    let owners = world.disk.owners();
    assert!(owners.contains(&b"1 a".to_vec()) && !owners.contains(&b"2 b".to_vec()), "{owners:?}");
}

#[test]
fn the_owner_of_a_file_and_its_readers_may_lock_it_and_others_not() {
    let world = World::new();
    let handle = world.file();
    let old = world.manager("1 a");
    let place = OwnerRange { handle: &handle, owner: b"o", offset: 0, length: 1 };
    let stranger = dafs_store::Cred::new(1001, 1001);
    let caller = dafs_service::Caller { cred: &stranger, ..world.patient(&old) };
    let change = |mode| {
        let attr = dafs_store::SetAttr { mode: Some(mode), ..Default::default() };
        let root = world.patient(world.service.stateless_client());
        world.service.setattr(root, &handle, dafs_service::StateRef::ANONYMOUS, &attr).unwrap();
    };
    change(0o644);
    world.service.nlm_lock(caller, &place, LockKind::Write, false, false).unwrap();
    world.service.nlm_unlock(caller, &place).unwrap();
    change(0o600);
    let refused = world.service.nlm_lock(caller, &place, LockKind::Read, false, false);
    assert_eq!(refused, Err(ServiceError::Store(dafs_store::StoreError::Access).into()));
    assert_eq!(world.service.counts().opens, 0);
}
