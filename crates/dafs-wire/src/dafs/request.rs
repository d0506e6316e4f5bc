//! Every request as one enumeration, and its codec (DAFS 5, 6).
//!
//! Invariants
//! * The length in the header is that of the message, in both directions (DAFS O15).
//! * The header can be decoded even if the body cannot, so that a server can echo it in its answer.

use super::attr_args::*;
use super::batch_args::*;
use super::codec::{Field, Scope, Section, Writer};
use super::error::{DecodeError, EncodeError};
use super::expose_args::*;
use super::header::RequestHeader;
use super::io_args::*;
use super::layout_args::*;
use super::limits::{HEADER_BYTES, INLINE_WRITE_HEADER_BYTES_MIN};
use super::lock_args::*;
use super::name_args::*;
use super::open_args::*;
use super::order::ByteOrder;
use super::procedure::Procedure;
use super::session_args::*;

macro_rules! requests {
    ($( $variant:ident $(($type:ty))?, $how:ident; )*) => {
        /// The arguments of a request (DAFS 6).
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs, reason = "named as the procedures")]
        pub enum Request<'a> { $( $variant $(($type))?, )* }

        impl<'a> Request<'a> {
            /// The procedure of the request.
            #[inline]
            pub fn procedure(&self) -> Procedure {
                match self { $( requests!(@pattern $variant $how) => Procedure::$variant, )* }
            }

            /// Decodes the arguments of a message whose header has been decoded.
            ///
            /// `message` is the whole message; `inline_write_header_size` is the session's
            /// agreement, or 0.
            ///
            /// # Errors
            /// The fault in the body; [`DecodeError::status`] is the status to answer.
            pub fn decode(
                procedure: Procedure,
                message: &'a [u8],
                order: ByteOrder,
                inline_write_header_size: u32,
            ) -> Result<Self, DecodeError> {
                let body = message
                    .get(HEADER_BYTES..)
                    .ok_or(DecodeError::Short { actual: message.len() })?;
                let scope = Scope::new(body, order);
                match procedure { $(
                    Procedure::$variant =>
                        requests!(@read $variant $how scope, inline_write_header_size),
                )* }
            }

            fn write(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
                match self { $(
                    requests!(@bind $variant $how body) =>
                        requests!(@write $how body, writer),
                )* }
            }
        }
    };
    (@pattern $variant:ident unit) => { Self::$variant };
    (@pattern $variant:ident $how:ident) => { Self::$variant(_) };
    (@bind $variant:ident unit $body:ident) => { Self::$variant };
    (@bind $variant:ident $how:ident $body:ident) => { Self::$variant($body) };
    (@read $variant:ident unit $scope:ident, $padding:ident) => { Ok(Self::$variant) };
    (@read $variant:ident hot $scope:ident, $padding:ident) => {
        Ok(Self::$variant(Field::read($scope, 0)?))
    };
    (@read $variant:ident fixed $scope:ident, $padding:ident) => {
        Ok(Self::$variant(read_section($scope)?))
    };
    (@read WriteInline data $scope:ident, $padding:ident) => {
        Ok(Self::WriteInline(WriteInline::read($scope, $padding)?))
    };
    (@read AppendInline data $scope:ident, $padding:ident) => {
        Ok(Self::AppendInline(AppendInline::read($scope, $padding)?))
    };
    (@write unit $body:ident, $writer:ident) => { Ok(()) };
    (@write hot $body:ident, $writer:ident) => { write_hot_section($body, $writer) };
    (@write fixed $body:ident, $writer:ident) => { write_section($body, $writer) };
    (@write data $body:ident, $writer:ident) => {{
        $body.write_head($writer, $body.data.len())?;
        $writer.append($body.data)
    }};
}

/// Reads a fixed section and its heap. It is separate from the dispatch. So the dispatch stays
/// small and inlines only reads and writes of files.
#[inline(never)]
pub(crate) fn read_section<'a, T: Field<'a>>(scope: Scope<'a>) -> Result<T, DecodeError> {
    T::read(scope, 0)
}

/// Writes a fixed section and its heap.
#[inline(always)]
pub(crate) fn write_hot_section<'a, T: Field<'a> + Section>(
    body: &T,
    writer: &mut Writer<'_>,
) -> Result<(), EncodeError> {
    let at = writer.allocate(T::BYTES, 8)?;
    body.write(writer, at)
}

/// The same, separate from the dispatch as [`read_section`].
#[inline(never)]
pub(crate) fn write_section<'a, T: Field<'a> + Section>(
    body: &T,
    writer: &mut Writer<'_>,
) -> Result<(), EncodeError> {
    write_hot_section(body, writer)
}

