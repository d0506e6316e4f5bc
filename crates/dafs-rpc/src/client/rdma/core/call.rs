//! Outgoing calls: the content of the message, and the chunks that the client offers to the server.

use super::super::base::Base;
use super::{Connection, Stage};
use crate::client::core::Results;
use crate::client::error::CallError;
use crate::client::gss::Outgoing;
use crate::client::memory::{Memory, MemorySlice};
use crate::client::request::Request;
use dafs_dat::RemoteBuffer;
use dafs_mem::{Site, VolatileSlice};
use dafs_wire::rpc::limits::SUCCESS_HEADER_BYTES;
use dafs_wire::rpcrdma::limits::{HEADER_BYTES_MIN, SEGMENT_BYTES};
use dafs_wire::rpcrdma::{Body, Chunk, Chunks, Header, ReadSegment, Segment};
use dafs_wire::xdr::{Encode, Encoder, UNIT_BYTES, padded};
use smallvec::{SmallVec, smallvec};
use std::thread::Thread;

/// An outstanding call, or one whose outcome has not been fetched.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) state: State,
    /// The thread that sleeps until the call ends.
    pub(super) waiter: Option<Thread>,
    /// True when no caller will fetch the outcome.
    pub(super) is_abandoned: bool,
    /// True if the caller takes the reply with its header, to verify it.
    pub(super) is_raw: bool,
    pub(super) offered: Offered,
}

#[derive(Debug)]
pub(super) enum State {
    /// The call waits for a credit; its message of `bytes` bytes lies in a send slot.
    Waiting {
        slot: u32,
        len: usize,
    },
    /// The server has the call.
    Sent,
    Over(Result<Results, CallError>),
}

/// The memory that a server may reach for a call.
#[derive(Debug, Default)]
pub(super) struct Offered {
    /// The data of an argument, if it travels outside of the message.
    pub(super) data: Option<MemorySlice>,
    /// Sinks for result data (write chunks).
    pub(super) sinks: SmallVec<[MemorySlice; 1]>,
    /// A call that does not fit a message (position-zero read chunk).
    pub(super) long_call: Option<Memory>,
    /// Memory for a reply that does not fit a message (reply chunk).
    pub(super) long_reply: Option<Memory>,
}

impl Offered {
    /// True when a server can reach memory that belongs to the caller.
    pub(super) fn is_exposed(&self) -> bool {
        self.data.is_some() || !self.sinks.is_empty()
    }

    /// Bytes that the server is likely to write by RDMA.
    pub(super) fn expected_bytes(&self) -> u64 {
        self.sinks.iter().map(|sink| sink.len() as u64).sum()
    }

    /// Marks the memory as spoiled: the server may still write to it after the call has ended.
    pub(super) fn spoil(&self) {
        let sinks = self.sinks.iter().map(MemorySlice::memory);
        sinks.chain(&self.long_reply).for_each(Memory::spoil);
    }

    /// Returns the staging memory when the call has ended.
    pub(super) fn release(self, base: &mut Base) {
        let ours = self.long_call.into_iter().chain(self.long_reply);
        ours.for_each(|memory| base.staging.put(memory));
    }
}

/// The form in which a call travels.
struct Plan {
    header: Header,
    /// True when the data travels inside the arguments.
    with_data: bool,
    /// Bytes of header and arguments, without data that travels outside of them.
    call_bytes: usize,
}

