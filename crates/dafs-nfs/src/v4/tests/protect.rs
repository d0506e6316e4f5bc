//! State protection by the machine credential: what others try with a machine's client.

use super::*;
use dafs_service::durable::Durability;
use dafs_service::{ExportOptions, Squash, TransportSecurity};
use dafs_store::{MemoryOptions, MemoryStore};

fn all_but(allow: &[OpNum]) -> StateProtectArgs<'static> {
    let enforce = [
        OpNum::BindConnToSession,
        OpNum::ExchangeId,
        OpNum::CreateSession,
        OpNum::DestroySession,
        OpNum::DestroyClientid,
    ];
    let set = |ops: &[OpNum]| ops.iter().fold(Bitmap::EMPTY, |set, op| set.with(*op as u32));
    let ops = ProtectedOps { must_enforce: set(&enforce), must_allow: set(allow) };
    StateProtectArgs::MachineCredential(ops)
}

fn protected() -> StateProtectArgs<'static> {
    all_but(&[OpNum::Close, OpNum::FreeStateid])
}

/// A server whose one export demands privacy.
fn private() -> World {
    private_over(TransportSecurity::None)
}

/// A server whose one export demands privacy, and this of connections.
fn private_over(least: TransportSecurity) -> World {
    let world = World::new(vec![export("", |options| {
        options.admits.flavours = vec![Flavour::Krb5p];
        options.admits.transport_security = least;
    })]);
    world.shared.accept_gss(crate::gss::of_tests(None));
    world
}

/// Callers that are not the machine with integrity.
fn others() -> [CallerIdentity; 5] {
    [
        proves("anna@R", 1000, Flavour::Krb5p),
        proves("root@R", 0, Flavour::Krb5i),
        machine(Flavour::Krb5),
        claims(0),
        CallerIdentity::unproven(Cred::new(NO_USER, NO_USER), Flavour::None),
    ]
}

#[test]
fn protection_needs_a_call_with_integrity() {
    let world = private();
    for flavour in [Flavour::Krb5i, Flavour::Krb5p] {
        let ask = [exchange_id(1, ExchangeFlags::empty(), protected())];
        let answer = world.send(&machine(flavour), &ask);
        let ResultBody::ExchangeId(exchanged) = answer.body(0) else { panic!() };
        let StateProtectArgs::MachineCredential(asked) = protected() else { panic!() };
        assert_eq!(exchanged.state_protect, StateProtectResult::MachineCredential(asked));
        for who in [machine(Flavour::Krb5), claims(0)] {
            assert_eq!(world.send(&who, &ask).status(), Status::Inval);
        }
    }
}

#[test]
fn nobody_takes_the_client_id_or_lowers_its_protection() {
    let world = private();
    let who = machine(Flavour::Krb5i);
    let mut session = world.client(&who, protected());
    let update = ExchangeFlags::UPD_CONFIRMED_REC_A;
    for other in others() {
        let is_machine = other.principal == who.principal;
        for protect in [StateProtectArgs::None, protected()] {
            let can_ask = protect == StateProtectArgs::None
                || other.flavour == Flavour::Krb5p
                || other.flavour == Flavour::Krb5i;
            let expected = match (can_ask, is_machine) {
                (false, _) => [Status::Inval; 3],
                (true, true) => [Status::WrongCred; 3],
                (true, false) => [Status::ClidInUse, Status::ClidInUse, Status::WrongCred],
            };
            let found = [(1, ExchangeFlags::empty()), (2, ExchangeFlags::empty()), (1, update)]
                .map(|(verifier, flags)| {
                    world.send(&other, &[exchange_id(verifier, flags, protect.clone())]).status()
                });
            assert_eq!(found, expected, "{other:?} {protect:?}");
        }
    }
    // The machine itself finds its record with the protection that it has.
    for flags in [ExchangeFlags::empty(), update] {
        for protect in [StateProtectArgs::None, all_but(&[OpNum::Close]), protected()] {
            let answer = world.send(&who, &[exchange_id(1, flags, protect)]);
            let ResultBody::ExchangeId(exchanged) = answer.body(0) else { panic!() };
            assert!(exchanged.flags.contains(ExchangeFlags::CONFIRMED_R));
            assert_eq!(exchanged.client_id, session.client_id);
            let StateProtectArgs::MachineCredential(ops) = protected() else { panic!() };
            assert_eq!(exchanged.state_protect, StateProtectResult::MachineCredential(ops));
        }
    }
    assert_eq!(world.next(&who, &mut session, &[]).status(), Status::Ok);
}

