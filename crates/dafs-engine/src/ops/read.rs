//! READ, inline and direct.
//!
//! There are three ways, best first. Inline: the kernel reads the file into the reply. Mapped:
//! where the transport lets this process access the client's memory (shared memory), the kernel
//! reads the file straight into it. Staged: the kernel reads into a chunk, and RDMA takes it from
//! there. In none of them does the server copy a byte of data in user space.
//!
//! Invariants
//! * The reactor itself reads data that is in the page cache. The kernel's ring or the pool reads other
//!   data.
//! * A transfer holds at most the chunks of its own length, and waits for its turn when its session
//!   may have no more.

use crate::engine::allowed::Anonymous;
use crate::engine::convert;
use crate::engine::disk::{DiskRead, ReadMemory};
use crate::engine::flows::Flow;
use crate::engine::hints::Ride;
use crate::engine::memory::ReplySlot;
use crate::engine::request::{Call, Context, Done};
use crate::engine::staging::Staging;
use crate::engine::transfers::{Cursor, Transfers, Windows, buffers, release};
use crate::engine::work::{JobResult, PendingId, Progress, ReadEnd, Work};
use crate::limits::STAGING_CHUNK_BYTES;
use dafs_dat::{Access, RemoteWindow};
use dafs_mem::{Buffer, Site, VolatileSlice};
use dafs_service::{Handle, OpenState};
use dafs_store::{OpenFile, OpenMode, StoreError, Wait};
use dafs_wire::dafs::{
    Checksum, Fletcher32, READ_INLINE_REPLY_DATA_AT, ReadDirect, ReadDirectReply, ReadInline,
    Reply, encode_read_inline_head,
};
use smallvec::SmallVec;
use std::sync::Arc;

pub(crate) const READ: OpenMode = OpenMode { read: true, write: false };

/// The outcome of a read without waiting.
enum ReadNow {
    /// All requested data, or the data up to the end of the file or an error.
    Done(ReadEnd),
    /// So many bytes. The rest needs a device.
    Blocked(usize),
}

