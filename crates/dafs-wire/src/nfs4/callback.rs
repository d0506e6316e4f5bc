//! Callback operations: numbers, arguments and results (RFC 8881 20, RFC 7862 16.1).
//!
//! Invariants
//! * Both directions are here: a server encodes arguments and decodes results, and a client does
//!   the reverse.
//! * An unknown operation differs from arguments that cannot be decoded, and both keep the number.

use super::bitmap::Bitmap;
use super::codec::xdr_struct;
use super::extent_ops::WriteResponse;
use super::limits::*;
use super::op::{BadOp, OP_ILLEGAL};
use super::open_ops::OpenDelegation;
use super::status::Status;
use super::types::{DeviceId, Fattr, Fsid, SessionId, StateOwner, Stateid};
use crate::numbers::named;
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError, no_such};

xdr_struct! {
    /// Arguments of CB_GETATTR (RFC 8881 20.1).
    #[derive(Copy)]
    pub struct CbGetattrArgs<'a> {
        /// The file.
        pub handle: &'a [u8] [max FILE_HANDLE_BYTES_MAX],
        /// The requested attributes: change, size, and the delegated times of RFC 9754.
        pub request: Bitmap,
    }

    /// Results of CB_GETATTR (RFC 8881 20.1).
    #[derive(Copy)]
    pub struct CbGetattrResult<'a> {
        /// The attributes.
        pub attributes: Fattr<'a>,
    }

    /// Arguments of CB_RECALL (RFC 8881 20.2).
    #[derive(Copy)]
    pub struct CbRecallArgs<'a> {
        /// The delegation.
        pub stateid: Stateid,
        /// True if the file will be truncated, so that data need not be written back.
        pub truncate: bool,
        /// The file.
        pub handle: &'a [u8] [max FILE_HANDLE_BYTES_MAX],
    }

    /// A recalled layout of one file (`layoutrecall_file4`).
    #[derive(Copy)]
    pub struct RecalledLayout<'a> {
        /// The file.
        pub handle: &'a [u8] [max FILE_HANDLE_BYTES_MAX],
        /// First byte of the range.
        pub offset: u64,
        /// Length of the range, in bytes.
        pub length: u64,
        /// The layout.
        pub stateid: Stateid,
    }
}

/// The scope of a CB_LAYOUTRECALL (`layoutrecall4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutRecall<'a> {
    /// A layout of one file.
    File(RecalledLayout<'a>),
    /// All layouts of a file system.
    FileSystem(Fsid),
    /// All layouts.
    All,
}

impl<'a> Decode<'a> for LayoutRecall<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.u32()? {
            1 => Ok(Self::File(RecalledLayout::decode(d)?)),
            2 => Ok(Self::FileSystem(Fsid::decode(d)?)),
            3 => Ok(Self::All),
            kind => Err(no_such("layoutrecall_type4", kind)),
        }
    }
}

impl Encode for LayoutRecall<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        match self {
            Self::File(layout) => {
                e.u32(1);
                layout.encode(e);
            }
            Self::FileSystem(fsid) => {
                e.u32(2);
                fsid.encode(e);
            }
            Self::All => e.u32(3),
        }
    }
}

