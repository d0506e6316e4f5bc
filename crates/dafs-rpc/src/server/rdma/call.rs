//! From an incoming message to the handler.
//!
//! Invariants
//! * Every message frees its receive slot once; every call ends once, with a reply, an RDMA_ERROR
//!   or nothing.
//! * The server checks all that a peer's header names before it touches any of it.

use super::connection::{Arrived, Ending};
use super::layout::ReadChunks;
use super::link::Context;
use crate::call_chunks::{CallChunks, Sink};
use crate::dispatch::{Incoming, Outcome, dispatch};
use crate::handler::{CallbackError, Handler};
use crate::memory::Block;
use crate::server::group::add;
use dafs_dat::{Access, RemoteBuffer, RemoteWindow};
use dafs_wire::rpc::{AuthFlavor, CallError, CallHeader, Direction, OpaqueAuth, gss, peek};
use dafs_wire::rpcrdma::{Body, Chunks, Header, HeaderFault, Segment};
use dafs_wire::xdr::{Decoder, XdrError};
use std::sync::Arc;

/// A call as its header describes it.
pub(super) struct Described {
    pub(super) xid: u32,
    pub(super) chunks: Chunks,
    /// Offset of the inline part in the message; none when the whole call is in a chunk.
    pub(super) sent_at: Option<usize>,
}

/// The kind of a message.
enum Kind {
    Call(Described, u32),
    /// A reply to a callback, with the credits that it grants.
    Reply {
        at: usize,
        xid: u32,
        credits: u32,
    },
    /// The peer could not handle a callback.
    Refused {
        xid: u32,
    },
    Nothing,
    /// A message to answer with an RDMA_ERROR.
    Bad {
        xid: u32,
        fault: HeaderFault,
    },
}

fn classify(bytes: &[u8]) -> Result<Kind, Ending> {
    let (header, at) = match Header::decode(bytes) {
        Ok(decoded) => decoded,
        Err(error) => {
            tracing::debug!(%error, "a message without a good RPC-over-RDMA header");
            return match (error.xid, error.fault) {
                (Some(xid), Some(fault)) => Ok(Kind::Bad { xid, fault }),
                _ => Err(error.into()),
            };
        }
    };
    let Header { xid, credits, body } = header;
    Ok(match body {
        Body::Message(chunks) => match peek(&bytes[at..])? {
            (rpc_xid, _) if rpc_xid != xid => Kind::Bad { xid, fault: HeaderFault::Chunk },
            (_, Direction::Call) => {
                Kind::Call(Described { xid, chunks, sent_at: Some(at) }, credits)
            }
            (_, Direction::Reply) => Kind::Reply { at, xid, credits },
        },
        Body::NoMessage(chunks) => Kind::Call(Described { xid, chunks, sent_at: None }, credits),
        Body::Done => Kind::Nothing,
        Body::Error(_) => Kind::Refused { xid },
    })
}

/// The outcome of taking a call. The rest of the work follows when no code uses its message any
/// more, because the receive slot may then be posted again.
pub(super) enum Taken {
    /// The handler has seen it.
    Served(Served),
    /// The call is answered with an RDMA_ERROR.
    Refused { xid: u32, fault: HeaderFault },
    /// The message is not a call.
    Broken(XdrError),
    /// Reads of its parts are in progress, or complete if `over`.
    Fetching { index: u32, over: bool },
    /// There is no memory for the call now.
    NotYet,
}

/// False for a credential that protects the arguments as a whole, so that no part of them is
/// DDP-eligible (RFC 8166 section 8.2.2). A part that was moved all the same is joined with the rest
/// before the MIC is checked.
fn is_reducible(credential: &OpaqueAuth<'_>) -> bool {
    credential.flavor != AuthFlavor::RPCSEC_GSS
        || match gss::Credential::from_body(credential.body) {
            Ok(gss::Credential::Data(fields)) => fields.service == gss::Service::None,
            _ => false,
        }
}

/// A call that the handler has served.
pub(super) struct Served {
    outcome: Outcome,
    call_chunks: Option<Arc<CallChunks>>,
}

