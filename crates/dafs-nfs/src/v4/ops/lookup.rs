//! LOOKUP, LOOKUPP and OPENATTR: from one handle to another (RFC 8881 18.13, 18.14, 18.17).

use super::{name, not_a_directory};
use crate::v4::compound::context::OpContext;
use crate::v4::status::{self, OpError, OpResult};
use dafs_service::ServiceError;
use dafs_store::StoreError;
use dafs_wire::nfs4::{LookupArgs, OpenattrArgs, Status};

pub(crate) fn lookup(cx: &mut OpContext<'_>, args: &LookupArgs<'_>) -> OpResult {
    let dir = cx.current()?;
    name::check(args.name)?;
    let resolved = cx.service().lookup(cx.caller()?, &dir, [args.name]);
    match resolved {
        Ok(resolved) => cx.set_found(resolved.handle),
        Err(unresolved) => Err(not_a_directory(cx, &dir, unresolved.error)),
    }
}

/// The parent decides about the flavour (RFC 8881 2.6.3.1.1.4), which differs only at the root of
/// an export.
pub(crate) fn lookupp(cx: &mut OpContext<'_>) -> OpResult {
    if let Some(top) = cx.above_refused_export() {
        return cx.set_found(top);
    }
    let dir = cx.current()?;
    let parent = cx.service().lookup_parent(cx.caller()?, &dir);
    cx.set_found(parent.map_err(|error| not_a_directory(cx, &dir, error))?)
}

pub(crate) fn openattr(cx: &mut OpContext<'_>, _args: &OpenattrArgs) -> OpResult {
    let handle = cx.current()?;
    // The directory of named attributes always exists, even if it is empty, so there is none to
    // make.
    let attributes = cx.service().attr_dir(cx.caller()?, &handle).map_err(|error| {
        match error {
            // Named attributes have none themselves (RFC 8881 5.3).
            ServiceError::Store(StoreError::BadType) => OpError::Status(Status::WrongType),
            error => status::without_perm(error),
        }
    })?;
    cx.set_current(attributes);
    Ok(())
}
