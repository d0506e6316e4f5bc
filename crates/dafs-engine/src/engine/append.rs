//! APPEND, inline and direct.
//!
//! Invariants
//! * All data is in memory, and its checksum has been compared, before the offset in the file is
//!   chosen. So a client that disappears in the middle leaves no data behind.
//! * The authorisation of an append is checked again when its data has come.
//! * The file chooses the offset and writes there in one step (see the service). This always runs
//!   on the pool, because appended data is stable before the reply.

use super::Link;
use super::allowed::{Allowed, PoolAuthorisation};
use super::connection::Phase;
use super::convert;
use super::durable::journal_status;
use super::read::{Buffers, checksum_of, views};
use super::request::{Call, Context, Done, Keep};
use super::work::{JobResult, PendingId, Unwritten, Work};
use crate::limits::{APPEND_BYTES_MAX, STAGING_CHUNK_BYTES};
use dafs_dat::{Access, RemoteBuffer};
use dafs_mem::{Buffer, Site, VolatileSlice};
use dafs_service::Handle;
use dafs_service::durable::{Change, digest};
use dafs_store::{AppendWitness, OpenFile, Stability, StoreError};
use dafs_wire::dafs::{
    self, AppendDirect, AppendInline, AppendReply, Checksum, DirectBuffer, Fletcher32, Reply,
    Status, Verifier,
};
use smallvec::SmallVec;
use std::sync::Arc;

/// The target and size of an append.
struct Target {
    file: Arc<dyn OpenFile>,
    /// Its authorisation, which may end meanwhile.
    allowed: PoolAuthorisation,
    stable: Stability,
}

impl Target {
    /// Appends. Runs on the pool.
    fn append(&self, views: &[VolatileSlice<'_>], witness: Witness) -> JobResult {
        let allowed = self.allowed.check_append();
        JobResult::Offset(allowed.and_then(|()| {
            let offset = match witness {
                Some(witness) => self.file.append_witnessed(views, self.stable, &*witness),
                None => self.file.append(views, self.stable),
            };
            Ok(offset?)
        }))
    }
}

/// Records the offset of a logged append.
type Witness = Option<Arc<dyn AppendWitness>>;

/// An append whose data is being fetched, or written.
pub(super) struct AppendTransfer {
    handle: Handle,
    committed: dafs::Stability,
    /// Read before any byte is written.
    verifier: Verifier,
    /// The data to fetch. `None` when it came inline or lies in mapped memory.
    fetch: Option<Fetch>,
    /// Chunks that hold the data, in order.
    chunks: SmallVec<[u32; 4]>,
    /// The append itself, while its intent waits for earlier changes.
    logged: Option<Append>,
    has_job: bool,
}

/// Appends on the pool.
type Append = Box<dyn FnOnce(Witness) -> JobResult + Send>;

struct Fetch {
    handle: Handle,
    target: Target,
    buffer: DirectBuffer,
    wanted: usize,
    /// Chunks whose data has not come.
    missing: usize,
    /// A piece could not be fetched.
    failed: bool,
    /// The expected checksum, if the session has checksums.
    check: Option<Checksum>,
}

impl AppendTransfer {
    pub(super) fn has_job(&self) -> bool {
        self.has_job
    }

    /// Returns the number of chunks that it needs before its data is fetched.
    pub(super) fn chunks_wanted(&self) -> usize {
        self.fetch.as_ref().map_or(0, |fetch| pieces(fetch.wanted).count())
    }

