//! READ, inline and direct.
//!
//! There are three ways, best first. Inline: the kernel reads the file into the reply. Mapped:
//! where the transport lets this process access the client's memory (shared memory), the kernel
//! reads the file straight into it. Staged: the kernel reads into a chunk, and RDMA takes it from
//! there. In none of them does the server copy a byte of data in user space.
//!
//! Invariants
//! * The reactor itself reads data that is in the page cache. The pool reads other data.
//! * A transfer holds at most the chunks of its own length, and waits for its turn when its session
//!   may have no more.

use super::convert;
use super::memory::ReplySlot;
use super::request::{Call, Context, Done};
use super::work::{JobResult, PendingId, ReadEnd, Work};
use super::{Link, Tag};
use crate::limits::{BUFFERS_PER_REQUEST_MAX, STAGING_CHUNK_BYTES};
use dafs_dat::{Access, RemoteBuffer, RemoteWindow};
use dafs_mem::{Buffer, Site, VolatileSlice};
use dafs_service::Handle;
use dafs_store::{OpenFile, OpenMode, StoreError, Wait};
use dafs_wire::dafs::{
    Checksum, DirectBuffer, Fletcher32, READ_INLINE_REPLY_DATA_AT, ReadDirect, ReadDirectReply,
    ReadInline, Reply, ResponseHeader, Seq, Status, encode_read_inline_head,
};
use smallvec::SmallVec;
use std::sync::Arc;

pub(super) const READ: OpenMode = OpenMode { read: true, write: false };

/// The client's buffers of one request.
pub(super) type Buffers = SmallVec<[DirectBuffer; 2]>;

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

