//! MOUNT.

use super::*;
use crate::mount;
use dafs_wire::mount3::{self, Exported, Mounted, Path, decode_mounted};
use dafs_wire::nfs3::{List, MkdirArgs, SymlinkArgs};
use dafs_wire::xdr::Decoder;

fn send(world: &World, procedure: mount3::Procedure, args: &[u8]) -> Vec<u8> {
    match mount::call(&world.shared, &world.sender, procedure.number(), args) {
        mount::Answer::Reply(reply) => reply.to_bytes(),
        mount::Answer::Garbage | mount::Answer::NoProcedure => panic!("no answer"),
    }
}

fn mnt(world: &World, path: &str) -> Result<(Fh, Vec<u32>), mount3::Status> {
    let results = send(world, mount3::Procedure::Mnt, &bytes(&Path(path.as_bytes())));
    let mounted = decode_mounted(&results).unwrap();
    mounted.map(|(handle, flavors)| (handle.0.to_vec(), flavors))
}

fn mounts(world: &World) -> Vec<String> {
    let results = send(world, mount3::Procedure::Dump, &[]);
    let list = List::<Mounted<'_>>::decode(&mut Decoder::new(&results)).unwrap();
    let show = |entry: Mounted<'_>| {
        format!("{} {}", entry.host.0.escape_ascii(), entry.path.0.escape_ascii())
    };
    list.iter().map(show).collect()
}

fn exports(world: &World) -> Vec<String> {
    let results = send(world, mount3::Procedure::Export, &[]);
    let list = List::<Exported<'_>>::decode(&mut Decoder::new(&results)).unwrap();
    list.iter().map(|entry| entry.path.0.escape_ascii().to_string()).collect()
}

#[test]
fn the_only_export_is_the_root() {
    let world = World::new();
    let root = world.root();
    assert_eq!(mnt(&world, "/"), Ok((root.clone(), vec![1])));
    assert_eq!(mnt(&world, "").map(|found| found.0), Ok(root.clone()));
    let place = DirOpArgs { dir: FileHandle(&root), name: b"dir" };
    let args = MkdirArgs { place, attributes: SetAttributes::default() };
    let dir = made(&world.call(Procedure::Mkdir, &args)).unwrap().0;
    world.file("file");
    for path in ["/dir", "dir", "//dir/", "./dir/.", "/dir/../dir", "/../dir", "/dir/../../dir"] {
        assert_eq!(mnt(&world, path).map(|found| found.0), Ok(dir.clone()), "{path}");
    }
    for path in ["/.", "/..", "/dir/.."] {
        assert_eq!(mnt(&world, path).map(|found| found.0), Ok(root.clone()), "{path}");
    }
    let cases = [
        ("/di", mount3::Status::NoEnt),
        ("/dirs", mount3::Status::NoEnt),
        ("/file", mount3::Status::NotDir),
        ("/file/x", mount3::Status::NotDir),
        ("/file/.", mount3::Status::NotDir),
        ("/file/..", mount3::Status::NotDir),
        ("/none/..", mount3::Status::NoEnt),
        ("/a\0b", mount3::Status::Inval),
    ];
    for (path, status) in cases {
        assert_eq!(mnt(&world, path), Err(status), "{path:?}");
    }
    let long = format!("/{}", "x".repeat(256));
    assert_eq!(mnt(&world, &long), Err(mount3::Status::NameTooLong));
    let too_long = bytes(&Path(&[b'x'; 1025]));
    let number = mount3::Procedure::Mnt.number();
    let answer = mount::call(&world.shared, &world.sender, number, &too_long);
    assert!(matches!(answer, mount::Answer::Garbage));
    assert_eq!(exports(&world), ["/"]);
}

