//! GETATTR and READLINK (RFC 8881 18.7, 18.24).

use crate::io::place_text;
use crate::v4::attr::get::{self, Object};
use crate::v4::compound::context::OpContext;
use crate::v4::status::{OpError, OpResult, without_perm};
use dafs_service::{Handle, ServiceError};
use dafs_store::{Attr as ObjectAttr, StoreError};
use dafs_wire::nfs4::{Attr, Bitmap, GetattrArgs, Status};

/// Returns attributes. `rest` are the operations that follow.
pub(crate) fn getattr(cx: &mut OpContext<'_>, args: &GetattrArgs, rest: &[u8]) -> OpResult {
    let handle = cx.current()?;
    check_request(args.request)?;
    let attr = look(cx, &handle, rest)?;
    let names = cx.names();
    let (service, caller, minor, reply) = cx.split()?;
    let mounted_on_file_id = if args.request.contains(Attr::MountedOnFileid) {
        service.namespace().mounted_on(&handle)
    } else {
        None
    };
    let object = Object { service, caller, minor, names: &names, handle, attr, mounted_on_file_id };
    get::encode(&mut reply.encoder(), &object, args.request).map_err(without_perm)?;
    cx.await_names(names)
}

/// Returns the attributes of an object.
///
/// Linux reads attributes in front of CLOSE and DELEGRETURN. While data servers do not answer, it
/// would repeat such a request, and keep its open or delegation. Upon ACCESS it sends the request
/// again without GETATTR.
fn look(cx: &OpContext<'_>, handle: &Handle, rest: &[u8]) -> Result<ObjectAttr, OpError> {
    let attr = cx.service().delegations.attributes(cx.caller()?, handle);
    attr.map_err(|error| match error {
        ServiceError::Delay | ServiceError::Store(StoreError::Io) if cx.ends_state_next(rest) => {
            OpError::Status(Status::Access)
        }
        error => without_perm(error),
    })
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
