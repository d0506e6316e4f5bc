//! A server without sockets: the handler, a stand-in reactor, a pool whose jobs the test runs, and
//! a clock that the test sets.

use dafs_journal::sim::SimDisk;
use dafs_nfs::{Admission, NfsHandler, NfsOptions, NfsShared};
use dafs_rpc::{
    AuthSys, CallbackRequest, Credential, Groups, Handled, Handler, LocalCall, LocalEvent,
    LocalReactor, Rejection, Reply,
};
use dafs_service::durable::JournalConfig;
use dafs_service::{
    Admits, ClientKind, ClientRecord, ClientRecords, DataRole, Export, ExportOptions, Job,
    LockChange, LockRecord, Namespace, Owner, Place, Pool, RecordsError, Service, ServiceConfig,
    Squash, TransportSecurity, WriteVerifier,
};
use dafs_store::{MemoryOptions, MemoryStore, Store};
use dafs_wire::nfs4::*;
use dafs_wire::xdr::{Decode, Decoder, Encode, Encoder};
use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const LEASE_SECONDS: u64 = 90;

/// Runs jobs only at the test's request, and records their lanes.
#[derive(Default)]
pub(crate) struct QueuePool(Mutex<Vec<Job>>, Mutex<Vec<u64>>);

impl Pool for QueuePool {
    fn submit(&self, job: Job) {
        self.submit_to(Place { lane: 0, owner: Owner::SERVER }, job);
    }

    fn submit_to(&self, place: Place, job: Job) {
        self.1.lock().unwrap().push(place.lane);
        self.0.lock().unwrap().push(job);
    }
}

impl QueuePool {
    pub(crate) fn take_lanes(&self) -> Vec<u64> {
        std::mem::take(&mut *self.1.lock().unwrap())
    }

    /// Runs the jobs that are queued now, but not those that they queue. Returns their number.
    pub(crate) fn run(&self) -> usize {
        let count = self.0.lock().unwrap().len();
        (0..count).take_while(|_| self.step()).count()
    }

    /// Runs the oldest job, if there is one.
    pub(crate) fn step(&self) -> bool {
        let mut jobs = self.0.lock().unwrap();
        if jobs.is_empty() {
            return false;
        }
        let job = jobs.remove(0);
        drop(jobs);
        job();
        true
    }
}

/// Results of one COMPOUND.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer(pub(crate) Vec<u8>);

impl Answer {
    pub(crate) fn head(&self) -> CompoundResult<'_> {
        CompoundResult::decode(&mut Decoder::new(&self.0)).unwrap()
    }

    pub(crate) fn status(&self) -> Status {
        self.head().status
    }

    pub(crate) fn results(&self) -> Vec<OpResult<'_>> {
        let mut d = Decoder::new(&self.0);
        let head = CompoundResult::decode(&mut d).unwrap();
        let results = (0..head.op_count).map(|_| OpResult::decode(&mut d).unwrap()).collect();
        d.finish().unwrap();
        results
    }

    pub(crate) fn body(&self, at: usize) -> ResultBody<'_> {
        let results = self.results();
        assert_eq!(results[at].status, Status::Ok, "result {at} of {results:?}");
        results[at].body.clone()
    }
}

pub(crate) struct World {
    pub(crate) shared: Arc<NfsShared>,
    pub(crate) handler: NfsHandler,
    pub(crate) reactor: LocalReactor,
    pub(crate) pool: Arc<QueuePool>,
    pub(crate) now_ns: u64,
    pub(crate) minor: u32,
    pub(crate) tag: &'static [u8],
    /// Callbacks that were sent, with their connection.
    pub(crate) back_calls: Vec<(u64, CallbackRequest)>,
    pub(crate) xid: u32,
}

/// The main results of an EXCHANGE_ID.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exchanged {
    pub(crate) client_id: u64,
    pub(crate) sequence_id: u32,
    pub(crate) flags: ExchangeFlags,
}

