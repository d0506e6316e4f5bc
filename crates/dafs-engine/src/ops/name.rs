//! Operations on names and handles.

use crate::engine::convert;
use crate::engine::request::{Call, Context, Done};
use dafs_service::durable::Change;
use dafs_service::{Caller, Handle, RemoveMode, Resolved, Service, Touch, Unresolved};
use dafs_store::{DirChange, NewObject};
use dafs_wire::dafs::{
    self, Access, AccessMask, AccessReply, ChangeInfo, ChangeReply, Create, CreateReply, ErrorBody,
    HandleReply, Link, Lookup, LookupP, LookupReply, ObjectType, OpenAttr, Remove, Rename,
    RenameReply, Reply, SpecData, Status,
};

pub(crate) fn get_root_handle(cx: &mut Context<'_>, call: &Call) -> Done {
    let root = cx.call_service(call, |service: &Service, _| Ok(service.root()))?;
    cx.reply(call, &Reply::GetRootHandle(HandleReply { fh: convert::file_handle(&root) }))
}

pub(crate) fn lookup(cx: &mut Context<'_>, call: &Call, args: &Lookup<'_>) -> Done {
    let dir = convert::handle(&args.dir);
    if cx.waits_for(&dir, Touch::Object) {
        let path: Vec<Vec<u8>> = args.path.into_iter().map(<[u8]>::to_vec).collect();
        return cx.call_elsewhere(
            call,
            &dir,
            move |service, caller| follow(service, caller, &dir, path.iter().map(Vec::as_slice)),
            lookup_reply,
        );
    }
    let found =
        cx.call_service_raw(call, |service, caller| follow(service, caller, &dir, args.path))?;
    lookup_reply(cx, call, found)
}

fn lookup_reply(cx: &mut Context<'_>, call: &Call, found: Result<Resolved, Unresolved>) -> Done {
    match found {
        Ok(reached) => {
            let fh = convert::file_handle(&reached.handle);
            let reply = LookupReply { fh, component_count: reached.components };
            cx.reply(call, &Reply::Lookup(reply))
        }
        Err(walked) => {
            let status = convert::status(walked.error);
            fail_walked(cx, call, status, &walked.handle, walked.components);
            Ok(())
        }
    }
}

/// Answers a failed LOOKUP or OPEN with the part of the path that was resolved (DAFS O13).
pub(crate) fn fail_walked(
    cx: &mut Context<'_>,
    call: &Call,
    status: Status,
    reached: &Handle,
    components: u32,
) {
    let fh = convert::file_handle(reached);
    let body = ErrorBody::Walked(LookupReply { fh, component_count: components });
    cx.fail_with(call, status, &body);
}

pub(crate) fn lookup_parent(cx: &mut Context<'_>, call: &Call, args: &LookupP) -> Done {
    let dir = convert::handle(&args.fh);
    cx.call_at(
        call,
        (&dir, Touch::Object),
        move |service, caller| service.lookup_parent(caller, &dir),
        |cx, call, parent| {
            let fh = convert::file_handle(&parent.map_err(convert::status)?);
            cx.reply(call, &Reply::LookupP(HandleReply { fh }))
        },
    )
}

pub(crate) fn access(cx: &mut Context<'_>, call: &Call, args: &Access) -> Done {
    let handle = convert::handle(&args.fh);
    let wanted = dafs_store::AccessMask::from_bits_truncate(args.mask.bits());
    cx.call_at(
        call,
        (&handle, Touch::Object),
        move |service, caller| service.access(caller, &handle, wanted),
        move |cx, call, granted| {
            let granted = granted.map_err(convert::status)?;
            let reply = AccessReply {
                supported: AccessMask::from_bits_truncate(wanted.bits()),
                access: AccessMask::from_bits_truncate(granted.bits()),
            };
            cx.reply(call, &Reply::Access(reply))
        },
    )
}

pub(crate) fn create(cx: &mut Context<'_>, call: &Call, args: &Create<'_>) -> Done {
    let dir = convert::handle(&args.dir);
    let object = new_object(&args.object)?;
    let attr = convert::set_attr(&args.attributes)?;
    if attr.size.is_some() {
        return Err(Status::Inval);
    }
    let (name, kind) = (args.name, object.kind());
    if cx.log_intent(call, &Change::Make { dir: &dir, name, kind, attr: &attr })? {
        return Ok(());
    }
    let text = match object {
        NewObject::Symlink(text) => text.to_vec(),
        _ => Vec::new(),
    };
    let object = with_text(&object, &[]);
    let name = args.name.to_vec();
    cx.call_at(
        call,
        (&dir, Touch::Object),
        move |service, caller| service.make(caller, &dir, &name, with_text(&object, &text), &attr),
        move |cx, call, made| {
            let made = made.map_err(convert::status)?;
            let fh = convert::file_handle(&Handle { fs: dir.fs, file: made.id });
            cx.reply(call, &Reply::Create(CreateReply { fh, change: change_info(made.dir) }))
        },
    )
}

