//! The part of an open file that transfers use. It may outlive the file under operations that were
//! not waited for before the close.

use crate::attributes::{FileHandle, Stability};
use crate::buffer::IoBuffer;
use crate::cache::Effect;
use crate::client::Client;
use crate::core::{ReadCall, WriteCall};
use crate::error::Result;
use crate::layouts::LayoutUse;
use crate::uncommitted::Uncommitted;
use dafs_wire::dafs::{ShareAccess, StateId};
use std::ops::Range;
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

    pub(crate) fn read_call(
        &self,
        buffer: &IoBuffer,
        range: Range<usize>,
        offset: u64,
    ) -> Result<ReadCall> {
        let shared = self.client.shared();
        if let Some(layouts) = self.client.layouts()
            && layouts.are_used()
        {
            shared.check_process()?;
            layouts.before(shared, &Effect::Read(self.handle));
        }
        let piece = shared.piece(buffer, range, offset, self.client.read_bytes_max())?;
        Ok(ReadCall { handle: self.handle, state_id: self.state_id, offset, into: piece })
    }

    pub(crate) fn write_call(
        &self,
        buffer: &IoBuffer,
        range: Range<usize>,
        offset: u64,
        stability: Stability,
    ) -> Result<WriteCall> {
        let limit = self.client.write_bytes_max();
        let from = self.client.shared().piece(buffer, range, offset, limit)?;
        let (handle, state_id) = (self.handle, self.state_id);
        Ok(WriteCall { handle, state_id, offset, stability, from, delegation: None })
    }
}
