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

use super::read::{checksum_of, skip, views};
use crate::engine::allowed::{Allowed, PoolAuthorisation};
use crate::engine::convert;
use crate::engine::flows::{Flow, Need};
use crate::engine::hints::Ride;
use crate::engine::request::{Call, Context, Done, Keep};
use crate::engine::staging::Staging;
use crate::engine::transfers::{Cursor, Transfers, Windows, buffers, release};
use crate::engine::work::{JobResult, PendingId, Progress, Unwritten, Work};
use crate::limits::{FLOW_CHUNKS_MAX, STAGING_CHUNK_BYTES, STAGING_CHUNKS_PER_TRANSFER_MAX};
use dafs_dat::Access;
use dafs_mem::{Buffer, VolatileSlice};
use dafs_service::durable::{Change, digest};
use dafs_store::{OpenFile, OpenMode, Stability, StoreError, Wait};
use dafs_wire::dafs::{
    self, Checksum, Fletcher32, Reply, Status, Verifier, WriteDirect, WriteInline, WriteReply,
};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

pub(crate) const WRITE: OpenMode = OpenMode { read: false, write: true };

/// The largest piece that the reactor hands to the file at once. EXT4 looks at all blocks of a large
/// folio of the page cache in each call, so a few long calls cost less than many short ones.
const PIECE_BYTES: usize = 1 << 20;

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

