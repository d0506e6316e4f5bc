//! Status codes of replies (DAFS 15).
//!
//! Invariants
//! * Every number has one value of [`Status`]; undefined numbers are kept unchanged.

use super::codec::{Field, Scope, Writer};
use super::error::{DecodeError, EncodeError};
use crate::status::statuses;
use std::fmt;

statuses! {
    /// The outcome of a request (DAFS 15).
    Status;
    /// An undefined code; a client treats it as SERVERFAULT (DAFS O4).
    #[doc(alias = "SERVERFAULT")]
    Unknown, "the server answered with a code that has no meaning here";
    Ok = 0, "OK", "the request succeeded";
    Perm = 1, "PERM", "only the owner or a privileged caller may do this";
    NoEnt = 2, "NOENT", "there is no such file or directory";
    Io = 5, "IO", "the server could not read or write its storage";
    Nxio = 6, "NXIO", "the device behind the file does not exist";
    Acces = 13, "ACCES", "the caller's permissions do not allow this";
    Exist = 17, "EXIST", "an object of that name exists already";
    XDev = 18, "XDEV", "both names have to be in one file system";
    NoDev = 19, "NODEV", "the device does not support this";
    NotDir = 20, "NOTDIR", "a directory is needed here, and the object is none";
    IsDir = 21, "ISDIR", "the object is a directory";
    Inval = 22, "INVAL", "an argument is not valid";
    FBig = 27, "FBIG", "the file would become larger than the server allows";
    NoSpc = 28, "NOSPC", "the file system is full";
    RoFs = 30, "ROFS", "the file system is read-only";
    MLink = 31, "MLINK", "the file has as many links as it can have";
    NameTooLong = 63, "NAMETOOLONG", "the name is longer than the server allows";
    NotEmpty = 66, "NOTEMPTY", "the directory is not empty";
    DQuot = 69, "DQUOT", "the caller's quota is used up";
    Stale = 70, "STALE", "the file behind the handle is gone";
    BadHandle = 10001, "BADHANDLE", "the file handle is not one of this server";
    BadCookie = 10003, "BAD_COOKIE",
        "the directory position is not valid any more; read it from the start";
    NotSupp = 10004, "NOTSUPP", "the server does not support this";
    TooSmall = 10005, "TOOSMALL", "the result does not fit the message or buffer offered";
    ServerFault = 10006, "SERVERFAULT", "the server failed internally";
    BadType = 10007, "BADTYPE", "an object of that type cannot be used or made so";
    Delay = 10008, "DELAY", "the server needs more time; try again";
    Same = 10009, "SAME", "the attributes are the same";
    Denied = 10010, "DENIED", "another owner holds a conflicting lock or share";
    Expired = 10011, "EXPIRED", "the lease ran out and its state is gone";
    Locked = 10012, "LOCKED", "the range is locked by another owner";
    Grace = 10013, "GRACE", "the server has restarted and waits for its former clients; try again";
    FhExpired = 10014, "FHEXPIRED", "the file handle has expired; look the name up again";
    ShareDenied = 10015, "SHARE_DENIED", "another open denies this access";
    WrongSec = 10016, "WRONGSEC", "the security in use is not allowed here";
    ClIdInUse = 10017, "CLID_INUSE", "the client id string belongs to another principal";
    Resource = 10018, "RESOURCE", "the server has run out of a resource";
    Moved = 10019, "MOVED", "the file system has moved to another server";
    NoFileHandle = 10020, "NOFILEHANDLE", "the request lacks a file handle";
    MinorVersMismatch = 10021, "MINOR_VERS_MISMATCH",
        "the server does not speak this minor version";
    StaleClientId = 10022, "STALE_CLIENTID",
        "the server does not know this client any more; connect again";
    StaleStateId = 10023, "STALE_STATEID",
        "the state-id is from before a server restart or was freed";
    OldStateId = 10024, "OLD_STATEID", "the state-id has been replaced by a newer one";
    BadStateId = 10025, "BAD_STATEID", "the state-id is not one of this server";
    BadSeqId = 10026, "BAD_SEQID", "the sequence number is out of order";
    NotSame = 10027, "NOT_SAME", "the attributes differ";
    LockRange = 10028, "LOCK_RANGE", "the range does not match the lock held";
    Symlink = 10029, "SYMLINK", "the last component is a symbolic link";
    ReadDirNoSpc = 10030, "READDIR_NOSPC", "not even one directory entry fits the space offered";
    LeaseMoved = 10031, "LEASE_MOVED", "a lease has moved to another server";
    IllegalProt = 15002, "ILLEGAL_PROT", "the server does not speak this protocol version";
    IllegalState = 15003, "ILLEGAL_STATE",
        "the request is not allowed in the present state of the session";
    UnknownSession = 15004, "UNKNOWN_SESSION", "the server knows nothing of that session any more";
    NoXidMatch = 15005, "NOXID_MATCH", "the request in question was not executed";
    NotAuthorized = 15006, "NOT_AUTHORIZED", "the proof of identity was not accepted";
    NotFound = 15007, "NOT_FOUND", "what was asked for was not found";
    RdmaReadChannelUnusable = 15008, "RDMA_READ_CHANNEL_UNUSABLE",
        "direct transfers need an RDMA-read channel, and there is none";
    ChainForm = 15009, "CHAIN_FORM", "the chain of requests is not well formed";
    ChainBroken = 15010, "CHAIN_BROKEN", "an earlier request of the chain failed";
    GssContinueInit = 15011, "GSS_CONTINUE_INIT", "authentication needs another round";
    BadSession = 15012, "BAD_SESSION", "the session is being closed";
    NoCreds = 15013, "NO_CREDS", "the server's credential table is full";
    CrHandConflict = 15014, "CRHAND_CONFLICT",
        "the credential handle is unknown or belongs to another client";
    DenyDispConflict = 15015, "DENYDISP_CONFLICT", "an open of the file forbids its removal";
    DenyDispNotSupp = 15016, "DENYDISP_NOTSUPP",
        "the server cannot forbid removal or know about all opens";
    KeyMismatch = 15017, "KEY_MISMATCH", "the file is open under a share key that this open lacks";
    WriteTooBig = 15018, "WRITE_TOOBIG", "the write or append is larger than the server allows";
    BackChannelUnusable = 15019, "BACK_CHANNEL_UNUSABLE",
        "this needs a back-control channel, and there is none";
    ChkSum = 15020, "CHKSUM", "the checksum does not match the data";
    LockBroken = 15021, "LOCK_BROKEN",
        "the last owner of the lock failed; the data may need repair";
    NotAuthenticated = 15022, "NOT_AUTHENTICATED", "the session has to be authenticated first";
    BatchRequestNotFound = 15023, "BATCH_REQUEST_NOT_FOUND",
        "no outstanding batch request has that id";
    PrefetchNotSupported = 15024, "PREFETCH_NOT_SUPPORTED", "the server does not prefetch";
    NoPartialInfo = 15025, "NO_PARTIAL_INFO", "the server cannot say how far it came";
    WhoaCowboy = 15026, "WHOA_COWBOY",
        "too many batch requests are outstanding; wait for a completion";
    VersMismatch = 15027, "VERS_MISMATCH", "the protocol versions do not match";
    Fenced = 15100, "FENCED", "this client is fenced from the object";
    XNoLayout = 15101, "X_NO_LAYOUT",
        "no layout allows this; read and write through the metadata server";
    XLayoutRecalled = 15102, "X_LAYOUT_RECALLED",
        "the layout is asked back and has to be given back first";
    XSessionOld = 15103, "X_SESSION_OLD",
        "the client has written elsewhere since this session began; a new one may write here";
    XCanceled = 15104, "X_CANCELED", "the client has cancelled this; nothing of it was done";
}

impl Status {
    /// True for success.
    #[inline]
    pub fn is_ok(self) -> bool {
        self == Self::Ok
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Unknown(code) = self {
            return write!(f, "UNKNOWN({code}): {}", self.sentence());
        }
        write!(f, "{}: {}", self.name(), self.sentence())
    }
}

impl std::error::Error for Status {}

impl<'a> Field<'a> for Status {
    const TRIVIAL: bool = true;

    #[inline]
    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        Ok(Self::from_u32(scope.u32(at)?))
    }

    #[inline]
    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        writer.put_u32(at, self.code())
    }
}
