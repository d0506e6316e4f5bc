//! Records of changes and sessions, and their retention.

use super::*;
use dafs_service::{ClientAddress, ExchangeId, Host, Protection};

#[test]
fn a_change_that_is_refused_makes_nothing_stable() {
    let world = World::new(Durability::Power);
    let mut op = world.op(0, &Change::Remove { dir: &world.root, name: b"nothing" });
    op.nothing_changed();
    let settled = world.service.durable.settle(op, b"not found", true, world.notify("sent"));
    assert_eq!(settled, Settled::Now);
    assert_eq!(world.statistics().rounds, 0);
    let world = world.crash(false);
    assert!(matches!(world.kept_answer(0), Some(Answer::Reply { .. })));
}

/// A new object is complete only with its owner, mode and times.
#[test]
fn an_object_whose_attributes_were_not_set_yet_gets_them() {
    let time = TimeSpec { seconds: 77, nanoseconds: 5 };
    let attr = SetAttr {
        mode: Some(0o2750),
        uid: Some(7),
        gid: Some(8),
        mtime: Some(SetTime::To(time)),
        ..NONE
    };
    for mode in [Durability::Crash, Durability::Power] {
        for (kind, object) in
            [(Kind::Directory, NewObject::Directory), (Kind::Symlink, NewObject::Symlink(b"to"))]
        {
            let world = World::new(mode);
            let change = Change::Make { dir: &world.root, name: b"new", kind, attr: &attr };
            std::mem::forget(world.op(0, &change));
            world.store.make(&world.cred, &world.root.file, b"new", object, &NONE).unwrap();
            let world = world.crash(mode == Durability::Power);
            assert!(matches!(world.kept_answer(0), Some(Answer::Happened(_))));
            let found = world.store.getattr(&world.at("new").unwrap().file).unwrap();
            assert_eq!((found.uid, found.gid, found.mtime), (7, 8, time));
            assert_eq!(found.mode == 0o2750, kind == Kind::Directory);
        }
    }
}

/// The client may get an error because the reply did not fit, but the change is stable.
#[test]
fn a_change_that_was_made_is_made_stable_whatever_is_answered() {
    let world = World::new(Durability::Power);
    let mut op = world.op(0, &Change::Remove { dir: &world.root, name: b"old" });
    op.executed();
    op.nothing_changed();
    let settled = world.service.durable.settle(op, b"too small", true, world.notify("sent"));
    assert_eq!(settled, Settled::Later);
    world.run();
    assert_eq!(world.statistics().rounds, 1);
}

#[test]
fn a_change_that_ends_in_a_panic_is_not_called_undone() {
    for mode in [Durability::Crash, Durability::Power] {
        let world = World::new(mode);
        let op = world.op(0, &Change::Remove { dir: &world.root, name: b"victim" });
        let request = std::panic::AssertUnwindSafe(|| {
            let _op = op;
            world.store.remove(&world.cred, &world.store.root(), b"victim").unwrap();
            panic!("a mistake")
        });
        std::panic::catch_unwind(request).unwrap_err();
        // Others may change the same now.
        let op = world.op(1, &Change::Remove { dir: &world.root, name: b"victim" });
        world.settle(op, b"not found");
        let world = world.crash(false);
        assert_eq!(world.kept_answer(0), Some(Answer::Failed));
    }
}

/// Its front end may end before the job that executes it.
#[test]
fn a_change_that_a_job_may_have_made_is_not_called_undone() {
    for mode in [Durability::Crash, Durability::Power] {
        for (runs, is_last) in [(false, false), (false, true), (true, false), (true, true)] {
            let world = World::new(mode);
            let remove = Change::Remove { dir: &world.root, name: b"victim" };
            let op = world.op(0, &remove);
            let execution = op.execution();
            let next = waiting(world.intend(1, "next", &remove));
            let job = |execution: Execution| match runs {
                true => execution.run(|| {
                    world.store.remove(&world.cred, &world.store.root(), b"victim").unwrap();
                }),
                false => drop(execution),
            };
            // The other one of front end and job goes first, and the change keeps its locks.
            if is_last {
                drop(op);
                world.run();
                assert!(world.told().is_empty());
                job(execution);
            } else {
                job(execution);
                world.run();
                assert!(world.told().is_empty());
                drop(op);
            }
            world.run();
            assert_eq!(world.told(), [("next", Ok(()))]);
            drop(next);
            assert_eq!(world.statistics().in_flight, 0);
            let world = world.crash(false);
            assert_eq!(world.kept_answer(0), runs.then_some(Answer::Failed));
            assert_eq!(world.kept_answer(1), None);
        }
    }
}

