//! The back channel: answers to the server's callback compounds (RFC 8881 2.10.3.1, 20).
//!
//! Invariants
//! * Each slot of the back channel is answered exactly once; a repeated call gets the same bytes.
//! * A callback that cannot be decoded is answered with an error and changes no state.

use crate::limits::BACK_SLOTS_MAX;
use dafs_mem::{Mutex, RwLock};
use dafs_wire::nfs4::{
    Attributes, CbCompoundArgs, CbCompoundResult, CbGetattrArgs, CbGetattrResult,
    CbLayoutrecallArgs, CbNotifyDeviceidArgs, CbNotifyLockArgs, CbOffloadArgs, CbOp, CbOpNum,
    CbOpResult, CbRecallAnyArgs, CbRecallArgs, CbResultBody, CbSequenceArgs, CbSequenceResult,
    Fattr, OP_ILLEGAL, SessionId, Status,
};
use dafs_wire::xdr::{Decode, Decoder, Encode, Encoder};
use std::sync::Arc;

/// The client's part in callbacks. Called on the thread that reads the connection, so no method may
/// wait for the server.
pub trait BackHandler: Send + Sync {
    /// A delegation is to be returned (later, with DELEGRETURN).
    fn recall(&self, _args: &CbRecallArgs<'_>) -> Status {
        Status::Ok
    }

    /// The server asks for the size and the change attribute of a file that this client writes
    /// under a delegation (CB_GETATTR).
    ///
    /// # Errors
    /// The status to answer.
    fn getattr(&self, _args: &CbGetattrArgs<'_>) -> Result<Attributes<'static>, Status> {
        Err(Status::BadHandle)
    }

    /// A lock that was denied may be free now.
    fn notify_lock(&self, _args: &CbNotifyLockArgs<'_>) -> Status {
        Status::Ok
    }

    /// Some delegations or layouts are to be returned; the client chooses which.
    fn recall_any(&self, _args: &CbRecallAnyArgs) -> Status {
        Status::Ok
    }

    /// A layout is to be returned (later, with LAYOUTRETURN). A client without layouts answers
    /// NOTSUPP.
    fn recall_layout(&self, _args: &CbLayoutrecallArgs<'_>) -> Status {
        Status::NotSupp
    }

    /// Devices have changed or are gone. A client that asked for no such notices answers NOTSUPP.
    fn notify_devices(&self, _args: &CbNotifyDeviceidArgs) -> Status {
        Status::NotSupp
    }

    /// An asynchronous copy has ended.
    fn offload(&self, _args: &CbOffloadArgs<'_>) -> Status {
        Status::Ok
    }
}

/// Answers every callback with success and does no more.
#[derive(Debug, Clone, Copy, Default)]
pub struct IgnoreCallbacks;

impl BackHandler for IgnoreCallbacks {}

#[derive(Debug, Default, Clone)]
struct BackSlot {
    sequence: u32,
    answer: Vec<u8>,
}

/// The back channel of one session, whichever connections it uses.
pub struct BackChannel {
    session_id: SessionId,
    slots: Mutex<Vec<BackSlot>>,
    handler: Arc<dyn BackHandler>,
}

impl std::fmt::Debug for BackChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackChannel").field("session_id", &self.session_id).finish_non_exhaustive()
    }
}

impl BackChannel {
    /// A back channel with so many slots.
    pub fn new(session_id: SessionId, slots: u32, handler: Arc<dyn BackHandler>) -> Self {
        let count = slots.clamp(1, BACK_SLOTS_MAX) as usize;
        Self { session_id, slots: Mutex::new(vec![BackSlot::default(); count]), handler }
    }

    /// Answers a compound that begins with this CB_SEQUENCE; the other operations are in `d`.
    fn answer(
        &self,
        head: &CbCompoundArgs<'_>,
        sequence: &CbSequenceArgs,
        d: &mut Decoder<'_>,
    ) -> Vec<u8> {
        let number = CbOpNum::Sequence as u32;
        let mut slots = self.slots.lock();
        let highest = slots.len() as u32 - 1;
        let Some(slot) = slots.get_mut(sequence.slot_id as usize) else {
            return refuse(head, number, Status::BadSlot);
        };
        if sequence.sequence_id == slot.sequence && !slot.answer.is_empty() {
            return slot.answer.clone();
        }
        if sequence.sequence_id != slot.sequence.wrapping_add(1) {
            return refuse(head, number, Status::SeqMisordered);
        }
        let answer = run(head, sequence, highest, d, &*self.handler);
        slot.sequence = sequence.sequence_id;
        slot.answer.clone_from(&answer);
        answer
    }
}

/// The back channels that use one connection.
#[derive(Debug, Default)]
pub struct BackChannels {
    channels: RwLock<Vec<Arc<BackChannel>>>,
}

