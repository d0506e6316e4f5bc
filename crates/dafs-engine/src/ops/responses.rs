//! CHECK_RESPONSE, FETCH_RESPONSE and DISCARD_RESPONSES (DAFS 12).
//!
//! Invariants
//! * The session in question has ended. If its connection still lives, the session is ended first,
//!   and the answer waits until its work has stopped.
//! * To a client that asks about another client's session it seems that there is none, and the
//!   session is not affected.

use crate::engine::convert;
use crate::engine::request::{Call, Context, Done};
use crate::engine::session_ops;
use crate::limits::SMALL_REPLY_BYTES;
use dafs_service::durable::Effect;
use dafs_service::{Client, Handle, Kept, NoReply, RequestKey, Sender};
use dafs_wire::dafs::{
    AppendReply, ByteOrder, ChangeInfo, ChangeReply, CheckResponse, CreateReply, Delegation,
    DiscardResponses, ErrorBody, FetchResponseReply, HEADER_BYTES, OpenReply, OpenResultFlags,
    Procedure, RenameReply, Reply, ResponseHeader, SetAttrReply, Stability, StateId, Status,
    WriteReply, encode_response,
};
use std::sync::Arc;

pub(crate) fn check_response(cx: &mut Context<'_>, call: &Call, args: &CheckResponse) -> Done {
    match ended_reply(cx, call, args)? {
        Some(_) => cx.reply(call, &Reply::CheckResponse),
        None => Ok(()),
    }
}

/// Sends the cached body unchanged, in the byte order of the old session (DAFS 5.1).
pub(crate) fn fetch_response(cx: &mut Context<'_>, call: &Call, args: &CheckResponse) -> Done {
    let kept = match ended_reply(cx, call, args)? {
        Some(Kept::Reply(kept)) => kept,
        Some(Kept::Happened(effect)) => {
            let reply = reply_effect(cx, args.procedure, &effect)?;
            let order = cx.transfers().order();
            return fetch_made(cx, call, order, &reply);
        }
        Some(Kept::Failed) => {
            let body = ErrorBody::FetchResponse(FetchResponseReply { body: &[] });
            cx.fail_with(call, Status::Io, &body);
            return Ok(());
        }
        None => return Ok(()),
    };
    if kept.bytes.len() > cx.response_bytes_max() {
        return Err(Status::TooSmall);
    }
    let order = if kept.little_endian { ByteOrder::Little } else { ByteOrder::Big };
    let header = ResponseHeader::decode(&kept.bytes, order).map_err(|error| {
        tracing::error!(%error, "a kept reply cannot be read");
        Status::ServerFault
    })?;
    let body = FetchResponseReply { body: kept.bytes.get(HEADER_BYTES..).unwrap_or(&[]) };
    if header.status.is_ok() {
        return cx.reply(call, &Reply::FetchResponse(body));
    }
    cx.fail_with(call, header.status, &ErrorBody::FetchResponse(body));
    Ok(())
}

/// Sends the body of a newly built reply as if it had been cached. The client has not restarted
/// since, so it has the byte order of its old session.
fn fetch_made(cx: &mut Context<'_>, call: &Call, order: ByteOrder, reply: &Reply<'_>) -> Done {
    let mut message = [0; SMALL_REPLY_BYTES];
    let header = ResponseHeader::answering(&call.header, 0);
    let len = encode_response(&mut message, order, &header, reply);
    let body = len.ok().and_then(|len| message.get(HEADER_BYTES..len));
    let body = FetchResponseReply { body: body.ok_or(Status::ServerFault)? };
    cx.reply(call, &Reply::FetchResponse(body))
}

pub(crate) fn discard_responses(
    cx: &mut Context<'_>,
    call: &Call,
    args: &DiscardResponses,
) -> Done {
    let client = asking_client(cx)?;
    if session_ops::await_end(cx, call, args.session_id, &client)? {
        return Ok(());
    }
    if !cx.service().replies.discard(&client, args.session_id.0) {
        return Err(Status::UnknownSession);
    }
    cx.reply(call, &Reply::DiscardResponses)
}

