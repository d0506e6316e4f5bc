//! Clients of users whom certificates name: what others try with them.

use super::*;
use dafs_posix::{PosixOptions, PosixStore};
use dafs_service::durable::Durability;
use dafs_service::{ExportOptions, Squash};
use dafs_store::node::{DirectoryNode, Node};
use dafs_store::{ExportSecret, MemoryOptions, MemoryStore};
use dafs_striped::{StripedOptions, StripedStore};
use dafs_testkit::stores::me;
use std::num::NonZeroU32;
use std::path::Path;
use tempfile::TempDir;

const ANNA: &str = "anna@example.org";
const BERT: &str = "bert@example.org";

/// A caller on a connection whose certificate names this user.
fn certified(name: &str, uid: u32) -> CallerIdentity {
    proves(name, uid, Flavour::Sys)
}

/// Callers and the users of their connections: another user, one of the same number, a claim of that number and of
/// root, a proven user of the same name, and a claim of nobody.
fn others() -> Vec<(Option<Arc<str>>, CallerIdentity)> {
    let nobody = CallerIdentity::unproven(Cred::new(NO_USER, NO_USER), Flavour::None);
    vec![
        (Some(BERT.into()), certified(BERT, 1001)),
        (Some(BERT.into()), certified(BERT, 1000)),
        (None, claims(1000)),
        (None, claims(0)),
        (None, proves(ANNA, 1000, Flavour::Krb5p)),
        (None, nobody),
    ]
}

fn world() -> World {
    World::new(vec![export("", |options| options.squash = Squash::None)])
}

/// The same as AUTH_NONE.
fn silent(who: &CallerIdentity) -> CallerIdentity {
    CallerIdentity { flavour: Flavour::None, ..who.clone() }
}

#[test]
fn the_client_and_sessions_of_a_certificate_belong_to_its_user() {
    let mut world = world();
    let (anna, root) = (certified(ANNA, 1000), world.root_of(""));
    world.user = Some(ANNA.into());
    let mut session = world.client(&anna, StateProtectArgs::None);
    world.file(&certified(ANNA, 0), &mut session, &root, b"f");
    let update = ExchangeFlags::UPD_CONFIRMED_REC_A;
    let (session_id, client_id) = (session.id, session.client_id);
    let bind = || {
        Op::BindConnToSession(BindConnToSessionArgs {
            session_id,
            direction: ChannelFromClient::Fore,
            use_rdma: false,
        })
    };
    let end = || Op::DestroySession(DestroySessionArgs { session_id });
    let forget = || Op::DestroyClientid(DestroyClientidArgs { client_id });
    for (user, other) in others() {
        world.user = user;
        for (op, status) in [
            (exchange_id(1, ExchangeFlags::empty(), StateProtectArgs::None), Status::ClidInUse),
            (exchange_id(2, ExchangeFlags::empty(), StateProtectArgs::None), Status::ClidInUse),
            (exchange_id(1, update, StateProtectArgs::None), Status::Perm),
            (create_session(client_id, 2), Status::ClidInUse),
            (bind(), Status::BadSession),
            (end(), Status::BadSession),
            (forget(), Status::StaleClientId),
        ] {
            let found = world.send(&other, std::slice::from_ref(&op)).status();
            assert_eq!(found, status, "{other:?} {op:?}");
        }
        let mut own = session.clone();
        assert_eq!(world.next(&other, &mut own, &[]).end(), (1, Status::BadSession), "{other:?}");
    }
    // The user itself, also without a claim, and with a proof of another one inside its connection.
    world.user = Some(ANNA.into());
    for who in [anna.clone(), silent(&anna), proves("carl@R", 5, Flavour::Krb5)] {
        assert_eq!(world.next(&who, &mut session, &[]).status(), Status::Ok, "{who:?}");
    }
    // A proof does not take over what belongs to the certificate.
    let carl = proves("carl@R", 5, Flavour::Krb5i);
    let taken = exchange_id(1, update, StateProtectArgs::None);
    assert_eq!(world.send(&carl, &[taken]).status(), Status::Perm);
    for op in [exchange_id(1, update, StateProtectArgs::None), bind(), end()] {
        assert_eq!(world.send(&silent(&anna), &[op]).status(), Status::Ok);
    }
}

