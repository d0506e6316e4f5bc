//! Delegations: their grants, their recalls, and their revocation.

use crate::common::*;
use crate::kept_locks::{PERSIST, try_lock};
use dafs_service::{
    AttrAnswer, Client, ClientKey, Delegation, DelegationKind, Front, Handle, LockKind,
    NoDelegation, OpenClaim, OpenHow, OpenRequest, OpenTarget, Opened, RemoveMode, Result,
    ServiceConfig, ServiceError, Share, StateKind, StateRef, Want, WantKind,
};
use dafs_store::{CreateHow, SetAttr, SetXattr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

fn wanting(world: &World, client: &Arc<Client>, share: Share, kind: WantKind) -> Result<Opened> {
    let want = Want { kind, ..Want::default() };
    let request = OpenRequest { want, ..world.plain("f", "owner", share) };
    world.service.opens.open(world.caller(client), &request)
}

fn granted(world: &World, client: &Arc<Client>, share: Share) -> (Opened, Delegation) {
    let opened = wanting(world, client, share, WantKind::NoPreference).unwrap();
    let delegation = opened.delegation.unwrap();
    (opened, delegation)
}

fn give_back(world: &World, client: &Arc<Client>, handle: &Handle, state: StateRef) -> Result<()> {
    world.service.delegations.take_back(world.caller(client), Some(handle), state)
}

fn recall_of(client: &Arc<Client>, handle: &Handle, state: StateRef) -> Vec<Told> {
    vec![Told::Recall(client.key(), *handle, state, false)]
}

/// A client with a delegation of the file "f", and another client.
struct Held {
    world: World,
    holder: Arc<Client>,
    other: Arc<Client>,
    opened: Opened,
    handle: Handle,
    /// The delegation.
    state: StateRef,
}

impl Held {
    fn new(share: Share) -> Self {
        let world = World::new();
        let (holder, other) = (world.nfs("a"), world.nfs("b"));
        let (opened, delegation) = granted(&world, &holder, share);
        let (handle, state) = (*opened.state.handle(), delegation.state);
        Self { world, holder, other, opened, handle, state }
    }
}

/// Restarts the server. The holder of a write delegation comes back.
fn returned(change: impl FnOnce(ServiceConfig) -> ServiceConfig) -> (World, Arc<Client>, Handle) {
    let mut world = World::new();
    let holder = world.nfs("a");
    let (opened, _) = granted(&world, &holder, BOTH);
    world.restart_with(change);
    let holder = world.returning("a", 1);
    (world, holder, *opened.state.handle())
}

/// Reclaims a write delegation with its open after a restart.
fn reclaimed(world: &World, holder: &Arc<Client>, handle: &Handle) -> Opened {
    let request = OpenRequest {
        target: OpenTarget::Handle(handle),
        claim: OpenClaim::Previous(Some(DelegationKind::Write)),
        how: OpenHow::Existing,
        ..world.plain("", "owner", BOTH)
    };
    world.service.opens.open(world.caller(holder), &request).unwrap()
}

#[test]
fn each_open_gets_its_kind_of_delegation() {
    let world = World::new();
    let (one, two) = (world.nfs("a"), world.nfs("b"));
    let why = |client, share, kind| {
        let opened = wanting(&world, client, share, kind).unwrap();
        let outcome = opened.delegation.map(|delegation| delegation.kind);
        if let Ok(delegation) = opened.delegation {
            let handle = *opened.state.handle();
            give_back(&world, client, &handle, delegation.state).unwrap();
        }
        world.close(client, &opened);
        outcome
    };
    assert_eq!(why(&one, READ, WantKind::NoPreference), Ok(DelegationKind::Read));
    assert_eq!(why(&one, BOTH, WantKind::NoPreference), Ok(DelegationKind::Write));
    assert_eq!(why(&one, BOTH, WantKind::Read), Ok(DelegationKind::Read));
    assert_eq!(why(&one, READ, WantKind::Write), Ok(DelegationKind::Write));
    assert_eq!(why(&one, READ, WantKind::Any), Ok(DelegationKind::Read));
    assert_eq!(why(&one, READ, WantKind::None), Err(NoDelegation::NotWanted));
    assert_eq!(why(&one, READ, WantKind::Cancel), Err(NoDelegation::Cancelled));
    // Others use the file.
    let reader = world.open(&two, "f", READ).unwrap();
    assert_eq!(why(&one, READ, WantKind::Any), Ok(DelegationKind::Read));
    assert_eq!(why(&one, BOTH, WantKind::Any), Err(NoDelegation::Contention));
    world.close(&two, &reader);
    let writer = world.open(&two, "f", WRITE).unwrap();
    assert_eq!(why(&one, READ, WantKind::Any), Err(NoDelegation::Contention));
    world.close(&two, &writer);
    // No back channel.
    world.service.set_back_channel(&one, false);
    assert_eq!(why(&one, READ, WantKind::Any), Err(NoDelegation::Resource));
    assert_eq!(why(&one, READ, WantKind::NoPreference), Err(NoDelegation::Policy));
    // A DAFS client has none either.
    assert_eq!(why(&world.dafs("d"), READ, WantKind::Any), Err(NoDelegation::Resource));
    assert_eq!(world.service.counts().delegations, 0);
}

#[test]
fn many_read_and_one_writes() {
    let Held { world, holder: one, other: two, handle, state, .. } = Held::new(READ);
    let (_, second) = granted(&world, &two, READ);
    assert_ne!(state.id, second.state.id);
    // The holder's own write does not conflict with its own delegation, but with the other's.
    let blocked = wanting(&world, &one, BOTH, WantKind::NoPreference);
    assert_eq!(error(blocked), ServiceError::WouldWait);
    assert_eq!(world.ear.take(), recall_of(&two, &handle, second.state));
    give_back(&world, &two, &handle, second.state).unwrap();
    let blocked = wanting(&world, &one, BOTH, WantKind::NoPreference);
    // The second client still has it open, which conflicts only with a delegation.
    assert_eq!(blocked.unwrap().delegation, Err(NoDelegation::Contention));
    assert_eq!(world.service.counts().delegations, 1);
    assert_eq!(world.ear.take(), []);
}

/// Operations of other clients, by any front end, first recall a write delegation.
#[test]
fn everything_that_conflicts_recalls() {
    type Act = fn(&World, &Arc<Client>, &Handle) -> Result<()>;
    let acts: [(&str, Act); 12] = [
        ("open to read", |world, client, _| world.open(client, "f", READ).map(|_| ())),
        ("open to write", |world, client, _| world.open(client, "f", WRITE).map(|_| ())),
        ("anonymous read", |world, client, handle| {
            let caller = world.caller(client);
            world.service.opens.io_file(caller, handle, StateRef::ANONYMOUS, MODE_READ).map(|_| ())
        }),
        ("read that bypasses", |world, client, handle| {
            let caller = world.caller(client);
            world
                .service
                .opens
                .io_file(caller, handle, StateRef::READ_BYPASS, MODE_READ)
                .map(|_| ())
        }),
        ("anonymous write", |world, client, handle| {
            let caller = world.caller(client);
            world.service.opens.io_file(caller, handle, StateRef::ANONYMOUS, MODE_WRITE).map(|_| ())
        }),
        ("change of mode", |world, client, handle| {
            let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            let caller = world.caller(client);
            world.service.setattr(caller, handle, StateRef::ANONYMOUS, &change).map(|_| ())
        }),
        ("removal", |world, client, _| {
            let mode = RemoveMode::Unchecked;
            world.service.remove(world.caller(client), &world.root, b"f", mode).map(|_| ())
        }),
        ("rename", |world, client, _| {
            let (caller, root) = (world.caller(client), &world.root);
            world.service.rename(caller, root, b"f", root, b"g").map(|_| ())
        }),
        ("replacement", |world, client, _| {
            let (caller, root) = (world.caller(client), &world.root);
            world.service.rename(caller, root, b"other", root, b"f").map(|_| ())
        }),
        ("link", |world, client, handle| {
            let caller = world.caller(client);
            world.service.link(caller, handle, &world.root, b"h").map(|_| ())
        }),
        ("attribute", |world, client, handle| {
            let (caller, how) = (world.caller(client), SetXattr::Either);
            world.service.set_xattr(caller, handle, b"name", b"value", how).map(|_| ())
        }),
        ("access list", |world, client, handle| {
            let acl = world.service.acl(handle).unwrap();
            world.service.set_acl(world.caller(client), handle, &acl)
        }),
    ];
    for (what, act) in acts {
        for door in 0..3 {
            let world = World::new();
            let holder = world.nfs("holder");
            let other = match door {
                0 => world.nfs("other"),
                1 => world.dafs("other"),
                _ => world.service.stateless_client().clone(),
            };
            if door == 2 && what.starts_with("open") {
                continue;
            }
            if door == 2 && what == "read that bypasses" {
                // NFSv3 has no such operation.
                continue;
            }
            let file = world.open(&holder, "other", READ).unwrap();
            world.close(&holder, &file);
            let (opened, delegation) = granted(&world, &holder, BOTH);
            let handle = *opened.state.handle();
            world.close(&holder, &opened);
            assert_eq!(act(&world, &other, &handle), Err(ServiceError::WouldWait), "{what}");
            let recall = recall_of(&holder, &handle, delegation.state);
            assert_eq!(world.ear.take(), recall, "{what}");
            // It is recalled once, however often others try.
            assert_eq!(act(&world, &other, &handle), Err(ServiceError::WouldWait), "{what}");
            assert_eq!(world.ear.take(), [], "{what}");
            assert_eq!(world.service.counts().recalled_delegations, 1);
            give_back(&world, &holder, &handle, delegation.state).unwrap();
            assert_eq!(act(&world, &other, &handle), Ok(()), "{what}");
            let counts = world.service.counts();
            assert_eq!((counts.delegations, counts.recalled_delegations), (0, 0));
        }
    }
}

#[test]
fn changes_of_the_holder_do_not_conflict() {
    let world = World::new();
    let holder = world.nfs("a");
    let (opened, delegation) = granted(&world, &holder, BOTH);
    let (caller, handle) = (world.caller(&holder), *opened.state.handle());
    world.open(&holder, "f", READ).unwrap();
    let change = SetAttr { size: Some(10), ..SetAttr::default() };
    world.service.setattr(caller, &handle, delegation.state, &change).unwrap();
    assert!(world.service.opens.io_file(caller, &handle, StateRef::ANONYMOUS, MODE_WRITE).is_ok());
    world.service.rename(caller, &world.root, b"f", &world.root, b"g").unwrap();
    world.service.remove(caller, &world.root, b"g", RemoveMode::Unchecked).unwrap();
    assert_eq!(world.ear.take(), []);
    // The delegation keeps the file without an open, and without a name.
    world.close(&holder, &opened);
    assert!(world.service.opens.io_file(caller, &handle, delegation.state, MODE_WRITE).is_ok());
    assert_eq!(world.service.getattr(&handle).unwrap().size, 10);
    give_back(&world, &holder, &handle, delegation.state).unwrap();
    assert!(world.service.getattr(&handle).is_err());
}

#[test]
fn a_state_id_of_a_delegation_allows_what_the_delegation_does() {
    let Held { world, holder: one, other: two, handle, state, .. } = Held::new(READ);
    let io = |client, mode| {
        let caller = world.caller(client);
        world.service.opens.io_file(caller, &handle, state, mode).map(|_| ())
    };
    assert_eq!(io(&one, MODE_READ), Ok(()));
    assert_eq!(io(&one, MODE_WRITE), Err(ServiceError::OpenMode));
    assert_eq!(io(&two, MODE_READ), Err(ServiceError::BadStateId));
    let test = world.service.state.check_state(world.caller(&one), None, state);
    assert_eq!(test, Ok(StateKind::Delegation));
    let free = world.service.opens.free(world.caller(&one), state);
    assert_eq!(free, Err(ServiceError::LocksHeld));
    let as_open = world.service.opens.close(world.caller(&one), &handle, state);
    assert_eq!(as_open, Err(ServiceError::BadStateId));
    let stolen = give_back(&world, &two, &handle, state);
    assert_eq!(stolen, Err(ServiceError::BadStateId));
}

/// RFC 8881 10.2: a client turns its local opens under a delegation into opens at the server while
/// it is recalled.
#[test]
fn opens_by_a_delegation_succeed_while_it_is_recalled() {
    let Held { world, holder, other, opened, handle, state } = Held::new(BOTH);
    world.close(&holder, &opened);
    assert_eq!(error(world.open(&other, "f", WRITE)), ServiceError::WouldWait);
    let claim = OpenClaim::DelegateCurrent(state);
    let by_name =
        OpenRequest { claim, how: OpenHow::Existing, ..world.plain("f", "late", DENY_WRITE) };
    let by_handle = OpenRequest { target: OpenTarget::Handle(&handle), ..by_name };
    let caller = world.caller(&holder);
    world.service.opens.open(caller, &by_name).unwrap();
    world.service.opens.open(caller, &by_handle).unwrap();
    give_back(&world, &holder, &handle, state).unwrap();
    assert_eq!(error(world.open(&other, "f", WRITE)), ServiceError::ShareDenied);
    let again = world.service.opens.open(caller, &by_name);
    assert_eq!(error(again), ServiceError::StaleStateId);
    // Another file, or more access than the delegation allows.
    let (opened, delegation) = {
        let want = Want { kind: WantKind::Read, ..Want::default() };
        let request = OpenRequest { want, ..world.plain("g", "o", READ) };
        let opened = world.service.opens.open(caller, &request).unwrap();
        let delegation = opened.delegation.unwrap();
        (opened, delegation)
    };
    let claim = OpenClaim::DelegateCurrent(delegation.state);
    let other_file = OpenRequest { claim, ..by_handle };
    assert_eq!(error(world.service.opens.open(caller, &other_file)), ServiceError::BadStateId);
    let handle = *opened.state.handle();
    let target = OpenTarget::Handle(&handle);
    let to_write = OpenRequest { claim, target, share: BOTH, ..by_handle };
    assert_eq!(error(world.service.opens.open(caller, &to_write)), ServiceError::OpenMode);
}

#[test]
fn no_new_delegation_right_after_a_recall_or_a_write_without_an_open() {
    let Held { world, holder: one, other: two, handle, state, .. } = Held::new(READ);
    assert_eq!(error(world.open(&two, "f", WRITE)), ServiceError::WouldWait);
    give_back(&world, &one, &handle, state).unwrap();
    let contention = Some(NoDelegation::Contention);
    let want = || wanting(&world, &one, READ, WantKind::NoPreference).unwrap().delegation.err();
    assert_eq!(want(), contention);
    world.pass(16 * SECOND_NS);
    let nobody = world.service.stateless_client().clone();
    world.service.opens.stateless_file(world.caller(&nobody), &handle, MODE_WRITE).unwrap();
    assert_eq!(want(), contention);
    world.pass(16 * SECOND_NS);
    assert_eq!(want(), None);
}

/// RFC 8881 10.4.3, 8.2.4, 18.38, 18.46.3.
#[test]
fn a_delegation_not_returned_within_a_lease_is_revoked() {
    let Held { world, holder, other, opened, handle, state } = Held::new(BOTH);
    assert_eq!(error(world.open(&other, "f", READ)), ServiceError::WouldWait);
    let waited = world.open_patiently(&other, "f", READ);
    assert_eq!(error(waited), ServiceError::Delay);
    for _ in 0..2 {
        world.pass_with(&[&holder, &other], LEASE_NS / 2);
        assert_eq!(error(world.open(&other, "f", READ)), ServiceError::WouldWait);
    }
    world.pass(SECOND_NS);
    // The opens of the holder stay.
    world.open(&other, "f", READ).unwrap();
    let caller = world.caller(&holder);
    let revoked = ServiceError::DelegRevoked;
    assert!(holder.status().recallable_revoked);
    assert_eq!(error(world.service.opens.io_file(caller, &handle, state, MODE_READ)), revoked);
    assert_eq!(world.service.state.check_state(caller, None, state), Err(revoked));
    assert_eq!(give_back(&world, &holder, &handle, state), Err(revoked));
    let open = opened.state.reference();
    assert!(world.service.opens.io_file(caller, &handle, open, MODE_WRITE).is_ok());
    world.service.opens.free(caller, state).unwrap();
    assert!(!holder.status().recallable_revoked);
    assert_eq!(world.service.opens.free(caller, state), Err(ServiceError::BadStateId));
    assert_eq!(world.service.counts().revoked, 0);
}

#[test]
fn a_holder_that_is_away_loses_everything_to_who_needs_it() {
    let world = World::new();
    let (holder, other) = (world.nfs("a"), world.nfs("b"));
    let (_, delegation) = granted(&world, &holder, BOTH);
    assert_eq!(delegation.kind, DelegationKind::Write);
    world.pass_with(&[&other], LEASE_NS + 1);
    assert_eq!(error(world.open(&other, "f", READ)), ServiceError::WouldWait);
    world.open_patiently(&other, "f", READ).unwrap();
    assert_eq!(world.ear.take(), [Told::Gone(holder.key())]);
    assert_eq!(world.disk.owners(), [b"b".to_vec()]);
}

#[test]
fn a_recall_that_did_not_arrive_is_sent_again() {
    let Held { world, holder, other, handle, state, .. } = Held::new(BOTH);
    let recall = recall_of(&holder, &handle, state);
    let conflict = || error(world.open(&other, "f", READ));
    assert_eq!(conflict(), ServiceError::WouldWait);
    assert_eq!(world.ear.take(), recall);
    world.service.delegations.recall_failed(holder.key(), state);
    assert_eq!(conflict(), ServiceError::WouldWait);
    assert_eq!(world.ear.take(), recall);
    // The channel is lost, and comes back.
    world.service.set_back_channel(&holder, false);
    assert!(holder.status().callback_down);
    world.service.delegations.recall_failed(holder.key(), state);
    world.service.set_back_channel(&holder, true);
    assert_eq!(world.ear.take(), recall);
    assert!(!holder.status().callback_down);
    assert_eq!(conflict(), ServiceError::WouldWait);
    assert_eq!(world.ear.take(), []);
}

/// A front end that has no path to a holder, and reports that before it returns.
struct NoWay {
    calls: AtomicUsize,
    failed: Mutex<mpsc::SyncSender<(ClientKey, StateRef, mpsc::SyncSender<()>)>>,
}

impl Front for NoWay {
    fn recall(&self, client: ClientKey, _: &Handle, state: StateRef, _: bool) {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        assert!(calls < 1000, "a recall is sent again and again, and nobody waits in between");
        let (told, when_told) = mpsc::sync_channel(1);
        self.failed.lock().unwrap().send((client, state, told)).unwrap();
        when_told.recv().unwrap();
    }

    fn get_attr(&self, _: ClientKey, _: &Handle, _: u64) {}

    fn lock_available(&self, _: ClientKey, _: &Handle, _: &[u8]) {}

    fn client_gone(&self, _: ClientKey) {}
}

/// Otherwise one operation would keep its thread, and the table's lock most of the time, for as
/// long as the holder's lease lasts.
#[test]
fn an_unreachable_holder_blocks_as_long_as_any_other() {
    let world = World::new();
    let (holder, other) = (world.nfs("a"), world.nfs("b"));
    granted(&world, &holder, BOTH);
    let (sender, failed) = mpsc::sync_channel(0);
    let front = Arc::new(NoWay { calls: AtomicUsize::new(0), failed: Mutex::new(sender) });
    holder.set_front(Arc::<NoWay>::downgrade(&front));
    std::thread::scope(|scope| {
        let service = &world.service;
        scope.spawn(move || {
            for (client, state, told) in failed {
                service.delegations.recall_failed(client, state);
                told.send(()).unwrap();
            }
        });
        let caller = world.patient(&other);
        let opened = service.opens.open(caller, &world.plain("f", "owner", READ));
        assert_eq!(error(opened), ServiceError::Delay);
        let calls = front.calls.load(Ordering::Relaxed);
        assert!(calls > 1, "the recall is sent again");
        let removed = service.remove(caller, &world.root, b"f", RemoveMode::Unchecked);
        assert_eq!(removed.map(drop), Err(ServiceError::Delay));
        assert!(front.calls.load(Ordering::Relaxed) > calls + 1, "and by the next one too");
        // The thread ends with the last sender.
        drop(front);
    });
}

/// RFC 9754: a delegation instead of an open.
#[test]
fn a_delegation_may_stand_for_the_open() {
    let world = World::new();
    let (one, two) = (world.nfs("a"), world.nfs("b"));
    let want = Want { kind: WantKind::NoPreference, open_xor: true, timestamps: true };
    let open = |client| {
        let request = OpenRequest { want, ..world.plain("f", "o", BOTH) };
        world.service.opens.open(world.caller(client), &request)
    };
    let opened = open(&one).unwrap();
    let delegation = opened.delegation.unwrap();
    assert!(opened.delegation_only && delegation.timestamps);
    assert_eq!(world.service.counts().opens, 0);
    let handle = *opened.state.handle();
    let io = world.service.opens.io_file(world.caller(&one), &handle, delegation.state, MODE_WRITE);
    assert!(io.is_ok());
    assert_eq!(error(open(&two)), ServiceError::WouldWait);
    give_back(&world, &one, &handle, delegation.state).unwrap();
    // No delegation is granted now, so there is an open.
    let opened = open(&two).unwrap();
    assert!(!opened.delegation_only);
    assert_eq!(world.service.counts().opens, 1);
}

#[test]
fn emptying_a_file_says_so_in_the_recall() {
    let Held { world, holder, other, handle, state, .. } = Held::new(BOTH);
    let attr = SetAttr { size: Some(0), ..SetAttr::default() };
    let how = OpenHow::Create(CreateHow::Unchecked, attr);
    let request = OpenRequest { how, ..world.plain("f", "o", WRITE) };
    let blocked = world.service.opens.open(world.caller(&other), &request);
    assert_eq!(error(blocked), ServiceError::WouldWait);
    let told = Told::Recall(holder.key(), handle, state, true);
    assert_eq!(world.ear.take(), [told]);
}

#[test]
fn delegations_are_reclaimed() {
    let (world, holder, handle) = returned(|config| config);
    let opened = reclaimed(&world, &holder, &handle);
    let delegation = opened.delegation.unwrap();
    assert_eq!((delegation.kind, delegation.recall), (DelegationKind::Write, false));
    world.service.clients.reclaim_complete(&holder).unwrap();
    let other = world.nfs("b");
    assert_eq!(error(world.open(&other, "f", READ)), ServiceError::WouldWait);
}

/// RFC 8881 10.2.1: the server could not recall it, so the reply to the reclaim tells its holder to
/// return it.
#[test]
fn a_delegation_reclaimed_without_a_back_channel_is_to_be_returned_at_once() {
    let (world, holder, handle) = returned(|config| config);
    world.service.set_back_channel(&holder, false);
    let opened = reclaimed(&world, &holder, &handle);
    assert!(opened.delegation.unwrap().recall);
}

#[test]
fn a_server_that_gives_no_delegations_any_more_gives_the_open_back_alone() {
    for delegations in [true, false] {
        let (world, holder, handle) = returned(|config| ServiceConfig { delegations, ..config });
        let opened = reclaimed(&world, &holder, &handle);
        let kind = opened.delegation.as_ref().map(|delegation| delegation.kind);
        let expected =
            if delegations { Ok(DelegationKind::Write) } else { Err(&NoDelegation::Policy) };
        assert_eq!(kind, expected);
        assert_eq!(opened.state.share(), BOTH);
        world.service.clients.reclaim_complete(&holder).unwrap();
        world.close(&holder, &opened);
    }
}

/// RFC 8881 10.4.3.
#[test]
fn the_holder_is_asked_for_attributes() {
    let Held { world, holder, other, opened, handle, .. } = Held::new(BOTH);
    let look = |client| world.service.delegations.attributes(world.caller(client), &handle);
    let known = look(&holder).unwrap();
    assert_eq!(world.ear.take(), []);
    assert_eq!(look(&other), Err(ServiceError::WouldWait));
    let asked = world.ear.take();
    let [Told::GetAttr(key, _, query)] = asked[..] else { panic!("{asked:?}") };
    assert_eq!(key, holder.key());
    assert_eq!(look(&other), Err(ServiceError::WouldWait));
    assert_eq!(world.ear.take(), []);
    // An answer of another client does not count.
    let answer = AttrAnswer { change: known.change + 1, size: 77, atime: None, mtime: None };
    world.service.delegations.attr_answer(&other, query, Some(answer));
    assert_eq!(look(&other), Err(ServiceError::WouldWait));
    world.service.delegations.attr_answer(&holder, query, Some(answer));
    let seen = look(&other).unwrap();
    assert_eq!(seen.size, 77);
    assert!(seen.change != known.change);
    let again = look(&other).unwrap();
    assert_eq!(again.size, 77);
    assert!(again.change != seen.change, "it may have changed again");
    // An answer expires, and a holder that has not changed the file leaves its attributes alone.
    world.pass(SECOND_NS);
    assert_eq!(look(&other), Err(ServiceError::WouldWait));
    let asked = world.ear.take();
    let [Told::GetAttr(_, _, query)] = asked[..] else { panic!("{asked:?}") };
    let answer = AttrAnswer { change: known.change, size: known.size, atime: None, mtime: None };
    world.service.delegations.attr_answer(&holder, query, Some(answer));
    assert_eq!(look(&other), Ok(known));
    // Changes that were written back are not counted again, though the size is not the granted one.
    let longer = SetAttr { size: Some(5), ..SetAttr::default() };
    let state = opened.state.reference();
    let written = world.service.setattr(world.caller(&holder), &handle, state, &longer).unwrap();
    world.pass(SECOND_NS);
    assert_eq!(look(&other), Err(ServiceError::WouldWait));
    let asked = world.ear.take();
    let [Told::GetAttr(_, _, query)] = asked[..] else { panic!("{asked:?}") };
    let answer = AttrAnswer { size: 5, ..answer };
    world.service.delegations.attr_answer(&holder, query, Some(answer));
    assert_eq!([look(&other), look(&other)], [Ok(written); 2]);
}

#[test]
fn a_holder_that_does_not_answer_loses_the_delegation() {
    let Held { world, holder, other, handle, state, .. } = Held::new(BOTH);
    let look = || world.service.delegations.attributes(world.caller(&other), &handle);
    assert_eq!(look(), Err(ServiceError::WouldWait));
    assert!(matches!(world.ear.take()[..], [Told::GetAttr(..)]));
    world.pass(4 * SECOND_NS);
    assert_eq!(look(), Err(ServiceError::WouldWait));
    assert_eq!(world.ear.take(), recall_of(&holder, &handle, state));
    give_back(&world, &holder, &handle, state).unwrap();
    assert!(look().is_ok());
    assert_eq!(world.service.counts().delegations, 0);
}

/// The waiting side and the answering side run in two threads.
#[test]
fn a_patient_caller_goes_on_as_soon_as_the_delegation_is_returned() {
    let Held { world, holder, other, handle, state, .. } = Held::new(BOTH);
    let (service, ear, now_ns) = (&world.service, &world.ear, world.now_ns.get());
    let cred = world.cred.clone();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while ear.take().is_empty() {
                std::thread::yield_now();
            }
            let wait = dafs_store::Wait::Never;
            let caller = dafs_service::Caller {
                client: &holder,
                cred: &cred,
                subject: dafs_service::Subject::Server,
                wait,
                now_ns,
            };
            service.delegations.take_back(caller, Some(&handle), state).unwrap();
        });
        let request = world.plain("f", "owner", WRITE);
        // On a very busy machine one wait may take too long. Then the caller retries.
        let opened = loop {
            match service.opens.open(world.patient(&other), &request) {
                Err(ServiceError::Delay) => {}
                done => break done,
            }
        };
        opened.unwrap();
    });
    assert_eq!(world.service.counts().delegations, 0);
}

