//! The slots of a session as its client sees them (RFC 8881 2.10.6).
//!
//! Invariants
//! * A slot has at most one request at a time, and its sequence number grows by one per request
//!   that the server saw.
//! * The lowest free slot is used first, and none above the server's target but for callers that would wait
//!   for each other.

use crate::limits::SLOTS_MAX;
use dafs_wire::nfs4::{SequenceArgs, SequenceResult, SessionId};

/// The slots of one session.
#[derive(Debug)]
pub struct Slots {
    session_id: SessionId,
    sequences: Vec<u32>,
    free: Vec<u64>,
    target: u32,
}

impl Slots {
    /// `count` slots that were never used.
    pub fn new(session_id: SessionId, count: u32) -> Self {
        let count = count.clamp(1, SLOTS_MAX);
        let words = count.div_ceil(64);
        let mut free = vec![u64::MAX; words as usize];
        if !count.is_multiple_of(64) {
            free[words as usize - 1] = (1 << (count % 64)) - 1;
        }
        Self { session_id, sequences: vec![0; count as usize], free, target: count - 1 }
    }

    /// The number of slots.
    pub fn count(&self) -> u32 {
        self.sequences.len() as u32
    }

    /// Takes the lowest free slot for a request, and returns the arguments of its SEQUENCE.
    pub fn take(&mut self, cache_this: bool) -> Option<SequenceArgs> {
        let (word, bits) = self.free.iter_mut().enumerate().find(|(_, bits)| **bits != 0)?;
        let slot_id = word as u32 * 64 + bits.trailing_zeros();
        if slot_id > self.target {
            return None;
        }
        *bits &= *bits - 1;
        let sequence = &mut self.sequences[slot_id as usize];
        *sequence = sequence.wrapping_add(1);
        let sequence_id = *sequence;
        let highest_slot_id = self.highest_used().unwrap_or(slot_id);
        Some(SequenceArgs {
            session_id: self.session_id,
            sequence_id,
            slot_id,
            highest_slot_id,
            cache_this,
        })
    }

    /// As [`take`](Self::take), if less than half of the slots are in use.
    pub fn take_spare(&mut self, cache_this: bool) -> Option<SequenceArgs> {
        let free: u32 = self.free.iter().map(|bits| bits.count_ones()).sum();
        let used = self.count() - free;
        if used >= self.target.div_ceil(2) { None } else { self.take(cache_this) }
    }

    /// As [`take`](Self::take), also above the server's target, which is only a wish (RFC 8881 18.46.3).
    pub fn take_any(&mut self, cache_this: bool) -> Option<SequenceArgs> {
        let highest = self.count() - 1;
        let target = std::mem::replace(&mut self.target, highest);
        let taken = self.take(cache_this);
        self.target = target;
        taken
    }

    /// Ends the request of a slot whose SEQUENCE succeeded.
    pub fn done(&mut self, result: &SequenceResult) {
        self.target = result.target_highest_slot_id.min(self.count() - 1);
        self.release(result.slot_id);
    }

    /// Ends the request of a slot whose SEQUENCE failed, so that the server did not count it.
    pub fn not_counted(&mut self, slot_id: u32) {
        if let Some(sequence) = self.sequences.get_mut(slot_id as usize) {
            *sequence = sequence.wrapping_sub(1);
        }
        self.release(slot_id);
    }

    /// Ends the request of a slot that the server counted without saying more.
    pub fn counted(&mut self, slot_id: u32) {
        self.release(slot_id);
    }

    /// True when no slot has a request.
    pub fn is_idle(&self) -> bool {
        self.highest_used().is_none()
    }

    fn release(&mut self, slot_id: u32) {
        if slot_id < self.count() {
            self.free[slot_id as usize / 64] |= 1 << (slot_id % 64);
        }
    }

    fn highest_used(&self) -> Option<u32> {
        let count = self.count();
        self.free.iter().enumerate().rev().find_map(|(word, bits)| {
            let first = word as u32 * 64;
            let width = (count - first).min(64);
            let used = !bits & (u64::MAX >> (64 - width));
            (used != 0).then(|| first + 63 - used.leading_zeros())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_wire::nfs4::SequenceStatus;

    #[test]
    fn a_spare_slot_is_one_of_the_first_half() {
        for (count, spare) in [(1, 0), (2, 1), (3, 1), (8, 4), (64, 32), (65, 32), (130, 65)] {
            let mut slots = Slots::new(SessionId::default(), count);
            let taken = (0..count).map_while(|_| slots.take_spare(true)).count();
            assert_eq!(taken, spare, "of {count}");
            assert_eq!(slots.take(true).is_some(), count > spare as u32);
        }
    }

    #[test]
    fn any_slot_may_be_above_the_target() {
        let mut slots = Slots::new(SessionId::default(), 8);
        let first = slots.take(true).unwrap();
        slots.done(&done(&first, 0));
        assert!(slots.take(true).is_some() && slots.take(true).is_none());
        assert_eq!(slots.take_any(true).unwrap().slot_id, 1);
        assert!(slots.take(true).is_none(), "the target holds for others");
    }

    fn done(args: &SequenceArgs, target: u32) -> SequenceResult {
        SequenceResult {
            session_id: args.session_id,
            sequence_id: args.sequence_id,
            slot_id: args.slot_id,
            highest_slot_id: target,
            target_highest_slot_id: target,
            status: SequenceStatus::empty(),
        }
    }

    #[test]
    fn the_lowest_free_slot_comes_first() {
        let mut slots = Slots::new(SessionId::default(), 70);
        let taken: Vec<_> = (0..70).map(|_| slots.take(false).unwrap()).collect();
        assert!(slots.take(false).is_none());
        for (at, args) in taken.iter().enumerate() {
            assert_eq!((args.slot_id, args.sequence_id), (at as u32, 1));
            assert_eq!(args.highest_slot_id, at as u32);
        }
        slots.done(&done(&taken[65], 69));
        slots.done(&done(&taken[3], 69));
        let again = slots.take(true).unwrap();
        assert_eq!((again.slot_id, again.sequence_id, again.highest_slot_id), (3, 2, 69));
        assert_eq!(slots.take(true).unwrap().slot_id, 65);
    }

    #[test]
    fn the_server_sets_how_many_are_used() {
        let mut slots = Slots::new(SessionId::default(), 8);
        let first = slots.take(false).unwrap();
        slots.done(&done(&first, 1));
        assert_eq!(slots.take(false).unwrap().slot_id, 0);
        let second = slots.take(false).unwrap();
        assert!(slots.take(false).is_none());
        slots.done(&done(&second, 100));
        let ids: Vec<_> =
            std::iter::from_fn(|| slots.take(false)).map(|args| args.slot_id).collect();
        assert_eq!(ids, [1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn a_request_that_the_server_did_not_count_is_numbered_again() {
        let mut slots = Slots::new(SessionId::default(), 1);
        let first = slots.take(false).unwrap();
        slots.not_counted(first.slot_id);
        assert!(slots.is_idle());
        assert_eq!(slots.take(false).unwrap().sequence_id, first.sequence_id);
        assert!(!slots.is_idle());
    }
}
