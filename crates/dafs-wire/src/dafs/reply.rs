//! Every reply as one enumeration, the bodies of errors, and their codec (DAFS 5, 6, O13).
//!
//! Invariants
//! * The length in the header is that of the message, in both directions (DAFS O15).
//! * A body that DAFS O13 does not define is never sent with an error, and is ignored when
//!   received.

use super::attr_args::*;
use super::batch_args::*;
use super::codec::{Field, Scope, Section, WordBool, Writer};
use super::entries::DirEntriesLength;
use super::error::{DecodeError, EncodeError};
use super::expose_args::*;
use super::header::ResponseHeader;
use super::ids::{FileHandle, Verifier};
use super::io_args::*;
use super::layout_args::*;
use super::limits::{HEADER_BYTES, READ_INLINE_REPLY_DATA_AT};
use super::lock_args::*;
use super::name_args::*;
use super::open_args::*;
use super::order::ByteOrder;
use super::procedure::Procedure;
use super::request::{read_section, write_hot_section, write_section};
use super::session_args::*;
use super::status::Status;

macro_rules! replies {
    ($( $variant:ident $(($type:ty))?, $how:ident $(, $take:ident)?; )*) => {
        /// The result of a successful request (DAFS 6).
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs, reason = "named as the procedures")]
        pub enum Reply<'a> { $( $variant $(($type))?, )* }

        impl<'a> Reply<'a> {
            /// The procedure of the result.
            #[inline]
            pub fn procedure(&self) -> Procedure {
                match self { $( replies!(@pattern $variant $how) => Procedure::$variant, )* }
            }

            /// Decodes the result in the body of a reply, after the header.
            ///
            /// # Errors
            /// The fault in the body.
            #[inline]
            pub fn decode_body(
                procedure: Procedure,
                body: &'a [u8],
                order: ByteOrder,
            ) -> Result<Self, DecodeError> {
                let scope = Scope::new(body, order);
                match procedure { $(
                    Procedure::$variant => replies!(@read $variant $how scope),
                )* }
            }

            $( replies! { @take $variant ($($type)?) $($take)? } )*

            fn write(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
                match self { $(
                    replies!(@bind $variant $how body) => replies!(@write $how body, writer),
                )* }
            }
        }
    };
    (@take $variant:ident ($($type:ty)?)) => {};
    (@take $variant:ident ($type:ty) $take:ident) => {
        #[doc = concat!("The result of a ", stringify!($variant), ".")]
        #[inline]
        pub fn $take(&self) -> Option<&$type> {
            match self {
                Self::$variant(body) => Some(body),
                _ => None,
            }
        }
    };
    (@pattern $variant:ident unit) => { Self::$variant };
    (@pattern $variant:ident lock) => { Self::$variant };
    (@pattern $variant:ident $how:ident) => { Self::$variant(_) };
    (@bind $variant:ident unit $body:ident) => { Self::$variant };
    (@bind $variant:ident lock $body:ident) => { Self::$variant };
    (@bind $variant:ident $how:ident $body:ident) => { Self::$variant($body) };
    (@read $variant:ident unit $scope:ident) => { Ok(Self::$variant) };
    (@read $variant:ident lock $scope:ident) => { Ok(Self::$variant) };
    (@read $variant:ident hot $scope:ident) => { Ok(Self::$variant(Field::read($scope, 0)?)) };
    (@read $variant:ident fixed $scope:ident) => { Ok(Self::$variant(read_section($scope)?)) };
    (@read $variant:ident data $scope:ident) => {
        Ok(Self::$variant(ReadInlineReply::read($scope)?))
    };
    (@read $variant:ident raw $scope:ident) => {
        Ok(Self::$variant(FetchResponseReply { body: $scope.bytes() }))
    };
    (@write hot $body:ident, $writer:ident) => { write_hot_section($body, $writer) };
    (@write unit $body:ident, $writer:ident) => { Ok(()) };
    (@write lock $body:ident, $writer:ident) => {
        $writer.allocate(LockHolder::BYTES, 8).map(drop)
    };
    (@write fixed $body:ident, $writer:ident) => { write_section($body, $writer) };
    (@write data $body:ident, $writer:ident) => {{
        ReadInlineReply::write_head($writer, $body.eof, $body.data.len())?;
        $writer.append($body.data)
    }};
    (@write raw $body:ident, $writer:ident) => { $writer.append($body.body) };
}

