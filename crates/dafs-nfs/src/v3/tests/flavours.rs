//! Exports that demand a proof, and callers with weaker flavours (RFC 2623 2.3.2).

use super::*;
use crate::mount;
use dafs_wire::mount3::{self, Path, decode_mounted};
use dafs_wire::nfs3::{FsInfoOk, ReaddirplusArgs, ReaddirplusOk, RenameArgs};

/// A server with an export for proofs, and one for claims.
fn strict_and_lax() -> World {
    let strict = |options: &mut ExportOptions| {
        options.admits.flavours = vec![Flavour::Krb5p, Flavour::Krb5i];
    };
    let world = World::with(vec![export("strict", strict), export("lax", |_| {})]);
    world.shared.accept_gss(crate::gss::of_tests(None));
    world
}

impl World {
    fn root_of(&self, name: &str) -> Fh {
        let namespace = self.shared.service.namespace();
        let export = namespace.exports().find(|export| export.name() == name).unwrap().root();
        wire_handle::encode(&export).to_vec()
    }

    fn with_flavour(&mut self, flavour: Flavour) {
        let principal = flavour.is_proven().then(|| Arc::from(&b"anna"[..]));
        self.sender.who = CallerIdentity { cred: Cred::new(0, 0), flavour, principal };
    }

    /// True if the RPC layer refuses the call.
    fn is_too_weak(&self, procedure: Procedure, args: &impl Encode) -> bool {
        self.xid.set(self.xid.get() + 1);
        let (xid, args) = (self.xid.get(), bytes(args));
        let number = procedure.number();
        match call(&self.shared, self.sender.clone(), xid, number, Args::plain(&args)) {
            Answer::TooWeak => true,
            Answer::Parked(parked) => parked.run(Args::plain(&args)).is_err(),
            Answer::Reply(_) => false,
            Answer::Garbage | Answer::Drop | Answer::NoProcedure => panic!("no answer"),
        }
    }
}

#[test]
fn only_the_root_is_told_to_a_claim_and_only_at_mount() {
    let mut world = strict_and_lax();
    let root = world.root_of("strict");
    world.with_flavour(Flavour::Krb5i);
    let file = {
        let how = CreateHow::Guarded(SetAttributes { mode: Some(0o666), ..Default::default() });
        world.create(&root, "f", how).unwrap().0
    };
    for flavour in [Flavour::Sys, Flavour::None] {
        world.with_flavour(flavour);
        assert!(world.getattr(&root).is_ok(), "{flavour:?}");
        let results = world.call(Procedure::FsInfo, &GetattrArgs { object: FileHandle(&root) });
        assert!(decode_results::<FsInfoOk, ObjectFailure>(&results).unwrap().is_ok());
        for procedure in [Procedure::Getattr, Procedure::FsInfo] {
            let args = GetattrArgs { object: FileHandle(&file) };
            assert!(world.is_too_weak(procedure, &args), "{flavour:?} {procedure:?}");
        }
        for procedure in [Procedure::FsStat, Procedure::PathConf, Procedure::Readlink] {
            let args = GetattrArgs { object: FileHandle(&root) };
            assert!(world.is_too_weak(procedure, &args), "{flavour:?} {procedure:?}");
        }
        let place = DirOpArgs { dir: FileHandle(&root), name: b"f" };
        assert!(world.is_too_weak(Procedure::Lookup, &place));
        assert!(world.is_too_weak(Procedure::Remove, &place));
        let access = AccessArgs { object: FileHandle(&root), wanted: 63 };
        assert!(world.is_too_weak(Procedure::Access, &access));
    }
    // A proof without integrity is too weak for the root, too.
    world.with_flavour(Flavour::Krb5);
    assert!(world.is_too_weak(Procedure::Getattr, &GetattrArgs { object: FileHandle(&root) }));
    world.with_flavour(Flavour::Krb5p);
    assert!(world.lookup(&root, "f").is_ok(), "nothing was removed");
}

/// AUTH_NONE proves no less than AUTH_SYS (RFC 2623 2.3.2).
#[test]
fn a_client_without_a_user_mounts_an_export_for_claims_and_gets_nothing_else() {
    let mut world = strict_and_lax();
    let root = world.root_of("lax");
    world.with_flavour(Flavour::Sys);
    let file = world.create(&root, "f", guarded()).unwrap().0;
    world.with_flavour(Flavour::None);
    let [root, file] = [&root, &file].map(|handle| GetattrArgs { object: FileHandle(handle) });
    for procedure in [Procedure::Getattr, Procedure::FsInfo] {
        assert!(!world.is_too_weak(procedure, &root), "{procedure:?}");
        assert!(world.is_too_weak(procedure, &file), "{procedure:?}");
    }
    for procedure in [Procedure::FsStat, Procedure::PathConf] {
        assert!(world.is_too_weak(procedure, &root), "{procedure:?}");
    }
    // An origin without any right learns nothing.
    world.sender.origin = from("192.0.2.1:700");
    let results = world.call(Procedure::Getattr, &root);
    assert_eq!(results[..4], Status::Acces.number().to_be_bytes());
}

