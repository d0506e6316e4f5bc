//! A server that can be killed: handler, stand-in reactor, and a pool whose jobs the test runs. Its
//! records and its store outlive it. Also used by the fuzz target `nfs4_state`.
//!
//! Invariants
//! * Every answer is read completely and compared with its request before a client sees it.

use dafs_nfs::{Admission, NfsCounts, NfsHandler, NfsOptions, NfsShared};
use dafs_rpc::{
    AuthSys, CallbackError, CallbackRequest, Credential, Groups, Handled, Handler, LocalCall,
    LocalEvent, LocalReactor, Rejection, Reply,
};
use dafs_service::{
    ClientRecord, ClientRecords, Export, ExportOptions, Job, LockChange, LockRecord, Namespace,
    Pool, RecordsError, Service, ServiceConfig, ServiceCounts, Squash, WriteVerifier,
};
use dafs_store::{MemoryOptions, MemoryStore, Store};
use dafs_wire::nfs4::*;
use dafs_wire::xdr::{Decode, Decoder, Encode, Encoder};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const SECOND: u64 = 1_000_000_000;
/// Duration of a lease, and of grace.
pub const LEASE_NS: u64 = 30 * SECOND;
/// How long state is kept after a lease.
pub const COURTESY_NS: u64 = 300 * SECOND;

/// Records that survive their server.
#[derive(Debug, Clone, Default)]
struct Disk(Arc<Mutex<Vec<ClientRecord>>>);

impl ClientRecords for Disk {
    fn load(&self) -> Result<Vec<ClientRecord>, RecordsError> {
        Ok(self.0.lock().unwrap().clone())
    }

    fn put(&self, record: &ClientRecord) -> Result<(), RecordsError> {
        let mut records = self.0.lock().unwrap();
        records.retain(|known| known.owner != record.owner);
        records.push(record.clone());
        Ok(())
    }

    fn remove(&self, gone: &[ClientRecord]) -> Result<(), RecordsError> {
        let matches = |known: &ClientRecord| {
            gone.iter().any(|gone| gone.owner == known.owner && gone.verifier == known.verifier)
        };
        self.0.lock().unwrap().retain(|known| !matches(known));
        Ok(())
    }

    fn load_locks(&self) -> Result<Vec<LockRecord>, RecordsError> {
        Ok(Vec::new())
    }

    fn change_locks(&self, changes: &[LockChange]) -> Result<(), RecordsError> {
        assert_eq!(changes, [], "NFS clients have no persistent locks");
        Ok(())
    }
}

/// Runs jobs only when the world says so.
#[derive(Default)]
pub struct QueuePool(Mutex<Vec<Job>>);

impl Pool for QueuePool {
    fn submit(&self, job: Job) {
        self.0.lock().unwrap().push(job);
    }
}

