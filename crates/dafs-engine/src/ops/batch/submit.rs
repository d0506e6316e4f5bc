//! BATCH_SUBMIT and HURRY_UP on the operation channel.

use super::load::{self, Owner, SyncBatch};
use super::{Finished, Submission, Transfer, completion, queue};
use crate::engine::back::Mail;
use crate::engine::convert;
use crate::engine::request::{Call, Context, Done};
use crate::engine::work::Work;
use crate::limits::{BATCH_WINDOW_MAX, BUFFERS_PER_REQUEST_MAX};
use crate::ops::read::READ;
use crate::ops::write::WRITE;
use dafs_wire::dafs::{
    BatchCompletions, BatchSubmit, Checksum, FileChunk, HEADER_BYTES, HurryUp, ReadWrite,
    ReadWriteRequest, Reply, Seq, Status,
};
use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use std::time::Duration;

/// Bytes of a list of completions before its first one: fixed section, count and pad.
const COMPLETIONS_AT: usize = HEADER_BYTES + 8 + 8;

/// Returns the number of completions that fit a message.
pub(crate) fn completions_max(message_bytes: usize) -> usize {
    message_bytes.saturating_sub(COMPLETIONS_AT) / 24
}

pub(crate) fn batch_submit(cx: &mut Context<'_>, call: &Call, args: &BatchSubmit<'_>) -> Done {
    if args.synchronous { run(cx, call, args) } else { queue(cx, call, args) }
}

/// Executes all requests and answers with all completions. The two hints are ignored.
fn run(cx: &mut Context<'_>, call: &Call, args: &BatchSubmit<'_>) -> Done {
    if args.requests.len() > completions_max(cx.response_bytes_max()) {
        // DAFS O57, before any request is executed.
        return Err(Status::TooSmall);
    }
    let outstanding = cx.session_batches().map(|(_, batches)| batches);
    let mut ids = FxHashSet::default();
    let mut transfers = Vec::with_capacity(args.requests.len());
    let mut completions = Vec::with_capacity(args.requests.len());
    for (index, request) in args.requests.iter().enumerate() {
        let id = request.request_id;
        let used = outstanding.as_ref().is_some_and(|batches| batches.is_outstanding(id));
        let transfer = match ids.insert(id) && !used {
            true => transfer(cx, call, index, &request),
            false => Err(Status::Inval),
        };
        let status = transfer.as_ref().err().copied().unwrap_or(Status::Ok);
        completions.push(completion(id, status, 0, Checksum::ZERO));
        transfers.extend(transfer);
    }
    if transfers.is_empty() {
        return load::reply(cx, call, &completions);
    }
    let (left, loads) = (transfers.len(), Vec::new());
    let batch = SyncBatch { completions, left, transfers: left, loads };
    let id = cx.defer(call, Work::Batch(Box::new(batch)));
    queue::enqueue(cx, transfers, Owner::Request(id));
    queue::turn(cx);
    Ok(())
}

/// Hands the batch to the back-control channel and acknowledges it.
fn queue(cx: &mut Context<'_>, call: &Call, args: &BatchSubmit<'_>) -> Done {
    // DAFS O56.
    let (address, batches) = cx.session_batches().ok_or(Status::BackChannelUnusable)?;
    if !batches.reserve(args.requests.len(), args.num_completions) {
        return Err(Status::WhoaCowboy);
    }
    let mut transfers = Vec::with_capacity(args.requests.len());
    let mut refused = Vec::new();
    for (index, request) in args.requests.iter().enumerate() {
        let id = request.request_id;
        let entered = batches.enter(id);
        let transfer =
            if entered { transfer(cx, call, index, &request) } else { Err(Status::Inval) };
        match transfer {
            Ok(transfer) => transfers.push(transfer),
            Err(status) => {
                let completion = completion(id, status, 0, Checksum::ZERO);
                refused.push(Finished { completion, entered });
            }
        }
    }
    // X_CANCEL comes too late for them, wherever they are.
    batches.over(&refused);
    let window = Duration::from_micros(args.usec_window.into()).min(BATCH_WINDOW_MAX);
    let proof = cx.session_proof();
    let submission = Submission { transfers, refused, submitted: cx.now, window, proof };
    address.post(Mail::Batch(Box::new(submission)));
    let completions = Seq::empty();
    // The acknowledgement does not mean that the batch was executed: a client that loses its
    // session submits requests again that were not reported to it (DAFS 12).
    cx.reply(&call.unkept(), &Reply::BatchSubmit(BatchCompletions { completions }))
}

pub(crate) fn hurry_up(cx: &mut Context<'_>, call: &Call, args: &HurryUp) -> Done {
    let id = args.request_id;
    let (address, _) = cx
        .session_batches()
        .filter(|(_, batches)| batches.is_outstanding(id))
        .ok_or(Status::BatchRequestNotFound)?;
    address.post(Mail::Start(id));
    cx.reply(call, &Reply::HurryUp)
}

/// Checks one request of a batch like a READ_DIRECT or WRITE_DIRECT.
fn transfer(
    cx: &mut Context<'_>,
    call: &Call,
    index: usize,
    request: &ReadWriteRequest<'_>,
) -> Result<Transfer, Status> {
    let lists = [request.chunks.len(), request.buffers.len()];
    if lists.iter().any(|len| *len > BUFFERS_PER_REQUEST_MAX) {
        return Err(Status::Inval);
    }
    let chunks: SmallVec<[FileChunk; 1]> = request.chunks.iter().collect();
    let wanted: u64 = chunks.iter().map(|chunk| u64::from(chunk.byte_count)).sum();
    let room: u64 = request.buffers.iter().map(|buffer| u64::from(buffer.byte_count)).sum();
    let past_end = |chunk: &FileChunk| {
        let end = chunk.offset.checked_add(chunk.byte_count.into());
        end.is_none_or(|end| end > i64::MAX.cast_unsigned())
    };
    if wanted != room || chunks.iter().any(past_end) {
        // DAFS O52.
        return Err(Status::Inval);
    }
    let write = request.rw_flag == ReadWrite::Write;
    let max = cx.transfers().bytes_max() as u64;
    if write && wanted > max {
        // DAFS O58.
        return Err(Status::WriteTooBig);
    }
    let need = if write { WRITE } else { READ };
    let (file, open) = cx.io_file(call, &request.fh, request.state_id, need, (0, 0))?;
    let checksums = cx.transfers().checksums();
    Ok(Transfer {
        id: request.request_id,
        index,
        handle: convert::handle(&request.fh),
        account: cx.account(call, &request.fh),
        file,
        open,
        write,
        late_writes: if write { cx.late_writes(call) } else { None },
        chunks,
        buffers: request.buffers.iter().filter(|buffer| buffer.byte_count > 0).collect(),
        bytes: wanted.min(max) as usize,
        expected: (checksums && write).then_some(request.direct_checksum),
        sum: checksums && !write,
    })
}
