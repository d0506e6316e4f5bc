//! The state of each file beside its content, and the requests in flight.
//!
//! Invariants
//! * Data of a file is cached only while its delegation is held and not being returned, its size is
//!   known, and no use that bypasses the cache changes it.
//! * While the size is not known no dirty data is taken, so the server knows it as soon as earlier
//!   dirty data is written back.

use super::content::{
    Content, FileId, Filled, Flushed, Segment, Segments, Transfer, TransferId, Transfers,
};
use super::file::CachedFile;
use crate::attributes::{FileHandle, Time};
use crate::buffer::IoBuffer;
use crate::delegation::DelegationKind;
use crate::error::{Error, Result};
use crate::hint::RidingHint;
use crate::pending::{Moved, Pending};
use crate::uncommitted::Uncommitted;
use dafs_mem::{CheckedSlice, Inaccessible, Site, VolatileSlice};
use dafs_wire::dafs::StateId;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// The open file that has written the dirty data of a file.
#[derive(Debug, Clone)]
pub(super) struct Owner {
    pub(super) state_id: StateId,
    pub(super) writes: Arc<Uncommitted>,
    /// The hint that rides on its transfers.
    pub(super) hint: RidingHint,
}

/// A delegation that is held.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    pub(super) kind: DelegationKind,
    pub(super) state_id: StateId,
    pub(super) stage: HeldStage,
}

/// The stages of a delegation, which only move forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeldStage {
    /// No holder is registered for recalls yet.
    Coming,
    /// Data may be cached under it.
    There,
    /// The data that was cached under it is being dropped.
    Leaving,
}

/// The state of a file beside its content.
#[derive(Debug)]
pub(super) struct FileState {
    pub(super) handle: FileHandle,
    /// Open files.
    pub(super) opens: usize,
    pub(super) held: Option<Held>,
    /// The size is known.
    pub(super) is_loaded: bool,
    /// Set when a COMMIT has found that the server has lost data. It is set under the lock of the
    /// driver, so the next attempt to use the cache acts on it.
    pub(super) lost: Arc<AtomicBool>,
    /// Restarts of the server that had been seen when data was cached last.
    pub(super) restarts: u64,
    /// Uses that bypass the cache and change the file, under way.
    pub(super) direct: Arc<AtomicUsize>,
    /// Such uses so far.
    pub(super) direct_count: u64,
    /// The change attribute when the delegation came, as far as is known.
    pub(super) granted_change: Option<u64>,
    /// The time of the last write under the delegation.
    pub(super) modified: Time,
    pub(super) owner: Option<Owner>,
    /// The errors of dirty data that was given up, by the open file that wrote it.
    pub(super) errors: SmallVec<[(StateId, Error); 1]>,
    /// The number of write-backs that the server refused or took in part.
    pub(super) retries: u64,
}

/// The answer to "may data of a file be cached?".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    Ready,
    /// Yes, as soon as the size is known.
    Unloaded,
    No,
}

impl FileState {
    fn new(handle: FileHandle) -> Self {
        Self {
            handle,
            opens: 0,
            held: None,
            is_loaded: false,
            lost: Arc::default(),
            restarts: 0,
            direct: Arc::default(),
            direct_count: 0,
            granted_change: None,
            modified: Time::default(),
            owner: None,
            errors: SmallVec::new(),
            retries: 0,
        }
    }

    pub(super) fn is_owned_by(&self, owner: &Owner) -> bool {
        self.owner.as_ref().is_some_and(|known| known.state_id == owner.state_id)
    }

    pub(super) fn readiness(&self, writes: bool) -> Readiness {
        let Some(held) = &self.held else { return Readiness::No };
        let allowed = !writes || held.kind == DelegationKind::Write;
        if held.stage != HeldStage::There || !allowed || self.direct.load(Ordering::Acquire) > 0 {
            Readiness::No
        } else if self.is_loaded && !self.lost.load(Ordering::Acquire) {
            Readiness::Ready
        } else {
            Readiness::Unloaded
        }
    }
}

/// A request in flight.
#[derive(Debug)]
struct Flight {
    file: FileId,
    is_write: bool,
    bytes: u32,
    /// `None` while it is being sent, or while a thread waits for it.
    pending: Option<Pending<usize>>,
}

