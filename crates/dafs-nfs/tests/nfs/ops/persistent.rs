//! Persistent sessions: the server crashes at every step of requests of every kind, and its client
//! retries them on the session that it had (RFC 8881 2.10.6.5).

use super::helper::*;
use crate::common::*;
use dafs_journal::sim::SimDisk;
use dafs_service::durable::Durability;
use dafs_service::{ExportOptions, Squash};
use dafs_store::{Cred, MemoryOptions, MemoryStore, Store};
use dafs_wire::nfs4::*;
use std::sync::Arc;

pub(crate) const ROOT: Op<'static> = Op::Putrootfh(PutrootfhArgs);

/// The state that outlives a run.
pub(crate) struct Kept {
    store: Arc<MemoryStore>,
    disk: Arc<SimDisk>,
    options: ExportOptions,
    runs: u32,
    boots: u8,
}

impl Kept {
    pub(crate) fn new(durable_replies: Durability) -> Self {
        let store = Arc::new(MemoryStore::new(MemoryOptions::default()));
        let options =
            ExportOptions { squash: Squash::None, durable_replies, ..ExportOptions::default() };
        Self { store, disk: Arc::new(SimDisk::new()), options, runs: 0, boots: 0 }
    }

    pub(crate) fn start(&mut self) -> World {
        self.runs += 1;
        let (store, disk) = (self.store.clone(), Some((self.disk.clone(), self.boots)));
        let mut world = World::run_of(self.runs, store, self.options.clone(), disk);
        world.minor = 2;
        world
    }

    pub(crate) fn restart(&mut self, world: World) -> World {
        drop(world);
        self.start()
    }

    pub(crate) fn has(&self, name: &[u8]) -> bool {
        let cred = Cred::new(0, 0);
        self.store.peek(&cred, &self.store.root(), name).is_ok()
    }
}

fn persistent_session(world: &mut World, owner: &[u8], verifier: u8) -> Session {
    let exchanged = world.exchange(0, owner, verifier);
    let mut args = create_session(exchanged.client_id, exchanged.sequence_id);
    args.flags = CreateSessionFlags::PERSIST;
    let mut session = world.session(1, args);
    world.complete(&mut session);
    session
}

/// Makes a server whose client has a persistent session, and some files.
pub(crate) fn prepared(mode: Durability) -> (Kept, World, Session) {
    let mut kept = Kept::new(mode);
    let mut world = kept.start();
    let mut session = persistent_session(&mut world, b"client", 1);
    assert!(session.created.flags.contains(CreateSessionFlags::PERSIST));
    for name in [&b"victim"[..], b"other"] {
        let access = ShareAccess::BOTH | Want::None.number();
        let ops = [ROOT, open(name, access, unchecked(NOTHING))];
        let answer = world.next(&mut session, &ops);
        let ResultBody::Open(opened) = answer.body(2) else { panic!() };
        let ops = [ROOT, lookup(name), close(opened.stateid)];
        assert_eq!(world.next(&mut session, &ops).status(), Status::Ok);
    }
    let set = Op::Setxattr(SetxattrArgs {
        option: SetxattrOption::Create,
        name: b"old",
        value: b"value",
    });
    assert_eq!(world.next(&mut session, &[ROOT, lookup(b"other"), set]).status(), Status::Ok);
    (kept, world, session)
}

/// A request with one change, and a check if it was executed.
struct Case {
    name: &'static str,
    ops: Vec<Op<'static>>,
    done: fn(&Kept) -> bool,
}

