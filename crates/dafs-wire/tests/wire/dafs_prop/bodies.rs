//! Generates the arguments, results and error bodies of every procedure.

use super::make::{Make, Source, make_struct};
use dafs_wire::dafs::*;

/// Start of padded data in the tests.
pub(crate) const PADDING: u32 = 256;

impl Make for NewObject<'static> {
    fn make(source: &mut Source<'_>) -> Self {
        match source.make() {
            ObjectType::BlockDevice => Self::BlockDevice(source.make()),
            ObjectType::CharDevice => Self::CharDevice(source.make()),
            ObjectType::Symlink => Self::Symlink(source.make()),
            plain => Self::Plain(plain),
        }
    }
}

impl Make for OpenClaim<'static> {
    fn make(source: &mut Source<'_>) -> Self {
        let dir = source.make();
        match source.below(5) {
            0 => Self::Null { dir, path: source.make() },
            1 => Self::Previous { fh: dir, delegate_type: source.make() },
            2 => Self::DelegateCur { dir, path: source.make(), state_id: source.make() },
            3 => Self::DelegatePrev { dir, path: source.make() },
            _ => Self::CreateUnlinked { dir },
        }
    }
}

impl Make for CreateMode<'static> {
    fn make(source: &mut Source<'_>) -> Self {
        match source.below(3) {
            0 => Self::Unchecked { attributes: source.make() },
            1 => Self::Guarded { attributes: source.make() },
            _ => Self::Exclusive { verifier: source.make() },
        }
    }
}

impl Make for SpaceLimit {
    fn make(source: &mut Source<'_>) -> Self {
        if source.make() {
            Self::Size(source.make())
        } else {
            Self::Blocks { blocks: source.make(), block_bytes: source.make() }
        }
    }
}

impl Make for Delegation<'static> {
    fn make(source: &mut Source<'_>) -> Self {
        let (state_id, recall, permissions) = (source.make(), source.make(), source.make());
        match source.below(3) {
            0 => Self::None,
            1 => Self::Read { state_id, recall, permissions },
            _ => Self::Write { state_id, recall, permissions, space_limit: source.make() },
        }
    }
}

impl Make for AuthRequest<'static> {
    fn make(source: &mut Source<'_>) -> Self {
        match source.make() {
            AuthType::None => Self::None,
            AuthType::Text => Self::Text { id: source.make(), password: source.make() },
            AuthType::Gss => {
                Self::Gss { procedure: source.make(), service: source.make(), token: source.make() }
            }
            AuthType::Default => Self::Default,
        }
    }
}

impl Make for AuthResult<'static> {
    fn make(source: &mut Source<'_>) -> Self {
        match source.make() {
            AuthType::None => Self::None,
            AuthType::Text => Self::Text,
            AuthType::Gss => {
                Self::Gss { major: source.make(), minor: source.make(), token: source.make() }
            }
            AuthType::Default => Self::Default,
        }
    }
}

impl Make for Credential<'static> {
    fn make(source: &mut Source<'_>) -> Self {
        match source.below(4) {
            0 => Self::Name(source.make()),
            1 => Self::Id { uid: source.make(), gid: source.make(), groups: source.make() },
            2 => Self::Gss(source.make()),
            _ => Self::Default,
        }
    }
}

impl Make for SecInfoEntry<'static> {
    fn make(source: &mut Source<'_>) -> Self {
        match source.make() {
            AuthType::None => Self::None,
            AuthType::Text => Self::Text,
            AuthType::Gss => {
                Self::Gss { oid: source.make(), qop: source.make(), service: source.make() }
            }
            AuthType::Default => Self::Default,
        }
    }
}

impl Make for WriteInline<'static> {
    fn make(source: &mut Source<'_>) -> Self {
        Self {
            fh: source.make(),
            state_id: source.make(),
            offset: source.make(),
            stable: source.make(),
            padded_to: source.make::<bool>().then_some(PADDING),
            cache_hint: source.make(),
            data: source.make(),
        }
    }
}