xdr_struct! {
    /// Arguments of CB_LAYOUTRECALL (RFC 8881 20.3).
    #[derive(Copy)]
    pub struct CbLayoutrecallArgs<'a> {
        /// The layout type.
        pub layout_type: u32,
        /// 1: read, 2: read and write, 3: any.
        pub io_mode: u32,
        /// True if the layout changed.
        pub changed: bool,
        /// The scope of the recall.
        pub recall: LayoutRecall<'a>,
    }

    /// One or more changes of a directory or a device (`notify4`), encoded.
    #[derive(Copy)]
    pub struct Notification<'a> {
        /// The kinds of changes.
        pub mask: Bitmap,
        /// The changes.
        pub values: &'a [u8],
    }

    /// Arguments of CB_NOTIFY (RFC 8881 20.4).
    pub struct CbNotifyArgs<'a> {
        /// The delegation.
        pub stateid: Stateid,
        /// The directory.
        pub handle: &'a [u8] [max FILE_HANDLE_BYTES_MAX],
        /// The changes.
        pub changes: Vec<Notification<'a>> [max LIST_ITEMS_MAX],
    }

    /// Arguments of CB_PUSH_DELEG (RFC 8881 20.5).
    #[derive(Copy)]
    pub struct CbPushDelegArgs<'a> {
        /// The file.
        pub handle: &'a [u8] [max FILE_HANDLE_BYTES_MAX],
        /// The delegation.
        pub delegation: OpenDelegation<'a>,
    }

    /// Arguments of CB_RECALL_ANY (RFC 8881 20.6) and of CB_RECALLABLE_OBJ_AVAIL (20.7).
    #[derive(Copy)]
    pub struct CbRecallAnyArgs {
        /// The number of objects that the client may keep.
        pub objects_to_keep: u32,
        /// The kinds of objects: 0 read delegations, 1 write delegations, 2 directory delegations,
        /// 3 and more layouts.
        pub kinds: Bitmap,
    }

    /// Arguments of CB_RECALL_SLOT (RFC 8881 20.8).
    #[derive(Copy)]
    pub struct CbRecallSlotArgs {
        /// The highest slot that the server wants the client to use.
        pub target_highest_slot_id: u32,
    }

    /// A request of the client that a callback refers to (`referring_call4`).
    #[derive(Copy)]
    pub struct ReferringCall {
        /// The sequence number of the slot.
        pub sequence_id: u32,
        /// The slot.
        pub slot_id: u32,
    }

    /// Requests of one session that a callback refers to (`referring_call_list4`).
    pub struct ReferringCalls {
        /// The session.
        pub session_id: SessionId,
        /// The requests.
        pub calls: Vec<ReferringCall> [max REFERRING_CALLS_MAX],
    }

    /// Arguments of CB_SEQUENCE (RFC 8881 20.9).
    pub struct CbSequenceArgs {
        /// The session.
        pub session_id: SessionId,
        /// The sequence number of the slot.
        pub sequence_id: u32,
        /// The slot of the back channel.
        pub slot_id: u32,
        /// The highest slot in use.
        pub highest_slot_id: u32,
        /// True if the server must cache the reply.
        pub cache_this: bool,
        /// Requests of the client that this callback refers to.
        pub referring: Vec<ReferringCalls> [max REFERRING_CALLS_MAX],
    }

    /// Results of CB_SEQUENCE (RFC 8881 20.9).
    #[derive(Copy)]
    pub struct CbSequenceResult {
        /// The session.
        pub session_id: SessionId,
        /// The sequence number of the slot.
        pub sequence_id: u32,
        /// The slot.
        pub slot_id: u32,
        /// The highest slot that the client accepts now.
        pub highest_slot_id: u32,
        /// The highest slot that the client wants the server to use.
        pub target_highest_slot_id: u32,
    }

    /// Arguments of CB_WANTS_CANCELLED (RFC 8881 20.10).
    #[derive(Copy)]
    pub struct CbWantsCancelledArgs {
        /// True if wants that were blocked by contention are void.
        pub contended: bool,
        /// True if wants that were blocked by resources are void.
        pub resourced: bool,
    }

    /// Arguments of CB_NOTIFY_LOCK (RFC 8881 20.11).
    #[derive(Copy)]
    pub struct CbNotifyLockArgs<'a> {
        /// The file.
        pub handle: &'a [u8] [max FILE_HANDLE_BYTES_MAX],
        /// The owner that should retry.
        pub owner: StateOwner<'a>,
    }
}

/// The notification that a device has other addresses (`NOTIFY_DEVICEID4_CHANGE`).
pub const NOTIFY_DEVICE_CHANGE: u32 = 1;

/// The notification that a device was deleted (`NOTIFY_DEVICEID4_DELETE`).
pub const NOTIFY_DEVICE_DELETE: u32 = 2;

xdr_struct! {
    /// A device with other addresses (`notify_deviceid_change4`).
    #[derive(Copy)]
    pub struct DeviceMoved {
        /// The layout type.
        pub layout_type: u32,
        /// The device.
        pub device_id: DeviceId,
        /// True if the old addresses must not be used any more, even by layouts that are held.
        pub immediate: bool,
    }

    /// A deleted device (`notify_deviceid_delete4`).
    #[derive(Copy)]
    pub struct DeviceDeleted {
        /// The layout type.
        pub layout_type: u32,
        /// The device.
        pub device_id: DeviceId,
    }
}

