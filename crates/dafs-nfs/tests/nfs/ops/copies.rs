//! Layouts of a store that has each file on two of three directories: flexible files.

use super::helper::*;
use super::layouts::node;
use crate::common::{Answer, World, bytes};
use dafs_posix::{PosixOptions, PosixStore};
use dafs_store::ExportSecret;
use dafs_striped::{StripedOptions, StripedStore};
use dafs_wire::nfs4::*;
use dafs_wire::xdr::{Decode, Decoder};
use std::num::NonZeroU32;
use std::sync::Arc;
use tempfile::TempDir;

/// Makes a client of such a store. The directories live as long as the first value.
pub(crate) fn mirrored() -> (TempDir, Client) {
    let base = TempDir::new().unwrap();
    let meta = base.path().join("meta");
    std::fs::create_dir(&meta).unwrap();
    let options = PosixOptions::new(ExportSecret::from_bytes([3; 16]));
    let meta = PosixStore::open(&meta, options).unwrap();
    let unit_bytes = NonZeroU32::new(65_536).unwrap();
    let options = StripedOptions::new(base.path(), *b"a striped secret", unit_bytes);
    let options = StripedOptions { copies: 2, ..options };
    let nodes = (1..=3).map(|number| node(base.path(), number)).collect();
    let store = StripedStore::open(meta, nodes, options).unwrap();
    (base, Client::of(World::over(Arc::new(store)), 2))
}

/// The same with an open file: its handle and the state-id of the open.
pub(crate) fn mirrored_file() -> (TempDir, Client, Vec<u8>, Stateid) {
    let (base, mut client) = mirrored();
    let (fh, open) = client.file(b"f");
    (base, client, fh, open)
}

pub(crate) fn get(stateid: Stateid, io_mode: u32) -> Op<'static> {
    Op::Layoutget(LayoutgetArgs {
        signal_available: false,
        layout_type: LAYOUT_FLEX_FILES,
        io_mode,
        offset: 0,
        length: u64::MAX,
        length_min: 4196,
        stateid,
        result_bytes_max: 0xffff,
    })
}

pub(crate) fn give_back(stateid: Stateid, body: &[u8]) -> Op<'_> {
    let layout = ReturnedLayout { offset: 0, length: u64::MAX, stateid, body };
    Op::Layoutreturn(LayoutreturnArgs {
        reclaim: false,
        layout_type: LAYOUT_FLEX_FILES,
        io_mode: 3,
        returned: LayoutReturn::File(layout),
    })
}

/// Encodes a client's report of errors.
pub(crate) fn met(stateid: Stateid, errors: Vec<DeviceError>) -> Vec<u8> {
    let range = FlexError { offset: 0, length: u64::MAX, stateid, errors };
    bytes(&FlexReturned { errors: vec![range], stats: vec![] })
}

/// Returns the layout's state-id, and its devices.
pub(crate) fn granted(answer: &Answer, at: usize) -> (Stateid, Vec<DeviceId>) {
    let ResultBody::Layoutget(result) = answer.body(at) else { panic!("{:?}", answer.results()) };
    let [layout] = &result.layouts[..] else { panic!("{result:?}") };
    let mut d = Decoder::new(layout.content.body);
    let body = FlexLayout::decode(&mut d).unwrap();
    d.finish().unwrap();
    let device = |mirror: &FlexMirror<'_>| {
        let [server] = &mirror.servers[..] else { panic!("{mirror:?}") };
        assert_eq!(server.handles.len(), 1);
        server.device
    };
    (result.stateid, body.mirrors.iter().map(device).collect())
}

#[test]
fn a_layout_names_both_copies() {
    let (_base, mut client, fh, open) = mirrored_file();
    // Readers of an empty file get one, too.
    let answer = client.send(&[putfh(&fh), get(open, 1)]);
    let (stateid, reading) = granted(&answer, 2);
    let answer = client.send(&[putfh(&fh), get(stateid, 2)]);
    let (stateid, writing) = granted(&answer, 2);
    assert_eq!((stateid.seqid, &reading), (2, &writing));
    assert_eq!(writing.len(), 2);
    assert_ne!(writing[0], writing[1]);
    for device_id in writing {
        let info = Op::Getdeviceinfo(GetdeviceinfoArgs {
            device_id,
            layout_type: LAYOUT_FLEX_FILES,
            result_bytes_max: 4096,
            notifications: Bitmap::EMPTY,
        });
        let answer = client.send(&[info]);
        let ResultBody::Getdeviceinfo(info) = answer.body(1) else { panic!() };
        let body = FlexDevice::decode(&mut Decoder::new(info.address.body)).unwrap();
        assert_eq!(body.server.0.len(), 1);
    }
    assert_eq!(
        client.send(&[putfh(&fh), give_back(stateid, &met(stateid, vec![]))]).status(),
        Status::Ok
    );
}