#[test]
fn a_change_that_was_made_is_in_doubt_without_its_reply() {
    for mode in [Durability::Crash, Durability::Power] {
        let world = World::new(mode);
        let mut op = world.op(0, &Change::Remove { dir: &world.root, name: b"victim" });
        world.store.remove(&world.cred, &world.store.root(), b"victim").unwrap();
        op.executed();
        drop(op);
        let world = world.crash(false);
        assert_eq!(world.kept_answer(0), Some(Answer::Failed));
    }
}

/// A change whose job is over is settled as usual, with its reply.
#[test]
fn a_change_that_a_job_has_made_gets_its_reply() {
    for mode in [Durability::Crash, Durability::Power] {
        let world = World::new(mode);
        let op = world.op(0, &Change::Remove { dir: &world.root, name: b"victim" });
        op.execution().run(|| {
            world.store.remove(&world.cred, &world.store.root(), b"victim").unwrap();
        });
        world.settle(op, b"removed");
        let world = world.crash(false);
        assert!(matches!(world.kept_answer(0), Some(Answer::Reply { .. })));
    }
}

/// A change in the same round is not reported as failed.
#[test]
fn a_change_of_what_never_was_hurts_nobody_else() {
    let world = World::new(Durability::Power);
    let forged = Handle { fs: world.root.fs, file: FileId([9; 48]) };
    let (dir, name, attr) = (&forged, &b"x"[..], &NONE);
    let changes = [
        Change::SetAttr { file: &forged, change: attr, masked: None, acl: None },
        Change::Create { dir, name, attr },
        Change::Make { dir, name, kind: Kind::Directory, attr },
        Change::Remove { dir, name },
        Change::Rename { from_dir: &world.root, from: b"old", to_dir: dir, to: name },
        Change::Rename { from_dir: dir, from: name, to_dir: &world.root, to: name },
        Change::Link { source: &world.root, dir, name },
    ];
    for change in &changes {
        let op = world.op(0, &Change::Remove { dir: &world.root, name: b"nothing" });
        let asked =
            world.service.durable.intend(world.caller(), &world.key(1), change, world.notify("x"));
        if let Ok(Intended::Ready(forged) | Intended::Waiting(forged)) = asked {
            world.run();
            let _ = world.service.durable.settle(forged, b"refused", true, Box::new(|_| ()));
            world.told();
        }
        world.settle(op, b"not found");
    }
}

#[test]
fn a_journal_that_fails_refuses_changes() {
    let world = World::new(Durability::Power);
    let change = Change::Remove { dir: &world.root, name: b"old" };
    world.disk.fail_after(Some(0));
    let Intended::Waiting(op) = world.intend(0, "go", &change) else { panic!() };
    world.run();
    assert_eq!(world.told(), [("go", Err(StoreError::Io.into()))]);
    drop(op);
    world.disk.fail_after(None);
    let again =
        world.service.durable.intend(world.caller(), &world.key(1), &change, world.notify("go"));
    assert_eq!(again.err(), Some(StoreError::Io.into()), "for good");
    assert_eq!(world.statistics().in_flight, 0);
}

/// Names that no object can have must not make long records.
#[test]
fn an_impossible_change_logs_no_intent() {
    let world = World::new(Durability::Crash);
    let (root, long) = (world.root, vec![b'x'; 2 << 20]);
    let rename = Change::Rename { from_dir: &root, from: b"old", to_dir: &root, to: &long };
    let make = Change::Make { dir: &root, name: &long, kind: Kind::Directory, attr: &NONE };
    for change in [rename, make, Change::Remove { dir: &root, name: &long[..256] }] {
        assert!(matches!(world.intend(0, "go", &change), Intended::Unneeded));
    }
    let session = Session {
        id: *b"long one",
        host: Vec::new(),
        client: long,
        verifier: [0; 8],
        mechanism: "none".to_owned(),
        principal: Vec::new(),
    };
    assert_eq!(world.service.durable.keep_session(&session, world.notify("known")), Settled::Now);
    assert_eq!(world.statistics().sessions, 1);
}