fn directory(name: &'static [u8]) -> Op<'static> {
    make(CreateType::Plain(FileType::Directory), name)
}

pub(crate) fn remove(name: &'static [u8]) -> Op<'static> {
    Op::Remove(RemoveArgs { name })
}

fn xattr(kept: &Kept, name: &[u8]) -> bool {
    let (cred, root) = (Cred::new(0, 0), kept.store.root());
    let (file, _) = kept.store.peek(&cred, &root, b"other").unwrap();
    kept.store.xattr(&cred, &file, name).is_ok()
}

fn size(kept: &Kept, name: &[u8]) -> u64 {
    let (file, _) = kept.store.peek(&Cred::new(0, 0), &kept.store.root(), name).unwrap();
    kept.store.getattr(&file).unwrap().size
}

/// Encodes attributes with only this size.
fn size_9() -> Fattr<'static> {
    Fattr { mask: Attr::set(&[Attr::Size]), values: &[0, 0, 0, 0, 0, 0, 0, 9] }
}

fn cases() -> Vec<Case> {
    let look = getattr(&[Attr::Fileid, Attr::Change]);
    let savefh = savefh();
    let other = lookup(b"other");
    let access = ShareAccess::BOTH | Want::None.number();
    let set =
        |name, value| Op::Setxattr(SetxattrArgs { option: SetxattrOption::Create, name, value });
    vec![
        Case {
            name: "directory",
            ops: vec![ROOT, directory(b"new"), getfh(), look.clone()],
            done: |kept| kept.has(b"new"),
        },
        Case {
            name: "open",
            ops: vec![ROOT, open(b"new", access, OpenHow::Guarded(NOTHING)), getfh(), look.clone()],
            done: |kept| kept.has(b"new"),
        },
        Case {
            name: "remove",
            ops: vec![ROOT, remove(b"victim")],
            done: |kept| !kept.has(b"victim"),
        },
        Case {
            name: "rename",
            ops: vec![
                ROOT,
                savefh.clone(),
                ROOT,
                Op::Rename(RenameArgs { old_name: b"victim", new_name: b"moved" }),
                look.clone(),
            ],
            done: |kept| kept.has(b"moved") && !kept.has(b"victim"),
        },
        Case {
            name: "link",
            ops: vec![
                ROOT,
                other.clone(),
                savefh,
                ROOT,
                Op::Link(LinkArgs { name: b"second" }),
                Op::Restorefh(RestorefhArgs),
                look.clone(),
            ],
            done: |kept| kept.has(b"second"),
        },
        Case {
            name: "setattr",
            ops: vec![
                ROOT,
                other.clone(),
                Op::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attributes: size_9() }),
                look.clone(),
            ],
            done: |kept| size(kept, b"other") == 9,
        },
        Case {
            name: "setxattr",
            ops: vec![ROOT, other.clone(), set(b"new", b"1"), look.clone()],
            done: |kept| xattr(kept, b"new"),
        },
        Case {
            name: "removexattr",
            ops: vec![ROOT, other.clone(), Op::Removexattr(RemovexattrArgs { name: b"old" })],
            done: |kept| !xattr(kept, b"old"),
        },
        Case {
            name: "write",
            ops: vec![
                ROOT,
                other,
                write_stable(Stateid::ANONYMOUS, 0, b"stable", StableHow::FileSync),
                look,
            ],
            done: |kept| size(kept, b"other") == 6,
        },
    ]
}