/// pynfs: CSESS9, CSESS10.
#[test]
fn a_client_without_protection_is_confirmed_by_its_principal_alone() {
    let world = private();
    let who = proves("anna@R", 1000, Flavour::Krb5i);
    let answer =
        world.send(&who, &[exchange_id(1, ExchangeFlags::empty(), StateProtectArgs::None)]);
    let ResultBody::ExchangeId(exchanged) = answer.body(0) else { panic!() };
    let (client_id, sequence) = (exchanged.client_id, exchanged.sequence_id);
    let create = |sequence| [create_session(client_id, sequence)];
    assert_eq!(world.send(&claims(5), &create(sequence)).status(), Status::ClidInUse);
    assert_eq!(world.send(&who, &create(sequence)).status(), Status::Ok);
    assert_eq!(world.send(&claims(5), &create(sequence + 1)).status(), Status::Ok);
}

/// Without protection the name of a client still belongs to its principal while it has state.
#[test]
fn the_name_of_a_client_belongs_to_its_principal() {
    let world = private();
    let (anna, root) = (proves("anna@R", 1000, Flavour::Krb5p), world.root_of(""));
    let mut session = world.client(&anna, StateProtectArgs::None);
    world.file(&proves("root@R", 0, Flavour::Krb5p), &mut session, &root, b"f");
    let update = ExchangeFlags::UPD_CONFIRMED_REC_A;
    // One of them has the same user number.
    for other in [proves("bert@R", 1000, Flavour::Krb5p), claims(1000), claims(0)] {
        for (verifier, flags, status) in [
            (1, ExchangeFlags::empty(), Status::ClidInUse),
            (2, ExchangeFlags::empty(), Status::ClidInUse),
            (1, update, Status::Perm),
        ] {
            let ask = [exchange_id(verifier, flags, StateProtectArgs::None)];
            assert_eq!(world.send(&other, &ask).status(), status, "{other:?}");
        }
    }
    // With another service it is the same principal.
    let anna = proves("anna@R", 1000, Flavour::Krb5);
    let answer = world.send(&anna, &[exchange_id(1, update, StateProtectArgs::None)]);
    assert_eq!(answer.status(), Status::Ok);
    assert_eq!(world.next(&anna, &mut session, &[]).status(), Status::Ok);
}

#[test]
fn only_the_machine_makes_binds_and_ends_sessions() {
    let world = private();
    let who = machine(Flavour::Krb5i);
    let mut session = world.client(&who, protected());
    let bind = || {
        Op::BindConnToSession(BindConnToSessionArgs {
            session_id: session.id,
            direction: ChannelFromClient::Fore,
            use_rdma: false,
        })
    };
    let end = || Op::DestroySession(DestroySessionArgs { session_id: session.id });
    let forget = || Op::DestroyClientid(DestroyClientidArgs { client_id: session.client_id });
    for other in others() {
        for op in [create_session(session.client_id, 2), bind(), end(), forget()] {
            let answer = world.send(&other, std::slice::from_ref(&op));
            assert_eq!(answer.status(), Status::WrongCred, "{other:?} {op:?}");
        }
        // Also at the end of a compound of a session, which any user may use.
        let mut own = session.clone();
        own.sequence += 1;
        let answer = world.again(&other, &own, &[end()]);
        assert_eq!(answer.end(), (2, Status::WrongCred), "{other:?}");
        session.sequence = own.sequence;
    }
    for op in [create_session(session.client_id, 2), bind(), end()] {
        assert_eq!(world.send(&machine(Flavour::Krb5p), &[op]).status(), Status::Ok);
    }
    // It has the other session still.
    assert_eq!(world.send(&who, &[forget()]).status(), Status::ClientIdBusy);
}

