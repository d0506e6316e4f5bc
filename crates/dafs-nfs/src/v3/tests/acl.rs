//! NFS_ACL: lists on the wire, over a store that keeps modes and over a local directory.

use super::*;
use dafs_posix::{PosixOptions, PosixStore};
use dafs_store::{AclSupport, ExportSecret, Store};
use dafs_wire::nfs_acl3::{
    Entry, GetaclArgs, GetaclOk, List, Lists, Parts, SetaclArgs, SetaclOk, Tag,
};
use dafs_wire::nfs3::{MkdirArgs, SetattrArgs};
use tempfile::TempDir;

impl World {
    fn acl(&self, procedure: nfs_acl3::Procedure, args: &[u8]) -> Option<Vec<u8>> {
        let operation = Operation::of_acl(procedure.number());
        let answer =
            crate::v3::call(&self.shared, self.sender.clone(), 1, operation, Args::plain(args));
        match answer {
            Answer::Reply(reply) => Some(reply.to_bytes()),
            Answer::Parked(parked) => Some(parked.run(Args::plain(args)).unwrap().to_bytes()),
            Answer::Garbage | Answer::Drop | Answer::NoProcedure | Answer::TooWeak => None,
        }
    }

    fn getacl(&self, object: &Fh, parts: Parts) -> Result<Lists, Status> {
        let args = bytes(&GetaclArgs { object: FileHandle(object), parts });
        let results = self.acl(nfs_acl3::Procedure::Getacl, &args).unwrap();
        let result = decode_results::<GetaclOk, ObjectFailure>(&results).unwrap();
        result.map(|ok| ok.lists).map_err(|failure| failure.status)
    }

    fn setacl(&self, object: &Fh, lists: Lists) -> Result<(), Status> {
        let args = bytes(&SetaclArgs { object: FileHandle(object), lists });
        let results = self.acl(nfs_acl3::Procedure::Setacl, &args).unwrap();
        let result = decode_results::<SetaclOk, ObjectFailure>(&results).unwrap();
        result.map(|ok| assert!(ok.attributes.is_some())).map_err(|failure| failure.status)
    }

    fn mode(&self, object: &Fh) -> u32 {
        self.getattr(object).unwrap().mode & 0o777
    }
}

fn list(entries: &[(Tag, u32, u8)]) -> List {
    List::of(entries.iter().map(|&(tag, id, permissions)| Entry { tag, id, permissions }).collect())
}

/// The list of a file that this process has made, as its mode says it.
fn of_mode(owner: &Attributes, bits: [u8; 3]) -> List {
    let [own, group, other] = bits;
    let named = [(Tag::Owner, owner.uid, own), (Tag::Group, owner.gid, group)];
    list(&[named[0], named[1], (Tag::Mask, 0, group), (Tag::Other, 0, other)])
}

fn access(access: List) -> Lists {
    Lists { parts: Parts::ACCESS, access, default: List::default() }
}

#[test]
fn a_store_of_modes_shows_and_takes_modes() {
    let mut world = World::new();
    let file = world.file("f");
    let owner = world.getattr(&file).unwrap();
    let told = world.getacl(&file, Parts::all()).unwrap();
    assert_eq!((told.access, told.default), (of_mode(&owner, [6, 4, 4]), List::default()));
    let told = world.getacl(&file, Parts::ACCESS_COUNT).unwrap();
    assert_eq!((told.access.count, told.access.entries.len()), (4, 0));
    let private = of_mode(&owner, [6, 0, 0]);
    assert_eq!(world.setacl(&file, access(private.clone())), Ok(()));
    assert_eq!(world.mode(&file), 0o600);
    let named = list(&[(Tag::User, 7, 6), (Tag::Owner, 0, 6), (Tag::Group, 0, 0)]);
    let rest = list(&[(Tag::Mask, 0, 6), (Tag::Other, 0, 0)]);
    let named = List::of([named.entries, rest.entries].concat());
    assert_eq!(world.setacl(&file, access(named)), Err(Status::NotSupp));
    // No list, entries that did not come, a default list of a file.
    assert_eq!(world.setacl(&file, access(List::default())), Err(Status::Inval));
    let short = List { count: 5, ..private.clone() };
    assert_eq!(world.setacl(&file, access(short)), Err(Status::Inval));
    let parts = Parts::ACCESS | Parts::DEFAULT;
    let absent = List { count: 5, entries: vec![] };
    let absent = Lists { parts, access: private.clone(), default: absent };
    assert_eq!(world.setacl(&file, absent), Err(Status::Inval));
    let both = Lists { parts, access: private.clone(), default: private.clone() };
    assert_eq!(world.setacl(&file, both), Err(Status::Inval));
    let none = Lists { parts, access: private.clone(), default: List::default() };
    assert_eq!(world.setacl(&file, none), Ok(()));
    world.sender.who = CallerIdentity::unproven(Cred::new(1001, 1001), Flavour::Sys);
    assert_eq!(world.setacl(&file, access(private)), Err(Status::Perm));
    assert_eq!(world.getacl(&Vec::new(), Parts::all()), Err(Status::BadHandle));
    assert_eq!(world.mode(&file), 0o600);
}

