//! The data of one client: slots of a file that no other client writes.
//!
//! Invariants
//! * At most one write of a slot is outstanding. A lost write may still take effect, so its slot is
//!   not used again.

use crate::pattern::WriteId;
use dafs_wire::dafs::{Stability, Verifier};

/// Slots of a client's file.
pub(crate) const SLOTS: usize = 8;

/// Bytes of a slot: less than a page, so that slots share pages.
pub(crate) const SLOT_BYTES: usize = 1024;

/// Bytes that a device writes atomically.
const SECTOR_BYTES: usize = 512;

#[derive(Debug, Default)]
struct Slot {
    /// The write that can no longer be lost; none: zeros.
    stable: Option<WriteId>,
    /// Writes after that, in order.
    later: Vec<WriteId>,
    /// The number of power failures when the latest write was asked for.
    cuts_at_begin: u32,
    /// The latest answered write, its verifier, and the number of power failures when it was asked
    /// for. The answer may arrive after a failure that lost the data.
    answered: Option<(WriteId, Verifier, u32)>,
    busy: bool,
}

/// The data of one client.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: [Slot; SLOTS],
}

impl Slots {
    /// The offset of a slot in the file.
    pub(crate) fn offset(slot: usize) -> u64 {
        (slot * SLOT_BYTES) as u64
    }

    /// Takes a slot. Returns false if it is busy.
    pub(crate) fn begin(&mut self, slot: usize) -> bool {
        !std::mem::replace(&mut self.slots[slot].busy, true)
    }

    /// Frees a slot.
    pub(crate) fn end(&mut self, slot: usize) {
        self.slots[slot].busy = false;
    }

    pub(crate) fn begin_write(&mut self, slot: usize, write: WriteId, cuts: u32) {
        self.slots[slot].later.push(write);
        self.slots[slot].cuts_at_begin = cuts;
    }

    /// Cancels a write before it begins; it never takes effect.
    pub(crate) fn taken_back(&mut self, slot: usize, write: WriteId) {
        self.slots[slot].later.retain(|later| *later != write);
    }

    /// A write was answered.
    pub(crate) fn written(
        &mut self,
        slot: usize,
        write: WriteId,
        committed: Stability,
        verifier: Verifier,
    ) {
        let slot = &mut self.slots[slot];
        slot.answered = Some((write, verifier, slot.cuts_at_begin));
        if committed != Stability::Unstable {
            slot.stable = Some(write);
            slot.later.clear();
        }
    }

    /// The writes that a commit beginning now will make stable.
    pub(crate) fn uncommitted(&self) -> Vec<(usize, WriteId, Verifier)> {
        let slots = self.slots.iter().enumerate();
        slots
            .filter(|(_, slot)| !slot.later.is_empty())
            .filter_map(|(number, slot)| {
                slot.answered.map(|(write, verifier, _)| (number, write, verifier))
            })
            .collect()
    }

    /// A commit was answered with a verifier; `covered` are the writes since before it.
    pub(crate) fn committed(&mut self, covered: &[(usize, WriteId, Verifier)], answer: Verifier) {
        for (slot, write, verifier) in covered {
            let slot = &mut self.slots[*slot];
            if *verifier != answer {
                continue;
            }
            if let Some(at) = slot.later.iter().position(|later| later == write) {
                slot.stable = Some(*write);
                slot.later.drain(..=at);
            }
        }
    }

    /// Compares the content of a slot with the possible ones.
    pub(crate) fn check(&self, number: usize, bytes: &[u8], cuts: u32) -> Result<(), String> {
        let slot = &self.slots[number];
        let whole = slot.answered.filter(|(_, _, then)| *then == cuts).map(|(write, ..)| write);
        // No power failure since the request: the slot holds that write or a later one.
        let possible: Vec<Option<WriteId>> = match whole {
            Some(write) => {
                let at = slot.later.iter().position(|later| *later == write);
                let after = slot.later.iter().skip(at.map_or(0, |at| at + 1)).copied();
                std::iter::once(write).chain(after).map(Some).collect()
            }
            None => {
                let later = slot.later.iter().map(|write| Some(*write));
                std::iter::once(slot.stable).chain(later).collect()
            }
        };
        for (index, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
            let offset = Self::offset(number) + (index * SECTOR_BYTES) as u64;
            let fits = |write: &Option<WriteId>| match write {
                Some(write) => write.matches(offset, sector),
                None => sector.iter().all(|byte| *byte == 0),
            };
            if !possible.iter().any(fits) {
                return Err(format!(
                    "slot {number} sector {index} is none of {possible:?}: {:x?}; {slot:?}",
                    &sector[..8.min(sector.len())]
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Verifier = Verifier([1; 8]);
    const TWO: Verifier = Verifier([2; 8]);

    fn bytes(write: u64) -> Vec<u8> {
        WriteId(write).bytes(0, SLOT_BYTES)
    }

    #[test]
    fn an_unstable_write_may_go_with_the_power_only() {
        let mut slots = Slots::default();
        slots.begin_write(0, WriteId(1), 0);
        slots.written(0, WriteId(1), Stability::FileSync, ONE);
        slots.begin_write(0, WriteId(2), 0);
        slots.written(0, WriteId(2), Stability::Unstable, ONE);
        slots.check(0, &bytes(2), 0).unwrap();
        assert!(slots.check(0, &bytes(1), 0).is_err());
        slots.check(0, &bytes(1), 1).unwrap();
        slots.check(0, &[&bytes(1)[..512], &bytes(2)[512..]].concat(), 1).unwrap();
        assert!(slots.check(0, &[0; SLOT_BYTES], 1).is_err());
        let covered = slots.uncommitted();
        slots.committed(&covered, TWO);
        slots.check(0, &bytes(1), 1).unwrap();
        slots.committed(&covered, ONE);
        assert!(slots.check(0, &bytes(1), 1).is_err());
        slots.check(0, &bytes(2), 1).unwrap();
    }
    #[test]
    fn an_answer_that_comes_after_a_power_failure_proves_nothing() {
        let mut slots = Slots::default();
        slots.begin_write(0, WriteId(1), 0);
        slots.written(0, WriteId(1), Stability::Unstable, ONE);
        slots.check(0, &[0; SLOT_BYTES], 1).unwrap();
        slots.check(0, &bytes(1), 1).unwrap();
        assert!(slots.check(0, &[0; SLOT_BYTES], 0).is_err());
    }
}
