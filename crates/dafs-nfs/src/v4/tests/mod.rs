//! Compounds of callers with proven names, by the bytes of the wire.

mod certificates;
mod flavours;
mod owners;
mod protect;

use super::compound::context::CallContext;
use super::compound::engine::{self, Answer as Ended};
use crate::admission::{CallerIdentity, Origin};
use crate::args::Args;
use crate::connection::Connection;
use crate::listings::Listings;
use crate::shared::NfsShared;
use crate::v3::tests::{export, from, shared};
use crate::wire_handle;
use dafs_journal::sim::SimDisk;
use dafs_mem::Mutex;
use dafs_rpc::LocalReactor;
use dafs_service::durable::JournalConfig;
use dafs_service::{Export, Flavour, Job, NO_USER, Namespace, Owner, Service, ServiceConfig};
use dafs_store::{Cred, Wait};
use dafs_wire::nfs4::*;
use dafs_wire::xdr::{Decode, Decoder, Encode, Encoder};
use std::sync::Arc;
use std::time::Duration;

const ROOT: Op<'static> = Op::Putrootfh(PutrootfhArgs);
const SAVEFH: Op<'static> = Op::Savefh(SavefhArgs);
const RESTOREFH: Op<'static> = Op::Restorefh(RestorefhArgs);

/// A server, and the place of its callers.
struct World {
    shared: Arc<NfsShared>,
    origin: Origin,
    /// The user whom the certificate of the connection names.
    user: Option<Arc<str>>,
    connection: Arc<Connection>,
    minor: u32,
    /// The time of its calls.
    now_ns: u64,
    /// The work of the journal's threads.
    jobs: Arc<Mutex<Vec<Job>>>,
}

/// A session as its client sees it.
#[derive(Debug, Clone)]
struct Session {
    client_id: u64,
    id: SessionId,
    sequence: u32,
}

impl Session {
    /// The SEQUENCE of its last request.
    fn sequence_op(&self) -> Op<'static> {
        Op::Sequence(SequenceArgs {
            session_id: self.id,
            sequence_id: self.sequence,
            slot_id: 0,
            highest_slot_id: 0,
            cache_this: true,
        })
    }
}

/// The results of a COMPOUND.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer(Vec<u8>);

impl Answer {
    fn results(&self) -> Vec<OpResult<'_>> {
        let mut decoder = Decoder::new(&self.0);
        let head = CompoundResult::decode(&mut decoder).unwrap();
        let results = (0..head.op_count).map(|_| OpResult::decode(&mut decoder).unwrap());
        let results: Vec<_> = results.collect();
        decoder.finish().unwrap();
        results
    }

    fn body(&self, at: usize) -> ResultBody<'_> {
        let results = self.results();
        assert_eq!(results[at].status, Status::Ok, "result {at} of {results:?}");
        results[at].body.clone()
    }

    /// The number of results, and the last status.
    fn end(&self) -> (usize, Status) {
        let results = self.results();
        (results.len(), results.last().unwrap().status)
    }

    fn status(&self) -> Status {
        self.end().1
    }
}

/// A user that claims its number.
fn claims(uid: u32) -> CallerIdentity {
    CallerIdentity::unproven(Cred::new(uid, uid), Flavour::Sys)
}

/// A user of this number with a proven name.
fn proves(name: &str, uid: u32, flavour: Flavour) -> CallerIdentity {
    let principal = Some(name.as_bytes().into());
    CallerIdentity { cred: Cred::new(uid, uid), flavour, principal }
}

/// The machine of a client. It is no user here.
fn machine(flavour: Flavour) -> CallerIdentity {
    proves("nfs/client@R", NO_USER, flavour)
}

impl World {
    fn new(exports: Vec<Export>) -> Self {
        Self::run_of(1, exports, None)
    }

