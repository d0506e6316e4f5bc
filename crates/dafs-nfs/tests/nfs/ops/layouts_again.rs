//! Edge cases of layouts: device lists in pieces, ranges behind the end of a file, and layouts of
//! an earlier run.

use super::copies::mirrored;
use super::helper::*;
use super::layouts::{get, get_some, give, give_back, granted, open_spread, spread_file};
use crate::common::{World, create_session, exchange_id};
use dafs_wire::nfs4::*;

const ZERO: Verifier = Verifier([0; 8]);

fn list(layout_type: u32, devices_max: u32, cookie: u64, cookie_verifier: Verifier) -> Op<'static> {
    Op::Getdevicelist(GetdevicelistArgs { layout_type, devices_max, cookie, cookie_verifier })
}

#[test]
fn devices_are_listed_in_as_many_pieces_as_the_client_likes() {
    let (_base, mut client) = mirrored();
    client.world.minor = 1;
    for devices_max in [1, 2, 3, 100] {
        let (mut devices, mut cookie, mut verifier) = (Vec::new(), 0, ZERO);
        loop {
            let answer = client.at_root(&[list(LAYOUT_FLEX_FILES, devices_max, cookie, verifier)]);
            let ResultBody::Getdevicelist(piece) = answer.body(2) else { panic!() };
            assert!(piece.devices.len() <= devices_max as usize);
            devices.extend(piece.devices);
            (cookie, verifier) = (piece.cookie, piece.cookie_verifier);
            if piece.eof {
                break;
            }
        }
        devices.sort_unstable_by_key(|device| device.0);
        devices.dedup();
        assert_eq!(devices.len(), 3, "one for each data server");
    }
}

#[test]
fn a_list_of_devices_has_its_errors() {
    let (_base, mut client) = mirrored();
    client.world.minor = 1;
    let first = client.at_root(&[list(LAYOUT_FLEX_FILES, 1, 0, ZERO)]);
    let ResultBody::Getdevicelist(first) = first.body(2) else { panic!() };
    let (cookie, verifier) = (first.cookie, first.cookie_verifier);
    let mut status = |op| client.at_root(&[op]).status();
    assert_eq!(status(list(LAYOUT_FLEX_FILES, 0, 0, ZERO)), Status::TooSmall);
    let other = Verifier([9; 8]);
    assert_eq!(status(list(LAYOUT_FLEX_FILES, 1, cookie, other)), Status::NotSame);
    // At the start of the list the client has no verifier yet.
    assert_eq!(status(list(LAYOUT_FLEX_FILES, 1, 0, other)), Status::Ok);
    assert_eq!(status(list(3, 1, 0, ZERO)), Status::UnknownLayoutType);
    assert_eq!(client.send(&[list(LAYOUT_FLEX_FILES, 1, 0, ZERO)]).status(), Status::NoFileHandle);
    let beyond = client.at_root(&[list(LAYOUT_FLEX_FILES, 1, u64::MAX, verifier)]);
    let ResultBody::Getdevicelist(beyond) = beyond.body(2) else { panic!() };
    assert_eq!((beyond.devices, beyond.eof), (vec![], true));
    // The file system has no devices of the other type.
    let files = client.at_root(&[list(LAYOUT_FILES, 9, 0, ZERO)]);
    let ResultBody::Getdevicelist(files) = files.body(2) else { panic!() };
    assert_eq!((files.devices, files.eof), (vec![], true));
}

#[test]
fn a_layout_reaches_as_far_as_a_file_ever_may() {
    let (_base, mut client, fh, open) = spread_file(1);
    let data = [7; 1000];
    assert_eq!(client.send(&[putfh(&fh), write(open, 0, &data)]).status(), Status::Ok);
    // At its end, behind it, and as far behind as possible. `granted` expects a layout of the whole
    // file.
    for offset in [999, 1000, 1001, 1 << 40, u64::MAX - 1] {
        for io_mode in [1, 2] {
            for length in [1, u64::MAX] {
                let args = get_some(open, io_mode, (offset, length));
                let args = LayoutgetArgs { length_min: 1, ..args };
                let answer = client.send(&[putfh(&fh), Op::Layoutget(args)]);
                granted(&answer, 2);
            }
        }
    }
    let size = client.send(&[putfh(&fh), getattr(&[Attr::Size])]);
    assert_eq!(attributes(&size, 2).size, Some(1000), "asking makes nothing longer");
}

#[test]
fn layouts_of_an_earlier_run_are_given_back_in_grace_alone() {
    let (_base, store) = open_spread();
    let mut world = World::after_restart(store, b"client");
    world.minor = 1;
    let ops = [exchange_id(b"client", 1)];
    let answer = world.send(1, 0, &ops);
    let ResultBody::ExchangeId(exchanged) = answer.body(0) else { panic!() };
    let session = world.session(1, create_session(exchanged.client_id, exchanged.sequence_id));
    let mut client = Client { world, session };
    assert!(client.world.shared.service.clients.in_grace());
    let reclaim = |returned| {
        let Op::Layoutreturn(args) = give(3, returned) else { unreachable!() };
        Op::Layoutreturn(LayoutreturnArgs { reclaim: true, ..args })
    };
    // A state-id of that run is not valid any more.
    let stateid = Stateid { seqid: 1, other: [7; 12] };
    let file =
        LayoutReturn::File(ReturnedLayout { offset: 0, length: u64::MAX, stateid, body: b"" });
    let of_all = [file, LayoutReturn::Wider(2), LayoutReturn::Wider(3)];
    for returned in of_all {
        let answer = client.at_root(&[reclaim(returned)]);
        let ResultBody::Layoutreturn(result) = answer.body(2) else { panic!() };
        assert_eq!(result.stateid, None);
    }
    // Without the reclaim flag it is an unknown one.
    assert_eq!(client.status(&[give_back(stateid)]), Status::BadStateId);
    let complete = Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false });
    assert_eq!(client.send(&[complete]).status(), Status::Ok);
    client.world.shared.service.tick(client.world.now_ns);
    assert!(!client.world.shared.service.clients.in_grace());
    for returned in of_all {
        assert_eq!(client.status(&[reclaim(returned)]), Status::NoGrace);
    }
    let (fh, open) = client.file(b"f");
    granted(&client.send(&[putfh(&fh), get(open, 2)]), 2);
}
