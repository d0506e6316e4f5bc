//! The receiving state machine of the iWARP provider. The input is a list of steps: raw bytes, or
//! segments that are well-formed but for what the input chooses, so that deep states are reached
//! without guessing addresses and checksums. The stream is cut as the input says, and payload is
//! received in place wherever the receiver asks for it.
//!
//! Checked: no panic, no read of nothing, no posted work reported twice or in a wrong order, and no
//! byte outside the memory that was offered is touched.

#![no_main]

use dafs_dat::iwarp::{Inbound, PostedRead, PostedReceive, Receiver, Violation};
use dafs_dat::{Access, ProtectionDomain, RegionTable};
use dafs_mem::{Buffer, Site};
use dafs_wire::iwarp::crc::Crc32c;
use dafs_wire::iwarp::ddp::{Header, Place, Queue};
use dafs_wire::iwarp::mpa;
use dafs_wire::iwarp::rdmap::{Opcode, ReadRequest};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;

const DOMAIN: ProtectionDomain = ProtectionDomain(1);
const KEY: u32 = 0x5ca1_ab1e;
const READ_ONLY_KEY: u32 = 0x0ddb_a115;
const GUARD: u8 = 0xa5;
/// Of each buffer, the part that may be written; what follows is guard.
const OPEN_BYTES: usize = 16 * 1024;
const BUFFER_BYTES: usize = OPEN_BYTES + 1024;
const POSTED: u64 = 6;
const READ_DEPTH: u16 = 3;

/// Reads the input; zeros when it is used up.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    fn short(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }
}

fn fpdu(out: &mut Vec<u8>, header: Header, payload: &[u8], crc: bool) {
    let start = out.len();
    header.encode(out);
    out.extend_from_slice(payload);
    let end = out.len() + mpa::padding_bytes(header.segment_bytes());
    out.resize(end, 0);
    let mut sum = Crc32c::new();
    sum.update(&out[start..]);
    out.extend_from_slice(&if crc { sum.finish() } else { [0; 4] });
}

/// The stream that the input describes.
fn stream(input: &mut Input<'_>, crc: bool, base: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let (mut send_msn, mut read_msn) = (1u32, 1u32);
    while !input.0.is_empty() && out.len() < 200_000 {
        let step = input.byte();
        let last = step & 0x80 != 0;
        // Mostly the right thing, sometimes the input's.
        let twist = step & 0x40 != 0;
        let key = if step & 0x20 != 0 { READ_ONLY_KEY } else { KEY };
        let tagged = |input: &mut Input<'_>, opcode, stag| {
            let offset = base.wrapping_add_signed(i64::from(input.short() as i16));
            let len = input.short() % 20_000;
            let offset = if stag == key { offset } else { offset.wrapping_sub(base) };
            let place = Place::Tagged { stag, offset };
            (Header { opcode, last, place, payload_bytes: len }, vec![step; usize::from(len)])
        };
        match step & 0x07 {
            0 => {
                let take = usize::from(input.byte()).min(input.0.len());
                out.extend_from_slice(&input.0[..take]);
                input.0 = &input.0[take..];
            }
            1 | 2 => {
                let (header, payload) = tagged(input, Opcode::Write, key);
                fpdu(&mut out, header, &payload, crc);
            }
            3 => {
                let stag = u32::from(input.byte() % 8);
                let (header, payload) = tagged(input, Opcode::ReadResponse, stag);
                fpdu(&mut out, header, &payload, crc);
            }
            4 | 5 => {
                let len = input.short() % 20_000;
                let offset = if twist { u32::from(input.short()) } else { 0 };
                let opcode = match (step & 0x20 != 0, step & 0x10 != 0) {
                    (false, false) => Opcode::Send,
                    (true, false) => Opcode::SendSolicited,
                    (false, true) => Opcode::SendInvalidate,
                    (true, true) => Opcode::SendSolicitedInvalidate,
                };
                let (queue, invalidate_stag) = (Queue::Send, key);
                let place = Place::Untagged { invalidate_stag, queue, msn: send_msn, offset };
                let header = Header { opcode, last, place, payload_bytes: len };
                fpdu(&mut out, header, &vec![step; usize::from(len)], crc);
                send_msn = send_msn.wrapping_add(u32::from(last));
            }
            6 => {
                let request = ReadRequest {
                    sink_stag: 1,
                    sink_offset: 2,
                    length: u32::from(input.short()),
                    source_stag: key,
                    source_offset: base.wrapping_add_signed(i64::from(input.short() as i16)),
                };
                let mut payload = Vec::new();
                request.encode(&mut payload);
                let queue = Queue::ReadRequest;
                let place = Place::Untagged { invalidate_stag: 0, queue, msn: read_msn, offset: 0 };
                let opcode = Opcode::ReadRequest;
                let header = Header { opcode, last: !twist, place, payload_bytes: 28 };
                fpdu(&mut out, header, &payload, crc);
                read_msn = read_msn.wrapping_add(1);
            }
            _ => {
                let len = input.byte();
                let queue = Queue::Terminate;
                let place = Place::Untagged { invalidate_stag: 0, queue, msn: 1, offset: 0 };
                let opcode = Opcode::Terminate;
                let header = Header { opcode, last: !twist, place, payload_bytes: len.into() };
                fpdu(&mut out, header, &vec![step; usize::from(len)], crc);
            }
        }
    }
    out
}

