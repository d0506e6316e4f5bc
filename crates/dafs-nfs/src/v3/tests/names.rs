//! Names: create, look up, remove, rename, link, and retried requests.

use super::*;
use dafs_wire::nfs3::{
    FileType, LinkArgs, LinkResult, MkdirArgs, MknodArgs, MknodObject, ReadlinkOk, RenameArgs,
    RenameResult, SetTime, SetattrArgs, SymlinkArgs, Time,
};

fn place<'a>(dir: &'a Fh, name: &'a str) -> DirOpArgs<'a> {
    DirOpArgs { dir: FileHandle(dir), name: name.as_bytes() }
}

fn mkdir(world: &World, dir: &Fh, name: &str) -> Result<(Fh, Attributes), Status> {
    let attributes = SetAttributes { mode: Some(0o750), ..Default::default() };
    let args = MkdirArgs { place: place(dir, name), attributes };
    made(&world.call(Procedure::Mkdir, &args))
}

#[test]
fn names_lead_to_what_they_were_given_to() {
    let world = World::new();
    let root = world.root();
    let (dir, attributes) = mkdir(&world, &root, "d").unwrap();
    assert_eq!((attributes.file_type, attributes.mode), (FileType::Directory, 0o750));
    let file = world.create(&dir, "f", guarded()).unwrap().0;
    assert_eq!(world.lookup(&dir, "f").unwrap().0, file);
    assert_eq!(world.lookup(&dir, ".").unwrap().0, dir);
    assert_eq!(world.lookup(&dir, "..").unwrap().0, root);
    assert_eq!(world.lookup(&root, "..").unwrap().0, root);
    assert_eq!(world.lookup(&root, "no"), Err(Status::NoEnt));
    assert_eq!(world.lookup(&file, "f"), Err(Status::NotDir));
    assert_eq!(world.lookup(&file, "."), Err(Status::NotDir));
}

#[test]
fn a_failed_lookup_tells_the_directory() {
    let world = World::new();
    let root = world.root();
    let results = world.call(Procedure::Lookup, &place(&root, "no"));
    let failure = failure::<ObjectFailure>(&results);
    assert_eq!(failure.status, Status::NoEnt);
    assert_eq!(failure.body.attributes, world.getattr(&root).ok());
}

#[test]
fn create_has_three_ways() {
    let world = World::new();
    let root = world.root();
    let (file, _) = world.create(&root, "f", guarded()).unwrap();
    assert_eq!(world.create(&root, "f", guarded()), Err(Status::Exist));
    let unchecked = CreateHow::Unchecked(SetAttributes::default());
    assert_eq!(world.create(&root, "f", unchecked).unwrap().0, file);
    let exclusive = CreateHow::Exclusive(*b"verifier");
    let (made, _) = world.create(&root, "x", exclusive).unwrap();
    assert_eq!(world.create(&root, "x", exclusive).unwrap().0, made, "the same create again");
    assert_eq!(world.create(&root, "x", CreateHow::Exclusive([9; 8])), Err(Status::Exist));
    assert_eq!(world.create(&root, "f", CreateHow::Exclusive([9; 8])), Err(Status::Exist));
    assert_eq!(world.create(&root, ".", guarded()), Err(Status::Exist));
    assert_eq!(world.create(&root, "..", guarded()), Err(Status::Exist));
}

#[test]
fn an_unchecked_create_of_size_zero_truncates() {
    let world = World::new();
    let file = world.file("f");
    let grow = SetAttributes { size: Some(10), ..Default::default() };
    let args = SetattrArgs { object: FileHandle(&file), new: grow, guard: None };
    world.call(Procedure::Setattr, &args);
    assert_eq!(world.getattr(&file).unwrap().size, 10);
    let cut = SetAttributes { size: Some(0), ..Default::default() };
    let (same, attributes) = world.create(&world.root(), "f", CreateHow::Unchecked(cut)).unwrap();
    assert_eq!((same, attributes.size), (file, 0));
}

