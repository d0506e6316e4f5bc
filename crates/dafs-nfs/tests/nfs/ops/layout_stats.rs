//! Clients' reports of I/O at data servers (LAYOUTSTATS, and the body of a LAYOUTRETURN), and how
//! the server counts them. Tests with codes cover the same features as those of pynfs.

use super::copies::{get, give_back, mirrored, mirrored_file};
use super::flex::{WRITE, WRITING, ask, layout};
use super::helper::*;
use crate::common::{Answer, bytes};
use dafs_wire::nfs4::*;
use std::sync::atomic::Ordering;

/// A number of operations, and their bytes.
type Much = (u64, u64);

/// Builds a client's report of I/O at a copy.
fn update<'a>(copy: &FlexCopy<'a>, read: Much, written: Much) -> FlexUpdate<'a> {
    let time = Time { seconds: 7, nanoseconds: 999_999_999 };
    let latency = |(completed, completed_bytes): Much| FlexLatency {
        requested: completed.saturating_add(9),
        requested_bytes: completed_bytes.saturating_add(4096),
        completed,
        completed_bytes,
        missed_bytes: 0,
        busy_time: time,
        total_time: Time { seconds: i64::MAX, ..time },
    };
    FlexUpdate {
        address: NetworkAddress { network: b"tcp", address: b"127.0.0.1.8.1" },
        handle: copy.handles[0],
        read: latency(read),
        write: latency(written),
        duration: time,
        is_local: false,
    }
}

/// Returns the export's counters: reads, their bytes, writes, their bytes.
fn counted(client: &Client) -> [u64; 4] {
    let namespace = client.world.shared.service.namespace();
    let export = namespace.exports().next().unwrap();
    let direct = export.direct_use();
    [&direct.reads, &direct.read_bytes, &direct.writes, &direct.written_bytes]
        .map(|counter| counter.load(Ordering::Relaxed))
}

/// FFLS1.
#[test]
fn writes_to_small_files_are_reported_at_close() {
    let (_base, mut client) = mirrored();
    let access = ShareAccess::BOTH | Want::None.number();
    for number in 1..=20 {
        let name = format!("f{number}");
        let opening = open(name.as_bytes(), access, unchecked(NOTHING));
        let answer = client.at_root(&[opening, getfh(), get(Stateid::CURRENT, WRITING)]);
        let ResultBody::Open(opened) = answer.body(2) else { panic!("{:?}", answer.results()) };
        let (fh, (stateid, layout)) = (handle(&answer, 3), layout(&answer, 4));
        assert_eq!(stateid.seqid, 1);
        let copy = &layout.mirrors[1].servers[0];
        let stats = FlexStats {
            offset: 0,
            length: 16_384,
            stateid,
            read: IoInfo { count: 0, bytes: 0 },
            write: IoInfo { count: 1, bytes: 16_384 },
            device: copy.device,
            update: update(copy, (0, 0), (1, 16_384)),
        };
        let said = bytes(&FlexReturned { errors: vec![], stats: vec![stats] });
        let ops = [putfh(&fh), give_back(stateid, &said), close(opened.stateid)];
        assert_eq!(client.send(&ops).status(), Status::Ok);
        assert_eq!(counted(&client), [0, 0, number, number * 16_384]);
    }
}

/// A client that has a file with a layout for writing.
struct Teller {
    _base: tempfile::TempDir,
    client: Client,
    fh: Vec<u8>,
    open: Stateid,
    /// The answer with the layout.
    answer: Answer,
}

impl Teller {
    fn new() -> Self {
        let (_base, mut client, fh, open) = mirrored_file();
        let answer = client.send(&[putfh(&fh), get(open, WRITING)]);
        assert_eq!(answer.status(), Status::Ok);
        Self { _base, client, fh, open, answer }
    }

    /// Reports I/O at one of the copies with LAYOUTSTATS. Returns the status.
    fn tell(&mut self, copy: usize, read: Much, written: Much) -> Status {
        let (stateid, layout) = layout(&self.answer, 2);
        let copy = &layout.mirrors[copy].servers[0];
        let said = bytes(&update(copy, read, written));
        let op = stats(stateid, copy.device, (LAYOUT_FLEX_FILES, &said));
        self.client.send(&[putfh(&self.fh), op]).status()
    }

    /// Sends reports for the second copy one after the other. Returns the counters.
    fn told(mut self, words: &[(Much, Much)]) -> [u64; 4] {
        for &(read, written) in words {
            assert_eq!(self.tell(1, read, written), Status::Ok);
        }
        counted(&self.client)
    }
}

