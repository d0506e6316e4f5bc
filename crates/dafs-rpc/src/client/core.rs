//! The outstanding calls of one connection, and the meaning of each record from the server. No I/O.
//!
//! Invariants
//! * An XID names at most one outstanding call.
//! * A reply to a call that is no longer outstanding is ignored.

use super::error::CallError;
use super::gss::Outgoing;
use super::placed::{PlacedData, Sink, locate, placed_results, results_apart};
use crate::limits::LARGE_RECORD_BYTES;
use crate::memory::Block;
use crate::record::Record;
use dafs_mem::Site;
use dafs_wire::rpc::{
    AcceptStatus, CallError as HeaderError, CallHeader, Direction, ReplyHeader, ReplyStatus, peek,
};
use dafs_wire::xdr::{Decoder, MovedItem, XdrError};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::ops::Deref;
use std::thread::Thread;

/// The results of a call, in XDR, without the data that went into the sinks.
#[derive(Debug)]
pub struct Results {
    block: Block,
    /// Offset of the results in the record.
    start: usize,
    /// The data in the sinks, one item per sink; empty if the call has no sinks.
    moved: SmallVec<[MovedItem; 2]>,
}

impl Results {
    /// A decoder at the start of the results that knows which data is in the sinks.
    /// [`Decoder::payload`] returns such data as
    /// [`Payload::Moved`](dafs_wire::xdr::Payload::Moved), whose index is that of the sink. It
    /// returns data inside the results as such; [`MemorySlice::take`](super::MemorySlice::take)
    /// moves that data into the sink.
    pub fn decoder(&self) -> Decoder<'_> {
        Decoder::with_moved(self, &self.moved)
    }

    /// Records which data went into the sinks.
    pub(crate) fn place(&mut self, moved: SmallVec<[MovedItem; 2]>) {
        self.moved = moved;
    }

    /// All bytes of a block.
    pub(crate) fn in_block(block: Block) -> Self {
        Self { block, start: 0, moved: SmallVec::new() }
    }

    /// A copy of these bytes.
    pub(crate) fn copied(bytes: &[u8]) -> Result<Self, CallError> {
        copied(bytes).map(Self::in_block)
    }

    /// The results without their first bytes.
    pub(crate) fn behind(mut self, bytes: usize) -> Self {
        self.start = (self.start + bytes).min(self.block.filled());
        for at in self.moved.iter_mut().filter_map(|item| item.at.as_mut()) {
            *at = at.saturating_sub(bytes);
        }
        self
    }

    /// The first bytes of the results.
    pub(crate) fn until(mut self, bytes: usize) -> Self {
        self.block.truncate(self.start + bytes);
        self
    }

    /// The position and the length of data that was read into the first sink.
    pub(crate) fn placed(&self) -> Option<(usize, usize)> {
        self.moved.iter().find_map(|item| Some((item.at?, item.len)))
    }
}

impl Deref for Results {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // INVARIANT: the header was decoded from the block, and ends inside it.
        &self.block.bytes()[self.start..]
    }
}

/// A callback from the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerCall {
    pub(crate) xid: u32,
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) procedure: u32,
    pub(crate) args: Vec<u8>,
}

/// The meaning of a record.
#[derive(Debug)]
pub(crate) enum Event {
    /// The reply to an outstanding call, and the thread that waits for it.
    Answered(Option<Thread>),
    /// A reply without an outstanding call.
    Ignored,
    /// A callback.
    Call(ServerCall),
    /// A callback to reject with this header.
    Refuse(ReplyHeader<'static>),
}

/// An outstanding call, or a reply that its caller has not fetched.
#[derive(Debug, Default)]
struct Slot {
    answer: Option<Result<Results, CallError>>,
    /// The thread that sleeps until the reply arrives.
    waiter: Option<Thread>,
    /// The sink for result data.
    sink: Option<Sink>,
    /// True if the caller takes the reply with its header, to verify it.
    is_raw: bool,
}

/// The calls of one connection.
#[derive(Debug)]
pub(crate) struct Core {
    next_xid: u32,
    calls: FxHashMap<u32, Slot>,
    calls_max: usize,
    /// True when the last record was large.
    expects_large: bool,
    unanswered: usize,
    /// True once a call was cancelled before its reply arrived.
    given_up: bool,
    /// Outstanding calls with large sinks.
    large_sinks: usize,
    /// The call whose data is being read into its sink.
    placing: Option<u32>,
    /// The threads that wait until fewer calls are unanswered.
    waiters_for_room: Vec<Thread>,
}

impl Core {
    pub(crate) fn new(first_xid: u32, calls_max: usize) -> Self {
        Self {
            next_xid: first_xid,
            calls: FxHashMap::default(),
            calls_max,
            expects_large: false,
            unanswered: 0,
            given_up: false,
            large_sinks: 0,
            placing: None,
            waiters_for_room: Vec::new(),
        }
    }

