//! REMOVE and RENAME (RFC 8881 18.25, 18.26).

use super::{change_info, name};
use crate::v4::compound::context::OpContext;
use crate::v4::status::{OpError, OpResult, without_perm};
use dafs_service::durable::Change;
use dafs_service::{RemoveMode, ServiceError};
use dafs_store::StoreError;
use dafs_wire::nfs4::{RemoveArgs, RemoveResult, RenameArgs, RenameResult, Status};

pub(crate) fn remove(cx: &mut OpContext<'_>, args: &RemoveArgs<'_>) -> OpResult {
    let dir = cx.current()?;
    name::check(args.name)?;
    cx.log_intent(&Change::Remove { dir: &dir, name: args.name })?;
    let change = cx.service().remove(cx.caller()?, &dir, args.name, RemoveMode::Unchecked);
    cx.answer(&RemoveResult { change: change_info(change.map_err(without_perm)?) })
}

pub(crate) fn rename(cx: &mut OpContext<'_>, args: &RenameArgs<'_>) -> OpResult {
    let from_dir = cx.saved()?;
    let to_dir = cx.current()?;
    name::check(args.old_name)?;
    name::check(args.new_name)?;
    let (from, to) = (args.old_name, args.new_name);
    cx.log_intent(&Change::Rename { from_dir: &from_dir, from, to_dir: &to_dir, to })?;
    let renamed = cx.service().rename(cx.caller()?, &from_dir, from, &to_dir, to);
    let (source, target) = renamed.map_err(|error| match error {
        // RENAME has no ISDIR: a target of another kind "exists" (RFC 8881 18.26.3).
        ServiceError::Store(StoreError::IsDirectory) => OpError::Status(Status::Exist),
        error => without_perm(error),
    })?;
    let (source, target) = (change_info(source), change_info(target));
    cx.answer(&RenameResult { source, target })
}
