//! Operations: numbers, arguments and results.
//!
//! Invariants
//! * An unknown operation differs from arguments that cannot be decoded, and both keep the number,
//!   because the result must carry it (RFC 8881 2.10.6.4, 16.2.3).
//! * Operations of 4.0 alone are recognized, but their arguments are not decoded: they end the
//!   compound anyway.

use super::extent_ops::*;
use super::io_ops::*;
use super::layout_ops::*;
use super::name_ops::*;
use super::open_ops::*;
use super::session_ops::*;
use super::state_ops::*;
use super::status::Status;
use super::xattr_ops::*;
use crate::numbers::named;
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError, no_such};

/// The number for every undefined operation (`OP_ILLEGAL`).
pub const OP_ILLEGAL: u32 = 10_044;

macro_rules! operations {
    (
        <$lt:lifetime>
        obsolete { $( $old:ident = $old_number:literal, $old_name:literal; )* }
        $( $op:ident = $number:literal, $name:literal, $minor:literal, $args:ty => $result:ty; )*
    ) => {
        named! {
            /// An operation (`nfs_opnum4`); those of 4.0 alone stand at the end.
            pub enum OpNum { $( $op = $number, $name; )* $( $old = $old_number, $old_name; )* }
        }

        impl OpNum {
            /// The first minor version with this operation.
            #[inline]
            pub fn minor_version_min(self) -> u32 {
                match self {
                    $( Self::$op => $minor, )*
                    $( Self::$old => 0, )*
                }
            }
        }

        /// One operation with its arguments (`nfs_argop4`).
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the argument types explain themselves")]
        pub enum Op<$lt> {
            $( $op($args), )*
            /// An operation of 4.0 alone; its arguments follow undecoded.
            Obsolete(OpNum),
            /// An undefined number in the minor version; the bytes after it are unknown.
            Illegal(u32),
        }

        impl<$lt> Op<$lt> {
            /// Decodes one operation of a compound of this minor version.
            ///
            /// # Errors
            /// When the number or the arguments cannot be decoded: the operation then fails with
            /// BADXDR.
            #[inline]
            pub fn decode(d: &mut Decoder<$lt>, minor_version: u32) -> Result<Self, BadOp> {
                let bad = |number, error| BadOp { number, error };
                let number = d.u32().map_err(|error| bad(OP_ILLEGAL, error))?;
                let Some(op) = OpNum::from_u32(number) else { return Ok(Self::Illegal(number)) };
                if op.minor_version_min() > minor_version {
                    return Ok(Self::Illegal(number));
                }
                Ok(match op {
                    $( OpNum::$op => Self::$op(
                        <$args>::decode(d).map_err(|error| bad(number, error))?
                    ), )*
                    $( OpNum::$old => Self::Obsolete(op), )*
                })
            }

            /// The number for its result.
            #[inline]
            pub fn number(&self) -> u32 {
                match self {
                    $( Self::$op(_) => $number, )*
                    Self::Obsolete(op) => *op as u32,
                    Self::Illegal(_) => OP_ILLEGAL,
                }
            }
        }

        /// Writes the number and the arguments; for obsolete and illegal operations the number
        /// only.
        impl Encode for Op<'_> {
            fn encode(&self, e: &mut Encoder<'_>) {
                match self {
                    $( Self::$op(args) => {
                        e.u32($number);
                        args.encode(e);
                    } )*
                    Self::Obsolete(op) => e.u32(*op as u32),
                    Self::Illegal(number) => e.u32(*number),
                }
            }
        }

        /// The body of a result after its status (`nfs_resop4`).
        #[derive(Debug, Clone)]
        #[allow(missing_docs, reason = "the result types explain themselves")]
        pub enum ResultBody<$lt> {
            $( $op($result), )*
            /// The conflicting lock. LOCK and LOCKT with DENIED have it.
            Denied(LockDenied<$lt>),
            /// The required size. GETDEVICEINFO with TOOSMALL has it.
            SizeWanted(u32),
            /// True if the server will signal when a layout becomes available. LAYOUTGET with
            /// LAYOUTTRYLATER has it.
            WillSignal(bool),
            /// The modes that the server supports. COPY with OFFLOAD_NO_REQS has them.
            Requirements(CopyRequirements),
            /// No body: an error.
            Nothing,
        }

        impl<$lt> ResultBody<$lt> {
            fn decode(
                op: Option<OpNum>,
                status: Status,
                d: &mut Decoder<$lt>,
            ) -> Result<Self, XdrError> {
                match (op, status) {
                    (Some(OpNum::Setattr), _) => {
                        return Ok(Self::Setattr(SetattrResult::decode(d)?));
                    }
                    (Some(OpNum::Lock | OpNum::Lockt), Status::Denied) => {
                        return Ok(Self::Denied(LockDenied::decode(d)?));
                    }
                    (Some(OpNum::Getdeviceinfo), Status::TooSmall) => {
                        return Ok(Self::SizeWanted(d.u32()?));
                    }
                    (Some(OpNum::Layoutget), Status::LayoutTryLater) => {
                        return Ok(Self::WillSignal(d.bool()?));
                    }
                    (Some(OpNum::Copy), Status::OffloadNoReqs) => {
                        return Ok(Self::Requirements(CopyRequirements::decode(d)?));
                    }
                    (_, Status::Ok) => {}
                    _ => return Ok(Self::Nothing),
                }
                match op {
                    $( Some(OpNum::$op) => Ok(Self::$op(<$result>::decode(d)?)), )*
                    $( Some(OpNum::$old) => Err(no_such("nfs_opnum4", $old_number)), )*
                    None => Err(no_such("nfs_opnum4", OP_ILLEGAL)),
                }
            }
        }

        impl Encode for ResultBody<'_> {
            fn encode(&self, e: &mut Encoder<'_>) {
                match self {
                    $( Self::$op(result) => result.encode(e), )*
                    Self::Denied(denied) => denied.encode(e),
                    Self::SizeWanted(bytes) => e.u32(*bytes),
                    Self::WillSignal(will) => e.bool(*will),
                    Self::Requirements(requirements) => requirements.encode(e),
                    Self::Nothing => {}
                }
            }
        }
    };
}

