//! X_CANCEL, an extension: takes out of the server what it has not begun.
//!
//! Invariants
//! * Each item has exactly one outcome, and it is final when the reply is sent.
//! * Work that was taken out still has its own answer or completion, with the status X_CANCELED.
//! * Only work of the same session can be named.

use crate::engine::back::Mail;
use crate::engine::request::{Call, Context, Done};
use crate::limits::CANCEL_ITEMS_MAX;
use dafs_wire::dafs::{
    CancelKind, CancelOutcome, CancelResult, Reply, Seq, Status, XCancel, XCancelReply,
};

pub(crate) fn cancel(cx: &mut Context<'_>, call: &Call, args: &XCancel<'_>) -> Done {
    if args.items.len() > CANCEL_ITEMS_MAX {
        return Err(Status::Inval);
    }
    let batches = cx.session_batches();
    let mut waiting = None;
    let mut outcomes = Vec::with_capacity(args.items.len());
    let mut drops = false;
    for item in args.items.iter() {
        let outcome = match item.kind {
            CancelKind::Transfer => {
                let outcome = batches
                    .as_ref()
                    .map_or(CancelOutcome::Unknown, |(_, batches)| batches.cancel(item.request_id));
                drops |= outcome == CancelOutcome::Canceled;
                outcome
            }
            CancelKind::Request => {
                let waiting = waiting.get_or_insert_with(|| cx.waiting_requests());
                cx.cancel_request(waiting, (item.stream, item.sequence))
            }
        };
        outcomes.push(CancelResult { outcome });
    }
    if let Some((address, _)) = batches.filter(|_| drops) {
        address.post(Mail::Canceled);
    }
    cx.reply(call, &Reply::XCancel(XCancelReply { outcomes: Seq::new(&outcomes) }))
}
