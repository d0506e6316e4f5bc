//! The state that clients surely hold, as replies grant it, and a check that no two of them conflict.
//!
//! Invariants
//! * Only what is certain is in here: anything that may end a right takes it out when it is sent, and
//!   a right whose request was on its way meanwhile is not believed.

use dafs_testkit_rpc::nfs::{LEASE_NS, decode};
use dafs_wire::nfs4::*;
use dafs_wire::xdr::{Decode, Decoder};
use std::collections::{HashMap, HashSet};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Right {
    Open { access: u32, deny: u32 },
    Lock { first: u64, last: u64, writes: bool },
}

#[derive(Debug)]
struct Held {
    client: usize,
    handle: Vec<u8>,
    other: [u8; 12],
    right: Right,
}

#[derive(Default)]
pub(crate) struct Model {
    held: Vec<Held>,
    /// Counts what may have ended rights.
    epoch: u64,
    /// Sequences that were used: session, slot, number.
    used: HashSet<(SessionId, u32, u32)>,
    /// Requests that may be believed: client, epoch and time of sending.
    sent: HashMap<u32, (usize, u64, u64)>,
    contact_ns: [u64; 3],
}

fn conflict(one: Right, two: Right) -> bool {
    match (one, two) {
        (Right::Open { access, deny }, Right::Open { access: access2, deny: deny2 }) => {
            access & deny2 != 0 || access2 & deny != 0
        }
        (
            Right::Lock { first, last, writes },
            Right::Lock { first: first2, last: last2, writes: writes2 },
        ) => (writes || writes2) && first <= last2 && first2 <= last,
        _ => false,
    }
}

fn last_of(offset: u64, length: u64) -> u64 {
    if length == u64::MAX { u64::MAX } else { offset.saturating_add(length).saturating_sub(1) }
}

impl Model {
    /// Everybody's rights are in doubt.
    pub(crate) fn forget_all(&mut self) {
        self.held.clear();
        self.sent.clear();
        self.epoch += 1;
    }

    fn forget(&mut self, gone: impl Fn(&Held) -> bool) {
        self.held.retain(|held| !gone(held));
        self.epoch += 1;
    }

    /// A request goes out.
    pub(crate) fn sends(&mut self, client: usize, xid: u32, ops: &[Op<'_>], now_ns: u64) {
        for op in ops {
            match op {
                Op::Close(CloseArgs { stateid, .. })
                | Op::OpenDowngrade(OpenDowngradeArgs { stateid, .. })
                | Op::FreeStateid(FreeStateidArgs { stateid })
                | Op::Locku(LockuArgs { stateid, .. })
                    if *stateid != Stateid::CURRENT =>
                {
                    let other = stateid.other;
                    // Closing ends the locks under the open too, and those are not known.
                    self.forget(|held| {
                        held.other == other
                            || held.client == client && matches!(held.right, Right::Lock { .. })
                    });
                }
                Op::Close(_) | Op::OpenDowngrade(_) | Op::FreeStateid(_) | Op::Locku(_) => {
                    self.forget(|held| held.client == client);
                }
                Op::Lock(_) => {
                    // May change what the same owner holds.
                    let is_lock = |held: &Held| matches!(held.right, Right::Lock { .. });
                    self.forget(|held| held.client == client && is_lock(held));
                }
                Op::CreateSession(_) | Op::DestroyClientid(_) | Op::ExchangeId(_) => {
                    self.forget_all();
                }
                _ => {}
            }
        }
        let fresh = match ops.first() {
            Some(Op::Sequence(args)) => {
                self.used.insert((args.session_id, args.slot_id, args.sequence_id))
            }
            _ => false,
        };
        if fresh {
            self.sent.insert(xid, (client, self.epoch, now_ns));
        }
    }

    /// An answer comes in.
    pub(crate) fn hears(&mut self, xid: u32, args: &[u8], results: &[u8], now_ns: u64) {
        let Some((client, epoch, sent_ns)) = self.sent.remove(&xid) else { return };
        let results = decode(results);
        if results.first().is_none_or(|first| first.status != Status::Ok) {
            return;
        }
        self.contact_ns[client] = self.contact_ns[client].max(sent_ns);
        if epoch != self.epoch {
            return;
        }
        let mut d = Decoder::new(args);
        let Ok(head) = CompoundArgs::decode(&mut d) else { return };
        let mut current: Option<Vec<u8>> = None;
        let mut saved = None;
        let mut opened = None;
        for result in results.iter().filter(|result| result.status == Status::Ok) {
            let Ok(op) = Op::decode(&mut d, head.minor_version) else { return };
            match (op, &result.body) {
                (Op::Putfh(args), _) => current = Some(args.handle.to_vec()),
                (Op::Putrootfh(_) | Op::Lookup(_) | Op::Lookupp(_) | Op::Create(_), _) => {
                    (current, opened) = (None, None);
                }
                (Op::Savefh(_), _) => saved = current.clone(),
                (Op::Restorefh(_), _) => (current, opened) = (saved.clone(), None),
                (Op::Open(args), ResultBody::Open(result)) => {
                    current = None;
                    let none = result.flags.contains(OpenFlags::NO_OPEN_STATEID);
                    let (access, deny) = (args.share_access.access(), args.share_deny);
                    opened =
                        (!none).then_some((result.stateid.other, Right::Open { access, deny }));
                }
                (Op::Getfh(_), ResultBody::Getfh(result)) => {
                    current = Some(result.handle.to_vec());
                    if let Some((other, right)) = opened.take() {
                        self.gains(client, result.handle, other, right, now_ns);
                    }
                }
                (Op::Lock(args), ResultBody::Lock(result)) => {
                    if let Some(handle) = &current {
                        let (first, last) = (args.offset, last_of(args.offset, args.length));
                        let right = Right::Lock { first, last, writes: args.kind.is_write() };
                        self.gains(client, handle, result.stateid.other, right, now_ns);
                    }
                }
                // The ended state was not known at the time of the request.
                (Op::Close(_) | Op::Locku(_) | Op::OpenDowngrade(_) | Op::FreeStateid(_), _) => {
                    self.forget(|held| held.client == client);
                    return;
                }
                _ => {}
            }
        }
    }

    fn gains(&mut self, client: usize, handle: &[u8], other: [u8; 12], right: Right, now_ns: u64) {
        for held in self.held.iter().filter(|held| held.handle == handle && held.other != other) {
            let sure = now_ns <= self.contact_ns[held.client] + LEASE_NS;
            assert!(
                !sure || !conflict(held.right, right),
                "client {client} got {right:?}, client {} has {held:?}",
                held.client
            );
        }
        // A later lock of the same owner may have replaced this.
        if matches!(right, Right::Lock { .. }) {
            let same = |held: &Held| held.other == other && held.handle == handle;
            self.held.retain(|held| !same(held));
        }
        self.held.push(Held { client, handle: handle.to_vec(), other, right });
    }
}