#[test]
fn a_local_directory_keeps_lists_with_their_masks() {
    let dir = TempDir::new().unwrap();
    let options = PosixOptions::new(ExportSecret::from_bytes([3; 16]));
    let store = PosixStore::open(dir.path(), options).unwrap();
    if store.capabilities().acls == AclSupport::Mode {
        println!("SKIPPED: the file system below has no lists");
        return;
    }
    let mut rules = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
    rules.admits.unprivileged_ports = true;
    let world = World::with(vec![Export::new("", Arc::new(store), rules)]);
    let file = world.file("f");
    let owner = world.getattr(&file).unwrap();
    let told = world.getacl(&file, Parts::ACCESS).unwrap();
    assert_eq!(told.access, of_mode(&owner, [6, 4, 4]));
    let named = |mask| {
        list(&[
            (Tag::Owner, owner.uid, 6),
            (Tag::User, 4242, 6),
            (Tag::Group, owner.gid, 4),
            (Tag::NamedGroup, 77, 5),
            (Tag::Mask, 0, mask),
            (Tag::Other, 0, 0),
        ])
    };
    assert_eq!(world.setacl(&file, access(named(4))), Ok(()));
    assert_eq!(world.getacl(&file, Parts::ACCESS).unwrap().access, named(4));
    assert_eq!(world.mode(&file), 0o640);
    // The mode changes the mask and no other entry of the group's class.
    let new = SetAttributes { mode: Some(0o670), ..SetAttributes::default() };
    let args = SetattrArgs { object: FileHandle(&file), new, guard: None };
    let results = world.call(Procedure::Setattr, &args);
    assert!(decode_results::<WccResult, ChangeFailure>(&results).unwrap().is_ok());
    assert_eq!(world.getacl(&file, Parts::ACCESS).unwrap().access, named(7));

    let (root, name) = (world.root(), b"d");
    let place = DirOpArgs { dir: FileHandle(&root), name };
    let attributes = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
    let (dir, _) = made(&world.call(Procedure::Mkdir, &MkdirArgs { place, attributes })).unwrap();
    let default = Lists { parts: Parts::DEFAULT, access: List::default(), default: named(6) };
    assert_eq!(world.setacl(&dir, default), Ok(()));
    assert_eq!(world.mode(&dir), 0o755, "the other list stays");
    assert_eq!(world.setacl(&dir, access(of_mode(&owner, [7, 0, 0]))), Ok(()));
    let told = world.getacl(&dir, Parts::all()).unwrap();
    assert_eq!((told.access, told.default), (of_mode(&owner, [7, 0, 0]), named(6)));
    let how = CreateHow::Guarded(SetAttributes { mode: Some(0o664), ..Default::default() });
    let (child, _) = world.create(&dir, "child", how).unwrap();
    let told = world.getacl(&child, Parts::ACCESS).unwrap();
    assert!(told.access.entries.iter().any(|one| (one.tag, one.id) == (Tag::User, 4242)));
    let none = Lists { parts: Parts::DEFAULT, ..Lists::default() };
    assert_eq!(world.setacl(&dir, none), Ok(()));
    assert_eq!(world.getacl(&dir, Parts::DEFAULT).unwrap().default, List::default());
}

#[test]
fn broken_requests_of_lists_are_garbage() {
    let world = World::new();
    let file = world.file("f");
    let owner = world.getattr(&file).unwrap();
    let lists = access(of_mode(&owner, [0, 0, 0]));
    let args = bytes(&SetaclArgs { object: FileHandle(&file), lists });
    for len in 0..args.len() {
        assert_eq!(world.acl(nfs_acl3::Procedure::Setacl, &args[..len]), None, "{len}");
    }
    assert_eq!(world.mode(&file), 0o644, "nothing was carried out");
    assert_eq!(world.acl(nfs_acl3::Procedure::Null, &[]), Some(Vec::new()));
}
