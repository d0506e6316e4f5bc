//! Reads and writes of open files through the cache.
//!
//! Invariants
//! * An operation that the cache cannot do goes to the server, and the caller sees no difference.
//! * A read or write makes a bounded number of attempts to use the cache.

use super::content::{FileId, Step, TransferId};
use super::run::Run;
use super::state::{FileState, Order, Owner, Readiness};
use super::stream::Stream;
use super::{Cache, Effect};
use crate::attributes::{FileHandle, Stability, Time};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::file::File;
use crate::fork::ForkMutex;
use crate::limits::{CACHE_ATTEMPTS, CACHE_PIECE_BYTES, WRITE_BACK_BYTES};
use dafs_mem::{CheckedSlice, Inaccessible, Site};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

/// A cached file, which open files of a client share. It is the holder of the file's delegation.
#[derive(Debug)]
pub(crate) struct CachedFile {
    pub(super) client: Client,
    pub(super) cache: Arc<Cache>,
    pub(super) handle: FileHandle,
    pub(super) id: FileId,
}

/// An open file's share in the cache.
#[derive(Debug)]
pub(crate) struct CacheUse {
    pub(super) file: Arc<CachedFile>,
    pub(super) owner: Owner,
    stream: ForkMutex<Stream>,
    /// Present if the cache asks for a delegation after sequential reads.
    run: Option<ForkMutex<Run>>,
    reads: bool,
    writes: bool,
}

/// The result of an attempt to use the cache.
enum Lookup {
    /// The number of bytes that the reader has got.
    Done(Result<usize, Inaccessible>),
    Wait(TransferId),
    Send(Vec<Order>),
    MakeRoom,
    Load,
    /// The server has to do it.
    Pass,
}