impl Connection {
    /// Takes a call and returns its XID. The call leaves as soon as there is a credit.
    pub(in super::super) fn submit(
        &mut self,
        base: &mut Base,
        outgoing: &Outgoing<'_>,
    ) -> Result<u32, CallError> {
        let request = outgoing.request;
        match self.stage {
            Stage::Up => {}
            Stage::Connecting => return Err(CallError::Request("there is no connection yet")),
            Stage::Over => return Err(self.ended()),
        }
        request.check()?;
        if self.calls.len() >= self.options.calls_max {
            return Err(CallError::TooMany);
        }
        let data = request.data.as_ref().map(|data| &data.memory);
        for slice in request.sinks.iter().chain(data) {
            if !slice.memory().belongs_to(&base.retired) {
                return Err(CallError::Request("the memory does not belong to this port"));
            }
            if slice.memory().is_spoiled() {
                return Err(CallError::Request(
                    "a server may still write to this memory for a call that was lost; use other",
                ));
            }
        }
        let xid = match request.xid.filter(|xid| !self.calls.contains_key(xid)) {
            Some(wanted) => wanted,
            None => self.free_xid(),
        };
        let mut offered = Offered::default();
        match self.encode(base, xid, outgoing, &mut offered) {
            Ok(state) => {
                let is_raw = outgoing.head.has_raw_reply();
                let call = Call { state, waiter: None, is_abandoned: false, is_raw, offered };
                self.calls.insert(xid, call);
                self.waiting.push_back(xid);
                self.pump(base);
                Ok(xid)
            }
            Err(error) => {
                offered.release(base);
                Err(error)
            }
        }
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

    /// Sends waiting calls, as far as credits allow.
    pub(super) fn pump(&mut self, base: &mut Base) {
        while self.in_flight < self.credits
            && !self.is_clogged()
            && let Some(xid) = self.waiting.pop_front()
        {
            let Some(call) = self.calls.get_mut(&xid) else { continue };
            let State::Waiting { slot, len } = call.state else { continue };
            call.state = State::Sent;
            self.in_flight += 1;
            let expected = call.offered.expected_bytes();
            let posted = self.post_receives(base).and_then(|()| self.post_send(base, slot, len));
            if let Err(reason) = posted {
                return self.break_off(base, reason);
            }
            self.expect(base, expected, 0);
        }
    }

    /// Encodes a call into a send slot.
    fn encode(
        &mut self,
        base: &mut Base,
        xid: u32,
        outgoing: &Outgoing<'_>,
        offered: &mut Offered,
    ) -> Result<State, CallError> {
        let request = outgoing.request;
        self.scratch.clear();
        outgoing.head.encode(&self.options, xid, request.procedure, &mut self.scratch);
        let rpc_bytes = self.scratch.len();
        let plan = self.plan(base, xid, outgoing, rpc_bytes, offered)?;
        plan.header.encode(&mut Encoder::new(&mut self.scratch));
        let (rpc, header) = self.scratch.split_at(rpc_bytes);
        let slot = self.sends.take(&mut *base.adapter).map_err(|error| no_memory(error.into()))?;
        let mut writer = Writer::new(self.sends.view(slot), Site::RpcRdmaInline);
        writer.put(header);
        let mut len = header.len();
        if let Some(memory) = &offered.long_call {
            writer = Writer::new(memory.view(), Site::RpcRdmaLong);
        } else {
            len += plan.call_bytes;
        }
        let start = writer.at;
        writer.put(rpc);
        writer.put_args(request, plan.with_data);
        debug_assert_eq!(writer.at - start, plan.call_bytes, "a call that does not fit its place");
        Ok(State::Waiting { slot, len })
    }

    /// Chooses the form in which a call travels and takes the memory for it.
    fn plan(
        &self,
        base: &mut Base,
        xid: u32,
        outgoing: &Outgoing<'_>,
        rpc_bytes: usize,
        offered: &mut Offered,
    ) -> Result<Plan, CallError> {
        let (request, is_whole) = (outgoing.request, outgoing.head.is_whole());
        let sinks = if is_whole { &[] } else { request.sinks };
        let mut chunks = Chunks::default();
        for sink in sinks {
            chunks.writes.push(chunk(segment(sink.remote())?));
            offered.sinks.push(sink.clone());
        }
        let reply_bytes = SUCCESS_HEADER_BYTES + request.results_bytes_max;
        let reply_header = HEADER_BYTES_MIN + sinks.len() * (4 + 4 + SEGMENT_BYTES);
        if reply_header.saturating_add(reply_bytes) > self.reply_bytes {
            if reply_bytes > self.options.record_bytes_max {
                return Err(CallError::Request("its results could be too long"));
            }
            let memory = base.stage(reply_bytes).map_err(no_memory)?;
            chunks.reply = Some(chunk(segment(memory.whole().remote())?));
            offered.long_reply = Some(memory);
        }
        let args_bytes = request.args_bytes();
        let data_bytes = request.data.as_ref().map_or(0, |data| padded(data.memory.len()));
        let mut call_bytes = rpc_bytes + args_bytes + data_bytes;
        let mut with_data = true;
        let credits = self.credits_wanted;
        let mut header = Header { xid, credits, body: Body::Message(chunks) };
        if header.encoded_bytes() + call_bytes > self.send_bytes
            && data_bytes > 0
            && !is_whole
            && let Some(data) = &request.data
        {
            with_data = false;
            call_bytes -= data_bytes;
            let position = rpc_bytes + data.position;
            read_chunks(&mut header).push(read_segment(position, data.memory.remote())?);
            offered.data = Some(data.memory.clone());
        }
        if header.encoded_bytes() + call_bytes > self.send_bytes {
            if call_bytes > self.options.record_bytes_max {
                return Err(CallError::TooLong(args_bytes));
            }
            let memory = base.stage(call_bytes).map_err(no_memory)?;
            let part = memory.slice(0..call_bytes).and_then(|part| part.remote());
            read_chunks(&mut header).insert(0, read_segment(0, part)?);
            offered.long_call = Some(memory);
            if let Body::Message(chunks) = header.body {
                header.body = Body::NoMessage(chunks);
            }
            if header.encoded_bytes() > self.send_bytes {
                return Err(CallError::Request("it has too many sinks for one message"));
            }
        }
        Ok(Plan { header, with_data, call_bytes })
    }
}

fn no_memory(error: std::io::Error) -> CallError {
    CallError::NoMemory(error.kind())
}

fn read_chunks(header: &mut Header) -> &mut SmallVec<[ReadSegment; 4]> {
    match &mut header.body {
        Body::Message(chunks) | Body::NoMessage(chunks) => &mut chunks.reads,
        // INVARIANT: `plan` makes messages only.
        Body::Done | Body::Error(_) => unreachable!("a call is a message"),
    }
}

fn read_segment(position: usize, remote: Option<RemoteBuffer>) -> Result<ReadSegment, CallError> {
    let position = u32::try_from(position).map_err(|_| CallError::TooLong(position))?;
    Ok(ReadSegment { position, segment: segment(remote)? })
}

fn chunk(segment: Segment) -> Chunk {
    Chunk { segments: smallvec![segment] }
}

fn segment(remote: Option<RemoteBuffer>) -> Result<Segment, CallError> {
    let remote = remote.ok_or(CallError::Request("a part of memory has 4 GiB or more"))?;
    Ok(Segment { handle: remote.key, length: remote.len, offset: remote.address })
}

/// Writes bytes to memory in sequence.
pub(super) struct Writer<'v> {
    view: VolatileSlice<'v>,
    pub(super) at: usize,
    site: Site,
}

