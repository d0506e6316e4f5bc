//! Operations on names and handles.

use super::convert;
use super::request::{Call, Context, Done};
use dafs_service::{Handle, RemoveMode, Service};
use dafs_store::{DirChange, NewObject};
use dafs_wire::dafs::{
    self, Access, AccessMask, AccessReply, ChangeInfo, ChangeReply, Create, CreateReply, ErrorBody,
    HandleReply, Link, Lookup, LookupP, LookupReply, ObjectType, OpenAttr, Remove, Rename,
    RenameReply, Reply, SpecData, Status,
};

impl Context<'_> {
    pub(super) fn get_root_handle(&mut self, call: &Call) -> Done {
        let root = self.call_service(call, |service: &Service, _| Ok(service.root()))?;
        self.reply(call, &Reply::GetRootHandle(HandleReply { fh: convert::file_handle(&root) }))
    }

    pub(super) fn lookup(&mut self, call: &Call, args: &Lookup<'_>) -> Done {
        let dir = convert::handle(&args.dir);
        let found =
            self.call_service_raw(call, |service, caller| service.lookup(caller, &dir, args.path))?;
        match found {
            Ok(reached) => {
                if reached.components == 0 {
                    // Nothing has looked at the handle yet.
                    self.call_service(call, |service, _| service.getattr(&dir))?;
                }
                let fh = convert::file_handle(&reached.handle);
                let reply = LookupReply { fh, component_count: reached.components };
                self.reply(call, &Reply::Lookup(reply))
            }
            Err(walked) => {
                let status = convert::status(walked.error);
                self.fail_walked(call, status, &walked.handle, walked.components);
                Ok(())
            }
        }
    }

    /// LOOKUP and OPEN say how far they came (DAFS O13).
    pub(super) fn fail_walked(
        &mut self,
        call: &Call,
        status: Status,
        reached: &Handle,
        components: u32,
    ) {
        let fh = convert::file_handle(reached);
        let body = ErrorBody::Walked(LookupReply { fh, component_count: components });
        self.fail_with(call, status, &body);
    }

    pub(super) fn lookup_parent(&mut self, call: &Call, args: &LookupP) -> Done {
        let dir = convert::handle(&args.fh);
        let parent =
            self.call_service(call, |service, caller| service.lookup_parent(caller, &dir))?;
        self.reply(call, &Reply::LookupP(HandleReply { fh: convert::file_handle(&parent) }))
    }

    pub(super) fn access(&mut self, call: &Call, args: &Access) -> Done {
        let handle = convert::handle(&args.fh);
        let wanted = dafs_store::AccessMask::from_bits_truncate(args.mask.bits());
        let granted =
            self.call_service(call, |service, caller| service.access(caller, &handle, wanted))?;
        let reply = AccessReply {
            supported: AccessMask::from_bits_truncate(wanted.bits()),
            access: AccessMask::from_bits_truncate(granted.bits()),
        };
        self.reply(call, &Reply::Access(reply))
    }

    pub(super) fn create(&mut self, call: &Call, args: &Create<'_>) -> Done {
        let dir = convert::handle(&args.dir);
        let object = new_object(&args.object)?;
        let attr = convert::set_attr(&args.attributes)?;
        if attr.size.is_some() {
            return Err(Status::Inval);
        }
        let made = self.call_service(call, |service, caller| {
            service.make(caller, &dir, args.name, object, &attr)
        })?;
        let fh = convert::file_handle(&Handle { fs: dir.fs, file: made.id });
        self.reply(call, &Reply::Create(CreateReply { fh, change: change_info(made.dir) }))
    }

    pub(super) fn link(&mut self, call: &Call, args: &Link<'_>) -> Done {
        let (source, dir) = (convert::handle(&args.source), convert::handle(&args.target_dir));
        let change = self
            .call_service(call, |service, caller| service.link(caller, &source, &dir, args.name))?;
        self.reply(call, &Reply::Link(ChangeReply { change: change_info(change) }))
    }

    pub(super) fn remove(&mut self, call: &Call, args: &Remove<'_>) -> Done {
        let dir = convert::handle(&args.dir);
        let mode = match args.remove_mode {
            dafs::RemoveMode::Unchecked => RemoveMode::Unchecked,
            dafs::RemoveMode::CheckOpen => RemoveMode::CheckOpen,
        };
        let change = self
            .call_service(call, |service, caller| service.remove(caller, &dir, args.name, mode))?;
        self.reply(call, &Reply::Remove(ChangeReply { change: change_info(change) }))
    }

    pub(super) fn rename(&mut self, call: &Call, args: &Rename<'_>) -> Done {
        let from = convert::handle(&args.source_dir);
        let to = convert::handle(&args.target_dir);
        let (source, target) = self.call_service(call, |service, caller| {
            service.rename(caller, &from, args.old_name, &to, args.new_name)
        })?;
        let reply = RenameReply { source: change_info(source), target: change_info(target) };
        self.reply(call, &Reply::Rename(reply))
    }

    pub(super) fn open_attr(&mut self, call: &Call, args: &OpenAttr) -> Done {
        let handle = convert::handle(&args.fh);
        let dir = self.call_service(call, |service, caller| service.attr_dir(caller, &handle))?;
        self.reply(call, &Reply::OpenAttr(HandleReply { fh: convert::file_handle(&dir) }))
    }
}

pub(super) fn change_info(change: DirChange) -> ChangeInfo {
    ChangeInfo { before: change.before, after: change.after, atomic: change.atomic }
}

pub(super) fn new_object<'a>(object: &dafs::NewObject<'a>) -> Result<NewObject<'a>, Status> {
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
        // Regular files are made by OPEN.
        dafs::NewObject::Plain(_) => return Err(Status::BadType),
    })
}
