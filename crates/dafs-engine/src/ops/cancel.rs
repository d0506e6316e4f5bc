//! X_CANCEL, an extension: takes out of the server what it has not begun.
//!
//! Invariants
//! * Each item has exactly one outcome, and it is final when the reply is sent.
//! * A request whose reply would not fit has no effect.
//! * Work that was taken out still has its own answer or completion, with the status X_CANCELED.
//! * Only work of the same session can be named.
//! * An item costs a look into a table. Only work that is taken out now costs more.

use crate::engine::back::Mail;
use crate::engine::request::{Call, Context, Done};
use crate::limits::CANCEL_ITEMS_MAX;
use dafs_wire::dafs::{
    CancelKind, CancelOutcome, CancelResult, HEADER_BYTES, Reply, Seq, Status, XCancel,
    XCancelReply,
};

/// Bytes of a list of outcomes before its first one: fixed section, count and pad.
const OUTCOMES_AT: usize = HEADER_BYTES + 8 + 8;

/// Returns the number of outcomes that fit a message.
fn outcomes_max(message_bytes: usize) -> usize {
    message_bytes.saturating_sub(OUTCOMES_AT) / 8
}

pub(crate) fn cancel(cx: &mut Context<'_>, call: &Call, args: &XCancel<'_>) -> Done {
    if args.items.len() > CANCEL_ITEMS_MAX {
        return Err(Status::Inval);
    }
    if args.items.len() > outcomes_max(cx.response_bytes_max()) {
        return Err(Status::TooSmall);
    }
    let transfers = args.items.iter().filter(|item| item.kind == CancelKind::Transfer);
    let ids = transfers.map(|item| item.request_id);
    let mut transfers = Vec::new();
    if let Some((address, batches)) = cx.session_batches() {
        let (outcomes, fresh) = batches.cancel(ids);
        transfers = outcomes;
        if fresh {
            address.post(Mail::Canceled);
        }
    }
    let mut transfers = transfers.into_iter();
    let mut outcome = |kind, (stream, sequence)| match kind {
        CancelKind::Transfer => transfers.next().unwrap_or(CancelOutcome::Unknown),
        CancelKind::Request => cx.cancel_request(stream, sequence),
    };
    let outcomes = args.items.iter().map(|item| {
        let outcome = outcome(item.kind, (item.stream, item.sequence));
        CancelResult { outcome }
    });
    let outcomes: Vec<CancelResult> = outcomes.collect();
    cx.reply(call, &Reply::XCancel(XCancelReply { outcomes: Seq::new(&outcomes) }))
}
