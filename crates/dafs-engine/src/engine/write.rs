//! WRITE, inline and direct.
//!
//! Inline data is written to the file from its receive slot, and data in mapped client memory from
//! that memory. Other data is fetched by RDMA read into chunks, as fast as the store takes it. The
//! server copies no byte of data in user space.
//!
//! Invariants
//! * A direct checksum is compared before the first byte is written (DAFS O21).
//! * The authorisation of a write is checked again when its data has come.
//! * `committed` is never less than the requested stability, and the reply follows the store's
//!   answer.
//! * A transfer writes one piece at a time, in the order of the file, so its count covers all
//!   written data.

use super::Link;
use super::allowed::Allowed;
use super::convert;
use super::read::{Buffers, buffers, checksum_of, skip, views};
use super::request::{Call, Context, Done, Keep};
use super::work::{JobResult, PendingId, Unwritten, Work};
use crate::limits::{STAGING_CHUNK_BYTES, STAGING_CHUNKS_MAX, STAGING_CHUNKS_PER_TRANSFER_MAX};
use dafs_dat::{Access, RemoteBuffer, RemoteWindow};
use dafs_mem::VolatileSlice;
use dafs_service::durable::{Change, digest};
use dafs_store::{OpenFile, OpenMode, Stability, StoreError, Wait};
use dafs_wire::dafs::{
    self, Checksum, Fletcher32, Reply, Status, Verifier, WriteDirect, WriteInline, WriteReply,
};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

pub(super) const WRITE: OpenMode = OpenMode { read: false, write: true };

/// The largest piece that the reactor hands to the file at once.
const PIECE_BYTES: usize = 128 << 10;

/// The outcome of a write without waiting.
enum WriteNow {
    Done(usize),
    Blocked(usize),
}

