//! CREATE (RFC 8881 18.4): makes objects other than regular files.

use super::{change_info, name};
use crate::limits::LINK_TEXT_BYTES_MAX;
use crate::v4::attr::set::{self, Purpose};
use crate::v4::compound::context::OpContext;
use crate::v4::status::{OpError, OpResult};
use dafs_service::Handle;
use dafs_service::durable::Change;
use dafs_store::{AceFlags, AclSupport, Capabilities, NewObject};
use dafs_wire::nfs4::{
    Attr, Bitmap, CreateArgs, CreateResult, CreateType, DeviceNumbers, FileType, Status,
};
use std::borrow::Cow;

pub(crate) fn create<'a>(cx: &mut OpContext<'a>, args: &CreateArgs<'a>) -> OpResult {
    let dir = cx.current()?;
    let text = match args.kind {
        CreateType::Symlink(text) if text.len() > LINK_TEXT_BYTES_MAX => {
            return Err(Status::NameTooLong.into());
        }
        CreateType::Symlink(text) => cx.args().text(text).ok_or(Status::BadXdr)?,
        _ => Cow::default(),
    };
    let object = object(&args.kind, &text)?;
    name::check(args.name)?;
    let capabilities = cx.service().capabilities(&dir)?;
    let mut change = cx.attributes(&args.attributes, &capabilities, Purpose::New)?;
    change.settle_umask(|| inherits_rights(cx, &dir, &capabilities))?;
    if change.plain.size.is_some() {
        // None of these objects has a size to set.
        return Err(Status::Inval.into());
    }
    let (kind, attr) = (object.kind(), &change.plain);
    cx.log_intent(&Change::Make { dir: &dir, name: args.name, kind, attr })?;
    let made = cx.service().make(cx.caller()?, &dir, args.name, object, &change.plain)?;
    let handle = Handle { fs: dir.fs, file: made.id };
    let attributes_set = finish_new(cx, &handle, &change);
    let result = CreateResult { change: change_info(made.dir), attributes_set };
    cx.set_current(handle);
    cx.answer(&result)
}

/// True if objects inherit rights from a directory.
pub(super) fn inherits_rights(
    cx: &OpContext<'_>,
    dir: &Handle,
    capabilities: &Capabilities,
) -> Result<bool, OpError> {
    if capabilities.acls == AclSupport::Mode {
        return Ok(false);
    }
    let inherited = AceFlags::FILE_INHERIT | AceFlags::DIRECTORY_INHERIT;
    let acl = cx.service().acl(dir)?;
    Ok(acl.entries.iter().any(|entry| entry.flags.intersects(inherited)))
}

/// Sets the access control list of a new object, and returns the attributes that have been set. The
/// object exists already, so a list that cannot be set is left out.
pub(super) fn finish_new(cx: &OpContext<'_>, handle: &Handle, change: &set::Change) -> Bitmap {
    let plain = change.mask.without(Attr::Acl.number());
    let Some(acl) = &change.acl else { return plain };
    let set = cx
        .caller()
        .and_then(|caller| cx.service().set_acl(caller, handle, acl).map_err(OpError::from));
    if set.is_ok() { change.mask } else { plain }
}

/// Converts the type of a new object. `text` is that of a symbolic link.
fn object<'a>(kind: &CreateType<'_>, text: &'a [u8]) -> Result<NewObject<'a>, Status> {
    let device = |numbers: &DeviceNumbers| (numbers.major, numbers.minor);
    Ok(match kind {
        CreateType::Symlink(_) if text.is_empty() || text.contains(&0) => {
            return Err(Status::Inval);
        }
        CreateType::Symlink(_) => NewObject::Symlink(text),
        CreateType::BlockDevice(numbers) => {
            let (major, minor) = device(numbers);
            NewObject::BlockDevice { major, minor }
        }
        CreateType::CharacterDevice(numbers) => {
            let (major, minor) = device(numbers);
            NewObject::CharDevice { major, minor }
        }
        CreateType::Plain(FileType::Directory) => NewObject::Directory,
        CreateType::Plain(FileType::Socket) => NewObject::Socket,
        CreateType::Plain(FileType::Fifo) => NewObject::Fifo,
        CreateType::Plain(_) => return Err(Status::BadType),
    })
}
