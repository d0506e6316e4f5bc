//! The slots of a fore channel: each request is executed once (RFC 8881 2.10.6.1).
//!
//! Invariants
//! * A request is executed only if its sequence id is the slot's next one. Then the slot is taken
//!   until the reply is known. An error here leaves the slot unchanged.
//! * A retry is recognised by sequence id, principal and digest. Another request with the same
//!   sequence id is a false retry, and does not get the cached reply.
//! * Principals are compared as a whole and not by a digest, so no user of a session gets the reply
//!   to another one.
//! * Slots above the limit are retired: their replies are dropped, but their sequence id is
//!   remembered. The client may or may not start over when the slot comes back.

use crate::limits::{SLOTS_MAX, SLOTS_MIN};
use crate::principal::Principal;
use dafs_wire::nfs4::Status;
use std::sync::Arc;

/// The slot arguments of a SEQUENCE.
#[derive(Debug, Clone)]
pub(crate) struct SlotRequest {
    pub(crate) slot: u32,
    pub(crate) sequence: u32,
    /// The highest slot in which the client has a request.
    pub(crate) highest: u32,
    /// The sender.
    pub(crate) who: Principal,
    /// The digest that distinguishes requests of one sender.
    pub(crate) digest: u64,
}

/// The verdict on a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Begin {
    /// It is executed, and the slot is taken.
    New,
    /// It was executed before. This is the reply.
    Replay(Arc<[u8]>),
    /// It was executed before, and its reply was not cached.
    Uncached,
}

#[derive(Debug, Default)]
enum Outcome {
    /// No request was executed here yet.
    #[default]
    Fresh,
    Running,
    Uncached,
    Cached(Arc<[u8]>),
}

#[derive(Debug, Default)]
struct Slot {
    sequence: u32,
    who: Principal,
    digest: u64,
    outcome: Outcome,
    /// It was above the limit for a while, so the client may start over with 1.
    retired: bool,
    /// Operations of its latest request with changes that the journal knows, as bits.
    noted: u64,
}

/// The slots of one session.
#[derive(Debug)]
pub(crate) struct SlotTable {
    /// Made at first use.
    slots: Vec<Slot>,
    /// The number of slots that are accepted.
    limit: u32,
    /// The largest limit.
    limit_max: u32,
    /// The number of slots that the client should use.
    target: u32,
    /// The number of slots in use now.
    running: u32,
    /// Bytes of cached replies.
    cached_bytes: usize,
}

impl SlotTable {
    pub(crate) fn new(limit: u32) -> Self {
        Self::up_to(limit, SLOTS_MAX)
    }

    /// Makes a table whose number of slots never grows.
    pub(crate) fn fixed(limit: u32) -> Self {
        Self::up_to(limit, limit)
    }

    fn up_to(limit: u32, limit_max: u32) -> Self {
        debug_assert!(limit > 0, "a session has a slot");
        Self { slots: Vec::new(), limit, limit_max, target: limit, running: 0, cached_bytes: 0 }
    }

    /// Returns the highest slot that is accepted (sr_highest_slotid).
    pub(crate) fn highest(&self) -> u32 {
        self.limit - 1
    }

    /// Returns the highest slot that the client should use (sr_target_highest_slotid).
    pub(crate) fn target_highest(&self) -> u32 {
        self.target - 1
    }

    /// Returns the bytes of cached replies.
    pub(crate) fn cached_bytes(&self) -> usize {
        self.cached_bytes
    }

    /// Returns the number of cached replies.
    pub(crate) fn cached(&self) -> usize {
        let is_cached = |slot: &&Slot| matches!(slot.outcome, Outcome::Cached(_));
        self.slots.iter().filter(is_cached).count()
    }

    /// Returns the number of slots in use now.
    pub(crate) fn running(&self) -> u32 {
        self.running
    }

