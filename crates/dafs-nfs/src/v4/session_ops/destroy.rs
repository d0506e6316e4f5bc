//! DESTROY_SESSION and DESTROY_CLIENTID (RFC 8881 18.37, 18.50).

use crate::principal::Principal;
use crate::v4::compound::context::OpContext;
use crate::v4::journal::{self, session_key};
use crate::v4::protect;
use crate::v4::status::{OpError, OpResult};
use dafs_service::ClientKey;
use dafs_wire::nfs4::{DestroyClientidArgs, DestroySessionArgs, SessionId, Status};

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
            check_dead(cx, args.session_id)?;
            cx.service().durable.forget_session(&session_key(args.session_id));
        }
        session => {
            let session = session?;
            protect::check(session.client(), &cx.call().who)?;
            cx.shared().destroy_session(&session, cx.call().now_ns);
        }
    }
    Ok(())
}

/// Checks that a caller may drop the replies of a session of an earlier run. If its client has
/// proven its name, only that principal may.
///
/// # Errors
/// `WrongCred`.
fn check_dead(cx: &OpContext<'_>, id: SessionId) -> Result<(), Status> {
    let kept = journal::kept(cx.shared(), id).ok_or(Status::BadSession)?;
    let own = Principal::of(&cx.call().who).identity().principal;
    // A user is recorded as four bytes. Names of GSS-API (RFC 2743 3.2) and of certificates are longer.
    let is_proven = kept.principal.len() > size_of::<u32>();
    if is_proven && kept.principal != own { Err(Status::WrongCred) } else { Ok(()) }
}

/// Removes a client that has neither sessions nor state, for that client only.
pub(crate) fn destroy_clientid(cx: &mut OpContext<'_>, args: &DestroyClientidArgs) -> OpResult {
    let key = ClientKey(args.client_id);
    let client = cx.service().clients.find(key)?;
    protect::check(&client, &cx.call().who)?;
    let origin = &cx.call().origin;
    // As for CREATE_SESSION: a caller whose user is only claimed could claim to be this one, unless
    // this one is proven.
    let is_proven = matches!(client.identity().mechanism, "gss" | "tls");
    let matters = origin.is_certain() || is_proven || cx.call().user.is_some();
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