#[test]
fn an_open_that_truncates_may_get_a_delegation() {
    let world = World::new();
    let client = world.nfs("a");
    let opened = world.open(&client, "f", WRITE).unwrap();
    world.close(&client, &opened);
    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
    let request = OpenRequest {
        how: OpenHow::Create(CreateHow::Unchecked, empty),
        want: Want::default(),
        ..world.plain("f", "owner", BOTH)
    };
    let opened = world.service.opens.open(world.caller(&client), &request).unwrap();
    assert_eq!(opened.delegation.map(|granted| granted.kind), Ok(DelegationKind::Write));
}

#[test]
fn a_delegation_beside_a_shared_lock_is_recalled_when_that_breaks() {
    let world = World::new();
    let (one, nfs) = (world.instance("a", 1), world.nfs("n"));
    let mine = world.plain("f", "owner", READ);
    let mine = world.service.opens.open(world.patient(&one), &mine).unwrap();
    try_lock(&world, &one, &mine, (0, 10), LockKind::Read, PERSIST).unwrap();
    let want = Want { kind: WantKind::Read, ..Want::default() };
    let request = OpenRequest { want, ..world.plain("f", "owner", READ) };
    let opened = world.service.opens.open(world.patient(&nfs), &request).unwrap();
    let granted = opened.delegation.expect("two readers do not disturb each other");
    assert_eq!(world.ear.take(), []);
    world.instance("a", 2);
    let told = world.ear.take();
    assert!(
        matches!(told[..], [Told::Recall(_, _, state, false)] if state == granted.state),
        "{told:?}"
    );
}