/// Writes the data that the file takes without waiting for a device.
fn write_now(
    file: &dyn OpenFile,
    views: &[VolatileSlice<'_>],
    offset: u64,
    wanted: usize,
    stable: Stability,
) -> Result<WriteNow, StoreError> {
    if stable != Stability::Unstable {
        return Ok(WriteNow::Blocked(0));
    }
    let mut done = 0;
    while done < wanted {
        let rest = limit(&skip(views, done), PIECE_BYTES);
        match file.write_at(&rest, offset + done as u64, stable, Wait::Never) {
            Ok(0) => return Ok(WriteNow::Blocked(done)),
            Ok(count) => done += count,
            Err(StoreError::WouldBlock) => return Ok(WriteNow::Blocked(done)),
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(WriteNow::Done(done))
}

/// Writes all data, and waits for devices. Runs on the pool.
fn write_all(
    file: &dyn OpenFile,
    views: &[VolatileSlice<'_>],
    offset: u64,
    wanted: usize,
    stable: Stability,
) -> Result<usize, StoreError> {
    let mut done = 0;
    while done < wanted {
        let rest = skip(views, done);
        match file.write_at(&rest, offset + done as u64, stable, Wait::Allowed) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Returns the first `max` bytes of the views.
fn limit<'a>(views: &[VolatileSlice<'a>], max: usize) -> SmallVec<[VolatileSlice<'a>; 4]> {
    let mut left = max;
    let mut first = SmallVec::new();
    for view in views {
        let len = view.len().min(left);
        left -= len;
        first.extend(view.slice(0, len).filter(|view| !view.is_empty()));
    }
    first
}

/// A write through staging.
pub(super) struct WriteTransfer {
    file: Arc<dyn OpenFile>,
    offset: u64,
    wanted: usize,
    stable: dafs::Stability,
    /// Read before the first byte is written.
    verifier: Verifier,
    buffers: Buffers,
    /// The index of the next client buffer to fetch, and the bytes of it that are posted.
    next: (usize, usize),
    /// Bytes whose fetch has been posted, and bytes written.
    posted: usize,
    written: usize,
    /// Pieces that are being fetched, then those that have come, in the order of the file.
    fetching: VecDeque<Piece>,
    fetched: VecDeque<Piece>,
    /// The piece that a job is writing.
    job: Option<Piece>,
    /// The expected checksum, and that of the data so far.
    check: Option<(Checksum, Fletcher32)>,
    /// The first error, after which no more data is written.
    error: Option<Status>,
    /// Its authorisation, which may end meanwhile.
    allowed: Allowed,
}

#[derive(Debug, Clone, Copy)]
struct Piece {
    chunk: u32,
    len: usize,
}

impl WriteTransfer {
    pub(super) fn has_job(&self) -> bool {
        self.job.is_some()
    }

    /// True when all data has come and only has to be written.
    pub(super) fn is_here(&self) -> bool {
        self.posted == self.wanted && self.fetching.is_empty() && self.error.is_none()
    }

    pub(super) fn abandon(self, link: &mut Link) {
        for piece in self.fetching.into_iter().chain(self.fetched).chain(self.job) {
            link.staging.give_back(piece.chunk);
        }
    }

    /// Stops the write, because another client may hold the file by now. No further byte is
    /// written, and the reply reports no success.
    fn refuse(&mut self, status: Status) {
        self.error = Some(status);
        self.written = 0;
    }

    fn chunks(&self) -> usize {
        self.fetching.len() + self.fetched.len() + usize::from(self.job.is_some())
    }

    fn piece(&self) -> usize {
        let (index, used) = self.next;
        let buffer = self.buffers.get(index).map_or(0, |buffer| buffer.byte_count as usize - used);
        buffer.min(self.wanted - self.posted).min(STAGING_CHUNK_BYTES)
    }

    /// Returns the number of chunks that this transfer may hold. With a checksum all data must be
    /// here before any is written, so it must get all its chunks at once.
    fn chunks_max(&self) -> usize {
        if self.check.is_some() { STAGING_CHUNKS_MAX } else { STAGING_CHUNKS_PER_TRANSFER_MAX }
    }

    /// Returns the number of chunks that it needs before more is fetched.
    pub(super) fn chunks_wanted(&self) -> usize {
        if self.check.is_some() && self.posted == 0 { self.chunks_needed() } else { 1 }
    }

    /// Returns the number of chunks to fetch all data.
    fn chunks_needed(&self) -> usize {
        let mut left = self.wanted;
        let chunks = self.buffers.iter().map(|buffer| {
            let bytes = left.min(buffer.byte_count as usize);
            left -= bytes;
            bytes.div_ceil(STAGING_CHUNK_BYTES)
        });
        chunks.sum()
    }
}

impl Context<'_> {
    pub(super) fn write_inline(&mut self, call: &Call, args: &WriteInline<'_>) -> Done {
        let (span, stable) =
            ((args.offset, args.data.len() as u64), convert::stability(args.stable));
        if stable != Stability::Unstable && call.keep == Keep::Reply && self.needs_intent(call) {
            let (file, digest) = (convert::handle(&args.fh), Some(digest(0, args.data)));
            let (offset, len) = span;
            let change = Change::Write { file: &file, offset, len, stability: stable, digest };
            if self.log_intent(call, &change)? {
                return Ok(());
            }
        }
        let (file, allowed) = self.write_target(call, &args.fh, args.state_id, span)?;
        let wanted = args.data.len();
        // SAFETY: the data lies in the receive slot of the current request, which is private memory
        // and stays unchanged until the request is answered. The view is only read from, as is the
        // borrow of the message beside it, so the two do not disturb each other.
        let view = unsafe { VolatileSlice::new(args.data.as_ptr().cast_mut(), wanted) };
        let verifier = self.write_verifier();
        let now = match allowed.overtakes_now(span) {
            true => write_now(&*file, &[view], args.offset, wanted, stable),
            false => Ok(WriteNow::Blocked(0)),
        };
        match now {
            Ok(WriteNow::Done(count)) => self.write_reply(call, (args.stable, verifier), count),
            Ok(WriteNow::Blocked(done)) => {
                let (slot, offset) = (call.slot, args.offset + done as u64);
                let data = self.connection.receives.part(slot, args.data, done);
                let handle = allowed.handle;
                let allowed = self.pool_authorisation(&allowed);
                self.defer_job(
                    (call, &handle),
                    Work::Write { stable: args.stable, verifier, done },
                    move || {
                        let view = data.view();
                        let left = wanted - done;
                        JobResult::Count(
                            allowed.check((offset, left as u64)).and_then(|()| {
                                Ok(write_all(&*file, &[view], offset, left, stable)?)
                            }),
                        )
                    },
                );
                Ok(())
            }
            Err(error) => Err(convert::store_status(error)),
        }
    }

    /// Returns the write verifier. Called before any data is written: if data is lost meanwhile,
    /// the client must see that.
    pub(super) fn write_verifier(&self) -> Verifier {
        Verifier(self.shared.write_verifier.current())
    }

    fn write_reply(
        &mut self,
        call: &Call,
        (stable, verifier): (dafs::Stability, Verifier),
        count: usize,
    ) -> Done {
        let reply = WriteReply { count: count as u32, committed: stable, verifier };
        let reply = match call.procedure {
            Some(dafs::Procedure::WriteInline) => Reply::WriteInline(reply),
            _ => Reply::WriteDirect(reply),
        };
        self.reply(call, &reply)
    }

    pub(super) fn write_done(
        &mut self,
        call: &Call,
        (stable, verifier): (dafs::Stability, Verifier),
        done: usize,
        result: Result<usize, Unwritten>,
    ) -> Done {
        match result {
            Ok(count) => self.write_reply(call, (stable, verifier), done + count),
            // Earlier writes may have been undone since, so the reply reports no success.
            Err(Unwritten::Refused(status)) => Err(status),
            Err(Unwritten::Store(_)) if done > 0 => {
                self.write_reply(call, (stable, verifier), done)
            }
            Err(Unwritten::Store(error)) if stable != dafs::Stability::Unstable => {
                Err(self.sync_failed(error))
            }
            Err(Unwritten::Store(error)) => Err(convert::store_status(error)),
        }
    }

    pub(super) fn write_direct(&mut self, call: &Call, args: &WriteDirect<'_>) -> Done {
        let span = (args.offset, u64::from(args.byte_count));
        let (file, allowed) = self.write_target(call, &args.fh, args.state_id, span)?;
        let wanted = args.byte_count as usize;
        if wanted > self.shared.limits.transfer_bytes_max as usize {
            // DAFS O58.
            return Err(Status::WriteTooBig);
        }
        let buffers = buffers(args.buffers, wanted)?;
        if let Some(windows) = self.map(&buffers, Access::REMOTE_READ) {
            return self.write_mapped(call, args, (file, allowed), windows);
        }
        let check = self.connection.checksums();
        let transfer = WriteTransfer {
            file,
            offset: args.offset,
            wanted,
            stable: args.stable,
            verifier: self.write_verifier(),
            buffers,
            next: (0, 0),
            posted: 0,
            written: 0,
            fetching: VecDeque::new(),
            fetched: VecDeque::new(),
            job: None,
            check: check.then(|| (args.direct_checksum, Fletcher32::new())),
            error: None,
            allowed,
        };
        if transfer.check.is_some() && transfer.chunks_needed() > STAGING_CHUNKS_MAX {
            return Err(Status::WriteTooBig);
        }
        let id = self.defer(call, Work::Stage(Box::new(transfer)));
        if self.link.staging.is_calm() {
            self.write_more(id);
        } else {
            self.link.staging.wait(&self.connection.owner, id);
        }
        Ok(())
    }

    fn write_mapped(
        &mut self,
        call: &Call,
        args: &WriteDirect<'_>,
        (file, allowed): (Arc<dyn OpenFile>, Allowed),
        windows: SmallVec<[RemoteWindow; 2]>,
    ) -> Done {
        let wanted = args.byte_count as usize;
        let stable = convert::stability(args.stable);
        if self.connection.checksums() {
            let mut sum = Fletcher32::new();
            checksum_of(&views(&windows, wanted), wanted, &mut sum);
            if sum.finish() != args.direct_checksum {
                return Err(Status::ChkSum);
            }
        }
        let verifier = self.write_verifier();
        let now = match allowed.overtakes_now((args.offset, wanted as u64)) {
            true => write_now(&*file, &views(&windows, wanted), args.offset, wanted, stable),
            false => Ok(WriteNow::Blocked(0)),
        };
        match now.map_err(convert::store_status)? {
            WriteNow::Done(count) => self.write_reply(call, (args.stable, verifier), count),
            WriteNow::Blocked(done) => {
                let (offset, handle) = (args.offset + done as u64, allowed.handle);
                let allowed = self.pool_authorisation(&allowed);
                self.defer_job(
                    (call, &handle),
                    Work::Write { stable: args.stable, verifier, done },
                    move || {
                        let views = views(&windows, wanted);
                        let rest = skip(&views, done);
                        let left = wanted - done;
                        JobResult::Count(
                            allowed
                                .check((offset, left as u64))
                                .and_then(|()| Ok(write_all(&*file, &rest, offset, left, stable)?)),
                        )
                    },
                );
                Ok(())
            }
        }
    }

    fn write_transfer(&mut self, id: PendingId) -> Option<&mut WriteTransfer> {
        match &mut self.pending.get_mut(id)?.work {
            Work::Stage(transfer) => Some(transfer),
            _ => None,
        }
    }

    /// Fetches as many pieces as the transfer may hold. Finishes it when all is done.
    pub(super) fn write_more(&mut self, id: PendingId) {
        loop {
            let Some(transfer) = self.write_transfer(id) else { return };
            let piece = if transfer.error.is_some() { 0 } else { transfer.piece() };
            if piece == 0 {
                if transfer.chunks() == 0 {
                    self.write_finished(id);
                }
                return;
            }
            if transfer.chunks() >= transfer.chunks_max() {
                return;
            }
            let (wanted, idle) = (transfer.chunks_wanted(), transfer.chunks() == 0);
            // Once it has begun, a transfer that needs all its chunks at once takes them beyond its
            // share.
            let fits = transfer.check.is_some() && transfer.posted > 0
                || self.link.staging.fits(&self.connection.owner, wanted);
            let chunk = match fits {
                true => self.link.staging.take(&mut *self.link.adapter, &self.connection.owner),
                false => None,
            };
            let Some(chunk) = chunk else {
                // A transfer that holds chunks goes on when one of its own is written.
                if idle {
                    self.link.staging.wait(&self.connection.owner, id);
                }
                return;
            };
            self.fetch(id, chunk, piece);
        }
    }

    fn fetch(&mut self, id: PendingId, chunk: u32, piece: usize) {
        let Some(transfer) = self.write_transfer(id) else { return };
        let (index, used) = transfer.next;
        let buffer = transfer.buffers[index];
        transfer.posted += piece;
        transfer.next = if used + piece == buffer.byte_count as usize {
            (index + 1, 0)
        } else {
            (index, used + piece)
        };
        transfer.fetching.push_back(Piece { chunk, len: piece });
        let remote = RemoteBuffer {
            key: buffer.context,
            address: buffer.address.wrapping_add(used as u64),
            len: piece as u32,
        };
        let segment = self.link.staging.segment(chunk, 0, piece);
        let (endpoint, work) = (self.connection.endpoint, Self::tag_in(id, chunk));
        match self.link.adapter.rdma_read(endpoint, work, segment, remote) {
            Ok(()) => self.connection.count_fetch(self.now),
            // The end of the connection releases all its resources.
            Err(error) => self.drop_session(&format!("data cannot be fetched: {error}")),
        }
    }

    /// Handles the arrival of a piece.
    pub(super) fn write_fetched(&mut self, id: PendingId, chunk: u32, ok: bool) {
        let Some(transfer) = self.write_transfer(id) else { return };
        let position = transfer.fetching.iter().position(|piece| piece.chunk == chunk);
        let Some(piece) = position.and_then(|at| transfer.fetching.remove(at)) else {
            return debug_assert!(false, "a chunk came that was not being fetched");
        };
        if !ok {
            // The connection has broken, and all else will be flushed too.
            transfer.error = Some(Status::Io);
            return self.link.staging.give_back(chunk);
        }
        debug_assert_eq!(position, Some(0), "RDMA reads of one connection complete in order");
        transfer.fetched.push_back(piece);
        if let Some((expected, mut sum)) = transfer.check.take() {
            sum.update(&self.link.staging.bytes_mut(chunk)[..piece.len]);
            let Some(transfer) = self.write_transfer(id) else { return };
            if transfer.posted < transfer.wanted || !transfer.fetching.is_empty() {
                transfer.check = Some((expected, sum));
                return self.write_more(id);
            }
            if sum.finish() != expected {
                return self.write_refused(id, Status::ChkSum);
            }
        }
        self.write_next(id);
    }

    /// Writes the arrived pieces, one after the other.
    fn write_next(&mut self, id: PendingId) {
        loop {
            let Some(transfer) = self.write_transfer(id) else { return };
            if transfer.job.is_some() || transfer.check.is_some() {
                return;
            }
            let Some(piece) = transfer.fetched.pop_front() else {
                return self.write_more(id);
            };
            let (file, offset) = (transfer.file.clone(), transfer.offset + transfer.written as u64);
            let stable = convert::stability(transfer.stable);
            let allowed = transfer.allowed.clone();
            let span = (offset, piece.len as u64);
            let refused = self.still_allowed(&allowed, span).err();
            let Some(transfer) = self.write_transfer(id) else { return };
            if let Some(status) = refused {
                transfer.refuse(status);
            }
            let failed = transfer.error.is_some();
            let buffer = self.link.staging.buffer(piece.chunk).clone();
            let now = match buffer.slice(0, piece.len) {
                _ if failed => Ok(WriteNow::Done(0)),
                _ if !allowed.overtakes_now(span) => Ok(WriteNow::Blocked(0)),
                Some(view) => write_now(&*file, &[view], offset, piece.len, stable),
                None => Err(StoreError::Io),
            };
            match now {
                Ok(WriteNow::Blocked(done)) => {
                    if let Some(transfer) = self.write_transfer(id) {
                        transfer.written += done;
                        transfer.job = Some(Piece { len: piece.len - done, ..piece });
                    }
                    let (offset, left) = (offset + done as u64, piece.len - done);
                    let handle = allowed.handle;
                    let allowed = self.pool_authorisation(&allowed);
                    return self.submit(id, &handle, move || {
                        let view = buffer.slice(done, left).ok_or(StoreError::Io.into());
                        let view = allowed.check((offset, left as u64)).and(view);
                        JobResult::Count(
                            view.and_then(|view| {
                                Ok(write_all(&*file, &[view], offset, left, stable)?)
                            }),
                        )
                    });
                }
                Ok(WriteNow::Done(count)) => self.piece_written(id, piece, Ok(count)),
                Err(error) => self.piece_written(id, piece, Err(error.into())),
            }
        }
    }

    /// Handles a piece that the pool has written.
    pub(super) fn write_staged(&mut self, id: PendingId, result: JobResult) {
        let Some(piece) = self.write_transfer(id).and_then(|t| t.job.take()) else { return };
        let result = match result {
            JobResult::Count(result) => result,
            _ => Err(StoreError::Io.into()),
        };
        self.piece_written(id, piece, result);
        self.write_next(id);
    }

    fn piece_written(&mut self, id: PendingId, piece: Piece, result: Result<usize, Unwritten>) {
        self.link.staging.give_back(piece.chunk);
        let Some(transfer) = self.write_transfer(id) else { return };
        match result {
            Ok(count) => {
                transfer.written += count;
                if count < piece.len && transfer.error.is_none() {
                    // The store took a part, and the next attempt returns the reason.
                    transfer.error = Some(Status::NoSpc);
                }
            }
            Err(Unwritten::Refused(status)) => transfer.refuse(status),
            Err(Unwritten::Store(error)) => {
                let stable = transfer.stable != dafs::Stability::Unstable;
                transfer.error = transfer.error.or(Some(convert::store_status(error)));
                if stable {
                    self.sync_failed(error);
                }
            }
        }
    }

    fn write_refused(&mut self, id: PendingId, status: Status) {
        let Some(pending) = self.take_pending(id) else { return };
        pending.work.abandon(self.link);
        self.fail(&pending.call, status);
    }

    fn write_finished(&mut self, id: PendingId) {
        let Some(pending) = self.take_pending(id) else { return };
        let Work::Stage(transfer) = pending.work else { return };
        let outcome = match transfer.error {
            Some(status) if transfer.written == 0 => Err(status),
            _ => {
                let told = (transfer.stable, transfer.verifier);
                self.write_reply(&pending.call, told, transfer.written)
            }
        };
        self.finish(&pending.call, outcome);
    }
}