/// For a reply that is too long, the journal records that it has none.
#[test]
fn a_reply_that_is_too_long_is_not_mistaken_for_none() {
    for mode in [Durability::Crash, Durability::Power] {
        let world = World::new(mode);
        let op = world.op(0, &(CASES[2].change)(&world, &[world.root]));
        (CASES[2].execute)(&world, &op);
        world.settle(op, &vec![1; 65 << 10]);
        // After another client's change it looks as if it had never happened.
        world.store.remove(&world.cred, &world.store.root(), b"new").unwrap();
        let world = world.crash(false);
        assert_eq!(world.kept_answer(0), Some(Answer::Failed));
    }
}

/// A restarted client asks for none of its older sessions. This holds also for records of an
/// earlier version of the server, which knew users of its host by their address. Other clients with
/// its name do not count.
#[test]
fn sessions_of_other_runs_are_forgotten_by_host() {
    let (user, v4) = (Host::User(7), |last: u8| Host::V4([192, 0, 2, last]));
    let link_local = "fe80::1".parse().unwrap();
    let cases: [(&[u8], Host, &str, bool); 7] = [
        (b"u\x07\0\0\0", user, "127.0.0.1", true),
        (&[127, 0, 0, 1], user, "127.0.0.1", true),
        (&[192, 0, 2, 9], user, "192.0.2.9", true),
        (&[192, 0, 2, 9], user, "127.0.0.1", false),
        (b"u\x08\0\0\0", user, "127.0.0.1", false),
        (&[192, 0, 2, 9], v4(8), "192.0.2.8", false),
        (&[0xfe, 0x80, 0, 0, 0, 0, 0, 0], Host::of(link_local), "fe80::1", true),
    ];
    for (kept, host, ip, is_forgotten) in cases {
        let world = World::new(Durability::Crash);
        let session = Session {
            id: *b"session2",
            host: kept.to_vec(),
            client: b"name".to_vec(),
            verifier: [1; 8],
            mechanism: "front".to_owned(),
            principal: b"who".to_vec(),
        };
        assert_eq!(
            world.service.durable.keep_session(&session, world.notify("known")),
            Settled::Now
        );
        let store = world.store.clone();
        let service = world.restart(false, store).service;
        let request = ExchangeId {
            owner: b"name",
            verifier: [2; 8],
            identity: Identity { mechanism: "sys", principal: b"who".to_vec() },
            host,
            address: ClientAddress { ip: ip.parse().unwrap(), privileged: false },
            update: false,
            protection: Protection::None,
        };
        let client = service.clients.exchange_id(&request, 0).unwrap().client;
        assert!(service.durable.kept_session(&session.id).is_some());
        service.durable.forget_other_runs(&client, "front");
        let is_kept = service.durable.kept_session(&session.id).is_some();
        assert_eq!(is_kept, !is_forgotten, "{kept:?} {ip}");
    }
}

/// One session does not fill the journal.
#[test]
fn the_records_of_a_session_are_bounded() {
    let world = World::new(Durability::Crash);
    let change = Change::Remove { dir: &world.root, name: b"nothing" };
    let mut kept = 0;
    let refused = loop {
        let ready = world.notify("go");
        match world.service.durable.intend(world.caller(), &world.key(kept), &change, ready) {
            Ok(Intended::Ready(op)) => world.settle(op, &vec![1; 60 << 10]),
            Ok(_) => panic!("nothing has to be waited for"),
            Err(error) => break error,
        }
        kept += 1;
        assert!(kept < 500, "no end");
    };
    assert_eq!(refused, ServiceError::Resource);
    let bytes = world.statistics().kept_bytes;
    let max = dafs_service::limits::DURABLE_SESSION_BYTES_MAX;
    assert!(bytes <= max && bytes > max - (64 << 10), "{bytes}");
    // A reply that did not fit is not taken for a missing one.
    let (first, last, store) = (world.key(0), world.key(kept - 1), world.store.clone());
    let world = world.restart(false, store);
    assert!(matches!(world.service.durable.kept_answer(&first), Some(Answer::Reply { .. })));
    assert_eq!(world.service.durable.kept_answer(&last), Some(Answer::Failed));
    world.service.durable.forget_session(&SESSION);
    assert_eq!(world.statistics().kept_bytes, 0);
}