impl Make for AppendInline<'static> {
    fn make(source: &mut Source<'_>) -> Self {
        Self {
            fh: source.make(),
            state_id: source.make(),
            stable: source.make(),
            padded_to: source.make::<bool>().then_some(PADDING),
            cache_hint: source.make(),
            data: source.make(),
        }
    }
}

make_struct! {
    Access { fh, mask }
    AccessReply { supported, access }
    AppendDirect { fh, state_id, stable, byte_count, cache_hint, direct_checksum, buffer }
    AppendReply { offset, verifier, committed }
    BatchCompletions<'static> { completions }
    BatchSubmit<'static> { requests, usec_window, num_completions, synchronous }
    BcRecall { fh, state_id, truncate }
    CacheHint { fh, offset, count, access_pattern, cache_hint }
    ChangeReply { change }
    CheckResponse { session_id, stream_id, seq_number, procedure }
    ClientAuth<'static> { auth }
    ClientAuthReply<'static> { auth, trusted }
    ClientConnect<'static> { options, fence_id, client_id_string, client_verifier }
    ClientConnectReply { session_id, client_id, options }
    ClientConnectAuth<'static> { options, fence_id, client_id_string, client_verifier, auth }
    ClientConnectAuthReply<'static> { session_id, client_id, options, auth, trusted }
    Close { fh, state_id }
    Commit { fh, offset, count }
    CommitReply { verifier }
    CompletionNotification { request_id, status, bytes_transferred, direct_checksum }
    ConnectBind<'static> {
        session_id, channel_use, max_request_size, max_response_size, max_requests, auth
    }
    ConnectBindReply<'static> { max_request_size, max_response_size, max_requests, auth, trusted }
    Create<'static> { dir, name, object, attributes }
    CreateReply { fh, change }
    CredHandleBody { cred_handle }
    DelegReturn { state_id }
    DirectReply { direct_checksum }
    DiscardResponses { session_id }
    FetchResponseReply<'static> { body }
    GetAttrDirect { fh, attributes, buffer }
    GetAttrInline { fh, attributes }
    GetAttrInlineReply<'static> { attributes }
    GetFencingList { fh }
    GetFencingListReply<'static> { list }
    GetFsAttr { fh, attributes }
    GetFsAttrReply<'static> { attributes }
    HandleReply { fh }
    HurryUp { request_id }
    CancelItem { kind, stream, sequence, request_id }
    CancelResult { outcome }
    XCancel<'static> { items }
    XCancelReply<'static> { outcomes }
    ExposedWindow { window, segment, page }
    ExposedSegment { address, number, key, bytes, kind }
    XExposeGet { fh, state_id, window, exposure, windows, known, small }
    XExposeGetReply<'static> { exposure, windows, segments, base }
    Link<'static> { source, target_dir, name }
    Lock { fh, lock_type, options, state_id, offset, length }
    LockHolder<'static> { client_id, owner, offset, length, lock_type }
    LockT<'static> { fh, lock_type, owner, offset, length }
    LockU { fh, lock_type, state_id, offset, length }
    Lookup<'static> { dir, path }
    LookupP { fh }
    LookupReply { fh, component_count }
    Open<'static> {
        claim, create, delete_disposition, owner, share_access, share_deny, share_key
    }
    OpenAttr { fh }
    OpenDowngrade { fh, state_id, share_access, share_deny, share_key }
    OpenReply<'static> { fh, state_id, change, component_count, result_flags, delegation }
    ReadDirDirect<'static> { fh, cookie, cookieverf, dircount, maxcount, attributes, buffers }
    ReadDirDirectReply { cookieverf, eof, direct_checksum }
    ReadDirInline { fh, cookie, cookieverf, dircount, maxcount, attributes }
    ReadDirInlineReply<'static> { cookieverf, eof, entries }
    ReadDirect<'static> { fh, state_id, offset, byte_count, cache_hint, buffers }
    ReadDirectReply { eof, bytes_read, direct_checksum }
    ReadInline { fh, state_id, offset, byte_count, cache_hint }
    ReadInlineReply<'static> { eof, data }
    ReadLinkDirect { fh, buffer }
    ReadLinkInline { fh }
    ReadLinkInlineReply<'static> { text }
    ReadWriteRequest<'static> {
        fh, request_id, state_id, rw_flag, chunks, buffers, direct_checksum
    }
    RegisterCred<'static> { credential }
    Remove<'static> { dir, name, remove_mode }
    Rename<'static> { source_dir, target_dir, old_name, new_name }
    RenameReply { source, target }
    SecInfoReply<'static> { entries }
    ServerAuth { auth_type }
    ServerAuthReply<'static> { id, password }
    SessionOptions {
        use_checksums, use_response_cache, max_credentials, max_request_size, max_response_size,
        max_requests, inline_write_header_size, use_back_control_channel, use_rdma_read_channel
    }
    SetAttrDirect { fh, state_id, direct_checksum, buffer }
    SetAttrInline<'static> { fh, state_id, attributes }
    SetAttrReply { attributes }
    SetFencingList<'static> { fh, object, access, update, list }
    Verify<'static> { fh, attributes }
    WriteDirect<'static> {
        fh, state_id, offset, byte_count, stable, cache_hint, direct_checksum, buffers
    }
    WriteReply { count, committed, verifier }
    XBcLayoutRecall { fh, state_id, seqid, scope }
    XGetXattr<'static> { fh, buffer, name }
    XLayoutCommit { fh, state_id, seqid, reclaim, end }
    XLayoutCommitReply { size, change }
    XLayoutGet { fh, state_id, mode }
    XLayoutGetReply<'static> {
        state_id, seqid, kind, packing, unit_bytes, first_place, components
    }
    XLayoutReturn<'static> { fh, state_id, seqid, scope, errors }
    XNodeInfo { device }
    XNodeInfoReply<'static> { pattern, servers, ticket }
    XSeek { fh, state_id, offset, what }
    XSeekReply { offset, eof }
}