    /// Makes one of several runs of a server, with its journal on that disk.
    fn run_of(instance: u32, exports: Vec<Export>, disk: Option<Arc<SimDisk>>) -> Self {
        let config = ServiceConfig::new(Duration::from_secs(90), instance);
        let service = Arc::new(Service::new(config, Namespace::new(exports).unwrap()));
        let jobs = Arc::<Mutex<Vec<Job>>>::default();
        if let Some(disk) = disk {
            let queue = jobs.clone();
            let spawn = Arc::new(move |job| queue.lock().push(job));
            let journal = JournalConfig { disk, boot: [1; 16], segment_bytes: 64 << 10, spawn };
            service.durable.start_journal(journal, 0).unwrap();
        }
        let shared = shared(service);
        let reference = LocalReactor::new().unwrap().connection(1);
        let connection = Connection::new(reference, Arc::<Listings>::default());
        let origin = from("127.0.0.1:700");
        Self { shared, origin, user: None, connection, minor: 1, now_ns: 1, jobs }
    }

    fn run_jobs(&self) {
        loop {
            let jobs = std::mem::take(&mut *self.jobs.lock());
            if jobs.is_empty() {
                return;
            }
            jobs.into_iter().for_each(|job| job());
        }
    }

    /// The handle of an export's root.
    fn root_of(&self, name: &str) -> Vec<u8> {
        let namespace = self.shared.service.namespace();
        let export = namespace.exports().find(|export| export.name() == name).unwrap().root();
        wire_handle::encode(&export).to_vec()
    }

    /// Sends a compound, and lets it wait as often as it has to.
    fn send(&self, who: &CallerIdentity, ops: &[Op<'_>]) -> Answer {
        self.send_until(who, ops, || false).unwrap()
    }

    /// Does the same, but drops the compound if it waits when `is_enough` says so.
    fn send_until(
        &self,
        who: &CallerIdentity,
        ops: &[Op<'_>],
        is_enough: impl Fn() -> bool,
    ) -> Option<Answer> {
        let mut args = Vec::new();
        let mut encoder = Encoder::new(&mut args);
        let op_count = ops.len() as u32;
        CompoundArgs { tag: b"", minor_version: self.minor, op_count }.encode(&mut encoder);
        ops.iter().for_each(|op| op.encode(&mut encoder));
        let call = CallContext {
            who: who.clone(),
            origin: self.origin,
            owner: Owner { origin: self.origin.of_turns(), number: 1 },
            connection: self.connection.clone(),
            peer: "127.0.0.1:700".parse().unwrap(),
            user: self.user.clone(),
            is_rdma: false,
            now_ns: self.now_ns,
            call_bytes: args.len(),
            reply_rpc_bytes: 24,
        };
        let mut ended = engine::compound(&self.shared, call, Args::plain(&args), Wait::Never);
        loop {
            self.run_jobs();
            match ended {
                Ended::Reply(reply) => return Some(Answer(reply.to_bytes())),
                Ended::Garbage => panic!("the compound is not XDR"),
                Ended::Parked(_) if is_enough() => return None,
                Ended::Parked(parked) => {
                    assert!(parked.gate().is_none(), "nothing is waited for that runs elsewhere");
                    let lane = parked.lane();
                    ended = match parked.run(Args::plain(&args), lane) {
                        Ok(reply) => Ended::Reply(reply),
                        Err(parked) => Ended::Parked(parked),
                    };
                }
            }
        }
    }

    /// Sends the next request of a session.
    fn next(&self, who: &CallerIdentity, session: &mut Session, ops: &[Op<'_>]) -> Answer {
        session.sequence += 1;
        self.again(who, session, ops)
    }

    /// Sends a request with the number of the last one.
    fn again(&self, who: &CallerIdentity, session: &Session, ops: &[Op<'_>]) -> Answer {
        self.send(who, &[&[session.sequence_op()], ops].concat())
    }

    /// Makes the one client with a session that has no state to reclaim.
    fn client(&self, who: &CallerIdentity, protect: StateProtectArgs<'static>) -> Session {
        self.client_of(b"client", who, protect)
    }

    /// Makes a client of this name.
    fn client_of(
        &self,
        name: &'static [u8],
        who: &CallerIdentity,
        protect: StateProtectArgs<'static>,
    ) -> Session {
        let Op::ExchangeId(args) = exchange_id(1, ExchangeFlags::empty(), protect) else {
            unreachable!()
        };
        let owner = ClientOwner { owner_id: name, ..args.owner };
        let answer = self.send(who, &[Op::ExchangeId(ExchangeIdArgs { owner, ..args })]);
        let ResultBody::ExchangeId(exchanged) = answer.body(0) else { panic!() };
        let (client_id, sequence) = (exchanged.client_id, exchanged.sequence_id);
        let answer = self.send(who, &[create_session(client_id, sequence)]);
        self.run_jobs();
        let ResultBody::CreateSession(created) = answer.body(0) else { panic!() };
        let mut session = Session { client_id, id: created.session_id, sequence: 0 };
        let complete = Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false });
        assert_eq!(self.next(who, &mut session, &[complete]).status(), Status::Ok);
        session
    }

    /// Makes a file that everybody may use, open for both. Returns its handle and state-id.
    fn file(
        &self,
        who: &CallerIdentity,
        session: &mut Session,
        dir: &[u8],
        name: &[u8],
    ) -> (Vec<u8>, Stateid) {
        let ops = [putfh(dir), open(OpenClaim::Null(name)), Op::Getfh(GetfhArgs)];
        let answer = self.next(who, session, &ops);
        let ResultBody::Open(opened) = answer.body(2) else { panic!() };
        let ResultBody::Getfh(found) = answer.body(3) else { panic!() };
        (found.handle.to_vec(), opened.stateid)
    }
}

/// EXCHANGE_ID of the one client.
fn exchange_id(
    verifier: u8,
    flags: ExchangeFlags,
    state_protect: StateProtectArgs<'static>,
) -> Op<'static> {
    let owner = ClientOwner { verifier: Verifier([verifier; 8]), owner_id: b"client" };
    Op::ExchangeId(ExchangeIdArgs { owner, flags, state_protect, implementation: None })
}

fn create_session(client_id: u64, sequence: u32) -> Op<'static> {
    let channel = ChannelAttributes {
        request_bytes_max: 8192,
        response_bytes_max: 8192,
        response_bytes_max_cached: 8192,
        operations_max: 16,
        requests_max: 8,
        ..ChannelAttributes::default()
    };
    Op::CreateSession(CreateSessionArgs {
        client_id,
        sequence,
        // It is granted where all replies are durable.
        flags: CreateSessionFlags::PERSIST,
        fore: channel,
        back: channel,
        callback_program: 0x4000_0000,
        security: vec![CallbackSecurity::None],
    })
}

