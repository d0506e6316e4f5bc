//! LINK (RFC 8881 18.9).

use super::{change_info, kind_of, name};
use crate::v4::compound::context::OpContext;
use crate::v4::status::{OpError, OpResult, without_perm};
use dafs_service::ServiceError;
use dafs_service::durable::Change;
use dafs_store::{Kind, StoreError};
use dafs_wire::nfs4::{LinkArgs, LinkResult, Status};

pub(crate) fn link(cx: &mut OpContext<'_>, args: &LinkArgs<'_>) -> OpResult {
    let source = cx.saved()?;
    let dir = cx.current()?;
    name::check(args.name)?;
    cx.log_intent(&Change::Link { source: &source, dir: &dir, name: args.name })?;
    let linked = cx.service().link(cx.caller()?, &source, &dir, args.name);
    let change = linked.map_err(|error| match error {
        // The store reports a wrong kind. The status depends on the kind.
        ServiceError::Store(
            StoreError::IsDirectory | StoreError::NotOwner | StoreError::BadType,
        ) => match kind_of(cx, &source) {
            Ok(Kind::Directory | Kind::AttrDirectory) => OpError::Status(Status::IsDir),
            Ok(Kind::NamedAttr) => OpError::Status(Status::WrongType),
            Ok(_) => without_perm(error),
            Err(error) => error,
        },
        error => without_perm(error),
    })?;
    cx.answer(&LinkResult { change: change_info(change) })
}