    /// Begins a call and returns its XID: the wanted one, unless another call uses it.
    pub(crate) fn begin(&mut self, outgoing: &Outgoing<'_>) -> Result<u32, CallError> {
        let Outgoing { request, head, .. } = outgoing;
        if self.calls.len() >= self.calls_max {
            return Err(CallError::TooMany);
        }
        let xid = match request.xid.filter(|xid| !self.calls.contains_key(xid)) {
            Some(wanted) => wanted,
            None => self.free_xid(),
        };
        let sink = request.sinks.first().cloned().zip(request.locate);
        let offset = head.results_offset();
        let sink = sink.map(|(memory, locate)| Sink { memory, locate, offset });
        self.large_sinks += usize::from(is_large(sink.as_ref()));
        self.unanswered += 1;
        let is_raw = head.has_raw_reply();
        self.calls.insert(xid, Slot { sink, is_raw, ..Slot::default() });
        Ok(xid)
    }

    /// Returns an XID that no outstanding call uses.
    fn free_xid(&mut self) -> u32 {
        while self.calls.contains_key(&self.next_xid) {
            self.next_xid = self.next_xid.wrapping_add(1);
        }
        let xid = self.next_xid;
        self.next_xid = xid.wrapping_add(1);
        xid
    }

    /// Fetches the reply and ends the call.
    pub(crate) fn fetch(&mut self, xid: u32) -> Option<Result<Results, CallError>> {
        let answer = self.calls.get_mut(&xid)?.answer.take()?;
        self.calls.remove(&xid);
        Some(answer)
    }

    /// True when the call has a reply or was cancelled.
    pub(crate) fn is_over(&self, xid: u32) -> bool {
        self.calls.get(&xid).is_none_or(|slot| slot.answer.is_some())
    }

    /// Cancels a call. Returns true if its data is being read into its sink; the caller must stop
    /// that.
    #[must_use]
    pub(crate) fn forget(&mut self, xid: u32) -> bool {
        if let Some(slot) = self.calls.remove(&xid) {
            self.unanswered -= usize::from(slot.answer.is_none());
            self.given_up |= slot.answer.is_none();
            self.large_sinks -= usize::from(is_large(slot.sink.as_ref()));
        }
        self.placing == Some(xid)
    }

    /// Outstanding calls.
    pub(crate) fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// True when it is unknown how much of some call the server has received.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.unanswered > 0 || self.given_up
    }

    /// Registers `waiter` to be woken when the reply arrives.
    pub(crate) fn wait(&mut self, xid: u32, waiter: Thread) {
        if let Some(slot) = self.calls.get_mut(&xid) {
            slot.waiter = Some(waiter);
        }
    }

    /// Registers `waiter` to be woken once when a reply arrives, or when no thread reads.
    pub(crate) fn wait_for_room(&mut self, waiter: Thread) {
        if self.waiters_for_room.iter().all(|other| other.id() != waiter.id()) {
            self.waiters_for_room.push(waiter);
        }
    }

    /// Wakes the threads that wait until fewer calls are unanswered.
    pub(crate) fn wake_for_room(&mut self) {
        self.waiters_for_room.drain(..).for_each(|waiter| waiter.unpark());
    }

    /// Any thread that waits for an outstanding call.
    pub(crate) fn some_waiter(&self) -> Option<Thread> {
        let waiting = self.calls.values().filter(|slot| slot.answer.is_none());
        waiting.filter_map(|slot| slot.waiter.clone()).next()
    }

