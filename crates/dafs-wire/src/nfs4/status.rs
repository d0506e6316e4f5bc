//! Status codes of operations (RFC 8881 15, RFC 7862 11, RFC 8276 8.4).
//!
//! Invariants
//! * Every number has one value of [`Status`]; undefined numbers are kept unchanged.

use crate::status::statuses;
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError};
use std::fmt;

statuses! {
    /// The outcome of an operation or of a compound (`nfsstat4`).
    Status;
    /// An undefined code.
    Unknown, "the peer answered with a code that has no meaning here";
    Ok = 0, "OK", "the operation succeeded";
    Perm = 1, "PERM", "only the owner or a privileged caller may do this";
    NoEnt = 2, "NOENT", "there is no such file or directory";
    Io = 5, "IO", "the server could not read or write its storage";
    Nxio = 6, "NXIO", "the device behind the file, or data in the range, does not exist";
    Access = 13, "ACCESS", "the caller's permissions do not allow this";
    Exist = 17, "EXIST", "an object of that name exists already";
    XDev = 18, "XDEV", "both objects have to be in one file system";
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
    TooSmall = 10005, "TOOSMALL", "the result does not fit the size offered";
    ServerFault = 10006, "SERVERFAULT", "the server failed internally";
    BadType = 10007, "BADTYPE", "an object of that type cannot be used or made so";
    Delay = 10008, "DELAY", "the server needs more time; try again";
    Same = 10009, "SAME", "the attributes are the same";
    Denied = 10010, "DENIED", "another owner holds a conflicting lock";
    Expired = 10011, "EXPIRED", "the lease ran out and its state is gone";
    Locked = 10012, "LOCKED", "the range is locked by another owner";
    Grace = 10013, "GRACE", "the server has restarted and waits for its former clients; try again";
    FhExpired = 10014, "FHEXPIRED", "the file handle has expired; look the name up again";
    ShareDenied = 10015, "SHARE_DENIED", "another open denies this access";
    WrongSec = 10016, "WRONGSEC", "the security in use is not allowed here";
    ClidInUse = 10017, "CLID_INUSE", "the client owner belongs to another principal";
    Resource = 10018, "RESOURCE", "the server has run out of a resource";
    Moved = 10019, "MOVED", "the file system has moved to another server";
    NoFileHandle = 10020, "NOFILEHANDLE", "the compound has no current file handle";
    MinorVersMismatch = 10021, "MINOR_VERS_MISMATCH",
        "the server does not speak this minor version";
    StaleClientId = 10022, "STALE_CLIENTID", "the server does not know this client any more";
    StaleStateId = 10023, "STALE_STATEID", "the state-id is from before a server restart";
    OldStateId = 10024, "OLD_STATEID", "the state-id has been replaced by a newer one";
    BadStateId = 10025, "BAD_STATEID", "the state-id is not one of this server";
    BadSeqId = 10026, "BAD_SEQID", "the sequence number is out of order";
    NotSame = 10027, "NOT_SAME", "the attributes differ";
    LockRange = 10028, "LOCK_RANGE", "the range does not match the lock held";
    Symlink = 10029, "SYMLINK", "the object is a symbolic link";
    RestoreFh = 10030, "RESTOREFH", "the compound has no saved file handle";
    LeaseMoved = 10031, "LEASE_MOVED", "a lease has moved to another server";
    AttrNotSupp = 10032, "ATTRNOTSUPP", "the server does not keep one of the attributes";
    NoGrace = 10033, "NO_GRACE", "reclaiming is not possible any more";
    ReclaimBad = 10034, "RECLAIM_BAD", "there is nothing of that kind to reclaim";
    ReclaimConflict = 10035, "RECLAIM_CONFLICT",
        "what was to be reclaimed has been given to another owner";
    BadXdr = 10036, "BADXDR", "the arguments could not be decoded";
    LocksHeld = 10037, "LOCKS_HELD", "locks are still held";
    OpenMode = 10038, "OPENMODE", "the file is not open for this kind of access";
    BadOwner = 10039, "BADOWNER", "the server does not know the owner or group";
    BadChar = 10040, "BADCHAR", "the name has a character that is not allowed";
    BadName = 10041, "BADNAME", "the name is not allowed";
    BadRange = 10042, "BAD_RANGE", "the server cannot lock this range";
    LockNotSupp = 10043, "LOCK_NOTSUPP", "the server cannot change a lock in place";
    OpIllegal = 10044, "OP_ILLEGAL", "there is no such operation";
    Deadlock = 10045, "DEADLOCK", "waiting for the lock would never end";
    FileOpen = 10046, "FILE_OPEN", "the file is open and so cannot be removed or renamed";
    AdminRevoked = 10047, "ADMIN_REVOKED", "an administrator took the state away";
    CbPathDown = 10048, "CB_PATH_DOWN", "the server cannot call the client back";
    BadIoMode = 10049, "BADIOMODE", "the layout's mode is not valid";
    BadLayout = 10050, "BADLAYOUT", "the layout is not valid";
    BadSessionDigest = 10051, "BAD_SESSION_DIGEST", "the digest does not match the session's key";
    BadSession = 10052, "BADSESSION", "the server does not know this session";
    BadSlot = 10053, "BADSLOT", "the slot lies outside the session's table";
    CompleteAlready = 10054, "COMPLETE_ALREADY", "the end of reclaiming was told before";
    ConnNotBoundToSession = 10055, "CONN_NOT_BOUND_TO_SESSION",
        "the connection is not bound to the session";
    DelegAlreadyWanted = 10056, "DELEG_ALREADY_WANTED", "the client wants this delegation already";
    BackChanBusy = 10057, "BACK_CHAN_BUSY", "the session's back channel has calls outstanding";
    LayoutTryLater = 10058, "LAYOUTTRYLATER", "there is no layout just now; try again";
    LayoutUnavailable = 10059, "LAYOUTUNAVAILABLE", "there is no layout for this file";
    NoMatchingLayout = 10060, "NOMATCHING_LAYOUT", "the client holds no such layout";
    RecallConflict = 10061, "RECALLCONFLICT", "a recall of the layout is under way";
    UnknownLayoutType = 10062, "UNKNOWN_LAYOUTTYPE", "the server does not know this layout type";
    SeqMisordered = 10063, "SEQ_MISORDERED", "the slot's sequence number is out of order";
    SequencePos = 10064, "SEQUENCE_POS", "SEQUENCE stands at the wrong place of the compound";
    ReqTooBig = 10065, "REQ_TOO_BIG", "the request is larger than the session allows";
    RepTooBig = 10066, "REP_TOO_BIG", "the reply would be larger than the session allows";
    RepTooBigToCache = 10067, "REP_TOO_BIG_TO_CACHE",
        "the reply would be larger than the session can keep";
    RetryUncachedRep = 10068, "RETRY_UNCACHED_REP", "the reply to this retry was not kept";
    UnsafeCompound = 10069, "UNSAFE_COMPOUND", "the compound could not be repeated safely";
    TooManyOps = 10070, "TOO_MANY_OPS", "the compound has more operations than allowed";
    OpNotInSession = 10071, "OP_NOT_IN_SESSION", "the operation needs SEQUENCE before it";
    HashAlgUnsupp = 10072, "HASH_ALG_UNSUPP", "the server has none of the hash algorithms";
    ClientIdBusy = 10074, "CLIENTID_BUSY", "the client has sessions or state left";
    PnfsIoHole = 10075, "PNFS_IO_HOLE", "the range is a hole of the striping pattern";
    SeqFalseRetry = 10076, "SEQ_FALSE_RETRY", "the retry differs from the first request";
    BadHighSlot = 10077, "BAD_HIGH_SLOT", "the highest slot lies outside the session's table";
    DeadSession = 10078, "DEADSESSION", "the session is dead; make a new one";
    EncrAlgUnsupp = 10079, "ENCR_ALG_UNSUPP", "the server has none of the encryption algorithms";
    PnfsNoLayout = 10080, "PNFS_NO_LAYOUT", "the range is not covered by a layout";
    NotOnlyOp = 10081, "NOT_ONLY_OP", "the operation has to be alone in its compound";
    WrongCred = 10082, "WRONG_CRED", "the caller is not the one that made this state";
    WrongType = 10083, "WRONG_TYPE", "the object's type does not allow this";
    DirDelegUnavail = 10084, "DIRDELEG_UNAVAIL", "there is no directory delegation to be had";
    RejectDeleg = 10085, "REJECT_DELEG", "the client does not want the delegation";
    ReturnConflict = 10086, "RETURNCONFLICT", "a return of the layout is under way";
    DelegRevoked = 10087, "DELEG_REVOKED", "the delegation or layout was taken away";
    PartnerNotSupp = 10088, "PARTNER_NOTSUPP", "the other server cannot copy between servers";
    PartnerNoAuth = 10089, "PARTNER_NO_AUTH", "the other server does not allow the copy";
    UnionNotSupp = 10090, "UNION_NOTSUPP", "the server does not know this arm of the union";
    OffloadDenied = 10091, "OFFLOAD_DENIED", "the copy is not allowed by the destination";
    WrongLfs = 10092, "WRONG_LFS", "the label's format is not supported";
    BadLabel = 10093, "BADLABEL", "the label is not valid";
    OffloadNoReqs = 10094, "OFFLOAD_NO_REQS",
        "the server cannot copy in the way that was asked for";
    NoXattr = 10095, "NOXATTR", "there is no extended attribute of that name";
    Xattr2Big = 10096, "XATTR2BIG", "the extended attribute is too big";
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(code) => write!(f, "{} ({code})", self.sentence()),
            known => write!(f, "{} ({})", known.sentence(), known.name()),
        }
    }
}

impl<'a> Decode<'a> for Status {
    #[inline]
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self::from_u32(d.u32()?))
    }
}

impl Encode for Status {
    #[inline]
    fn encode(&self, e: &mut Encoder<'_>) {
        e.u32(self.code());
    }
}
