//! The 57 procedures and their classes (DAFS 6, 8), and the extensions.
//!
//! Invariants
//! * Numbers and names up to 160 are those of DAFS 6; 107, 120, 121 and 154 are unused. Numbers
//!   above are extensions, whose names begin with X_.

use super::codec::{Field, Scope, Writer};
use super::error::{DecodeError, EncodeError};
use crate::numbers::named;

/// The use of a procedure in a chain, and the caching of its reply (DAFS 8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Never chained, never cached.
    Special,
    /// Chained, never cached; no request that modifies the file system follows it.
    BulkFetch,
    /// Chained; cached when marked SAVE.
    Simple,
    /// Chained, always cached.
    FsModifying,
    /// Chained, also after a bulk fetch; always cached (DAFS O32).
    LockModifying,
    /// Sent by the server on the back-control channel.
    Callback,
}

macro_rules! procedures {
    ($( $variant:ident = $number:literal, $name:literal, $class:ident; )*) => {
        named! {
            /// A procedure of DAFS 1.0 (DAFS 6), or an extension.
            pub enum Procedure { $( $variant = $number, $name; )* }
        }

        impl Procedure {
            /// The class of the procedure (DAFS 8).
            pub fn class(self) -> Class {
                match self { $( Self::$variant => Class::$class, )* }
            }
        }
    };
}

procedures! {
    ClientAuth = 100, "CLIENT_AUTH", Special;
    ClientConnect = 101, "CLIENT_CONNECT", Special;
    ClientConnectAuth = 102, "CLIENT_CONNECT_AUTH", Special;
    ConnectBind = 103, "CONNECT_BIND", Special;
    Disconnect = 104, "DISCONNECT", Special;
    RegisterCred = 105, "REGISTER_CRED", Special;
    ReleaseCred = 106, "RELEASE_CRED", Special;
    SecInfo = 108, "SECINFO", Special;
    ServerAuth = 109, "SERVER_AUTH", Special;
    CheckResponse = 110, "CHECK_RESPONSE", Simple;
    FetchResponse = 111, "FETCH_RESPONSE", Simple;
    DiscardResponses = 112, "DISCARD_RESPONSES", Special;
    Access = 113, "ACCESS", Simple;
    CacheHint = 114, "CACHE_HINT", Simple;
    Close = 115, "CLOSE", FsModifying;
    Commit = 116, "COMMIT", FsModifying;
    Create = 117, "CREATE", FsModifying;
    DelegPurge = 118, "DELEGPURGE", FsModifying;
    DelegReturn = 119, "DELEGRETURN", FsModifying;
    GetFsAttr = 122, "GET_FSATTR", BulkFetch;
    GetRootHandle = 123, "GET_ROOT_HANDLE", Simple;
    GetAttrInline = 124, "GETATTR_INLINE", BulkFetch;
    GetAttrDirect = 125, "GETATTR_DIRECT", BulkFetch;
    Link = 126, "LINK", FsModifying;
    Lock = 127, "LOCK", LockModifying;
    LockT = 128, "LOCKT", LockModifying;
    LockU = 129, "LOCKU", LockModifying;
    Lookup = 130, "LOOKUP", Simple;
    LookupP = 131, "LOOKUPP", Simple;
    Null = 132, "NULL", Simple;
    NVerify = 133, "NVERIFY", Simple;
    Open = 134, "OPEN", FsModifying;
    OpenDowngrade = 135, "OPEN_DOWNGRADE", LockModifying;
    OpenAttr = 136, "OPENATTR", Simple;
    ReadInline = 137, "READ_INLINE", BulkFetch;
    ReadDirect = 138, "READ_DIRECT", BulkFetch;
    ReadDirInline = 139, "READDIR_INLINE", BulkFetch;
    ReadDirDirect = 140, "READDIR_DIRECT", BulkFetch;
    ReadLinkInline = 141, "READLINK_INLINE", BulkFetch;
    ReadLinkDirect = 142, "READLINK_DIRECT", BulkFetch;
    Remove = 143, "REMOVE", FsModifying;
    Rename = 144, "RENAME", FsModifying;
    SetAttrInline = 145, "SETATTR_INLINE", FsModifying;
    SetAttrDirect = 146, "SETATTR_DIRECT", FsModifying;
    Verify = 147, "VERIFY", Simple;
    BatchSubmit = 148, "BATCH_SUBMIT", FsModifying;
    WriteInline = 149, "WRITE_INLINE", FsModifying;
    WriteDirect = 150, "WRITE_DIRECT", FsModifying;
    BcGetAttr = 151, "BC_GETATTR", Callback;
    BcNull = 152, "BC_NULL", Callback;
    BcRecall = 153, "BC_RECALL", Callback;
    BcBatchCompletion = 155, "BC_BATCH_COMPLETION", Callback;
    AppendInline = 156, "APPEND_INLINE", FsModifying;
    AppendDirect = 157, "APPEND_DIRECT", FsModifying;
    GetFencingList = 158, "GET_FENCING_LIST", Special;
    SetFencingList = 159, "SET_FENCING_LIST", Special;
    HurryUp = 160, "HURRY_UP", FsModifying;
    XLayoutGet = 161, "X_LAYOUT_GET", Special;
    XLayoutCommit = 162, "X_LAYOUT_COMMIT", Special;
    XLayoutReturn = 163, "X_LAYOUT_RETURN", Special;
    XNodeInfo = 164, "X_NODE_INFO", Special;
    XBcLayoutRecall = 165, "X_BC_LAYOUT_RECALL", Callback;
    XSeek = 166, "X_SEEK", BulkFetch;
    XGetXattr = 167, "X_GETXATTR", BulkFetch;
    XCancel = 168, "X_CANCEL", Special;
    XExposeGet = 169, "X_EXPOSE_GET", Special;
    XReclaimComplete = 170, "X_RECLAIM_COMPLETE", Special;
}

impl<'a> Field<'a> for Procedure {
    const TRIVIAL: bool = false;

    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        let number = scope.u32(at)?;
        Self::from_u32(number).ok_or(DecodeError::UnknownProcedure(number))
    }

    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        writer.put_u32(at, *self as u32)
    }
}
