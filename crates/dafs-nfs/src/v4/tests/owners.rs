//! Owners by name for callers that prove theirs.

use super::*;
use dafs_service::durable::Durability;
use dafs_service::{Directory, ExportOptions, LocalUser, OwnerNames, Squash};
use dafs_store::{MemoryOptions, MemoryStore, Store};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{OnceLock, Weak};

/// User anna is 1000. Counts the questions.
#[derive(Debug, Clone, Default)]
struct Toy {
    server: Arc<OnceLock<Weak<NfsShared>>>,
    asked: Arc<AtomicUsize>,
    /// The questions that operations wait for.
    awaited: Arc<AtomicUsize>,
    /// The server gives up all names before the answer.
    gives_up: Arc<AtomicBool>,
}

impl Toy {
    fn asked<T>(&self, found: Option<T>) -> io::Result<Option<T>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let server = self.server.get().and_then(Weak::upgrade);
        let is_awaited = server.as_ref().is_some_and(|server| server.looks_up_names());
        self.awaited.fetch_add(usize::from(is_awaited), Ordering::Relaxed);
        if let Some(server) = server.filter(|_| self.gives_up.load(Ordering::Relaxed)) {
            server.give_up_names();
            assert!(!server.looks_up_names(), "an operation still waits");
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(found)
    }
}

impl Directory for Toy {
    fn user(&self, _: &str) -> io::Result<Option<LocalUser>> {
        Ok(None)
    }

    fn uid(&self, name: &str) -> io::Result<Option<u32>> {
        self.asked((name == "anna").then_some(1000))
    }

    fn gid(&self, name: &str) -> io::Result<Option<u32>> {
        self.asked((name == "staff").then_some(50))
    }

    fn user_name(&self, uid: u32) -> io::Result<Option<String>> {
        self.asked((uid == 1000).then(|| "anna".to_owned()))
    }

    fn group_name(&self, gid: u32) -> io::Result<Option<String>> {
        self.asked((gid == 50).then(|| "staff".to_owned()))
    }
}

/// A server with a domain, a session, and the database.
fn world() -> (World, Session, Toy) {
    let world = World::new(vec![export("", |options| {
        options.admits.flavours = vec![Flavour::Krb5, Flavour::Sys];
    })]);
    let toy = Toy::default();
    toy.server.set(Arc::downgrade(&world.shared)).unwrap();
    let owners = OwnerNames::new("a.org", Box::new(toy.clone()));
    world.shared.accept_gss(crate::gss::of_tests(Some(owners)));
    let session = world.client(&claims(0), StateProtectArgs::None);
    (world, session, toy)
}

fn chown(owner: &str, group: &str) -> (Bitmap, Vec<u8>) {
    let mut values = Vec::new();
    let mut encoder = Encoder::new(&mut values);
    encoder.opaque(owner.as_bytes());
    encoder.opaque(group.as_bytes());
    (Attr::set(&[Attr::Owner, Attr::OwnerGroup]), values)
}

fn owners(world: &World, session: &mut Session, who: &CallerIdentity) -> [String; 2] {
    let ops = [ROOT, lookup(b"f"), getattr(&[Attr::Owner, Attr::OwnerGroup])];
    let answer = world.next(who, session, &ops);
    let ResultBody::Getattr(found) = answer.body(3) else { panic!() };
    let attributes = Attributes::decode(&found.attributes).unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    [text(attributes.owner.unwrap()), text(attributes.owner_group.unwrap())]
}

