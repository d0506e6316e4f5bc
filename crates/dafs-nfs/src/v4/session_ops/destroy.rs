//! DESTROY_SESSION and DESTROY_CLIENTID (RFC 8881 18.37, 18.50).

use crate::principal::Principal;
use crate::v4::compound::{Compound, OpError, OpResult};
use crate::v4::journal::session_key;
use dafs_service::ClientKey;
use dafs_wire::nfs4::{DestroyClientidArgs, DestroySessionArgs, Status};

/// Ends a session. Requests of it that still run come to their end; their replies are not kept.
///
/// RFC 8881 18.37.3 obliges the client to use a connection of that session. That is not enforced:
/// without state protection it would protect nothing, and a client whose connection broke before it
/// unmounts would leave its session behind.
pub(crate) fn destroy_session(cx: &mut Compound<'_>, args: &DestroySessionArgs) -> OpResult {
    let own = cx.session.as_ref().is_some_and(|session| session.id() == args.session_id);
    if own && !cx.is_last() {
        return Err(Status::NotOnlyOp.into());
    }
    match cx.find_session(args.session_id) {
        // Its client asks for no reply of it any more.
        Err(OpError::Status(Status::DeadSession)) => {
            cx.shared.service.forget_session(&session_key(args.session_id));
        }
        session => cx.shared.destroy_session(&session?, cx.call.now_ns),
    }
    Ok(())
}

/// Forgets a client that has neither sessions nor state, for itself alone.
pub(crate) fn destroy_clientid(cx: &mut Compound<'_>, args: &DestroyClientidArgs) -> OpResult {
    let key = ClientKey(args.client_id);
    let client = cx.shared.service.find_client(key)?;
    let origin = &cx.call.origin;
    // As for CREATE_SESSION: a caller who only claims to be somebody could claim to be this one.
    let is_other =
        origin.is_certain() && *client.identity() != Principal::of(&cx.call.who).identity();
    if is_other || !client.calls_from(&origin.client_address()) {
        return Err(Status::StaleClientId.into());
    }
    // The durable record goes first.
    cx.may_wait()?;
    cx.shared.service.destroy_client(key)?;
    cx.shared.forget_client(key);
    Ok(())
}