/// The change of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChange {
    /// It has other addresses.
    Moved(DeviceMoved),
    /// It was deleted.
    Deleted(DeviceDeleted),
}

/// Arguments of CB_NOTIFY_DEVICEID (RFC 8881 20.12).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CbNotifyDeviceidArgs {
    /// The changes, in order.
    pub changes: Vec<DeviceChange>,
}

impl<'a> Decode<'a> for CbNotifyDeviceidArgs {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let count = d.array_len(LIST_ITEMS_MAX, 8)?;
        let mut changes = Vec::new();
        for _ in 0..count {
            // One value for each kind in the mask, in numerical order.
            let Notification { mut mask, values } = Notification::decode(d)?;
            let mut values = Decoder::new(values);
            if mask.contains(NOTIFY_DEVICE_CHANGE) {
                changes.push(DeviceChange::Moved(DeviceMoved::decode(&mut values)?));
            }
            if mask.contains(NOTIFY_DEVICE_DELETE) {
                changes.push(DeviceChange::Deleted(DeviceDeleted::decode(&mut values)?));
            }
            mask.remove(NOTIFY_DEVICE_CHANGE);
            mask.remove(NOTIFY_DEVICE_DELETE);
            if mask != Bitmap::EMPTY {
                return Err(no_such("notify_deviceid_type4", mask.words()[0]));
            }
            values.finish()?;
        }
        Ok(Self { changes })
    }
}

impl Encode for CbNotifyDeviceidArgs {
    /// Each change has a notification of its own. Linux reads only one change of each notification.
    fn encode(&self, e: &mut Encoder<'_>) {
        e.count(self.changes.len());
        for change in &self.changes {
            let mut values = Vec::with_capacity(24);
            let mut inner = Encoder::new(&mut values);
            let kind = match change {
                DeviceChange::Moved(moved) => {
                    moved.encode(&mut inner);
                    NOTIFY_DEVICE_CHANGE
                }
                DeviceChange::Deleted(deleted) => {
                    deleted.encode(&mut inner);
                    NOTIFY_DEVICE_DELETE
                }
            };
            Notification { mask: Bitmap::of(&[kind]), values: &values }.encode(e);
        }
    }
}

/// The outcome of an asynchronous copy (`offload_info4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffloadInfo {
    /// Success.
    Done(WriteResponse),
    /// An error, after this number of bytes.
    Failed(Status, u64),
}

impl<'a> Decode<'a> for OffloadInfo {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(match Status::decode(d)? {
            Status::Ok => Self::Done(WriteResponse::decode(d)?),
            status => Self::Failed(status, d.u64()?),
        })
    }
}

impl Encode for OffloadInfo {
    fn encode(&self, e: &mut Encoder<'_>) {
        match self {
            Self::Done(response) => {
                Status::Ok.encode(e);
                response.encode(e);
            }
            Self::Failed(status, bytes) => {
                status.encode(e);
                e.u64(*bytes);
            }
        }
    }
}

xdr_struct! {
    /// Arguments of CB_OFFLOAD (RFC 7862 16.1).
    #[derive(Copy)]
    pub struct CbOffloadArgs<'a> {
        /// The destination.
        pub handle: &'a [u8] [max FILE_HANDLE_BYTES_MAX],
        /// The copy.
        pub stateid: Stateid,
        /// The outcome.
        pub outcome: OffloadInfo,
    }
}