#[test]
fn a_report_of_a_failed_device_yields_a_layout_without_it() {
    for by_return in [false, true] {
        let (_base, mut client, fh, open) = mirrored_file();
        let answer = client.send(&[putfh(&fh), get(open, 2)]);
        let (mut stateid, both) = granted(&answer, 2);
        let tell = |client: &mut Client, stateid: &mut Stateid, device_id, op| {
            let error = DeviceError { device_id, status: Status::Nxio, op };
            if by_return {
                let body = met(*stateid, vec![error]);
                let given = client.send(&[putfh(&fh), give_back(*stateid, &body)]);
                assert_eq!(given.status(), Status::Ok);
                *stateid = open;
            } else {
                let (offset, length) = (0, u64::MAX);
                let args =
                    LayouterrorArgs { offset, length, stateid: *stateid, errors: vec![error] };
                let told = client.send(&[putfh(&fh), Op::Layouterror(args)]);
                assert_eq!(told.status(), Status::Ok);
            }
            let answer = client.send(&[putfh(&fh), get(*stateid, 2)]);
            let (now, devices) = granted(&answer, 2);
            *stateid = now;
            devices
        };
        let (read, write, commit) = (25, 38, 5);
        assert_eq!(tell(&mut client, &mut stateid, both[0], read), both, "it can still be written");
        assert_eq!(tell(&mut client, &mut stateid, DeviceId([7; 16]), write), both);
        assert_eq!(tell(&mut client, &mut stateid, both[0], write), both[1..]);
        assert_eq!(tell(&mut client, &mut stateid, both[0], write), both[1..]);
        assert_eq!(tell(&mut client, &mut stateid, both[1], commit), both[1..], "the last one");
    }
}

#[test]
fn a_device_without_room_is_not_done_without() {
    for (status, by_return) in [(Status::NoSpc, false), (Status::DQuot, true)] {
        let (_base, mut client, fh, open) = mirrored_file();
        let answer = client.send(&[putfh(&fh), get(open, 2)]);
        let (stateid, both) = granted(&answer, 2);
        let error = DeviceError { device_id: both[1], status, op: 38 };
        let body = met(stateid, vec![error]);
        let (offset, length) = (0, u64::MAX);
        let tell = match by_return {
            true => give_back(stateid, &body),
            false => {
                let errors = vec![error];
                Op::Layouterror(LayouterrorArgs { offset, length, stateid, errors })
            }
        };
        assert_eq!(client.send(&[putfh(&fh), tell]).status(), Status::Ok);
        // Both copies are still there, and a client that requests a layout for writing gets the
        // error.
        let answer = client.send(&[putfh(&fh), get(open, 2)]);
        assert_eq!(answer.status(), Status::NoSpc, "{status:?}");
        let answer = client.send(&[putfh(&fh), get(open, 1)]);
        assert_eq!(granted(&answer, 2).1, both[1..], "the one that counts");
    }
}

#[test]
fn this_server_writes_when_clients_have_given_their_layouts_back() {
    let (_base, mut client, fh, open) = mirrored_file();
    let answer = client.send(&[putfh(&fh), get(open, 2)]);
    let (stateid, _) = granted(&answer, 2);
    let wrote = client.send(&[putfh(&fh), write(open, 0, b"here")]);
    assert_eq!(wrote.status(), Status::Delay);
    client.world.tick(1_000_000_000);
    assert!(!client.world.back_calls.is_empty(), "the layout is recalled");
    let given = client.send(&[putfh(&fh), give_back(stateid, &met(stateid, vec![]))]);
    assert_eq!(given.status(), Status::Ok);
    client.world.tick(1_000_000_000);
    assert_eq!(client.send(&[putfh(&fh), write(open, 0, b"here")]).status(), Status::Ok);
    // For a while clients have to write through this server, too.
    let refused = client.send(&[putfh(&fh), get(open, 2)]);
    assert_eq!(refused.status(), Status::LayoutUnavailable);
}