/// A session as its client sees it.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) client_id: u64,
    pub(crate) id: SessionId,
    pub(crate) created: CreateSessionResult,
    /// The last sequence id of slot 0.
    pub(crate) sequence: u32,
}

impl Default for World {
    fn default() -> Self {
        Self::over(Arc::new(MemoryStore::new(MemoryOptions::default())))
    }
}

impl World {
    /// Makes a server whose root is the one store.
    pub(crate) fn over(store: Arc<dyn Store>) -> Self {
        Self::run_of(7, store, unsquashed(), None)
    }

    /// Makes a server whose export admits these networks, from any port.
    pub(crate) fn for_networks(networks: &[&str]) -> Self {
        let networks = networks.iter().map(|network| network.parse().unwrap()).collect();
        let admits = Admits { networks, unprivileged_ports: true, ..Admits::default() };
        let options = ExportOptions { admits, ..unsquashed() };
        let store = Arc::new(MemoryStore::new(MemoryOptions::default()));
        Self::run_of(7, store, options, None)
    }

    /// Makes a server with the exports `open` and `strict`, for connections with so much protection.
    pub(crate) fn strict(least: &[TransportSecurity; 2]) -> Self {
        CLOCK_NS.set(0);
        let export = |(name, transport_security)| {
            let admits = Admits { transport_security, ..Admits::default() };
            let store = Arc::new(MemoryStore::new(MemoryOptions::default()));
            Export::new(name, store, ExportOptions { admits, ..unsquashed() })
        };
        let exports = [("open", least[0]), ("strict", least[1])].map(export);
        let service = Service::new(config(7), Namespace::new(exports.into()).unwrap());
        Self::around(7, service, Arc::default(), None)
    }

    /// Makes one of several runs of a server, with a journal on that disk in that boot of the
    /// system.
    pub(crate) fn run_of(
        instance: u32,
        store: Arc<dyn Store>,
        options: ExportOptions,
        disk: Option<(Arc<SimDisk>, u8)>,
    ) -> Self {
        CLOCK_NS.set(0);
        let service = Service::new(config(instance), namespace(store, options));
        let pool = Arc::new(QueuePool::default());
        if let Some((disk, boot)) = disk {
            let jobs = pool.clone();
            let spawn = Arc::new(move |job| jobs.submit(job));
            let journal = JournalConfig { disk, boot: [boot; 16], segment_bytes: 64 << 10, spawn };
            service.durable.start_journal(journal, 0).unwrap();
        }
        Self::around(instance, service, pool, None)
    }

    /// Makes a server whose last run has known a client of user 0 by this name, and which waits for
    /// its reclaims.
    pub(crate) fn after_restart(store: Arc<dyn Store>, owner: &[u8]) -> Self {
        let (namespace, records) = (namespace(store, unsquashed()), OneRecord(owner.to_vec()));
        let service = Service::with_records(config(8), namespace, Box::new(records), SECOND);
        Self::around(8, service.unwrap(), Arc::default(), None)
    }

    /// Makes a data server.
    pub(crate) fn data_server(role: DataRole) -> Self {
        let store = Arc::new(dafs_store::DataStore::new(role.files.clone()));
        let service = Service::new(config(7), namespace(store, unsquashed()));
        Self::around(7, service, Arc::default(), Some(role))
    }

    fn around(
        instance: u32,
        service: Service,
        pool: Arc<QueuePool>,
        role: Option<DataRole>,
    ) -> Self {
        let (service, verifier) = (Arc::new(service), Arc::new(WriteVerifier::new(1)));
        let (admission, options) = (Admission { own_uid: 0 }, nfs_options(instance));
        let jobs = pool.clone();
        let shared = match role {
            None => NfsShared::new(service, jobs, verifier, admission, options),
            Some(role) => {
                NfsShared::new_data_server(service, jobs, verifier, admission, options, role)
            }
        };
        Self {
            handler: NfsHandler::new(shared.clone()),
            shared,
            reactor: LocalReactor::new().unwrap(),
            pool,
            now_ns: SECOND,
            minor: 1,
            tag: b"",
            back_calls: Vec::new(),
            xid: 0,
        }
    }
}