macro_rules! callbacks {
    (<$lt:lifetime> $( $op:ident = $number:literal, $name:literal, $args:ty => $result:ty; )*) => {
        named! {
            /// A callback operation (`nfs_cb_opnum4`).
            pub enum CbOpNum { $( $op = $number, $name; )* }
        }

        /// One callback operation with its arguments (`nfs_cb_argop4`).
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the argument types explain themselves")]
        pub enum CbOp<$lt> {
            $( $op($args), )*
            /// An undefined operation number; the bytes after it are unknown.
            Illegal(u32),
        }

        impl<$lt> CbOp<$lt> {
            /// Decodes one operation of a callback compound.
            ///
            /// # Errors
            /// When the number or the arguments cannot be decoded: the operation then fails with
            /// BADXDR.
            pub fn decode(d: &mut Decoder<$lt>) -> Result<Self, BadOp> {
                let bad = |number, error| BadOp { number, error };
                let number = d.u32().map_err(|error| bad(OP_ILLEGAL, error))?;
                Ok(match CbOpNum::from_u32(number) {
                    $( Some(CbOpNum::$op) => Self::$op(
                        <$args>::decode(d).map_err(|error| bad(number, error))?
                    ), )*
                    None => Self::Illegal(number),
                })
            }

            /// The number for its result.
            pub fn number(&self) -> u32 {
                match self {
                    $( Self::$op(_) => $number, )*
                    Self::Illegal(_) => OP_ILLEGAL,
                }
            }
        }

        impl Encode for CbOp<'_> {
            fn encode(&self, e: &mut Encoder<'_>) {
                match self {
                    $( Self::$op(args) => {
                        e.u32($number);
                        args.encode(e);
                    } )*
                    Self::Illegal(number) => e.u32(*number),
                }
            }
        }

        /// The body of a callback result after its status (`nfs_cb_resop4`).
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the result types explain themselves")]
        pub enum CbResultBody<$lt> {
            $( $op($result), )*
            /// No body: an error.
            Nothing,
        }

        impl<$lt> CbResultBody<$lt> {
            fn decode(op: Option<CbOpNum>, d: &mut Decoder<$lt>) -> Result<Self, XdrError> {
                match op {
                    $( Some(CbOpNum::$op) => Ok(Self::$op(<$result>::decode(d)?)), )*
                    None => Err(no_such("nfs_cb_opnum4", OP_ILLEGAL)),
                }
            }
        }

        impl Encode for CbResultBody<'_> {
            fn encode(&self, e: &mut Encoder<'_>) {
                match self {
                    $( Self::$op(result) => result.encode(e), )*
                    Self::Nothing => {}
                }
            }
        }
    };
}

callbacks! {
    <'a>
    Getattr = 3, "CB_GETATTR", CbGetattrArgs<'a> => CbGetattrResult<'a>;
    Recall = 4, "CB_RECALL", CbRecallArgs<'a> => ();
    Layoutrecall = 5, "CB_LAYOUTRECALL", CbLayoutrecallArgs<'a> => ();
    Notify = 6, "CB_NOTIFY", CbNotifyArgs<'a> => ();
    PushDeleg = 7, "CB_PUSH_DELEG", CbPushDelegArgs<'a> => ();
    RecallAny = 8, "CB_RECALL_ANY", CbRecallAnyArgs => ();
    RecallableObjAvail = 9, "CB_RECALLABLE_OBJ_AVAIL", CbRecallAnyArgs => ();
    RecallSlot = 10, "CB_RECALL_SLOT", CbRecallSlotArgs => ();
    Sequence = 11, "CB_SEQUENCE", CbSequenceArgs => CbSequenceResult;
    WantsCancelled = 12, "CB_WANTS_CANCELLED", CbWantsCancelledArgs => ();
    NotifyLock = 13, "CB_NOTIFY_LOCK", CbNotifyLockArgs<'a> => ();
    NotifyDeviceid = 14, "CB_NOTIFY_DEVICEID", CbNotifyDeviceidArgs => ();
    Offload = 15, "CB_OFFLOAD", CbOffloadArgs<'a> => ();
}

/// The result of any callback operation (`nfs_cb_resop4`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CbOpResult<'a> {
    /// The number of the operation; [`OP_ILLEGAL`] for an undefined one.
    pub number: u32,
    /// The outcome of the operation.
    pub status: Status,
    /// The body after the status.
    pub body: CbResultBody<'a>,
}

impl<'a> Decode<'a> for CbOpResult<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let number = d.u32()?;
        let status = Status::decode(d)?;
        let body = match status {
            Status::Ok => CbResultBody::decode(CbOpNum::from_u32(number), d)?,
            _ => CbResultBody::Nothing,
        };
        Ok(Self { number, status, body })
    }
}

impl Encode for CbOpResult<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        e.u32(self.number);
        self.status.encode(e);
        self.body.encode(e);
    }
}