/// Crashes the server after so many jobs of its pool. Returns its answer, if there was one by then.
fn run_and_kill(
    mut world: World,
    session: &mut Session,
    ops: &[Op<'_>],
    steps: u32,
) -> Option<Answer> {
    session.sequence += 1;
    let ops = with_sequence(session.sequence_args(), ops);
    let args = world.encode(&ops);
    let at_once = world.start(1, 0, &args);
    assert!(matches!(at_once, dafs_rpc::Handled::Later), "{at_once:?}");
    for _ in 0..steps {
        world.pool.step();
    }
    let answer = world.collect().pop()?;
    Some(Answer(answer.unwrap().to_bytes()))
}

pub(crate) const MODES: [Durability; 2] = [Durability::Crash, Durability::Power];

#[test]
fn a_request_is_carried_out_once_wherever_the_server_dies() {
    for mode in MODES {
        for case in cases() {
            let (mut rebuilt, mut replayed, mut not_done) = (0, 0, 0);
            for steps in 0.. {
                let what = format!("{} {mode:?} after {steps} steps", case.name);
                let (mut kept, world, mut session) = prepared(mode);
                let before = run_and_kill(world, &mut session, &case.ops, steps);
                let done = (case.done)(&kept);
                let mut world = kept.start();
                let again = world.again(&session, &case.ops);
                if done {
                    assert_eq!(again.status(), Status::Ok, "{what}: {:?}", again.results());
                    assert_eq!(again.results().len(), case.ops.len() + 1);
                } else {
                    assert_eq!(again.status(), Status::DeadSession, "{what}");
                    assert_eq!(again.head().op_count, 1);
                }
                assert_eq!((case.done)(&kept), done, "{what}: nothing is changed by a retry");
                assert_eq!(world.again(&session, &case.ops).status(), again.status(), "{what}");
                // The session executes no new request, and no other one with that sequence id.
                let other = world.again(&session, &[ROOT, getfh()]);
                assert_eq!(other.status(), Status::DeadSession, "{what}");
                let new = world.next(&mut session, &[ROOT, getfh()]);
                assert_eq!(new.status(), Status::DeadSession, "{what}");
                match before {
                    Some(before) => {
                        assert_eq!(before, again, "{what}");
                        replayed += 1;
                    }
                    None if done => rebuilt += 1,
                    None => not_done += 1,
                }
                if replayed > 1 {
                    break;
                }
            }
            assert!(not_done > 0, "{}: {mode:?}", case.name);
            // Data is stable with the write, so there is no later wait.
            let waits = mode == Durability::Power && case.name != "write";
            assert_eq!(rebuilt > 0, waits, "{}: {mode:?}", case.name);
        }
    }
}

#[test]
fn a_change_whose_reply_was_not_written_is_found_out() {
    for mode in MODES {
        for case in cases() {
            let (mut rebuilt, mut refused) = (0, 0);
            for calls in 0..6 {
                let what = format!("{} {mode:?} after {calls} calls", case.name);
                let (mut kept, mut world, mut session) = prepared(mode);
                kept.disk.fail_after(Some(calls));
                let before = world.next(&mut session, &case.ops);
                let done = (case.done)(&kept);
                kept.disk.fail_after(None);
                let mut world = kept.restart(world);
                let again = world.again(&session, &case.ops);
                assert_eq!(again.status() == Status::Ok, done, "{what}: {:?}", again.results());
                assert!(done || again.status() == Status::DeadSession, "{what}");
                assert!(done || before.status() == Status::Io, "{what}: {:?}", before.results());
                assert_eq!((case.done)(&kept), done, "{what}: nothing is changed by a retry");
                rebuilt += u32::from(done && again != before);
                refused += u32::from(!done);
            }
            assert!(refused > 0, "{} {mode:?}", case.name);
            assert!(rebuilt > 0, "{} {mode:?}", case.name);
        }
    }
}

/// For a request with several changes, the retry gets the results of those that were made, and the
/// rest is delayed.
#[test]
fn a_request_is_gone_on_with_to_the_last_change_that_was_made() {
    for mode in MODES {
        let ops = [
            ROOT,
            directory(b"one"),
            getfh(),
            ROOT,
            remove(b"victim"),
            Op::Verify(VerifyArgs { attributes: NOTHING }),
            directory(b"two"),
            getfh(),
        ];
        let (mut partly, mut whole) = (0, 0);
        for steps in 0.. {
            let (mut kept, world, mut session) = prepared(mode);
            let before = run_and_kill(world, &mut session, &ops, steps);
            let done = [kept.has(b"one"), !kept.has(b"victim"), kept.has(b"two")];
            let mut world = kept.start();
            let again = world.again(&session, &ops);
            let count = done.iter().filter(|&&done| done).count();
            let (status, results) =
                [(Status::DeadSession, 1), (Status::Delay, 6), (Status::Delay, 8), (Status::Ok, 9)]
                    [count];
            let what = format!("{mode:?} after {steps} steps: {done:?}");
            assert_eq!(again.status(), status, "{what}: {:?}", again.results());
            assert_eq!(again.results().len(), results, "{what}");
            assert_eq!(done, [kept.has(b"one"), !kept.has(b"victim"), kept.has(b"two")]);
            partly += u32::from(count == 1 || count == 2);
            whole += u32::from(before.is_some());
            if whole > 1 {
                break;
            }
        }
        assert_eq!(partly > 0, mode == Durability::Power);
    }
}

/// A change that the journal does not take is not reported as done, and no operation behind it
/// begins.
#[test]
fn a_change_that_is_not_settled_is_what_fails() {
    let access = ShareAccess::BOTH | Want::None.number();
    let open_other = open(b"other", access, OpenHow::NoCreate);
    for next in [remove(b"victim"), open_other] {
        let (mut unsettled, mut whole) = (0, 0);
        for calls in 0..12 {
            let (kept, mut world, mut session) = prepared(Durability::Power);
            let opens = world.shared.service.counts().opens;
            kept.disk.fail_after(Some(calls));
            let ops = [ROOT, directory(b"one"), getfh(), ROOT, next.clone()];
            let answer = world.next(&mut session, &ops);
            let what = format!("after {calls} calls: {:?}", answer.results());
            let results = answer.results();
            let untouched = kept.has(b"victim") && world.shared.service.counts().opens == opens;
            if results.len() == 3 && kept.has(b"one") {
                assert_eq!((results[2].status, answer.status()), (Status::Io, Status::Io));
                assert!(untouched, "{what}");
                unsettled += 1;
            }
            whole += u32::from(answer.status() == Status::Ok);
        }
        assert!(unsettled > 0 && whole > 0, "{unsettled} {whole}");
    }
}

/// A reply that is too long is rebuilt from the results of the changes.
#[test]
fn a_long_reply_is_made_anew() {
    for mode in MODES {
        let (mut kept, mut world, mut session) = prepared(mode);
        let text = [b'x'; 3000];
        let link = make(CreateType::Symlink(text.as_slice().into()), b"new");
        let ops = [ROOT, link, getfh(), Op::Readlink(ReadlinkArgs)];
        let before = world.next(&mut session, &ops);
        assert!(before.0.len() > dafs_nfs::limits::DURABLE_REPLY_BYTES_MAX, "{}", before.0.len());
        let mut world = kept.restart(world);
        let again = world.again(&session, &ops);
        let results = |answer: &Answer| format!("{:?}", &answer.results()[1..]);
        assert_eq!(results(&again), results(&before));
    }
}

/// The reply is still on its way to the disk when it is sent, but the change and its intent are
/// stable.
#[test]
fn an_answered_change_survives_a_loss_of_power() {
    for case in cases() {
        for lasts in [false, true] {
            let what = format!("{}, writes last: {lasts}", case.name);
            let (mut kept, mut world, mut session) = prepared(Durability::Power);
            let before = world.next(&mut session, &case.ops);
            drop(world);
            kept.disk.cut_power(&mut || lasts);
            kept.boots += 1;
            let mut world = kept.start();
            let again = world.again(&session, &case.ops);
            assert_eq!(again.status(), Status::Ok, "{what}: {:?}", again.results());
            assert_eq!(again == before, lasts, "{what}");
            // An answer without the recorded reply is the same, except for the state-id of the open
            // and the change of the directory, in which others may have a part.
            let (first, last) = (before.results(), again.results());
            assert_eq!(first.len(), last.len(), "{what}");
            for (first, last) in first.iter().zip(&last) {
                match (&first.body, &last.body) {
                    (ResultBody::Create(first), ResultBody::Create(last)) => {
                        assert_eq!(first.attributes_set, last.attributes_set);
                        assert_eq!(first.change.before, last.change.before);
                        assert_eq!(first.change.after, last.change.after);
                    }
                    (ResultBody::Open(first), ResultBody::Open(last)) => {
                        assert_eq!(first.attributes_set, last.attributes_set);
                        assert_eq!(first.change.after, last.change.after);
                        assert!(lasts || first.stateid != last.stateid);
                    }
                    (ResultBody::Setattr(first), ResultBody::Setattr(last)) => {
                        assert_eq!(first.attributes_set, last.attributes_set);
                    }
                    (ResultBody::Write(first), ResultBody::Write(last)) => {
                        assert_eq!((first.count, first.committed), (last.count, last.committed));
                    }
                    (ResultBody::Getfh(first), ResultBody::Getfh(last)) => {
                        assert_eq!(first.handle, last.handle);
                    }
                    _ => assert_eq!(first.status, last.status),
                }
            }
        }
    }
}

/// The journal keeps the changes of one request for each slot, wherever they are in it.
#[test]
fn the_kept_replies_do_not_grow() {
    let (mut kept, mut world, mut session) = prepared(Durability::Crash);
    for round in 0..1000 {
        let mut ops = vec![ROOT; 1 + round % 10];
        ops.extend([directory(b"new"), ROOT, remove(b"new")]);
        assert_eq!(world.next(&mut session, &ops).status(), Status::Ok);
        let statistics = world.shared.service.durable.journal_statistics().unwrap();
        assert_eq!((statistics.changes, statistics.in_flight), (2, 0));
    }
    let ops = [ROOT, remove(b"victim")];
    let before = world.next(&mut session, &ops);
    assert_eq!(kept.restart(world).again(&session, &ops), before);
}

/// Refusals are repeated, too.
#[test]
fn a_refusal_is_repeated() {
    for mode in MODES {
        let (mut kept, mut world, mut session) = prepared(mode);
        let ops = [ROOT, remove(b"none")];
        let before = world.next(&mut session, &ops);
        assert_eq!(before.status(), Status::NoEnt);
        assert_eq!(kept.restart(world).again(&session, &ops), before);
    }
}

/// If the operations before an executed change cannot be repeated, the client learns that the
/// session is lost.
#[test]
fn a_change_whose_directory_is_gone_is_not_called_undone() {
    let (mut kept, mut world, mut session) = prepared(Durability::Crash);
    world.next(&mut session, &[ROOT, directory(b"dir")]);
    kept.disk.fail_after(Some(1));
    let ops = [ROOT, lookup(b"dir"), directory(b"sub")];
    assert_eq!(world.next(&mut session, &ops).status(), Status::Ok);
    kept.disk.fail_after(None);
    let mut world = kept.restart(world);
    let (cred, root) = (Cred::new(0, 0), kept.store.root());
    kept.store.rename(&cred, &root, b"dir", &root, b"elsewhere").unwrap();
    let again = world.again(&session, &ops);
    assert_eq!((again.status(), again.head().op_count), (Status::DeadSession, 1));
}

#[test]
fn replies_that_no_client_asks_for_are_forgotten() {
    let ops = [ROOT, remove(b"victim")];
    // By the client, when it has recovered.
    let (mut kept, mut world, mut session) = prepared(Durability::Crash);
    let before = world.next(&mut session, &ops);
    let mut world = kept.restart(world);
    assert_eq!(world.again(&session, &ops), before);
    let bind = Op::BindConnToSession(BindConnToSessionArgs {
        session_id: session.id,
        direction: ChannelFromClient::Fore,
        use_rdma: false,
    });
    assert_eq!(world.send(1, 0, &[bind]).status(), Status::DeadSession);
    // A new session of the same instance does not affect the old one.
    persistent_session(&mut world, b"client", 1);
    assert_eq!(world.again(&session, &ops), before);
    let destroy = Op::DestroySession(DestroySessionArgs { session_id: session.id });
    assert_eq!(world.send(1, 0, std::slice::from_ref(&destroy)).status(), Status::Ok);
    assert_eq!(world.again(&session, &ops).status(), Status::BadSession);
    assert_eq!(world.send(1, 0, &[destroy]).status(), Status::BadSession);
    assert_eq!(kept.restart(world).again(&session, &ops).status(), Status::BadSession);
    // By another instance of the client.
    let (mut kept, mut world, mut session) = prepared(Durability::Crash);
    world.next(&mut session, &ops);
    let mut world = kept.restart(world);
    persistent_session(&mut world, b"stranger", 2);
    assert_eq!(world.again(&session, &ops).status(), Status::Ok);
    persistent_session(&mut world, b"client", 2);
    assert_eq!(world.again(&session, &ops).status(), Status::BadSession);
    // With a session of the same run.
    let (mut kept, mut world, mut session) = prepared(Durability::Crash);
    world.next(&mut session, &ops);
    let destroy = Op::DestroySession(DestroySessionArgs { session_id: session.id });
    assert_eq!(world.send(1, 0, &[destroy]).status(), Status::Ok);
    assert_eq!(kept.restart(world).again(&session, &ops).status(), Status::BadSession);
}

#[test]
fn another_user_is_not_told() {
    let (mut kept, mut world, mut session) = prepared(Durability::Crash);
    let ops = [ROOT, remove(b"victim")];
    world.next(&mut session, &ops);
    let mut world = kept.restart(world);
    let all = with_sequence(session.sequence_args(), &ops);
    assert_eq!(world.send(1, 7, &all).status(), Status::DeadSession);
    assert_eq!(world.send(1, 0, &all).status(), Status::Ok);
}

#[test]
fn a_user_who_takes_a_clients_name_does_not_take_its_replies_away() {
    let (mut kept, mut world, mut session) = prepared(Durability::Crash);
    let ops = [ROOT, remove(b"victim")];
    let before = world.next(&mut session, &ops);
    let mut world = kept.restart(world);
    let thief = world.exchange(7, b"client", 3);
    let taken = Op::CreateSession(create_session(thief.client_id, thief.sequence_id));
    assert_eq!(world.send(1, 7, &[taken]).status(), Status::Ok);
    assert_eq!(world.again(&session, &ops), before);
}

/// Only a server that records all changes grants persistence, and only to clients that request it.
#[test]
fn sessions_persist_where_every_change_is_kept() {
    let mut kept = Kept::new(Durability::Off);
    let mut world = kept.start();
    let session = persistent_session(&mut world, b"client", 1);
    assert!(!session.created.flags.contains(CreateSessionFlags::PERSIST));
    let (mut kept, mut world, _) = prepared(Durability::Crash);
    let mut session = world.client(b"other");
    assert!(!session.created.flags.contains(CreateSessionFlags::PERSIST));
    world.complete(&mut session);
    world.next(&mut session, &[ROOT, remove(b"victim")]);
    let mut world = kept.restart(world);
    let again = world.again(&session, &[ROOT, remove(b"victim")]);
    assert_eq!(again.status(), Status::BadSession);
}