#[test]
fn users_of_certificates_are_told_apart_in_a_session() {
    let mut world = world();
    // The machine of a client proves its name; its users do not.
    let mut session = world.client(&machine(Flavour::Krb5i), StateProtectArgs::None);
    let ops = [ROOT, getattr(&[Attr::Mode])];
    world.user = Some(ANNA.into());
    let first = world.next(&certified(ANNA, 1000), &mut session, &ops);
    assert_eq!(first.status(), Status::Ok);
    for (user, other) in others() {
        world.user = user;
        assert_eq!(world.again(&other, &session, &ops).end(), (1, Status::SeqFalseRetry));
    }
    assert_eq!(world.again(&silent(&certified(ANNA, 1000)), &session, &ops), first);
}

/// A client may have opened files as root before there were rules for users of certificates.
#[test]
fn a_client_that_claimed_its_user_ends_when_it_comes_with_a_certificate() {
    let (anna, here) = (certified(ANNA, 1000), from("127.0.0.1:700"));
    let nobody = CallerIdentity::unproven(Cred::new(NO_USER, NO_USER), Flavour::None);
    let proven = proves("carl@R", 5, Flavour::Krb5p);
    for (claimed, other, way) in [
        (claims(0), &anna, 0),
        (claims(0), &anna, 1),
        (claims(0), &proven, 2),
        (nobody, &silent(&anna), 0),
    ] {
        let mut world = world();
        let root = world.root_of("");
        let mut session = world.client(&claimed, StateProtectArgs::None);
        world.file(&claims(0), &mut session, &root, b"f");
        let session_id = session.id;
        let bind = Op::BindConnToSession(BindConnToSessionArgs {
            session_id,
            direction: ChannelFromClient::Fore,
            use_rdma: false,
        });
        let end = Op::DestroySession(DestroySessionArgs { session_id });
        let client_id = session.client_id;
        let come = |world: &World, session: &Session| match way {
            0 => world.next(other, &mut session.clone(), &[ROOT]),
            1 => world.send(other, std::slice::from_ref(&bind)),
            _ => world.send(other, std::slice::from_ref(&end)),
        };
        world.user = Some(ANNA.into());
        // A caller that shows no session, or calls from elsewhere, ends nothing.
        for (op, status) in [
            (exchange_id(1, ExchangeFlags::empty(), StateProtectArgs::None), Status::ClidInUse),
            (create_session(client_id, 2), Status::ClidInUse),
            (Op::DestroyClientid(DestroyClientidArgs { client_id }), Status::StaleClientId),
        ] {
            assert_eq!(world.send(other, &[op]).status(), status);
        }
        world.origin = from("192.0.2.9:700");
        assert_eq!(come(&world, &session).end(), (1, Status::BadSession));
        (world.origin, world.user) = (here, None);
        assert_eq!(world.next(&claimed, &mut session, &[ROOT]).status(), Status::Ok);
        // Its client ends with its state, and begins anew.
        world.user = Some(ANNA.into());
        assert_eq!(come(&world, &session).end(), (1, Status::BadSession));
        assert!(world.shared.service.clients.info(1).is_empty());
        let create = create_session(client_id, 2);
        assert_eq!(world.send(other, &[create]).status(), Status::StaleClientId);
        let mut own = world.client(&anna, StateProtectArgs::None);
        assert_eq!(world.next(&anna, &mut own, &[ROOT]).status(), Status::Ok);
        world.user = None;
        assert_eq!(world.next(&claimed, &mut session, &[]).status(), Status::BadSession);
    }
}

/// A store that stripes its files over two directories.
fn striped(base: &Path) -> Arc<StripedStore> {
    let node = |number: u32| -> Arc<dyn Node> {
        let path = base.join(format!("node{number}"));
        std::fs::create_dir(&path).unwrap();
        DirectoryNode::make(&path, &[6; 16], number).unwrap();
        let address = format!("127.0.0.{number}:2049").parse().unwrap();
        Arc::new(DirectoryNode::open(&path, &[6; 16], number, vec![address]).unwrap())
    };
    let meta = base.join("meta");
    std::fs::create_dir(&meta).unwrap();
    let meta = PosixStore::open(&meta, PosixOptions::new(ExportSecret::from_bytes([3; 16])));
    let unit = NonZeroU32::new(65_536).unwrap();
    let options = StripedOptions::new(base, *b"a striped secret", unit);
    let nodes = [1, 2].map(node).to_vec();
    Arc::new(StripedStore::open(meta.unwrap(), nodes, options).unwrap())
}