thread_local! {
    /// The time that jobs see when they run. 0 for that of their call.
    pub(crate) static CLOCK_NS: Cell<u64> = const { Cell::new(0) };
}

/// Durable records of one client, which drop all changes.
struct OneRecord(Vec<u8>);

impl ClientRecords for OneRecord {
    fn load(&self) -> Result<Vec<ClientRecord>, RecordsError> {
        let (mechanism, principal) = ("sys".to_owned(), vec![0; 4]);
        let (kind, owner, verifier) = (ClientKind::Nfs, self.0.clone(), [1; 8]);
        Ok(vec![ClientRecord { kind, owner, verifier, mechanism, principal, host: vec![] }])
    }

    fn put(&self, _: &ClientRecord) -> Result<(), RecordsError> {
        Ok(())
    }

    fn remove(&self, _: &[ClientRecord]) -> Result<(), RecordsError> {
        Ok(())
    }

    fn load_locks(&self) -> Result<Vec<LockRecord>, RecordsError> {
        Ok(Vec::new())
    }

    fn change_locks(&self, _: &[LockChange]) -> Result<(), RecordsError> {
        Ok(())
    }
}

/// The rules of an export that keeps root as root.
pub(crate) fn unsquashed() -> ExportOptions {
    ExportOptions { squash: Squash::None, ..ExportOptions::default() }
}

fn namespace(store: Arc<dyn Store>, options: ExportOptions) -> Namespace {
    Namespace::new(vec![Export::new("", store, options)]).unwrap()
}

fn config(instance: u32) -> ServiceConfig {
    ServiceConfig::new(Duration::from_secs(LEASE_SECONDS), instance)
}

pub(crate) fn nfs_options(instance: u32) -> NfsOptions {
    NfsOptions {
        server_owner: b"server".to_vec(),
        server_scope: b"scope".to_vec(),
        implementation_domain: "example.org".to_owned(),
        implementation_name: "test".to_owned(),
        secret: [instance as u8; 16],
        clock_start_ns: 0,
        clock: || CLOCK_NS.get(),
    }
}

impl World {
    /// Sends raw `args` over a connection as a user, runs deferred jobs, and returns the answer.
    pub(crate) fn raw(
        &mut self,
        connection: u32,
        uid: u32,
        args: &[u8],
    ) -> Result<Vec<u8>, Rejection> {
        match self.start(connection, uid, args) {
            Handled::Reply(reply) => Ok(reply.to_bytes()),
            Handled::Reject(rejection) => Err(rejection),
            Handled::Later => self.finish(),
            Handled::Drop => panic!("the call was dropped"),
        }
    }

    /// Only sends.
    pub(crate) fn start(&mut self, connection: u32, uid: u32, args: &[u8]) -> Handled {
        let procedure = (limits::PROGRAM, limits::VERSION, limits::PROCEDURE_COMPOUND);
        let handled = self.call(procedure, connection, uid, args);
        self.collect();
        handled
    }

    /// Sends a call of any program.
    pub(crate) fn call(
        &mut self,
        (program, version, procedure): (u32, u32, u32),
        connection: u32,
        uid: u32,
        args: &[u8],
    ) -> Handled {
        self.xid += 1;
        let (machine, groups) = (&b"client"[..], Groups::default());
        let sys = AuthSys { stamp: 0, machine, uid, gid: uid, groups };
        let (xid, credential, now_ns) = (self.xid, Credential::Sys(sys), self.now_ns);
        let request = LocalCall { xid, program, version, procedure, credential, args, now_ns };
        self.reactor.call(&mut self.handler, connection, request)
    }

