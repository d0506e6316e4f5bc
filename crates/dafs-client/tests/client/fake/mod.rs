//! A server of one file that does what a script says, on the simulated network, with a client core
//! beside it. It keeps the server's half of the credit rules (DAFS 7) and checks the client's.

#![allow(unreachable_pub, reason = "the modules of a test program")]

pub mod back;
pub mod live;
mod past;
pub mod requests;
pub mod shown;
mod users;
mod world;

pub use past::Past;
pub use users::Credentials;
pub use world::{World, pattern};

use dafs_client::core::{
    BackStage, Completed, Done, Piece, ReadCall, SessionConfig, SessionCore, Stage, WriteCall,
};
use dafs_client::{FileHandle, Stability};
use dafs_dat::sim::{SimAdapter, SimFaults, SimNetwork};
use dafs_dat::{
    Access, Adapter, Address, Event, Instant, MemoryRegion, Operation, ProtectionDomain,
    RemoteBuffer, WorkStatus,
};
use dafs_mem::{Buffer, Site};
use dafs_wire::dafs::*;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub const SLOT_BYTES: usize = 16 << 10;
const SLOTS: usize = 512;
pub const ROOT: FileHandle = FileHandle { fs: [7; 16], file: [1; 48] };

/// The action of a script on a request.
pub enum Answer {
    /// The reply of the file.
    File,
    /// This status, without a body.
    Status(Status),
    /// No reply, ever.
    Silence,
    /// The reply of the file, after this time.
    After(Duration),
    /// The proper reply, corrupted by this.
    Spoil(fn(&mut Vec<u8>)),
    /// These bytes.
    Raw(Vec<u8>),
}