operations! {
    <'a>
    obsolete {
        OpenConfirm = 20, "OPEN_CONFIRM";
        Renew = 30, "RENEW";
        Setclientid = 35, "SETCLIENTID";
        SetclientidConfirm = 36, "SETCLIENTID_CONFIRM";
        ReleaseLockowner = 39, "RELEASE_LOCKOWNER";
    }
    Access = 3, "ACCESS", 0, AccessArgs => AccessResult;
    Close = 4, "CLOSE", 0, CloseArgs => StateidResult;
    Commit = 5, "COMMIT", 0, CommitArgs => CommitResult;
    Create = 6, "CREATE", 0, CreateArgs<'a> => CreateResult;
    Delegpurge = 7, "DELEGPURGE", 0, DelegpurgeArgs => ();
    Delegreturn = 8, "DELEGRETURN", 0, DelegreturnArgs => ();
    Getattr = 9, "GETATTR", 0, GetattrArgs => GetattrResult<'a>;
    Getfh = 10, "GETFH", 0, GetfhArgs => GetfhResult<'a>;
    Link = 11, "LINK", 0, LinkArgs<'a> => LinkResult;
    Lock = 12, "LOCK", 0, LockArgs<'a> => StateidResult;
    Lockt = 13, "LOCKT", 0, LocktArgs<'a> => ();
    Locku = 14, "LOCKU", 0, LockuArgs => StateidResult;
    Lookup = 15, "LOOKUP", 0, LookupArgs<'a> => ();
    Lookupp = 16, "LOOKUPP", 0, LookuppArgs => ();
    Nverify = 17, "NVERIFY", 0, VerifyArgs<'a> => ();
    Open = 18, "OPEN", 0, OpenArgs<'a> => OpenResult<'a>;
    Openattr = 19, "OPENATTR", 0, OpenattrArgs => ();
    OpenDowngrade = 21, "OPEN_DOWNGRADE", 0, OpenDowngradeArgs => StateidResult;
    Putfh = 22, "PUTFH", 0, PutfhArgs<'a> => ();
    Putpubfh = 23, "PUTPUBFH", 0, PutpubfhArgs => ();
    Putrootfh = 24, "PUTROOTFH", 0, PutrootfhArgs => ();
    Read = 25, "READ", 0, ReadArgs => ReadResult<'a>;
    Readdir = 26, "READDIR", 0, ReaddirArgs => ReaddirResult<'a>;
    Readlink = 27, "READLINK", 0, ReadlinkArgs => ReadlinkResult<'a>;
    Remove = 28, "REMOVE", 0, RemoveArgs<'a> => RemoveResult;
    Rename = 29, "RENAME", 0, RenameArgs<'a> => RenameResult;
    Restorefh = 31, "RESTOREFH", 0, RestorefhArgs => ();
    Savefh = 32, "SAVEFH", 0, SavefhArgs => ();
    Secinfo = 33, "SECINFO", 0, SecinfoArgs<'a> => SecinfoResult<'a>;
    Setattr = 34, "SETATTR", 0, SetattrArgs<'a> => SetattrResult;
    Verify = 37, "VERIFY", 0, VerifyArgs<'a> => ();
    Write = 38, "WRITE", 0, WriteArgs<'a> => WriteResult;
    BackchannelCtl = 40, "BACKCHANNEL_CTL", 1, BackchannelCtlArgs<'a> => ();
    BindConnToSession = 41, "BIND_CONN_TO_SESSION", 1,
        BindConnToSessionArgs => BindConnToSessionResult;
    ExchangeId = 42, "EXCHANGE_ID", 1, ExchangeIdArgs<'a> => ExchangeIdResult<'a>;
    CreateSession = 43, "CREATE_SESSION", 1, CreateSessionArgs<'a> => CreateSessionResult;
    DestroySession = 44, "DESTROY_SESSION", 1, DestroySessionArgs => ();
    FreeStateid = 45, "FREE_STATEID", 1, FreeStateidArgs => ();
    GetDirDelegation = 46, "GET_DIR_DELEGATION", 1,
        GetDirDelegationArgs => GetDirDelegationResult;
    Getdeviceinfo = 47, "GETDEVICEINFO", 1, GetdeviceinfoArgs => GetdeviceinfoResult<'a>;
    Getdevicelist = 48, "GETDEVICELIST", 1, GetdevicelistArgs => GetdevicelistResult;
    Layoutcommit = 49, "LAYOUTCOMMIT", 1, LayoutcommitArgs<'a> => LayoutcommitResult;
    Layoutget = 50, "LAYOUTGET", 1, LayoutgetArgs => LayoutgetResult<'a>;
    Layoutreturn = 51, "LAYOUTRETURN", 1, LayoutreturnArgs<'a> => LayoutreturnResult;
    SecinfoNoName = 52, "SECINFO_NO_NAME", 1, SecinfoNoNameArgs => SecinfoResult<'a>;
    Sequence = 53, "SEQUENCE", 1, SequenceArgs => SequenceResult;
    SetSsv = 54, "SET_SSV", 1, SetSsvArgs<'a> => SetSsvResult<'a>;
    TestStateid = 55, "TEST_STATEID", 1, TestStateidArgs => TestStateidResult;
    WantDelegation = 56, "WANT_DELEGATION", 1, WantDelegationArgs => WantDelegationResult<'a>;
    DestroyClientid = 57, "DESTROY_CLIENTID", 1, DestroyClientidArgs => ();
    ReclaimComplete = 58, "RECLAIM_COMPLETE", 1, ReclaimCompleteArgs => ();
    Allocate = 59, "ALLOCATE", 2, AllocateArgs => ();
    Copy = 60, "COPY", 2, CopyArgs<'a> => CopyResult;
    CopyNotify = 61, "COPY_NOTIFY", 2, CopyNotifyArgs<'a> => CopyNotifyResult<'a>;
    Deallocate = 62, "DEALLOCATE", 2, DeallocateArgs => ();
    IoAdvise = 63, "IO_ADVISE", 2, IoAdviseArgs => IoAdviseResult;
    Layouterror = 64, "LAYOUTERROR", 2, LayouterrorArgs => ();
    Layoutstats = 65, "LAYOUTSTATS", 2, LayoutstatsArgs<'a> => ();
    OffloadCancel = 66, "OFFLOAD_CANCEL", 2, OffloadCancelArgs => ();
    OffloadStatus = 67, "OFFLOAD_STATUS", 2, OffloadStatusArgs => OffloadStatusResult;
    ReadPlus = 68, "READ_PLUS", 2, ReadPlusArgs => ReadPlusResult<'a>;
    Seek = 69, "SEEK", 2, SeekArgs => SeekResult;
    WriteSame = 70, "WRITE_SAME", 2, WriteSameArgs<'a> => WriteResponse;
    Clone = 71, "CLONE", 2, CloneArgs => ();
    Getxattr = 72, "GETXATTR", 2, GetxattrArgs<'a> => GetxattrResult<'a>;
    Setxattr = 73, "SETXATTR", 2, SetxattrArgs<'a> => SetxattrResult;
    Listxattrs = 74, "LISTXATTRS", 2, ListxattrsArgs => ListxattrsResult<'a>;
    Removexattr = 75, "REMOVEXATTR", 2, RemovexattrArgs<'a> => RemovexattrResult;
}

/// An operation that cannot be decoded. Its result has this number and the status BADXDR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("operation {number} cannot be decoded: {error}")]
pub struct BadOp {
    /// The number for the result; [`OP_ILLEGAL`] if the message ends before it.
    pub number: u32,
    /// The fault.
    pub error: XdrError,
}

/// The result of any operation (`nfs_resop4`).
#[derive(Debug, Clone)]
pub struct OpResult<'a> {
    /// The number of the operation; [`OP_ILLEGAL`] for an undefined one.
    pub number: u32,
    /// The outcome of the operation.
    pub status: Status,
    /// The body after the status.
    pub body: ResultBody<'a>,
}

impl<'a> Decode<'a> for OpResult<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let number = d.u32()?;
        let status = Status::decode(d)?;
        let body = ResultBody::decode(OpNum::from_u32(number), status, d)?;
        Ok(Self { number, status, body })
    }
}

impl Encode for OpResult<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        e.u32(self.number);
        self.status.encode(e);
        self.body.encode(e);
    }
}
