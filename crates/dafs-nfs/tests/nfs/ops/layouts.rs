//! Layouts of a store that stripes its files over three directories.

use super::helper::*;
use crate::common::{Answer, World, back_op, create_session, with_sequence};
use dafs_posix::{PosixOptions, PosixStore};
use dafs_store::node::{ComponentHandle as Sealed, DirectoryNode, Node};
use dafs_store::{ExportSecret, FileId, FsId};
use dafs_striped::{StripedOptions, StripedStore};
use dafs_wire::nfs4::*;
use dafs_wire::xdr::{Decode, Decoder};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tempfile::TempDir;

const UNIT: u32 = 65_536;
const SECRET: [u8; 16] = *b"a striped secret";
const COMPONENTS: FsId = FsId([8; 16]);

pub(crate) fn node(base: &Path, number: u32) -> Arc<dyn Node> {
    let path = base.join(format!("node{number}"));
    std::fs::create_dir_all(&path).unwrap();
    DirectoryNode::make(&path, &[6; 16], number).unwrap();
    let address = format!("127.0.0.{number}:2049").parse().unwrap();
    Arc::new(DirectoryNode::open(&path, &[6; 16], number, vec![address]).unwrap())
}

/// Opens such a store. Its directories live as long as the first value.
pub(crate) fn open_spread() -> (TempDir, Arc<StripedStore>) {
    let base = TempDir::new().unwrap();
    let meta = base.path().join("meta");
    std::fs::create_dir(&meta).unwrap();
    let options = PosixOptions::new(ExportSecret::from_bytes([3; 16]));
    let meta = PosixStore::open(&meta, options).unwrap();
    let options = StripedOptions::new(base.path(), SECRET, NonZeroU32::new(UNIT).unwrap());
    let options = StripedOptions { component_fs: COMPONENTS, ..options };
    let nodes = (1..=3).map(|number| node(base.path(), number)).collect();
    let store = StripedStore::open(meta, nodes, options).unwrap();
    (base, Arc::new(store))
}

/// Makes a client of such a store.
pub(crate) fn spread(minor: u32) -> (TempDir, Client) {
    let (base, store) = open_spread();
    (base, Client::of(World::over(store), minor))
}

/// The same with an open file: its handle and the state-id of the open.
pub(crate) fn spread_file(minor: u32) -> (TempDir, Client, Vec<u8>, Stateid) {
    let (base, mut client) = spread(minor);
    let (fh, open) = client.file(b"f");
    (base, client, fh, open)
}

pub(crate) fn get_some(
    stateid: Stateid,
    io_mode: u32,
    (offset, length): (u64, u64),
) -> LayoutgetArgs {
    LayoutgetArgs {
        signal_available: false,
        layout_type: LAYOUT_FILES,
        io_mode,
        offset,
        length,
        length_min: 0,
        stateid,
        result_bytes_max: 4096,
    }
}

pub(crate) fn get(stateid: Stateid, io_mode: u32) -> Op<'static> {
    Op::Layoutget(get_some(stateid, io_mode, (0, u64::MAX)))
}

pub(crate) fn give_back(stateid: Stateid) -> Op<'static> {
    let layout = ReturnedLayout { offset: 0, length: u64::MAX, stateid, body: b"" };
    give(3, LayoutReturn::File(layout))
}

pub(crate) fn give(io_mode: u32, returned: LayoutReturn<'_>) -> Op<'_> {
    Op::Layoutreturn(LayoutreturnArgs {
        reclaim: false,
        layout_type: LAYOUT_FILES,
        io_mode,
        returned,
    })
}

fn commit(stateid: Stateid, last_write_offset: Option<u64>) -> Op<'static> {
    Op::Layoutcommit(LayoutcommitArgs {
        offset: 0,
        length: u64::MAX,
        reclaim: false,
        stateid,
        last_write_offset,
        time_modify: None,
        update: LayoutBody { layout_type: LAYOUT_FILES, body: b"" },
    })
}

pub(crate) fn device_info_with(device_id: DeviceId, notifications: Bitmap) -> Op<'static> {
    let Op::Getdeviceinfo(args) = device_info(device_id, 4096) else { unreachable!() };
    Op::Getdeviceinfo(GetdeviceinfoArgs { notifications, ..args })
}

