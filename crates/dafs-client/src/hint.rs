//! Cache hints: what a program predicts of its use of a file (DAFS 13.4).
//!
//! Invariants
//! * A hint that rides on a transfer or an open never fails it, and costs no request of its own,
//!   except a pattern at open.

use crate::error::Result;
use crate::file::File;
use dafs_wire::dafs as wire;
use dafs_wire::dafs::{AccessPattern, HintWord, Reply, Request};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The hint word that rides on the transfers of an open.
#[derive(Debug, Clone, Default)]
pub(crate) struct RidingHint(Arc<AtomicU32>);

impl RidingHint {
    pub(crate) fn new(word: HintWord) -> Self {
        Self(Arc::new(AtomicU32::new(word.bits())))
    }

    pub(crate) fn get(&self) -> HintWord {
        HintWord::from_bits(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, word: HintWord) {
        self.0.store(word.bits(), Ordering::Relaxed);
    }
}

impl File {
    /// Gives the server a hint about a range of the file (a length of 0: to its end): a pattern for
    /// all of this client's opens of the file, and a prediction for the range. `Normal` says
    /// nothing about the pattern beside a prediction, and takes back an earlier pattern without
    /// one.
    ///
    /// [`HintWord::DONE`] makes the range leave the server's cache, [`HintWord::CACHED`] makes it
    /// leave first, [`HintWord::AGAIN`] takes that back.
    ///
    /// # Errors
    /// The server's answer: PREFETCH_NOT_SUPPORTED when the word asks for a prefetch and the export
    /// has no use for one, INVAL for a range that no file can have.
    pub fn cache_hint(
        &self,
        offset: u64,
        len: u32,
        access_pattern: AccessPattern,
        word: HintWord,
    ) -> Result<()> {
        let fh = *self.handle();
        let (count, cache_hint) = (len, word);
        let request =
            Request::CacheHint(wire::CacheHint { fh, offset, count, access_pattern, cache_hint });
        self.client().ask(&request, |reply| matches!(reply, Reply::CacheHint).then_some(()))
    }

    /// Asks the server to read a range ahead (a length of 0: to the end of the file). It reads a
    /// bounded part: our server 16 MiB of each range.
    ///
    /// # Errors
    /// As [`cache_hint`](Self::cache_hint).
    pub fn prefetch(&self, offset: u64, len: u32) -> Result<()> {
        self.cache_hint(offset, len, AccessPattern::Normal, HintWord::PREFETCH)
    }

    /// Sets the prediction that rides on each later read, write, append and batched transfer through
    /// this open file, about the bytes that it moves. A prefetch does not ride.
    pub fn set_hint(&self, word: HintWord) {
        self.opened().hint.set(word);
    }

    /// Returns the prediction that rides on transfers.
    pub fn hint(&self) -> HintWord {
        self.opened().hint.get()
    }
}
