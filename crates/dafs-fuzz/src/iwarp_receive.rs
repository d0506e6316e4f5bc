//! The receiving state machine of the iWARP provider. The input is a list of steps: raw bytes, or
//! segments that are well-formed but for what the input chooses, so that deep states are reached
//! without guessing addresses and checksums. The stream is cut as the input says, and payload is
//! received in place wherever the receiver asks for it.
//!
//! Checked: no panic, no read of nothing, no posted work reported twice or in a wrong order, and no
//! byte outside the memory that was offered is touched.

use crate::input::Input;
use crate::iwarp::stream::{Memory, stream};
use dafs_dat::iwarp::{Inbound, PostedRead, PostedReceive, Receiver, Violation};
use dafs_dat::{Access, ProtectionDomain, RegionTable};
use dafs_mem::{Buffer, Site};
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

pub fn run(bytes: &[u8]) {
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

    let memory = [Memory { key: KEY, base }, Memory { key: READ_ONLY_KEY, base: 0 }];
    let wire = stream(&mut input, crc, &memory);
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
}
