//! Flexible files, as pynfs tests them: each test names the codes of the pynfs tests for the same
//! feature. Two features are tested in [`super::copies`]: a client that could not write gets a
//! layout without the device at once, and a layout may be returned without a report. Statistics are
//! tested in [`super::layout_stats`].

use super::copies::{get, give_back, granted, met, mirrored_file};
use super::helper::*;
use crate::common::{Answer, bytes};
use dafs_wire::nfs4::*;
use dafs_wire::xdr::{Decode, Decoder};

pub(crate) const READING: u32 = 1;
pub(crate) const WRITING: u32 = 2;
const NOTHING_SAID: FlexReturned<'_> = FlexReturned { errors: vec![], stats: vec![] };

/// Decodes the layout of an answer, and its state-id.
pub(crate) fn layout(answer: &Answer, at: usize) -> (Stateid, FlexLayout<'_>) {
    let ResultBody::Layoutget(result) = answer.body(at) else { panic!("{:?}", answer.results()) };
    let layout = FlexLayout::decode(&mut Decoder::new(result.layouts[0].content.body)).unwrap();
    (result.stateid, layout)
}

/// Requests the layout of a file. Returns its state-id and its devices.
pub(crate) fn ask(
    client: &mut Client,
    fh: &[u8],
    stateid: Stateid,
    io_mode: u32,
) -> (Stateid, Vec<DeviceId>) {
    let answer = client.send(&[putfh(fh), get(stateid, io_mode)]);
    granted(&answer, 2)
}

/// Returns a layout with this report. The result is the status.
fn give(client: &mut Client, fh: &[u8], stateid: Stateid, body: &[u8]) -> Status {
    client.send(&[putfh(fh), give_back(stateid, body)]).status()
}

/// FFST1.
#[test]
fn each_part_that_is_asked_for_has_the_next_number() {
    let (_base, mut client, fh, open) = mirrored_file();
    let mut stateid = open;
    for number in 0..7 {
        let Op::Layoutget(whole) = get(stateid, WRITING) else { unreachable!() };
        let (offset, length, length_min) = (number * 8192, 8192, 8192);
        let part = Op::Layoutget(LayoutgetArgs { offset, length, length_min, ..whole });
        let answer = client.send(&[putfh(&fh), part]);
        stateid = granted(&answer, 2).0;
        assert_eq!(stateid.seqid, number as u32 + 1);
        let ResultBody::Layoutget(result) = answer.body(2) else { panic!() };
        let told = &result.layouts[0];
        assert!(told.offset <= offset && told.length >= length, "{told:?}");
    }
    assert_eq!(give(&mut client, &fh, stateid, &bytes(&NOTHING_SAID)), Status::Ok);
    assert_eq!(client.send(&[putfh(&fh), close(open)]).status(), Status::Ok);
}

/// FFLOR1.
#[test]
fn a_layout_for_reading_is_given_back_once_and_its_open_stays() {
    let (_base, mut client, fh, open) = mirrored_file();
    let (stateid, _) = ask(&mut client, &fh, open, READING);
    let answer = client.send(&[putfh(&fh), give_back(stateid, &bytes(&NOTHING_SAID))]);
    let ResultBody::Layoutreturn(result) = answer.body(2) else { panic!() };
    assert_eq!(result.stateid, None);
    assert_eq!(give(&mut client, &fh, stateid, &bytes(&NOTHING_SAID)), Status::BadStateId);
    assert_eq!(client.send(&[putfh(&fh), close(open)]).status(), Status::Ok);
}

/// FFLOOS.
#[test]
fn an_old_number_gets_a_layout_and_gives_none_back() {
    let (_base, mut client, fh, open) = mirrored_file();
    let (first, _) = ask(&mut client, &fh, open, WRITING);
    let numbers = [first, first].map(|stateid| ask(&mut client, &fh, stateid, WRITING).0.seqid);
    assert_eq!((first.seqid, numbers), (1, [2, 3]));
    let nothing = bytes(&NOTHING_SAID);
    assert_eq!(give(&mut client, &fh, first, &nothing), Status::OldStateId);
    let future = Stateid { seqid: 4, ..first };
    assert_eq!(give(&mut client, &fh, future, &nothing), Status::BadStateId);
    assert_eq!(give(&mut client, &fh, Stateid { seqid: 3, ..first }, &nothing), Status::Ok);
    assert_eq!(client.send(&[putfh(&fh), close(open)]).status(), Status::Ok);
}

/// FFLG2.
#[test]
fn layouts_for_reading_and_for_writing_take_turns() {
    let (_base, mut client, fh, open) = mirrored_file();
    let mut stateid = open;
    for number in 1..=1000 {
        let io_mode = if number % 2 == 1 { WRITING } else { READING };
        let (now, devices) = ask(&mut client, &fh, stateid, io_mode);
        assert_eq!((now.seqid, devices.len()), (number, 2));
        stateid = now;
    }
    assert_eq!(client.world.shared.service.counts().layouts, 1);
    assert_eq!(give(&mut client, &fh, stateid, &bytes(&NOTHING_SAID)), Status::Ok);
    assert_eq!(client.world.shared.service.counts().layouts, 0);
}