    /// All waiting threads.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &Thread> {
        self.calls.values().filter_map(|slot| slot.waiter.as_ref())
    }

    /// True when the client should read little ahead, because a large record is likely to begin.
    pub(crate) fn expects_large(&self) -> bool {
        self.expects_large || self.large_sinks > 0
    }

    /// Searches the first bytes of a record for data that belongs in a sink.
    pub(crate) fn locate(&self, head: &[u8]) -> Option<PlacedData> {
        let (xid, Direction::Reply) = peek(head).ok()? else { return None };
        let slot = self.calls.get(&xid).filter(|slot| slot.answer.is_none())?;
        locate(xid, head, slot.sink.as_ref()?)
    }

    /// Marks the call whose data is being read into its sink.
    pub(crate) fn placing(&mut self, xid: u32) {
        self.placing = Some(xid);
    }

    /// Takes a record from the server.
    ///
    /// # Errors
    /// When the record is not RPC; the connection must end.
    pub(crate) fn take(
        &mut self,
        record: Record<'_>,
        placed: Option<PlacedData>,
    ) -> Result<Event, XdrError> {
        let bytes = match &record {
            Record::Here(bytes) => bytes,
            Record::Block(block) => block.bytes(),
        };
        let placed_bytes = placed.as_ref().map_or(0, |placed| placed.len);
        self.expects_large = bytes.len() + placed_bytes >= LARGE_RECORD_BYTES;
        match peek(bytes)? {
            (_, Direction::Call) => server_call(bytes),
            (xid, Direction::Reply) => Ok(self.answer(xid, record, placed)),
        }
    }

    fn answer(&mut self, xid: u32, record: Record<'_>, placed: Option<PlacedData>) -> Event {
        if self.placing == placed.as_ref().map(|placed| placed.xid) {
            self.placing = None;
        }
        let Some(slot) = self.calls.get_mut(&xid) else {
            return Event::Ignored;
        };
        if slot.answer.is_some() {
            return Event::Ignored;
        }
        self.unanswered -= 1;
        let (sink, is_raw) = (slot.sink.take(), slot.is_raw);
        self.large_sinks -= usize::from(is_large(sink.as_ref()));
        slot.answer = Some(match (record, placed, sink) {
            (record, Some(placed), _) => placed_results(record, &placed, is_raw),
            (Record::Here(bytes), None, Some(sink)) => match locate(xid, bytes, &sink) {
                Some(placing) => results_apart(bytes, placing, is_raw),
                None => results(Record::Here(bytes), 0, is_raw),
            },
            (record, None, _) => results(record, 0, is_raw),
        });
        Event::Answered(slot.waiter.take())
    }
}

fn is_large(sink: Option<&Sink>) -> bool {
    sink.is_some_and(|sink| sink.memory.len() >= LARGE_RECORD_BYTES)
}

/// Decodes a callback.
pub(crate) fn server_call(bytes: &[u8]) -> Result<Event, XdrError> {
    let mut decoder = Decoder::new(bytes);
    match CallHeader::decode(&mut decoder) {
        Ok(header) => Ok(Event::Call(ServerCall {
            xid: header.xid,
            program: header.program,
            version: header.version,
            procedure: header.procedure,
            args: decoder.rest().to_vec(),
        })),
        Err(HeaderError::Rejected { xid, status }) => {
            Ok(Event::Refuse(ReplyHeader::denied(xid, status)))
        }
        Err(HeaderError::Malformed(error)) => Err(error),
        Err(_) => Err(XdrError::Trailing(bytes.len())),
    }
}

/// A block with a copy of these bytes.
fn copied(bytes: &[u8]) -> Result<Block, CallError> {
    let block = Block::new(bytes.len());
    let mut block = block.map_err(|error| CallError::NoMemory(error.kind()))?;
    let copied = block.space(bytes.len()).copy_from(bytes, Site::RpcStaging);
    block.fill(copied);
    Ok(block)
}

