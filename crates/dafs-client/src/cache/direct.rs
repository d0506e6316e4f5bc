//! Uses of files that bypass the cache: direct transfers, requests of the caller's own making,
//! chains, batches, attributes.
//!
//! Invariants
//! * Such a use sees everything that was written through the cache before it.
//! * From before one that changes a file until its end, the cache holds no data of the range that
//!   it changes and takes no dirty data: answers of the server meanwhile may be stale.

use super::Cache;
use super::content::FileId;
use crate::attributes::FileHandle;
use crate::client::Client;
use dafs_wire::dafs::{Attributes, CreateMode, LockType, Request};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The effect of a request on file content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// None: it neither depends on content nor changes it.
    None,
    /// It depends on the content of a file.
    Read(FileHandle),
    /// It depends on files that cannot be named here.
    ReadAny,
    /// It changes a range of a file, and perhaps its size.
    Change(FileHandle, Range<u64>),
    /// It changes files that cannot be named here.
    ChangeAny,
}

/// A use that changes files and is under way; dropping this ends it.
#[derive(Debug)]
pub(crate) struct DirectUse {
    // Only counters: it may end under the lock of the driver.
    counts: SmallVec<[Arc<AtomicUsize>; 1]>,
}

impl Drop for DirectUse {
    fn drop(&mut self) {
        for count in &self.counts {
            count.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Effect {
    /// The effect of a request; with `takes` it gets its file from an earlier one.
    pub(crate) fn of(request: &Request<'_>, takes: bool) -> Self {
        let what = match request {
            Request::ReadInline(args) => Self::Read(args.fh),
            Request::ReadDirect(args) => Self::Read(args.fh),
            Request::GetAttrInline(args) => Self::Read(args.fh),
            Request::GetAttrDirect(args) => Self::Read(args.fh),
            Request::Verify(args) | Request::NVerify(args) => Self::Read(args.fh),
            Request::Commit(args) => Self::Read(args.fh),
            Request::XSeek(args) => Self::Read(args.fh),
            // The server undoes writes under the lock.
            Request::LockU(args) if args.lock_type == LockType::Abort => {
                Self::Change(args.fh, 0..u64::MAX)
            }
            // The next holder of the lock must see writes under it.
            Request::LockU(args) => Self::Read(args.fh),
            Request::ReadDirInline(_) | Request::ReadDirDirect(_) => Self::ReadAny,
            Request::WriteInline(args) => change(args.fh, args.offset, args.data.len() as u64),
            Request::WriteDirect(args) => Self::Change(args.fh, args.offset..u64::MAX),
            // The end of the file is not known yet.
            Request::AppendInline(args) => Self::Change(args.fh, u64::MAX..u64::MAX),
            Request::AppendDirect(args) => Self::Change(args.fh, u64::MAX..u64::MAX),
            Request::SetAttrInline(args) => Self::of_attributes(args.fh, &args.attributes),
            Request::SetAttrDirect(args) => Self::Change(args.fh, 0..u64::MAX),
            Request::Open(args) => match args.create {
                Some(CreateMode::Unchecked { attributes }) if attributes.object_size.is_some() => {
                    Self::ChangeAny
                }
                _ => Self::None,
            },
            Request::BatchSubmit(_) => Self::ChangeAny,
            _ => Self::None,
        };
        match what {
            Self::Read(_) if takes => Self::ReadAny,
            Self::Change(..) if takes => Self::ChangeAny,
            what => what,
        }
    }

    fn of_attributes(file: FileHandle, attributes: &Attributes<'_>) -> Self {
        match attributes.object_size {
            Some(size) => Self::Change(file, size..u64::MAX),
            // Data written before must not overwrite a time that is set.
            None => Self::Read(file),
        }
    }

    /// The combined effect of two requests.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, other) | (other, Self::None) => other,
            (one, other) if one == other => one,
            (Self::Read(_) | Self::ReadAny, Self::Read(_) | Self::ReadAny) => Self::ReadAny,
            _ => Self::ChangeAny,
        }
    }
}

fn change(file: FileHandle, offset: u64, len: u64) -> Effect {
    Effect::Change(file, offset..offset.saturating_add(len))
}

impl Cache {
    /// Called before a use of a file that bypasses the cache; the caller keeps the result until the
    /// use is over.
    pub(crate) fn before(&self, client: &Client, what: &Effect) -> Option<DirectUse> {
        match what {
            Effect::None => {}
            Effect::ReadAny => self.write_back_all(client),
            Effect::Read(handle) => {
                if let Some(id) = self.id_of(handle) {
                    self.write_back(client, id);
                }
            }
            Effect::Change(handle, range) => {
                let id = self.id_of(handle)?;
                return Some(self.before_change(client, &[id], range));
            }
            Effect::ChangeAny => {
                let ids: Vec<_> = self.lock().files.keys().copied().collect();
                return Some(self.before_change(client, &ids, &(0..u64::MAX)));
            }
        }
        None
    }

    fn id_of(&self, handle: &FileHandle) -> Option<FileId> {
        self.lock().by_handle.get(handle).map(|(id, _)| *id)
    }

    fn before_change(&self, client: &Client, ids: &[FileId], range: &Range<u64>) -> DirectUse {
        let mut counts = SmallVec::new();
        for &id in ids {
            let mut state = self.lock();
            let Some(file) = state.file(id) else { continue };
            file.direct.fetch_add(1, Ordering::AcqRel);
            file.direct_count += 1;
            counts.push(file.direct.clone());
            drop(state);
            // No more dirty data is taken, so this comes to an end.
            self.write_back(client, id);
            let mut state = self.lock();
            state.content.forget(id, range.clone());
            if let Some(file) = state.file(id) {
                file.is_loaded = false;
            }
        }
        DirectUse { counts }
    }
}