pub(crate) fn link(cx: &mut Context<'_>, call: &Call, args: &Link<'_>) -> Done {
    let (source, dir) = (convert::handle(&args.source), convert::handle(&args.target_dir));
    if cx.log_intent(call, &Change::Link { source: &source, dir: &dir, name: args.name })? {
        return Ok(());
    }
    let name = args.name.to_vec();
    cx.call_at(
        call,
        (&dir, Touch::Object),
        move |service, caller| service.link(caller, &source, &dir, &name),
        |cx, call, change| {
            let change = change_info(change.map_err(convert::status)?);
            cx.reply(call, &Reply::Link(ChangeReply { change }))
        },
    )
}

pub(crate) fn remove(cx: &mut Context<'_>, call: &Call, args: &Remove<'_>) -> Done {
    let dir = convert::handle(&args.dir);
    if cx.log_intent(call, &Change::Remove { dir: &dir, name: args.name })? {
        return Ok(());
    }
    let mode = match args.remove_mode {
        dafs::RemoveMode::Unchecked => RemoveMode::Unchecked,
        dafs::RemoveMode::CheckOpen => RemoveMode::CheckOpen,
    };
    let name = args.name.to_vec();
    cx.call_at(
        call,
        (&dir, Touch::Data),
        move |service, caller| service.remove(caller, &dir, &name, mode),
        |cx, call, change| {
            let change = change_info(change.map_err(convert::status)?);
            cx.reply(call, &Reply::Remove(ChangeReply { change }))
        },
    )
}

pub(crate) fn rename(cx: &mut Context<'_>, call: &Call, args: &Rename<'_>) -> Done {
    let from = convert::handle(&args.source_dir);
    let to = convert::handle(&args.target_dir);
    let change =
        Change::Rename { from_dir: &from, from: args.old_name, to_dir: &to, to: args.new_name };
    if cx.log_intent(call, &change)? {
        return Ok(());
    }
    let (old, new) = (args.old_name.to_vec(), args.new_name.to_vec());
    cx.call_at(
        call,
        (&from, Touch::Data),
        move |service, caller| service.rename(caller, &from, &old, &to, &new),
        |cx, call, renamed| {
            let (source, target) = renamed.map_err(convert::status)?;
            let (source, target) = (change_info(source), change_info(target));
            cx.reply(call, &Reply::Rename(RenameReply { source, target }))
        },
    )
}

pub(crate) fn open_attr(cx: &mut Context<'_>, call: &Call, args: &OpenAttr) -> Done {
    let handle = convert::handle(&args.fh);
    cx.call_at(
        call,
        (&handle, Touch::Object),
        move |service, caller| service.attr_dir(caller, &handle),
        |cx, call, dir| {
            let fh = convert::file_handle(&dir.map_err(convert::status)?);
            cx.reply(call, &Reply::OpenAttr(HandleReply { fh }))
        },
    )
}

/// Resolves a path. For an empty one, checks the handle itself.
fn follow<'p>(
    service: &Service,
    caller: Caller<'_>,
    dir: &Handle,
    path: impl IntoIterator<Item = &'p [u8]>,
) -> Result<Resolved, Unresolved> {
    let reached = service.lookup(caller, dir, path)?;
    if reached.components == 0 {
        let (handle, components) = (*dir, 0);
        service.getattr(dir).map_err(|error| Unresolved { error, handle, components })?;
    }
    Ok(reached)
}

pub(crate) fn change_info(change: DirChange) -> ChangeInfo {
    ChangeInfo { before: change.before, after: change.after, atomic: change.atomic }
}

/// Returns the same object, with this text if it is a symbolic link.
fn with_text<'a>(object: &NewObject<'_>, text: &'a [u8]) -> NewObject<'a> {
    match *object {
        NewObject::Symlink(_) => NewObject::Symlink(text),
        NewObject::Directory => NewObject::Directory,
        NewObject::BlockDevice { major, minor } => NewObject::BlockDevice { major, minor },
        NewObject::CharDevice { major, minor } => NewObject::CharDevice { major, minor },
        NewObject::Socket => NewObject::Socket,
        NewObject::Fifo => NewObject::Fifo,
    }
}

pub(crate) fn new_object<'a>(object: &dafs::NewObject<'a>) -> Result<NewObject<'a>, Status> {
    let number = |part: u64| u32::try_from(part).map_err(|_| Status::Inval);
    let device =
        |device: &SpecData| Ok::<_, Status>((number(device.major)?, number(device.minor)?));
    Ok(match object {
        dafs::NewObject::BlockDevice(numbers) => {
            let (major, minor) = device(numbers)?;
            NewObject::BlockDevice { major, minor }
        }
        dafs::NewObject::CharDevice(numbers) => {
            let (major, minor) = device(numbers)?;
            NewObject::CharDevice { major, minor }
        }
        dafs::NewObject::Symlink(text) => NewObject::Symlink(text),
        dafs::NewObject::Plain(ObjectType::Directory) => NewObject::Directory,
        dafs::NewObject::Plain(ObjectType::Socket) => NewObject::Socket,
        dafs::NewObject::Plain(ObjectType::Fifo) => NewObject::Fifo,
        // OPEN makes regular files.
        dafs::NewObject::Plain(_) => return Err(Status::BadType),
    })
}