/// Reads all data, and waits for devices. Runs on the pool.
fn read_all(
    file: &dyn OpenFile,
    views: &[VolatileSlice<'_>],
    offset: u64,
    wanted: usize,
) -> Result<ReadEnd, StoreError> {
    let mut done = 0;
    while done < wanted {
        match file.read_at(&skip(views, done), offset + done as u64, Wait::Allowed) {
            Ok(0) => return Ok(ReadEnd { count: done, eof: true }),
            Ok(count) => done += count,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(ReadEnd { count: done, eof: false })
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
pub(super) fn skip<'a>(
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
pub(super) fn views(windows: &[RemoteWindow], wanted: usize) -> SmallVec<[VolatileSlice<'_>; 4]> {
    let mut left = wanted;
    let mut views = SmallVec::new();
    for window in windows {
        let len = window.len().min(left);
        left -= len;
        views.extend(window.view().slice(0, len).filter(|view| !view.is_empty()));
    }
    views
}

/// Adds data in shared memory to a checksum. It is computed from a private copy of each piece,
/// because a checksum of changing bytes would have no meaning.
pub(super) fn checksum_of(views: &[VolatileSlice<'_>], mut len: usize, sum: &mut Fletcher32) {
    let mut copy = [0; 4096];
    for view in views {
        let mut at = 0;
        while at < view.len() && len > 0 {
            let part = copy.len().min(view.len() - at).min(len);
            if let Some(piece) = view.slice(at, part) {
                piece.copy_to(&mut copy[..part], Site::Checksum);
            }
            sum.update(&copy[..part]);
            at += part;
            len -= part;
        }
    }
}

/// Checks the list of buffers of a request (DAFS O52) and copies it out of the message.
pub(super) fn buffers(list: Seq<'_, DirectBuffer>, wanted: usize) -> Result<Buffers, Status> {
    if list.len() > BUFFERS_PER_REQUEST_MAX {
        return Err(Status::Inval);
    }
    let buffers: Buffers = list.iter().filter(|buffer| buffer.byte_count > 0).collect();
    let sum: u64 = buffers.iter().map(|buffer| u64::from(buffer.byte_count)).sum();
    if sum < wanted as u64 { Err(Status::Inval) } else { Ok(buffers) }
}

/// A read through staging, piece by piece in the order of the file.
pub(super) struct ReadTransfer {
    handle: Handle,
    file: Arc<dyn OpenFile>,
    offset: u64,
    wanted: usize,
    /// Bytes read from the file and posted to the client.
    done: usize,
    buffers: Buffers,
    /// The index of the next client buffer, and the bytes of it that are done.
    next: (usize, usize),
    sum: Option<Fletcher32>,
    /// The chunk and length of the piece that a job is reading.
    job: Option<(u32, usize)>,
}

impl ReadTransfer {
    pub(super) fn has_job(&self) -> bool {
        self.job.is_some()
    }

    pub(super) fn abandon(self, link: &mut Link) {
        if let Some((chunk, _)) = self.job {
            link.staging.give_back(chunk);
        }
    }

    fn piece(&self) -> usize {
        let (index, used) = self.next;
        let buffer = self.buffers.get(index).map_or(0, |buffer| buffer.byte_count as usize - used);
        buffer.min(self.wanted - self.done).min(STAGING_CHUNK_BYTES)
    }
}

impl Context<'_> {
    pub(super) fn read_inline(&mut self, call: &Call, args: &ReadInline) -> Done {
        let span = (args.offset, u64::from(args.byte_count));
        let (file, _) = self.io_file(call, &args.fh, args.state_id, READ, span)?;
        let room = self.connection.response_bytes_max() - READ_INLINE_REPLY_DATA_AT;
        // DAFS O57: shortened, not refused.
        let wanted = (args.byte_count as usize).min(room);
        let slot = self.take_reply(READ_INLINE_REPLY_DATA_AT + wanted)?;
        let view = self.link.replies.view(slot, READ_INLINE_REPLY_DATA_AT, wanted);
        match read_now(&*file, &[view], args.offset, wanted) {
            Ok(ReadNow::Done(end)) => self.send_read_inline(call, slot, end),
            Ok(ReadNow::Blocked(done)) => {
                let (buffer, at) = self.link.replies.place(slot, READ_INLINE_REPLY_DATA_AT + done);
                let (offset, left) = (args.offset + done as u64, wanted - done);
                self.defer_job(
                    (call, &convert::handle(&args.fh)),
                    Work::ReadInline { slot, done },
                    move || JobResult::Read(read_into(&*file, &buffer, at, left, offset)),
                );
                Ok(())
            }
            Err(error) => {
                self.link.replies.give_back(slot);
                Err(convert::store_status(error))
            }
        }
    }

    pub(super) fn read_inline_done(
        &mut self,
        call: &Call,
        slot: ReplySlot,
        done: usize,
        result: Result<ReadEnd, StoreError>,
    ) -> Done {
        match total(done, result) {
            Ok(end) => self.send_read_inline(call, slot, end),
            Err(error) => {
                self.link.replies.give_back(slot);
                Err(convert::store_status(error))
            }
        }
    }

    fn send_read_inline(&mut self, call: &Call, slot: ReplySlot, end: ReadEnd) -> Done {
        let target = self.target(call);
        let header = ResponseHeader::answering(&call.header, target);
        let order = self.connection.order;
        let out = self.link.replies.bytes_mut(slot);
        match encode_read_inline_head(out, order, &header, end.eof, end.count) {
            Ok(len) => {
                self.send(call, slot, len, target);
                Ok(())
            }
            Err(_) => {
                self.link.replies.give_back(slot);
                Err(Status::ServerFault)
            }
        }
    }

    pub(super) fn read_direct(&mut self, call: &Call, args: &ReadDirect<'_>) -> Done {
        let span = (args.offset, u64::from(args.byte_count));
        let (file, _) = self.io_file(call, &args.fh, args.state_id, READ, span)?;
        // DAFS O58: shortened, not refused.
        let max = self.shared.limits.transfer_bytes_max as usize;
        let wanted = (args.byte_count as usize).min(max);
        let buffers = buffers(args.buffers, wanted)?;
        if let Some(windows) = self.map(&buffers, Access::REMOTE_WRITE) {
            return self.read_mapped(
                call,
                (&convert::handle(&args.fh), file),
                windows,
                args.offset,
                wanted,
            );
        }
        let transfer = ReadTransfer {
            handle: convert::handle(&args.fh),
            file,
            offset: args.offset,
            wanted,
            done: 0,
            buffers,
            next: (0, 0),
            sum: self.connection.checksums().then(Fletcher32::new),
            job: None,
        };
        let id = self.defer(call, Work::Read(Box::new(transfer)));
        if self.link.staging.is_calm() {
            self.read_more(id);
        } else {
            self.link.staging.wait(&self.connection.owner, id);
        }
        Ok(())
    }

    /// Maps the client's buffers into this process, if the transport can do that for all.
    pub(super) fn map(
        &mut self,
        buffers: &Buffers,
        need: Access,
    ) -> Option<SmallVec<[RemoteWindow; 2]>> {
        let endpoint = self.connection.endpoint;
        let windows = buffers.iter().map(|buffer| {
            let remote = RemoteBuffer {
                key: buffer.context,
                address: buffer.address,
                len: buffer.byte_count,
            };
            self.link.adapter.map_remote(endpoint, remote, need)
        });
        windows.collect()
    }

    fn read_mapped(
        &mut self,
        call: &Call,
        (handle, file): (&Handle, Arc<dyn OpenFile>),
        windows: SmallVec<[RemoteWindow; 2]>,
        offset: u64,
        wanted: usize,
    ) -> Done {
        let now = read_now(&*file, &views(&windows, wanted), offset, wanted);
        match now.map_err(convert::store_status)? {
            ReadNow::Done(end) => {
                let sum = if self.connection.checksums() {
                    window_checksum(&windows, end.count)
                } else {
                    Checksum::ZERO
                };
                self.read_direct_reply(call, end, sum)
            }
            ReadNow::Blocked(done) => {
                let checksums = self.connection.checksums();
                let job_windows = windows.clone();
                let sum = Box::new(move |count| {
                    if checksums { window_checksum(&windows, count) } else { Checksum::ZERO }
                });
                self.defer_job((call, handle), Work::ReadMapped { done, sum }, move || {
                    let views = views(&job_windows, wanted);
                    let rest = skip(&views, done);
                    let offset = offset + done as u64;
                    JobResult::Read(read_all(&*file, &rest, offset, wanted - done))
                });
                Ok(())
            }
        }
    }

    pub(super) fn read_mapped_done(
        &mut self,
        call: &Call,
        done: usize,
        sum: Box<dyn FnOnce(usize) -> Checksum + Send>,
        result: Result<ReadEnd, StoreError>,
    ) -> Done {
        let end = total(done, result).map_err(convert::store_status)?;
        self.read_direct_reply(call, end, sum(end.count))
    }

    fn read_direct_reply(&mut self, call: &Call, end: ReadEnd, direct_checksum: Checksum) -> Done {
        let ReadEnd { count, eof } = end;
        let reply = ReadDirectReply { eof, bytes_read: count as u32, direct_checksum };
        self.reply(call, &Reply::ReadDirect(reply))
    }

    /// Reads piece by piece until the transfer is done, has to wait for a device, or there is no
    /// chunk.
    pub(super) fn read_more(&mut self, id: PendingId) {
        loop {
            let Some(transfer) = self.read_transfer(id) else { return };
            let piece = transfer.piece();
            if piece == 0 {
                return self.read_finished(id, Ok(false));
            }
            let (file, handle) = (transfer.file.clone(), transfer.handle);
            let offset = transfer.offset + transfer.done as u64;
            let Some(chunk) = self.take_chunk() else {
                return self.link.staging.wait(&self.connection.owner, id);
            };
            let buffer = self.link.staging.buffer(chunk).clone();
            let now = match buffer.slice(0, piece) {
                Some(view) => read_now(&*file, &[view], offset, piece),
                None => Err(StoreError::Io),
            };
            match now {
                Ok(ReadNow::Done(end)) => {
                    if !self.read_piece(id, chunk, end, piece) {
                        return;
                    }
                }
                Ok(ReadNow::Blocked(_)) => {
                    if let Some(transfer) = self.read_transfer(id) {
                        transfer.job = Some((chunk, piece));
                    }
                    return self.submit(id, &handle, move || {
                        JobResult::Read(read_into(&*file, &buffer, 0, piece, offset))
                    });
                }
                Err(error) => {
                    self.link.staging.give_back(chunk);
                    return self.read_finished(id, Err(error));
                }
            }
        }
    }

    /// Takes a staging chunk, if one is available now.
    pub(super) fn take_chunk(&mut self) -> Option<u32> {
        let (staging, owner) = (&mut self.link.staging, &self.connection.owner);
        if staging.fits(owner, 1) { staging.take(&mut *self.link.adapter, owner) } else { None }
    }

    fn read_transfer(&mut self, id: PendingId) -> Option<&mut ReadTransfer> {
        match &mut self.pending.get_mut(id)?.work {
            Work::Read(transfer) => Some(transfer),
            _ => None,
        }
    }

    /// Handles a piece that the pool has read.
    pub(super) fn read_staged(&mut self, id: PendingId, result: JobResult) {
        let Some(transfer) = self.read_transfer(id) else { return };
        let Some((chunk, piece)) = transfer.job.take() else { return };
        match result {
            JobResult::Read(Ok(end)) => {
                if self.read_piece(id, chunk, end, piece) {
                    self.read_more(id);
                }
            }
            result => {
                let error =
                    if let JobResult::Read(Err(error)) = result { error } else { StoreError::Io };
                self.link.staging.give_back(chunk);
                self.read_finished(id, Err(error));
            }
        }
    }

    /// Sends a piece. Returns false when the transfer is over.
    fn read_piece(&mut self, id: PendingId, chunk: u32, end: ReadEnd, piece: usize) -> bool {
        let ReadEnd { count, eof } = end;
        let sum = match self.read_transfer(id) {
            Some(transfer) => transfer.sum.take(),
            None => return false,
        };
        let sum = sum.map(|mut sum| {
            sum.update(&self.link.staging.bytes_mut(chunk)[..count]);
            sum
        });
        let Some(transfer) = self.read_transfer(id) else { return false };
        transfer.sum = sum;
        let (index, used) = transfer.next;
        let buffer = transfer.buffers[index];
        transfer.done += count;
        transfer.next = if used + count >= buffer.byte_count as usize {
            (index + 1, 0)
        } else {
            (index, used + count)
        };
        if count == 0 {
            self.link.staging.give_back(chunk);
            self.read_finished(id, Ok(eof));
            return false;
        }
        let remote = RemoteBuffer {
            key: buffer.context,
            address: buffer.address.wrapping_add(used as u64),
            len: count as u32,
        };
        let segment = self.link.staging.segment(chunk, 0, count);
        let (endpoint, work) = (self.connection.endpoint, Tag::ChunkOut(chunk).pack());
        self.connection.count_posted(self.now);
        if self.link.adapter.rdma_write(endpoint, work, &[segment], remote).is_err() {
            // The connection broke. Its end releases the request.
            self.link.staging.give_back(chunk);
            return false;
        }
        if count < piece {
            self.read_finished(id, Ok(eof));
            return false;
        }
        // Starts the transfer of this piece while the next one is read.
        self.link.adapter.flush();
        true
    }

    fn read_finished(&mut self, id: PendingId, result: Result<bool, StoreError>) {
        let Some(pending) = self.take_pending(id) else { return };
        let Work::Read(transfer) = pending.work else { return };
        let outcome = match result {
            Ok(eof) => {
                let sum = transfer.sum.map_or(Checksum::ZERO, Fletcher32::finish);
                let end = ReadEnd { count: transfer.done, eof };
                self.read_direct_reply(&pending.call, end, sum)
            }
            // The data before the error is good. The client gets the error when it reads on.
            Err(_) if transfer.done > 0 => {
                let sum = transfer.sum.map_or(Checksum::ZERO, Fletcher32::finish);
                let end = ReadEnd { count: transfer.done, eof: false };
                self.read_direct_reply(&pending.call, end, sum)
            }
            Err(error) => Err(convert::store_status(error)),
        };
        self.finish(&pending.call, outcome);
    }
}

/// Reads all data into a part of a buffer. Runs on the pool.
fn read_into(
    file: &dyn OpenFile,
    buffer: &Arc<Buffer>,
    at: usize,
    len: usize,
    offset: u64,
) -> Result<ReadEnd, StoreError> {
    let view = buffer.slice(at, len).ok_or(StoreError::Io)?;
    read_all(file, &[view], offset, len)
}

fn window_checksum(windows: &[RemoteWindow], count: usize) -> Checksum {
    let mut sum = Fletcher32::new();
    checksum_of(&views(windows, count), count, &mut sum);
    sum.finish()
}
