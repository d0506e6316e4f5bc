//! The registered memory of one session.
//!
//! Invariant: memory outside all transfers holds [`POISON`]. Data that was never placed, or is
//! placed or fetched too late, therefore cannot look right.

use super::task::Slot;
use crate::limits::{LARGE_SLOT_BYTES, SLOT_BYTES, SLOTS};
use dafs_client::core::{Piece, RegisteredMemory};
use std::sync::Arc;

/// The fill byte of unused memory.
pub(super) const POISON: u8 = 0xdb;

pub(crate) struct Buffers {
    memory: Arc<RegisteredMemory>,
    free: [bool; SLOTS + 1],
}

/// Bytes of the whole memory.
pub(crate) const MEMORY_BYTES: usize = SLOTS * SLOT_BYTES + LARGE_SLOT_BYTES;

impl Buffers {
    pub(crate) fn new(memory: Arc<RegisteredMemory>) -> Self {
        memory.view().fill(POISON);
        Self { memory, free: [true; SLOTS + 1] }
    }

    /// Takes memory for `len` bytes; `None` when all of it is in use.
    pub(crate) fn take(&mut self, len: usize) -> Option<Slot> {
        let fits = |index: usize| if index < SLOTS { SLOT_BYTES } else { LARGE_SLOT_BYTES };
        let index = (0..=SLOTS).find(|&index| self.free[index] && len <= fits(index))?;
        self.free[index] = false;
        Some(Slot { index, offset: index * SLOT_BYTES })
    }

    /// The memory of a slot, as a transfer takes it.
    pub(crate) fn piece(&self, slot: Slot, len: usize) -> Option<Piece> {
        Piece::new(&self.memory, slot.offset, u32::try_from(len).ok()?)
    }

    pub(crate) fn give_back(&mut self, slot: Slot, len: usize) {
        self.free[slot.index] = true;
        if let Some(view) = self.memory.slice(slot.offset, len) {
            view.fill(POISON);
        }
    }
}