/// A refused request is not kept: the same request with a better flavour is executed.
#[test]
fn a_refusal_is_no_reply_to_keep() {
    let mut world = strict_and_lax();
    let root = world.root_of("strict");
    let place = DirOpArgs { dir: FileHandle(&root), name: b"f" };
    let args = bytes(&CreateArgs { place, how: guarded() });
    assert_eq!(world.send(7, Procedure::Create, &args), None);
    assert_eq!(world.send(7, Procedure::Create, &args), None, "it is not under way either");
    world.with_flavour(Flavour::Krb5p);
    assert!(made(&world.send(7, Procedure::Create, &args).unwrap()).is_ok());
}

/// Ways into the strict export by handles and names of the lax one.
#[test]
fn no_way_leads_through_another_export() {
    let mut world = strict_and_lax();
    let [strict, lax] = ["strict", "lax"].map(|name| world.root_of(name));
    world.with_flavour(Flavour::Krb5p);
    let hidden = world.create(&strict, "hidden", guarded()).unwrap().0;
    world.with_flavour(Flavour::Sys);
    let open = world.create(&lax, "open", guarded()).unwrap().0;
    // By the directory of exports.
    let name = DirOpArgs { dir: FileHandle(&world.root()), name: b"strict" };
    assert!(world.is_too_weak(Procedure::Lookup, &name));
    // As the second object of a request.
    let [from, to] = [&lax, &strict].map(|dir| DirOpArgs { dir: FileHandle(dir), name: b"open" });
    assert!(world.is_too_weak(Procedure::Rename, &RenameArgs { from, to }));
    let (from, to) = (DirOpArgs { name: b"hidden", ..to }, DirOpArgs { name: b"hidden", ..from });
    assert!(world.is_too_weak(Procedure::Rename, &RenameArgs { from, to }));
    // The file of one export under the rules of the other.
    let moved = [&lax[..16], &hidden[16..]].concat();
    assert_ne!(moved, open);
    let other = world.getattr(&moved).map(|attributes| attributes.file_id);
    let own = world.getattr(&open).map(|attributes| attributes.file_id);
    assert!(other.is_err() || other == own, "it is a file of the lax export, if any");
}

#[test]
fn a_listing_shows_no_attributes_of_exports_that_refuse_the_caller() {
    let mut world = strict_and_lax();
    let root = world.root();
    let list = |world: &World| {
        let args = ReaddirplusArgs {
            dir: FileHandle(&root),
            cookie: 0,
            verifier: [0; 8],
            dir_count: 8192,
            max_count: 8192,
        };
        let results = world.call(Procedure::Readdirplus, &args);
        let ok = decode_results::<ReaddirplusOk<'_>, ObjectFailure>(&results).unwrap().unwrap();
        let shown = ok.entries.iter().filter(|entry| !entry.name.starts_with(b"."));
        shown
            .map(|entry| {
                assert_eq!(entry.attributes.is_some(), entry.object.is_some());
                (String::from_utf8(entry.name.to_vec()).unwrap(), entry.attributes.is_some())
            })
            .collect::<Vec<_>>()
    };
    let found = |strict, lax| [("lax".to_owned(), lax), ("strict".to_owned(), strict)];
    assert_eq!(list(&world), found(false, true));
    world.with_flavour(Flavour::Krb5p);
    assert_eq!(list(&world), found(true, false));
}

#[test]
fn a_mount_names_what_will_be_accepted() {
    let flavours = |world: &World, path: &str| {
        let args = bytes(&Path(path.as_bytes()));
        let number = mount3::Procedure::Mnt.number();
        let answer = mount::call(&world.shared, &world.sender, number, &args);
        let mount::Answer::Reply(reply) = answer else { panic!("no answer") };
        decode_mounted(&reply.to_bytes()).unwrap().map(|(_, flavors)| flavors)
    };
    let mixed = |options: &mut ExportOptions| {
        options.admits.flavours = vec![Flavour::Krb5p, Flavour::Sys];
        options.admits.unprivileged_ports = false;
    };
    let mut world = World::with(vec![export("", mixed)]);
    assert_eq!(flavours(&world, "/"), Ok(vec![1]), "no one can prove anything here");
    world.shared.accept_gss(crate::gss::of_tests(None));
    assert_eq!(flavours(&world, "/"), Ok(vec![390_005, 1]));
    world.sender.origin = from("127.0.0.1:2000");
    assert_eq!(flavours(&world, "/"), Ok(vec![390_005]), "a claim needs a port of root");
    world.sender.origin = from("192.0.2.1:700");
    assert_eq!(flavours(&world, "/"), Err(mount3::Status::Acces));
}
