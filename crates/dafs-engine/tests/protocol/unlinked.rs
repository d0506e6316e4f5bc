//! Files that are made without a name (DAFS 10.3).

use crate::common::*;
use dafs_wire::dafs::{self, Attributes, FileHandle, Request, ShareAccess, Status, Verifier};

fn unlinked(dir: FileHandle) -> dafs::Open<'static> {
    let attributes = Attributes { mode: Some(0o640), ..Attributes::default() };
    dafs::Open {
        claim: dafs::OpenClaim::CreateUnlinked { dir },
        create: Some(dafs::CreateMode::Guarded { attributes }),
        ..open_request(dir, &[], b"o")
    }
}

fn link(source: FileHandle, dir: FileHandle, name: &[u8]) -> Request<'_> {
    Request::Link(dafs::Link { source, target_dir: dir, name })
}

#[test]
fn a_file_without_a_name_gets_one_when_it_is_ready() {
    let (mut world, one, two) = World::with_two(Setup::default());
    let root = world.root();
    let dir = found(&world.call(one, &mkdir(root, b"d")));
    let answer = world.call(one, &Request::Open(unlinked(dir)));
    let Ok(dafs::Reply::Open(reply)) = answer.reply() else { panic!("{:?}", answer.status()) };
    assert_eq!(reply.component_count, 0);
    assert_eq!(reply.change.before, reply.change.after);
    let file = File { fh: reply.fh, id: reply.state_id };
    assert_eq!(attributes(&mut world, one, file.fh).unwrap().links, 0);
    world.write(one, file, 0, b"content");
    assert_eq!(world.read(one, file), b"content");
    assert_eq!(world.status(one, &link(file.fh, root, b"f")), Status::Ok);
    assert_eq!(world.status(one, &link(file.fh, root, b"f")), Status::Exist);
    assert_eq!(world.status(one, &link(file.fh, dir, b"g")), Status::Ok);
    assert_eq!(world.status(one, &close(file)), Status::Ok);
    let theirs = world.open(two, b"f");
    assert_eq!((theirs.fh, world.read(two, theirs)), (file.fh, b"content".to_vec()));
    let attr = attributes(&mut world, two, file.fh).unwrap();
    assert_eq!((attr.links, attr.mode), (2, 0o640));
    world.end();
}

#[test]
fn a_file_without_a_name_goes_with_its_last_open() {
    let (mut world, one, two) = World::with_two(Setup::default());
    let root = world.root();
    let file = world.open_with(one, &unlinked(root)).unwrap();
    // Another file, though the owner is the same.
    let other = world.open_with(one, &unlinked(root)).unwrap();
    assert_ne!((file.fh, file.id), (other.fh, other.id));
    // The same with NOCREATE: there is no file that could be opened instead.
    let third = dafs::Open { create: None, ..unlinked(root) };
    let third = world.open_with(one, &third).unwrap();
    assert_eq!(world.status(one, &close(file)), Status::Ok);
    assert_eq!(attributes(&mut world, one, file.fh), Err(Status::Stale));
    assert_eq!(world.status(one, &link(file.fh, root, b"late")), Status::Stale);
    assert_eq!(world.status(one, &close(third)), Status::Ok);
    // The end of its owner also ends it.
    world.write(one, other, 0, b"x");
    world.clients.remove(one);
    let two = two - 1;
    world.settle();
    world.pass(LEASE / 2);
    assert!(attributes(&mut world, two, other.fh).is_ok(), "the lease still runs");
    world.pass(LEASE / 2 + std::time::Duration::from_secs(1));
    assert_eq!(attributes(&mut world, two, other.fh), Err(Status::Stale));
    assert_eq!(world.status(two, &link(other.fh, root, b"late")), Status::Stale);
    world.end();
}

#[test]
fn an_impossible_unlinked_create_is_refused() {
    let options = dafs_service::ExportOptions { read_only: true, ..Default::default() };
    let exports = vec![("open", Default::default()), ("fixed", options)];
    let (mut world, client) = World::with_session(Setup { exports, ..Setup::default() });
    let root = world.root();
    let dir = found(&world.call(client, &lookup(root, &[b"open"])));
    let fixed = found(&world.call(client, &lookup(root, &[b"fixed"])));
    let mut refused = |request: dafs::Open<'_>, status| {
        assert_eq!(world.open_with(client, &request).unwrap_err(), status, "{request:?}");
    };
    refused(unlinked(fixed), Status::RoFs);
    // It has no name, so a retry could not find it again.
    let exclusive = Some(dafs::CreateMode::Exclusive { verifier: Verifier([1; 8]) });
    refused(dafs::Open { create: exclusive, ..unlinked(dir) }, Status::Inval);
    let forged = FileHandle { file: [7; 48], ..dir };
    refused(unlinked(forged), Status::BadHandle);
    let path = [b"open".as_slice(), b"f"];
    let file = world.open_with(client, &open_request(root, &path, b"o")).unwrap();
    assert_eq!(world.open_with(client, &unlinked(file.fh)).unwrap_err(), Status::NotDir);
    // A name in another file system is not possible.
    let reader = dafs::Open { share_access: ShareAccess::Read, ..unlinked(dir) };
    let own = world.open_with(client, &reader).unwrap();
    assert_eq!(world.status(client, &write_inline(own, 0, b"x")), Status::Acces);
    assert_eq!(world.status(client, &link(own.fh, root, b"f")), Status::XDev);
    world.end();
}