type Script = Box<dyn FnMut(&RequestHeader, &Request<'_>) -> Answer>;

pub struct FakeServer {
    pub adapter: Box<dyn Adapter>,
    domain: ProtectionDomain,
    endpoint: Option<dafs_dat::EndpointId>,
    pub order: Option<ByteOrder>,
    memory: (Arc<Buffer>, MemoryRegion),
    data: (Arc<Buffer>, MemoryRegion),
    free: Vec<usize>,
    pub file: Vec<u8>,
    pub script: Script,
    /// The credits granted at connect.
    pub initial_credits: u16,
    /// The credits in the header of the connect reply, if they differ.
    pub connect_target: Option<u16>,
    /// The longest request that is accepted, in bytes.
    pub request_bytes_max: u32,
    /// The place of padded data that it answers with, if that is not the client's wish.
    pub header_bytes: Option<u32>,
    /// The credits that replies carry.
    pub target: u16,
    pub lease_seconds: u32,
    pub trusted: bool,
    /// Steps of authentication that end with CONTINUE.
    pub auth_rounds: u32,
    nreq: u16,
    pub in_hand: u16,
    pub in_hand_most: u16,
    checksums: bool,
    padding: u32,
    last_sequence: HashMap<u16, u16>,
    busy: HashMap<u16, bool>,
    /// Replies that wait for RDMA.
    waiting: HashMap<u64, (RequestHeader, WriteDirect<'static>, usize)>,
    next_work: u64,
    /// Every request seen: procedure, desired_nreq, credential.
    pub seen: Vec<(Procedure, u16, u32)>,
    /// The stability in write replies.
    pub committed: Stability,
    pub verifier: Verifier,
    pub disconnected: bool,
    /// Holds replies back; they are released later, in reverse order.
    pub hold: bool,
    held: VecDeque<(RequestHeader, Vec<u8>)>,
    /// State that outlives a connection.
    pub past: Past,
    /// Requests to be answered later, by the machine's clock.
    delayed: Vec<(Instant, Vec<u8>)>,
    /// The back-control channel and its messages.
    pub back: back::BackSide,
    /// The optimistic channel.
    pub shown: shown::ShownSide,
    pub credentials: Credentials,
    /// It offers X_CANCEL.
    pub cancels: bool,
    /// It offers X_RECLAIM_COMPLETE.
    pub completes: bool,
    /// X_CANCEL is answered with NOTSUPP, whatever was offered.
    pub forgets_cancels: bool,
    /// The items of X_CANCEL.
    pub canceled: Vec<CancelItem>,
}

impl FakeServer {
    pub fn new(mut adapter: Box<dyn Adapter>) -> Self {
        let domain = adapter.protection_domain();
        let mut region = |bytes| {
            let buffer = adapter.allocate(bytes).unwrap();
            let access = Access::LOCAL_WRITE;
            let region = adapter.register(domain, buffer.clone(), access).unwrap();
            (buffer, region)
        };
        let (memory, data) = (region(SLOTS * SLOT_BYTES), region(8 << 20));
        Self {
            adapter,
            domain,
            endpoint: None,
            order: None,
            memory,
            data,
            free: (0..SLOTS).rev().collect(),
            file: Vec::new(),
            script: Box::new(|_, _| Answer::File),
            initial_credits: 8,
            connect_target: None,
            request_bytes_max: u32::MAX,
            header_bytes: None,
            target: 8,
            lease_seconds: 30,
            trusted: true,
            auth_rounds: 0,
            nreq: 1,
            in_hand: 0,
            in_hand_most: 0,
            checksums: false,
            padding: 0,
            last_sequence: HashMap::new(),
            busy: HashMap::new(),
            waiting: HashMap::new(),
            next_work: 1 << 32,
            seen: Vec::new(),
            committed: Stability::FileSync,
            verifier: Verifier([9; 8]),
            disconnected: false,
            hold: false,
            held: VecDeque::new(),
            past: Past::default(),
            delayed: Vec::new(),
            back: back::BackSide::default(),
            shown: shown::ShownSide::default(),
            credentials: Credentials::default(),
            cancels: false,
            completes: false,
            forgets_cancels: false,
            canceled: Vec::new(),
        }
    }

    fn post_receive(&mut self) {
        let slot = self.free.pop().unwrap();
        let segment = self.memory.1.local(slot * SLOT_BYTES, SLOT_BYTES);
        let endpoint = self.endpoint.unwrap();
        if self.adapter.post_receive(endpoint, slot as u64, segment).is_err() {
            self.free.push(slot);
        }
    }

    pub fn poll(&mut self, now: Instant) {
        let mut events = Vec::new();
        self.adapter.poll(now, &mut events);
        for event in events {
            match event {
                Event::ConnectRequest { request, private_data, .. } => {
                    assert_eq!(private_data.len(), 16, "DAFS 3.2");
                    if self.past.deaf {
                        self.adapter.reject(request, &[]);
                        continue;
                    }
                    if self.accept_further(request, &private_data) {
                        continue;
                    }
                    self.leave();
                    // The client may have gone already.
                    let Ok(endpoint) = self.adapter.accept(request, self.domain, &[]) else {
                        continue;
                    };
                    self.endpoint = Some(endpoint);
                    self.post_receive();
                }
                Event::Completion(done) => {
                    if self.on_further_completion(&done) {
                        continue;
                    }
                    let slot = matches!(done.operation, Operation::Receive | Operation::Send);
                    let current = self.endpoint == Some(done.endpoint);
                    let WorkStatus::Ok(bytes) = done.status else {
                        if slot {
                            self.free.push(done.work as usize);
                        }
                        continue;
                    };
                    if !current {
                        if slot {
                            self.free.push(done.work as usize);
                        }
                        continue;
                    }
                    match done.operation {
                        Operation::Receive => self.receive(done.work as usize, bytes as usize),
                        Operation::Send => self.free.push(done.work as usize),
                        Operation::RdmaRead => self.pulled(done.work),
                        Operation::RdmaWrite => {}
                    }
                }
                Event::Disconnected { endpoint, .. } if self.endpoint == Some(endpoint) => {
                    self.disconnected = true;
                    self.leave();
                }
                Event::Disconnected { endpoint, .. } => self.lost_further(endpoint),
                _ => {}
            }
        }
        for (_, message) in self.delayed.extract_if(.., |(at, _)| *at <= now).collect::<Vec<_>>() {
            let (order, padding) = (self.order.unwrap(), self.padding);
            let (header, request) = decode_request(&message, order, padding).unwrap();
            self.answer(&header, &request, None);
        }
        self.adapter.flush();
    }

    fn receive(&mut self, slot: usize, bytes: usize) {
        let view = self.memory.0.slice(slot * SLOT_BYTES, bytes).unwrap();
        let message = view.to_vec(Site::Inspect);
        self.free.push(slot);
        let order = *self.order.get_or_insert_with(|| peek_order(&message).unwrap());
        if self.checksums {
            assert!(verify(&message), "the client's checksums are right");
        }
        let (header, request) = decode_request(&message, order, self.padding).unwrap();
        self.check_credit(&header, &request);
        self.seen.push((request.procedure(), header.desired_nreq, header.cred_handle.0));
        self.past.note(&request);
        let answer = match self.credentials.knows(header.cred_handle.0) {
            true => (self.script)(&header, &request),
            false => Answer::Status(Status::CrHandConflict),
        };
        match answer {
            Answer::File => self.answer(&header, &request, None),
            Answer::Spoil(spoil) => self.answer(&header, &request, Some(spoil)),
            Answer::Silence => {}
            Answer::After(time) => {
                self.delayed.push((Instant::now() + time, message.clone()));
            }
            Answer::Raw(message) => self.send_or_hold(&header, message),
            Answer::Status(status) => self.refuse(&header, request.procedure(), status),
        }
    }

    /// Checks the client's side of DAFS 7 and O24.
    fn check_credit(&mut self, header: &RequestHeader, request: &Request<'_>) {
        let stream = header.stream_id;
        let busy = self.busy.insert(stream, true).unwrap_or(false);
        assert!(!busy, "stream {stream} is busy");
        let last = self.last_sequence.entry(stream).or_insert(0);
        assert_eq!(header.seq_number, last.wrapping_add(1), "sequence of stream {stream}");
        *last = header.seq_number;
        self.in_hand += 1;
        self.in_hand_most = self.in_hand_most.max(self.in_hand);
        assert!(self.in_hand <= self.nreq, "{:?} without a credit", request.procedure());
        assert!(stream < u16::try_from(SLOTS).unwrap());
    }

    fn answer(
        &mut self,
        header: &RequestHeader,
        request: &Request<'_>,
        spoil: Option<fn(&mut Vec<u8>)>,
    ) {
        let reply = match request {
            Request::ClientConnectAuth(args) => return self.connect(header, args),
            Request::ClientAuth(_) => return self.authenticate(header),
            Request::RegisterCred(args) => {
                let Credential::Id { uid, .. } = args.credential else { panic!("{args:?}") };
                match self.credentials.register(uid) {
                    Ok(handle) => {
                        Reply::RegisterCred(CredHandleBody { cred_handle: CredHandle(handle) })
                    }
                    Err(status) => return self.refuse(header, request.procedure(), status),
                }
            }
            Request::ReleaseCred(args) => {
                let released = self.credentials.uids.remove(&args.cred_handle.0);
                assert!(released.is_some(), "it was registered");
                Reply::ReleaseCred
            }
            Request::GetRootHandle => Reply::GetRootHandle(HandleReply { fh: ROOT }),
            Request::GetFsAttr(_) => Reply::GetFsAttr(GetFsAttrReply {
                attributes: FsAttributes {
                    lease_time: Some(self.lease_seconds),
                    max_read: Some(1 << 20),
                    max_write: Some(1 << 20),
                    supported_fsattr: Some(self.supported().0),
                    ..FsAttributes::default()
                },
            }),
            Request::XCancel(args) => {
                assert!(self.cancels, "it was not offered");
                self.canceled.extend(args.items.iter());
                if self.forgets_cancels {
                    return self.refuse(header, request.procedure(), Status::NotSupp);
                }
                let outcome = CancelOutcome::TooLate;
                let outcomes: Vec<_> =
                    args.items.iter().map(|_| CancelResult { outcome }).collect();
                let outcomes = Seq::new(&outcomes);
                return self.reply(header, &Reply::XCancel(XCancelReply { outcomes }), spoil);
            }
            Request::XReclaimComplete => {
                assert!(self.completes, "it was not offered");
                Reply::XReclaimComplete
            }
            Request::Open(args) => Reply::Open(OpenReply {
                fh: ROOT,
                state_id: self.past.open(args),
                change: ChangeInfo::default(),
                component_count: 1,
                result_flags: OpenResultFlags::default(),
                delegation: self.back.grant(args),
            }),
            Request::DelegReturn(args) => {
                self.back.returned.push(args.state_id);
                Reply::DelegReturn
            }
            Request::BatchSubmit(args) => {
                let completions = self.back.take(args);
                let completions = Seq::new(&completions);
                return self.reply(
                    header,
                    &Reply::BatchSubmit(BatchCompletions { completions }),
                    spoil,
                );
            }
            Request::HurryUp(args) => {
                self.back.hurried.push(args.request_id);
                Reply::HurryUp
            }
            Request::Close(args) => {
                if self.past.names_opens && self.past.opens.remove(&args.state_id).is_none() {
                    return self.refuse(header, request.procedure(), Status::BadStateId);
                }
                Reply::Close
            }
            Request::Lock(args) => {
                let owner = self.past.opens[&args.state_id].clone();
                let reclaims = args.options.contains(LockOptions::RECLAIM);
                self.past.locks.push((owner, args.offset, args.length, reclaims));
                Reply::Lock
            }
            Request::LockU(args) => {
                let owner = &self.past.opens[&args.state_id];
                let range = (args.offset, args.length);
                self.past.locks.retain(|held| held.0 != *owner || (held.1, held.2) != range);
                Reply::LockU
            }
            Request::GetAttrInline(_) => Reply::GetAttrInline(GetAttrInlineReply {
                attributes: Attributes {
                    object_size: Some(self.file.len() as u64),
                    ..Attributes::default()
                },
            }),
            // Knows no attribute of this kind, like an earlier server.
            Request::GetAttrDirect(args) => {
                let mut block = [0; 64];
                let none = Attributes::default();
                let len = none.encode_direct(&mut block, self.order.unwrap()).unwrap();
                self.push(&block[..len], args.buffer);
                Reply::GetAttrDirect(DirectReply { direct_checksum: Checksum::ZERO })
            }
            Request::Commit(_) => Reply::Commit(CommitReply { verifier: self.verifier }),
            Request::Null => Reply::Null,
            Request::CheckResponse(args) => {
                return match self.past.find(args) {
                    Ok(_) => self.reply(header, &Reply::CheckResponse, spoil),
                    Err(status) => self.refuse(header, request.procedure(), status),
                };
            }
            Request::FetchResponse(args) => {
                return match self.past.find(args).cloned() {
                    Ok(kept) if kept.status.is_ok() => {
                        let reply = FetchResponseReply { body: &kept.body };
                        self.reply(header, &Reply::FetchResponse(reply), spoil);
                    }
                    Ok(kept) => self.refuse(header, request.procedure(), kept.status),
                    Err(status) => self.refuse(header, request.procedure(), status),
                };
            }
            Request::DiscardResponses(args) => {
                self.past.kept.remove(&args.session_id);
                Reply::DiscardResponses
            }
            Request::Create(args) => {
                if !self.past.names.insert(args.name.to_vec()) {
                    return self.refuse(header, request.procedure(), Status::Exist);
                }
                Reply::Create(CreateReply { fh: ROOT, change: ChangeInfo::default() })
            }
            Request::Remove(args) => {
                if !self.past.names.remove(args.name) {
                    return self.refuse(header, request.procedure(), Status::NoEnt);
                }
                Reply::Remove(ChangeReply { change: ChangeInfo::default() })
            }
            Request::AppendInline(args) => {
                let offset = self.file.len() as u64;
                self.write(offset, args.data);
                let (verifier, committed) = (self.verifier, self.committed);
                Reply::AppendInline(AppendReply { offset, verifier, committed })
            }
            Request::Disconnect => Reply::Disconnect,
            Request::ReadInline(args) => {
                self.past.used.extend(self.past.opens.get(&args.state_id).cloned());
                let (start, end) = self.range(args.offset, args.byte_count);
                let data = self.file[start..end].to_vec();
                let eof = end == self.file.len();
                let reply = Reply::ReadInline(ReadInlineReply { eof, data: &data });
                return self.reply(header, &reply, spoil);
            }
            Request::ReadDirect(args) => {
                let (start, end) = self.range(args.offset, args.byte_count);
                let data = self.file[start..end].to_vec();
                self.push(&data, args.buffers.first().unwrap());
                let direct_checksum =
                    if self.checksums { checksum(&self.file[start..end]) } else { Checksum::ZERO };
                let bytes_read = (end - start) as u32;
                let eof = end == self.file.len();
                Reply::ReadDirect(ReadDirectReply { eof, bytes_read, direct_checksum })
            }
            Request::WriteInline(args) => {
                self.write(args.offset, args.data);
                Reply::WriteInline(self.write_reply(args.data.len()))
            }
            Request::WriteDirect(args) => {
                let buffer = args.buffers.first().unwrap();
                let (work, bytes) = (self.next_work, args.byte_count as usize);
                self.next_work += 1;
                let remote = RemoteBuffer {
                    key: buffer.context,
                    address: buffer.address,
                    len: args.byte_count,
                };
                let at = (work as usize % 8) << 20;
                let segment = self.data.1.local(at, bytes);
                let endpoint = self.endpoint.unwrap();
                let _ = self.adapter.rdma_read(endpoint, work, segment, remote);
                let args = WriteDirect { buffers: Seq::empty(), ..*args };
                self.waiting.insert(work, (*header, args, at));
                return;
            }
            other => panic!("the fake server knows no {:?}", other.procedure()),
        };
        self.reply(header, &reply, spoil);
    }

    /// Answers with a status alone.
    fn refuse(&mut self, header: &RequestHeader, procedure: Procedure, status: Status) {
        let reply = ResponseHeader::answering(header, self.target).with_status(status);
        let mut out = vec![0; SLOT_BYTES];
        let order = self.order.unwrap();
        let len = encode_error(&mut out, order, &reply, procedure, &ErrorBody::None).unwrap();
        out.truncate(len);
        if self.checksums {
            seal(&mut out);
        }
        self.past.keep(header, procedure, status, &out[HEADER_BYTES..]);
        self.transmit(header, out);
    }

    /// Drops the connection, and the requests that were to be answered on it.
    pub fn leave(&mut self) {
        self.leave_back();
        self.leave_optimistic();
        if let Some(endpoint) = self.endpoint.take() {
            self.adapter.abort(endpoint);
        }
        (self.nreq, self.in_hand, self.checksums, self.padding) = (1, 0, false, 0);
        self.order = None;
        self.last_sequence.clear();
        self.busy.clear();
        self.waiting.clear();
        self.held.clear();
        self.delayed.clear();
        self.credentials.uids.clear();
    }

    /// Restarts; kept replies survive only if they are durable.
    pub fn restart(&mut self, durable: bool) {
        self.leave();
        self.past.instance += 1;
        self.verifier.0[0] += 1;
        if !durable {
            self.past.kept.clear();
        }
        self.past.opens.clear();
        self.past.locks.clear();
        self.past.last_open = 0;
    }

    /// The file-system attributes that it knows, and with them its extensions.
    fn supported(&self) -> FsAttrMask {
        let unless = |offered: bool, of| if offered { FsAttrMask::NONE } else { of };
        FsAttrMask::ALL
            .difference(unless(self.cancels, FsAttrMask::X_CANCEL))
            .difference(unless(self.completes, FsAttrMask::X_RECLAIM_COMPLETE))
    }

    fn range(&self, offset: u64, bytes: u32) -> (usize, usize) {
        let start = (offset as usize).min(self.file.len());
        (start, (start + bytes as usize).min(self.file.len()))
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset as usize + data.len();
        if self.file.len() < end {
            self.file.resize(end, 0);
        }
        self.file[offset as usize..end].copy_from_slice(data);
    }

    fn write_reply(&self, bytes: usize) -> WriteReply {
        WriteReply { count: bytes as u32, committed: self.committed, verifier: self.verifier }
    }

    /// Writes into the client's memory.
    pub fn push(&mut self, bytes: &[u8], buffer: DirectBuffer) {
        if bytes.is_empty() {
            return;
        }
        let at = (self.next_work as usize % 8) << 20;
        self.next_work += 1;
        self.data.0.slice(at, bytes.len()).unwrap().copy_from(bytes, Site::Inspect);
        let segment = self.data.1.local(at, bytes.len());
        let remote =
            RemoteBuffer { key: buffer.context, address: buffer.address, len: buffer.byte_count };
        let _ = self.adapter.rdma_write(self.endpoint.unwrap(), 0, &[segment], remote);
    }

    fn pulled(&mut self, work: u64) {
        let (header, args, at) = self.waiting.remove(&work).unwrap();
        let bytes = args.byte_count as usize;
        let data = self.data.0.slice(at, bytes).unwrap().to_vec(Site::Inspect);
        if self.checksums {
            assert_eq!(args.direct_checksum, checksum(&data));
        }
        self.write(args.offset, &data);
        let reply = Reply::WriteDirect(self.write_reply(bytes));
        self.reply(&header, &reply, None);
    }

    fn options(&self, wish: &SessionOptions) -> SessionOptions {
        SessionOptions {
            max_requests: self.initial_credits.into(),
            max_request_size: wish.max_request_size.min(self.request_bytes_max),
            inline_write_header_size: self.header_bytes.unwrap_or(wish.inline_write_header_size),
            use_response_cache: wish.use_response_cache && self.past.keeps,
            max_credentials: self.credentials.agreed,
            ..*wish
        }
    }

    fn connect(&mut self, header: &RequestHeader, args: &ClientConnectAuth<'_>) {
        let options = self.options(&args.options);
        self.padding = options.inline_write_header_size;
        let body = ClientConnectAuthReply {
            session_id: self.past.next_session(),
            client_id: ClientId([self.past.instance; 8]),
            options,
            auth: AuthResult::Gss { major: 0, minor: 0, token: b"challenge" },
            trusted: self.trusted,
        };
        let target = self.connect_target.unwrap_or(self.initial_credits);
        self.connect_reply(header, target, |out, order, reply, rounds| {
            if rounds > 0 {
                let reply = reply.with_status(Status::GssContinueInit);
                let body = ErrorBody::ClientConnectAuth(body);
                encode_error(out, order, &reply, Procedure::ClientConnectAuth, &body).unwrap()
            } else {
                encode_response(out, order, reply, &Reply::ClientConnectAuth(body)).unwrap()
            }
        });
        self.checksums = options.use_checksums;
    }

    fn connect_reply(
        &mut self,
        header: &RequestHeader,
        target: u16,
        encode: impl FnOnce(&mut [u8], ByteOrder, &ResponseHeader, u32) -> usize,
    ) {
        let mut out = vec![0; SLOT_BYTES];
        let reply = ResponseHeader::answering(header, target);
        let len = encode(&mut out, self.order.unwrap(), &reply, self.auth_rounds);
        self.auth_rounds = self.auth_rounds.saturating_sub(1);
        out.truncate(len);
        self.transmit_with(header, out, target);
    }

    fn authenticate(&mut self, header: &RequestHeader) {
        let auth = AuthResult::Gss { major: 0, minor: 0, token: b"challenge" };
        let body = ClientAuthReply { auth, trusted: self.trusted };
        let checksums = self.checksums;
        self.connect_reply(header, self.target, |out, order, reply, rounds| {
            let len = if rounds > 0 {
                let reply = reply.with_status(Status::GssContinueInit);
                let body = ErrorBody::ClientAuth(body);
                encode_error(out, order, &reply, Procedure::ClientAuth, &body).unwrap()
            } else {
                encode_response(out, order, reply, &Reply::ClientAuth(body)).unwrap()
            };
            if checksums {
                seal(&mut out[..len]);
            }
            len
        });
    }

    fn reply(
        &mut self,
        header: &RequestHeader,
        reply: &Reply<'_>,
        spoil: Option<fn(&mut Vec<u8>)>,
    ) {
        let mut out = vec![0; SLOT_BYTES];
        let answer = ResponseHeader::answering(header, self.target);
        let len = encode_response(&mut out, self.order.unwrap(), &answer, reply).unwrap();
        out.truncate(len);
        if self.checksums {
            seal(&mut out);
        }
        self.past.keep(header, reply.procedure(), Status::Ok, &out[HEADER_BYTES..]);
        if let Some(spoil) = spoil {
            spoil(&mut out);
        }
        self.send_or_hold(header, out);
    }

    fn send_or_hold(&mut self, header: &RequestHeader, message: Vec<u8>) {
        if self.hold {
            self.held.push_back((*header, message));
        } else {
            self.transmit(header, message);
        }
    }

    /// Sends held replies, latest first.
    pub fn release(&mut self) {
        self.hold = false;
        while let Some((header, message)) = self.held.pop_back() {
            self.transmit(&header, message);
        }
        self.adapter.flush();
    }

    fn transmit(&mut self, header: &RequestHeader, message: Vec<u8>) {
        self.transmit_with(header, message, self.target);
    }

    /// Posts the receives that the credit rules ask for, then sends.
    fn transmit_with(&mut self, header: &RequestHeader, message: Vec<u8>, target: u16) {
        let next = (self.nreq - 1).max(target.max(1));
        for _ in 0..next + 1 - self.nreq {
            self.post_receive();
        }
        self.nreq = next;
        self.in_hand -= 1;
        self.busy.insert(header.stream_id, false);
        let Some(endpoint) = self.endpoint else { return };
        let slot = self.free.pop().unwrap();
        let view = self.memory.0.slice(slot * SLOT_BYTES, message.len()).unwrap();
        view.copy_from(&message, Site::Inspect);
        let segment = self.memory.1.local(slot * SLOT_BYTES, message.len());
        if self.adapter.post_send(endpoint, slot as u64, &[segment]).is_err() {
            self.free.push(slot);
        }
    }

    /// Requests the server lets the client have outstanding.
    pub fn nreq(&self) -> u16 {
        self.nreq
    }

    pub fn count(&self, procedure: Procedure) -> usize {
        self.seen.iter().filter(|(seen, ..)| *seen == procedure).count()
    }
}