struct Bench {
    table: RegionTable,
    receiver: Receiver,
    inbound: Vec<Inbound>,
    answered: usize,
}

impl Bench {
    fn feed(&mut self, mut bytes: &[u8], cuts: &[u8]) -> Result<(), Violation> {
        let mut cuts = cuts.iter().cycle();
        while !bytes.is_empty() {
            let cut = usize::from(*cuts.next().unwrap_or(&0));
            let mut size = (1 + cut * cut).min(bytes.len());
            let stage_max = self.receiver.stage_bytes_max().unwrap_or(usize::MAX);
            let mut placed = 0;
            if let Some(view) = self.receiver.direct_view(&self.table)? {
                assert!(!view.is_empty());
                placed = size.min(view.len());
                view.copy_from(&bytes[..placed], Site::Inspect);
                self.receiver.placed(placed, &self.table)?;
            } else {
                assert!(stage_max > 0, "a read of nothing would spin");
            }
            size = placed + (size - placed).min(stage_max);
            self.receiver.consume(&bytes[placed..size], &mut self.table, &mut self.inbound)?;
            // Now and then the reads of the peer are answered.
            let asked = |i: &&Inbound| matches!(i, Inbound::ReadRequested(_));
            let unanswered = self.inbound.iter().filter(asked).count() - self.answered;
            assert!(unanswered <= usize::from(READ_DEPTH));
            if cut % 5 == 0 && unanswered > 0 {
                self.receiver.read_answered();
                self.answered += 1;
            }
            bytes = &bytes[size..];
        }
        Ok(())
    }
}

fn buffer() -> Arc<Buffer> {
    let buffer = Arc::new(Buffer::zeroed(BUFFER_BYTES).expect("a few pages"));
    buffer.slice(OPEN_BYTES, BUFFER_BYTES - OPEN_BYTES).expect("inside").fill(GUARD);
    buffer
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let mode = input.byte();
    let crc = mode & 1 != 0;
    let cuts = [input.byte(), input.byte(), input.byte()];

    // Of the writable region only a part is registered; a read-only one lies beside it.
    let (target, source, inbox) = (buffer(), buffer(), buffer());
    let base = target.as_ptr() as u64;
    // SAFETY: `target` keeps the range mapped, and the window is dropped before it.
    let window = unsafe { Buffer::borrowed(target.as_ptr(), OPEN_BYTES) };
    let mut table = RegionTable::new();
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    table.register(DOMAIN, Arc::new(window), access, || KEY).expect("an empty table");
    table
        .register(DOMAIN, source.clone(), Access::REMOTE_READ, || READ_ONLY_KEY)
        .expect("a free key");

    let mut receiver = Receiver::new(DOMAIN, crc, READ_DEPTH);
    let piece = OPEN_BYTES / (2 * POSTED as usize);
    for i in 0..POSTED {
        let offset = i as usize * 2 * piece;
        let buffer = inbox.clone();
        receiver.post_receive(PostedReceive { work: i, buffer, offset, len: piece });
        let (buffer, offset) = (inbox.clone(), offset + piece);
        let (len, sink_stag) = (piece as u32, 1 + i as u32);
        receiver.post_read(PostedRead { work: i, buffer, offset, len, sink_stag });
    }
    if mode & 2 != 0 {
        receiver.expect_writes(1 << 20);
    }

    let wire = stream(&mut input, crc, base);
    let mut bench = Bench { table, receiver, inbound: Vec::new(), answered: 0 };
    let ended = bench.feed(&wire, &cuts);
    if let Err(violation) = &ended {
        assert!(!violation.to_string().is_empty());
        let before = bench.inbound.len();
        let _ = bench.receiver.consume(&wire, &mut bench.table, &mut bench.inbound);
        assert_eq!(bench.inbound.len(), before, "nothing is looked at after an error");
    }

    let mut dead = std::collections::HashSet::new();
    let (mut received, mut read) = (0, 0);
    for item in &bench.inbound {
        match *item {
            Inbound::Received { work, bytes, invalidated } => {
                if let Some(key) = invalidated {
                    assert!(key == KEY || key == READ_ONLY_KEY);
                    assert!(dead.insert(key), "a key dies once");
                }
                assert_eq!(work, received);
                assert!(bytes as usize <= piece);
                received += 1;
            }
            Inbound::ReadDone { work, bytes } => {
                assert_eq!((work, bytes as usize), (read, piece));
                read += 1;
            }
            Inbound::ReadRequested(_) | Inbound::Terminated(_) => {}
        }
    }
    assert_eq!(bench.receiver.receive_count() as u64, POSTED - received);
    assert_eq!(bench.receiver.read_count() as u64, POSTED - read);
    for buffer in [&target, &source, &inbox] {
        let guard = buffer.slice(OPEN_BYTES, BUFFER_BYTES - OPEN_BYTES).expect("inside");
        guard.scan(|bytes| assert!(bytes.iter().all(|byte| *byte == GUARD)));
    }
    source.slice(0, OPEN_BYTES).expect("inside").scan(|bytes| {
        assert!(bytes.iter().all(|byte| *byte == 0), "a read-only region was written");
    });
});
