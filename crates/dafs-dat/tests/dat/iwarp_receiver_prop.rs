//! The iWARP receiver against all ways to cut a stream. It reports and places the same whatever the
//! pieces are, and whether payload passes the staging area or goes straight into place.

use dafs_dat::iwarp::{Inbound, PostedRead, PostedReceive, Receiver, Violation};
use dafs_dat::{Access, PostError, ProtectionDomain, RegionTable};
use dafs_mem::{Buffer, Site};
use dafs_wire::iwarp::crc::Crc32c;
use dafs_wire::iwarp::ddp::{Header, Place, Queue};
use dafs_wire::iwarp::mpa;
use dafs_wire::iwarp::rdmap::{Opcode, ReadRequest, Terminate};
use proptest::prelude::*;
use std::sync::Arc;

const DOMAIN: ProtectionDomain = ProtectionDomain(1);
const REGION_BYTES: usize = 1 << 17;
const KEY: u32 = 0x1234_5678;
/// The first of the keys to invalidate.
const SHORT_LIVED_KEY: u32 = 0x100;

/// One message of a stream.
#[derive(Debug, Clone)]
enum Message {
    Send {
        len: usize,
        cut: usize,
    },
    /// With or without solicited event; each has a region of its own.
    Invalidate {
        len: usize,
        cut: usize,
        solicited: bool,
    },
    Write {
        offset: usize,
        len: usize,
        cut: usize,
    },
    Response {
        len: usize,
        cut: usize,
    },
    Request {
        offset: usize,
        len: usize,
    },
}

fn message() -> impl Strategy<Value = Message> {
    let len = || prop_oneof![0..300usize, 0..20_000usize];
    let cut = || 1..9000usize;
    prop_oneof![
        (len(), cut()).prop_map(|(len, cut)| Message::Send { len, cut }),
        (0..REGION_BYTES / 2, len(), cut()).prop_map(|(offset, len, cut)| Message::Write {
            offset,
            len,
            cut
        }),
        (len(), cut(), any::<bool>()).prop_map(|(len, cut, solicited)| Message::Invalidate {
            len,
            cut,
            solicited
        }),
        (len(), cut()).prop_map(|(len, cut)| Message::Response { len, cut }),
        (0..REGION_BYTES / 2, len()).prop_map(|(offset, len)| Message::Request { offset, len }),
    ]
}

/// Encodes messages as a peer would.
struct Encoder {
    crc: bool,
    bytes: Vec<u8>,
    send_msn: u32,
    read_msn: u32,
    sink: u32,
    seed: u8,
    address: u64,
    /// The key that the next such message invalidates.
    next_key: u32,
}

impl Encoder {
    fn fpdu(&mut self, opcode: Opcode, last: bool, place: Place, payload: &[u8]) {
        let start = self.bytes.len();
        let header = Header { opcode, last, place, payload_bytes: payload.len() as u16 };
        header.encode(&mut self.bytes);
        self.bytes.extend_from_slice(payload);
        let end = self.bytes.len() + mpa::padding_bytes(header.segment_bytes());
        self.bytes.resize(end, 0);
        let mut crc = Crc32c::new();
        crc.update(&self.bytes[start..]);
        self.bytes.extend_from_slice(&if self.crc { crc.finish() } else { [9; 4] });
    }