    /// Runs waiting jobs until the last call is answered.
    pub(crate) fn finish(&mut self) -> Result<Vec<u8>, Rejection> {
        let mut answers: Vec<Result<Reply, Rejection>> = Vec::new();
        while answers.is_empty() {
            assert!(self.pool.run() > 0, "the call waits for nothing");
            answers = self.collect();
        }
        assert_eq!(answers.len(), 1, "one call, one answer");
        answers.into_iter().next().unwrap().map(|reply| reply.to_bytes())
    }

    /// Takes pending events: returns answers, and keeps callbacks.
    pub(crate) fn collect(&mut self) -> Vec<Result<Reply, Rejection>> {
        let mut answers = Vec::new();
        for event in self.reactor.take_events() {
            match event {
                LocalEvent::Answer { answer, .. } => answers.push(answer),
                LocalEvent::CallBack(id, call) => self.back_calls.push((id.to_u64(), call)),
                LocalEvent::Forgotten(..) | LocalEvent::Close(_) => panic!("{event:?}"),
            }
        }
        answers
    }

    pub(crate) fn encode(&self, ops: &[Op<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut e = Encoder::new(&mut bytes);
        let op_count = ops.len() as u32;
        CompoundArgs { tag: self.tag, minor_version: self.minor, op_count }.encode(&mut e);
        ops.iter().for_each(|op| op.encode(&mut e));
        bytes
    }

    /// Sends a compound over a connection as a user.
    pub(crate) fn send(&mut self, connection: u32, uid: u32, ops: &[Op<'_>]) -> Answer {
        let args = self.encode(ops);
        Answer(self.raw(connection, uid, &args).unwrap())
    }

    pub(crate) fn exchange(&mut self, uid: u32, owner: &[u8], verifier: u8) -> Exchanged {
        let answer = self.send(1, uid, &[exchange_id(owner, verifier)]);
        let ResultBody::ExchangeId(result) = answer.body(0) else { panic!() };
        let ExchangeIdResult { client_id, sequence_id, flags, .. } = result;
        Exchanged { client_id, sequence_id, flags }
    }

    /// Makes a confirmed client of user 0 with one session over connection 1, with a back channel.
    pub(crate) fn client(&mut self, owner: &[u8]) -> Session {
        let exchanged = self.exchange(0, owner, 1);
        let args = create_session(exchanged.client_id, exchanged.sequence_id);
        self.session(1, args)
    }

    /// Makes a server with such a client.
    pub(crate) fn with_client() -> (Self, Session) {
        let mut world = Self::default();
        let session = world.client(b"client");
        (world, session)
    }

    /// Says that the client of a session has no state to reclaim. Before that it can open no file
    /// (RFC 8881 18.51.3).
    pub(crate) fn complete(&mut self, session: &mut Session) {
        let complete = Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false });
        assert_eq!(self.next(session, &[complete]).status(), Status::Ok);
    }

    pub(crate) fn session(&mut self, connection: u32, args: CreateSessionArgs<'_>) -> Session {
        let client_id = args.client_id;
        let answer = self.send(connection, 0, &[Op::CreateSession(args)]);
        let ResultBody::CreateSession(created) = answer.body(0) else { panic!() };
        Session { client_id, id: created.session_id, created, sequence: 0 }
    }

