//! GETATTR and READLINK (RFC 8881 18.7, 18.24).

use crate::io::place_text;
use crate::v4::attr::get::{self, Object};
use crate::v4::compound::context::OpContext;
use crate::v4::status::{OpError, OpResult, without_perm};
use dafs_service::ServiceError;
use dafs_store::StoreError;
use dafs_wire::nfs4::{Attr, Bitmap, GetattrArgs, Status};

pub(crate) fn getattr(cx: &mut OpContext<'_>, args: &GetattrArgs) -> OpResult {
    let handle = cx.current()?;
    check_request(args.request)?;
    let names = cx.names();
    let (service, caller, minor, reply) = cx.split()?;
    let attr = service.delegations.attributes(caller, &handle).map_err(without_perm)?;
    let mounted_on_file_id = if args.request.contains(Attr::MountedOnFileid) {
        service.namespace().mounted_on(&handle)
    } else {
        None
    };
    let object = Object { service, caller, minor, names: &names, handle, attr, mounted_on_file_id };
    get::encode(&mut reply.encoder(), &object, args.request).map_err(without_perm)?;
    cx.await_names(names)
}

/// Refuses requests for attributes that can only be set (RFC 8881 18.7.3).
///
/// # Errors
/// `Inval`.
pub(super) fn check_request(request: Bitmap) -> Result<(), Status> {
    let set_only = Attr::SETTABLE.minus(Attr::GETTABLE);
    if request.and(set_only).is_empty() { Ok(()) } else { Err(Status::Inval) }
}

pub(crate) fn readlink(cx: &mut OpContext<'_>) -> OpResult {
    let handle = cx.current()?;
    let text = cx.service().readlink(cx.caller()?, &handle);
    let text = text.map_err(|error| match error {
        // Only a symbolic link has a text (RFC 8881 18.24.4).
        ServiceError::Store(
            StoreError::BadType | StoreError::Invalid | StoreError::IsDirectory,
        ) => OpError::Status(Status::WrongType),
        error => without_perm(error),
    })?;
    cx.encoder().count(text.len());
    place_text(cx.reply(), &text).map_err(|_| OpError::Status(Status::Delay))?;
    Ok(())
}
