//! Advice of clients about their use of files: the cache hints of DAFS (DAFS 13.4) and IO_ADVISE of
//! NFSv4.2 (RFC 7862 15.5).
//!
//! The policy is one for all protocols. Data that a client will use again stays in the server's
//! cache like any other. Data that it keeps itself, or is done with, leaves the cache first:
//! certainly unwanted data at once, other unwanted data beyond a bound, so that other clients still
//! find it for a while.
//!
//! Invariants
//! * Advice needs an open of the file, or the right to open it.
//! * Advice changes no content, and no state but the cache's.

use crate::error::ServiceError;
use crate::handle::Handle;
use crate::state::StateRef;
use crate::{Caller, Result, Service};
use dafs_store::{Advised, CacheAdvice, OpenFile, OpenMode, StoreError};
use std::sync::Arc;

/// Returns the advice for data that a client expects to use again with this likelihood, from 1
/// (surely not) by 4 (it does not know) to 7 (surely) (draft 6.5.6). `None` where nothing is to be
/// done.
pub fn advice_by_likelihood(weight: u32) -> Option<CacheAdvice> {
    match weight {
        1 => Some(CacheAdvice::DontNeed),
        2..=3 => Some(CacheAdvice::LeaveFirst),
        5..=7 => Some(CacheAdvice::Keep),
        _ => None,
    }
}

/// The opens of a file that a client's advice is for.
pub struct AdvisedFile {
    /// At least one. The first can be read, if any can.
    opens: Vec<Arc<dyn OpenFile>>,
}

impl AdvisedFile {
    /// Gives advice about `len` bytes from `offset` (0: to the end of the file). A pattern is for all
    /// these opens. May wait.
    ///
    /// # Errors
    /// The store's.
    pub fn advise(&self, offset: u64, len: u64, advice: CacheAdvice) -> Result<Advised> {
        let count = if advice.is_pattern() { self.opens.len() } else { 1 };
        let mut advised = Advised::Ignored;
        for file in self.opens.iter().take(count) {
            advised = file.advise(offset, len, advice)?;
        }
        Ok(advised)
    }
}

impl Service {
    /// Returns the file of a handle for advice. `state` names the open that it is for. A special one
    /// stands for the client's opens of the file, or else for a new one with the rights that the
    /// caller has. May wait.
    ///
    /// # Errors
    /// The store's, and those of the state-id.
    pub fn advised_file(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: StateRef,
    ) -> Result<AdvisedFile> {
        let namespace = self.namespace();
        let export = namespace.export(handle)?;
        if !state.is_special() {
            let none = OpenMode { read: false, write: false };
            let file = self.opens.io_file(caller, handle, state, none)?;
            return Ok(AdvisedFile { opens: vec![file] });
        }
        let opens = self.state.lock().advised(&export.key(handle), caller.client);
        if !opens.is_empty() {
            return Ok(AdvisedFile { opens });
        }
        let cred = export.map_cred(caller.cred);
        for mode in [OpenMode { read: true, write: false }, OpenMode { read: false, write: true }] {
            match export.store().open(&cred, &handle.file, mode) {
                Err(StoreError::Access | StoreError::ReadOnly) => {}
                file => return Ok(AdvisedFile { opens: vec![file?] }),
            }
        }
        Err(ServiceError::Store(StoreError::Access))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlikely_data_leaves_and_likely_data_stays() {
        let advice = (0..=8).map(advice_by_likelihood).collect::<Vec<_>>();
        let (now, first, stay) =
            (Some(CacheAdvice::DontNeed), Some(CacheAdvice::LeaveFirst), Some(CacheAdvice::Keep));
        assert_eq!(advice, [None, now, first, first, None, stay, stay, stay, None]);
    }
}