    /// Takes a slot for a request, or finds the result of an earlier copy.
    ///
    /// # Errors
    /// `BadSlot`, `BadHighSlot`, `SeqMisordered`, `SeqFalseRetry`. `Delay` for a retry of a request
    /// that is still being executed.
    pub(crate) fn begin(&mut self, request: SlotRequest) -> Result<Begin, Status> {
        if request.slot >= self.limit {
            return Err(Status::BadSlot);
        }
        if request.highest >= self.limit {
            return Err(Status::BadHighSlot);
        }
        let index = request.slot as usize;
        let fresh = Slot::default();
        let slot = self.slots.get(index).unwrap_or(&fresh);
        let starts_over = slot.retired && request.sequence == 1;
        if request.sequence != slot.sequence.wrapping_add(1) && !starts_over {
            if request.sequence != slot.sequence {
                return Err(Status::SeqMisordered);
            }
            return match &slot.outcome {
                Outcome::Fresh => Err(Status::SeqMisordered),
                _ if slot.digest != request.digest || slot.who != request.who => {
                    Err(Status::SeqFalseRetry)
                }
                Outcome::Running => Err(Status::Delay),
                Outcome::Uncached => Ok(Begin::Uncached),
                Outcome::Cached(reply) => Ok(Begin::Replay(reply.clone())),
            };
        }
        if matches!(slot.outcome, Outcome::Running) {
            // The client has abandoned a request without its answer and goes on, which it must not.
            return Err(Status::SeqMisordered);
        }
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, Slot::default);
        }
        let slot = &mut self.slots[index];
        if let Outcome::Cached(reply) = std::mem::replace(&mut slot.outcome, Outcome::Running) {
            self.cached_bytes -= reply.len();
        }
        slot.sequence = request.sequence;
        slot.who = request.who;
        slot.digest = request.digest;
        slot.retired = false;
        self.running += 1;
        self.adapt(request.highest);
        Ok(Begin::New)
    }

    /// Releases a slot, with the reply to cache if there is one. Replies of other slots are dropped
    /// until no more than `bytes_max` are cached, beginning with the least used slots.
    pub(crate) fn finish(&mut self, slot: u32, reply: Option<Arc<[u8]>>, bytes_max: usize) {
        let index = slot as usize;
        let Some(slot) = self.slots.get_mut(index) else { return };
        debug_assert!(matches!(slot.outcome, Outcome::Running), "a slot is given back once");
        self.running -= 1;
        slot.outcome = match reply {
            Some(reply) => {
                self.cached_bytes += reply.len();
                Outcome::Cached(reply)
            }
            None => Outcome::Uncached,
        };
        let others = self.slots.iter_mut().enumerate().rev().filter(|(at, _)| *at != index);
        for (_, slot) in others {
            if self.cached_bytes <= bytes_max {
                break;
            }
            if let Outcome::Cached(reply) = &slot.outcome {
                self.cached_bytes -= reply.len();
                slot.outcome = Outcome::Uncached;
            }
        }
    }

    /// Notes that the journal knows the change of an operation of the request in a slot. With the
    /// `first` such operation, returns the noted operations of the request before, as bits.
    pub(crate) fn note(&mut self, slot: u32, op_index: u32, first: bool) -> u64 {
        let Some(slot) = self.slots.get_mut(slot as usize) else { return 0 };
        let earlier = if first { std::mem::take(&mut slot.noted) } else { 0 };
        slot.noted |= 1 << op_index;
        earlier
    }

    /// Asks the client to use so few slots that their cached replies take `bytes_max`. A client that
    /// has come down to that and caches longer replies is asked again.
    pub(crate) fn shrink_to_fit(&mut self, bytes_max: usize) {
        if self.cached_bytes <= bytes_max {
            return;
        }
        // INVARIANT: more bytes are cached than `bytes_max`, so that there are some.
        let fits = self.cached() as u64 * bytes_max as u64 / self.cached_bytes as u64;
        let fits = u32::try_from(fits).unwrap_or(self.limit);
        self.target = fits.max(SLOTS_MIN.min(self.limit)).min(self.target);
    }

    /// Adapts the number of slots to the demand. It grows when nearly all are in use, and shrinks
    /// when the client has come down to the target.
    fn adapt(&mut self, highest: u32) {
        if self.target < self.limit {
            let above = self.slots.iter().skip(self.target as usize);
            let busy = above.clone().any(|slot| matches!(slot.outcome, Outcome::Running));
            if highest < self.target && !busy {
                self.retire();
            }
        } else if self.running >= self.limit - self.limit / 4 && self.limit < self.limit_max {
            self.limit = self.limit.saturating_mul(2).min(self.limit_max);
            self.target = self.limit;
        }
    }

    fn retire(&mut self) {
        self.limit = self.target;
        for slot in self.slots.iter_mut().skip(self.limit as usize) {
            if let Outcome::Cached(reply) = std::mem::take(&mut slot.outcome) {
                self.cached_bytes -= reply.len();
            }
            slot.outcome = Outcome::Uncached;
            slot.retired = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(slot: u32, sequence: u32) -> SlotRequest {
        SlotRequest { slot, sequence, highest: slot, who: Principal::User(1), digest: 7 }
    }

    fn reply(byte: u8) -> Arc<[u8]> {
        Arc::from([byte; 3].as_slice())
    }

    #[test]
    fn a_request_runs_once_and_its_reply_is_kept() {
        let mut table = SlotTable::new(4);
        assert_eq!(table.begin(request(1, 1)), Ok(Begin::New));
        assert_eq!(table.begin(request(1, 1)), Err(Status::Delay));
        table.finish(1, Some(reply(9)), usize::MAX);
        assert_eq!(table.begin(request(1, 1)), Ok(Begin::Replay(reply(9))));
        assert_eq!(table.cached_bytes(), 3);
        assert_eq!(table.begin(request(1, 2)), Ok(Begin::New));
        assert_eq!(table.cached_bytes(), 0);
        table.finish(1, None, usize::MAX);
        assert_eq!(table.begin(request(1, 2)), Ok(Begin::Uncached));
    }

    #[test]
    fn another_request_under_the_same_sequence_is_a_false_retry() {
        let mut table = SlotTable::new(4);
        table.begin(request(0, 1)).unwrap();
        let other = SlotRequest { digest: 8, ..request(0, 1) };
        assert_eq!(table.begin(other.clone()), Err(Status::SeqFalseRetry));
        table.finish(0, Some(reply(1)), usize::MAX);
        assert_eq!(table.begin(other), Err(Status::SeqFalseRetry));
        assert_eq!(table.begin(request(0, 1)), Ok(Begin::Replay(reply(1))));
    }

    /// Another user of the session sends a request with the same digest, as a collision would have.
    #[test]
    fn no_user_gets_the_reply_to_another_one() {
        let [anna, bert] = [&b"anna"[..], b"bert"].map(|name| Principal::Gss(name.into()));
        let principals = [Principal::Nobody, Principal::User(0), Principal::User(1), anna, bert];
        for (slot, who) in (0u32..).zip(&principals) {
            let mut table = SlotTable::new(8);
            let by = |who: &Principal| SlotRequest { who: who.clone(), ..request(slot, 1) };
            assert_eq!(table.begin(by(who)), Ok(Begin::New));
            for other in principals.iter().filter(|other| *other != who) {
                assert_eq!(table.begin(by(other)), Err(Status::SeqFalseRetry), "{who:?}");
            }
            table.finish(slot, Some(reply(3)), usize::MAX);
            for other in principals.iter().filter(|other| *other != who) {
                assert_eq!(table.begin(by(other)), Err(Status::SeqFalseRetry), "{who:?}");
            }
            assert_eq!(table.begin(by(who)), Ok(Begin::Replay(reply(3))));
        }
    }

    #[test]
    fn sequences_and_slots_out_of_range_leave_the_slot_alone() {
        let mut table = SlotTable::new(4);
        assert_eq!(table.begin(request(0, 0)), Err(Status::SeqMisordered));
        assert_eq!(table.begin(request(0, 2)), Err(Status::SeqMisordered));
        assert_eq!(table.begin(request(4, 1)), Err(Status::BadSlot));
        let high = SlotRequest { highest: 4, ..request(0, 1) };
        assert_eq!(table.begin(high), Err(Status::BadHighSlot));
        assert_eq!(table.begin(request(u32::MAX, 1)), Err(Status::BadSlot));
        assert_eq!(table.running(), 0);
        assert_eq!(table.begin(request(0, 1)), Ok(Begin::New));
        // The next request before the answer is misordered, not a second request.
        assert_eq!(table.begin(request(0, 2)), Err(Status::SeqMisordered));
    }

    #[test]
    fn sequences_wrap() {
        let mut table = SlotTable::new(1);
        table.begin(request(0, 1)).unwrap();
        table.finish(0, None, usize::MAX);
        table.slots[0].sequence = u32::MAX;
        assert_eq!(table.begin(request(0, 0)), Ok(Begin::New));
    }

    #[test]
    fn a_busy_session_grows_and_shrinks_when_the_client_has_come_down() {
        let mut table = SlotTable::new(8);
        for slot in 0..6 {
            table.begin(request(slot, 1)).unwrap();
        }
        assert_eq!(table.highest(), 15);
        table.begin(request(15, 1)).unwrap();
        table.target = 8;
        assert_eq!((table.highest(), table.target_highest()), (15, 7));
        table.finish(0, None, usize::MAX);
        // Slot 15 is still in use, so no slot is retired.
        table.begin(SlotRequest { highest: 7, ..request(0, 2) }).unwrap();
        assert_eq!(table.highest(), 15);
        table.finish(15, Some(reply(1)), usize::MAX);
        table.finish(0, None, usize::MAX);
        table.begin(SlotRequest { highest: 7, ..request(0, 3) }).unwrap();
        assert_eq!((table.highest(), table.cached_bytes()), (7, 0));
        assert_eq!(table.begin(request(15, 2)), Err(Status::BadSlot));
    }

    #[test]
    fn a_client_is_asked_for_the_slots_whose_replies_fit() {
        let mut table = SlotTable::new(16);
        for slot in 0..10 {
            table.begin(request(slot, 1)).unwrap();
            table.finish(slot, Some(reply(1)), usize::MAX);
        }
        // Ten replies of three bytes are cached.
        table.shrink_to_fit(30);
        assert_eq!(table.target_highest(), 15);
        table.shrink_to_fit(20);
        assert_eq!(table.target_highest(), 5);
        table.shrink_to_fit(25);
        assert_eq!(table.target_highest(), 5, "the client has not come down yet");
        table.shrink_to_fit(0);
        assert_eq!(table.target_highest(), SLOTS_MIN - 1, "never below the least");
    }

    #[test]
    fn a_slot_that_comes_back_goes_on_or_starts_over() {
        for sequence in [1, 6] {
            let mut table = SlotTable::new(8);
            for number in 1..=5 {
                table.begin(request(7, number)).unwrap();
                table.finish(7, None, usize::MAX);
            }
            table.target = 4;
            table.begin(request(0, 1)).unwrap();
            table.finish(0, None, usize::MAX);
            assert_eq!(table.begin(request(7, sequence)), Err(Status::BadSlot));
            (table.limit, table.target) = (8, 8);
            assert_eq!(table.begin(request(7, sequence)), Ok(Begin::New));
            assert_eq!(table.begin(request(7, 3)), Err(Status::SeqMisordered));
        }
    }

    #[test]
    fn a_fixed_number_of_slots_does_not_grow() {
        let mut table = SlotTable::fixed(4);
        for slot in 0..4 {
            table.begin(request(slot, 1)).unwrap();
        }
        assert_eq!(table.highest(), 3);
    }

    #[test]
    fn the_first_note_of_a_request_gives_those_of_the_one_before() {
        let mut table = SlotTable::new(4);
        table.begin(request(2, 1)).unwrap();
        assert_eq!(table.note(2, 1, true), 0);
        assert_eq!(table.note(2, 3, false), 0);
        table.finish(2, None, usize::MAX);
        table.begin(request(2, 2)).unwrap();
        assert_eq!(table.note(2, 2, true), 0b1010);
        assert_eq!(table.note(2, 2, true), 0b100);
    }

    #[test]
    fn unused_slots_cost_nothing() {
        let mut table = SlotTable::new(128);
        table.begin(request(0, 1)).unwrap();
        assert_eq!(table.slots.len(), 1);
    }

    #[test]
    fn a_session_over_its_share_forgets_replies_of_other_slots() {
        let mut table = SlotTable::new(4);
        for slot in 0..3 {
            table.begin(request(slot, 1)).unwrap();
            table.finish(slot, Some(reply(9)), usize::MAX);
        }
        table.begin(request(3, 1)).unwrap();
        table.begin(request(1, 2)).unwrap();
        table.finish(1, Some(reply(8)), 6);
        // Slots in use and the one that has just ended are left alone.
        assert_eq!(table.cached_bytes(), 6);
        assert_eq!(table.begin(request(3, 1)), Err(Status::Delay));
        assert_eq!(table.begin(request(2, 1)), Ok(Begin::Uncached));
        assert_eq!(table.begin(request(1, 2)), Ok(Begin::Replay(reply(8))));
        assert_eq!(table.begin(request(0, 1)), Ok(Begin::Replay(reply(9))));
        table.finish(3, Some(reply(7)), 0);
        assert_eq!(table.cached_bytes(), 3);
        assert_eq!(table.begin(request(3, 1)), Ok(Begin::Replay(reply(7))));
    }
}
