//! The exports that a session may use, by the flavours that they demand (`sec` of an export).
//!
//! Invariants
//! * A request is checked for each handle that it names, and for the export that its path enters. No other
//!   request leads from one export to another.
//! * Fence lists are no content of an export: their own rules decide about them.

use super::fence::named;
use crate::engine::convert;
use crate::engine::request::{Context, Done};
use dafs_service::{Export, Namespace, SessionProof};
use dafs_wire::dafs::{FileHandle, OpenClaim, Path, Request, Status};
use std::sync::Arc;

/// Refuses a request that uses an export whose flavours demand more than this session has.
pub(crate) fn check_exports(cx: &mut Context<'_>, request: &Request<'_>) -> Done {
    if !cx.exports_demand_proof() {
        return Ok(());
    }
    let (namespace, proof) = (cx.service().namespace(), cx.session_proof());
    for fh in named(request) {
        // The operation reports a handle without an export.
        if let Ok(export) = namespace.export(&convert::handle(&fh)) {
            check_proof(export, proof)?;
        }
    }
    entered(&namespace, request).map_or(Ok(()), |export| check_proof(export, proof))
}

/// Refuses an export whose flavours demand more than this.
pub(super) fn check_proof(export: &Export, proof: SessionProof) -> Done {
    match export.options().admits.admits_session(proof) {
        true => Ok(()),
        false => Err(Status::WrongSec),
    }
}

/// Returns the export that the path of a request leads into.
pub(super) fn entered<'a>(
    namespace: &'a Namespace,
    request: &Request<'_>,
) -> Option<&'a Arc<Export>> {
    let (dir, path) = walked(request)?;
    namespace.entered(&convert::handle(dir), path.iter().next()?)
}

/// Returns the path that a request follows.
fn walked<'a>(request: &'a Request<'a>) -> Option<(&'a FileHandle, Path<'a>)> {
    match request {
        Request::Lookup(args) => Some((&args.dir, args.path)),
        Request::Open(args) => match &args.claim {
            OpenClaim::Null { dir, path } | OpenClaim::DelegateCur { dir, path, .. } => {
                Some((dir, *path))
            }
            _ => None,
        },
        _ => None,
    }
}