/// An allowed operation opens the export for itself and not for the rest of the compound.
#[test]
fn each_operation_is_judged_alone() {
    let world = private();
    let (who, anna) = (machine(Flavour::Krb5i), proves("anna@R", 1000, Flavour::Krb5p));
    let all = [OpNum::Close, OpNum::Write, OpNum::Commit, OpNum::Read];
    let mut session = world.client(&who, all_but(&all));
    // The top directory belongs to root.
    let root = world.root_of("");
    let (file, stateid) = {
        let owner = proves("root@R", 0, Flavour::Krb5p);
        world.file(&owner, &mut session, &root, b"f")
    };
    let size = |world: &World, session: &mut Session| {
        let answer = world.next(&anna, session, &[putfh(&file), getattr(&[Attr::Size])]);
        let ResultBody::Getattr(found) = answer.body(2) else { panic!() };
        Attributes::decode(&found.attributes).unwrap().size.unwrap()
    };
    for (ops, end) in [
        (vec![read(stateid)], (2, Status::WrongSec)),
        (vec![getattr(&[Attr::Size])], (2, Status::WrongSec)),
        (vec![getattr(&[Attr::Size]), read(stateid)], (2, Status::WrongSec)),
        (vec![getattr(&[Attr::Size]), getattr(&[Attr::Size])], (2, Status::WrongSec)),
        (vec![SAVEFH, read(stateid)], (2, Status::WrongSec)),
        // The machine moves no data for its users, whatever it asks for.
        (vec![write(stateid)], (2, Status::WrongSec)),
        (vec![write(Stateid::ANONYMOUS)], (2, Status::WrongSec)),
        (vec![Op::Commit(CommitArgs { offset: 0, count: 0 })], (2, Status::WrongSec)),
    ] {
        let ops = [&[putfh(&file)], &ops[..]].concat();
        assert_eq!(world.next(&who, &mut session, &ops).end(), end, "{ops:?}");
    }
    assert_eq!(size(&world, &mut session), 0);
    // Neither another user, nor the machine without integrity.
    for other in [machine(Flavour::Krb5), proves("anna@R", 1000, Flavour::Krb5i), claims(0)] {
        let ops = [putfh(&file), close(stateid)];
        assert_eq!(world.next(&other, &mut session, &ops).end(), (2, Status::WrongSec));
    }
    // Linux asks for attributes beside CLOSE and DELEGRETURN, and gets these of the object alone.
    let size = || getattr(&[Attr::Size]);
    let ops = [putfh(&file), size(), close(stateid), size(), read(stateid)];
    assert_eq!(world.next(&who, &mut session, &ops).end(), (6, Status::Access));
    let ops = [putfh(&file), size(), close(stateid)];
    assert_eq!(world.next(&who, &mut session, &ops).end(), (3, Status::Access), "it is closed");
    let ops = [putfh(&root), size()];
    assert_eq!(world.next(&who, &mut session, &ops).end(), (2, Status::WrongSec));
}