    pub(super) fn abandon(self, link: &mut Link) {
        self.chunks.into_iter().for_each(|chunk| link.staging.give_back(chunk));
    }
}

/// Returns the bytes of each chunk that holds a part of `wanted`.
fn pieces(wanted: usize) -> impl Iterator<Item = usize> {
    let starts = (0..wanted).step_by(STAGING_CHUNK_BYTES);
    starts.map(move |start| (wanted - start).min(STAGING_CHUNK_BYTES))
}

/// Returns the digest of data in shared memory, computed from a private copy of each piece.
fn digest_of(views: &[VolatileSlice<'_>]) -> u32 {
    let (mut copy, mut sum) = ([0; 4096], 0);
    for view in views {
        for at in (0..view.len()).step_by(copy.len()) {
            let part = copy.len().min(view.len() - at);
            if let Some(piece) = view.slice(at, part) {
                piece.copy_to(&mut copy[..part], Site::Checksum);
            }
            sum = digest(sum, &copy[..part]);
        }
    }
    sum
}

impl Context<'_> {
    pub(super) fn append_inline(&mut self, call: &Call, args: &AppendInline<'_>) -> Done {
        let handle = convert::handle(&args.fh);
        if call.keep == Keep::Reply && self.needs_intent(call) {
            let (len, digest) = (args.data.len() as u64, digest(0, args.data));
            if self.log_intent(call, &Change::Append { file: &handle, len, digest })? {
                return Ok(());
            }
        }
        let span = self.shared.service.locks.append_span(&handle).map_err(convert::status)?;
        let file = self.write_target(call, &args.fh, args.state_id, span)?;
        let target = self.append_target(file, args.stable, args.data.len())?;
        let data = self.connection.receives.part(call.slot, args.data, 0);
        self.defer_append((call, handle), args.stable, move |by| target.append(&[data.view()], by));
        Ok(())
    }

    pub(super) fn append_direct(&mut self, call: &Call, args: &AppendDirect) -> Done {
        let handle = convert::handle(&args.fh);
        let span = self.shared.service.locks.append_span(&handle).map_err(convert::status)?;
        let file = self.write_target(call, &args.fh, args.state_id, span)?;
        let wanted = args.byte_count as usize;
        let target = self.append_target(file, args.stable, wanted)?;
        if args.buffer.byte_count < args.byte_count {
            return Err(Status::Inval);
        }
        if wanted == 0 {
            self.defer_append((call, handle), args.stable, move |by| target.append(&[], by));
            return Ok(());
        }
        let buffer = DirectBuffer { byte_count: args.byte_count, ..args.buffer };
        let buffers: Buffers = std::iter::once(buffer).collect();
        if let Some(windows) = self.map(&buffers, Access::REMOTE_READ) {
            if self.connection.checksums() {
                let mut sum = Fletcher32::new();
                checksum_of(&views(&windows, wanted), wanted, &mut sum);
                if sum.finish() != args.direct_checksum {
                    return Err(Status::ChkSum);
                }
            }
            let sum = match self.shared.service.durable.has_journal() {
                true => digest_of(&views(&windows, wanted)),
                false => 0,
            };
            let id = self.defer_transfer((call, handle), args.stable, None);
            let append = move |by: Witness| target.append(&views(&windows, wanted), by);
            self.append_data(id, (&handle, wanted, sum), Box::new(append));
            return Ok(());
        }
        let check = self.connection.checksums().then_some(args.direct_checksum);
        let fetch = Fetch { handle, target, buffer, wanted, missing: 0, failed: false, check };
        let id = self.defer_transfer((call, handle), args.stable, Some(fetch));
        if self.link.staging.is_calm() {
            self.append_fetch(id);
        } else {
            self.link.staging.wait(&self.connection.owner, id);
        }
        Ok(())
    }

    /// Checks the conditions of both kinds of append.
    fn append_target(
        &self,
        (file, allowed): (Arc<dyn OpenFile>, Allowed),
        stable: dafs::Stability,
        wanted: usize,
    ) -> Result<Target, Status> {
        if stable == dafs::Stability::Unstable {
            return Err(Status::Inval);
        }
        if wanted > APPEND_BYTES_MAX {
            // DAFS O51.
            return Err(Status::WriteTooBig);
        }
        let allowed = self.pool_authorisation(&allowed);
        Ok(Target { file, allowed, stable: convert::stability(stable) })
    }

    /// Defers an append whose data is accessible already.
    fn defer_append(
        &mut self,
        (call, handle): (&Call, Handle),
        committed: dafs::Stability,
        append: impl FnOnce(Witness) -> JobResult + Send + 'static,
    ) {
        let id = self.defer_transfer((call, handle), committed, None);
        self.submit_append(id, call, Box::new(append));
    }

    fn submit_append(&mut self, id: PendingId, call: &Call, append: Append) {
        let witness = self.witness(call);
        let Some(handle) = self.append_transfer(id).map(|transfer| transfer.handle) else { return };
        self.submit(id, &handle, move || append(witness));
    }

    fn defer_transfer(
        &mut self,
        (call, handle): (&Call, Handle),
        committed: dafs::Stability,
        fetch: Option<Fetch>,
    ) -> PendingId {
        let (chunks, has_job) = (SmallVec::new(), fetch.is_none());
        let verifier = self.write_verifier();
        let logged = None;
        let transfer =
            AppendTransfer { handle, committed, verifier, fetch, chunks, logged, has_job };
        self.defer(call, Work::Append(Box::new(transfer)))
    }

    /// Logs the intent of an APPEND_DIRECT, if needed, and appends. All its data is here.
    fn append_data(
        &mut self,
        id: PendingId,
        (file, len, digest): (&Handle, usize, u32),
        append: Append,
    ) {
        let Some(call) = self.pending.get_mut(id).map(|pending| pending.call) else { return };
        if self.connection.phase == Phase::Closing {
            // The append has not begun.
            return self.abandon(id);
        }
        let change = Change::Append { file, len: len as u64, digest };
        match self.log_fetched_intent(id, &call, &change) {
            Ok(waits) => {
                let Some(transfer) = self.append_transfer(id) else { return };
                transfer.has_job = true;
                if waits {
                    transfer.logged = Some(append);
                } else {
                    self.submit_append(id, &call, append);
                }
            }
            Err(status) => {
                let Some(pending) = self.take_pending(id) else { return };
                pending.work.abandon(self.link);
                self.fail(&call, status);
            }
        }
    }

    /// Goes on with an append whose intent was logged, or was not.
    pub(super) fn append_logged(&mut self, id: PendingId, result: JobResult) {
        let Some(append) = self.append_transfer(id).and_then(|t| t.logged.take()) else {
            return;
        };
        if self.connection.phase == Phase::Closing {
            return self.abandon(id);
        }
        let Some(call) = self.pending.get_mut(id).map(|pending| pending.call) else { return };
        if matches!(result, JobResult::Journal(Ok(()))) {
            return self.submit_append(id, &call, append);
        }
        self.abandon(id);
        self.fail(&call, journal_status(result));
    }

    fn append_transfer(&mut self, id: PendingId) -> Option<&mut AppendTransfer> {
        match &mut self.pending.get_mut(id)?.work {
            Work::Append(transfer) => Some(transfer),
            _ => None,
        }
    }

    /// Fetches all data at once, or waits until there are enough chunks for that.
    pub(super) fn append_fetch(&mut self, id: PendingId) {
        let Some(transfer) = self.append_transfer(id) else { return };
        let Some(fetch) = &mut transfer.fetch else { return };
        let (buffer, lens) = (fetch.buffer, pieces(fetch.wanted));
        let lens: SmallVec<[usize; 4]> = lens.collect();
        let mut chunks: SmallVec<[u32; 4]> = SmallVec::new();
        let (staging, owner) = (&mut self.link.staging, &self.connection.owner);
        if staging.fits(owner, lens.len()) {
            while chunks.len() < lens.len()
                && let Some(chunk) = staging.take(&mut *self.link.adapter, owner)
            {
                chunks.push(chunk);
            }
        }
        if chunks.len() < lens.len() {
            chunks.into_iter().for_each(|chunk| staging.give_back(chunk));
            return staging.wait(owner, id);
        }
        let Some(transfer) = self.append_transfer(id) else { return };
        transfer.chunks = chunks.clone();
        if let Some(fetch) = &mut transfer.fetch {
            fetch.missing = chunks.len();
        }
        let mut at = 0;
        for (chunk, len) in chunks.into_iter().zip(lens) {
            let address = buffer.address.wrapping_add(at as u64);
            let remote = RemoteBuffer { key: buffer.context, address, len: len as u32 };
            let segment = self.link.staging.segment(chunk, 0, len);
            let (endpoint, work) = (self.connection.endpoint, Self::tag_in(id, chunk));
            match self.link.adapter.rdma_read(endpoint, work, segment, remote) {
                Ok(()) => self.connection.count_fetch(self.now),
                // The end of the connection releases all its resources.
                Err(error) => {
                    return self.drop_session(&format!("data cannot be fetched: {error}"));
                }
            }
            at += len;
        }
    }

    /// Handles the arrival of a piece, or its failure.
    pub(super) fn append_fetched(&mut self, id: PendingId, ok: bool) {
        let Some(transfer) = self.append_transfer(id) else { return };
        let Some(fetch) = &mut transfer.fetch else { return };
        fetch.missing -= 1;
        fetch.failed |= !ok;
        if fetch.missing > 0 {
            return;
        }
        // INVARIANT: checked a few lines above.
        let Some(fetch) = transfer.fetch.take() else { return };
        let chunks = transfer.chunks.clone();
        let lens = pieces(fetch.wanted);
        if fetch.failed {
            // The connection has broken, and no change was made that an answer could report.
            return self.abandon(id);
        }
        let status = match fetch.check {
            Some(expected) => {
                let mut sum = Fletcher32::new();
                for (&chunk, len) in chunks.iter().zip(lens) {
                    sum.update(&self.link.staging.bytes_mut(chunk)[..len]);
                }
                if sum.finish() == expected { Ok(()) } else { Err(Status::ChkSum) }
            }
            None => Ok(()),
        };
        if let Err(status) = status {
            let Some(pending) = self.take_pending(id) else { return };
            pending.work.abandon(self.link);
            return self.fail(&pending.call, status);
        }
        let staging = &mut self.link.staging;
        let mut sum = 0;
        if self.shared.service.durable.has_journal() {
            for (&chunk, len) in chunks.iter().zip(pieces(fetch.wanted)) {
                sum = digest(sum, &staging.bytes_mut(chunk)[..len]);
            }
        }
        let buffers: SmallVec<[Arc<Buffer>; 4]> =
            chunks.iter().map(|&chunk| staging.buffer(chunk).clone()).collect();
        let (target, wanted) = (fetch.target, fetch.wanted);
        let append = move |by: Witness| {
            let views =
                buffers.iter().zip(pieces(wanted)).map(|(buffer, len)| buffer.slice(0, len));
            match views.collect::<Option<SmallVec<[_; 4]>>>() {
                Some(views) => target.append(&views, by),
                None => JobResult::Offset(Err(StoreError::Io.into())),
            }
        };
        self.append_data(id, (&fetch.handle, wanted, sum), Box::new(append));
    }

    pub(super) fn append_done(
        &mut self,
        call: &Call,
        transfer: AppendTransfer,
        result: Result<u64, Unwritten>,
    ) -> Done {
        let (committed, verifier) = (transfer.committed, transfer.verifier);
        transfer.abandon(self.link);
        let offset = result.map_err(|why| match why {
            Unwritten::Refused(status) => status,
            Unwritten::Store(error) => self.sync_failed(error),
        })?;
        let reply = AppendReply { offset, verifier, committed };
        let reply = match call.procedure {
            Some(dafs::Procedure::AppendInline) => Reply::AppendInline(reply),
            _ => Reply::AppendDirect(reply),
        };
        self.reply(call, &reply)
    }
}
