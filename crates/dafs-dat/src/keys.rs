//! Unpredictable keys for registered memory.

use std::io;

const BATCH: usize = 64;

/// Keys available for one registration.
const TRIES: usize = 8;

/// Random 32-bit numbers from the kernel, fetched in batches. A registration must not cost a system
/// call each time, and a peer must not be able to predict a key.
#[derive(Debug)]
pub(crate) struct KeySource {
    batch: [u8; BATCH * 4],
    used: usize,
}

impl KeySource {
    pub(crate) fn new() -> Self {
        Self { batch: [0; BATCH * 4], used: BATCH }
    }

    /// Ensures that at least `count` numbers are available without a system call.
    pub(crate) fn refill(&mut self, count: usize) -> io::Result<()> {
        debug_assert!(count <= BATCH);
        if BATCH - self.used < count {
            getrandom::fill(&mut self.batch).map_err(io::Error::other)?;
            self.used = 0;
        }
        Ok(())
    }

    /// The next number; `None` when the batch is used up.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let at = self.used * 4;
        let bytes = self.batch.get_mut(at..at + 4)?;
        self.used += 1;
        let number = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        // A used key is not kept where a stray read could find it.
        bytes.fill(0);
        Some(number)
    }

    /// Keys for one registration.
    ///
    /// # Errors
    /// When the kernel has no random numbers.
    pub(crate) fn for_registration(&mut self) -> io::Result<impl FnMut() -> u32> {
        self.refill(TRIES)?;
        let mut last = 0u32;
        // One try in some thousand finds its key taken, so the batch never runs out here; a step
        // from the last key merely keeps the search finite.
        Ok(move || {
            last = self.take().unwrap_or_else(|| last.wrapping_add(1));
            last
        })
    }
}