/// Returns the requested reply. `None` when the request waits.
fn ended_reply(
    cx: &mut Context<'_>,
    call: &Call,
    args: &CheckResponse,
) -> Result<Option<Kept>, Status> {
    let client = asking_client(cx)?;
    if session_ops::await_end(cx, call, args.session_id, &client)? {
        return Ok(None);
    }
    let key = RequestKey {
        session: args.session_id.0,
        stream: args.stream_id,
        sequence: args.seq_number,
        procedure: args.procedure as u32,
        sender: Sender::OF_SESSION,
    };
    match cx.service().replies.find(&client, &key) {
        Ok(kept) => Ok(Some(kept)),
        Err(NoReply::UnknownSession) => Err(Status::UnknownSession),
        Err(NoReply::NotExecuted) => Err(Status::NoXidMatch),
    }
}

/// Returns the client of the request. No credential is needed (DAFS 12).
fn asking_client(cx: &Context<'_>) -> Result<Arc<Client>, Status> {
    let client = cx.client().ok_or(Status::NotAuthenticated)?;
    if client.is_gone() { Err(Status::StaleClientId) } else { Ok(client.clone()) }
}

/// Returns a reply built from the effect of a change in an earlier run. The client has to
/// reclaim its opens in any case, so an open has no state-id.
fn reply_effect(
    cx: &mut Context<'_>,
    procedure: Procedure,
    effect: &Effect,
) -> Result<Reply<'static>, Status> {
    let verifier = cx.transfers().write_verifier();
    let service = cx.service();
    let change = |dir: &Handle, before| {
        let after = service.getattr(dir).map_or(before, |attr| attr.change);
        ChangeInfo { before, after, atomic: false }
    };
    let committed = Stability::FileSync;
    Ok(match (procedure, *effect) {
        (Procedure::Create, Effect::Made { dir, object, dir_before, .. }) => {
            let fh = convert::file_handle(&object);
            Reply::Create(CreateReply { fh, change: change(&dir, dir_before) })
        }
        (Procedure::Open, Effect::Made { dir, object, dir_before, .. }) => Reply::Open(OpenReply {
            fh: convert::file_handle(&object),
            state_id: StateId::ZERO,
            change: change(&dir, dir_before),
            component_count: 0,
            result_flags: OpenResultFlags::empty(),
            delegation: Delegation::None,
        }),
        (Procedure::Remove, Effect::Removed { dir, dir_before }) => {
            Reply::Remove(ChangeReply { change: change(&dir, dir_before) })
        }
        (Procedure::Link, Effect::Linked { dir, dir_before, .. }) => {
            Reply::Link(ChangeReply { change: change(&dir, dir_before) })
        }
        (Procedure::Rename, Effect::Renamed { from_dir, from_before, to_dir, to_before }) => {
            Reply::Rename(RenameReply {
                source: change(&from_dir, from_before),
                target: change(&to_dir, to_before),
            })
        }
        // All attributes that can be set, with the requested ones among them.
        (Procedure::SetAttrInline, Effect::AttrSet { .. }) => {
            Reply::SetAttrInline(SetAttrReply { attributes: convert::SETTABLE })
        }
        (Procedure::SetAttrDirect, Effect::AttrSet { .. }) => {
            Reply::SetAttrDirect(SetAttrReply { attributes: convert::SETTABLE })
        }
        (Procedure::WriteInline, Effect::Written { len, .. }) => {
            Reply::WriteInline(WriteReply { count: len as u32, committed, verifier })
        }
        (Procedure::AppendInline, Effect::Appended { offset, .. }) => {
            Reply::AppendInline(AppendReply { offset, verifier, committed })
        }
        (Procedure::AppendDirect, Effect::Appended { offset, .. }) => {
            Reply::AppendDirect(AppendReply { offset, verifier, committed })
        }
        _ => return Err(Status::ServerFault),
    })
}
