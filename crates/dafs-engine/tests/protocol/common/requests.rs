//! Requests and answers that several test files use.

use super::{Answer, File, World, connect_auth};
use dafs_wire::dafs::{
    self, AttrMask, Attributes, AuthRequest, ByteOrder, ChannelUse, Checksum, ConnectBind,
    FileHandle, NewObject, ObjectType, Path, Reply, Request, SessionId, SessionOptions,
    ShareAccess, ShareDeny, ShareKey, Status, Verifier,
};

pub const CHECKED: SessionOptions = SessionOptions {
    use_checksums: true,
    use_response_cache: false,
    max_credentials: 0,
    max_request_size: 0,
    max_response_size: 0,
    max_requests: 0,
    inline_write_header_size: 0,
    use_back_control_channel: false,
    use_rdma_read_channel: false,
};

pub fn read_done(answer: &Answer) -> (u32, bool, Checksum) {
    match answer.reply().unwrap() {
        Reply::ReadDirect(reply) => (reply.bytes_read, reply.eof, reply.direct_checksum),
        other => panic!("{other:?}"),
    }
}

pub fn written(answer: &Answer) -> dafs::WriteReply {
    match answer.reply().unwrap() {
        Reply::WriteDirect(reply) | Reply::WriteInline(reply) => reply,
        other => panic!("{other:?}"),
    }
}

pub fn lookup<'a>(dir: FileHandle, path: &'a [&'a [u8]]) -> Request<'a> {
    Request::Lookup(dafs::Lookup { dir, path: Path::new(path) })
}

pub fn found(answer: &Answer) -> FileHandle {
    match answer.reply().unwrap() {
        Reply::Lookup(reply) => reply.fh,
        Reply::LookupP(reply) | Reply::OpenAttr(reply) | Reply::GetRootHandle(reply) => reply.fh,
        Reply::Create(reply) => reply.fh,
        other => panic!("{other:?}"),
    }
}

pub fn create<'a>(dir: FileHandle, name: &'a [u8], object: NewObject<'a>) -> Request<'a> {
    Request::Create(dafs::Create { dir, name, object, attributes: Attributes::default() })
}

pub fn mkdir(dir: FileHandle, name: &[u8]) -> Request<'_> {
    let attributes = Attributes { mode: Some(0o777), ..Attributes::default() };
    let object = NewObject::Plain(ObjectType::Directory);
    Request::Create(dafs::Create { dir, name, object, attributes })
}

pub fn remove(dir: FileHandle, name: &[u8], check_open: bool) -> Request<'_> {
    let remove_mode =
        if check_open { dafs::RemoveMode::CheckOpen } else { dafs::RemoveMode::Unchecked };
    Request::Remove(dafs::Remove { dir, name, remove_mode })
}

pub fn rename<'a>(dir: FileHandle, old_name: &'a [u8], new_name: &'a [u8]) -> Request<'a> {
    Request::Rename(dafs::Rename { source_dir: dir, target_dir: dir, old_name, new_name })
}

pub fn close(file: File) -> Request<'static> {
    Request::Close(dafs::Close { fh: file.fh, state_id: file.id })
}

pub fn downgrade(file: File, share_access: ShareAccess, share_deny: ShareDeny) -> Request<'static> {
    Request::OpenDowngrade(dafs::OpenDowngrade {
        fh: file.fh,
        state_id: file.id,
        share_access,
        share_deny,
        share_key: ShareKey(None),
    })
}

pub fn attributes(world: &mut World, client: usize, fh: FileHandle) -> Result<Attr, Status> {
    let wanted = AttrMask::OBJECT_SIZE
        .union(AttrMask::MODE)
        .union(AttrMask::NUM_LINKS)
        .union(AttrMask::OBJECT_TYPE);
    let get = Request::GetAttrInline(dafs::GetAttrInline { fh, attributes: wanted });
    let answer = world.call(client, &get);
    match answer.reply()? {
        Reply::GetAttrInline(reply) => Ok(Attr {
            size: reply.attributes.object_size.unwrap(),
            mode: reply.attributes.mode.unwrap(),
            links: reply.attributes.num_links.unwrap(),
        }),
        other => panic!("{other:?}"),
    }
}

#[derive(Debug, PartialEq)]
pub struct Attr {
    pub size: u64,
    pub mode: u32,
    pub links: u32,
}

pub fn set(file: File, attributes: Attributes<'_>) -> Request<'_> {
    Request::SetAttrInline(dafs::SetAttrInline { fh: file.fh, state_id: file.id, attributes })
}

pub fn size(object_size: u64) -> Attributes<'static> {
    Attributes { object_size: Some(object_size), ..Attributes::default() }
}

pub fn list(fh: FileHandle, cookie: u64, cookieverf: Verifier, maxcount: u32) -> Request<'static> {
    Request::ReadDirInline(dafs::ReadDirInline {
        fh,
        cookie,
        cookieverf,
        dircount: 0,
        maxcount,
        attributes: AttrMask::FILE_ID.union(AttrMask::OBJECT_TYPE),
    })
}

/// Runs a test where the server accesses the client's memory by RDMA only, and where it maps it.
pub fn both_ways(test: impl Fn(bool)) {
    test(false);
    test(true);
}

/// Makes a session with a back-control channel, whose BC_NULL has been answered.
pub fn with_channel(
    world: &mut World,
    host: u32,
    name: &str,
    options: SessionOptions,
) -> (usize, usize) {
    let client = world.connect(host);
    let answer = world.call(client, &connect_auth(name, 1, options));
    let Ok(Reply::ClientConnectAuth(reply)) = answer.reply() else { panic!() };
    let session = reply.session_id;
    world.clients[client].checksums = options.use_checksums;
    (client, listen(world, client, session))
}

/// Binds a channel and answers its BC_NULL.
pub fn listen(world: &mut World, client: usize, session_id: SessionId) -> usize {
    let channel = bind_beside(world, client, session_id);
    world.clients[channel].checksums = world.clients[client].checksums;
    world.settle();
    let call = world.clients[channel].calls.pop().unwrap();
    world.clients[channel].answer(&call, 4, &Reply::BcNull);
    world.settle();
    channel
}

/// Binds a channel from the process of `client`, so that it shares its memory.
pub fn bind_beside(world: &mut World, client: usize, session_id: SessionId) -> usize {
    let channel = world.connect_beside(client, 2, ByteOrder::Little);
    let request = Request::ConnectBind(bind_request(session_id));
    assert_eq!(world.status(channel, &request), Status::Ok);
    channel
}

/// Builds the request that binds a channel.
pub fn bind_request(session_id: SessionId) -> ConnectBind<'static> {
    ConnectBind {
        session_id,
        channel_use: ChannelUse::BackControl,
        max_request_size: 0,
        max_response_size: 0,
        max_requests: 4,
        auth: AuthRequest::None,
    }
}