fn device_info(device_id: DeviceId, result_bytes_max: u32) -> Op<'static> {
    Op::Getdeviceinfo(GetdeviceinfoArgs {
        device_id,
        layout_type: LAYOUT_FILES,
        result_bytes_max,
        notifications: Bitmap::EMPTY,
    })
}

pub(crate) fn granted<'a>(answer: &'a Answer, at: usize) -> (Stateid, FilesLayout<'a>) {
    let ResultBody::Layoutget(result) = answer.body(at) else { panic!("{:?}", answer.results()) };
    assert!(result.return_on_close);
    let [layout] = &result.layouts[..] else { panic!("{result:?}") };
    assert_eq!((layout.offset, layout.length), (0, u64::MAX));
    assert_eq!(layout.content.layout_type, LAYOUT_FILES);
    let mut d = Decoder::new(layout.content.body);
    let body = FilesLayout::decode(&mut d).unwrap();
    d.finish().unwrap();
    (result.stateid, body)
}

#[test]
fn a_layout_leads_to_the_components() {
    let (_base, mut client, fh, open) = spread_file(1);
    let answer = client.send(&[putfh(&fh), get(open, 2)]);
    let (stateid, layout) = granted(&answer, 2);
    assert_eq!(stateid.seqid, 1);
    assert_eq!((layout.unit.unit_bytes(), layout.unit.dense()), (UNIT, false));
    assert_eq!((layout.pattern_offset, layout.handles.len()), (0, 3));
    let sealed: Vec<_> = layout
        .handles
        .iter()
        .map(|handle| {
            let (fs, file) = handle.0.split_first_chunk::<16>().unwrap();
            assert_eq!(*fs, COMPONENTS.0);
            let file = FileId(*file.first_chunk().unwrap());
            Sealed::open(&file, &COMPONENTS, &SECRET).unwrap()
        })
        .collect();
    assert!(sealed.iter().all(|handle| handle.component == sealed[0].component));
    let numbers: Vec<_> = sealed.iter().map(|handle| handle.node).collect();
    assert_eq!(numbers, [1, 2, 3]);
    assert!(layout.first_stripe_index < 3);
    let device = client.send(&[device_info(layout.device, 4096)]);
    let ResultBody::Getdeviceinfo(info) = device.body(1) else { panic!() };
    let body = FilesDevice::decode(&mut Decoder::new(info.address.body)).unwrap();
    assert_eq!(body.stripe_indices, [0, 1, 2]);
    let addresses: Vec<_> = body.servers.iter().map(|server| server.0[0]).collect();
    let address = |text: &'static [u8]| NetworkAddress { network: b"tcp", address: text };
    let known = [b"127.0.0.1.8.1", b"127.0.0.2.8.1", b"127.0.0.3.8.1"];
    assert_eq!(addresses, known.map(|text| address(text)));
    // An address without room is not sent, but its size is.
    let small = client.send(&[device_info(layout.device, 20)]);
    assert_eq!(small.status(), Status::TooSmall);
    let wanted = match &small.results()[1].body {
        ResultBody::SizeWanted(wanted) => *wanted,
        other => panic!("{other:?}"),
    };
    assert_eq!(client.send(&[device_info(layout.device, wanted)]).status(), Status::Ok);
    assert_eq!(client.send(&[device_info(layout.device, 0)]).status(), Status::Ok);
    assert_eq!(client.send(&[device_info(DeviceId([1; 16]), 4096)]).status(), Status::NoEnt);
    let list = Op::Getdevicelist(GetdevicelistArgs {
        layout_type: LAYOUT_FILES,
        devices_max: 10,
        cookie: 0,
        cookie_verifier: Verifier([0; 8]),
    });
    let listed = client.at_root(&[list]);
    let ResultBody::Getdevicelist(result) = listed.body(2) else { panic!() };
    assert_eq!((result.devices, result.eof), (vec![layout.device], true));
}