/// FFGDI1.
#[test]
fn a_device_is_told_to_who_has_room_for_anything() {
    let (_base, mut client, fh, open) = mirrored_file();
    let (stateid, devices) = ask(&mut client, &fh, open, WRITING);
    let info = Op::Getdeviceinfo(GetdeviceinfoArgs {
        device_id: devices[1],
        layout_type: LAYOUT_FLEX_FILES,
        result_bytes_max: u32::MAX,
        notifications: Bitmap::EMPTY,
    });
    // The current file does not matter.
    let answer = client.send(&[putfh(&fh), info]);
    let ResultBody::Getdeviceinfo(info) = answer.body(2) else { panic!() };
    let device = FlexDevice::decode(&mut Decoder::new(info.address.body)).unwrap();
    let [version] = &device.versions[..] else { panic!("{device:?}") };
    assert_eq!((version.version, version.minor_version), (4, 1));
    assert!(version.tightly_coupled && device.server.0[0].network == b"tcp");
    assert_eq!(give(&mut client, &fh, stateid, &bytes(&NOTHING_SAID)), Status::Ok);
}

/// FFLA1.
#[test]
fn a_reader_is_another_user_of_the_same_group_at_data_servers() {
    let (_base, mut client, fh, open) = mirrored_file();
    let mut of = |io_mode| {
        let answer = client.send(&[putfh(&fh), get(open, io_mode)]);
        let (_, layout) = layout(&answer, 2);
        let servers = layout.mirrors.iter().flat_map(|mirror| &mirror.servers);
        servers.map(|copy| (copy.user.to_vec(), copy.group.to_vec())).collect::<Vec<_>>()
    };
    for ((writer, group), (reader, same)) in of(WRITING).into_iter().zip(of(READING)) {
        assert_ne!(writer, reader);
        assert_eq!(group, same);
    }
}

const READ: u32 = OpNum::Read as u32;
pub(crate) const WRITE: u32 = OpNum::Write as u32;

/// Returns a layout with an error at its first device, and requests the next. The result has the
/// devices of both.
fn after_error(status: Status, op: u32, (mode, next): (u32, u32)) -> [Vec<DeviceId>; 2] {
    let (_base, mut client, fh, open) = mirrored_file();
    let (stateid, before) = ask(&mut client, &fh, open, mode);
    let error = DeviceError { device_id: before[0], status, op };
    assert_eq!(give(&mut client, &fh, stateid, &met(stateid, vec![error])), Status::Ok);
    let (stateid, after) = ask(&mut client, &fh, open, next);
    assert_eq!(stateid.seqid, 1);
    assert_eq!(give(&mut client, &fh, stateid, &bytes(&NOTHING_SAID)), Status::Ok);
    assert_eq!(client.send(&[putfh(&fh), close(open)]).status(), Status::Ok);
    [before, after]
}

/// FFLORNXIOREAD, FFLORSTALEREAD, FFLORIOREAD, FFLORSERVERFAULTREAD, FFLORACCESSREAD,
/// FFLORDELAYREAD.
#[test]
fn a_failed_reader_gets_both_copies_again() {
    use Status::*;
    for status in [Nxio, Stale, Io, ServerFault, Access, Delay] {
        // They can still be written.
        for next in [READING, WRITING] {
            let [before, after] = after_error(status, READ, (READING, next));
            assert_eq!((before.len(), &after), (2, &before), "{status:?}");
        }
    }
}

/// FFLORNXIOWRITE, FFLORSTALEWRITE, FFLORIOWRITE, FFLORSERVERFAULTWRITE, FFLORFBIGWRITE, FFLORFBIG,
/// FFLORACCESSWRITE, FFLORDELAYWRITE. FFLORNOSPCWRITE is
/// `a_device_without_room_is_not_done_without`.
#[test]
fn a_failed_writer_gets_the_other_copy() {
    use Status::*;
    for status in [Nxio, Stale, Io, ServerFault, FBig, Access, Delay] {
        let [before, after] = after_error(status, WRITE, (WRITING, WRITING));
        assert_eq!((before.len(), &after[..]), (2, &before[1..]), "{status:?}");
    }
}

/// FFLORNOSPC.
#[test]
fn a_writer_without_room_can_read() {
    let [before, after] = after_error(Status::NoSpc, WRITE, (WRITING, READING));
    assert_eq!(after, before[..1], "the other may have what there is no room for");
}

/// FFLOR100.
#[test]
fn errors_among_a_hundred_returns_leave_a_copy() {
    let (_base, mut client, fh, open) = mirrored_file();
    for round in 0..100 {
        let (stateid, devices) = ask(&mut client, &fh, open, WRITING);
        let is_first = round == 0;
        assert_eq!(devices.len(), if is_first { 2 } else { 1 });
        let error = DeviceError { device_id: devices[0], status: Status::Access, op: WRITE };
        let errors = if round % 10 == 0 { vec![error] } else { vec![] };
        assert_eq!(give(&mut client, &fh, stateid, &met(stateid, errors)), Status::Ok);
    }
    assert_eq!(client.send(&[putfh(&fh), close(open)]).status(), Status::Ok);
}