#[test]
fn owners_are_names_for_those_that_prove_theirs() {
    let (world, mut session, toy) = world();
    let (root, proof) = (claims(0), proves("root@R", 0, Flavour::Krb5));
    let top = world.root_of("");
    world.file(&root, &mut session, &top, b"f");
    let set = |session: &mut Session, who: &CallerIdentity, owner: &str, group: &str| {
        let (mask, values) = chown(owner, group);
        let attributes = Fattr { mask, values: &values };
        let set = Op::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attributes });
        world.next(who, session, &[ROOT, lookup(b"f"), set]).status()
    };
    // Both forms are taken from both kinds of callers.
    for who in [&root, &proof] {
        assert_eq!(set(&mut session, who, "0", "0"), Status::Ok);
        assert_eq!(set(&mut session, who, "anna@a.org", "staff@A.ORG"), Status::Ok);
        assert_eq!(owners(&world, &mut session, &root), ["1000", "50"]);
        assert_eq!(owners(&world, &mut session, &proof), ["anna@a.org", "staff@a.org"]);
        assert_eq!(set(&mut session, who, "0", "0"), Status::Ok);
        assert_eq!(set(&mut session, who, "1000", "7"), Status::Ok);
        assert_eq!(owners(&world, &mut session, &proof), ["anna@a.org", "7"]);
    }
    // Two names, two numbers and the number without a name, each once.
    assert_eq!(toy.asked.load(Ordering::Relaxed), 5);
    for bad in ["bert@a.org", "anna@b.org", "root@evil", "anna", "staff@a.org"] {
        assert_eq!(set(&mut session, &proof, bad, "0"), Status::BadOwner, "{bad}");
    }
    assert_eq!(owners(&world, &mut session, &proof), ["anna@a.org", "7"]);
}

/// A whole listing waits once.
#[test]
fn a_listing_waits_for_all_its_names_at_once() {
    let (world, mut session, toy) = world();
    let top = world.root_of("");
    for (name, owner) in [(b"a", "1000"), (b"b", "1000"), (b"c", "50")] {
        world.file(&claims(0), &mut session, &top, name);
        let (mask, values) = chown(owner, "50");
        let attributes = Fattr { mask, values: &values };
        let set = Op::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attributes });
        assert_eq!(
            world.next(&claims(0), &mut session, &[ROOT, lookup(name), set]).status(),
            Status::Ok
        );
    }
    let list = Op::Readdir(ReaddirArgs {
        cookie: 0,
        cookie_verifier: Verifier([0; 8]),
        directory_bytes: 4096,
        result_bytes_max: 4096,
        request: Attr::set(&[Attr::Owner]),
    });
    let answer = world.next(&proves("anna@R", 1000, Flavour::Krb5), &mut session, &[ROOT, list]);
    let ResultBody::Readdir(found) = answer.body(2) else { panic!() };
    let owner = |entry: DirectoryEntry<'_>| {
        let attributes = Attributes::decode(&entry.attributes).unwrap();
        String::from_utf8(attributes.owner.unwrap().to_vec()).unwrap()
    };
    let owners: Vec<_> = found.entries().map(owner).collect();
    assert_eq!(owners, ["anna@a.org", "anna@a.org", "50"]);
    assert_eq!(toy.asked.load(Ordering::Relaxed), 2, "each number is asked for once");
}

/// The end of a server waits for a database that hangs only while an operation does.
#[test]
fn no_operation_waits_for_names_that_are_only_old() {
    const LATER_NS: u64 = 3_600_000_000_000;
    let (mut world, mut session, toy) = world();
    let (root, proof) = (claims(0), proves("root@R", 0, Flavour::Krb5));
    let top = world.root_of("");
    world.file(&root, &mut session, &top, b"f");
    let (mask, values) = chown("1000", "50");
    let attributes = Fattr { mask, values: &values };
    let set = Op::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attributes });
    let answer = world.next(&root, &mut session, &[ROOT, lookup(b"f"), set]);
    assert_eq!(answer.status(), Status::Ok);
    for (now_ns, counts) in [(1, [2, 2]), (LATER_NS, [4, 2])] {
        world.now_ns = now_ns;
        assert_eq!(owners(&world, &mut session, &proof), ["anna@a.org", "staff@a.org"]);
        let counted = [&toy.asked, &toy.awaited].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(counted, counts);
        assert!(!world.shared.looks_up_names());
    }
}

