//! Requests of the protocol, and what their replies say.

use crate::raw::Answer;
use dafs_wire::dafs::*;

pub const PLAIN: SessionOptions = SessionOptions {
    use_checksums: false,
    use_response_cache: false,
    max_credentials: 0,
    max_request_size: 0,
    max_response_size: 0,
    max_requests: 0,
    inline_write_header_size: 0,
    use_back_control_channel: false,
    use_rdma_read_channel: false,
};

pub const CHECKED: SessionOptions = SessionOptions { use_checksums: true, ..PLAIN };

/// The path of the file of most tests.
pub const F: &[&[u8]] = &[b"f"];

/// An open file.
#[derive(Debug, Clone, Copy)]
pub struct File {
    pub fh: FileHandle,
    pub id: StateId,
}

/// Builds CLIENT_CONNECT_AUTH without proof.
pub fn connect_auth(name: &str, verifier: u64, options: SessionOptions) -> Request<'_> {
    connect_by(name, verifier, options, AuthRequest::None)
}

pub fn connect_by<'a>(
    name: &'a str,
    verifier: u64,
    options: SessionOptions,
    auth: AuthRequest<'a>,
) -> Request<'a> {
    connect_fenced(name, b"", verifier, options, auth)
}

pub fn connect_fenced<'a>(
    name: &'a str,
    fence_id: &'a [u8],
    verifier: u64,
    options: SessionOptions,
    auth: AuthRequest<'a>,
) -> Request<'a> {
    Request::ClientConnectAuth(ClientConnectAuth {
        options,
        fence_id,
        client_id_string: name.as_bytes(),
        client_verifier: Verifier(verifier.to_be_bytes()),
        auth,
    })
}

/// The proof of a user with a password.
pub fn text<'a>(id: &'a str, password: &'a str) -> AuthRequest<'a> {
    AuthRequest::Text { id: id.as_bytes(), password: password.as_bytes() }
}

/// Builds CLIENT_CONNECT.
pub fn client_connect(name: &str, verifier: u64, options: SessionOptions) -> Request<'_> {
    Request::ClientConnect(ClientConnect {
        options,
        fence_id: b"",
        client_id_string: name.as_bytes(),
        client_verifier: Verifier(verifier.to_be_bytes()),
    })
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

/// Builds an OPEN of a file of the root for reading and writing. It makes the file if needed.
pub fn open_request<'a>(dir: FileHandle, path: &'a [&'a [u8]], owner: &'a [u8]) -> Open<'a> {
    Open {
        claim: OpenClaim::Null { dir, path: Path::new(path) },
        create: Some(CreateMode::Unchecked {
            attributes: Attributes { mode: Some(0o666), ..Attributes::default() },
        }),
        delete_disposition: DeleteDisposition::DontCare,
        owner,
        share_access: ShareAccess::Both,
        share_deny: ShareDeny::None,
        share_key: ShareKey::None,
    }
}

pub fn close(file: File) -> Request<'static> {
    Request::Close(Close { fh: file.fh, state_id: file.id })
}

pub fn downgrade(file: File, share_access: ShareAccess, share_deny: ShareDeny) -> Request<'static> {
    Request::OpenDowngrade(OpenDowngrade {
        fh: file.fh,
        state_id: file.id,
        share_access,
        share_deny,
        share_key: ShareKey::None,
    })
}

pub fn write_inline(file: File, offset: u64, data: &[u8]) -> Request<'_> {
    write_stable(file, offset, data, Stability::Unstable)
}

pub fn write_stable(file: File, offset: u64, data: &[u8], stable: Stability) -> Request<'_> {
    Request::WriteInline(WriteInline {
        fh: file.fh,
        state_id: file.id,
        offset,
        stable,
        padded_to: None,
        cache_hint: HintWord::NONE,
        data,
    })
}