requests! {
    ClientAuth(ClientAuth<'a>), fixed;
    ClientConnect(ClientConnect<'a>), fixed;
    ClientConnectAuth(ClientConnectAuth<'a>), fixed;
    ConnectBind(ConnectBind<'a>), fixed;
    Disconnect, unit;
    RegisterCred(RegisterCred<'a>), fixed;
    ReleaseCred(CredHandleBody), fixed;
    SecInfo, unit;
    ServerAuth(ServerAuth), fixed;
    CheckResponse(CheckResponse), fixed;
    FetchResponse(CheckResponse), fixed;
    DiscardResponses(DiscardResponses), fixed;
    Access(Access), fixed;
    CacheHint(CacheHint), fixed;
    Close(Close), fixed;
    Commit(Commit), fixed;
    Create(Create<'a>), fixed;
    DelegPurge, unit;
    DelegReturn(DelegReturn), fixed;
    GetFsAttr(GetFsAttr), fixed;
    GetRootHandle, unit;
    GetAttrInline(GetAttrInline), fixed;
    GetAttrDirect(GetAttrDirect), fixed;
    Link(Link<'a>), fixed;
    Lock(Lock), fixed;
    LockT(LockT<'a>), fixed;
    LockU(LockU), fixed;
    Lookup(Lookup<'a>), fixed;
    LookupP(LookupP), fixed;
    Null, unit;
    NVerify(Verify<'a>), fixed;
    Open(Open<'a>), fixed;
    OpenDowngrade(OpenDowngrade), fixed;
    OpenAttr(OpenAttr), fixed;
    ReadInline(ReadInline), hot;
    ReadDirect(ReadDirect<'a>), hot;
    ReadDirInline(ReadDirInline), fixed;
    ReadDirDirect(ReadDirDirect<'a>), fixed;
    ReadLinkInline(ReadLinkInline), fixed;
    ReadLinkDirect(ReadLinkDirect), fixed;
    Remove(Remove<'a>), fixed;
    Rename(Rename<'a>), fixed;
    SetAttrInline(SetAttrInline<'a>), fixed;
    SetAttrDirect(SetAttrDirect), fixed;
    Verify(Verify<'a>), fixed;
    BatchSubmit(BatchSubmit<'a>), fixed;
    WriteInline(WriteInline<'a>), data;
    WriteDirect(WriteDirect<'a>), hot;
    BcGetAttr(GetAttrInline), fixed;
    BcNull, unit;
    BcRecall(BcRecall), fixed;
    BcBatchCompletion(BatchCompletions<'a>), fixed;
    AppendInline(AppendInline<'a>), data;
    AppendDirect(AppendDirect), fixed;
    GetFencingList(GetFencingList), fixed;
    SetFencingList(SetFencingList<'a>), fixed;
    HurryUp(HurryUp), fixed;
    XLayoutGet(XLayoutGet), fixed;
    XLayoutCommit(XLayoutCommit), fixed;
    XLayoutReturn(XLayoutReturn<'a>), fixed;
    XNodeInfo(XNodeInfo), fixed;
    XBcLayoutRecall(XBcLayoutRecall), fixed;
    XSeek(XSeek), fixed;
    XGetXattr(XGetXattr<'a>), fixed;
    XCancel(XCancel<'a>), fixed;
    XExposeGet(XExposeGet), fixed;
    XReclaimComplete, unit;
}

/// Decodes a whole request.
///
/// `inline_write_header_size` is the session's agreement, or 0. A server that answers requests with
/// a faulty body calls [`RequestHeader::decode`] and [`Request::decode`].
///
/// # Errors
/// The fault; see [`DecodeError::is_fatal`].
#[inline]
pub fn decode_request(
    message: &[u8],
    order: ByteOrder,
    inline_write_header_size: u32,
) -> Result<(RequestHeader, Request<'_>), DecodeError> {
    let header = RequestHeader::decode(message, order)?;
    let procedure =
        header.known_procedure().ok_or(DecodeError::UnknownProcedure(header.procedure))?;
    Ok((header, Request::decode(procedure, message, order, inline_write_header_size)?))
}

/// Writes a whole request; returns its length in bytes. The procedure, length and checksum of
/// `header` are ignored: the first two get the true values, and the checksum is zero until
/// [`seal`](super::seal).
///
/// # Errors
/// The message does not fit `out`, or the position of padded data is impossible.
#[inline]
pub fn encode_request(
    out: &mut [u8],
    order: ByteOrder,
    header: &RequestHeader,
    request: &Request<'_>,
) -> Result<usize, EncodeError> {
    let mut writer = Writer::new(out, HEADER_BYTES, order);
    writer.require_header()?;
    request.write(&mut writer)?;
    let bytes = writer.end();
    header.write(&mut writer, request.procedure(), bytes)?;
    Ok(bytes)
}

/// Writes a WRITE_INLINE request without its data, which has `data_bytes` bytes and is gathered
/// after it; `request.data` is ignored. Returns the start of the data, which is the number of bytes
/// written. The length in the header includes the data.
///
/// # Errors
/// As [`encode_request`].
#[inline]
pub fn encode_write_inline_head(
    out: &mut [u8],
    order: ByteOrder,
    header: &RequestHeader,
    request: &WriteInline<'_>,
    data_bytes: usize,
) -> Result<usize, EncodeError> {
    let mut writer = Writer::new(out, HEADER_BYTES, order);
    writer.require_header()?;
    request.write_head(&mut writer, data_bytes)?;
    let bytes = writer.end();
    header.write(&mut writer, Procedure::WriteInline, bytes.saturating_add(data_bytes))?;
    Ok(bytes)
}

/// True when a session may agree on this `inline_write_header_size` (DAFS O23); 0 means that
/// padded writes are not supported.
pub fn is_valid_inline_write_header_size(bytes: u32) -> bool {
    let bytes = bytes as usize;
    bytes == 0 || (bytes >= INLINE_WRITE_HEADER_BYTES_MIN && bytes.is_multiple_of(8))
}