impl QueuePool {
    pub fn waiting(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub fn run(&self, at: usize) {
        let job = self.0.lock().unwrap().remove(at);
        job();
    }

    /// Forgets all jobs, which hold references to the owner of the pool.
    pub fn clear(&self) {
        let jobs = std::mem::take(&mut *self.0.lock().unwrap());
        drop(jobs);
    }
}

pub fn nfs_options(secret: u8) -> NfsOptions {
    NfsOptions {
        server_owner: b"server".to_vec(),
        server_scope: b"scope".to_vec(),
        implementation_domain: "example.org".to_owned(),
        implementation_name: "test".to_owned(),
        secret: [secret; 16],
        clock_start_ns: 0,
        clock: || 0,
    }
}

/// An output of a server.
#[derive(Debug)]
pub enum Output {
    /// The results of a COMPOUND.
    Answer { connection: u32, xid: u32, results: Vec<u8> },
    /// A callback.
    CallBack { connection: u32, call: CallbackRequest },
}

/// One server, and the state that outlives it.
pub struct Server {
    store: Arc<dyn Store>,
    disk: Disk,
    delegations: bool,
    /// The number of servers before this one.
    pub run: u32,
    pub now_ns: u64,
    parts: Parts,
    /// Requests by connection and number, with the number of copies that wait for an answer.
    asked: HashMap<(u32, u32), (Vec<u8>, u32)>,
}

/// The parts that end with a server.
struct Parts {
    shared: Arc<NfsShared>,
    handler: NfsHandler,
    reactor: LocalReactor,
    pool: Arc<QueuePool>,
    /// Numbers of connections by their ids.
    numbers: HashMap<u64, u32>,
}

impl Parts {
    fn start(store: Arc<dyn Store>, disk: Disk, delegations: bool, run: u32, now_ns: u64) -> Self {
        let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
        let namespace = Namespace::new(vec![Export::new("", store, options)]).unwrap();
        let config = ServiceConfig {
            delegations,
            courtesy_time: Duration::from_nanos(COURTESY_NS),
            ..ServiceConfig::new(Duration::from_nanos(LEASE_NS), run + 1)
        };
        let service = Service::with_records(config, namespace, Box::new(disk), now_ns).unwrap();
        let pool = Arc::new(QueuePool::default());
        let options = nfs_options(run as u8);
        let admission = Admission { own_uid: 0 };
        let verifier = Arc::new(WriteVerifier::new(u64::from(run)));
        let shared = NfsShared::new(Arc::new(service), pool.clone(), verifier, admission, options);
        let handler = NfsHandler::new(shared.clone());
        let reactor = LocalReactor::new().unwrap();
        Self { shared, handler, reactor, pool, numbers: HashMap::new() }
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.pool.clear();
    }
}

impl Server {
    pub fn new(delegations: bool) -> Self {
        let options = MemoryOptions { bytes_max: 8 << 20, files_max: 1000, ..Default::default() };
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(options));
        let disk = Disk::default();
        let parts = Parts::start(store.clone(), disk.clone(), delegations, 0, SECOND);
        let asked = HashMap::new();
        Self { store, disk, delegations, run: 0, now_ns: SECOND, parts, asked }
    }

    /// Kills the server with its jobs, and starts another with the surviving state.
    pub fn restart(&mut self) {
        self.run += 1;
        self.asked.clear();
        let (store, disk) = (self.store.clone(), self.disk.clone());
        self.parts = Parts::start(store, disk, self.delegations, self.run, self.now_ns);
    }

    /// Submits a request. Its answer may come now, or when a job has run.
    pub fn submit(&mut self, connection: u32, xid: u32, args: &[u8]) -> Vec<Output> {
        let parts = &mut self.parts;
        let id = parts.reactor.connection(connection).id();
        parts.numbers.insert(id.to_u64(), connection);
        let groups = Groups::default();
        let sys = AuthSys { stamp: 0, machine: b"client", uid: 0, gid: 0, groups };
        let request = LocalCall {
            xid,
            program: limits::PROGRAM,
            version: limits::VERSION,
            procedure: limits::PROCEDURE_COMPOUND,
            credential: Credential::Sys(sys),
            args,
            now_ns: self.now_ns,
        };
        let handled = parts.reactor.call(&mut parts.handler, connection, request);
        self.asked.entry((connection, xid)).or_insert_with(|| (args.to_vec(), 0)).1 += 1;
        let mut outputs = Vec::new();
        match handled {
            Handled::Reply(reply) => self.answered(connection, xid, Ok(reply), &mut outputs),
            Handled::Reject(rejection) => {
                self.answered(connection, xid, Err(rejection), &mut outputs);
            }
            Handled::Later => {}
            Handled::Drop => panic!("a COMPOUND is never dropped"),
        }
        self.collect(&mut outputs);
        outputs
    }

    /// Returns the number of waiting jobs.
    pub fn jobs(&self) -> usize {
        self.parts.pool.waiting()
    }

    /// Runs one of the jobs.
    pub fn run_job(&mut self, at: usize) -> Vec<Output> {
        self.parts.pool.run(at);
        self.collected()
    }

    /// Lets time pass.
    pub fn pass(&mut self, nanoseconds: u64) -> Vec<Output> {
        self.now_ns += nanoseconds;
        self.parts.handler.tick(self.now_ns);
        self.collected()
    }

    /// Ends a connection. Answers to its requests are lost.
    pub fn disconnect(&mut self, connection: u32) -> Vec<Output> {
        let id = self.parts.reactor.connection(connection).id();
        self.parts.handler.disconnected(id);
        self.parts.numbers.remove(&id.to_u64());
        self.collected()
    }

    /// Brings the reply to a callback, or the error that there is none.
    pub fn back_reply(
        &mut self,
        connection: u32,
        token: u64,
        result: Result<&[u8], CallbackError>,
    ) -> Vec<Output> {
        let id = self.parts.reactor.connection(connection).id();
        self.parts.handler.back_reply(id, token, result);
        self.collected()
    }

