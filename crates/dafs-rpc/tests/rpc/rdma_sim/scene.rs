//! The common beginnings and ends of tests with raw clients.

use super::net::Net;
use super::program::procedures;
use super::raw::Raw;
use crate::peer::{self, Message, words};
use dafs_rpc::AcceptStatus;
use dafs_wire::rpcrdma::{Chunk, Chunks, HeaderFault, PrivateData, ReadSegment};
use std::ops::Range;

pub(crate) const HOST: u32 = 7;
/// Bytes of an RPC call header with an empty credential.
pub(crate) const CALL_BYTES: u32 = 40;
/// Position of the data of `SINK`: after the header, a number and the length.
pub(crate) const DATA_AT: u32 = CALL_BYTES + 8;

pub(crate) fn told(remote_invalidation: bool) -> [u8; PrivateData::BYTES] {
    PrivateData { remote_invalidation, send_bytes: 4096, receive_bytes: 4096 }.encode()
}

pub(crate) fn world() -> (Net, Raw) {
    let mut net = Net::calm(1);
    let raw = Raw::connect(&mut net, HOST, &told(false));
    (net, raw)
}

/// Calls `SINK` with its data in these segments.
pub(crate) fn sink(raw: &mut Raw, xid: u32, procedure: u32, len: u32, reads: &[ReadSegment]) {
    raw.call(xid, procedure, peer::reads(reads), &words(&[xid, len, 99]));
}

/// Calls `SOURCE` with these write chunks.
pub(crate) fn source(raw: &mut Raw, xid: u32, len: u32, writes: &[Chunk]) {
    raw.call(xid, procedures::SOURCE, peer::writes(writes), &words(&[xid, len]));
}

/// The next message once the network is at rest.
pub(crate) fn heard(net: &mut Net, raw: &mut Raw) -> Message {
    net.settle(&mut [raw]);
    raw.heard()
}

/// The seeds of the tests with noise.
pub(crate) fn noise_seeds() -> Range<u64> {
    match std::env::var("DAFS_RDMA_NOISE_SEED") {
        Ok(seed) => {
            let seed = seed.parse().unwrap();
            seed..seed + 1
        }
        Err(_) => 0..300,
    }
}

/// Checks that the connection still works.
pub(crate) fn still_works(net: &mut Net, raw: &mut Raw) {
    raw.call(4_000_000, procedures::NULL, Chunks::default(), &[]);
    let answer = heard(net, raw);
    assert_eq!(answer.header.xid, 4_000_000);
    assert_eq!(answer.reply(), (AcceptStatus::Success, Vec::new()));
    assert!(raw.inbox.is_empty() && raw.is_up());
}

/// Disconnects the peer if it is still connected; checks that no resource of it is left and that
/// the server serves others.
pub(crate) fn nothing_is_left(net: &mut Net, mut raw: Raw) {
    raw.abort();
    net.settle(&mut [&mut raw]);
    assert!(raw.ending().is_some());
    let mut other = Raw::connect(net, HOST + 1, &told(false));
    still_works(net, &mut other);
    other.abort();
    net.settle(&mut [&mut other, &mut raw]);
    net.assert_idle(32);
}

/// Checks that the server reports a fault and the connection continues.
pub(crate) fn refused(net: &mut Net, raw: &mut Raw, xid: u32, fault: HeaderFault) {
    let answer = heard(net, raw);
    assert_eq!((answer.header.xid, answer.fault()), (xid, Some(fault)));
    still_works(net, raw);
}

/// Checks that the connection has ended without a message.
pub(crate) fn ended(net: &mut Net, mut raw: Raw) {
    net.settle(&mut [&mut raw]);
    assert!(raw.ending().is_some(), "the connection lives: {:?}", raw.inbox);
    assert!(raw.inbox.is_empty(), "{:?}", raw.inbox);
    nothing_is_left(net, raw);
}