/// The pieces that are moved one at a time.
fn pieces(memory: CheckedSlice<'_>) -> impl Iterator<Item = CheckedSlice<'_>> {
    let starts = (0..memory.len()).step_by(CACHE_PIECE_BYTES);
    starts.filter_map(move |at| memory.slice(at, CACHE_PIECE_BYTES.min(memory.len() - at)))
}

/// The rest of the memory behind `bytes`.
fn behind(memory: CheckedSlice<'_>, bytes: usize) -> CheckedSlice<'_> {
    debug_assert!(bytes <= memory.len());
    let rest = memory.len().checked_sub(bytes).and_then(|rest| memory.slice(bytes, rest));
    rest.unwrap_or(CheckedSlice::from_mut(&mut []))
}

impl CacheUse {
    /// `reads` and `writes` tell which operations may use the cache.
    pub(super) fn new(file: Arc<CachedFile>, owner: Owner, reads: bool, writes: bool) -> Self {
        let readers_only = file.cache.options.readers_only;
        let run = (readers_only && reads && !writes).then(ForkMutex::default);
        let writes = writes && !readers_only;
        Self { file, owner, stream: ForkMutex::default(), run, reads, writes }
    }

    fn check_process(&self) -> Result<()> {
        self.file.client.shared().check_process()
    }

    /// Holds the locks, for tests.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Sized {
        (self.stream.lock_here(), self.run.as_ref().map(ForkMutex::lock_here))
    }

    #[cfg(test)]
    pub(crate) fn file(&self) -> &Arc<CachedFile> {
        &self.file
    }

    /// Reads into `target` from `offset`, until it is full or the file ends.
    pub(crate) fn read(&self, file: &File, target: CheckedSlice<'_>, offset: u64) -> Result<usize> {
        self.check_process()?;
        let bytes = self.read_through(file, target, offset)?;
        self.ask(offset, bytes as u64, bytes == target.len());
        Ok(bytes)
    }

    fn read_through(&self, file: &File, target: CheckedSlice<'_>, offset: u64) -> Result<usize> {
        let mut done = 0;
        for piece in pieces(target) {
            let at = offset.saturating_add(done as u64);
            let bytes = match self.read_piece(file, piece, at) {
                Some(bytes) => bytes?,
                None => {
                    drop(self.before(&Effect::Read(self.file.handle)));
                    // All the rest, so that several pieces of it are in flight.
                    let rest = behind(target, done);
                    return Ok(done + crate::transfer::read_slice(file, rest, at)?);
                }
            };
            done += bytes;
            if bytes < piece.len() {
                break;
            }
        }
        Ok(done)
    }

    /// Asks for a delegation if this read ended a long sequential run.
    fn ask(&self, offset: u64, bytes: u64, is_whole: bool) {
        let Some(run) = &self.run else { return };
        let is_time = run.lock_here().read(offset, bytes, is_whole);
        if is_time {
            let asked = self.file.ask();
            run.lock_here().asked(asked);
        }
    }

    /// `None` if the server has to be asked.
    fn read_piece(
        &self,
        file: &File,
        target: CheckedSlice<'_>,
        offset: u64,
    ) -> Option<Result<usize, Inaccessible>> {
        let CachedFile { client, cache, .. } = &*self.file;
        let mut ahead = None;
        for _ in 0..CACHE_ATTEMPTS {
            let (look, orders) = self.look(target, offset, &mut ahead);
            cache.send_reads(file.opened(), orders);
            match look {
                Lookup::Done(bytes) => {
                    client.shared().hear_now_and_then();
                    return Some(bytes);
                }
                Lookup::Wait(id) => {
                    if cache.wait_in_limit(id).is_some() {
                        return None;
                    }
                }
                Lookup::Send(orders) => {
                    let first = orders.first().map(|order| order.transfer.id);
                    cache.send_reads(file.opened(), orders);
                    if first.and_then(|id| cache.wait_in_limit(id)).is_some() {
                        return None;
                    }
                }
                Lookup::MakeRoom => {
                    if !cache.make_room(client) {
                        return None;
                    }
                }
                Lookup::Load => self.file.load().ok()?,
                Lookup::Pass => return None,
            }
        }
        None
    }

    /// One attempt of a reader, and its read-ahead.
    fn look(
        &self,
        target: CheckedSlice<'_>,
        offset: u64,
        ahead: &mut Option<Range<u64>>,
    ) -> (Lookup, Vec<Order>) {
        let CachedFile { client, cache, id, .. } = &*self.file;
        let (trusted, restarts) = (client.is_in_lease(), client.shared().restarts_heard());
        let mut state = cache.lock();
        match state.readiness(*id, false, restarts) {
            Readiness::Ready if trusted && self.reads => {}
            Readiness::Unloaded if trusted && self.reads => return (Lookup::Load, Vec::new()),
            _ => return (Lookup::Pass, Vec::new()),
        }
        let size = state.content.size(*id);
        let end = offset.saturating_add(target.len() as u64).min(size);
        if offset >= end {
            return (Lookup::Done(Ok(0)), Vec::new());
        }
        let len = end - offset;
        let range = ahead.get_or_insert_with(|| {
            let mut stream = self.stream.lock_here();
            stream.advance(offset, len, cache.options.read_ahead_bytes)
        });
        match state.content.read(*id, offset..end) {
            Step::Copy(segments) => {
                let copied = state.copy_out(&segments, target, len as usize);
                let more = std::mem::replace(range, end..end);
                let crowded = state.content.filling() > cache.options.bytes as u64 / 4;
                if more.is_empty() || crowded {
                    return (Lookup::Done(copied), Vec::new());
                }
                let transfers = state.content.fetch(*id, more);
                let orders = state.order(*id, transfers, false);
                (Lookup::Done(copied), orders)
            }
            Step::Wait(id) => (Lookup::Wait(id), Vec::new()),
            Step::Unknown => {
                let crowded = state.content.filling() > cache.options.bytes as u64 / 4;
                let ahead = std::mem::replace(range, end..end).end.max(end);
                let until = if crowded { end } else { ahead };
                let transfers = state.content.fetch(*id, offset..until);
                if transfers.is_empty() {
                    return (Lookup::MakeRoom, Vec::new());
                }
                (Lookup::Send(state.order(*id, transfers, false)), Vec::new())
            }
            Step::Full => (Lookup::MakeRoom, Vec::new()),
        }
    }

    /// Writes all of `source` at `offset`, perhaps later.
    pub(crate) fn write(
        &self,
        file: &File,
        source: CheckedSlice<'_>,
        offset: u64,
        stability: Stability,
    ) -> Result<usize> {
        self.check_process()?;
        self.told()?;
        let fits = offset.checked_add(source.len() as u64);
        let fits = fits.is_some_and(|end| end <= i64::MAX.cast_unsigned());
        let kept = self.writes && fits && stability == Stability::Unstable;
        let mut done = 0;
        for mut piece in pieces(source) {
            let mut own;
            let at = offset.saturating_add(done as u64);
            let bytes = piece.len();
            if kept && piece.may_be_unmapped() {
                // The cache marks the range as dirty first, so the copy into it must not fail.
                own = piece.to_vec(Site::ClientStaging)?;
                piece = CheckedSlice::from_mut(&mut own);
            }
            if !(kept && self.write_piece(piece, at)) {
                // All the rest, so that several pieces of it are in flight.
                let rest = behind(source, done);
                let range = at..at.saturating_add(rest.len() as u64);
                let _used = self.before(&Effect::Change(self.file.handle, range));
                crate::transfer::write_slice(file, rest, at, stability)?;
                break;
            }
            done += bytes;
        }
        Ok(source.len())
    }

    /// False if the server has to do it.
    fn write_piece(&self, source: CheckedSlice<'_>, offset: u64) -> bool {
        let CachedFile { client, cache, id, .. } = &*self.file;
        let range = offset..offset + source.len() as u64;
        for _ in 0..CACHE_ATTEMPTS {
            let (trusted, restarts) = (client.is_in_lease(), client.shared().restarts_heard());
            let mut state = cache.lock();
            match state.readiness(*id, true, restarts) {
                Readiness::Ready if trusted && self.writes => {}
                Readiness::Unloaded if trusted && self.writes => {
                    drop(state);
                    match self.file.load() {
                        Ok(()) => continue,
                        Err(_) => return false,
                    }
                }
                _ => return false,
            }
            let unwritten = state.content.unwritten_of(*id);
            let Some(kept) = state.file(*id) else { return false };
            if unwritten > 0 && !kept.is_owned_by(&self.owner) {
                // A loss must be reported to the open file that wrote the data.
                drop(state);
                cache.write_back(client, *id);
                continue;
            }
            match state.content.write(*id, range.clone()) {
                Step::Copy(segments) => {
                    state.copy_in(&segments, source);
                    if let Some(kept) = state.file(*id) {
                        kept.owner = Some(self.owner.clone());
                        kept.modified = now();
                    }
                    if state.content.unsent_of(*id) >= WRITE_BACK_BYTES {
                        cache.start_write_back(client, *id, state);
                    } else {
                        drop(state);
                    }
                    self.hold_back();
                    return true;
                }
                Step::Wait(flight) => {
                    drop(state);
                    cache.wait(flight);
                }
                Step::Full | Step::Unknown => {
                    drop(state);
                    if !cache.make_room(client) {
                        return false;
                    }
                }
            }
        }
        false
    }

    /// Throttles a writer that is too far ahead of the server.
    fn hold_back(&self) {
        let CachedFile { client, cache, id, .. } = &*self.file;
        loop {
            let state = cache.lock();
            if state.content.unwritten() <= cache.options.unwritten_bytes {
                return;
            }
            let flight = state.content.first_in_flight(*id, true);
            drop(state);
            match flight {
                Some(flight) => drop(cache.wait(flight)),
                None => return cache.write_back_all(client),
            }
        }
    }

    /// Writes back dirty data of this open file.
    ///
    /// # Errors
    /// The error of this write-back, or of an earlier one.
    pub(crate) fn write_back(&self) -> Result<()> {
        self.check_process()?;
        let CachedFile { client, cache, id, .. } = &*self.file;
        // Dirty data has one owner, which does not change before it is written.
        if cache.lock().file(*id).is_some_and(|file| file.is_owned_by(&self.owner)) {
            cache.write_back(client, *id);
        }
        self.told()
    }

    /// Reports once why dirty data of this open file was given up.
    fn told(&self) -> Result<()> {
        let CachedFile { cache, id, .. } = &*self.file;
        cache.lock().told(*id, self.owner.state_id).map_or(Ok(()), Err)
    }

    /// Forgets all, because unstable data is gone with the server's run.
    pub(crate) fn forget(&self) {
        self.file.forget();
    }

    /// The flag that reports a loss without taking the cache's lock.
    pub(crate) fn lost(&self) -> Option<Arc<AtomicBool>> {
        let CachedFile { cache, id, .. } = &*self.file;
        cache.lock().file(*id).map(|file| file.lost.clone())
    }

    /// Announces a use of the file that bypasses the cache; see [`Cache::before`].
    pub(crate) fn before(&self, what: &Effect) -> Option<super::DirectUse> {
        // The use itself detects a fork.
        self.check_process().ok()?;
        self.file.cache.before(&self.file.client, what)
    }
}

impl CachedFile {
    /// Invalidates the content: the cache may hold data that the server has lost.
    pub(super) fn forget(&self) {
        self.cache.lock().unload(self.id);
    }

    /// Gets the size from the server, which knows it once all dirty data is written.
    fn load(&self) -> Result<(), Error> {
        self.cache.write_back(&self.client, self.id);
        let now = |file: &mut FileState| (file.direct_count, file.restarts);
        let asked = self.cache.lock().file(self.id).map(now);
        let attributes = self.client.attributes_now(&self.handle)?;
        let mut state = self.cache.lock();
        let Some(file) = state.file(self.id) else { return Ok(()) };
        // Otherwise the file may have changed since, and the caller asks again.
        let is_current = Some(now(file)) == asked && file.readiness(false) == Readiness::Unloaded;
        if is_current {
            file.is_loaded = true;
            file.granted_change.get_or_insert(attributes.change);
            state.content.set_size(self.id, attributes.size);
        }
        Ok(())
    }
}

/// The current time, as attributes hold it.
fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nseconds: since.subsec_nanos(),
    }
}