/// A request to be sent, with its memory.
pub(super) struct Order {
    pub(super) transfer: Transfer,
    pub(super) buffer: IoBuffer,
}

/// Everything under the lock.
#[derive(Debug)]
pub(super) struct State {
    pub(super) content: Content,
    slabs: Vec<IoBuffer>,
    pub(super) files: FxHashMap<FileId, FileState>,
    pub(super) by_handle: FxHashMap<FileHandle, (FileId, Weak<CachedFile>)>,
    flights: FxHashMap<TransferId, Flight>,
}

impl State {
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            content: Content::new(bytes),
            slabs: Vec::new(),
            files: FxHashMap::default(),
            by_handle: FxHashMap::default(),
            flights: FxHashMap::default(),
        }
    }

    pub(super) fn add_file(&mut self, handle: FileHandle) -> FileId {
        let id = self.content.add_file();
        self.files.insert(id, FileState::new(handle));
        id
    }

    pub(super) fn file(&mut self, id: FileId) -> Option<&mut FileState> {
        self.files.get_mut(&id)
    }

    /// Tells whether data of a file may be cached. A restart of the server invalidates cached data:
    /// the server may have lost unstable data, and others on its host may have changed the file
    /// meanwhile.
    pub(super) fn readiness(&mut self, id: FileId, writes: bool, restarts: u64) -> Readiness {
        if let Some(file) = self.files.get_mut(&id)
            && (file.restarts != restarts || file.lost.load(Ordering::Acquire))
        {
            file.lost.store(false, Ordering::Relaxed);
            file.restarts = restarts;
            self.unload(id);
        }
        self.files.get(&id).map_or(Readiness::No, |file| file.readiness(writes))
    }

    /// Invalidates all of a file but dirty data, its size included.
    pub(super) fn unload(&mut self, id: FileId) {
        self.content.forget(id, 0..u64::MAX);
        if let Some(file) = self.files.get_mut(&id) {
            file.is_loaded = false;
        }
    }

    /// Adds memory, unless another thread has won the race.
    pub(super) fn add_slab(&mut self, slab: IoBuffer) {
        if self.content.pool().can_grow() {
            self.content.pool().grow();
            self.slabs.push(slab);
        }
    }

    fn view(&self, segment: &Segment) -> Option<VolatileSlice<'_>> {
        let slab = self.slabs.get(segment.slab as usize)?;
        slab.slice(segment.start as usize, segment.len as usize)
    }

    /// Copies cached data to a reader.
    ///
    /// # Errors
    /// The reader's memory is not mapped.
    pub(super) fn copy_out(
        &self,
        segments: &Segments,
        target: CheckedSlice<'_>,
        len: usize,
    ) -> Result<usize, Inaccessible> {
        let mut done = 0;
        for view in segments.iter().filter_map(|segment| self.view(segment)) {
            if let Some(part) = target.slice(done, view.len()) {
                done += part.copy_from(view, Site::ClientCache)?;
            }
        }
        assert_eq!(done, len, "a reader gets all that was found");
        Ok(done)
    }

    /// Copies written data, which is certainly mapped, into the cache.
    pub(super) fn copy_in(&self, segments: &Segments, source: CheckedSlice<'_>) {
        debug_assert!(!source.may_be_unmapped());
        let mut done = 0;
        for view in segments.iter().filter_map(|segment| self.view(segment)) {
            let part = source.slice(done, view.len());
            done += part.map_or(0, |part| part.copy_to(view, Site::ClientCache).unwrap_or(0));
        }
        assert_eq!(done, source.len(), "a writer's data is kept whole");
    }

    /// Registers requests as in flight; the caller sends them at once.
    pub(super) fn order(
        &mut self,
        file: FileId,
        transfers: Transfers,
        is_write: bool,
    ) -> Vec<Order> {
        let mut orders = Vec::with_capacity(transfers.len());
        for transfer in transfers {
            let bytes = transfer.memory.len;
            let flight = Flight { file, is_write, bytes, pending: None };
            self.flights.insert(transfer.id, flight);
            let buffer = self.slabs[transfer.memory.slab as usize].clone();
            orders.push(Order { transfer, buffer });
        }
        orders
    }

    /// Marks a request as sent, so that it can be waited for.
    pub(super) fn sent(&mut self, id: TransferId, pending: Pending<usize>) {
        if let Some(flight) = self.flights.get_mut(&id) {
            flight.pending = Some(pending);
        }
    }

    /// Blocks of all memory.
    #[cfg(test)]
    pub(super) fn blocks(&self) -> usize {
        self.slabs.len() * crate::limits::CACHE_SLAB_BLOCKS as usize
    }

    pub(super) fn is_in_flight(&self, id: TransferId) -> bool {
        self.flights.contains_key(&id)
    }

    /// The right to wait for a request.
    pub(super) fn take_pending(&mut self, id: TransferId) -> Option<Pending<usize>> {
        self.flights.get_mut(&id)?.pending.take()
    }

    /// The requests without a waiting thread.
    pub(super) fn unattended(&self) -> Vec<TransferId> {
        let unattended = self.flights.iter().filter(|(_, flight)| flight.pending.is_some());
        unattended.map(|(id, _)| *id).collect()
    }

    /// Ends a request; yields its error.
    pub(super) fn ended(&mut self, id: TransferId, result: Result<Moved>) -> Option<Error> {
        let flight = self.flights.remove(&id)?;
        let error = match flight.is_write {
            true => self.write_ended(id, &flight, result),
            false => self.read_ended(id, result),
        };
        self.end_content(flight.file);
        error
    }

    fn read_ended(&mut self, id: TransferId, result: Result<Moved>) -> Option<Error> {
        let (how, error) = match result {
            Ok(Moved { bytes, end_of_file }) => (Filled::Read(bytes as u32, end_of_file), None),
            Err(error) if error.is_fatal() => (Filled::Lost, Some(error)),
            Err(error) => (Filled::Refused, Some(error)),
        };
        for zeros in self.content.filled(id, how) {
            if let Some(view) = self.view(&zeros) {
                view.fill(0);
            }
        }
        error
    }

    /// True while requests of a closed file are in flight.
    pub(super) fn has_left(&self) -> bool {
        self.flights.values().any(|flight| !self.files.contains_key(&flight.file))
    }

    /// Removes the content of a closed file, as soon as none of its requests is in flight.
    pub(super) fn end_content(&mut self, id: FileId) {
        if !self.files.contains_key(&id) && self.content.first_in_flight(id, false).is_none() {
            self.content.remove_file(id);
        }
    }

    fn write_ended(
        &mut self,
        id: TransferId,
        flight: &Flight,
        result: Result<Moved>,
    ) -> Option<Error> {
        let (how, error) = match result {
            Ok(Moved { bytes: 0, .. }) if flight.bytes > 0 => {
                (Flushed::Failed, Some(Error::WriteZero))
            }
            Ok(Moved { bytes, .. }) => (Flushed::Written(bytes as u32), None),
            Err(error) if may_be_repeated(&error) => (Flushed::Written(0), Some(error)),
            Err(error) if error.is_fatal() => (Flushed::Lost, Some(error)),
            Err(error) => (Flushed::Failed, Some(error)),
        };
        if self.content.flushed(id, how) > 0
            && let Some(error) = &error
        {
            self.failed(flight.file, error.clone());
        }
        if how != Flushed::Written(flight.bytes)
            && let Some(file) = self.files.get_mut(&flight.file)
        {
            file.retries += 1;
            // Others may have changed the file since the delegation was lost.
            if file.held.is_none() && self.content.give_up(flight.file) > 0 {
                self.failed(flight.file, Error::DelegationLost);
            }
        }
        error
    }

    /// Records that data was given up, for the open file that has written it.
    pub(super) fn failed(&mut self, id: FileId, error: Error) {
        let Some(file) = self.files.get_mut(&id) else { return };
        let Some(owner) = &file.owner else { return };
        tracing::warn!(%error, "data that was written through the cache is lost");
        if !file.errors.iter().any(|(writer, _)| *writer == owner.state_id) {
            file.errors.push((owner.state_id, error));
        }
    }

    /// The reason why data of an open file was given up; reported once.
    pub(super) fn told(&mut self, id: FileId, writer: StateId) -> Option<Error> {
        let file = self.files.get_mut(&id)?;
        let at = file.errors.iter().position(|(other, _)| *other == writer)?;
        Some(file.errors.swap_remove(at).1)
    }
}

/// True when the request was not carried out, and can be retried later.
pub(super) fn may_be_repeated(error: &Error) -> bool {
    error.is_passing() || matches!(error, Error::TooMany)
}
