//! The back-control channel of the fake server: it is bound, calls, and is answered, by hand.

use super::*;
use dafs_dat::{Completion, EndpointId, RequestId};

/// One transfer of an asynchronous batch that was accepted.
#[derive(Debug, Clone)]
pub struct Taken {
    pub id: u64,
    pub write: bool,
    pub offset: u64,
    pub buffer: DirectBuffer,
    pub window: u32,
    pub together: u32,
}

/// The server's state of the channel.
#[derive(Default)]
pub struct BackSide {
    pub endpoint: Option<EndpointId>,
    pub bound: bool,
    /// Channels that were asked for.
    pub binds: u32,
    /// The status that CONNECT_BIND is answered with.
    pub refusal: Option<Status>,
    /// The credits that CONNECT_BIND is answered with.
    pub credits: Option<u32>,
    pub offered: u32,
    /// Answers of the client: stream, status, target, message.
    pub answers: Vec<(u16, Status, u16, Vec<u8>)>,
    pub taken: Vec<Taken>,
    pub hurried: Vec<u64>,
    /// Batches are run at once, and the answer reports that.
    pub at_once: bool,
    /// The delegations that come with opens.
    pub grants: Grants,
    /// Delegations granted so far, and state-ids that were returned.
    pub granted: u8,
    pub returned: Vec<StateId>,
    /// The delegation types that reclaims asked for.
    pub reclaims: Vec<DelegationType>,
    sequences: HashMap<u16, u16>,
}

/// The delegations that opens are granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Grants {
    #[default]
    Nothing,
    /// To new opens and to those that are reclaimed.
    Write,
    /// To new opens alone.
    WriteOnce,
}

pub fn delegation_id(number: u8) -> StateId {
    StateId([0xd, 0, 0, 0, 0, 0, 0, number])
}

impl BackSide {
    pub(super) fn grant(&mut self, args: &Open<'_>) -> Delegation<'static> {
        let wanted = match args.claim {
            OpenClaim::Previous { delegate_type, .. } => {
                self.reclaims.push(delegate_type);
                delegate_type == DelegationType::Write && self.grants == Grants::Write
            }
            _ => self.grants != Grants::Nothing,
        };
        if !wanted {
            return Delegation::None;
        }
        self.granted += 1;
        Delegation::Write {
            state_id: delegation_id(self.granted),
            recall: false,
            space_limit: SpaceLimit::Size(u64::MAX),
            permissions: Ace { ace_type: AceType::Allow, flag: 0, access_mask: 0, who: b"" },
        }
    }

    /// Accepts a batch; the transfers in the result are over.
    pub(super) fn take(&mut self, args: &BatchSubmit<'_>) -> Vec<CompletionNotification> {
        assert!(!args.synchronous);
        let (window, together) = (args.usec_window, args.num_completions);
        self.taken.extend(args.requests.iter().map(|part| Taken {
            id: part.request_id,
            write: part.rw_flag == ReadWrite::Write,
            offset: part.chunks.first().unwrap().offset,
            buffer: part.buffers.first().unwrap(),
            window,
            together,
        }));
        let over = args.requests.iter().filter(|_| self.at_once);
        over.map(|part| completion(part.request_id, Status::Ok, 100)).collect()
    }
}

pub fn completion(request_id: u64, status: Status, bytes: u32) -> CompletionNotification {
    let direct_checksum = Checksum::ZERO;
    CompletionNotification { request_id, status, bytes_transferred: bytes, direct_checksum }
}

impl FakeServer {
    pub(super) fn is_back_request(&self, private_data: &[u8]) -> bool {
        let channel = <[u8; 4]>::try_from(&private_data[12..]).unwrap();
        self.order.is_some_and(|order| match order {
            ByteOrder::Big => u32::from_be_bytes(channel) == 2,
            ByteOrder::Little => u32::from_le_bytes(channel) == 2,
        })
    }

    pub(super) fn accept_back(&mut self, request: RequestId) {
        self.leave_back();
        self.back.binds += 1;
        let Ok(endpoint) = self.adapter.accept(request, self.domain, &[]) else { return };
        self.back.endpoint = Some(endpoint);
        for _ in 0..64 {
            self.post_back_receive();
        }
    }

