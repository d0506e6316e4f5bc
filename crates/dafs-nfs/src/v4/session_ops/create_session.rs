//! CREATE_SESSION (RFC 8881 18.36).
//!
//! Invariants
//! * The sequence id of the client's one slot moves only with a success, whose result is cached for
//!   retries. A failed request can be repeated with the same sequence id.
//! * A protected record gets sessions only from its principal, with integrity.
//! * Only the principal that made the client's record can confirm it. Without state protection other
//!   principals get further sessions (RFC 8881 18.36.4), but not other users whom the kernel names. Where the
//!   client's user or that of the connection comes from a certificate, no other principal gets one.
//! * A caller that has shown no session of a client gets one only from the client's addresses.

use super::channel;
use crate::limits::SESSIONS_MAX;
use crate::principal::Principal;
use crate::v4::callback::BackParameters;
use crate::v4::compound::context::OpContext;
use crate::v4::journal::{MECHANISM, session_record};
use crate::v4::protect;
use crate::v4::session::{Creation, NewSession, SessionWeight};
use crate::v4::status::{OpError, OpResult};
use dafs_service::{ClientKey, ServiceError, Shared};
use dafs_wire::nfs4::{CreateSessionArgs, CreateSessionFlags, CreateSessionResult, Status};
use dafs_wire::xdr::{Encode, Encoder};

/// Makes a session, and confirms the client with its first one.
pub(crate) fn create_session(cx: &mut OpContext<'_>, args: &CreateSessionArgs<'_>) -> OpResult {
    let key = ClientKey(args.client_id);
    let owner = cx.shared().sessions.client(key).ok_or(Status::StaleClientId)?;
    // The record may have been replaced or have expired since.
    if owner.record().is_gone() {
        return Err(Status::StaleClientId.into());
    }
    protect::check(owner.record(), &cx.call().who)?;
    let confirmed = owner.record().is_confirmed();
    let is_certified = owner.record().identity().certificate_user().is_some();
    let certified = is_certified || cx.call().user.is_some();
    let matters = !confirmed || certified || cx.call().origin.is_certain();
    if matters && *owner.principal() != Principal::of(&cx.call().who) {
        return Err(Status::ClidInUse.into());
    }
    if !owner.record().calls_from(&cx.call().origin.client_address()) {
        return Err(Status::ClidInUse.into());
    }
    // Locked to the end, so that two requests with one sequence id do not both make a session.
    let mut slot = owner.create_slot(cx.wait()).ok_or(OpError::Wait)?;
    match slot.check(args.sequence)? {
        Creation::Replay(result) => {
            drop(slot);
            cx.encoder().raw(&result);
            return Ok(());
        }
        Creation::New => {}
    }
    if args.flags.has_unknown() {
        return Err(Status::Inval.into());
    }
    let fore = channel::fore(&args.fore)?;
    let back = channel::back(&args.back)?;
    if !owner.has_room() {
        return Err(Status::NoSpc.into());
    }
    let wants = args.flags.contains(CreateSessionFlags::PERSIST);
    let persistent = wants && cx.service().durable.keeps_all_replies();
    if !confirmed || persistent {
        // An older instance of the client is released then, after a write to disk. A persistent
        // session needs such a write, too.
        cx.may_wait()?;
    }
    while !cx.shared().sessions.has_room(&owner) {
        let now_ns = cx.call().now_ns;
        let level = (cx.shared().sessions.least_to_lose(&owner), SESSIONS_MAX);
        match cx.service().clients.make_room(Shared::Sessions, level, now_ns, cx.wait()) {
            // This host has used up its share.
            Err(ServiceError::Resource) => return Err(Status::NoSpc.into()),
            made => made?,
        }
    }
    cx.shared().confirm(&owner, cx.call().now_ns)?;
    if !confirmed {
        cx.service().durable.forget_other_runs(owner.record(), MECHANISM);
    }
    let credential = channel::credential(&args.security);
    let wants_back = args.flags.contains(CreateSessionFlags::CONN_BACK_CHAN);
    let can_back = wants_back && credential.is_some() && back.requests_max > 0;
    let parameters = BackParameters {
        program: args.callback_program,
        minor: cx.minor(),
        attributes: back,
        credential,
    };
    let host = cx.call().origin.host().to_bytes();
    let persistent = persistent.then(|| host.clone());
    let (importance, address) = (&cx.service().importance, cx.call().origin.client_address().ip);
    let name = owner.record().name();
    let importance = SessionWeight::of(importance, cx.call().who.cred.uid, address, name);
    let new = NewSession {
        importance,
        owner: owner.clone(),
        made_ns: cx.call().now_ns,
        fore,
        back: parameters,
        persistent,
    };
    let session = cx.shared().sessions.create(new)?;
    let (persistent, fore) = (session.is_persistent(), *session.fore());
    if persistent {
        let record = session_record(session.id(), session.client(), host);
        // No request of a session that is unknown after a restart was executed: its first change
        // waits until the journal has both.
        let _ = cx.service().durable.keep_session(&record, Box::new(|_| ()));
    }
    let mut flags = CreateSessionFlags::empty();
    flags.set(CreateSessionFlags::PERSIST, persistent);
    flags.set(CreateSessionFlags::CONN_BACK_CHAN, can_back);
    let result = CreateSessionResult {
        session_id: session.id(),
        sequence: args.sequence,
        flags,
        fore,
        back,
    };
    let mut bytes = Vec::new();
    result.encode(&mut Encoder::new(&mut bytes));
    cx.encoder().raw(&bytes);
    owner.created(&mut slot, args.sequence, bytes);
    drop(slot);
    if can_back {
        cx.shared().bind_back(&session, &cx.call().connection, cx.call().now_ns);
    }
    Ok(())
}