impl<'v> Writer<'v> {
    pub(super) fn new(view: VolatileSlice<'v>, site: Site) -> Self {
        Self { view, at: 0, site }
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        if let Some(place) = self.view.slice(self.at, bytes.len()) {
            self.at += place.copy_from(bytes, self.site);
        }
    }

    pub(super) fn put_volatile(&mut self, bytes: VolatileSlice<'_>) {
        if let Some(place) = self.view.slice(self.at, bytes.len()) {
            self.at += place.copy_from_volatile(bytes, self.site);
        }
    }

    /// Writes the arguments, with the data at its position if it travels inside them.
    fn put_args(&mut self, request: &Request<'_>, with_data: bool) {
        const PADDING: [u8; UNIT_BYTES] = [0; UNIT_BYTES];
        let mut data = request.data.as_ref().filter(|_| with_data);
        let mut at = 0;
        for &piece in request.args {
            let mut rest = piece;
            if let Some(sent) = data
                && let Some((before, behind)) = piece.split_at_checked(sent.position - at)
            {
                self.put(before);
                self.put_volatile(sent.memory.view());
                self.put(&PADDING[..padded(sent.memory.len()) - sent.memory.len()]);
                rest = behind;
                data = None;
            }
            self.put(rest);
            at += piece.len();
        }
    }
}