#[test]
fn a_connection_of_a_certificates_user_gets_no_layouts() {
    let base = TempDir::new().unwrap();
    let mut options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
    options.admits.flavours = vec![Flavour::Krb5i, Flavour::Sys, Flavour::None];
    let mut world = World::new(vec![Export::new("", striped(base.path()), options)]);
    world.shared.accept_gss(crate::gss::of_tests(None));
    let (root, me) = (world.root_of(""), me().uid);
    let get = |stateid| {
        Op::Layoutget(LayoutgetArgs {
            signal_available: false,
            layout_type: 1,
            io_mode: 2,
            offset: 0,
            length: u64::MAX,
            length_min: 0,
            stateid,
            result_bytes_max: 4096,
        })
    };
    let anna: Arc<str> = ANNA.into();
    let machine = machine(Flavour::Krb5i);
    // The makers of a client and of its open, and their connection.
    for (name, maker, user, opens) in [
        (&b"machine"[..], &machine, None, claims(me)),
        (&b"anna"[..], &certified(ANNA, me), Some(anna.clone()), certified(ANNA, me)),
    ] {
        world.user = user.clone();
        let mut session = world.client_of(name, maker, StateProtectArgs::None);
        let (file, stateid) = world.file(&opens, &mut session, &root, name);
        // A client that cannot be called gets no layouts.
        let bind = Op::BindConnToSession(BindConnToSessionArgs {
            session_id: session.id,
            direction: ChannelFromClient::BackOrBoth,
            use_rdma: false,
        });
        assert_eq!(world.send(maker, &[bind]).status(), Status::Ok);
        let mut ask = |world: &World, who: &CallerIdentity| {
            world.next(who, &mut session, &[putfh(&file), get(stateid)]).status()
        };
        if user.is_none() {
            assert_eq!(ask(&world, &opens), Status::Ok);
        }
        world.user = Some(anna.clone());
        for who in [certified(ANNA, me), silent(&certified(ANNA, me)), machine.clone()] {
            let refused = Status::LayoutUnavailable;
            assert_eq!(ask(&world, &who), refused, "{name:?} {who:?}");
        }
    }
}

#[test]
fn users_of_certificates_are_told_apart_after_a_restart() {
    let store = Arc::new(MemoryStore::new(MemoryOptions::default()));
    let disk = Arc::new(SimDisk::new());
    let run = |instance| {
        let mut options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
        options.durable_replies = Durability::Crash;
        let exports = vec![Export::new("", store.clone(), options)];
        World::run_of(instance, exports, Some(disk.clone()))
    };
    // As short as the number of a user.
    let (user, other) = ("a@bc", "a@bd");
    let who = certified(user, 0);
    let ops = [ROOT, open(OpenClaim::Null(b"f")), Op::Getfh(GetfhArgs)];
    let mut world = run(1);
    world.user = Some(user.into());
    let mut session = world.client(&who, StateProtectArgs::None);
    let first = world.next(&who, &mut session, &ops);
    assert_eq!(first.status(), Status::Ok);
    drop(world);
    let mut world = run(2);
    let end = [Op::DestroySession(DestroySessionArgs { session_id: session.id })];
    for (user, other) in [(Some(other.into()), certified(other, 0)), (None, claims(0))] {
        world.user = user;
        assert_eq!(world.again(&other, &session, &ops).end(), (1, Status::DeadSession));
        assert_eq!(world.send(&other, &end).status(), Status::WrongCred, "{other:?}");
    }
    world.user = Some(user.into());
    assert_eq!(world.again(&who, &session, &ops), first, "its replies are still there");
    assert_eq!(world.send(&who, &end).status(), Status::Ok);
}