/// Result of FETCH_RESPONSE: the body of the requested reply, in the byte order of the old session,
/// which must be that of this one (DAFS 12, 5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchResponseReply<'a> {
    /// The body as it was sent before.
    pub body: &'a [u8],
}

impl<'a> FetchResponseReply<'a> {
    /// Decodes the body, given the procedure and status of the requested reply.
    ///
    /// # Errors
    /// The fault in the body.
    pub fn outcome(
        &self,
        order: ByteOrder,
        procedure: Procedure,
        status: Status,
    ) -> Result<Outcome<'a>, DecodeError> {
        Outcome::decode_body(procedure, status, self.body, order)
    }
}

replies! {
    ClientAuth(ClientAuthReply<'a>), fixed;
    ClientConnect(ClientConnectReply), fixed;
    ClientConnectAuth(ClientConnectAuthReply<'a>), fixed;
    ConnectBind(ConnectBindReply<'a>), fixed;
    Disconnect, unit;
    RegisterCred(CredHandleBody), fixed;
    ReleaseCred, unit;
    SecInfo(SecInfoReply<'a>), fixed;
    ServerAuth(ServerAuthReply<'a>), fixed;
    CheckResponse, unit;
    FetchResponse(FetchResponseReply<'a>), raw;
    DiscardResponses, unit;
    Access(AccessReply), fixed, access;
    CacheHint, unit;
    Close, unit;
    Commit(CommitReply), fixed, commit;
    Create(CreateReply), fixed, create;
    DelegPurge, unit;
    DelegReturn, unit;
    GetFsAttr(GetFsAttrReply<'a>), fixed, get_fs_attr;
    GetRootHandle(HandleReply), fixed;
    GetAttrInline(GetAttrInlineReply<'a>), fixed, get_attr_inline;
    GetAttrDirect(DirectReply), fixed, get_attr_direct;
    Link(ChangeReply), fixed;
    Lock, lock;
    LockT, lock;
    LockU, unit;
    Lookup(LookupReply), fixed, lookup;
    LookupP(HandleReply), fixed, lookup_p;
    Null, unit;
    NVerify, unit;
    Open(OpenReply<'a>), fixed, open;
    OpenDowngrade, unit;
    OpenAttr(HandleReply), fixed, open_attr;
    ReadInline(ReadInlineReply<'a>), data;
    ReadDirect(ReadDirectReply), hot;
    ReadDirInline(ReadDirInlineReply<'a>), fixed;
    ReadDirDirect(ReadDirDirectReply), fixed;
    ReadLinkInline(ReadLinkInlineReply<'a>), fixed, read_link_inline;
    ReadLinkDirect(DirectReply), fixed;
    Remove(ChangeReply), fixed;
    Rename(RenameReply), fixed;
    SetAttrInline(SetAttrReply), fixed;
    SetAttrDirect(SetAttrReply), fixed;
    Verify, unit;
    BatchSubmit(BatchCompletions<'a>), fixed;
    WriteInline(WriteReply), hot, write_inline;
    WriteDirect(WriteReply), hot;
    BcGetAttr(GetAttrInlineReply<'a>), fixed;
    BcNull, unit;
    BcRecall, unit;
    BcBatchCompletion, unit;
    AppendInline(AppendReply), fixed;
    AppendDirect(AppendReply), fixed;
    GetFencingList(GetFencingListReply<'a>), fixed, get_fencing_list;
    SetFencingList, unit;
    HurryUp, unit;
    XLayoutGet(XLayoutGetReply<'a>), fixed, x_layout_get;
    XLayoutCommit(XLayoutCommitReply), fixed, x_layout_commit;
    XLayoutReturn, unit;
    XNodeInfo(XNodeInfoReply<'a>), fixed;
    XBcLayoutRecall, unit;
    XSeek(XSeekReply), fixed, x_seek;
    XGetXattr(DirectReply), fixed, x_get_xattr;
    XCancel(XCancelReply<'a>), fixed, x_cancel;
    XExposeGet(XExposeGetReply<'a>), fixed, x_expose_get;
    XReclaimComplete, unit;
}

/// The body of an error reply (DAFS O13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorBody<'a> {
    /// No body.
    None,
    /// CLIENT_AUTH with GSS_CONTINUE_INIT: the next step; with NOT_AUTHORIZED: the status of GSS.
    ClientAuth(ClientAuthReply<'a>),
    /// The same of CLIENT_CONNECT_AUTH. With NOT_AUTHORIZED there is no session, and its fields are zero.
    ClientConnectAuth(ClientConnectAuthReply<'a>),
    /// FETCH_RESPONSE: the body of the requested error reply.
    FetchResponse(FetchResponseReply<'a>),
    /// LOCK and LOCKT with DENIED or LOCK_BROKEN: the conflicting lock.
    LockHolder(LockHolder<'a>),
    /// LOOKUP and OPEN: the part of the path that was resolved.
    Walked(LookupReply),
    /// SETATTR_INLINE and SETATTR_DIRECT: the attributes that were set.
    SetAttr(SetAttrReply),
}

/// The part of the path that OPEN resolved, in the layout of its result: handle at 0, count at 96.
fn read_open_walked(scope: Scope<'_>) -> Result<LookupReply, DecodeError> {
    Ok(LookupReply { fh: FileHandle::read(scope, 0)?, component_count: scope.u32(96)? })
}

fn write_open_walked(walked: &LookupReply, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
    let at = writer.allocate(OpenReply::BYTES, 8)?;
    walked.fh.write(writer, at)?;
    writer.put_u32(at + 96, walked.component_count)
}

impl<'a> ErrorBody<'a> {
    fn decode(procedure: Procedure, status: Status, scope: Scope<'a>) -> Result<Self, DecodeError> {
        // A server without partial results sends the header alone.
        if scope.bytes().is_empty() {
            return Ok(Self::None);
        }
        Ok(match (procedure, status) {
            (Procedure::ClientAuth, Status::GssContinueInit | Status::NotAuthorized) => {
                Self::ClientAuth(Field::read(scope, 0)?)
            }
            (Procedure::ClientConnectAuth, Status::GssContinueInit | Status::NotAuthorized) => {
                Self::ClientConnectAuth(Field::read(scope, 0)?)
            }
            (Procedure::FetchResponse, _) => {
                Self::FetchResponse(FetchResponseReply { body: scope.bytes() })
            }
            (Procedure::Lock | Procedure::LockT, Status::Denied | Status::LockBroken) => {
                Self::LockHolder(Field::read(scope, 0)?)
            }
            (Procedure::Lookup, _) => Self::Walked(Field::read(scope, 0)?),
            (Procedure::Open, _) => Self::Walked(read_open_walked(scope)?),
            (Procedure::SetAttrInline | Procedure::SetAttrDirect, _) => {
                Self::SetAttr(Field::read(scope, 0)?)
            }
            _ => Self::None,
        })
    }

    fn write(
        &self,
        procedure: Procedure,
        status: Status,
        writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        match (self, procedure, status) {
            (Self::None, ..) => Ok(()),
            (
                Self::ClientAuth(body),
                Procedure::ClientAuth,
                Status::GssContinueInit | Status::NotAuthorized,
            ) => write_section(body, writer),
            (
                Self::ClientConnectAuth(body),
                Procedure::ClientConnectAuth,
                Status::GssContinueInit | Status::NotAuthorized,
            ) => write_section(body, writer),
            (Self::FetchResponse(reply), Procedure::FetchResponse, _) => writer.append(reply.body),
            (
                Self::LockHolder(body),
                Procedure::Lock | Procedure::LockT,
                Status::Denied | Status::LockBroken,
            ) => write_section(body, writer),
            (Self::Walked(body), Procedure::Lookup, _) => write_section(body, writer),
            (Self::Walked(body), Procedure::Open, _) => write_open_walked(body, writer),
            (Self::SetAttr(body), Procedure::SetAttrInline | Procedure::SetAttrDirect, _) => {
                write_section(body, writer)
            }
            _ => Err(EncodeError::WrongBody(procedure.name())),
        }
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// It succeeded.
    Ok(Reply<'a>),
    /// It failed.
    Error {
        /// The status.
        status: Status,
        /// Details beyond the status.
        body: ErrorBody<'a>,
    },
}

impl<'a> Outcome<'a> {
    fn decode_body(
        procedure: Procedure,
        status: Status,
        body: &'a [u8],
        order: ByteOrder,
    ) -> Result<Self, DecodeError> {
        if status.is_ok() {
            return Ok(Self::Ok(Reply::decode_body(procedure, body, order)?));
        }
        let body = ErrorBody::decode(procedure, status, Scope::new(body, order))?;
        Ok(Self::Error { status, body })
    }

    /// Returns the result, or the status of the failure.
    ///
    /// # Errors
    /// The status, when the request failed.
    pub fn into_result(self) -> Result<Reply<'a>, Status> {
        match self {
            Self::Ok(reply) => Ok(reply),
            Self::Error { status, .. } => Err(status),
        }
    }
}

/// Reads a whole reply to a request of `procedure`.
///
/// # Errors
/// The fault; see [`DecodeError::is_fatal`].
#[inline]
pub fn decode_response(
    message: &[u8],
    order: ByteOrder,
    procedure: Procedure,
) -> Result<(ResponseHeader, Outcome<'_>), DecodeError> {
    let header = ResponseHeader::decode(message, order)?;
    let body = message.get(HEADER_BYTES..).unwrap_or(&[]);
    Ok((header, Outcome::decode_body(procedure, header.status, body, order)?))
}

/// Writes the reply to a successful request; returns its length in bytes. Status, length and
/// checksum of `header` are ignored. The reply has status OK, its true length, and a zero checksum
/// until [`seal`](super::seal).
///
/// # Errors
/// The message does not fit `out`.
#[inline]
pub fn encode_response(
    out: &mut [u8],
    order: ByteOrder,
    header: &ResponseHeader,
    reply: &Reply<'_>,
) -> Result<usize, EncodeError> {
    let mut writer = Writer::new(out, HEADER_BYTES, order);
    writer.require_header()?;
    reply.write(&mut writer)?;
    let bytes = writer.end();
    header.write(&mut writer, Status::Ok, bytes)?;
    Ok(bytes)
}

/// Writes the reply to a request of `procedure` that failed with `header.status`; returns its
/// length in bytes. Length and checksum of the header are treated as in [`encode_response`].
///
/// # Errors
/// The message does not fit `out`, the body does not match the procedure and status, or the status
/// is OK.
pub fn encode_error(
    out: &mut [u8],
    order: ByteOrder,
    header: &ResponseHeader,
    procedure: Procedure,
    body: &ErrorBody<'_>,
) -> Result<usize, EncodeError> {
    if header.status.is_ok() {
        return Err(EncodeError::WrongBody(procedure.name()));
    }
    let mut writer = Writer::new(out, HEADER_BYTES, order);
    writer.require_header()?;
    body.write(procedure, header.status, &mut writer)?;
    let bytes = writer.end();
    header.write(&mut writer, header.status, bytes)?;
    Ok(bytes)
}

/// Writes header and fixed section of a READ_INLINE reply before `data_bytes` bytes of data. The
/// data is at [`READ_INLINE_REPLY_DATA_AT`] already or is gathered there. Returns the length of the
/// whole message in bytes.
///
/// # Errors
/// `out` is shorter than the 48 bytes.
#[inline]
pub fn encode_read_inline_head(
    out: &mut [u8],
    order: ByteOrder,
    header: &ResponseHeader,
    eof: bool,
    data_bytes: usize,
) -> Result<usize, EncodeError> {
    let mut writer = Writer::new(out, HEADER_BYTES, order);
    writer.require_header()?;
    ReadInlineReply::write_head(&mut writer, eof, data_bytes)?;
    let bytes = READ_INLINE_REPLY_DATA_AT.saturating_add(data_bytes);
    header.write(&mut writer, Status::Ok, bytes)?;
    Ok(bytes)
}

/// Writes header and fixed section of a READDIR_INLINE reply before the entries. A
/// [`DirEntriesWriter`](super::DirEntriesWriter) has written them at
/// [`READDIR_INLINE_REPLY_ENTRIES_AT`](super::READDIR_INLINE_REPLY_ENTRIES_AT). Returns the length
/// of the whole message in bytes.
///
/// # Errors
/// `out` is shorter than the 56 bytes.
pub fn encode_readdir_inline_head(
    out: &mut [u8],
    order: ByteOrder,
    header: &ResponseHeader,
    cookieverf: Verifier,
    eof: bool,
    entries: DirEntriesLength,
) -> Result<usize, EncodeError> {
    let mut writer = Writer::new(out, HEADER_BYTES, order);
    writer.require_header()?;
    let at = writer.allocate(ReadDirInlineReply::BYTES, 8)?;
    cookieverf.write(&mut writer, at)?;
    WordBool::from(eof).write(&mut writer, at + 8)?;
    writer.put_count(at + 12, ReadDirInlineReply::BYTES)?;
    let bytes = writer.end().saturating_add(entries.bytes);
    header.write(&mut writer, Status::Ok, bytes)?;
    Ok(bytes)
}