pub fn read_inline(file: File, offset: u64, byte_count: u32) -> Request<'static> {
    Request::ReadInline(ReadInline {
        fh: file.fh,
        state_id: file.id,
        offset,
        byte_count,
        cache_hint: HintWord::NONE,
    })
}

pub fn read_direct(
    file: File,
    offset: u64,
    byte_count: u32,
    buffers: &[DirectBuffer],
) -> Request<'_> {
    Request::ReadDirect(ReadDirect {
        fh: file.fh,
        state_id: file.id,
        offset,
        byte_count,
        cache_hint: HintWord::NONE,
        buffers: Seq::new(buffers),
    })
}

pub fn write_direct(
    file: File,
    offset: u64,
    byte_count: u32,
    buffers: &[DirectBuffer],
) -> WriteDirect<'_> {
    WriteDirect {
        fh: file.fh,
        state_id: file.id,
        offset,
        byte_count,
        stable: Stability::Unstable,
        cache_hint: HintWord::NONE,
        direct_checksum: Checksum::ZERO,
        buffers: Seq::new(buffers),
    }
}

pub fn append_inline(file: File, stable: Stability, data: &[u8]) -> Request<'_> {
    Request::AppendInline(AppendInline {
        fh: file.fh,
        state_id: file.id,
        stable,
        padded_to: None,
        cache_hint: HintWord::NONE,
        data,
    })
}

pub fn append_direct(file: File, byte_count: u32, buffer: DirectBuffer) -> AppendDirect {
    AppendDirect {
        fh: file.fh,
        state_id: file.id,
        stable: Stability::FileSync,
        byte_count,
        cache_hint: HintWord::NONE,
        direct_checksum: Checksum::ZERO,
        buffer,
    }
}

pub fn read_done(answer: &Answer) -> (u32, bool, Checksum) {
    match answer.reply().unwrap() {
        Reply::ReadDirect(reply) => (reply.bytes_read, reply.eof, reply.direct_checksum),
        other => panic!("{other:?}"),
    }
}

pub fn written(answer: &Answer) -> WriteReply {
    match answer.reply().unwrap() {
        Reply::WriteDirect(reply) | Reply::WriteInline(reply) => reply,
        other => panic!("{other:?}"),
    }
}

pub fn lookup<'a>(dir: FileHandle, path: &'a [&'a [u8]]) -> Request<'a> {
    Request::Lookup(Lookup { dir, path: Path::new(path) })
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
    Request::Create(Create { dir, name, object, attributes: Attributes::default() })
}

pub fn mkdir(dir: FileHandle, name: &[u8]) -> Request<'_> {
    let attributes = Attributes { mode: Some(0o777), ..Attributes::default() };
    let object = NewObject::Plain(ObjectType::Directory);
    Request::Create(Create { dir, name, object, attributes })
}

pub fn remove(dir: FileHandle, name: &[u8], check_open: bool) -> Request<'_> {
    let remove_mode = if check_open { RemoveMode::CheckOpen } else { RemoveMode::Unchecked };
    Request::Remove(Remove { dir, name, remove_mode })
}

pub fn rename<'a>(dir: FileHandle, old_name: &'a [u8], new_name: &'a [u8]) -> Request<'a> {
    Request::Rename(Rename { source_dir: dir, target_dir: dir, old_name, new_name })
}

pub fn set(file: File, attributes: Attributes<'_>) -> Request<'_> {
    Request::SetAttrInline(SetAttrInline { fh: file.fh, state_id: file.id, attributes })
}

pub fn size(object_size: u64) -> Attributes<'static> {
    Attributes { object_size: Some(object_size), ..Attributes::default() }
}

pub fn list(fh: FileHandle, cookie: u64, cookieverf: Verifier, maxcount: u32) -> Request<'static> {
    Request::ReadDirInline(ReadDirInline {
        fh,
        cookie,
        cookieverf,
        dircount: 0,
        maxcount,
        attributes: AttrMask::FILE_ID.union(AttrMask::OBJECT_TYPE),
    })
}