impl BackChannels {
    /// Lets a session use the connection for callbacks.
    pub fn add(&self, channel: Arc<BackChannel>) {
        let mut channels = self.channels.write();
        channels.push(channel);
    }

    /// Lets this session alone use the connection for callbacks.
    pub fn set(&self, channel: Arc<BackChannel>) {
        *self.channels.write() = vec![channel];
    }

    /// Answers one CB_COMPOUND: arguments in, results out. `None` if the head of the arguments
    /// cannot be decoded, which RPC answers with GARBAGE_ARGS.
    pub fn answer(&self, args: &[u8]) -> Option<Vec<u8>> {
        let mut d = Decoder::new(args);
        let head = CbCompoundArgs::decode(&mut d).ok()?;
        let sequence = match CbOp::decode(&mut d) {
            Ok(CbOp::Sequence(sequence)) if head.op_count > 0 => sequence,
            Ok(other) => return Some(refuse(&head, other.number(), Status::OpNotInSession)),
            Err(bad) => return Some(refuse(&head, bad.number, Status::BadXdr)),
        };
        let channels = self.channels.read();
        let found = channels.iter().find(|channel| channel.session_id == sequence.session_id);
        Some(match found {
            Some(channel) => channel.answer(&head, &sequence, &mut d),
            None => refuse(&head, CbOpNum::Sequence as u32, Status::BadSession),
        })
    }
}

/// The answer to a compound that is refused at its first operation.
fn refuse(head: &CbCompoundArgs<'_>, number: u32, status: Status) -> Vec<u8> {
    let mut out = Vec::new();
    let mut e = Encoder::new(&mut out);
    CbCompoundResult { status, tag: head.tag, op_count: 1 }.encode(&mut e);
    CbOpResult { number, status, body: CbResultBody::Nothing }.encode(&mut e);
    out
}

/// Runs the operations behind CB_SEQUENCE.
fn run(
    head: &CbCompoundArgs<'_>,
    sequence: &CbSequenceArgs,
    highest_slot_id: u32,
    d: &mut Decoder<'_>,
    handler: &dyn BackHandler,
) -> Vec<u8> {
    let mut out = Vec::new();
    let mut e = Encoder::new(&mut out);
    CbCompoundResult { status: Status::Ok, tag: head.tag, op_count: 1 }.encode(&mut e);
    let count_at = e.position() - 4;
    CbOpResult {
        number: CbOpNum::Sequence as u32,
        status: Status::Ok,
        body: CbResultBody::Sequence(CbSequenceResult {
            session_id: sequence.session_id,
            sequence_id: sequence.sequence_id,
            slot_id: sequence.slot_id,
            highest_slot_id,
            target_highest_slot_id: highest_slot_id,
        }),
    }
    .encode(&mut e);
    let (mut status, mut count) = (Status::Ok, 1);
    while status == Status::Ok && count < head.op_count {
        status = run_one(d, handler, &mut e);
        count += 1;
    }
    e.patch_u32(count_at, count);
    e.patch_u32(0, status.code());
    out
}

/// Runs one operation and appends its result.
fn run_one(d: &mut Decoder<'_>, handler: &dyn BackHandler, e: &mut Encoder<'_>) -> Status {
    let op = match CbOp::decode(d) {
        Ok(op) => op,
        Err(bad) => {
            return append(e, bad.number, Status::BadXdr, CbResultBody::Nothing);
        }
    };
    let number = op.number();
    let status = match &op {
        CbOp::Getattr(args) => {
            return match handler.getattr(args) {
                Ok(attributes) => {
                    let values = attributes.to_values();
                    let fattr = Fattr { mask: attributes.mask(), values: &values };
                    let body = CbResultBody::Getattr(CbGetattrResult { attributes: fattr });
                    append(e, number, Status::Ok, body)
                }
                Err(status) => append(e, number, status, CbResultBody::Nothing),
            };
        }
        CbOp::Recall(args) => handler.recall(args),
        CbOp::NotifyLock(args) => handler.notify_lock(args),
        CbOp::RecallAny(args) => handler.recall_any(args),
        CbOp::Layoutrecall(args) => handler.recall_layout(args),
        CbOp::NotifyDeviceid(args) => handler.notify_devices(args),
        CbOp::Offload(args) => handler.offload(args),
        CbOp::RecallSlot(_) => Status::Ok,
        CbOp::Sequence(_) => Status::SequencePos,
        CbOp::Illegal(_) => {
            return append(e, OP_ILLEGAL, Status::OpIllegal, CbResultBody::Nothing);
        }
        _ => Status::NotSupp,
    };
    append(e, number, status, CbResultBody::Nothing)
}

