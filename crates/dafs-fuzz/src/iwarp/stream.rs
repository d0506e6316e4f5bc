//! The stream of a peer, as an input describes it: a list of steps, each raw bytes or a segment
//! that is well-formed but for what the input chooses, so that deep states are reached without
//! guessing keys, addresses and checksums.

use crate::input::Input;
use dafs_wire::iwarp::crc::Crc32c;
use dafs_wire::iwarp::ddp::{Header, Place, Queue};
use dafs_wire::iwarp::mpa;
use dafs_wire::iwarp::rdmap::{Opcode, ReadRequest};

/// About the longest stream, in bytes.
const STREAM_BYTES_MAX: usize = 200_000;

/// Registered memory that the peer tries to reach: the key, and the address offsets count from.
#[derive(Clone, Copy)]
pub struct Memory {
    pub key: u32,
    pub base: u64,
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

/// The stream that the rest of the input describes.
pub fn stream(input: &mut Input<'_>, crc: bool, memory: &[Memory]) -> Vec<u8> {
    let mut out = Vec::new();
    let (mut send_msn, mut read_msn) = (1u32, 1u32);
    while !input.0.is_empty() && out.len() < STREAM_BYTES_MAX {
        let step = input.byte();
        let last = step & 0x80 != 0;
        // Mostly the right thing, sometimes the input's.
        let twist = step & 0x40 != 0;
        let Memory { key, base } = memory[usize::from(step >> 3 & 0x07) % memory.len()];
        let tagged = |input: &mut Input<'_>, opcode, stag, base: u64| {
            let offset = base.wrapping_add_signed(i64::from(input.short() as i16));
            let len = input.short() % 20_000;
            let place = Place::Tagged { stag, offset };
            (Header { opcode, last, place, payload_bytes: len }, vec![step; usize::from(len)])
        };
        match step & 0x07 {
            0 => {
                let len = usize::from(input.byte());
                out.extend(input.take(len));
            }
            1 | 2 => {
                let (header, payload) = tagged(input, Opcode::Write, key, base);
                fpdu(&mut out, header, &payload, crc);
            }
            3 => {
                let stag = u32::from(input.byte() % 8);
                let (header, payload) = tagged(input, Opcode::ReadResponse, stag, 0);
                fpdu(&mut out, header, &payload, crc);
            }
            kind @ (4 | 5) => {
                let len = input.short() % 20_000;
                let offset = if twist { u32::from(input.short()) } else { 0 };
                let opcode = match (kind, step & 0x20) {
                    (4, 0) => Opcode::Send,
                    (4, _) => Opcode::SendSolicited,
                    (_, 0) => Opcode::SendInvalidate,
                    _ => Opcode::SendSolicitedInvalidate,
                };
                let (queue, invalidate_stag) = (Queue::Send, if kind == 4 { 0 } else { key });
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