impl<H: Handler> Context<'_, H> {
    /// Handles a message that has arrived in a slot.
    pub(super) fn arrived(&mut self, arrived: Arrived) {
        // A server that stops takes no calls: the connection ends when the others are answered.
        if self.connection.is_closing() || self.core.shared.is_stopping() {
            return self.connection.receives.give_back(arrived.slot);
        }
        self.connection.credits.arrive();
        add(&self.core.counters().received_bytes, arrived.len as u64);
        // SAFETY: the slot is posted only after it was given back, when no code uses the message.
        let message = unsafe { self.connection.receives.message(arrived.slot, arrived.len) };
        let kind = match classify(message.bytes()) {
            Ok(kind) => kind,
            Err(ending) => {
                self.connection.receives.give_back(arrived.slot);
                return self.fail(ending);
            }
        };
        match kind {
            // The client retries the call with the next server.
            Kind::Call(..) if self.core.shared.is_stopping() => {}
            Kind::Call(call, wanted) => {
                self.connection.credits.begin(wanted);
                let waits = !self.connection.queue.is_empty() || !self.may_take(0);
                let taken = match waits {
                    true => Taken::NotYet,
                    false => self.take(arrived, message.bytes(), call),
                };
                drop(message);
                if let Some(arrived) = self.conclude(arrived, taken) {
                    self.connection.queue.push_back(arrived);
                    self.note_starved();
                }
                return;
            }
            Kind::Bad { xid, fault } => {
                self.connection.credits.begin(1);
                self.connection.receives.give_back(arrived.slot);
                return self.refuse(xid, fault);
            }
            Kind::Reply { at, xid, credits } => {
                let id = self.connection.id;
                match self.back_landed(xid, credits) {
                    Some((calls, mut turn)) => {
                        calls.take_reply(id, &message.bytes()[at..], &mut turn);
                    }
                    None => self.core.tally.unasked += 1,
                }
            }
            Kind::Refused { xid } => {
                let id = self.connection.id;
                if let Some((calls, mut turn)) = self.back_landed(xid, 1) {
                    calls.complete(id, xid, Err(CallbackError::Malformed), &mut turn);
                }
            }
            Kind::Nothing => {}
        }
        self.connection.receives.give_back(arrived.slot);
        self.send_back_calls();
        self.post_receives();
    }

    /// Resumes calls that had to wait.
    pub(super) fn resume(&mut self) {
        while !self.connection.is_closing() && self.may_take(0) {
            let Some(arrived) = self.connection.queue.pop_front() else { return };
            // SAFETY: as in `arrived`.
            let message = unsafe { self.connection.receives.message(arrived.slot, arrived.len) };
            // The message was decoded when it arrived, and has not changed.
            let Ok(Kind::Call(call, _)) = classify(message.bytes()) else {
                debug_assert!(false, "a message has changed in its slot");
                return;
            };
            let taken = self.take(arrived, message.bytes(), call);
            drop(message);
            if let Some(arrived) = self.conclude(arrived, taken) {
                self.connection.queue.push_front(arrived);
                break;
            }
        }
        self.note_starved();
    }

    /// Adds the connection to the list of those that wait for memory, if it has waiting calls and
    /// is not listed yet.
    fn note_starved(&mut self) {
        let waits = !self.connection.queue.is_empty() && !self.connection.is_closing();
        if waits && !std::mem::replace(&mut self.connection.starved, true) {
            self.core.starved.push_back(self.connection.id);
        }
    }

    /// Serves a call, or begins to fetch its missing parts.
    fn take(&mut self, arrived: Arrived, bytes: &[u8], call: Described) -> Taken {
        let config = &self.core.shared.config;
        let sent = call.sent_at.map(|at| &bytes[at..]);
        if call.chunks.reads.is_empty()
            && let Some(record) = sent
        {
            let call_chunks = self.call_chunks(call.chunks);
            return self.serve(record, None, call_chunks, record.len());
        }
        let refused = Taken::Refused { xid: call.xid, fault: HeaderFault::Chunk };
        let sent_bytes = sent.map(<[u8]>::len);
        let reads = ReadChunks::new(&call.chunks, sent_bytes, config.record_bytes_max);
        let reads = match reads {
            Ok(reads) => reads,
            Err(error) => {
                tracing::debug!(peer = %self.connection.peer, %error, "a call that cannot be read");
                return refused;
            }
        };
        // Data may stay outside of the message if the handler supports that.
        let mut args_at = None;
        if let Some(sent) = sent {
            let mut decoder = Decoder::new(sent);
            match CallHeader::decode(&mut decoder) {
                Ok(header) => {
                    let (program, version) = (header.program, header.version);
                    let handler = &self.core.handler;
                    if is_reducible(&header.credential)
                        && handler.takes_moved_data(program, version, header.procedure)
                    {
                        args_at = Some(decoder.position());
                    }
                }
                Err(CallError::Malformed(error)) => return Taken::Broken(error),
                // The server denies the call whatever its arguments are.
                Err(_) => {
                    let call_chunks = self.call_chunks(call.chunks);
                    return self.serve(sent, None, call_chunks, sent.len());
                }
            }
        }
        if let Some(args_at) = args_at
            && reads.reduced_positions().any(|at| at < args_at)
        {
            return refused;
        }
        self.fetch(arrived, sent, call, &reads, args_at)
    }

    /// Completes a call, whose message no code uses any more; returns the message if the call has
    /// to wait.
    pub(super) fn conclude(&mut self, arrived: Arrived, taken: Taken) -> Option<Arrived> {
        match taken {
            Taken::NotYet => return Some(arrived),
            Taken::Fetching { over: false, .. } => return None,
            Taken::Fetching { index, over: true } => {
                self.fetched(index);
                return None;
            }
            Taken::Served(_) | Taken::Refused { .. } | Taken::Broken(_) => {}
        }
        self.connection.receives.give_back(arrived.slot);
        match taken {
            Taken::Served(Served { outcome, call_chunks }) => match outcome {
                Outcome::Answer(to, answer) => self.answer(to, answer, call_chunks),
                Outcome::Kept(held_bytes) => {
                    self.connection.pending += 1;
                    self.hold(held_bytes);
                }
                Outcome::Dropped => self.drop_call(),
                Outcome::Replayed => {
                    self.connection.credits.end();
                    self.fail(Ending::Replayed);
                }
            },
            Taken::Refused { xid, fault } => self.refuse(xid, fault),
            Taken::Broken(error) => {
                self.connection.credits.end();
                self.fail(error);
            }
            Taken::Fetching { .. } | Taken::NotYet => {}
        }
        None
    }

    /// The chunks of a call, if it has any.
    pub(super) fn call_chunks(&mut self, chunks: Chunks) -> Option<Arc<CallChunks>> {
        let Chunks { reads, writes, reply } = chunks;
        if reads.is_empty() && writes.is_empty() && reply.is_none() {
            return None;
        }
        let mut shared = self.core.call_chunks();
        // INVARIANT: the call chunks have no other holder yet.
        let call_chunks = Arc::get_mut(&mut shared)?;
        let invalidates = self.connection.invalidates;
        let read = reads.first().map(|read| read.segment);
        let written = writes.iter().chain(&reply).flat_map(|chunk| chunk.segments.first());
        let any = read.or_else(|| written.copied().next());
        call_chunks.invalidate = any.filter(|_| invalidates).map(|segment| segment.handle);
        for chunk in writes {
            let len_max = usize::try_from(chunk.len()).unwrap_or(usize::MAX);
            let window = match chunk.segments[..] {
                [segment] if segment.length > 0 => self.window(segment, Access::REMOTE_WRITE),
                _ => None,
            };
            call_chunks.sinks.push(Sink { chunk, len_max, window });
        }
        call_chunks.reply = reply;
        Some(shared)
    }

    /// The memory of a segment, if it is mapped.
    pub(super) fn window(&mut self, segment: Segment, need: Access) -> Option<RemoteWindow> {
        let Segment { handle: key, offset: address, length: len } = segment;
        let remote = RemoteBuffer { key, address, len };
        self.link.adapter.map_remote(self.connection.endpoint, remote, need)
    }

    /// Serves a call. The call holds `held_bytes` of memory while the handler keeps it.
    pub(super) fn serve(
        &mut self,
        record: &[u8],
        block: Option<&Arc<Block>>,
        call_chunks: Option<Arc<CallChunks>>,
        held_bytes: usize,
    ) -> Taken {
        let incoming = Incoming {
            record,
            block,
            call_chunks: call_chunks.as_ref(),
            held_bytes,
            connection_id: self.connection.id,
            peer: self.connection.peer,
            process: self.connection.process,
            is_rdma: true,
            security: self.connection.security,
            user: self.connection.user.as_ref(),
            admitted: self.connection.admitted.as_ref(),
        };
        match dispatch(&incoming, &mut self.connection.known, &mut self.core.turn()) {
            Ok(outcome) => Taken::Served(Served { outcome, call_chunks }),
            Err(error) => Taken::Broken(error),
        }
    }

    /// Ends a deferred call and releases its memory.
    pub(super) fn forget(&mut self, held_bytes: usize) {
        debug_assert!(self.connection.pending > 0, "an answer to no call");
        self.connection.pending = self.connection.pending.saturating_sub(1);
        // The establishment of a context may take long, and the peer makes its first call after it.
        self.connection.begun_ns = self.core.now_ns;
        self.release(held_bytes);
    }

    /// Ends a call that gets no answer.
    pub(super) fn drop_call(&mut self) {
        self.connection.credits.end();
        self.post_receives();
    }
}
