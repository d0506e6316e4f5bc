//! CB_LAYOUTRECALL of a file system, and CB_NOTIFY_DEVICEID, as a client receives them.

use super::helper::*;
use super::layouts::{device_info_with, get, give, give_back, granted, open_spread, spread_file};
use crate::common::{World, back_op, unsquashed};
use dafs_service::{ClientKey, Export, ExportOptions, Front, Namespace};
use dafs_store::{LayoutForm, MemoryOptions, MemoryStore, Store};
use dafs_striped::StripedStore;
use dafs_wire::nfs4::*;
use std::sync::Arc;

#[test]
fn an_export_that_is_gone_takes_its_layouts_along() {
    for answer in [Status::Ok, Status::NoMatchingLayout, Status::NotSupp] {
        let (_base, mut client, fh, open) = spread_file(1);
        let fsid = Op::Getattr(GetattrArgs { request: Attr::set(&[Attr::Fsid]) });
        let answered = client.send(&[putfh(&fh), get(open, 2), fsid]);
        granted(&answered, 2);
        let ResultBody::Getattr(got) = answered.body(3) else { panic!() };
        let fsid = Attributes::decode(&got.attributes).unwrap().fsid.unwrap();
        let service = client.world.shared.service.clone();
        let another = Arc::new(MemoryStore::new(MemoryOptions::default()));
        let another = Export::new("", another, ExportOptions::default());
        service.replace_namespace(Namespace::new(vec![another]).unwrap());
        client.world.collect();
        let (_, call) = client.world.back_calls.pop().expect("its holder is told");
        let CbOp::Layoutrecall(recall) = back_op(&call) else { panic!() };
        assert_eq!((recall.layout_type, recall.io_mode), (LAYOUT_FILES, 3));
        assert_eq!(recall.recall, LayoutRecall::FileSystem(fsid));
        // For any answer of the client, the server sends no second notification.
        client.world.answer_back(&call, Status::Ok, answer);
        tick(&mut client);
        assert!(client.world.back_calls.is_empty());
    }
}

fn tick(client: &mut Client) {
    client.world.tick(1_000_000_000);
    client.world.shared.service.tick(client.world.now_ns);
    client.world.collect();
}

/// Makes a client of a striped store that can be changed.
fn striped() -> (tempfile::TempDir, Arc<StripedStore>, Client) {
    let (base, store) = open_spread();
    let client = Client::of(World::over(store.clone()), 1);
    (base, store, client)
}

#[test]
fn word_of_a_device_that_is_gone_comes_to_who_has_asked_for_it() {
    let (_base, store, mut client) = striped();
    let (fh, open) = client.file(b"f");
    let answer = client.send(&[putfh(&fh), get(open, 2)]);
    let device = granted(&answer, 2).1.device;
    // Stock clients keep a device only if both kinds are granted. Unknown kinds are not granted.
    let both = Bitmap::of(&[NOTIFY_DEVICE_CHANGE, NOTIFY_DEVICE_DELETE]);
    let told = client.send(&[device_info_with(device, both.with(7))]);
    let ResultBody::Getdeviceinfo(info) = told.body(1) else { panic!() };
    assert_eq!(info.notifications, both);
    let give = Op::Layoutreturn(LayoutreturnArgs {
        reclaim: false,
        layout_type: LAYOUT_FILES,
        io_mode: 3,
        returned: LayoutReturn::Wider(3),
    });
    assert_eq!(client.status(&[give]), Status::Ok);
    // A node is drained and removed, and with it the device.
    let remove = Op::Remove(RemoveArgs { name: b"f" });
    assert_eq!(client.at_root(&[remove]).status(), Status::Ok);
    store.set_leaving(3, true).unwrap();
    store.remove_node(3).unwrap();
    tick(&mut client);
    let calls: Vec<_> = client.world.back_calls.drain(..).collect();
    let [(_, call)] = &calls[..] else { panic!("{calls:?}") };
    let CbOp::NotifyDeviceid(args) = back_op(call) else { panic!() };
    let deleted = DeviceDeleted { layout_type: LAYOUT_FILES, device_id: device };
    assert_eq!(args.changes, [DeviceChange::Deleted(deleted)]);
    client.world.answer_back(call, Status::Ok, Status::Ok);
    assert_eq!(client.send(&[device_info_with(device, both)]).status(), Status::NoEnt);
}