#[test]
fn the_server_says_that_it_has_layouts() {
    let (_base, mut client) = spread(1);
    let exchanged = client.world.exchange(3, b"another", 1);
    assert!(exchanged.flags.contains(ExchangeFlags::USE_PNFS_MDS));
    assert!(!exchanged.flags.contains(ExchangeFlags::USE_NON_PNFS));
    let (fh, _) = client.file(b"f");
    let mask = Attr::set(&[Attr::FsLayoutTypes, Attr::LayoutTypes, Attr::LayoutBlksize]);
    let request = Op::Getattr(GetattrArgs { request: mask });
    let answer = client.send(&[putfh(&fh), request]);
    let ResultBody::Getattr(got) = answer.body(2) else { panic!() };
    let got = Attributes::decode(&got.attributes).unwrap();
    let files = Some(Numbers32 { numbers: vec![LAYOUT_FILES] });
    assert_eq!((&got.fs_layout_types, &got.layout_types), (&files, &files));
    assert_eq!(got.layout_blksize, Some(UNIT));
    // A server without layouts does not.
    let mut client = Client::new(1);
    let exchanged = client.world.exchange(3, b"another", 1);
    assert!(exchanged.flags.contains(ExchangeFlags::USE_NON_PNFS));
}

#[test]
fn wrong_requests_get_their_errors() {
    let (_base, mut client, fh, open) = spread_file(1);
    let mut status = |args: LayoutgetArgs| client.send(&[putfh(&fh), Op::Layoutget(args)]).status();
    let good = get_some(open, 1, (0, u64::MAX));
    assert_eq!(status(LayoutgetArgs { io_mode: 3, ..good }), Status::BadIoMode);
    assert_eq!(status(LayoutgetArgs { io_mode: 0, ..good }), Status::BadIoMode);
    assert_eq!(status(LayoutgetArgs { layout_type: 3, ..good }), Status::UnknownLayoutType);
    assert_eq!(status(LayoutgetArgs { length: 0, ..good }), Status::Inval);
    assert_eq!(status(LayoutgetArgs { offset: 2, length: u64::MAX - 1, ..good }), Status::Inval);
    assert_eq!(status(LayoutgetArgs { length: 10, length_min: 11, ..good }), Status::Inval);
    let beyond = LayoutgetArgs { offset: 2, length_min: u64::MAX - 1, ..good };
    assert_eq!(status(beyond), Status::Inval);
    assert_eq!(status(get_some(Stateid::ANONYMOUS, 1, (0, 1))), Status::BadStateId);
    let forged = Stateid { seqid: 1, other: [7; 12] };
    assert_eq!(status(get_some(forged, 1, (0, 1))), Status::BadStateId);
    // An empty file without writes has no placement yet.
    assert_eq!(status(good), Status::LayoutUnavailable);
    assert_eq!(
        status(LayoutgetArgs { io_mode: 2, result_bytes_max: 70, ..good }),
        Status::TooSmall
    );
    assert_eq!(status(LayoutgetArgs { io_mode: 2, ..good }), Status::Ok);
    assert_eq!(client.status(&[get(open, 2)]), Status::BadStateId, "of another file");
    let none = client.send(&[get(open, 2)]);
    assert_eq!(none.status(), Status::NoFileHandle);
    // Arguments of LAYOUTRETURN.
    let file = |stateid, offset, length| {
        LayoutReturn::File(ReturnedLayout { offset, length, stateid, body: b"" })
    };
    let mut give_status = |op| client.send(&[putfh(&fh), op]).status();
    assert_eq!(give_status(give(4, file(open, 0, 1))), Status::BadIoMode);
    assert_eq!(give_status(give(3, file(open, 0, 0))), Status::Inval);
    assert_eq!(give_status(give(3, file(open, 0, 1))), Status::BadStateId);
    assert_eq!(give_status(give(3, LayoutReturn::Wider(7))), Status::Inval);
    assert_eq!(give_status(commit(open, Some(3))), Status::BadLayout);
    // A server without layouts supports none of these operations.
    let mut plain = Client::new(1);
    let (fh, open) = plain.file(b"f");
    assert_eq!(plain.send(&[putfh(&fh), get(open, 1)]).status(), Status::NotSupp);
    assert_eq!(plain.send(&[putfh(&fh), commit(open, None)]).status(), Status::NotSupp);
}