#[test]
fn special_files_and_symlinks() {
    let world = World::new();
    let root = world.root();
    let nothing = SetAttributes::default();
    let mknod = |name, object| {
        made(&world.call(Procedure::Mknod, &MknodArgs { place: place(&root, name), object }))
    };
    let device = MknodObject::CharDevice { attributes: nothing, device: (1, 3) };
    let (_, attributes) = mknod("null", device).unwrap();
    assert_eq!((attributes.file_type, attributes.device), (FileType::CharDevice, (1, 3)));
    let fifo = mknod("fifo", MknodObject::Fifo(nothing)).unwrap().1;
    assert_eq!(fifo.file_type, FileType::Fifo);
    let socket = mknod("socket", MknodObject::Socket(nothing)).unwrap().1;
    assert_eq!(socket.file_type, FileType::Socket);
    for number in [0, 1, 2, 5, 8, u32::MAX] {
        assert_eq!(mknod("no", MknodObject::Other(number)), Err(Status::BadType), "{number}");
    }
    let target = b"../some/where";
    let args = SymlinkArgs { place: place(&root, "l"), attributes: nothing, target: target.into() };
    let (link, attributes) = made(&world.call(Procedure::Symlink, &args)).unwrap();
    assert_eq!(attributes.file_type, FileType::Symlink);
    let results = world.call(Procedure::Readlink, &GetattrArgs { object: FileHandle(&link) });
    let ok = decode_results::<ReadlinkOk<'_>, ObjectFailure>(&results).unwrap().unwrap();
    assert_eq!((ok.target, ok.attributes), (target.into(), Some(attributes)));
    let results = world.call(Procedure::Readlink, &GetattrArgs { object: FileHandle(&root) });
    assert_eq!(failure::<ObjectFailure>(&results).status, Status::Inval);
    let long = vec![b'x'; 5000];
    let args = SymlinkArgs {
        place: place(&root, "m"),
        attributes: nothing,
        target: long.as_slice().into(),
    };
    assert_eq!(made(&world.call(Procedure::Symlink, &args)), Err(Status::NameTooLong));
}

#[test]
fn remove_and_rmdir_keep_to_their_kinds() {
    let world = World::new();
    let root = world.root();
    let dir = mkdir(&world, &root, "d").unwrap().0;
    world.create(&dir, "f", guarded()).unwrap();
    let rmdir = |dir: &Fh, name| world.remove_by(Procedure::Rmdir, dir, name);
    assert_eq!(world.remove(&root, "d"), Err(Status::IsDir));
    assert_eq!(rmdir(&dir, "f"), Err(Status::NotDir));
    assert_eq!(rmdir(&root, "d"), Err(Status::NotEmpty));
    assert_eq!(rmdir(&dir, "."), Err(Status::Inval));
    assert_eq!(rmdir(&dir, ".."), Err(Status::NotEmpty));
    assert_eq!(world.remove(&dir, ".."), Err(Status::Inval));
    assert_eq!(world.remove(&dir, "f"), Ok(()));
    assert_eq!(world.remove(&dir, "f"), Err(Status::NoEnt));
    assert_eq!(rmdir(&root, "d"), Ok(()));
    assert_eq!(world.getattr(&dir), Err(Status::Stale));
}