    /// Counts the state of service and front end.
    pub fn counts(&self) -> (ServiceCounts, NfsCounts) {
        (self.parts.shared.service.counts(), self.parts.shared.counts())
    }

    /// Returns the number of clients that could reclaim after a restart.
    pub fn records(&self) -> usize {
        self.disk.0.lock().unwrap().len()
    }

    pub fn in_grace(&self) -> bool {
        self.parts.shared.service.clients.in_grace()
    }

    fn answered(
        &mut self,
        connection: u32,
        xid: u32,
        answer: Result<Reply, Rejection>,
        outputs: &mut Vec<Output>,
    ) {
        let asked = self.asked.get_mut(&(connection, xid));
        let (args, waiting) = asked.expect("an answer belongs to a request");
        assert!(*waiting > 0, "one request is answered once");
        *waiting -= 1;
        match answer {
            Ok(reply) => {
                let results = reply.to_bytes();
                well_formed(args, &results);
                outputs.push(Output::Answer { connection, xid, results });
            }
            Err(rejection) => {
                let head = CompoundArgs::decode(&mut Decoder::new(args));
                assert!(head.is_err(), "a good frame was refused: {rejection:?}");
            }
        }
    }

    fn collected(&mut self) -> Vec<Output> {
        let mut outputs = Vec::new();
        self.collect(&mut outputs);
        outputs
    }

    /// Takes pending events.
    fn collect(&mut self, outputs: &mut Vec<Output>) {
        for event in self.parts.reactor.take_events() {
            match event {
                LocalEvent::Answer { connection, xid, answer, .. } => {
                    if let Some(&number) = self.parts.numbers.get(&connection.to_u64()) {
                        self.answered(number, xid, answer, outputs);
                    }
                }
                LocalEvent::CallBack(id, call) => {
                    if let Some(&connection) = self.parts.numbers.get(&id.to_u64()) {
                        outputs.push(Output::CallBack { connection, call });
                    }
                }
                LocalEvent::Forgotten(..) | LocalEvent::Close(_) => panic!("{event:?}"),
            }
        }
    }
}

/// Encodes a COMPOUND of these operations.
pub fn encode(minor_version: u32, ops: &[Op<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut e = Encoder::new(&mut bytes);
    let op_count = ops.len() as u32;
    CompoundArgs { tag: b"", minor_version, op_count }.encode(&mut e);
    ops.iter().for_each(|op| op.encode(&mut e));
    bytes
}

/// Decodes the results of a COMPOUND.
pub fn decode(results: &[u8]) -> Vec<OpResult<'_>> {
    let mut d = Decoder::new(results);
    let head = CompoundResult::decode(&mut d).unwrap();
    (0..head.op_count).map(|_| OpResult::decode(&mut d).unwrap()).collect()
}

/// Checks that an answer matches its request. No bytes are left over, results belong to operations
/// of the request, all but the last are good, and the compound has the status of the last.
fn well_formed(args: &[u8], results: &[u8]) {
    let mut d = Decoder::new(results);
    let head = CompoundResult::decode(&mut d).unwrap();
    let decode = |at| {
        OpResult::decode(&mut d).unwrap_or_else(|error| {
            panic!("result {at}: {error} in {results:?}, the answer to {args:?}")
        })
    };
    let decoded: Vec<_> = (0..head.op_count).map(decode).collect();
    d.finish().unwrap();
    let mut sent = Decoder::new(args);
    let asked = CompoundArgs::decode(&mut sent).unwrap();
    assert!(head.op_count <= asked.op_count, "more results than operations");
    for (at, result) in decoded.iter().enumerate() {
        let last = at + 1 == decoded.len();
        assert_eq!(result.status != Status::Ok, last && head.status != Status::Ok, "{decoded:?}");
        if let Ok(op) = Op::decode(&mut sent, asked.minor_version) {
            assert!([op.number(), OP_ILLEGAL].contains(&result.number), "{op:?} {result:?}");
        }
    }
    if let Some(last) = decoded.last() {
        assert_eq!(last.status, head.status);
    }
    assert!(head.status != Status::Ok || head.op_count == asked.op_count, "results are missing");
}