    /// Sends the next compound of a session's slot 0.
    pub(crate) fn next(&mut self, session: &mut Session, ops: &[Op<'_>]) -> Answer {
        session.sequence += 1;
        self.again(session, ops)
    }

    /// Sends a compound with the same sequence id as before.
    pub(crate) fn again(&mut self, session: &Session, ops: &[Op<'_>]) -> Answer {
        let ops = with_sequence(session.sequence_args(), ops);
        self.send(1, 0, &ops)
    }

    /// Replies to a callback with these statuses.
    pub(crate) fn answer_back(
        &mut self,
        call: &CallbackRequest,
        sequence: Status,
        operation: Status,
    ) {
        let args = back_args(call);
        let mut bytes = Vec::new();
        let mut e = Encoder::new(&mut bytes);
        let ok = sequence == Status::Ok;
        let status = if ok { operation } else { sequence };
        CompoundResult { status, tag: b"", op_count: 1 + u32::from(ok) }.encode(&mut e);
        let body = if ok {
            CbResultBody::Sequence(CbSequenceResult {
                session_id: args.session_id,
                sequence_id: args.sequence_id,
                slot_id: args.slot_id,
                highest_slot_id: 7,
                target_highest_slot_id: 7,
            })
        } else {
            CbResultBody::Nothing
        };
        let number = CbOpNum::Sequence as u32;
        CbOpResult { number, status: sequence, body }.encode(&mut e);
        if ok {
            let body = CbResultBody::Nothing;
            let number = back_op(call).number();
            CbOpResult { number, status: operation, body }.encode(&mut e);
        }
        let connection = self.reactor.connection(1).id();
        self.handler.back_reply(connection, call.token, Ok(&bytes));
        self.collect();
    }

    pub(crate) fn tick(&mut self, nanoseconds: u64) {
        self.now_ns += nanoseconds;
        self.handler.tick(self.now_ns);
        self.pool.run();
        self.collect();
    }
}

impl Session {
    pub(crate) fn sequence_args(&self) -> SequenceArgs {
        SequenceArgs {
            session_id: self.id,
            sequence_id: self.sequence,
            slot_id: 0,
            highest_slot_id: 0,
            cache_this: true,
        }
    }
}

pub(crate) fn bytes(value: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.encode(&mut Encoder::new(&mut bytes));
    bytes
}

pub(crate) fn with_sequence<'a>(sequence: SequenceArgs, ops: &[Op<'a>]) -> Vec<Op<'a>> {
    let mut all = vec![Op::Sequence(sequence)];
    all.extend_from_slice(ops);
    all
}

pub(crate) fn exchange_id(owner: &[u8], verifier: u8) -> Op<'_> {
    Op::ExchangeId(ExchangeIdArgs {
        owner: ClientOwner { verifier: Verifier([verifier; 8]), owner_id: owner },
        flags: ExchangeFlags::empty(),
        state_protect: StateProtectArgs::None,
        implementation: None,
    })
}

pub(crate) fn channel() -> ChannelAttributes {
    ChannelAttributes {
        header_pad_bytes: 0,
        request_bytes_max: 8192,
        response_bytes_max: 8192,
        response_bytes_max_cached: 8192,
        operations_max: 16,
        requests_max: 8,
        rdma_ird: None,
    }
}

pub(crate) fn create_session(client_id: u64, sequence: u32) -> CreateSessionArgs<'static> {
    CreateSessionArgs {
        client_id,
        sequence,
        flags: CreateSessionFlags::CONN_BACK_CHAN,
        fore: channel(),
        back: channel(),
        callback_program: 0x4000_0000,
        security: vec![CallbackSecurity::None],
    }
}

/// Decodes CB_SEQUENCE of a callback.
pub(crate) fn back_args(call: &CallbackRequest) -> CbSequenceArgs {
    let mut d = Decoder::new(&call.args);
    let head = CbCompoundArgs::decode(&mut d).unwrap();
    assert_eq!(head.op_count, 2);
    let CbOp::Sequence(args) = CbOp::decode(&mut d).unwrap() else { panic!() };
    args
}

/// Decodes the operation of a callback.
pub(crate) fn back_op(call: &CallbackRequest) -> CbOp<'_> {
    let mut d = Decoder::new(&call.args);
    CbCompoundArgs::decode(&mut d).unwrap();
    CbOp::decode(&mut d).unwrap();
    let op = CbOp::decode(&mut d).unwrap();
    d.finish().unwrap();
    op
}