/// Reads data that is in memory. A short read may be the end of the file or the end of cached data.
/// A further read from there distinguishes them.
fn read_now(
    file: &dyn OpenFile,
    views: &[VolatileSlice<'_>],
    offset: u64,
    wanted: usize,
) -> Result<ReadNow, StoreError> {
    let mut done = 0;
    while done < wanted {
        let rest;
        let views = if done == 0 {
            views
        } else {
            rest = skip(views, done);
            &rest
        };
        match file.read_at(views, offset + done as u64, Wait::Never) {
            Ok(0) => return Ok(ReadNow::Done(ReadEnd { count: done, eof: true })),
            Ok(count) => done += count,
            Err(StoreError::WouldBlock) => return Ok(ReadNow::Blocked(done)),
            Err(error) if done == 0 => return Err(error),
            // The data before the error is good. The client gets the error when it reads on.
            Err(_) => break,
        }
    }
    Ok(ReadNow::Done(ReadEnd { count: done, eof: false }))
}

/// Combines a part of `done` bytes with the result of the rest, which had to wait.
fn total(done: usize, result: Result<ReadEnd, StoreError>) -> Result<ReadEnd, StoreError> {
    match result {
        Ok(end) => Ok(ReadEnd { count: done + end.count, ..end }),
        // The data before the error is good. The client gets the error when it reads on.
        Err(_) if done > 0 => Ok(ReadEnd { count: done, eof: false }),
        Err(error) => Err(error),
    }
}

/// Returns the views behind their first `count` bytes.
pub(crate) fn skip<'a>(
    views: &[VolatileSlice<'a>],
    mut count: usize,
) -> SmallVec<[VolatileSlice<'a>; 4]> {
    let mut rest = SmallVec::new();
    for view in views {
        let cut = count.min(view.len());
        count -= cut;
        if let Some(part) = view.slice(cut, view.len() - cut)
            && !part.is_empty()
        {
            rest.push(part);
        }
    }
    rest
}

/// Returns the windows' memory, up to `wanted` bytes.
pub(crate) fn views(windows: &[RemoteWindow], wanted: usize) -> SmallVec<[VolatileSlice<'_>; 4]> {
    let mut left = wanted;
    let mut views = SmallVec::new();
    for window in windows {
        let len = window.len().min(left);
        left -= len;
        views.extend(window.view().slice(0, len).filter(|view| !view.is_empty()));
    }
    views
}

/// Shows `len` bytes in shared memory to `look`, in private copies of their pieces: a checksum of
/// changing bytes would have no meaning.
pub(crate) fn scan(views: &[VolatileSlice<'_>], mut len: usize, mut look: impl FnMut(&[u8])) {
    let mut copy = [0; 4096];
    for view in views {
        let mut at = 0;
        while at < view.len() && len > 0 {
            let part = copy.len().min(view.len() - at).min(len);
            if let Some(piece) = view.slice(at, part) {
                piece.copy_to(&mut copy[..part], Site::Checksum);
            }
            look(&copy[..part]);
            at += part;
            len -= part;
        }
    }
}

/// Returns the checksum of `len` bytes in shared memory.
pub(crate) fn checksum_of(views: &[VolatileSlice<'_>], len: usize) -> Checksum {
    let mut sum = Fletcher32::new();
    scan(views, len, |bytes| sum.update(bytes));
    sum.finish()
}

/// A read through staging, piece by piece in the order of the file.
pub(crate) struct ReadTransfer {
    handle: Handle,
    file: Arc<dyn OpenFile>,
    /// `None` for an anonymous read.
    open: Option<Arc<OpenState>>,
    /// It has no open.
    anonymous: Option<Anonymous>,
    offset: u64,
    wanted: usize,
    /// Bytes read from the file and posted to the client.
    done: usize,
    cursor: Cursor,
    sum: Option<Fletcher32>,
    /// The chunk and length of the piece that a job is reading.
    job: Option<(u32, usize)>,
    /// Its hint.
    ride: Option<Box<Ride>>,
}

/// The next step of a read through staging.
enum Step {
    /// It waits for a chunk, or for the end of its connection.
    Wait,
    /// A job reads a piece into a buffer.
    Job { buffer: Arc<Buffer>, piece: usize },
    /// It is over. True at the end of the file.
    Over(Result<bool, StoreError>),
}

impl ReadTransfer {
    pub(crate) fn progress(&self) -> Progress {
        match (self.done, &self.job) {
            (0, None) => Progress::Waiting,
            (0, Some(_)) => Progress::Queued,
            _ => Progress::Begun,
        }
    }

    pub(crate) fn has_job(&self) -> bool {
        self.job.is_some()
    }

    pub(crate) fn abandon(self, staging: &mut Staging) {
        release(staging, self.job.map(|(chunk, _)| chunk));
    }

    fn piece(&self) -> usize {
        self.cursor.room().min(self.wanted - self.done).min(STAGING_CHUNK_BYTES)
    }

    /// Reads piece by piece until the transfer is done, has to wait for a device, or there is no
    /// chunk.
    fn go_on(&mut self, id: PendingId, by: &mut Transfers<'_>) -> Step {
        loop {
            let (piece, offset) = (self.piece(), self.offset + self.done as u64);
            if piece == 0 {
                return Step::Over(Ok(false));
            }
            let Some(chunk) = by.take_chunk(Flow::Out) else {
                by.wait(id, Flow::Out);
                return Step::Wait;
            };
            let buffer = by.buffer(chunk);
            let allowed = Anonymous::check(self.anonymous.as_ref());
            let now = allowed.and_then(|()| match buffer.slice(0, piece) {
                Some(view) => read_now(&*self.file, &[view], offset, piece),
                None => Err(StoreError::Io),
            });
            match now {
                Ok(ReadNow::Done(end)) => {
                    if let Some(step) = self.send(chunk, end, piece, by) {
                        return step;
                    }
                }
                Ok(ReadNow::Blocked(_)) => {
                    self.job = Some((chunk, piece));
                    return Step::Job { buffer, piece };
                }
                Err(error) => {
                    by.give_back(chunk);
                    return Step::Over(Err(error));
                }
            }
        }
    }

    /// Goes on with a piece that was read from the disk.
    fn job_done(&mut self, id: PendingId, result: JobResult, by: &mut Transfers<'_>) -> Step {
        let Some((chunk, piece)) = self.job.take() else { return Step::Wait };
        match result {
            JobResult::Read(Ok(end)) => match self.send(chunk, end, piece, by) {
                Some(step) => step,
                None => self.go_on(id, by),
            },
            result => {
                let error =
                    if let JobResult::Read(Err(error)) = result { error } else { StoreError::Io };
                by.give_back(chunk);
                Step::Over(Err(error))
            }
        }
    }

    /// Sends a piece. Returns `None` when the transfer goes on with the next one.
    fn send(
        &mut self,
        chunk: u32,
        ReadEnd { count, eof }: ReadEnd,
        piece: usize,
        by: &mut Transfers<'_>,
    ) -> Option<Step> {
        if let Some(sum) = &mut self.sum {
            sum.update(&by.bytes_mut(chunk)[..count]);
        }
        self.done += count;
        if count == 0 {
            by.give_back(chunk);
            return Some(Step::Over(Ok(eof)));
        }
        if !by.place((chunk, 0), self.cursor.take(count), true) {
            // The connection broke. Its end releases the request.
            by.give_back(chunk);
            return Some(Step::Wait);
        }
        if count < piece {
            return Some(Step::Over(Ok(eof)));
        }
        // Starts the transfer of this piece while the next one is read.
        by.flush();
        None
    }
}

pub(crate) fn read_inline(cx: &mut Context<'_>, call: &Call, args: &ReadInline) -> Done {
    let span = (args.offset, u64::from(args.byte_count));
    let (file, open) = cx.io_file(call, &args.fh, args.state_id, READ, span)?;
    let room = cx.response_bytes_max() - READ_INLINE_REPLY_DATA_AT;
    // DAFS O57: shortened, not refused.
    let wanted = (args.byte_count as usize).min(room);
    let slot = cx.take_reply(READ_INLINE_REPLY_DATA_AT + wanted)?;
    let view = cx.replies().view(slot, READ_INLINE_REPLY_DATA_AT, wanted);
    let handle = convert::handle(&args.fh);
    let ride = Ride::of(args.cache_hint, &handle, &file, args.offset);
    match read_now(&*file, &[view], args.offset, wanted) {
        Ok(ReadNow::Done(end)) => {
            let sent = send_inline(cx, call, slot, end, ride);
            cx.note_read(&file, open.as_deref(), (args.offset, end.count));
            sent
        }
        Ok(ReadNow::Blocked(done)) => {
            let (buffer, at) = cx.replies().place(slot, READ_INLINE_REPLY_DATA_AT + done);
            let (offset, left) = (args.offset + done as u64, wanted - done);
            let anonymous = cx.transfers().anonymous(&handle, open.as_ref(), READ);
            let work = Work::ReadInline { slot, done, ride };
            let memory = (ReadMemory::Buffer(buffer), at);
            let read = DiskRead::new((file, anonymous), memory, (offset, left));
            cx.defer_read((call, &handle), work, read);
            Ok(())
        }
        Err(error) => {
            cx.replies().give_back(slot);
            Err(convert::store_status(error))
        }
    }
}

pub(crate) fn read_inline_done(
    cx: &mut Context<'_>,
    call: &Call,
    (slot, done): (ReplySlot, usize),
    ride: Option<Box<Ride>>,
    result: Result<ReadEnd, StoreError>,
) -> Done {
    match total(done, result) {
        Ok(end) => send_inline(cx, call, slot, end, ride),
        Err(error) => {
            cx.replies().give_back(slot);
            Err(convert::store_status(error))
        }
    }
}

fn send_inline(
    cx: &mut Context<'_>,
    call: &Call,
    slot: ReplySlot,
    end: ReadEnd,
    ride: Option<Box<Ride>>,
) -> Done {
    cx.moved(call, end.count, 0);
    let sent = cx.send_filled(call, slot, |out, order, header| {
        encode_read_inline_head(out, order, header, end.eof, end.count)
    });
    cx.follow(ride, end.count);
    sent
}

pub(crate) fn read_direct(cx: &mut Context<'_>, call: &Call, args: &ReadDirect<'_>) -> Done {
    let span = (args.offset, u64::from(args.byte_count));
    let (file, open) = cx.io_file(call, &args.fh, args.state_id, READ, span)?;
    let mut by = cx.transfers();
    // DAFS O58: shortened, not refused.
    let wanted = (args.byte_count as usize).min(by.bytes_max());
    let buffers = buffers(args.buffers, wanted)?;
    let handle = convert::handle(&args.fh);
    let ride = Ride::of(args.cache_hint, &handle, &file, args.offset);
    if let Some(windows) = by.map(&buffers, Access::REMOTE_WRITE) {
        let file = (&handle, file, open);
        return read_mapped(cx, call, file, windows, (args.offset, wanted), ride);
    }
    let anonymous = by.anonymous(&handle, open.as_ref(), READ);
    let (calm, sum) = (by.is_calm(), by.checksums().then(Fletcher32::new));
    let (offset, done, cursor, job) = (args.offset, 0, Cursor::new(buffers), None);
    let transfer = ReadTransfer {
        handle,
        file,
        open,
        anonymous,
        offset,
        wanted,
        done,
        cursor,
        sum,
        job,
        ride,
    };
    let id = cx.defer(call, Work::Read(Box::new(transfer)));
    if calm {
        resume(cx, id);
    } else {
        cx.transfers().wait(id, Flow::Out);
    }
    Ok(())
}

fn read_mapped(
    cx: &mut Context<'_>,
    call: &Call,
    (handle, file, open): (&Handle, Arc<dyn OpenFile>, Option<Arc<OpenState>>),
    windows: Windows,
    (offset, wanted): (u64, usize),
    ride: Option<Box<Ride>>,
) -> Done {
    let checksums = cx.transfers().checksums();
    let now = read_now(&*file, &views(&windows, wanted), offset, wanted);
    match now.map_err(convert::store_status)? {
        ReadNow::Done(end) => {
            let sum = if checksums {
                checksum_of(&views(&windows, end.count), end.count)
            } else {
                Checksum::ZERO
            };
            let sent = reply_direct(cx, call, end, sum, ride);
            cx.note_read(&file, open.as_deref(), (offset, end.count));
            sent
        }
        ReadNow::Blocked(done) => {
            let memory = (ReadMemory::Windows(windows.clone()), done);
            let anonymous = cx.transfers().anonymous(handle, open.as_ref(), READ);
            let sum = Box::new(move |count| {
                if checksums { checksum_of(&views(&windows, count), count) } else { Checksum::ZERO }
            });
            let work = Work::ReadMapped { done, sum, ride };
            let rest = (offset + done as u64, wanted - done);
            let read = DiskRead::new((file, anonymous), memory, rest);
            cx.defer_read((call, handle), work, read);
            Ok(())
        }
    }
}

pub(crate) fn read_mapped_done(
    cx: &mut Context<'_>,
    call: &Call,
    (done, sum): (usize, Box<dyn FnOnce(usize) -> Checksum + Send>),
    ride: Option<Box<Ride>>,
    result: Result<ReadEnd, StoreError>,
) -> Done {
    let end = total(done, result).map_err(convert::store_status)?;
    reply_direct(cx, call, end, sum(end.count), ride)
}

fn reply_direct(
    cx: &mut Context<'_>,
    call: &Call,
    ReadEnd { count, eof }: ReadEnd,
    direct_checksum: Checksum,
    ride: Option<Box<Ride>>,
) -> Done {
    let reply = ReadDirectReply { eof, bytes_read: count as u32, direct_checksum };
    cx.moved(call, count, 0);
    let sent = cx.reply(call, &Reply::ReadDirect(reply));
    cx.follow(ride, count);
    sent
}

/// Goes on with a transfer that waited for a chunk.
pub(crate) fn resume(cx: &mut Context<'_>, id: PendingId) {
    go_on(cx, id, |transfer, by| transfer.go_on(id, by));
}

/// Goes on with a transfer whose piece was read from the disk.
pub(crate) fn job_done(cx: &mut Context<'_>, id: PendingId, result: JobResult) {
    go_on(cx, id, |transfer, by| transfer.job_done(id, result, by));
}

fn go_on(
    cx: &mut Context<'_>,
    id: PendingId,
    step: impl FnOnce(&mut ReadTransfer, &mut Transfers<'_>) -> Step,
) {
    let Some((Work::Read(transfer), mut by)) = cx.work(id) else { return };
    match step(transfer, &mut by) {
        Step::Wait => {}
        Step::Job { buffer, piece } => {
            let (file, handle) = (transfer.file.clone(), transfer.handle);
            let (anonymous, offset) =
                (transfer.anonymous.clone(), transfer.offset + transfer.done as u64);
            let memory = (ReadMemory::Buffer(buffer), 0);
            let read = DiskRead::new((file, anonymous), memory, (offset, piece));
            cx.read_disk(id, &handle, read);
        }
        Step::Over(result) => finish(cx, id, result),
    }
}

fn finish(cx: &mut Context<'_>, id: PendingId, result: Result<bool, StoreError>) {
    let Some(pending) = cx.take_pending(id) else { return };
    let Work::Read(transfer) = pending.work else { return };
    let count = transfer.done;
    let outcome = match result {
        Err(error) if count == 0 => Err(convert::store_status(error)),
        // The data before an error is good. The client gets the error when it reads on.
        result => {
            let sum = transfer.sum.map_or(Checksum::ZERO, Fletcher32::finish);
            let end = ReadEnd { count, eof: result.unwrap_or(false) };
            reply_direct(cx, &pending.call, end, sum, transfer.ride)
        }
    };
    cx.note_read(&transfer.file, transfer.open.as_deref(), (transfer.offset, count));
    cx.finish(&pending.call, outcome);
}