fn putfh(handle: &[u8]) -> Op<'_> {
    Op::Putfh(PutfhArgs { handle })
}

fn lookup(name: &[u8]) -> Op<'_> {
    Op::Lookup(LookupArgs { name })
}

fn getattr(attrs: &[Attr]) -> Op<'static> {
    Op::Getattr(GetattrArgs { request: Attr::set(attrs) })
}

fn open(claim: OpenClaim<'_>) -> Op<'_> {
    let by_name = matches!(claim, OpenClaim::Null(_));
    // Mode 666.
    let attributes = Fattr { mask: Attr::set(&[Attr::Mode]), values: &[0, 0, 1, 0o266] };
    Op::Open(OpenArgs {
        seqid: 0,
        share_access: ShareAccess(ShareAccess::BOTH | Want::None.number()),
        share_deny: DENY_NONE,
        owner: StateOwner { client_id: 0, owner: b"owner" },
        how: if by_name { OpenHow::Unchecked(attributes) } else { OpenHow::NoCreate },
        claim,
    })
}

fn read(stateid: Stateid) -> Op<'static> {
    Op::Read(ReadArgs { stateid, offset: 0, count: 10 })
}

fn write(stateid: Stateid) -> Op<'static> {
    let data = b"data"[..].into();
    Op::Write(WriteArgs { stateid, offset: 0, stable: StableHow::Unstable, data })
}

fn close(stateid: Stateid) -> Op<'static> {
    Op::Close(CloseArgs { seqid: 0, stateid })
}
