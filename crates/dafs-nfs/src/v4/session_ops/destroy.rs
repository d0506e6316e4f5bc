//! DESTROY_SESSION and DESTROY_CLIENTID (RFC 8881 18.37, 18.50).

use crate::principal::Principal;
use crate::v4::compound::context::OpContext;
use crate::v4::journal::session_key;
use crate::v4::status::{OpError, OpResult};
use dafs_service::ClientKey;
use dafs_wire::nfs4::{DestroyClientidArgs, DestroySessionArgs, Status};

/// Destroys a session. Its running requests are completed, and their replies are not cached.
///
/// RFC 8881 18.37.3 requires the client to use a connection of that session. The server does not
/// enforce that. Without state protection it would protect no session, and a client whose
/// connection broke before it unmounts would leave its session behind.
pub(crate) fn destroy_session(cx: &mut OpContext<'_>, args: &DestroySessionArgs) -> OpResult {
    let own = cx.session().is_ok_and(|session| session.id() == args.session_id);
    if own && !cx.is_last() {
        return Err(Status::NotOnlyOp.into());
    }
    match cx.find_session(args.session_id) {
        // Its client asks for none of its replies any more.
        Err(OpError::Status(Status::DeadSession)) => {
            cx.service().durable.forget_session(&session_key(args.session_id));
        }
        session => cx.shared().destroy_session(&session?, cx.call().now_ns),
    }
    Ok(())
}

/// Removes a client that has neither sessions nor state, for that client only.
pub(crate) fn destroy_clientid(cx: &mut OpContext<'_>, args: &DestroyClientidArgs) -> OpResult {
    let key = ClientKey(args.client_id);
    let client = cx.service().clients.find(key)?;
    let origin = &cx.call().origin;
    // As for CREATE_SESSION: a caller whose user is only claimed could claim to be this one, unless
    // this one is proven.
    let matters = origin.is_certain() || client.identity().mechanism == "gss";
    let is_other = matters && *client.identity() != Principal::of(&cx.call().who).identity();
    if is_other || !client.calls_from(&origin.client_address()) {
        return Err(Status::StaleClientId.into());
    }
    // The durable record is removed first.
    cx.may_wait()?;
    cx.service().clients.destroy(key)?;
    cx.shared().forget_client(key);
    Ok(())
}