    /// Cuts a message of `len` bytes into segments of `cut`.
    fn segments(&mut self, opcode: Opcode, len: usize, cut: usize, place: impl Fn(usize) -> Place) {
        self.seed = self.seed.wrapping_add(37);
        let payload: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(7) ^ self.seed).collect();
        let mut at = 0;
        loop {
            let end = len.min(at + cut);
            self.fpdu(opcode, end == len, place(at), &payload[at..end]);
            at = end;
            if at == len {
                return;
            }
        }
    }

    fn message(&mut self, message: &Message) {
        match *message {
            Message::Send { len, cut } => {
                let msn = self.send_msn;
                self.send_msn += 1;
                self.segments(Opcode::Send, len, cut, |at| send_place(msn, 0, at));
            }
            Message::Invalidate { len, cut, solicited } => {
                let (msn, key) = (self.send_msn, self.next_key);
                self.send_msn += 1;
                self.next_key += 1;
                let opcode = match solicited {
                    true => Opcode::SendSolicitedInvalidate,
                    false => Opcode::SendInvalidate,
                };
                self.segments(opcode, len, cut, |at| send_place(msn, key, at));
            }
            Message::Write { offset, len, cut } => {
                let address = self.address;
                self.segments(Opcode::Write, len, cut, |at| Place::Tagged {
                    stag: KEY,
                    offset: address + (offset + at) as u64,
                });
            }
            Message::Response { len, cut } => {
                self.sink += 1;
                let stag = self.sink;
                self.segments(Opcode::ReadResponse, len, cut, |at| Place::Tagged {
                    stag,
                    offset: at as u64,
                });
            }
            Message::Request { offset, len } => {
                let request = ReadRequest {
                    sink_stag: 5,
                    sink_offset: 6,
                    length: len as u32,
                    source_stag: KEY,
                    source_offset: self.address + offset as u64,
                };
                let mut payload = Vec::new();
                request.encode(&mut payload);
                let msn = self.read_msn;
                self.read_msn += 1;
                let place = Place::Untagged {
                    invalidate_stag: 0,
                    queue: Queue::ReadRequest,
                    msn,
                    offset: 0,
                };
                self.fpdu(Opcode::ReadRequest, true, place, &payload);
            }
        }
    }
}

fn send_place(msn: u32, invalidate_stag: u32, at: usize) -> Place {
    Place::Untagged { invalidate_stag, queue: Queue::Send, msn, offset: at as u32 }
}

/// A receiver with all receives, reads and regions for the stream.
struct Bench {
    table: RegionTable,
    region: Arc<Buffer>,
    inboxes: Arc<Buffer>,
    receiver: Receiver,
    inbound: Vec<Inbound>,
}

impl Bench {
    fn new(region: Arc<Buffer>, crc: bool, messages: &[Message], announced: u64) -> Self {
        let mut table = RegionTable::new();
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        region.view().fill(0);
        table.register(DOMAIN, region.clone(), access, || KEY).unwrap();
        let mut receiver = Receiver::new(DOMAIN, crc, 1000);
        let (mut at, mut sink) = (0, 0);
        let total: usize = messages
            .iter()
            .map(|message| match message {
                Message::Send { len, .. }
                | Message::Invalidate { len, .. }
                | Message::Response { len, .. } => *len,
                _ => 0,
            })
            .sum();
        let inboxes = Arc::new(Buffer::zeroed(total.max(1)).unwrap());
        for (work, message) in messages.iter().enumerate() {
            let (work, buffer, offset) = (work as u64, inboxes.clone(), at);
            match *message {
                Message::Send { len, .. } | Message::Invalidate { len, .. } => {
                    receiver.post_receive(PostedReceive { work, buffer, offset, len });
                    at += len;
                }
                Message::Response { len, .. } => {
                    sink += 1;
                    let (len, sink_stag) = (len as u32, sink);
                    receiver.post_read(PostedRead { work, buffer, offset, len, sink_stag });
                    at += len as usize;
                }
                _ => {}
            }
        }
        let invalidating = |message: &&Message| matches!(message, Message::Invalidate { .. });
        for number in 0..messages.iter().filter(invalidating).count() {
            let key = SHORT_LIVED_KEY + number as u32;
            table.register(DOMAIN, region.clone(), access, || key).unwrap();
        }
        receiver.expect_writes(announced);
        Self { table, region, inboxes, receiver, inbound: Vec::new() }
    }

