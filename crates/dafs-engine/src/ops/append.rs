//! APPEND, inline and direct.
//!
//! Invariants
//! * All data is in memory, and its checksum has been compared, before the offset in the file is
//!   chosen. So a client that disappears in the middle leaves no data behind.
//! * The authorisation of an append is checked again when its data has come.
//! * The file chooses the offset and writes there in one step (see the service). This always runs
//!   on the pool, because appended data is stable before the reply.

use super::read::{checksum_of, scan, views};
use crate::engine::allowed::PoolAuthorisation;
use crate::engine::convert;
use crate::engine::flows::{Flow, Need};
use crate::engine::hints::Ride;
use crate::engine::request::{Call, Context, Done, Keep};
use crate::engine::staging::Staging;
use crate::engine::transfers::{Chunks, Transfers, release, remote};
use crate::engine::work::{JobResult, PendingId, Progress, Unwritten, Work};
use crate::limits::{APPEND_BYTES_MAX, STAGING_CHUNK_BYTES};
use dafs_dat::Access;
use dafs_mem::{Buffer, VolatileSlice};
use dafs_service::Handle;
use dafs_service::durable::{Change, digest};
use dafs_store::{AppendWitness, OpenFile, Stability, StoreError};
use dafs_wire::dafs::{
    self, AppendDirect, AppendInline, AppendReply, Checksum, DirectBuffer, FileHandle, Fletcher32,
    HintWord, Reply, Status, Verifier,
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
pub(crate) struct AppendTransfer {
    about: About,
    /// Read before any byte is written.
    verifier: Verifier,
    /// The data to fetch. `None` when it came inline or lies in mapped memory.
    fetch: Option<Fetch>,
    /// Chunks that hold the data, in order.
    chunks: Chunks,
    /// The append itself, while its intent waits for earlier changes.
    logged: Option<Append>,
    has_job: bool,
}

/// The properties of an append that its reply needs.
struct About {
    handle: Handle,
    committed: dafs::Stability,
    bytes: usize,
    /// Its hint. The offset is not known yet.
    ride: Option<Box<Ride>>,
}

impl About {
    fn new(
        handle: Handle,
        target: &Target,
        (committed, word): (dafs::Stability, HintWord),
        bytes: usize,
    ) -> Self {
        let ride = Ride::of(word, &handle, &target.file, 0);
        Self { handle, committed, bytes, ride }
    }
}

/// Appends on the pool.
type Append = Box<dyn FnOnce(Witness) -> JobResult + Send>;

struct Fetch {
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

/// The next step when data has been fetched.
enum Step {
    /// More of it is on its way.
    Wait,
    /// All is here: its length, its digest if changes are logged, and the append.
    Append(usize, u32, Append),
    /// The data is not that of the client.
    Refused(Status),
    /// The connection has broken, and no change was made that an answer could report.
    Abandon,
}

impl AppendTransfer {
    pub(crate) fn progress(&self) -> Progress {
        match self.has_job {
            true if self.logged.is_none() => Progress::Queued,
            false if self.chunks.is_empty() => Progress::Waiting,
            _ => Progress::Begun,
        }
    }

    pub(crate) fn has_job(&self) -> bool {
        self.has_job
    }

    /// Returns the chunks that it needs before its data is fetched.
    pub(crate) fn need(&self) -> Need {
        let chunks = self.fetch.as_ref().map_or(0, |fetch| pieces(fetch.wanted).count());
        Need { chunks, flow: Flow::In(self.about.handle.fs) }
    }

    pub(crate) fn abandon(self, staging: &mut Staging) {
        release(staging, self.chunks);
    }

    /// Fetches all data at once, or waits until there are enough chunks for that.
    fn fetch(&mut self, id: PendingId, by: &mut Transfers<'_>) {
        let Need { chunks, flow } = self.need();
        let Some(fetch) = &mut self.fetch else { return };
        let Some(chunks) = by.take_chunks(chunks, flow) else {
            return by.wait(id, flow);
        };
        self.chunks = chunks;
        fetch.missing = self.chunks.len();
        let mut at = 0;
        for (&chunk, len) in self.chunks.iter().zip(pieces(fetch.wanted)) {
            if !by.fetch(id, (chunk, 0), remote(&fetch.buffer, at, len)) {
                return;
            }
            at += len;
        }
    }

    /// Handles the arrival of a piece, or its failure.
    fn fetched(&mut self, ok: bool, by: &mut Transfers<'_>) -> Step {
        let Some(fetch) = &mut self.fetch else { return Step::Wait };
        fetch.missing -= 1;
        fetch.failed |= !ok;
        if fetch.missing > 0 {
            return Step::Wait;
        }
        // INVARIANT: checked a few lines above.
        let Some(fetch) = self.fetch.take() else { return Step::Wait };
        if fetch.failed {
            return Step::Abandon;
        }
        let (mut checksum, mut summed) = (fetch.check.map(|_| Fletcher32::new()), 0);
        let logs = by.logs_changes();
        for (&chunk, len) in self.chunks.iter().zip(pieces(fetch.wanted)) {
            let bytes = &by.bytes_mut(chunk)[..len];
            if let Some(checksum) = &mut checksum {
                checksum.update(bytes);
            }
            if logs {
                summed = digest(summed, bytes);
            }
        }
        if checksum.map(Fletcher32::finish) != fetch.check {
            return Step::Refused(Status::ChkSum);
        }
        let buffers: SmallVec<[Arc<Buffer>; 4]> =
            self.chunks.iter().map(|&chunk| by.buffer(chunk)).collect();
        let (target, wanted) = (fetch.target, fetch.wanted);
        let append = move |witness: Witness| {
            let views =
                buffers.iter().zip(pieces(wanted)).map(|(buffer, len)| buffer.slice(0, len));
            match views.collect::<Option<SmallVec<[_; 4]>>>() {
                Some(views) => target.append(&views, witness),
                None => JobResult::Offset(Err(StoreError::Io.into())),
            }
        };
        Step::Append(wanted, summed, Box::new(append))
    }
}

/// Returns the bytes of each chunk that holds a part of `wanted`.
fn pieces(wanted: usize) -> impl Iterator<Item = usize> {
    let starts = (0..wanted).step_by(STAGING_CHUNK_BYTES);
    starts.map(move |start| (wanted - start).min(STAGING_CHUNK_BYTES))
}

/// Returns the digest of data in shared memory.
fn digest_of(views: &[VolatileSlice<'_>], len: usize) -> u32 {
    let mut sum = 0;
    scan(views, len, |bytes| sum = digest(sum, bytes));
    sum
}

pub(crate) fn append_inline(cx: &mut Context<'_>, call: &Call, args: &AppendInline<'_>) -> Done {
    let handle = convert::handle(&args.fh);
    if call.keep == Keep::Reply && cx.needs_intent(call) {
        let (len, digest) = (args.data.len() as u64, digest(0, args.data));
        if cx.log_intent(call, &Change::Append { file: &handle, len, digest })? {
            return Ok(());
        }
    }
    let target = target(cx, call, &args.fh, args.state_id, (args.stable, args.data.len()))?;
    let data = cx.message_part(call, args.data, 0);
    let about = About::new(handle, &target, (args.stable, args.cache_hint), args.data.len());
    append_now(cx, call, about, move |by| target.append(&[data.view()], by));
    Ok(())
}

pub(crate) fn append_direct(cx: &mut Context<'_>, call: &Call, args: &AppendDirect) -> Done {
    let (handle, wanted) = (convert::handle(&args.fh), args.byte_count as usize);
    let target = target(cx, call, &args.fh, args.state_id, (args.stable, wanted))?;
    let about = About::new(handle, &target, (args.stable, args.cache_hint), wanted);
    if args.buffer.byte_count < args.byte_count {
        return Err(Status::Inval);
    }
    if wanted == 0 {
        append_now(cx, call, about, move |by| target.append(&[], by));
        return Ok(());
    }
    let buffer = DirectBuffer { byte_count: args.byte_count, ..args.buffer };
    let mut by = cx.transfers();
    let check = by.checksums().then_some(args.direct_checksum);
    if let Some(windows) = by.map(&[buffer], Access::REMOTE_READ) {
        let data = views(&windows, wanted);
        if check.is_some_and(|expected| checksum_of(&data, wanted) != expected) {
            return Err(Status::ChkSum);
        }
        let sum = if by.logs_changes() { digest_of(&data, wanted) } else { 0 };
        drop(data);
        let id = defer(cx, call, about, None);
        let append = move |by: Witness| target.append(&views(&windows, wanted), by);
        log_and_append(cx, id, (wanted, sum), Box::new(append));
        return Ok(());
    }
    let calm = by.is_calm();
    let fetch = Fetch { target, buffer, wanted, missing: 0, failed: false, check };
    let id = defer(cx, call, about, Some(fetch));
    if calm {
        resume(cx, id);
    } else {
        cx.transfers().wait(id, Flow::In(handle.fs));
    }
    Ok(())
}

/// Returns the target of either kind of append, if that is allowed.
fn target(
    cx: &mut Context<'_>,
    call: &Call,
    fh: &FileHandle,
    id: dafs::StateId,
    (stable, wanted): (dafs::Stability, usize),
) -> Result<Target, Status> {
    let span = cx.service().locks.append_span(&convert::handle(fh)).map_err(convert::status)?;
    let (file, allowed) = cx.write_target(call, fh, id, span)?;
    if stable == dafs::Stability::Unstable {
        return Err(Status::Inval);
    }
    if wanted > APPEND_BYTES_MAX {
        // DAFS O51.
        return Err(Status::WriteTooBig);
    }
    let allowed = cx.transfers().pool_authorisation(&allowed);
    Ok(Target { file, allowed, stable: convert::stability(stable) })
}

/// Appends data that is accessible already.
fn append_now(
    cx: &mut Context<'_>,
    call: &Call,
    about: About,
    append: impl FnOnce(Witness) -> JobResult + Send + 'static,
) {
    let id = defer(cx, call, about, None);
    submit(cx, id, call, append);
}

fn submit(
    cx: &mut Context<'_>,
    id: PendingId,
    call: &Call,
    append: impl FnOnce(Witness) -> JobResult + Send + 'static,
) {
    let witness = cx.witness(call);
    let Some((Work::Append(transfer), _)) = cx.work(id) else { return };
    let handle = transfer.about.handle;
    cx.submit(id, &handle, move || append(witness));
}

fn defer(cx: &mut Context<'_>, call: &Call, about: About, fetch: Option<Fetch>) -> PendingId {
    let (chunks, logged, has_job) = (Chunks::new(), None, fetch.is_none());
    let verifier = cx.transfers().write_verifier();
    let transfer = AppendTransfer { about, verifier, fetch, chunks, logged, has_job };
    cx.defer(call, Work::Append(Box::new(transfer)))
}

/// Logs the intent of an APPEND_DIRECT, if needed, and appends. All its data is here.
fn log_and_append(
    cx: &mut Context<'_>,
    id: PendingId,
    (len, digest): (usize, u32),
    append: Append,
) {
    let Some((Work::Append(transfer), by)) = cx.work(id) else { return };
    if by.is_closing() {
        // The append has not begun.
        return cx.abandon(id);
    }
    transfer.has_job = true;
    let file = transfer.about.handle;
    let change = Change::Append { file: &file, len: len as u64, digest };
    match cx.log_fetched_intent(id, &change) {
        Ok(true) => {
            if let Some((Work::Append(transfer), _)) = cx.work(id) {
                transfer.logged = Some(append);
            }
        }
        Ok(false) => go_on_with(cx, id, append),
        Err(status) => cx.refuse(id, status),
    }
}

/// Goes on with an append whose intent was logged, or was not.
pub(crate) fn intent_logged(cx: &mut Context<'_>, id: PendingId, result: JobResult) {
    let Some((Work::Append(transfer), by)) = cx.work(id) else { return };
    let Some(append) = transfer.logged.take() else { return };
    if by.is_closing() {
        return cx.abandon(id);
    }
    if matches!(result, JobResult::Journal(Ok(()))) {
        return go_on_with(cx, id, append);
    }
    cx.intent_failed(id, result);
}

fn go_on_with(cx: &mut Context<'_>, id: PendingId, append: Append) {
    if let Some(call) = cx.call_of(id) {
        submit(cx, id, &call, append);
    }
}

/// Goes on with an append that waited for chunks.
pub(crate) fn resume(cx: &mut Context<'_>, id: PendingId) {
    if let Some((Work::Append(transfer), mut by)) = cx.work(id) {
        transfer.fetch(id, &mut by);
    }
}

/// Goes on with an append for which the end of an RDMA read has come.
pub(crate) fn fetched(cx: &mut Context<'_>, id: PendingId, ok: bool) {
    let Some((Work::Append(transfer), mut by)) = cx.work(id) else { return };
    match transfer.fetched(ok, &mut by) {
        Step::Wait => {}
        Step::Append(len, digest, append) => log_and_append(cx, id, (len, digest), append),
        Step::Refused(status) => cx.refuse(id, status),
        Step::Abandon => cx.abandon(id),
    }
}

pub(crate) fn append_done(
    cx: &mut Context<'_>,
    call: &Call,
    transfer: AppendTransfer,
    result: Result<u64, Unwritten>,
) -> Done {
    let mut by = cx.transfers();
    let AppendTransfer { about, verifier, chunks, .. } = transfer;
    chunks.into_iter().for_each(|chunk| by.give_back(chunk));
    let offset = result.map_err(|why| match why {
        Unwritten::Refused(status) => status,
        Unwritten::Store(error) => by.sync_failed(error),
    })?;
    let reply = AppendReply { offset, verifier, committed: about.committed };
    let reply = match call.procedure {
        Some(dafs::Procedure::AppendInline) => Reply::AppendInline(reply),
        _ => Reply::AppendDirect(reply),
    };
    cx.moved(call, 0, about.bytes);
    let sent = cx.reply(call, &reply);
    cx.follow(about.ride.map(|ride| ride.at(offset)), about.bytes);
    sent
}