#[test]
fn the_size_is_what_was_written_and_no_more() {
    let (_base, mut client, fh, open) = spread_file(1);
    let answer = client.send(&[putfh(&fh), get(open, 2)]);
    let stateid = granted(&answer, 2).0;
    // No data was written, whatever the client reports.
    assert_eq!(client.send(&[putfh(&fh), commit(stateid, Some(99))]).status(), Status::Inval);
    let last = client.send(&[putfh(&fh), commit(stateid, Some(u64::MAX))]);
    assert_eq!(last.status(), Status::Inval);
    let data = vec![7; 3 * UNIT as usize];
    let wrote = client.send(&[putfh(&fh), write(open, 0, &data)]);
    assert_eq!(wrote.status(), Status::Ok);
    let committed = client.send(&[putfh(&fh), commit(stateid, Some(99))]);
    let ResultBody::Layoutcommit(result) = committed.body(2) else { panic!() };
    assert_eq!(result.new_size, None, "nothing shrinks");
}

#[test]
fn a_recall_is_answered_in_either_way() {
    for forgets in [false, true] {
        let (_base, mut client, fh, open) = spread_file(1);
        let answer = client.send(&[putfh(&fh), get(open, 2)]);
        let (stateid, _) = granted(&answer, 2);
        let mut other = session(&mut client.world, b"other");
        let empty = SetAttributes { size: Some(0), ..SetAttributes::default() };
        let (mask, values) = (empty.mask(), empty.to_values());
        let attributes = Fattr { mask, values: &values };
        let shorter = Op::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attributes });
        let ops = [putfh(&fh), shorter];
        assert_eq!(client.world.next(&mut other, &ops).status(), Status::Delay);
        let (_, call) = client.world.back_calls.pop().expect("the layout is recalled");
        let CbOp::Layoutrecall(recall) = back_op(&call) else { panic!() };
        assert_eq!((recall.layout_type, recall.io_mode), (LAYOUT_FILES, 3));
        let LayoutRecall::File(what) = recall.recall else { panic!() };
        assert_eq!((what.handle, what.offset, what.length), (&fh[..], 0, u64::MAX));
        assert_eq!(what.stateid, Stateid { seqid: stateid.seqid + 1, ..stateid });
        let conflict = client.send(&[putfh(&fh), get(stateid, 2)]);
        assert_eq!(conflict.status(), Status::RecallConflict);
        let said = if forgets { Status::NoMatchingLayout } else { Status::Ok };
        client.world.answer_back(&call, Status::Ok, said);
        // NOMATCHING_LAYOUT settles the recall at once, because these data servers cache no
        // authorisation.
        if !forgets {
            assert_eq!(client.world.next(&mut other, &ops).status(), Status::Delay);
            let given = client.send(&[putfh(&fh), give_back(what.stateid)]);
            let ResultBody::Layoutreturn(result) = given.body(2) else { panic!() };
            assert_eq!(result.stateid, None);
        }
        assert_eq!(client.world.next(&mut other, &ops).status(), Status::Ok);
        assert_eq!(client.send(&[putfh(&fh), get(open, 2)]).status(), Status::Ok);
    }
}

/// A client whose answer does not fit takes the operation for one that did not run.
#[test]
fn a_layout_is_returned_only_if_the_answer_fits() {
    let (_base, mut client, fh, open) = spread_file(1);
    let (mut refused, mut returned) = (0, 0);
    // Handles pad the answer, so that no limit is too small for a session.
    let get_handles = [getfh(), getfh(), getfh(), getfh()];
    for response_bytes_max in (300..520).step_by(4) {
        let answer = client.send(&[putfh(&fh), get(open, 2)]);
        let (stateid, _) = granted(&answer, 2);
        let again = client.world.exchange(0, b"client", 1);
        let mut args = create_session(again.client_id, again.sequence_id);
        args.fore.response_bytes_max = response_bytes_max;
        let mut narrow = client.world.session(1, args);
        narrow.sequence = 1;
        let sequence = SequenceArgs { cache_this: false, ..narrow.sequence_args() };
        let mut ops = vec![putfh(&fh)];
        ops.extend_from_slice(&get_handles);
        ops.extend([give_back(stateid), getfh()]);
        let at = ops.len();
        let answer = client.world.send(1, 0, &with_sequence(sequence, &ops));
        // Of a request that ends early, the last result is the one that does not fit.
        if answer.results().len() > at {
            returned += 1;
            continue;
        }
        assert_eq!(answer.status(), Status::RepTooBig);
        refused += 1;
        let more = client.send(&[putfh(&fh), get(stateid, 2)]);
        assert_eq!(more.status(), Status::Ok, "gone with {response_bytes_max} bytes");
        let (stateid, _) = granted(&more, 2);
        assert_eq!(client.send(&[putfh(&fh), give_back(stateid)]).status(), Status::Ok);
    }
    assert!(refused > 3 && returned > 3, "{refused} {returned}");
}