    /// Feeds the stream as a socket would: at most `sizes` bytes at a time, payload in place where
    /// the receiver requests it.
    fn feed(&mut self, mut bytes: &[u8], sizes: &[usize]) -> Result<(), Violation> {
        let mut sizes = sizes.iter().cycle();
        while !bytes.is_empty() {
            let mut size = (*sizes.next().unwrap()).min(bytes.len());
            let stage_max = self.receiver.stage_bytes_max().unwrap_or(usize::MAX);
            assert!(stage_max > 0, "a read of nothing would spin");
            let mut placed = 0;
            if let Some(view) = self.receiver.direct_view(&self.table)? {
                placed = size.min(view.len());
                view.copy_from(&bytes[..placed], Site::Inspect);
            }
            size = placed + (size - placed).min(stage_max);
            if placed > 0 {
                self.receiver.placed(placed, &self.table)?;
            }
            self.receiver.consume(&bytes[placed..size], &mut self.table, &mut self.inbound)?;
            bytes = &bytes[size..];
        }
        Ok(())
    }

    fn result(&self) -> (Vec<Inbound>, Vec<u8>, Vec<u8>) {
        let bytes = |buffer: &Buffer| buffer.view().to_vec(Site::Inspect);
        (self.inbound.clone(), bytes(&self.region), bytes(&self.inboxes))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_cut_of_a_stream_gives_the_same(
        messages in proptest::collection::vec(message(), 1..12),
        crc in any::<bool>(),
        sizes in proptest::collection::vec(prop_oneof![1..40usize, 1..30_000usize], 1..20),
        announced in prop_oneof![Just(0u64), Just(1 << 20)],
        cut_tail in 1..60usize,
    ) {
        let region = Arc::new(Buffer::zeroed(REGION_BYTES).unwrap());
        let address = region.as_ptr() as u64;
        let mut encoder = Encoder {
            crc, bytes: Vec::new(), send_msn: 1, read_msn: 1, sink: 0, seed: 0, address,
            next_key: SHORT_LIVED_KEY,
        };
        for message in &messages {
            encoder.message(message);
        }
        let mut whole = Bench::new(region.clone(), crc, &messages, 0);
        prop_assert_eq!(
            whole.receiver.consume(&encoder.bytes, &mut whole.table, &mut whole.inbound), Ok(()));
        let want = whole.result();
        let reported = messages.iter().filter(|m| !matches!(m, Message::Write { .. })).count();
        prop_assert_eq!(want.0.len(), reported);
        prop_assert!(whole.receiver.at_boundary());

        let mut pieces = Bench::new(region.clone(), crc, &messages, announced);
        prop_assert_eq!(pieces.feed(&encoder.bytes, &sizes), Ok(()));
        prop_assert!(pieces.result() == want);
        prop_assert!(pieces.receiver.at_boundary());

        // A truncated stream is not at a boundary, and has reported a prefix.
        let end = encoder.bytes.len() - cut_tail.min(encoder.bytes.len());
        let mut partial = Bench::new(region, crc, &messages, announced);
        prop_assert_eq!(partial.feed(&encoder.bytes[..end], &sizes), Ok(()));
        prop_assert!(want.0.starts_with(&partial.inbound));
    }

    #[test]
    fn a_flipped_bit_is_found_by_the_crc(
        messages in proptest::collection::vec(message(), 1..4),
        at in any::<prop::sample::Index>(),
        bit in 0..8u32,
        sizes in proptest::collection::vec(1..3000usize, 1..5),
    ) {
        let region = Arc::new(Buffer::zeroed(REGION_BYTES).unwrap());
        let address = region.as_ptr() as u64;
        let mut encoder = Encoder {
            crc: true, bytes: Vec::new(), send_msn: 1, read_msn: 1, sink: 0, seed: 0, address,
            next_key: SHORT_LIVED_KEY,
        };
        for message in &messages {
            encoder.message(message);
        }
        let mut whole = Bench::new(region.clone(), true, &messages, 0);
        whole.feed(&encoder.bytes, &[1 << 20]).unwrap();
        let at = at.index(encoder.bytes.len());
        encoder.bytes[at] ^= 1 << bit;
        let mut bench = Bench::new(region, true, &messages, 0);
        // With a longer length field the receiver may wait; it must not report damaged data.
        let result = bench.feed(&encoder.bytes, &sizes);
        prop_assert!(result.is_err() || !bench.receiver.at_boundary() || bench.inbound.len() < whole.inbound.len());
        prop_assert!(whole.inbound.starts_with(&bench.inbound));
    }
}

/// Feeds one segment and returns the receiver's result.
fn verdict(header: Header, payload: &[u8]) -> Result<Vec<Inbound>, Violation> {
    let region = Arc::new(Buffer::zeroed(4096).unwrap());
    let messages = [Message::Send { len: 100, cut: 1 }, Message::Response { len: 100, cut: 1 }];
    let mut bench = Bench::new(region, false, &messages, 0);
    let mut bytes = Vec::new();
    header.encode(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + mpa::padding_bytes(header.segment_bytes()) + 4, 0);
    let Bench { receiver, table, inbound, .. } = &mut bench;
    receiver.consume(&bytes, table, inbound)?;
    Ok(bench.inbound)
}

fn untagged(opcode: Opcode, queue: Queue, msn: u32, offset: u32, payload_bytes: u16) -> Header {
    let place = Place::Untagged { invalidate_stag: 0x77, queue, msn, offset };
    Header { opcode, last: true, place, payload_bytes }
}

fn response(stag: u32, offset: u64, last: bool, payload_bytes: u16) -> Header {
    let place = Place::Tagged { stag, offset };
    Header { opcode: Opcode::ReadResponse, last, place, payload_bytes }
}

#[test]
fn each_rule_has_its_verdict() {
    let received = |invalidated| Ok(vec![Inbound::Received { work: 0, bytes: 3, invalidated }]);
    let send = |msn, offset, len| untagged(Opcode::Send, Queue::Send, msn, offset, len);
    assert_eq!(verdict(send(1, 0, 3), b"abc"), received(None));
    let broken =
        |header: Header| verdict(header, &vec![0; header.payload_bytes.into()]).unwrap_err();
    let order = |what, found| Violation::MessageOrder { what, queue: 0, found, expected: 1 };
    assert_eq!(broken(send(2, 0, 3)), order("message number", 2));
    assert_eq!(broken(send(0, 0, 3)), order("message number", 0));
    let offset =
        Violation::MessageOrder { what: "message offset", queue: 0, found: 4, expected: 0 };
    assert_eq!(broken(send(1, 4, 3)), offset);
    let long = Violation::MessageTooLong { bytes: 101, posted: 100 };
    assert_eq!(broken(send(1, 0, 101)), long);
    for opcode in [Opcode::SendInvalidate, Opcode::SendSolicitedInvalidate] {
        let message = |key| {
            let place = send_place(1, key, 0);
            Header { opcode, last: true, place, payload_bytes: 3 }
        };
        assert_eq!(verdict(message(KEY), b"abc"), received(Some(KEY)));
        let unknown = Violation::Invalidate { key: 0x77, reason: PostError::Region };
        assert_eq!(broken(message(0x77)), unknown);
        assert_eq!(unknown.terminate(), Terminate::INVALIDATE);
    }
    let request = untagged(Opcode::ReadRequest, Queue::ReadRequest, 1, 0, 27);
    assert_eq!(broken(request), Violation::Malformed("RDMA read request"));
    let terminate = untagged(Opcode::Terminate, Queue::Terminate, 1, 0, 3);
    assert_eq!(broken(terminate), Violation::Malformed("Terminate"));

    let done = Ok(vec![Inbound::ReadDone { work: 1, bytes: 100 }]);
    assert_eq!(verdict(response(1, 0, true, 100), &[1; 100]), done);
    for bad in [
        response(2, 0, true, 100),
        response(1, 1, true, 99),
        response(1, 0, true, 99),
        response(1, 0, false, 100),
        response(1, 0, true, 101),
    ] {
        assert_eq!(broken(bad), Violation::ReadResponse);
    }
    assert_eq!(Violation::ReadResponse.terminate(), Terminate::UNSPECIFIED);
}

#[test]
fn tagged_messages_are_not_interleaved_but_a_send_may_come_between() {
    let region = Arc::new(Buffer::zeroed(4096).unwrap());
    let address = region.as_ptr() as u64;
    let messages = [Message::Send { len: 100, cut: 1 }];
    let mut bench = Bench::new(region, false, &messages, 0);
    let write = |offset: u64, last| {
        let place = Place::Tagged { stag: KEY, offset: address + offset };
        let mut bytes = Vec::new();
        Header { opcode: Opcode::Write, last, place, payload_bytes: 2 }.encode(&mut bytes);
        bytes.extend_from_slice(&[1, 2, 0, 0, 0, 0, 0, 0]);
        bytes
    };
    let mut bytes = write(0, false);
    untagged(Opcode::Send, Queue::Send, 1, 0, 0).encode(&mut bytes);
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend(write(2, false));
    let Bench { receiver, table, inbound, .. } = &mut bench;
    assert_eq!(receiver.consume(&bytes, table, inbound), Ok(()));
    assert_eq!(inbound.len(), 1);
    assert_eq!(receiver.consume(&write(5, true), table, inbound), Err(Violation::TaggedOrder));
    // After an error the receiver ignores further input.
    assert_eq!(receiver.consume(&write(4, true), table, inbound), Ok(()));
    assert_eq!(inbound.len(), 1);
}

/// A key becomes invalid with the last segment of the message, also for a write in progress.
#[test]
fn an_invalidated_key_is_refused_from_the_next_segment_on() {
    let region = Arc::new(Buffer::zeroed(4096).unwrap());
    let address = region.as_ptr() as u64;
    let messages = [Message::Send { len: 100, cut: 1 }];
    let mut bench = Bench::new(region, false, &messages, 0);
    let segment = |opcode, last, place| {
        let mut bytes = Vec::new();
        Header { opcode, last, place, payload_bytes: 2 }.encode(&mut bytes);
        bytes.extend_from_slice(&[1, 2, 0, 0, 0, 0, 0, 0]);
        bytes
    };
    let write = |offset: u64| {
        segment(Opcode::Write, false, Place::Tagged { stag: KEY, offset: address + offset })
    };
    let send = |last, at| segment(Opcode::SendInvalidate, last, send_place(1, KEY, at));
    let Bench { receiver, table, inbound, .. } = &mut bench;
    for bytes in [write(0), send(false, 0), write(2), send(true, 2)] {
        assert_eq!(receiver.consume(&bytes, table, inbound), Ok(()));
    }
    let received = Inbound::Received { work: 0, bytes: 4, invalidated: Some(KEY) };
    assert_eq!(*inbound, [received]);
    let refused = receiver.consume(&write(4), table, inbound).unwrap_err();
    let reason = PostError::Region;
    assert_eq!(refused, Violation::Write { key: KEY, address: address + 4, bytes: 2, reason });
}

/// A read of the socket for each Ethernet packet costs more than a copy.
#[test]
fn small_pieces_of_large_data_are_taken_together() {
    let region = Arc::new(Buffer::zeroed(REGION_BYTES).unwrap());
    let address = region.as_ptr() as u64;
    let mut bench = Bench::new(region, false, &[], 1 << 20);
    let mut at = 0;
    let mut write = |len: u16| {
        let place = Place::Tagged { stag: KEY, offset: address + at };
        at += u64::from(len);
        let header = Header { opcode: Opcode::Write, last: false, place, payload_bytes: len };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        bytes.resize(bytes.len() + usize::from(len), 1);
        bytes.resize(bytes.len() + mpa::padding_bytes(header.segment_bytes()) + 4, 0);
        bytes
    };
    let Bench { receiver, table, inbound, .. } = &mut bench;
    // Before the first piece the receiver does not know how the peer cuts.
    assert!(receiver.stage_bytes_max().is_some());
    for (len, exact) in [(1424, false), (1424, false), (60_000, true), (1424, false)] {
        receiver.consume(&write(len), table, inbound).unwrap();
        assert_eq!(receiver.stage_bytes_max().is_some(), exact, "after a piece of {len}");
    }
}
