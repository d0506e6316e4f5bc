//! The messages of back channels (RFC 8881 20): CB_COMPOUND of CB_SEQUENCE and one operation.

use super::attr::get::fsid;
use super::attr::layout_type;
use super::callback::Callback;
use super::ops::offload::OffloadOutcome;
use super::stateid;
use crate::wire_handle;
use dafs_wire::nfs4::{
    Attr, Attributes, CbCompoundArgs, CbCompoundResult, CbGetattrArgs, CbLayoutrecallArgs,
    CbNotifyDeviceidArgs, CbNotifyLockArgs, CbOffloadArgs, CbOp, CbOpResult, CbRecallArgs,
    CbResultBody, CbSequenceArgs, DeviceChange, DeviceDeleted, DeviceId, LayoutRecall, OffloadInfo,
    RecalledLayout, SessionId, StateOwner, Status, Verifier, WriteResponse,
};
use dafs_wire::xdr::{Decode, Decoder, Encode, Encoder, XdrError};

/// The slot of a call on a back channel.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallbackSlot {
    pub(super) session: SessionId,
    pub(super) sequence: u32,
    pub(super) slot: u32,
    /// The highest slot in use.
    pub(super) highest: u32,
}

/// A client's reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BackAnswer {
    /// CB_SEQUENCE failed, so the operation was not executed.
    Sequence(Status),
    /// The operation's outcome, with change and size if it was CB_GETATTR and succeeded.
    Operation(Status, Option<(u64, u64)>),
    /// A reply that cannot be decoded, or contradicts the call.
    Garbage,
}

/// Layouts for reading and for writing (LAYOUTIOMODE4_ANY).
const IO_MODE_ANY: u32 = 3;

/// Encodes the arguments of a call.
pub(super) fn encode(callback: &Callback, slot: CallbackSlot, minor_version: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(256);
    let mut e = Encoder::new(&mut bytes);
    CbCompoundArgs { tag: b"", minor_version, callback_ident: 0, op_count: 2 }.encode(&mut e);
    let sequence = CbSequenceArgs {
        session_id: slot.session,
        sequence_id: slot.sequence,
        slot_id: slot.slot,
        highest_slot_id: slot.highest,
        cache_this: false,
        referring: Vec::new(),
    };
    CbOp::Sequence(sequence).encode(&mut e);
    match callback {
        Callback::Recall { handle, state, truncate } => {
            let handle = &wire_handle::encode(handle);
            let stateid = stateid::wire(*state);
            CbOp::Recall(CbRecallArgs { stateid, truncate: *truncate, handle }).encode(&mut e);
        }
        Callback::RecallLayout { handle, state, form } => {
            let handle = &wire_handle::encode(handle);
            let stateid = stateid::wire(*state);
            let (offset, length) = (0, u64::MAX);
            let recall = LayoutRecall::File(RecalledLayout { handle, offset, length, stateid });
            // As a rule the content has not moved. A client that comes back gets its present
            // placement.
            let (io_mode, changed) = (IO_MODE_ANY, false);
            let layout_type = layout_type(*form);
            let args = CbLayoutrecallArgs { layout_type, io_mode, changed, recall };
            CbOp::Layoutrecall(args).encode(&mut e);
        }
        Callback::RecallLayouts { of, form } => {
            let recall = match of {
                Some(handle) => LayoutRecall::FileSystem(fsid(handle)),
                None => LayoutRecall::All,
            };
            let (io_mode, changed) = (IO_MODE_ANY, false);
            let layout_type = layout_type(*form);
            let args = CbLayoutrecallArgs { layout_type, io_mode, changed, recall };
            CbOp::Layoutrecall(args).encode(&mut e);
        }
        Callback::DeviceGone { key, form } => {
            let (layout_type, device_id) = (layout_type(*form), DeviceId(key.0));
            let gone = DeviceChange::Deleted(DeviceDeleted { layout_type, device_id });
            CbOp::NotifyDeviceid(CbNotifyDeviceidArgs { changes: vec![gone] }).encode(&mut e);
        }
        Callback::Attributes { handle, .. } => {
            let handle = &wire_handle::encode(handle);
            let request = Attr::set(&[Attr::Change, Attr::Size]);
            CbOp::Getattr(CbGetattrArgs { handle, request }).encode(&mut e);
        }
        Callback::LockAvailable { handle, client, owner } => {
            let handle = &wire_handle::encode(handle);
            let owner = StateOwner { client_id: *client, owner };
            CbOp::NotifyLock(CbNotifyLockArgs { handle, owner }).encode(&mut e);
        }
        Callback::Offload { handle, stateid, outcome } => {
            let handle = &wire_handle::encode(handle);
            let outcome = offload(outcome);
            CbOp::Offload(CbOffloadArgs { handle, stateid: *stateid, outcome }).encode(&mut e);
        }
    }
    bytes
}

fn offload(outcome: &OffloadOutcome) -> OffloadInfo {
    match outcome.status {
        Status::Ok => OffloadInfo::Done(WriteResponse {
            callback_id: None,
            count: outcome.copied,
            committed: outcome.committed,
            verifier: Verifier(outcome.verifier),
        }),
        status => OffloadInfo::Failed(status, outcome.copied),
    }
}

/// Decodes the results of a call.
pub(super) fn decode(bytes: &[u8]) -> BackAnswer {
    try_decode(bytes).unwrap_or(BackAnswer::Garbage)
}

fn try_decode(bytes: &[u8]) -> Result<BackAnswer, XdrError> {
    let mut d = Decoder::new(bytes);
    let head = CbCompoundResult::decode(&mut d)?;
    if head.op_count == 0 {
        return Ok(match head.status {
            Status::Ok => BackAnswer::Garbage,
            status => BackAnswer::Sequence(status),
        });
    }
    let sequence = CbOpResult::decode(&mut d)?;
    match (&sequence.body, sequence.status) {
        (CbResultBody::Sequence(_), Status::Ok) => {}
        (_, Status::Ok) => return Ok(BackAnswer::Garbage),
        (_, status) => return Ok(BackAnswer::Sequence(status)),
    }
    if head.op_count == 1 {
        return Ok(BackAnswer::Garbage);
    }
    let result = CbOpResult::decode(&mut d)?;
    let attributes = match &result.body {
        CbResultBody::Getattr(got) => {
            Attributes::decode(&got.attributes).ok().and_then(|got| got.change.zip(got.size))
        }
        _ => None,
    };
    Ok(BackAnswer::Operation(result.status, attributes))
}
