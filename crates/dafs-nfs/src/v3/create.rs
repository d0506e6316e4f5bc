//! CREATE, MKDIR, SYMLINK, MKNOD (RFC 1813 3.3.8 to 3.3.11).

use super::{Args, Context, Done, Stop, args, attr_of, convert};
use crate::limits::LINK_TEXT_BYTES_MAX;
use crate::wire_handle;
use dafs_service::Handle;
use dafs_service::durable::Change;
use dafs_store::{Attr, CreateHow, DirChange, FileId, Kind, NewObject, SetAttr};
use dafs_wire::nfs3::{
    self, ChangeFailure, CreateArgs, CreateOk, DirOpArgs, FileHandle, MkdirArgs, MknodArgs,
    MknodObject, SetAttributes, Status, SymlinkArgs,
};

pub(super) fn create(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    let args: CreateArgs<'_> = args(wire)?;
    let outcome = create_of(cx, &args);
    finish(cx, outcome, &args.place)
}

fn create_of(cx: &mut Context<'_>, args: &CreateArgs<'_>) -> Result<(), Stop> {
    let dir = cx.handle(args.place.dir)?;
    let name = convert::new_name(args.place.name)?;
    let (how, attr) = match args.how {
        nfs3::CreateHow::Unchecked(attr) => (CreateHow::Unchecked, convert::set_attr(&attr)?),
        nfs3::CreateHow::Guarded(attr) => (CreateHow::Guarded, convert::set_attr(&attr)?),
        // The attributes come with a SETATTR. From then on the times do not hold the verifier any
        // more.
        nfs3::CreateHow::Exclusive(verifier) => {
            (CreateHow::Exclusive(verifier), SetAttr::default())
        }
    };
    cx.guard(&Change::Create { dir: &dir, name, attr: &attr })?;
    let made = cx.service().stateless_create(cx.caller(), &dir, name, how, &attr)?;
    answer(cx, &dir, made.handle.file, &made.attr, &made.dir)
}

/// Writes the results of a procedure that made an object.
fn answer(
    cx: &mut Context<'_>,
    dir: &Handle,
    file: FileId,
    attr: &Attr,
    change: &DirChange,
) -> Result<(), Stop> {
    let handle = Handle { fs: dir.fs, file };
    let bytes = wire_handle::encode(&handle);
    let dir = cx.wcc(dir, change);
    cx.ok(&CreateOk { object: Some(FileHandle(&bytes)), attributes: attr_of(&handle, attr), dir })
}

fn finish(cx: &mut Context<'_>, outcome: Result<(), Stop>, place: &DirOpArgs<'_>) -> Done {
    cx.finish(outcome, |cx| ChangeFailure { wcc: cx.wcc_of(place.dir) })
}

fn make(
    cx: &mut Context<'_>,
    place: &DirOpArgs<'_>,
    object: NewObject<'_>,
    attributes: &SetAttributes,
) -> Result<(), Stop> {
    let dir = cx.handle(place.dir)?;
    let name = convert::new_name(place.name)?;
    let attr = SetAttr { size: None, ..convert::set_attr(attributes)? };
    // Only the name of a new object exists before, so its kind does not matter.
    cx.guard(&Change::Make { dir: &dir, name, kind: Kind::Directory, attr: &attr })?;
    let made = cx.service().make(cx.caller(), &dir, name, object, &attr)?;
    answer(cx, &dir, made.id, &made.attr, &made.dir)
}

pub(super) fn mkdir(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    let args: MkdirArgs<'_> = args(wire)?;
    let outcome = make(cx, &args.place, NewObject::Directory, &args.attributes);
    finish(cx, outcome, &args.place)
}

pub(super) fn symlink(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    let args: SymlinkArgs<'_> = args(wire)?;
    let outcome = if args.target.len() > LINK_TEXT_BYTES_MAX {
        Err(Status::NameTooLong.into())
    } else {
        let target = wire.text(args.target).ok_or(Stop::Garbage)?;
        make(cx, &args.place, NewObject::Symlink(&target), &args.attributes)
    };
    finish(cx, outcome, &args.place)
}

pub(super) fn mknod(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    let args: MknodArgs<'_> = args(wire)?;
    let (object, attributes) = match args.object {
        MknodObject::BlockDevice { attributes, device: (major, minor) } => {
            (NewObject::BlockDevice { major, minor }, attributes)
        }
        MknodObject::CharDevice { attributes, device: (major, minor) } => {
            (NewObject::CharDevice { major, minor }, attributes)
        }
        MknodObject::Socket(attributes) => (NewObject::Socket, attributes),
        MknodObject::Fifo(attributes) => (NewObject::Fifo, attributes),
        MknodObject::Other(_) => {
            return finish(cx, Err(Status::BadType.into()), &args.place);
        }
    };
    let outcome = make(cx, &args.place, object, &attributes);
    finish(cx, outcome, &args.place)
}