/// The database may never answer, and the server ends.
#[test]
fn an_operation_goes_on_without_names_that_are_given_up() {
    let (world, mut session, toy) = world();
    let (root, proof) = (claims(0), proves("root@R", 0, Flavour::Krb5));
    let top = world.root_of("");
    world.file(&root, &mut session, &top, b"f");
    let (mask, values) = chown("1000", "50");
    let attributes = Fattr { mask, values: &values };
    let set = Op::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attributes });
    let answer = world.next(&root, &mut session, &[ROOT, lookup(b"f"), set]);
    assert_eq!(answer.status(), Status::Ok);
    toy.gives_up.store(true, Ordering::Relaxed);
    assert_eq!(owners(&world, &mut session, &proof), ["1000", "50"]);
    assert_eq!(toy.asked.load(Ordering::Relaxed), 1, "the other name is given up, too");
    assert_eq!(toy.awaited.load(Ordering::Relaxed), 1);
    // A compound may need other names behind these.
    let (mask, values) = chown("anna@a.org", "50");
    let attributes = Fattr { mask, values: &values };
    let set = Op::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attributes });
    let answer = world.next(&root, &mut session, &[ROOT, lookup(b"f"), set]);
    assert_eq!(answer.status(), Status::Delay);
    assert_eq!(toy.asked.load(Ordering::Relaxed), 1, "no later operation waits");
    assert!(!world.shared.looks_up_names());
}

/// The name may be the one that the client compares with.
#[test]
fn a_comparison_without_the_name_of_an_owner_is_put_off() {
    let (world, mut session, toy) = world();
    let (root, proof) = (claims(0), proves("root@R", 0, Flavour::Krb5));
    let top = world.root_of("");
    world.file(&root, &mut session, &top, b"f");
    let (mask, values) = chown("1000", "50");
    let numbers = VerifyArgs { attributes: Fattr { mask, values: &values } };
    let attributes = numbers.attributes;
    let set = Op::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attributes });
    let answer = world.next(&root, &mut session, &[ROOT, lookup(b"f"), set]);
    assert_eq!(answer.status(), Status::Ok);
    toy.gives_up.store(true, Ordering::Relaxed);
    let (mask, values) = chown("anna@a.org", "staff@a.org");
    let names = VerifyArgs { attributes: Fattr { mask, values: &values } };
    let mut compare = |who, op| world.next(who, &mut session, &[ROOT, lookup(b"f"), op]).status();
    assert_eq!(compare(&proof, Op::Nverify(names)), Status::Delay);
    assert_eq!(compare(&proof, Op::Verify(names)), Status::Delay);
    assert_eq!(compare(&root, Op::Nverify(numbers)), Status::Same, "this caller gets numbers");
    assert_eq!(compare(&root, Op::Verify(names)), Status::NotSame);
}

/// A server that ends drops the compounds that still wait.
#[test]
fn a_change_is_in_doubt_when_its_compound_is_dropped_behind_it() {
    let anna = proves("anna@R", 1000, Flavour::Krb5);
    let ops = [ROOT, open(OpenClaim::Null(b"f")), getattr(&[Attr::Owner])];
    for (is_behind, end) in [(false, (1, Status::DeadSession)), (true, (3, Status::Io))] {
        let memory = MemoryOptions { root_mode: 0o777, ..MemoryOptions::default() };
        let (store, disk) = (Arc::new(MemoryStore::new(memory)), Arc::new(SimDisk::new()));
        let run = |instance| {
            let mut options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
            options.durable_replies = Durability::Crash;
            options.admits.unprivileged_ports = true;
            options.admits.flavours = vec![Flavour::Krb5, Flavour::Sys];
            let exports = vec![Export::new("", store.clone(), options)];
            let world = World::run_of(instance, exports, Some(disk.clone()));
            let owners = OwnerNames::new("a.org", Box::new(Toy::default()));
            world.shared.accept_gss(crate::gss::of_tests(Some(owners)));
            world
        };
        let is_made = || store.lookup(&Cred::new(0, 0), &store.root(), b"f").is_ok();
        let world = run(1);
        let mut session = world.client(&claims(0), StateProtectArgs::None);
        session.sequence += 1;
        let whole = [&[session.sequence_op()], &ops[..]].concat();
        assert_eq!(world.send_until(&anna, &whole, || is_made() == is_behind), None);
        drop(world);
        let again = run(2).again(&anna, &session, &ops);
        assert_eq!((again.end(), is_made()), (end, is_behind));
    }
}
