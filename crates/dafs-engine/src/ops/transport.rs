//! The refusal of requests for exports that demand more protection than the connection has.
//!
//! DAFS connections have no TLS yet, so exports with `transport_security` are open to sessions over
//! shared memory alone.
//!
//! Invariants
//! * Each request is judged by the handles that it names and by the export that its path enters, at a data
//!   server by its one export.

use super::fence::named;
use super::security::entered;
use crate::engine::convert;
use crate::engine::request::{Context, Done};
use dafs_service::TransportSecurity;
use dafs_wire::dafs::{Request, Status};

/// Refuses a request that names an object of such an export, or leads into one.
pub(crate) fn check_transport(cx: &mut Context<'_>, request: &Request<'_>) -> Done {
    let namespace = cx.service().namespace();
    if namespace.strictest_transport_security() == TransportSecurity::None || cx.is_private() {
        return Ok(());
    }
    let named = named(request).into_iter().map(|fh| convert::handle(&fh));
    let entered = entered(&namespace, request).map(|export| export.root());
    let least = named.chain(entered).map(|handle| namespace.transport_security(&handle)).max();
    match least {
        None | Some(TransportSecurity::None) => Ok(()),
        Some(least) => {
            cx.note_clear(least);
            Err(Status::Acces)
        }
    }
}
