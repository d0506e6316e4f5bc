//! The RPC-over-RDMA server over the simulated network. The input is a list of steps of one client:
//! calls with chunks of all kinds, good but for what the input chooses, other messages, raw bytes,
//! time, late answers, and at last its end.
//!
//! Checked: no panic; what the server says has a good header, grants credits and has receives posted
//! for them; no call is answered twice; nothing is left of the connection.

use crate::input::Input;
use crate::rpcrdma_steps::spoil;
use dafs_testkit_rpc::net::{Net, SERVER_HOST};
use dafs_testkit_rpc::peer::{Memory, chunk, message, words};
use dafs_testkit_rpc::raw::{self, Raw};
use dafs_wire::rpcrdma::{Body, Chunks, Header, HeaderFault, PrivateData, ReadSegment};
use std::collections::HashMap;
use std::time::Duration;

const STEPS_MAX: usize = 64;

/// Memory that the client names: its own, another connection's, and none.
struct Place {
    memory: Vec<Memory>,
}

impl Place {
    fn segment(&self, input: &mut Input<'_>) -> dafs_wire::rpcrdma::Segment {
        let choice = input.byte();
        let memory = &self.memory[usize::from(choice & 0x0f) % self.memory.len()];
        let (at, len) = (usize::from(input.short()) % 20_000, usize::from(input.short()) % 20_000);
        let mut segment = memory.segment(at, len);
        match choice >> 4 {
            14 => segment.length = u32::MAX,
            15 => segment.handle ^= 1,
            _ => {}
        }
        segment
    }
}

fn call(input: &mut Input<'_>, place: &Place, xid: u32) -> Vec<u8> {
    let mut chunks = Chunks::default();
    let shape = input.byte();
    for _ in 0..shape & 0x03 {
        let position = match input.byte() {
            choice @ 0..200 => [48, 44, 0, 52][usize::from(choice & 0x03)],
            choice => u32::from(choice) << 2,
        };
        chunks.reads.push(ReadSegment { position, segment: place.segment(input) });
    }
    for _ in 0..shape >> 2 & 0x03 {
        let segments = [place.segment(input), place.segment(input)];
        chunks.writes.push(chunk(&segments[..usize::from(input.byte() % 3)]));
    }
    if shape & 0x10 != 0 {
        chunks.reply = Some(chunk(&[place.segment(input)]));
    }
    let read = chunks.reads.iter().map(|read| read.segment.length).fold(0, u32::wrapping_add);
    let (len, inline) = match shape >> 6 {
        0 => (read, 0),
        1 => (u32::from(input.short()), 0),
        choice => (u32::from(input.short() % 3000), usize::from(choice % 2) * 3000),
    };
    let body = if shape & 0x20 != 0 { Body::NoMessage(chunks) } else { Body::Message(chunks) };
    let header = Header { xid, credits: input.byte().into(), body };
    let mut args = words(&[xid, len]);
    args.resize(args.len() + inline, 0x5a);
    args.extend(words(&[7]));
    message(&header, &raw::call(xid, u32::from(input.byte() % 10), &args))
}

pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut net = Net::calm(input.byte().into());
    let mode = input.byte();
    net.network.map_memory(mode & 1 != 0);
    let (send_bytes, receive_bytes) = (4096, 1024 << (mode >> 2 & 0x03));
    let told = PrivateData { remote_invalidation: mode & 2 != 0, send_bytes, receive_bytes };
    let told = told.encode();
    let mut raw = Raw::connect(&mut net, 7, if mode & 16 == 0 { &[] } else { &told });
    let memory = vec![raw.memory(40_000), raw.memory(40_000), raw.foreign_memory(40_000)];
    let place = Place { memory };
    let mut sent: HashMap<u32, u32> = HashMap::new();
    let (mut xid, mut unanswered) = (0, 0usize);
    for _ in 0..STEPS_MAX {
        if input.is_empty() || !raw.is_up() {
            break;
        }
        let step = input.byte();
        match step & 0x0f {
            0..8 => {
                xid += u32::from(step & 0x10 == 0);
                let mut bytes = call(&mut input, &place, xid);
                if step & 0x20 != 0 {
                    spoil(&mut input, &mut bytes);
                }
                // An error may name what was damaged.
                let number = bytes.first_chunk().map_or(0, |word| u32::from_be_bytes(*word));
                *sent.entry(number).or_default() += 1;
                unanswered += 1;
                raw.send(&bytes);
            }
            8 => {
                let body = match step >> 4 & 0x03 {
                    0 => Body::Done,
                    1 => Body::Error(HeaderFault::Chunk),
                    2 => Body::Error(HeaderFault::Version { low: 1, high: 2 }),
                    _ => Body::Message(Chunks::default()),
                };
                let header = Header { xid, credits: step.into(), body };
                *sent.entry(xid).or_default() += 1;
                raw.send_message(&header, &words(&[xid, 1, 0, 0, 0, 0]));
            }
            9 => {
                let len = usize::from(input.byte());
                let bytes = input.take(len);
                let number = bytes.first_chunk().map_or(0, |word| u32::from_be_bytes(*word));
                *sent.entry(number).or_default() += 1;
                raw.send(bytes);
            }
            10 if !net.program.account().held.is_empty() => net.program.release(0),
            11 => net.pass(Duration::from_secs(u64::from(step >> 4))),
            12 => {
                net.steps(&mut raw, usize::from(step >> 4));
            }
            13 if step >> 4 == 0 => {
                for endpoint in net.network.endpoints(SERVER_HOST) {
                    net.network.lose(endpoint);
                }
            }
            _ => net.settle(&mut [&mut raw]),
        }
    }
    net.settle(&mut [&mut raw]);
    while !net.program.account().held.is_empty() {
        net.program.release(0);
    }
    net.settle(&mut [&mut raw]);
    let mut granted = 0;
    while let Some(message) = raw.inbox.pop_front() {
        // A callback of the program is a call (RFC 8167), and grants nothing.
        let is_call = message.body.get(4..8) == Some(&[0; 4]);
        if is_call {
            continue;
        }
        granted = message.header.credits;
        assert!(granted >= 1 && granted <= net.credits_max());
        let left = sent.get_mut(&message.header.xid).expect("an answer to nothing");
        *left = left.checked_sub(1).expect("two answers to one message");
        unanswered = unanswered.saturating_sub(1);
    }
    if raw.is_up() {
        // A call that is never answered uses a credit for ever.
        let usable = (granted as usize).saturating_sub(unanswered);
        assert!(net.posted_receives() >= usable, "more granted than posted");
    }
    raw.abort();
    net.settle(&mut [&mut raw]);
    net.assert_idle(64);
}
