//! SECINFO, SERVER_AUTH, and the credentials that trusted clients register (DAFS 4.5).
//!
//! Invariants
//! * SECINFO names what the server really accepts on the channel, and nothing else.
//! * Only a trusted client registers a credential, also one whose user is looked up meanwhile.
//! * A session releases its own registrations alone, and they end with it.

use super::request::{Call, Context, Done};
use super::work::{JobResult, Rest, Work, submit};
use crate::limits::GSS_LANE;
use dafs_service::SessionProof;
use dafs_store::Cred;
use dafs_wire::dafs::{
    AuthType, CredHandle, CredHandleBody, Credential, GssService, RegisterCred, Reply,
    SecInfoEntry, SecInfoReply, Seq, ServerAuth, ServerAuthReply, Status,
};
use smallvec::SmallVec;

/// Kerberos, 1.2.840.113554.1.2.2 (RFC 4121), without the header of DER.
const KERBEROS: &[u8] = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02";

pub(crate) fn sec_info(cx: &mut Context<'_>, call: &Call) -> Done {
    let (authenticator, peer) = (&cx.shared.authenticator, &cx.connection.peer);
    let mut entries: SmallVec<[SecInfoEntry<'static>; 5]> = SmallVec::new();
    if authenticator.gss_for(peer).is_some() {
        let services = [GssService::Privacy, GssService::Integrity, GssService::Auth];
        // On other channels nothing protects the messages.
        let services = if cx.connection.is_private() { &services[..] } else { &services[2..] };
        let entry =
            |service: &GssService| SecInfoEntry::Gss { oid: KERBEROS, qop: 0, service: *service };
        entries.extend(services.iter().map(entry));
    }
    if authenticator.allows_none(peer) || authenticator.takes_certificate(peer) {
        entries.push(SecInfoEntry::None);
    }
    if authenticator.allows_passwords(peer) {
        entries.push(SecInfoEntry::Text);
    }
    cx.reply(call, &Reply::SecInfo(SecInfoReply { entries: Seq::new(&entries[..]) }))
}

/// Returns the server's own proof: with TEXT, a name and a password that the client compares. With GSS both
/// sides have proven who they are already.
pub(crate) fn server_auth(cx: &mut Context<'_>, call: &Call, args: &ServerAuth) -> Done {
    let authenticator = cx.shared.authenticator.clone();
    let by_gss = cx.session_proof() != SessionProof::Unproven;
    let (id, password): (&[u8], &[u8]) = match (args.auth_type, authenticator.own_identity()) {
        (AuthType::None | AuthType::Default, _) => (b"", b""),
        (AuthType::Gss, _) if by_gss => (b"", b""),
        (AuthType::Text, Some(own)) => (own.id.as_bytes(), own.password.as_bytes()),
        (AuthType::Text, None) | (AuthType::Gss, _) => return Err(Status::NotSupp),
    };
    cx.reply(call, &Reply::ServerAuth(ServerAuthReply { id, password }))
}

pub(crate) fn register_cred(cx: &mut Context<'_>, call: &Call, args: &RegisterCred<'_>) -> Done {
    let proven = cx.connection.proven().ok_or(Status::NotAuthenticated)?;
    if !proven.admission.trusted {
        return Err(Status::NotAuthorized);
    }
    let cred = match args.credential {
        Credential::Id { uid, gid, groups } => Cred { uid, gid, groups: groups.iter().collect() },
        Credential::Default => proven.admission.cred.clone(),
        Credential::Name(name) | Credential::Gss(name) => return look_up(cx, call, name),
    };
    registered(cx, call, cred)
}

/// Registers the user of a principal, given in its display form. The rules for principals decide who that is.
fn look_up(cx: &mut Context<'_>, call: &Call, name: &[u8]) -> Done {
    let gss = cx.shared.authenticator.gss().cloned().ok_or(Status::NotSupp)?;
    let name = std::str::from_utf8(name).map_err(|_| Status::Inval)?.to_owned();
    let now = cx.now;
    let id = cx.defer(call, Work::Call);
    submit((&*cx.shared.pool, cx.place(GSS_LANE)), cx.inbox, id, move || {
        let mapped = gss.mapped(&name, now);
        JobResult::Call(Rest(Box::new(move |cx, call| {
            let mapped = mapped.ok_or(Status::Delay)?;
            // A client cannot act for the anonymous user.
            let cred = mapped.cred.clone().ok_or(Status::NotAuthorized)?;
            registered(cx, call, cred)
        })))
    });
    Ok(())
}

fn registered(cx: &mut Context<'_>, call: &Call, cred: Cred) -> Done {
    let session = cx.connection.session.as_mut().ok_or(Status::NotAuthenticated)?;
    // The session has agreed on no more.
    let max = session.options.max_credentials as usize;
    let proven = session.proven.as_mut().ok_or(Status::NotAuthenticated)?;
    if !proven.admission.trusted {
        return Err(Status::NotAuthorized);
    }
    let number = proven.register_cred(cred, max).ok_or(Status::NoCreds)?;
    let body = CredHandleBody { cred_handle: CredHandle(number) };
    cx.reply(call, &Reply::RegisterCred(body))
}

pub(crate) fn release_cred(cx: &mut Context<'_>, call: &Call, args: &CredHandleBody) -> Done {
    let proven = cx.connection.session.as_mut().and_then(|session| session.proven.as_mut());
    let proven = proven.ok_or(Status::NotAuthenticated)?;
    if !proven.admission.trusted {
        return Err(Status::NotAuthorized);
    }
    if !proven.release_cred(args.cred_handle.0) {
        return Err(Status::CrHandConflict);
    }
    cx.reply(call, &Reply::ReleaseCred)
}
