//! Extended attributes: GETXATTR, SETXATTR, LISTXATTRS, REMOVEXATTR (RFC 8276).
//!
//! Names have no prefix on the wire. The store keeps them in the name space of users.

use super::change_info;
use crate::v4::compound::context::OpContext;
use crate::v4::status::{OpError, OpResult, without_perm};
use dafs_service::ServiceError;
use dafs_service::durable::{Change, digest};
use dafs_store::{SetXattr, StoreError};
use dafs_wire::nfs4::{
    GetxattrArgs, GetxattrResult, ListxattrsArgs, RemovexattrArgs, RemovexattrResult, SetxattrArgs,
    SetxattrOption, SetxattrResult, Status,
};

pub(crate) fn getxattr(cx: &mut OpContext<'_>, args: &GetxattrArgs<'_>) -> OpResult {
    let handle = cx.current()?;
    check_name(args.name)?;
    let value = cx.service().xattr(cx.caller()?, &handle, args.name).map_err(without_perm)?;
    cx.answer(&GetxattrResult { value: &value })
}

pub(crate) fn setxattr(cx: &mut OpContext<'_>, args: &SetxattrArgs<'_>) -> OpResult {
    let handle = cx.current()?;
    check_name(args.name)?;
    let how = match args.option {
        SetxattrOption::Either => SetXattr::Either,
        SetxattrOption::Create => SetXattr::Create,
        SetxattrOption::Replace => SetXattr::Replace,
    };
    let (name, value) = (args.name, Some(digest(0, args.value)));
    cx.log_intent(&Change::SetXattr { file: &handle, name, value, how })?;
    let change = cx.service().set_xattr(cx.caller()?, &handle, args.name, args.value, how);
    cx.answer(&SetxattrResult { change: change_info(change.map_err(without_perm)?) })
}

pub(crate) fn removexattr(cx: &mut OpContext<'_>, args: &RemovexattrArgs<'_>) -> OpResult {
    let handle = cx.current()?;
    check_name(args.name)?;
    let how = SetXattr::Replace;
    cx.log_intent(&Change::SetXattr { file: &handle, name: args.name, value: None, how })?;
    let change =
        cx.service().remove_xattr(cx.caller()?, &handle, args.name).map_err(without_perm)?;
    cx.answer(&RemovexattrResult { change: change_info(change) })
}

/// Bytes of a result without names: cookie, count, end.
const LIST_FRAME_BYTES: usize = 8 + 4 + 4;

pub(crate) fn listxattrs(cx: &mut OpContext<'_>, args: &ListxattrsArgs) -> OpResult {
    let handle = cx.current()?;
    let names = match cx.service().list_xattrs(cx.caller()?, &handle) {
        Ok(names) => names,
        // An object that cannot have extended attributes has an empty list.
        Err(ServiceError::Store(StoreError::NotSupported)) => Vec::new(),
        Err(error) => return Err(without_perm(error)),
    };
    let start = usize::try_from(args.cookie).ok().filter(|&start| start <= names.len());
    let rest = start.and_then(|start| names.get(start..)).ok_or(Status::BadCookie)?;
    let room = (args.result_bytes_max as usize).min(cx.room());
    let mut used = LIST_FRAME_BYTES;
    let fitting = rest.iter().take_while(|name| {
        used += 4 + name.len().next_multiple_of(4);
        used <= room
    });
    let count = fitting.count();
    let eof = count == rest.len();
    if count == 0 && !eof || LIST_FRAME_BYTES > room {
        return Err(Status::TooSmall.into());
    }
    let mut encoder = cx.encoder();
    encoder.u64(args.cookie + count as u64);
    encoder.count(count);
    for name in &rest[..count] {
        encoder.opaque(name);
    }
    encoder.bool(eof);
    Ok(())
}

/// Refuses invalid names of extended attributes. A slash is allowed.
fn check_name(name: &[u8]) -> Result<(), OpError> {
    if name.is_empty() {
        return Err(Status::Inval.into());
    }
    if name.contains(&0) {
        return Err(Status::BadChar.into());
    }
    Ok(())
}