fn stats(stateid: Stateid, device_id: DeviceId, (layout_type, body): (u32, &[u8])) -> Op<'_> {
    // The server does not use this field for flexible files.
    let other = IoInfo { count: 77, bytes: 777 };
    Op::Layoutstats(LayoutstatsArgs {
        offset: 0,
        length: u64::MAX,
        stateid,
        read: other,
        write: other,
        device_id,
        update: LayoutBody { layout_type, body },
    })
}

/// FFLS3.
#[test]
fn statistics_that_grow_count_once() {
    let words =
        [((184, 756), (61, 252)), ((372, 1527), (124, 508)), ((4664, 19_104), (1551, 6356))];
    assert_eq!(Teller::new().told(&words), [4664, 19_104, 1551, 6356]);
}

/// FFLS2.
#[test]
fn statistics_that_begin_anew_are_added() {
    let words = [((184, 756), (61, 252)), ((372, 1527), (124, 508)), ((357, 1466), (119, 487))];
    assert_eq!(Teller::new().told(&words), [372 + 357, 1527 + 1466, 124 + 119, 508 + 487]);
}

/// FFLS4.
#[test]
fn statistics_in_which_nothing_happened_add_nothing() {
    let words = [((0, 0), (10, 41)), ((0, 0), (11, 41)), ((0, 0), (11, 41)), ((0, 0), (15, 896))];
    assert_eq!(Teller::new().told(&words), [0, 0, 15, 896]);
}

#[test]
fn statistics_of_each_device_are_counted_apart() {
    let mut teller = Teller::new();
    for copy in [0, 1, 0, 1] {
        assert_eq!(teller.tell(copy, (1, 10), (2, 20)), Status::Ok);
    }
    assert_eq!(counted(&teller.client), [2, 20, 4, 40]);
}

#[test]
fn boundless_statistics_stay_where_they_are() {
    let most = (u64::MAX, u64::MAX);
    let words = [((5, 50), (6, 60)), (most, most), ((0, 0), (0, 0)), (most, (1, 1))];
    assert_eq!(Teller::new().told(&words), [u64::MAX; 4]);
}

#[test]
fn words_that_belong_to_no_layout_do_not_count() {
    let mut teller = Teller::new();
    let (stateid, layout) = layout(&teller.answer, 2);
    let copy = &layout.mirrors[0].servers[0];
    let said = bytes(&update(copy, (1, 10), (2, 20)));
    let flex = |said| (LAYOUT_FLEX_FILES, said);
    let forged = Stateid { seqid: 1, other: [7; 12] };
    for (stateid, device, body, status) in [
        (stateid, DeviceId([7; 16]), flex(&said[..]), Status::Ok),
        (stateid, copy.device, flex(&said[..said.len() - 1]), Status::BadXdr),
        (stateid, copy.device, flex(b""), Status::BadXdr),
        (stateid, copy.device, (3, &said[..]), Status::UnknownLayoutType),
        (teller.open, copy.device, flex(&said[..]), Status::BadStateId),
        (forged, copy.device, flex(&said[..]), Status::BadStateId),
    ] {
        let answer = teller.client.send(&[putfh(&teller.fh), stats(stateid, device, body)]);
        assert_eq!(answer.status(), status);
    }
    let nowhere = teller.client.send(&[stats(stateid, copy.device, flex(&said))]);
    assert_eq!(nowhere.status(), Status::NoFileHandle);
    assert_eq!(counted(&teller.client), [0; 4]);
    // A device that the layout does not name any more.
    let error = DeviceError { device_id: copy.device, status: Status::Io, op: WRITE };
    let (offset, length) = (0, u64::MAX);
    let met = Op::Layouterror(LayouterrorArgs { offset, length, stateid, errors: vec![error] });
    assert_eq!(teller.client.send(&[putfh(&teller.fh), met]).status(), Status::Ok);
    let (fh, open) = (teller.fh.clone(), teller.open);
    assert!(!ask(&mut teller.client, &fh, open, WRITING).1.contains(&copy.device));
    assert_eq!(teller.tell(0, (1, 10), (2, 20)), Status::Ok);
    assert_eq!(counted(&teller.client), [0; 4]);
    assert_eq!(teller.tell(1, (1, 10), (2, 20)), Status::Ok);
    assert_eq!(counted(&teller.client), [1, 10, 2, 20]);
}
