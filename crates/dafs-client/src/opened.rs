//! The part of an open file that transfers use. It may outlive the file under operations that were
//! not waited for before the close.

use crate::attributes::{FileHandle, Stability};
use crate::cache::Effect;
use crate::client::Client;
use crate::core::{ReadCall, WriteCall};
use crate::error::Result;
use crate::hint::RidingHint;
use crate::layouts::LayoutUse;
use crate::optimistic::Optimistic;
use crate::span::Span;
use crate::uncommitted::Uncommitted;
use dafs_wire::dafs::{ShareAccess, StateId};
use std::sync::Arc;

/// An open of a file.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) client: Client,
    pub(crate) handle: FileHandle,
    pub(crate) state_id: StateId,
    pub(crate) access: ShareAccess,
    pub(crate) writes: Arc<Uncommitted>,
    /// Its use of the file's layout.
    pub(crate) layout: LayoutUse,
    /// The hint that rides on its transfers.
    pub(crate) hint: RidingHint,
    /// Its blocks in memory of the server.
    pub(crate) optimistic: Optimistic,
}

impl Opened {
    /// True when it was opened for writing.
    pub(crate) fn may_write(&self) -> bool {
        self.access != ShareAccess::Read
    }

    /// The record to update when a write with this stability is answered, if it is unstable.
    pub(crate) fn watch(&self, stability: Stability) -> Option<Arc<Uncommitted>> {
        (stability == Stability::Unstable).then(|| self.writes.clone())
    }

    pub(crate) fn read_call(&self, span: &Span<'_>) -> Result<ReadCall> {
        let shared = self.client.shared();
        if let Some(layouts) = self.client.layouts()
            && layouts.are_used()
        {
            shared.check_process()?;
            layouts.before(shared, &Effect::Read(self.handle));
        }
        let into = span.piece(shared, self.client.read_bytes_max())?;
        let (handle, state_id, hint) = (self.handle, self.state_id, self.hint.get());
        Ok(ReadCall { handle, state_id, offset: span.offset, into, hint })
    }

    pub(crate) fn write_call(&self, span: &Span<'_>, stability: Stability) -> Result<WriteCall> {
        let from = span.piece(self.client.shared(), self.client.write_bytes_max())?;
        let (handle, state_id, hint) = (self.handle, self.state_id, self.hint.get());
        let offset = span.offset;
        Ok(WriteCall { handle, state_id, offset, stability, from, delegation: None, hint })
    }
}