/// Writes all data if that is still allowed. Runs on the pool.
fn write_allowed(
    allowed: &PoolAuthorisation,
    file: &dyn OpenFile,
    views: &[VolatileSlice<'_>],
    (offset, len): (u64, usize),
    stable: Stability,
) -> JobResult {
    let allowed = allowed.check((offset, len as u64));
    JobResult::Count(allowed.and_then(|()| Ok(write_all(file, views, offset, len, stable)?)))
}

/// Returns true if data that a write had written before this refusal stays: the open that refuses
/// the rest came after it. The reply then counts it. After a fence, a broken lock or the end of the
/// own open the data may have been undone, and the reply reports no success.
fn keeps_earlier_data(refusal: Status) -> bool {
    matches!(refusal, Status::Denied | Status::KeyMismatch)
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
pub(crate) struct WriteTransfer {
    file: Arc<dyn OpenFile>,
    offset: u64,
    wanted: usize,
    stable: dafs::Stability,
    /// Read before the first byte is written.
    verifier: Verifier,
    /// The client's buffers, with the position of the next fetch.
    cursor: Cursor,
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
    /// Its hint.
    ride: Option<Box<Ride>>,
}

#[derive(Debug, Clone, Copy)]
struct Piece {
    chunk: u32,
    len: usize,
}

/// The next step of a write through staging.
enum Step {
    /// It waits for RDMA or a chunk, or for the end of its connection.
    Wait,
    /// A job writes `len` bytes of a buffer, from `at` on.
    Job { buffer: Arc<Buffer>, at: usize, len: usize },
    /// It is over.
    Over,
    /// It has written nothing, and does not go on.
    Refused(Status),
}

impl WriteTransfer {
    pub(crate) fn progress(&self) -> Progress {
        let moves = !self.fetching.is_empty() || self.written > 0 || self.error.is_some();
        match &self.job {
            _ if moves => Progress::Begun,
            Some(_) => Progress::Queued,
            None if self.posted == 0 => Progress::Waiting,
            None => Progress::Begun,
        }
    }

    pub(crate) fn has_job(&self) -> bool {
        self.job.is_some()
    }

    /// True when all data has come and only has to be written.
    pub(crate) fn is_here(&self) -> bool {
        self.posted == self.wanted && self.fetching.is_empty() && self.error.is_none()
    }

    pub(crate) fn abandon(self, staging: &mut Staging) {
        let pieces = self.fetching.into_iter().chain(self.fetched).chain(self.job);
        release(staging, pieces.map(|piece| piece.chunk));
    }

    /// Stops the write, because another client may hold the file by now. No further byte is
    /// written.
    fn refuse(&mut self, status: Status) {
        if keeps_earlier_data(status) {
            self.error = self.error.or(Some(status));
        } else {
            self.error = Some(status);
            self.written = 0;
        }
    }

    fn chunks(&self) -> usize {
        self.fetching.len() + self.fetched.len() + usize::from(self.job.is_some())
    }

    fn piece(&self) -> usize {
        self.cursor.room().min(self.wanted - self.posted).min(STAGING_CHUNK_BYTES)
    }

    /// Returns the number of chunks that this transfer may hold. With a checksum all data must be
    /// here before any is written, so it must get all its chunks at once.
    fn chunks_max(&self) -> usize {
        if self.check.is_some() { FLOW_CHUNKS_MAX } else { STAGING_CHUNKS_PER_TRANSFER_MAX }
    }

    /// Returns the chunks that it needs before more is fetched.
    pub(crate) fn need(&self) -> Need {
        let is_first = self.check.is_some() && self.posted == 0;
        let chunks = if is_first { self.chunks_needed() } else { 1 };
        Need { chunks, flow: Flow::In(self.allowed.handle.fs) }
    }

    /// Returns the number of chunks to fetch all data.
    fn chunks_needed(&self) -> usize {
        let mut left = self.wanted;
        let chunks = self.cursor.buffers.iter().map(|buffer| {
            let bytes = left.min(buffer.byte_count as usize);
            left -= bytes;
            bytes.div_ceil(STAGING_CHUNK_BYTES)
        });
        chunks.sum()
    }

    /// Fetches as many pieces as the transfer may hold.
    fn fetch(&mut self, id: PendingId, by: &mut Transfers<'_>) -> Step {
        loop {
            let piece = if self.error.is_some() { 0 } else { self.piece() };
            let held = self.chunks();
            if piece == 0 && held == 0 {
                return Step::Over;
            }
            if piece == 0 || held >= self.chunks_max() {
                return Step::Wait;
            }
            // Once it has begun, a transfer that needs all its chunks at once takes them beyond its
            // share.
            let Need { chunks, flow } = self.need();
            let fits = self.check.is_some() && self.posted > 0 || by.fits(chunks, flow);
            let chunk = if fits { by.take(flow) } else { None };
            let Some(chunk) = chunk else {
                // A transfer that holds chunks goes on when one of its own is written.
                if held == 0 {
                    by.wait(id, flow);
                }
                return Step::Wait;
            };
            self.posted += piece;
            self.fetching.push_back(Piece { chunk, len: piece });
            by.fetch(id, (chunk, 0), self.cursor.take(piece));
        }
    }

    fn fetched(&mut self, id: PendingId, chunk: u32, ok: bool, by: &mut Transfers<'_>) -> Step {
        let position = self.fetching.iter().position(|piece| piece.chunk == chunk);
        let Some(piece) = position.and_then(|at| self.fetching.remove(at)) else {
            debug_assert!(false, "a chunk came that was not being fetched");
            return Step::Wait;
        };
        if !ok {
            // The connection has broken, and all else will be flushed too.
            self.error = Some(Status::Io);
            by.give_back(chunk);
            return Step::Wait;
        }
        debug_assert_eq!(position, Some(0), "RDMA reads of one connection complete in order");
        self.fetched.push_back(piece);
        if let Some((expected, mut sum)) = self.check.take() {
            sum.update(&by.bytes_mut(chunk)[..piece.len]);
            if self.posted < self.wanted || !self.fetching.is_empty() {
                self.check = Some((expected, sum));
                return self.fetch(id, by);
            }
            if sum.finish() != expected {
                return Step::Refused(Status::ChkSum);
            }
        }
        self.write(id, by)
    }

    /// Writes the arrived pieces, one after the other.
    fn write(&mut self, id: PendingId, by: &mut Transfers<'_>) -> Step {
        loop {
            if self.job.is_some() || self.check.is_some() {
                return Step::Wait;
            }
            let Some(piece) = self.fetched.pop_front() else { return self.fetch(id, by) };
            let offset = self.offset + self.written as u64;
            let span = (offset, piece.len as u64);
            if let Err(status) = by.still_allowed(&self.allowed, span) {
                self.refuse(status);
            }
            let (buffer, stable) = (by.buffer(piece.chunk), convert::stability(self.stable));
            let now = match buffer.slice(0, piece.len) {
                _ if self.error.is_some() => Ok(WriteNow::Done(0)),
                _ if !self.allowed.may_write_now(span) => Ok(WriteNow::Blocked(0)),
                Some(view) => write_now(&*self.file, &[view], offset, piece.len, stable),
                None => Err(StoreError::Io),
            };
            match now {
                Ok(WriteNow::Blocked(at)) => {
                    let len = piece.len - at;
                    self.written += at;
                    self.job = Some(Piece { len, ..piece });
                    return Step::Job { buffer, at, len };
                }
                Ok(WriteNow::Done(count)) => self.piece_written(piece, Ok(count), by),
                Err(error) => self.piece_written(piece, Err(error.into()), by),
            }
        }
    }

    /// Goes on with a piece that the pool has written.
    fn job_done(&mut self, id: PendingId, result: JobResult, by: &mut Transfers<'_>) -> Step {
        let Some(piece) = self.job.take() else { return Step::Wait };
        let result = match result {
            JobResult::Count(result) => result,
            _ => Err(StoreError::Io.into()),
        };
        self.piece_written(piece, result, by);
        self.write(id, by)
    }

    fn piece_written(
        &mut self,
        piece: Piece,
        result: Result<usize, Unwritten>,
        by: &mut Transfers<'_>,
    ) {
        by.give_back(piece.chunk);
        match result {
            Ok(count) => {
                self.written += count;
                if count < piece.len && self.error.is_none() {
                    // The store took a part, and the next attempt returns the reason.
                    self.error = Some(Status::NoSpc);
                }
            }
            Err(Unwritten::Refused(status)) => self.refuse(status),
            Err(Unwritten::Store(error)) => {
                self.error = self.error.or(Some(convert::store_status(error)));
                if self.stable != dafs::Stability::Unstable {
                    by.sync_failed(error);
                }
            }
        }
    }
}

pub(crate) fn write_inline(cx: &mut Context<'_>, call: &Call, args: &WriteInline<'_>) -> Done {
    let span = (args.offset, args.data.len() as u64);
    let stable = convert::stability(args.stable);
    if stable != Stability::Unstable && call.keep == Keep::Reply && cx.needs_intent(call) {
        let (file, digest) = (convert::handle(&args.fh), Some(digest(0, args.data)));
        let (offset, len) = span;
        let change = Change::Write { file: &file, offset, len, stability: stable, digest };
        if cx.log_intent(call, &change)? {
            return Ok(());
        }
    }
    let (file, allowed) = cx.write_target(call, &args.fh, args.state_id, span)?;
    let wanted = args.data.len();
    // SAFETY: the data lies in the receive slot of the current request, which is private memory
    // and stays unchanged until the request is answered. The view is only read from, as is the
    // borrow of the message beside it, so the two do not disturb each other.
    let view = unsafe { VolatileSlice::new(args.data.as_ptr().cast_mut(), wanted) };
    let verifier = cx.transfers().write_verifier();
    let ride = Ride::of(args.cache_hint, &allowed.handle, &file, args.offset);
    let now = match allowed.may_write_now(span) {
        true => write_now(&*file, &[view], args.offset, wanted, stable),
        false => Ok(WriteNow::Blocked(0)),
    };
    match now.map_err(convert::store_status)? {
        WriteNow::Done(count) => reply(cx, call, (args.stable, verifier), count, ride),
        WriteNow::Blocked(done) => {
            let data = cx.message_part(call, args.data, done);
            let rest = (args.offset + done as u64, wanted - done);
            let (handle, allowed) = (allowed.handle, cx.transfers().pool_authorisation(&allowed));
            let work = Work::Write { stable: args.stable, verifier, done, ride };
            cx.defer_job((call, &handle), work, move || {
                write_allowed(&allowed, &*file, &[data.view()], rest, stable)
            });
            Ok(())
        }
    }
}

fn reply(
    cx: &mut Context<'_>,
    call: &Call,
    (committed, verifier): (dafs::Stability, Verifier),
    count: usize,
    ride: Option<Box<Ride>>,
) -> Done {
    let reply = WriteReply { count: count as u32, committed, verifier };
    let reply = match call.procedure {
        Some(dafs::Procedure::WriteInline) => Reply::WriteInline(reply),
        _ => Reply::WriteDirect(reply),
    };
    cx.moved(call, 0, count);
    let sent = cx.reply(call, &reply);
    cx.follow(ride, count);
    sent
}

pub(crate) fn write_done(
    cx: &mut Context<'_>,
    call: &Call,
    (stable, verifier, done): (dafs::Stability, Verifier, usize),
    ride: Option<Box<Ride>>,
    result: Result<usize, Unwritten>,
) -> Done {
    match result {
        Ok(count) => reply(cx, call, (stable, verifier), done + count, ride),
        Err(Unwritten::Refused(status)) if done > 0 && keeps_earlier_data(status) => {
            reply(cx, call, (stable, verifier), done, ride)
        }
        Err(Unwritten::Refused(status)) => Err(status),
        Err(Unwritten::Store(_)) if done > 0 => reply(cx, call, (stable, verifier), done, ride),
        Err(Unwritten::Store(error)) if stable != dafs::Stability::Unstable => {
            Err(cx.transfers().sync_failed(error))
        }
        Err(Unwritten::Store(error)) => Err(convert::store_status(error)),
    }
}

pub(crate) fn write_direct(cx: &mut Context<'_>, call: &Call, args: &WriteDirect<'_>) -> Done {
    let span = (args.offset, u64::from(args.byte_count));
    let (file, allowed) = cx.write_target(call, &args.fh, args.state_id, span)?;
    let mut by = cx.transfers();
    let wanted = args.byte_count as usize;
    if wanted > by.bytes_max() {
        // DAFS O58.
        return Err(Status::WriteTooBig);
    }
    let buffers = buffers(args.buffers, wanted)?;
    if let Some(windows) = by.map(&buffers, Access::REMOTE_READ) {
        return write_mapped(cx, call, args, (file, allowed), windows);
    }
    let ride = Ride::of(args.cache_hint, &allowed.handle, &file, args.offset);
    let transfer = WriteTransfer {
        file,
        offset: args.offset,
        wanted,
        stable: args.stable,
        verifier: by.write_verifier(),
        cursor: Cursor::new(buffers),
        posted: 0,
        written: 0,
        fetching: VecDeque::new(),
        fetched: VecDeque::new(),
        job: None,
        check: by.checksums().then(|| (args.direct_checksum, Fletcher32::new())),
        error: None,
        allowed,
        ride,
    };
    if transfer.check.is_some() && transfer.chunks_needed() > FLOW_CHUNKS_MAX {
        return Err(Status::WriteTooBig);
    }
    let (calm, flow) = (by.is_calm(), transfer.need().flow);
    let id = cx.defer(call, Work::Stage(Box::new(transfer)));
    if calm {
        resume(cx, id);
    } else {
        cx.transfers().wait(id, flow);
    }
    Ok(())
}

fn write_mapped(
    cx: &mut Context<'_>,
    call: &Call,
    args: &WriteDirect<'_>,
    (file, allowed): (Arc<dyn OpenFile>, Allowed),
    windows: Windows,
) -> Done {
    let wanted = args.byte_count as usize;
    let stable = convert::stability(args.stable);
    let by = cx.transfers();
    if by.checksums() && checksum_of(&views(&windows, wanted), wanted) != args.direct_checksum {
        return Err(Status::ChkSum);
    }
    let verifier = by.write_verifier();
    let ride = Ride::of(args.cache_hint, &allowed.handle, &file, args.offset);
    let now = match allowed.may_write_now((args.offset, wanted as u64)) {
        true => write_now(&*file, &views(&windows, wanted), args.offset, wanted, stable),
        false => Ok(WriteNow::Blocked(0)),
    };
    match now.map_err(convert::store_status)? {
        WriteNow::Done(count) => reply(cx, call, (args.stable, verifier), count, ride),
        WriteNow::Blocked(done) => {
            let rest = (args.offset + done as u64, wanted - done);
            let (handle, allowed) = (allowed.handle, by.pool_authorisation(&allowed));
            let work = Work::Write { stable: args.stable, verifier, done, ride };
            cx.defer_job((call, &handle), work, move || {
                let views = skip(&views(&windows, wanted), done);
                write_allowed(&allowed, &*file, &views, rest, stable)
            });
            Ok(())
        }
    }
}

/// Goes on with a transfer that waited for a chunk.
pub(crate) fn resume(cx: &mut Context<'_>, id: PendingId) {
    go_on(cx, id, |transfer, by| transfer.fetch(id, by));
}

/// Goes on with a transfer for which the end of an RDMA read has come.
pub(crate) fn fetched(cx: &mut Context<'_>, id: PendingId, chunk: u32, ok: bool) {
    go_on(cx, id, |transfer, by| transfer.fetched(id, chunk, ok, by));
}

/// Goes on with a transfer for which the pool has written.
pub(crate) fn job_done(cx: &mut Context<'_>, id: PendingId, result: JobResult) {
    go_on(cx, id, |transfer, by| transfer.job_done(id, result, by));
}

fn go_on(
    cx: &mut Context<'_>,
    id: PendingId,
    step: impl FnOnce(&mut WriteTransfer, &mut Transfers<'_>) -> Step,
) {
    let Some((Work::Stage(transfer), mut by)) = cx.work(id) else { return };
    match step(transfer, &mut by) {
        Step::Wait => {}
        Step::Job { buffer, at, len } => {
            let (file, handle) = (transfer.file.clone(), transfer.allowed.handle);
            let rest = (transfer.offset + transfer.written as u64, len);
            let (stable, allowed) =
                (convert::stability(transfer.stable), by.pool_authorisation(&transfer.allowed));
            cx.submit(id, &handle, move || match buffer.slice(at, len) {
                Some(view) => write_allowed(&allowed, &*file, &[view], rest, stable),
                None => JobResult::Count(Err(StoreError::Io.into())),
            });
        }
        Step::Over => finish(cx, id),
        Step::Refused(status) => cx.refuse(id, status),
    }
}

fn finish(cx: &mut Context<'_>, id: PendingId) {
    let Some(pending) = cx.take_pending(id) else { return };
    let Work::Stage(transfer) = pending.work else { return };
    let outcome = match transfer.error {
        Some(status) if transfer.written == 0 => Err(status),
        _ => {
            let stable = (transfer.stable, transfer.verifier);
            reply(cx, &pending.call, stable, transfer.written, transfer.ride)
        }
    };
    cx.finish(&pending.call, outcome);
}