#[test]
fn errors_and_statistics_are_for_those_with_a_layout() {
    let (_base, mut client, fh, open) = spread_file(2);
    let answer = client.send(&[putfh(&fh), get(open, 2)]);
    let (stateid, layout) = granted(&answer, 2);
    let device_id = layout.device;
    let error = DeviceError { device_id, status: Status::NoSpc, op: 38 };
    let told = |stateid| {
        let (offset, length) = (0, u64::MAX);
        Op::Layouterror(LayouterrorArgs { offset, length, stateid, errors: vec![error] })
    };
    let none = IoInfo { count: 0, bytes: 0 };
    let counted = |stateid| {
        Op::Layoutstats(LayoutstatsArgs {
            offset: 0,
            length: u64::MAX,
            stateid,
            read: none,
            write: IoInfo { count: 3, bytes: 4096 },
            device_id,
            update: LayoutBody { layout_type: LAYOUT_FILES, body: b"" },
        })
    };
    for op in [told(stateid), counted(stateid)] {
        assert_eq!(client.send(&[putfh(&fh), op]).status(), Status::Ok);
    }
    let namespace = client.world.shared.service.namespace();
    let direct = namespace.exports().next().unwrap().direct_use();
    let written = [&direct.writes, &direct.written_bytes];
    assert_eq!(written.map(|counter| counter.load(Ordering::Relaxed)), [3, 4096]);
    for op in [told(open), counted(open)] {
        assert_eq!(client.send(&[putfh(&fh), op]).status(), Status::BadStateId);
    }
}

#[test]
fn all_layouts_go_back_at_once() {
    let (_base, mut client) = spread(1);
    for wider in [LayoutReturn::Wider(2), LayoutReturn::Wider(3)] {
        let (fh, open) = client.file(b"f");
        let answer = client.send(&[putfh(&fh), get(open, 2)]);
        let stateid = granted(&answer, 2).0;
        assert_eq!(client.status(&[give(3, wider)]), Status::Ok);
        let again = client.send(&[putfh(&fh), give_back(stateid)]);
        assert_eq!(again.status(), Status::BadStateId);
        let close = Op::Close(CloseArgs { seqid: 0, stateid: open });
        assert_eq!(client.send(&[putfh(&fh), close]).status(), Status::Ok);
    }
}

#[test]
fn a_layout_comes_with_the_open_in_one_compound() {
    let (_base, mut client) = spread(1);
    let access = ShareAccess::BOTH | Want::None.number();
    let opening = || open(b"f", access, unchecked(NOTHING));
    let answer = client.at_root(&[opening(), get(Stateid::CURRENT, 2), getfh()]);
    assert_eq!(answer.status(), Status::Ok, "{:?}", answer.results());
    let ResultBody::Open(opened) = answer.body(2) else { panic!() };
    let (stateid, layout) = granted(&answer, 3);
    assert_eq!((stateid.seqid, layout.handles.len()), (1, 3));
    assert_ne!(stateid.other, opened.stateid.other);
    // The layout is the current state-id then, so it can be returned by it.
    let answer =
        client.at_root(&[opening(), get(Stateid::CURRENT, 1), give_back(Stateid::CURRENT)]);
    assert_eq!(answer.status(), Status::Ok, "{:?}", answer.results());
    assert_eq!(granted(&answer, 3).0, Stateid { seqid: 2, ..stateid });
    let fh = handle(&client.at_root(&[opening(), getfh()]), 3);
    assert_eq!(client.send(&[putfh(&fh), give_back(stateid)]).status(), Status::BadStateId);
    // Without an open there is no current state-id to request a layout with.
    let none = client.send(&[putfh(&fh), get(Stateid::CURRENT, 2)]);
    assert_eq!(none.status(), Status::BadStateId);
}