fn layoutreturn(returned: LayoutReturn<'_>) -> Op<'_> {
    let (reclaim, layout_type, io_mode) = (false, LAYOUT_FILES, 3);
    Op::Layoutreturn(LayoutreturnArgs { reclaim, layout_type, io_mode, returned })
}

/// The machine learns attributes of objects that its client has state of, and of no others.
#[test]
fn attributes_need_state_of_their_object() {
    use OpNum::{Close, Delegreturn, Layoutreturn, Locku, OpenDowngrade};
    let world = private();
    let (who, owner) = (machine(Flavour::Krb5i), proves("root@R", 0, Flavour::Krb5p));
    let all = [Close, Delegreturn, Layoutreturn, Locku, OpenDowngrade];
    let mut session = world.client(&who, all_but(&all));
    let root = world.root_of("");
    let (file, stateid) = world.file(&owner, &mut session, &root, b"f");
    let (_, of_another_file) = world.file(&owner, &mut session, &root, b"g");
    let of_another_client = {
        let mut other = world.client_of(b"other", &claims(0), StateProtectArgs::None);
        world.file(&owner, &mut other, &root, b"f").1
    };
    let size = || getattr(&[Attr::Size]);
    let no_state = [
        of_another_file,
        of_another_client,
        Stateid { seqid: 1, other: [7; 12] },
        Stateid::ANONYMOUS,
        Stateid::READ_BYPASS,
        Stateid::CURRENT,
        Stateid::INVALID,
    ];
    let of_file =
        |stateid| LayoutReturn::File(ReturnedLayout { offset: 0, length: 1, stateid, body: b"" });
    let range =
        |stateid| LockuArgs { kind: LockType::Write, seqid: 0, stateid, offset: 0, length: 1 };
    let share = |stateid| OpenDowngradeArgs {
        stateid,
        seqid: 0,
        share_access: ShareAccess(ShareAccess::READ),
        share_deny: DENY_NONE,
    };
    let giving_up = |stateid| {
        [
            close(stateid),
            Op::Delegreturn(DelegreturnArgs { stateid }),
            layoutreturn(of_file(stateid)),
            Op::Locku(range(stateid)),
            Op::OpenDowngrade(share(stateid)),
        ]
    };
    for op in no_state.into_iter().flat_map(giving_up) {
        let ops = [putfh(&file), size(), op];
        assert_eq!(world.next(&who, &mut session, &ops).end(), (3, Status::Access), "{ops:?}");
    }
    // All layouts of a file system, or of all, are state of no object.
    for wider in [2, 3] {
        let ops = [putfh(&file), size(), layoutreturn(LayoutReturn::Wider(wider))];
        assert_eq!(world.next(&who, &mut session, &ops).end(), (2, Status::WrongSec));
    }
    // The operation that names the state may fail: its number may be an old one.
    let ops = [putfh(&root), open(OpenClaim::Null(b"f"))];
    let answer = world.next(&owner, &mut session, &ops);
    let ResultBody::Open(opened) = answer.body(2) else { panic!() };
    assert_eq!(opened.stateid.other, stateid.other);
    let ops = [putfh(&file), size(), close(stateid)];
    assert_eq!(world.next(&who, &mut session, &ops).end(), (4, Status::OldStateId));
    for op in giving_up(opened.stateid).into_iter().rev() {
        let ops = [putfh(&file), size(), size(), op];
        assert!(world.next(&who, &mut session, &ops).end().0 > 4, "{ops:?}");
    }
}

/// The machine is exempt from the flavours of an export, not from its demand of TLS.
#[test]
fn the_machine_needs_the_protection_of_the_connection() {
    let mut world = private_over(TransportSecurity::Tls);
    let (clear, who) = (world.origin, machine(Flavour::Krb5i));
    world.origin = clear.with_security(TransportSecurity::Tls);
    let mut session = world.client(&who, protected());
    let (owner, root) = (proves("root@R", 0, Flavour::Krb5p), world.root_of(""));
    let (file, stateid) = world.file(&owner, &mut session, &root, b"f");
    let ops = [putfh(&file), close(stateid)];
    world.origin = clear;
    assert_eq!(world.next(&who, &mut session, &ops).end(), (2, Status::WrongSec));
    let behind = [putfh(&file), SAVEFH, putfh(&root), RESTOREFH, close(stateid)];
    assert!(world.next(&who, &mut session, &behind).end().1 != Status::Ok);
    world.origin = clear.with_security(TransportSecurity::Tls);
    assert_eq!(world.next(&who, &mut session, &ops).end(), (3, Status::Ok));
}

#[test]
fn operations_that_the_client_did_not_ask_for_are_not_allowed() {
    let world = private();
    let (who, owner) = (machine(Flavour::Krb5i), proves("root@R", 0, Flavour::Krb5p));
    let mut session = world.client(&who, all_but(&[OpNum::Locku]));
    let root = world.root_of("");
    let (file, stateid) = world.file(&owner, &mut session, &root, b"f");
    let ops = [putfh(&file), close(stateid)];
    assert_eq!(world.next(&who, &mut session, &ops).end(), (2, Status::WrongSec));
    assert_eq!(world.next(&owner, &mut session, &ops).status(), Status::Ok);
}

/// Every user of a session sends its own requests, and gets its own replies.
#[test]
fn users_of_a_session_are_told_apart() {
    let world = private();
    let mut session = world.client(&machine(Flavour::Krb5i), protected());
    let [anna, bert] = ["anna@R", "bert@R"].map(|name| proves(name, 1000, Flavour::Krb5p));
    let ops = [ROOT, getattr(&[Attr::Mode])];
    let first = world.next(&anna, &mut session, &ops);
    assert_eq!(first.status(), Status::Ok);
    assert_eq!(world.again(&anna, &session, &ops), first);
    // The same user by number, but another one by name; and claims of that number.
    for other in [bert, claims(1000), machine(Flavour::Krb5p)] {
        assert_eq!(world.again(&other, &session, &ops).end(), (1, Status::SeqFalseRetry));
    }
}

/// A session and its durable replies outlive the server, and so does what belongs to whom.
#[test]
fn users_of_a_session_are_told_apart_after_a_restart() {
    let store = Arc::new(MemoryStore::new(MemoryOptions::default()));
    let disk = Arc::new(SimDisk::new());
    let run = |instance| {
        let mut options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
        options.durable_replies = Durability::Crash;
        options.admits.flavours = vec![Flavour::Krb5p];
        let world = World::run_of(
            instance,
            vec![Export::new("", store.clone(), options)],
            Some(disk.clone()),
        );
        world.shared.accept_gss(crate::gss::of_tests(None));
        world
    };
    let (who, root) = (machine(Flavour::Krb5i), proves("root@R", 0, Flavour::Krb5p));
    let ops = [ROOT, open(OpenClaim::Null(b"f")), Op::Getfh(GetfhArgs)];
    let world = run(1);
    let mut session = world.client(&who, protected());
    let first = world.next(&root, &mut session, &ops);
    assert_eq!(first.status(), Status::Ok);
    drop(world);
    let world = run(2);
    // A user of the same number with another name learns nothing of the reply.
    for other in [proves("toor@R", 0, Flavour::Krb5p), claims(0), machine(Flavour::Krb5p)] {
        assert_eq!(world.again(&other, &session, &ops).end(), (1, Status::DeadSession));
    }
    let end = [Op::DestroySession(DestroySessionArgs { session_id: session.id })];
    for other in others().into_iter().filter(|other| other.principal != who.principal) {
        assert_eq!(world.send(&other, &end).status(), Status::WrongCred, "{other:?}");
    }
    assert_eq!(world.again(&root, &session, &ops), first, "its replies are still there");
    assert_eq!(world.send(&who, &end).status(), Status::Ok);
    assert_eq!(world.again(&root, &session, &ops).end(), (1, Status::BadSession));
}