/// The exports "a" and "b", each striped, and a client of both.
fn two() -> ([tempfile::TempDir; 2], Client) {
    let [(one, a), (two, b)] = [open_spread(), open_spread()];
    let world = World::over(a.clone());
    let stores: [(&str, Arc<dyn Store>); 2] = [("a", a), ("b", b)];
    let exports = stores.map(|(name, store)| Export::new(name, store, unsquashed()));
    world.shared.service.replace_namespace(Namespace::new(exports.into()).unwrap());
    ([one, two], Client::of(world, 1))
}

/// Makes a file in an export, with a layout. Returns the handle, and the state-id of the layout.
fn laid_out(client: &mut Client, export: &[u8]) -> (Vec<u8>, Stateid) {
    let access = ShareAccess::BOTH | Want::None.number();
    let opening = open(b"f", access, unchecked(NOTHING));
    let ops = [lookup(export), opening, getfh(), get(Stateid::CURRENT, 2)];
    let answer = client.at_root(&ops);
    assert_eq!(answer.status(), Status::Ok, "{:?}", answer.results());
    (handle(&answer, 4), granted(&answer, 5).0)
}

#[test]
fn layouts_of_one_file_system_go_back_without_those_of_another() {
    let (_bases, mut client) = two();
    let files = [laid_out(&mut client, b"a"), laid_out(&mut client, b"b")];
    let counts = |client: &Client| client.world.shared.service.counts().layouts;
    assert_eq!(counts(&client), 2);
    let of_b = [putfh(&files[1].0), give(3, LayoutReturn::Wider(2))];
    assert_eq!(client.send(&of_b).status(), Status::Ok);
    assert_eq!(counts(&client), 1);
    let gone = client.send(&[putfh(&files[1].0), give_back(files[1].1)]);
    assert_eq!(gone.status(), Status::BadStateId);
    let there = client.send(&[putfh(&files[0].0), get(files[0].1, 2)]);
    assert_eq!(granted(&there, 2).0.seqid, 2);
    // The return needs the current file handle to name the file system.
    assert_eq!(client.send(&[give(3, LayoutReturn::Wider(2))]).status(), Status::NoFileHandle);
    // The return of all layouts covers every file system.
    laid_out(&mut client, b"b");
    assert_eq!(counts(&client), 2);
    assert_eq!(client.send(&[give(3, LayoutReturn::Wider(3))]).status(), Status::Ok);
    assert_eq!(counts(&client), 0);
}

#[test]
fn exports_that_go_together_are_recalled_one_by_one() {
    let (_bases, mut client) = two();
    for export in [b"a", b"b"] {
        laid_out(&mut client, export);
    }
    let another = Arc::new(MemoryStore::new(MemoryOptions::default()));
    let another = Export::new("", another, ExportOptions::default());
    client.world.shared.service.replace_namespace(Namespace::new(vec![another]).unwrap());
    client.world.collect();
    let mut told = Vec::new();
    while let Some((_, call)) = client.world.back_calls.pop() {
        let CbOp::Layoutrecall(recall) = back_op(&call) else { panic!() };
        let LayoutRecall::FileSystem(fsid) = recall.recall else { panic!("{recall:?}") };
        told.push(fsid);
        client.world.answer_back(&call, Status::Ok, Status::Ok);
    }
    assert!(told.len() == 2 && told[0] != told[1], "{told:?}");
}

#[test]
fn all_layouts_are_recalled_by_one_call_that_names_nothing() {
    for answer in [Status::Ok, Status::NoMatchingLayout, Status::NotSupp] {
        let (_bases, mut client) = two();
        let files = [laid_out(&mut client, b"a"), laid_out(&mut client, b"b")];
        let key = ClientKey(client.session.client_id);
        client.world.shared.recall_layouts(key, None, LayoutForm::Stripes);
        client.world.collect();
        let (_, call) = client.world.back_calls.pop().expect("the client is called");
        let CbOp::Layoutrecall(recall) = back_op(&call) else { panic!() };
        assert_eq!((recall.layout_type, recall.io_mode), (LAYOUT_FILES, 3));
        assert_eq!(recall.recall, LayoutRecall::All);
        client.world.answer_back(&call, Status::Ok, answer);
        tick(&mut client);
        assert!(client.world.back_calls.is_empty());
        // These layouts were not recalled.
        for (fh, stateid) in files {
            assert_eq!(client.send(&[putfh(&fh), give_back(stateid)]).status(), Status::Ok);
        }
    }
}
