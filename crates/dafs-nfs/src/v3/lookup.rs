//! LOOKUP and READLINK (RFC 1813 3.3.3, 3.3.5).

use super::convert::{self, Name};
use super::{Args, Context, Done, Stop, args, attr_of};
use crate::io::place_text;
use crate::wire_handle;
use dafs_service::{Handle, ServiceError};
use dafs_store::{Attr, Kind, StoreError};
use dafs_wire::nfs3::{
    DirOpArgs, FileHandle, GetattrArgs, LookupOk, ObjectFailure, ReadlinkOk, Status,
};
use dafs_wire::xdr::{MovedData, Payload};

pub(super) fn lookup(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    let args: DirOpArgs<'_> = args(wire)?;
    let outcome = lookup_of(cx, &args);
    cx.finish(outcome, |cx| ObjectFailure { attributes: cx.attributes_of(args.dir) })
}

fn lookup_of(cx: &mut Context<'_>, args: &DirOpArgs<'_>) -> Result<(), Stop> {
    let dir = cx.handle(args.dir)?;
    let (handle, attr) = match convert::name(args.name)? {
        Name::Below(name) => {
            let found = cx.service().lookup(cx.caller(), &dir, [name]);
            let found = found.map_err(|unresolved| unresolved.error)?;
            (found.handle, found.attr)
        }
        Name::Same => (dir, Some(directory(cx, &dir)?)),
        Name::Above => {
            let above = parent(cx, &dir)?;
            (above, Some(cx.service().getattr(&above)?))
        }
    };
    // The root of another export may be closed to this caller.
    if handle.fs != dir.fs {
        cx.handle(FileHandle(&wire_handle::encode(&handle)))?;
    }
    let dir_attributes = cx.attributes(&dir);
    cx.ok(&LookupOk {
        object: FileHandle(&wire_handle::encode(&handle)),
        attributes: attr.and_then(|attr| attr_of(&handle, &attr)),
        dir_attributes,
    })
}

/// Returns the attributes of a directory.
pub(super) fn directory(cx: &Context<'_>, dir: &Handle) -> Result<Attr, Stop> {
    let attr = cx.service().getattr(dir)?;
    match attr.kind {
        Kind::Directory | Kind::AttrDirectory => Ok(attr),
        _ => Err(Status::NotDir.into()),
    }
}

/// Returns the parent directory. The root is its own parent.
pub(super) fn parent(cx: &Context<'_>, dir: &Handle) -> Result<Handle, Stop> {
    match cx.service().lookup_parent(cx.caller(), dir) {
        Ok(above) => Ok(above),
        Err(ServiceError::Store(StoreError::NotFound)) => Ok(*dir),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn readlink(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    let args: GetattrArgs<'_> = args(wire)?;
    let outcome = readlink_of(cx, &args);
    cx.finish(outcome, |cx| ObjectFailure { attributes: cx.attributes_of(args.object) })
}

fn readlink_of(cx: &mut Context<'_>, args: &GetattrArgs<'_>) -> Result<(), Stop> {
    let handle = cx.handle(args.object)?;
    let text = cx.service().readlink(cx.caller(), &handle)?;
    let attributes = cx.attributes(&handle);
    // The text itself goes where the caller wants it.
    let target = Payload::Moved(MovedData { index: 0, len: text.len() });
    cx.ok(&ReadlinkOk { attributes, target })?;
    place_text(&mut cx.reply, &text).map_err(|_| StoreError::Busy.into())
}