fn append(e: &mut Encoder<'_>, number: u32, status: Status, body: CbResultBody<'_>) -> Status {
    CbOpResult { number, status, body }.encode(e);
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_wire::nfs4::{Bitmap, Stateid};
    use std::sync::atomic::{AtomicU32, Ordering};

    const SESSION: SessionId = SessionId(*b"0123456789abcdef");

    /// Counts recalls; knows the size of one file.
    #[derive(Default)]
    struct Counting(AtomicU32);

    impl BackHandler for Counting {
        fn recall(&self, _: &CbRecallArgs<'_>) -> Status {
            self.0.fetch_add(1, Ordering::Relaxed);
            Status::Ok
        }

        fn getattr(&self, args: &CbGetattrArgs<'_>) -> Result<Attributes<'static>, Status> {
            match args.handle {
                b"file" => Ok(Attributes { size: Some(7), ..Attributes::default() }),
                _ => Err(Status::BadHandle),
            }
        }
    }

    fn channels(handler: &Arc<Counting>) -> BackChannels {
        let channels = BackChannels::default();
        channels.add(Arc::new(BackChannel::new(SESSION, 2, handler.clone())));
        channels
    }

    fn request(session_id: SessionId, slot_id: u32, sequence_id: u32, ops: &[CbOp<'_>]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut e = Encoder::new(&mut out);
        let op_count = ops.len() as u32 + 1;
        let head = CbCompoundArgs { tag: b"t", minor_version: 1, callback_ident: 0, op_count };
        head.encode(&mut e);
        CbOp::Sequence(CbSequenceArgs {
            session_id,
            sequence_id,
            slot_id,
            highest_slot_id: slot_id,
            cache_this: false,
            referring: Vec::new(),
        })
        .encode(&mut e);
        ops.iter().for_each(|op| op.encode(&mut e));
        out
    }

    fn statuses(answer: &[u8]) -> Vec<(u32, Status)> {
        let mut d = Decoder::new(answer);
        let head = CbCompoundResult::decode(&mut d).unwrap();
        assert_eq!(head.tag, b"t");
        let results: Vec<_> = (0..head.op_count)
            .map(|_| CbOpResult::decode(&mut d).map(|r| (r.number, r.status)).unwrap())
            .collect();
        assert_eq!(d.remaining(), 0);
        assert_eq!(head.status, results.last().unwrap().1);
        results
    }

    #[test]
    fn callbacks_are_done_once() {
        let handler = Arc::new(Counting::default());
        let channels = channels(&handler);
        let recall = CbRecallArgs { stateid: Stateid::CURRENT, truncate: false, handle: b"file" };
        let call = request(SESSION, 0, 1, &[CbOp::Recall(recall)]);
        let first = channels.answer(&call).unwrap();
        let sequence = CbOpNum::Sequence as u32;
        assert_eq!(statuses(&first), [(sequence, Status::Ok), (4, Status::Ok)]);
        assert_eq!(channels.answer(&call).unwrap(), first);
        assert_eq!(handler.0.load(Ordering::Relaxed), 1);
        let late = request(SESSION, 0, 3, &[CbOp::Recall(recall)]);
        assert_eq!(statuses(&channels.answer(&late).unwrap()), [(sequence, Status::SeqMisordered)]);
        let next = request(SESSION, 0, 2, &[CbOp::Recall(recall)]);
        channels.answer(&next).unwrap();
        assert_eq!(handler.0.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_wrong_call_is_refused() {
        let channels = channels(&Arc::default());
        let answer = |args: &[u8]| statuses(&channels.answer(args).unwrap());
        let sequence = CbOpNum::Sequence as u32;
        let other = SessionId::default();
        assert_eq!(answer(&request(other, 0, 1, &[])), [(sequence, Status::BadSession)]);
        assert_eq!(answer(&request(SESSION, 2, 1, &[])), [(sequence, Status::BadSlot)]);
        let illegal = request(SESSION, 1, 1, &[CbOp::Illegal(99)]);
        assert_eq!(answer(&illegal)[1], (OP_ILLEGAL, Status::OpIllegal));
        let again = request(
            SESSION,
            1,
            2,
            &[CbOp::Getattr(CbGetattrArgs { handle: b"other", request: Bitmap::EMPTY })],
        );
        assert_eq!(answer(&again)[1], (3, Status::BadHandle));
        let file = CbGetattrArgs { handle: b"file", request: Bitmap::EMPTY };
        let good = request(SESSION, 1, 3, &[CbOp::Getattr(file)]);
        assert_eq!(answer(&good)[1], (3, Status::Ok));
        // A compound that ends within an operation, and one that ends within its head.
        let whole = request(SESSION, 1, 4, &[CbOp::Getattr(file)]);
        assert_eq!(answer(&whole[..whole.len() - 8])[1], (3, Status::BadXdr));
        assert!(channels.answer(&whole[..6]).is_none());
    }
}