#[test]
fn links_are_followed_within_their_export() {
    let open = |_: &mut ExportOptions| {};
    let world = World::with(vec![export("data", open), export("other", open)]);
    let data = mnt(&world, "/data").unwrap().0;
    let make = |dir: &Fh, name: &str| {
        let place = DirOpArgs { dir: FileHandle(dir), name: name.as_bytes() };
        let args = MkdirArgs { place, attributes: SetAttributes::default() };
        made(&world.call(Procedure::Mkdir, &args)).unwrap().0
    };
    let (dir, other) = (make(&data, "dir"), mnt(&world, "/other").unwrap().0);
    let (sub, _) = (make(&dir, "sub"), make(&other, "dir"));
    let link = |name: &str, text: &str| {
        let place = DirOpArgs { dir: FileHandle(&data), name: name.as_bytes() };
        let (attributes, target) = (SetAttributes::default(), text.as_bytes().into());
        made(&world.call(Procedure::Symlink, &SymlinkArgs { place, attributes, target })).unwrap();
    };
    for (name, text) in [
        ("to", "dir"),
        ("twice", "./to/sub/../sub"),
        ("whole", "/data/dir"),
        ("above", "../../../dir"),
        ("out", "/other/dir"),
        ("nowhere", "/other/none"),
        ("root", "/"),
        ("round", "round"),
        ("gone", "none"),
    ] {
        link(name, text);
    }
    for (path, found) in [
        ("/data/to", &dir),
        ("/data/to/sub", &sub),
        ("/data/twice", &sub),
        ("/data/whole/sub", &sub),
        ("/data/above", &dir),
        ("/data/to/..", &data),
        ("/data/dir/../../to/.", &dir),
        ("/../data/dir", &dir),
    ] {
        assert_eq!(mnt(&world, path).map(|found| found.0), Ok(found.clone()), "{path}");
    }
    for (path, status) in [
        ("/data/out", mount3::Status::Acces),
        ("/data/nowhere", mount3::Status::Acces),
        ("/data/root", mount3::Status::Acces),
        ("/data/root/other", mount3::Status::Acces),
        ("/data/round", mount3::Status::Acces),
        ("/data/gone", mount3::Status::NoEnt),
        ("/data/to/../../other", mount3::Status::NoEnt),
    ] {
        assert_eq!(mnt(&world, path).map(drop), Err(status), "{path}");
    }
}

#[test]
fn exports_are_mounted_by_their_whole_name() {
    let closed = |options: &mut ExportOptions| {
        options.admits.networks = vec!["192.0.2.0/24".parse().unwrap()];
    };
    let both = |options: &mut ExportOptions| options.admits.flavours.push(Flavour::None);
    let mut world =
        World::with(vec![export("data", |_| {}), export("data2", both), export("secret", closed)]);
    let data = mnt(&world, "/data").unwrap().0;
    assert_eq!(mnt(&world, "/data2").map(|found| found.1), Ok(vec![1, 0]));
    assert_ne!(mnt(&world, "/data2").unwrap().0, data);
    assert_eq!(mnt(&world, "/dat"), Err(mount3::Status::NoEnt));
    assert_eq!(mnt(&world, "/secret"), Err(mount3::Status::Acces));
    // The caller does not learn either which names exist.
    assert_eq!(mnt(&world, "/secret/missing"), Err(mount3::Status::Acces));
    assert_eq!(mnt(&world, "/data/missing"), Err(mount3::Status::NoEnt));
    assert_eq!(exports(&world), ["/data", "/data2"]);
    assert_eq!(world.lookup(&world.root(), "data").map(|found| found.0), Ok(data));
    assert_eq!(world.lookup(&world.root(), "secret"), Err(Status::Acces));
    world.sender.origin = from("192.0.2.7:700");
    assert!(mnt(&world, "/secret").is_ok());
    assert!(mnt(&world, "/").is_ok(), "the root of all exports is open to who may use any");
    assert_eq!(mnt(&world, "/data"), Err(mount3::Status::Acces));
}

#[test]
fn mounts_are_listed_to_those_they_concern() {
    let mut world = World::with(vec![export("", |options| {
        options.admits.networks.push("192.0.2.0/24".parse().unwrap());
    })]);
    mnt(&world, "/").unwrap();
    world.sender.origin = from("192.0.2.7:700");
    mnt(&world, "/").unwrap();
    assert_eq!(mounts(&world), ["192.0.2.7 /"]);
    world.sender.origin = from("127.0.0.1:700");
    assert_eq!(mounts(&world), ["127.0.0.1 /", "192.0.2.7 /"]);
    send(&world, mount3::Procedure::Umnt, &bytes(&Path(b"/")));
    assert_eq!(mounts(&world), ["192.0.2.7 /"]);
    world.sender.origin = from("192.0.2.7:700");
    send(&world, mount3::Procedure::UmntAll, &[]);
    assert_eq!(mounts(&world), [""; 0]);
}