/// Its client may ask for replies as soon as it knows that it has a session.
#[test]
fn a_session_is_known_after_a_loss_of_power() {
    let world = World::new(Durability::Power);
    let world = world.crash(true);
    assert!(world.service.durable.kept_session(&SESSION).is_some());
    let asked = world.service.replies.find(&world.client, &world.key(0));
    assert_eq!(asked, Err(NoReply::NotExecuted));
}

/// The numbers of requests repeat after 65,536 of them.
#[test]
fn the_answer_to_a_request_is_forgotten_before_its_number_comes_again() {
    for mode in [Durability::Crash, Durability::Power] {
        let world = World::new(mode);
        for stream in [0, 1] {
            let op = world.op(stream, &Change::Remove { dir: &world.root, name: b"nothing" });
            world.settle(op, b"reply");
        }
        let ready = world.notify("forgotten");
        assert_eq!(world.service.durable.outlived(&SESSION, 0, ready), Settled::Later);
        world.run();
        assert_eq!(world.told(), [("forgotten", Ok(()))]);
        let again = world.service.durable.outlived(&SESSION, 0, world.notify("again"));
        assert_eq!(again, Settled::Now);
        let (keys, store) = ([world.key(0), world.key(1)], world.store.clone());
        let world = world.restart(mode == Durability::Power, store);
        let known = keys.map(|key| world.service.durable.kept_answer(&key).is_some());
        assert_eq!(known, [false, true]);
    }
}

#[test]
fn exports_without_durable_replies_need_nothing() {
    let world = World::new(Durability::Off);
    let change = Change::Remove { dir: &world.root, name: b"old" };
    assert!(matches!(world.intend(0, "go", &change), Intended::Unneeded));
    let world = World::new(Durability::Power);
    let file = world.at("grown").unwrap();
    let stability = Stability::Unstable;
    let change = Change::Write { file: &file, offset: 0, len: 4, stability, digest: Some(1) };
    assert!(matches!(world.intend(0, "go", &change), Intended::Unneeded));
}

#[test]
fn a_record_of_a_later_program_is_refused() {
    let world = World::new(Durability::Power);
    let disk = world.disk.clone();
    drop(world);
    let recovery = dafs_journal::Recovery::scan(disk.clone(), [1; 16], &mut |_| ()).unwrap();
    let live: [&[u8]; 1] = [b"\x63something new"];
    let _ = recovery.start(16 << 10, Arc::new(|job| job()), &mut live.into_iter()).unwrap();
    let mut world = World::over(Durability::Power, new_store(), disk, 1);
    let error = world.recover().unwrap_err();
    assert!(error.contains("start the program that wrote it"), "{error}");
}

/// Otherwise the client would execute it a second time.
#[test]
fn a_session_that_changed_what_is_not_kept_cannot_say_that_a_request_was_not_carried_out() {
    let world = World::new(Durability::Off);
    let world = world.crash(false);
    let asked =
        |world: &World| world.service.replies.find(&world.client, &world.key(0)).unwrap_err();
    assert_eq!(asked(&world), NoReply::NotExecuted, "nothing was changed");
    let mut world = World::new(Durability::Off);
    for sequence in 0..500 {
        world.sequence = sequence;
        let change = Change::Remove { dir: &world.root, name: b"nothing" };
        assert!(matches!(world.intend(0, "go", &change), Intended::Unneeded));
    }
    let log = world.statistics().log;
    assert!(log.records < 4, "once is enough: {log:?}");
    for _ in 0..2 {
        world = world.crash(false);
        assert_eq!(asked(&world), NoReply::UnknownSession);
    }
}

#[test]
fn after_a_loss_of_power_nothing_is_said_of_what_was_not_stable() {
    let world = World::new(Durability::Crash);
    let op = world.op(0, &Change::Remove { dir: &world.root, name: b"nothing" });
    world.settle(op, b"reply");
    let mut world = world.crash(true);
    for _ in 0..2 {
        // With and without a trace in the journal.
        for stream in 0..2 {
            let asked = world.service.replies.find(&world.client, &world.key(stream));
            assert_eq!(asked, Err(NoReply::UnknownSession));
        }
        world = world.crash(false);
    }
}