#[test]
fn renames_and_links_tell_both_sides() {
    let world = World::new();
    let root = world.root();
    let dir = mkdir(&world, &root, "d").unwrap().0;
    let file = world.file("f");
    let args = RenameArgs { from: place(&root, "f"), to: place(&dir, "g") };
    let results = world.call(Procedure::Rename, &args);
    let ok = decode_results::<RenameResult, RenameResult>(&results).unwrap().unwrap();
    assert_eq!(ok.from_dir.after, world.getattr(&root).ok());
    assert_eq!(ok.to_dir.after, world.getattr(&dir).ok());
    assert_eq!(world.lookup(&dir, "g").unwrap().0, file);
    let args = LinkArgs { file: FileHandle(&file), place: place(&root, "h") };
    let results = world.call(Procedure::Link, &args);
    let ok = decode_results::<LinkResult, LinkResult>(&results).unwrap().unwrap();
    assert_eq!(ok.attributes.map(|attributes| attributes.links), Some(2));
    let results = world.call(Procedure::Link, &args);
    assert_eq!(failure::<LinkResult>(&results).status, Status::Exist);
    let args = RenameArgs { from: place(&root, ".."), to: place(&dir, "g") };
    let results = world.call(Procedure::Rename, &args);
    assert_eq!(failure::<RenameResult>(&results).status, Status::Inval);
    // A directory is moved into itself.
    let args = RenameArgs { from: place(&root, "d"), to: place(&dir, "e") };
    let results = world.call(Procedure::Rename, &args);
    assert_eq!(failure::<RenameResult>(&results).status, Status::Inval);
}

#[test]
fn a_guarded_setattr_needs_the_current_ctime() {
    let world = World::new();
    let file = world.file("f");
    let before = world.getattr(&file).unwrap();
    let new = SetAttributes {
        mode: Some(0o600),
        mtime: SetTime::ToClient(Time { seconds: 77, nanoseconds: 5 }),
        ..Default::default()
    };
    let mut args = SetattrArgs { object: FileHandle(&file), new, guard: None };
    args.guard = Some(Time { seconds: before.ctime.seconds ^ 1, nanoseconds: 0 });
    let refused = failure::<ChangeFailure>(&world.call(Procedure::Setattr, &args)).status;
    assert_eq!(refused, Status::NotSync);
    assert_eq!(world.getattr(&file).unwrap(), before);
    args.guard = Some(before.ctime);
    let results = world.call(Procedure::Setattr, &args);
    let ok = decode_results::<WccResult, ChangeFailure>(&results).unwrap().unwrap();
    let after = ok.wcc.after.unwrap();
    assert_eq!((after.mode, after.mtime), (0o600, Time { seconds: 77, nanoseconds: 5 }));
    assert_eq!(world.getattr(&file).unwrap(), after);
}

#[test]
fn a_request_that_comes_twice_is_carried_out_once() {
    let mut world = World::new();
    let root = world.root();
    world.file("f");
    let args = bytes(&place(&root, "f"));
    let first = world.send(1000, Procedure::Remove, &args).unwrap();
    assert_eq!(first[..4], [0; 4]);
    // The retry comes from another port, as after a reconnection.
    world.sender.origin = from("127.0.0.1:900");
    assert_eq!(world.send(1000, Procedure::Remove, &args), Some(first));
    let other = world.send(1001, Procedure::Remove, &args).unwrap();
    assert_eq!(failure::<ChangeFailure>(&other).status, Status::NoEnt);
    // A permanent failure is repeated, although the name exists again.
    world.file("f");
    assert_eq!(world.send(1001, Procedure::Remove, &args), Some(other));
    assert_eq!(world.remove(&root, "f"), Ok(()));
}

#[test]
fn a_copy_of_a_request_under_way_is_dropped_and_a_lost_one_forgotten() {
    let world = World::new();
    let file = world.file("f");
    let write = dafs_wire::nfs3::WriteArgs {
        file: FileHandle(&file),
        offset: 0,
        count: 3,
        stable: dafs_wire::nfs3::Stability::FileSync,
        data: b"abc".into(),
    };
    let args = bytes(&write);
    let number = Procedure::Write.number();
    let send = || call(&world.shared, world.sender.clone(), 5, number, Args::plain(&args));
    let Answer::Parked(parked) = send() else { panic!("a stable write waits") };
    assert!(matches!(send(), Answer::Drop));
    drop(parked);
    let Answer::Parked(parked) = send() else { panic!("forgotten") };
    let results = parked.run(Args::plain(&args)).unwrap().to_bytes();
    let Answer::Reply(again) = send() else { panic!("kept") };
    assert_eq!(again.to_bytes(), results);
}