    fn post_back_receive(&mut self) {
        let slot = self.free.pop().unwrap();
        let segment = self.memory.1.local(slot * SLOT_BYTES, SLOT_BYTES);
        let endpoint = self.back.endpoint.unwrap();
        if self.adapter.post_receive(endpoint, slot as u64, segment).is_err() {
            self.free.push(slot);
        }
    }

    /// Ends the channel.
    pub fn leave_back(&mut self) {
        if let Some(endpoint) = self.back.endpoint.take() {
            self.adapter.abort(endpoint);
        }
        self.back.bound = false;
        self.back.sequences.clear();
    }

    pub(super) fn on_back_completion(&mut self, done: &Completion) {
        let slot = done.work as usize;
        match (done.operation, done.status) {
            (Operation::Receive, WorkStatus::Ok(bytes)) => {
                let view = self.memory.0.slice(slot * SLOT_BYTES, bytes as usize).unwrap();
                let message = view.to_vec(Site::Inspect);
                self.free.push(slot);
                self.post_back_receive();
                self.on_back_message(message);
            }
            (Operation::Receive | Operation::Send, _) => self.free.push(slot),
            _ => {}
        }
    }

    fn on_back_message(&mut self, message: Vec<u8>) {
        let order = self.order.unwrap();
        if self.back.bound {
            if self.checksums {
                assert!(verify(&message), "answers carry checksums");
            }
            let header = ResponseHeader::decode(&message, order).unwrap();
            let ResponseHeader { stream_id, status, target_nreq, .. } = header;
            return self.back.answers.push((stream_id, status, target_nreq, message));
        }
        let (header, request) = decode_request(&message, order, 0).unwrap();
        let Request::ConnectBind(args) = request else { panic!("{request:?}") };
        self.back.offered = args.max_requests;
        let answer = ResponseHeader::answering(&header, 1);
        let mut out = vec![0; SLOT_BYTES];
        let len = match self.back.refusal {
            Some(status) => {
                let answer = answer.with_status(status);
                let procedure = Procedure::ConnectBind;
                encode_error(&mut out, order, &answer, procedure, &ErrorBody::None).unwrap()
            }
            None => {
                self.back.bound = true;
                let reply = Reply::ConnectBind(ConnectBindReply {
                    max_request_size: args.max_request_size,
                    max_response_size: args.max_response_size,
                    max_requests: self.back.credits.unwrap_or(args.max_requests),
                    auth: AuthResult::None,
                    trusted: true,
                });
                encode_response(&mut out, order, &answer, &reply).unwrap()
            }
        };
        self.call_raw(&out[..len]);
    }

    /// Calls the client on a stream, with the next sequence number there.
    pub fn call(&mut self, stream: u16, request: &Request<'_>) {
        let sequence = self.back.sequences.entry(stream).or_insert(0);
        *sequence = sequence.wrapping_add(1);
        let sequence = *sequence;
        let message = self.encode_call(stream, sequence, request);
        self.call_raw(&message);
    }

    pub fn encode_call(&self, stream: u16, sequence: u16, request: &Request<'_>) -> Vec<u8> {
        let header =
            RequestHeader { stream_id: stream, seq_number: sequence, ..RequestHeader::default() };
        let mut out = vec![0; SLOT_BYTES];
        let len = encode_request(&mut out, self.order.unwrap(), &header, request).unwrap();
        out.truncate(len);
        if self.checksums {
            seal(&mut out);
        }
        out
    }

    /// Sends bytes over the channel.
    pub fn call_raw(&mut self, message: &[u8]) {
        let Some(endpoint) = self.back.endpoint else { return };
        let slot = self.free.pop().unwrap();
        let view = self.memory.0.slice(slot * SLOT_BYTES, message.len()).unwrap();
        view.copy_from(message, Site::Inspect);
        let segment = self.memory.1.local(slot * SLOT_BYTES, message.len());
        if self.adapter.post_send(endpoint, slot as u64, &[segment]).is_err() {
            self.free.push(slot);
        }
        self.adapter.flush();
    }

    /// Reports transfers on stream 0.
    pub fn report(&mut self, completions: &[CompletionNotification]) {
        let completions = Seq::new(completions);
        self.call(0, &Request::BcBatchCompletion(BatchCompletions { completions }));
    }
}
