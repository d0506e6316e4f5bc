//! CB_LAYOUTRECALL of a file system, and CB_NOTIFY_DEVICEID, as a client sees them.

use crate::common::{World, back_op};
use crate::helper::*;
use crate::layouts::{device_info_with, get, granted, open_spread, spread};
use dafs_service::{Export, ExportOptions, Namespace};
use dafs_store::{MemoryOptions, MemoryStore, StripedStore};
use dafs_wire::nfs4::*;
use std::sync::Arc;

#[test]
fn an_export_that_is_gone_takes_its_layouts_along() {
    for answer in [Status::Ok, Status::NoMatchingLayout, Status::NotSupp] {
        let (_base, mut client) = spread(1);
        let (fh, open) = client.file(b"f");
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
        // Whatever it makes of that, nothing is asked again.
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

/// A client of a striped store that can be changed.
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
    // Stock clients keep a device only if both kinds are granted; what is not known is not.
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
    // A node is emptied and left out, and with it goes the device.
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