impl Make for RequestHeader {
    fn make(source: &mut Source<'_>) -> Self {
        Self {
            protocol_version: source.make(),
            desired_nreq: source.make(),
            chain_flags: source.make(),
            stream_id: source.make(),
            seq_number: source.make(),
            analyzer: source.make(),
            cred_handle: source.make(),
            ..Self::default()
        }
    }
}

impl Make for ResponseHeader {
    fn make(source: &mut Source<'_>) -> Self {
        Self {
            protocol_version: source.make(),
            target_nreq: source.make(),
            spec_cond: source.make(),
            stream_id: source.make(),
            seq_number: source.make(),
            analyzer: source.make(),
            ..Self::default()
        }
    }
}

macro_rules! bodies {
    (
        requests $($request:ident $(= $with:ident)?),*;
        replies $($reply:ident $(= $result:ident)?),*
    ) => {
        /// Arguments of the procedure.
        pub(crate) fn request(procedure: Procedure, source: &mut Source<'_>) -> Request<'static> {
            let _ = &source;
            match procedure { $(
                Procedure::$request => bodies!(@Request $request source $($with)?),
            )* }
        }

        /// Result of the procedure.
        pub(crate) fn reply(procedure: Procedure, source: &mut Source<'_>) -> Reply<'static> {
            let _ = &source;
            match procedure { $(
                Procedure::$reply => bodies!(@Reply $reply source $($result)?),
            )* }
        }
    };
    (@$kind:ident $name:ident $source:ident) => { $kind::$name };
    (@$kind:ident $name:ident $source:ident body) => { $kind::$name($source.make()) };
}

bodies! {
    requests
        ClientAuth = body, ClientConnect = body, ClientConnectAuth = body, ConnectBind = body,
        Disconnect, RegisterCred = body, ReleaseCred = body, SecInfo, ServerAuth = body,
        CheckResponse = body, FetchResponse = body, DiscardResponses = body, Access = body,
        CacheHint = body, Close = body, Commit = body, Create = body, DelegPurge,
        DelegReturn = body, GetFsAttr = body, GetRootHandle, GetAttrInline = body,
        GetAttrDirect = body, Link = body, Lock = body, LockT = body, LockU = body, Lookup = body,
        LookupP = body, Null, NVerify = body, Open = body, OpenDowngrade = body, OpenAttr = body,
        ReadInline = body, ReadDirect = body, ReadDirInline = body, ReadDirDirect = body,
        ReadLinkInline = body, ReadLinkDirect = body, Remove = body, Rename = body,
        SetAttrInline = body, SetAttrDirect = body, Verify = body, BatchSubmit = body,
        WriteInline = body, WriteDirect = body, BcGetAttr = body, BcNull, BcRecall = body,
        BcBatchCompletion = body, AppendInline = body, AppendDirect = body, GetFencingList = body,
        SetFencingList = body, HurryUp = body, XLayoutGet = body, XLayoutCommit = body,
        XLayoutReturn = body, XNodeInfo = body, XBcLayoutRecall = body, XSeek = body,
        XGetXattr = body, XCancel = body, XExposeGet = body, XReclaimComplete;
    replies
        ClientAuth = body, ClientConnect = body, ClientConnectAuth = body, ConnectBind = body,
        Disconnect, RegisterCred = body, ReleaseCred, SecInfo = body, ServerAuth = body,
        CheckResponse, FetchResponse = body, DiscardResponses, Access = body, CacheHint, Close,
        Commit = body, Create = body, DelegPurge, DelegReturn, GetFsAttr = body,
        GetRootHandle = body, GetAttrInline = body, GetAttrDirect = body, Link = body, Lock, LockT,
        LockU, Lookup = body, LookupP = body, Null, NVerify, Open = body, OpenDowngrade,
        OpenAttr = body, ReadInline = body, ReadDirect = body, ReadDirInline = body,
        ReadDirDirect = body, ReadLinkInline = body, ReadLinkDirect = body, Remove = body,
        Rename = body, SetAttrInline = body, SetAttrDirect = body, Verify, BatchSubmit = body,
        WriteInline = body, WriteDirect = body, BcGetAttr = body, BcNull, BcRecall,
        BcBatchCompletion, AppendInline = body, AppendDirect = body, GetFencingList = body,
        SetFencingList, HurryUp, XLayoutGet = body, XLayoutCommit = body, XLayoutReturn,
        XNodeInfo = body, XBcLayoutRecall, XSeek = body, XGetXattr = body, XCancel = body,
        XExposeGet = body, XReclaimComplete
}

/// A failure of the procedure, with its body (DAFS O13).
pub(crate) fn failure(
    procedure: Procedure,
    source: &mut Source<'_>,
) -> (Status, ErrorBody<'static>) {
    // ALL[0] is OK, which is not a failure.
    let other = Status::ALL[1 + source.below(Status::ALL.len() - 1)];
    match procedure {
        Procedure::ClientAuth => (Status::GssContinueInit, ErrorBody::ClientAuth(source.make())),
        Procedure::ClientConnectAuth => {
            (Status::GssContinueInit, ErrorBody::ClientConnectAuth(source.make()))
        }
        Procedure::Lock => (Status::Denied, ErrorBody::LockHolder(source.make())),
        Procedure::LockT => (Status::LockBroken, ErrorBody::LockHolder(source.make())),
        Procedure::Lookup | Procedure::Open => (other, ErrorBody::Walked(source.make())),
        Procedure::SetAttrInline | Procedure::SetAttrDirect => {
            (other, ErrorBody::SetAttr(source.make()))
        }
        _ => (other, ErrorBody::None),
    }
}