/// The results of a record whose reply begins at byte `start`; with `is_raw` the whole reply.
pub(crate) fn results(
    record: Record<'_>,
    start: usize,
    is_raw: bool,
) -> Result<Results, CallError> {
    let block = match record {
        Record::Block(block) => block,
        Record::Here(bytes) => copied(bytes)?,
    };
    if is_raw {
        return Ok(Results { block, start, moved: SmallVec::new() });
    }
    let mut decoder = Decoder::new(block.bytes().get(start..).unwrap_or_default());
    let header = decoder.value::<ReplyHeader<'_>>().map_err(|_| CallError::Malformed)?;
    match header.status {
        ReplyStatus::Accepted { status: AcceptStatus::Success, .. } => {
            let start = start + decoder.position();
            Ok(Results { block, start, moved: SmallVec::new() })
        }
        ReplyStatus::Accepted { status, .. } => Err(CallError::NotDone(status)),
        ReplyStatus::Denied(status) => Err(CallError::Denied(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Procedure, Request};
    use dafs_wire::rpc::{AuthStatus, OpaqueAuth, RejectStatus};
    use dafs_wire::xdr::Encode;

    fn begin(core: &mut Core) -> Result<u32, CallError> {
        let procedure = Procedure { program: 1, version: 1, procedure: 1 };
        core.begin(&Outgoing::plain(&Request::new(procedure, &[], 0)))
    }

    fn reply(header: ReplyHeader<'_>, results: &[u8]) -> Vec<u8> {
        [&header.encoded()[..], results].concat()
    }

    #[test]
    fn answers_find_their_calls_in_any_order_once() {
        let mut core = Core::new(u32::MAX, 2);
        let (a, b) = (begin(&mut core).unwrap(), begin(&mut core).unwrap());
        assert_eq!((a, b), (u32::MAX, 0));
        assert_eq!(begin(&mut core), Err(CallError::TooMany));
        for xid in [b, a] {
            let bytes = reply(ReplyHeader::accepted(xid, AcceptStatus::Success), &[xid as u8]);
            let mut take = || core.take(Record::Here(&bytes), None).unwrap();
            assert!(matches!(take(), Event::Answered(None)));
            assert!(matches!(take(), Event::Ignored));
        }
        assert_eq!(core.fetch(a).unwrap().unwrap()[..], [255]);
        assert_eq!(core.fetch(b).unwrap().unwrap()[..], [0]);
        assert!(core.fetch(b).is_none());
        let late = reply(ReplyHeader::accepted(a, AcceptStatus::Success), &[]);
        assert!(matches!(core.take(Record::Here(&late), None).unwrap(), Event::Ignored));
    }

    #[test]
    fn rejections_and_nonsense_are_told_apart() {
        let mut core = Core::new(1, 9);
        let mut outcome = |make: fn(u32) -> Vec<u8>| {
            let xid = begin(&mut core).unwrap();
            core.take(Record::Here(&make(xid)), None).unwrap();
            core.fetch(xid).unwrap().unwrap_err()
        };
        let weak = RejectStatus::Auth(AuthStatus::TooWeak);
        assert_eq!(
            outcome(|xid| reply(ReplyHeader::accepted(xid, AcceptStatus::GarbageArgs), &[])),
            CallError::NotDone(AcceptStatus::GarbageArgs)
        );
        assert_eq!(
            outcome(|xid| {
                let weak = RejectStatus::Auth(AuthStatus::TooWeak);
                reply(ReplyHeader::denied(xid, weak), &[])
            }),
            CallError::Denied(weak)
        );
        assert_eq!(
            outcome(|xid| [xid.to_be_bytes(), [0, 0, 0, 1], [0, 0, 0, 7]].concat()),
            CallError::Malformed
        );
        assert!(core.take(Record::Here(&[0; 3]), None).is_err());
    }

    #[test]
    fn calls_of_the_server_are_passed_on() {
        let none = OpaqueAuth::NONE;
        let header = CallHeader {
            xid: 7,
            program: 1,
            version: 2,
            procedure: 3,
            credential: none,
            verifier: none,
        };
        let mut bytes = header.encoded();
        bytes.extend_from_slice(b"args");
        let mut core = Core::new(7, 9);
        begin(&mut core).unwrap();
        let Event::Call(call) = core.take(Record::Here(&bytes), None).unwrap() else { panic!() };
        assert_eq!((call.xid, call.program, call.version, call.procedure), (7, 1, 2, 3));
        assert_eq!(call.args, b"args");
        assert!(!core.is_over(7));
    }
}
