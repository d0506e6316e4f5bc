//! The refusal of requests for exports that demand more protection than the connection has.
//!
//! Invariants
//! * Each request is judged by the handles that it names and by the export that its path enters, at a data
//!   server by its one export.
//! * Data that moves on another channel of the session than its request is judged by that channel, too.

use super::fence::named;
use super::security::{check_proof, entered};
use crate::engine::convert;
use crate::engine::request::{Context, Done};
use dafs_service::{Handle, SessionProof, TransportSecurity};
use dafs_wire::dafs::{Request, Status};

/// Refuses a request that names an object of such an export, or leads into one.
pub(crate) fn check_transport(cx: &mut Context<'_>, request: &Request<'_>) -> Done {
    let namespace = cx.service().namespace();
    let security = cx.security();
    if security >= namespace.strictest_transport_security() {
        return Ok(());
    }
    let named = named(request).into_iter().map(|fh| convert::handle(&fh));
    let entered = entered(&namespace, request).map(|export| export.root());
    let least = named.chain(entered).map(|handle| namespace.transport_security(&handle)).max();
    match least {
        Some(least) if least > security => {
            cx.note_clear(least);
            Err(Status::Acces)
        }
        _ => Ok(()),
    }
}

/// Refuses access on this bound channel to an object of an export that demands more than the channel
/// has. The session has proven `proof` on its own channel, which may be more private.
pub(crate) fn check_channel(cx: &mut Context<'_>, handle: &Handle, proof: SessionProof) -> Done {
    let namespace = cx.service().namespace();
    // The operation reports a handle without an export.
    let Ok(export) = namespace.export(handle) else { return Ok(()) };
    let least = export.options().admits.transport_security;
    if !export.options().admits.is_secure_enough(cx.security()) {
        cx.note_clear(least);
        return Err(Status::Acces);
    }
    if cx.security() != TransportSecurity::None {
        return Ok(());
    }
    check_proof(export, proof.in_the_clear())
}
