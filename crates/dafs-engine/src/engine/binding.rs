//! CONNECT_BIND: further channels of a session (DAFS 4.2).
//!
//! Invariants
//! * The client proves on each channel the identity of its session.
//! * A session has one channel of a kind: the last one that was bound.
//! * An optimistic channel is no less protected than the connection of its session.

use super::back::{Address, Back, Mail};
use super::connection::{Channel, Phase, Session};
use super::options::message_bytes;
use super::registry::SessionEntry;
use super::request::{Call, Context, Done};
use super::session_ops::{auth_result, authenticate, begin_again};
use crate::auth::Admission;
use crate::limits::{BACK_CREDITS_DEFAULT, BACK_CREDITS_MAX};
use crate::ops::batch::Queue;
use dafs_service::Arrival;
use dafs_wire::dafs::{ChannelUse, ConnectBind, ConnectBindReply, Reply, SessionOptions, Status};

/// Binds an optional channel to a session of the same principal (DAFS 4.2).
pub(super) fn connect_bind(cx: &mut Context<'_>, call: &Call, args: &ConnectBind<'_>) -> Done {
    if args.channel_use == ChannelUse::RdmaRead {
        // DAFS O22.
        return Err(Status::RdmaReadChannelUnusable);
    }
    let is_optimistic = cx.connection.channel == Channel::Optimistic;
    if is_optimistic != (args.channel_use == ChannelUse::Optimistic) {
        return Err(Status::Inval);
    }
    let entry = cx.shared.registry.session(args.session_id).ok_or(Status::UnknownSession)?;
    let limits = &cx.shared.limits;
    let options = SessionOptions {
        max_request_size: message_bytes(args.max_request_size, limits.request_bytes_max)?,
        max_response_size: message_bytes(args.max_response_size, limits.response_bytes_max)?,
        // DAFS O27: the client states the number of calls that it accepts.
        max_requests: match args.max_requests {
            0 => BACK_CREDITS_DEFAULT.into(),
            offered => offered.min(BACK_CREDITS_MAX.into()),
        },
        use_back_control_channel: !is_optimistic,
        ..SessionOptions::default()
    };
    cx.connection.session = Some(Session {
        id: args.session_id,
        options,
        client_name: Vec::new(),
        client_verifier: 0,
        client_key: entry.client,
        arrival: Arrival::default(),
        fence_id: entry.fence_id,
        proven: None,
        ticket: None,
        last_open: None,
        replies: None,
    });
    let outcome = authenticate(cx, call, &args.auth);
    if outcome.is_err() {
        begin_again(cx);
    }
    outcome
}

/// Binds a channel after the proof of its binding was accepted. The identity must be that of
/// the session.
pub(super) fn bind_done(cx: &mut Context<'_>, call: &Call, admission: &Admission) -> Done {
    let bound = cx.connection.session.as_ref().ok_or(Status::IllegalState)?;
    let entry = cx.shared.registry.session(bound.id).ok_or(Status::UnknownSession)?;
    if admission.identity != entry.identity {
        return Err(Status::NotAuthorized);
    }
    if cx.connection.channel == Channel::Optimistic {
        return bind_optimistic(cx, call, admission, &entry);
    }
    // Work that the former channel has begun must not overtake requests that the client submits
    // again on this channel.
    if !cx.shared.registry.stop_batches(bound.id) {
        return Err(Status::Delay);
    }
    let reply = bind_reply(&bound.options, admission);
    let (id, options) = (bound.id, bound.options);
    let bytes = options.max_request_size.max(options.max_response_size);
    cx.connection.receives.retire_shorter(bytes as usize);
    cx.connection.establish(Phase::Bound);
    cx.reply(call, &Reply::ConnectBind(reply))?;
    let address = Address::new(cx.inbox, cx.port, cx.connection.endpoint);
    let Ok((former, batches)) = cx.shared.registry.bind_back(id, &address) else {
        cx.drop_session("the session of the channel has just ended");
        return Ok(());
    };
    if let Some(former) = former {
        // The client knows best which of its connections works.
        former.post(Mail::Leave("another back-control channel has taken its place"));
    }
    let credits = u16::try_from(options.max_requests).unwrap_or(1);
    cx.connection.batch = Some(Box::new(Queue::of_channel(batches)));
    cx.start_back(Back::new(id, entry.record, address, entry.checksums, credits));
    Ok(())
}

/// Binds an optimistic channel. It is no less protected than the session, whose data it carries.
fn bind_optimistic(
    cx: &mut Context<'_>,
    call: &Call,
    admission: &Admission,
    entry: &SessionEntry,
) -> Done {
    let bound = cx.connection.session.as_ref().ok_or(Status::IllegalState)?;
    if cx.connection.peer.transport_security() < entry.security {
        return Err(Status::NotAuthorized);
    }
    if entry.checksums {
        return Err(Status::NotSupp);
    }
    if cx.are_looks_late() {
        return Err(Status::Delay);
    }
    let (id, options) = (bound.id, bound.options);
    let address = Address::new(cx.inbox, cx.port, cx.connection.endpoint);
    // First, because the session's connection may be another reactor's.
    let Ok(former) = cx.shared.registry.bind_optimistic(id, &address) else {
        cx.drop_session("the session of the channel has just ended");
        return Ok(());
    };
    if let Some(former) = former {
        former.post(Mail::Leave("another optimistic channel has taken its place"));
    }
    let bytes = options.max_request_size.max(options.max_response_size);
    cx.connection.receives.retire_shorter(bytes as usize);
    cx.connection.establish(Phase::Bound);
    cx.reply(call, &Reply::ConnectBind(bind_reply(&options, admission)))
}

fn bind_reply<'a>(options: &SessionOptions, admission: &'a Admission) -> ConnectBindReply<'a> {
    ConnectBindReply {
        max_request_size: options.max_request_size,
        max_response_size: options.max_response_size,
        max_requests: options.max_requests,
        auth: auth_result(admission),
        trusted: admission.trusted,
    }
}
