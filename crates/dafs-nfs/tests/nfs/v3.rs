//! NFSv3 and MOUNT through the handler, as the RPC server calls it.

use dafs_nfs::{Admission, NfsHandler, NfsOptions, NfsShared};
use dafs_rpc::{
    AcceptStatus, AuthSys, Credential, Groups, Handled, LocalCall, LocalEvent, LocalReactor,
    Rejection, Reply, VersionRange,
};
use dafs_service::{
    Export, ExportOptions, Job, Namespace, Pool, Service, ServiceConfig, Squash, WriteVerifier,
};
use dafs_store::{MemoryOptions, MemoryStore};
use dafs_wire::mount3::{self, Path, decode_mounted};
use dafs_wire::nfs3::{
    self, ChangeFailure, CreateArgs, CreateHow, CreateOk, DirOpArgs, FileHandle, ObjectFailure,
    Procedure, ReadArgs, ReadOk, SetAttributes, Stability, WriteArgs, WriteOk, decode_results,
};
use dafs_wire::xdr::{Encode, Encoder};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Keeps jobs until the test runs them.
#[derive(Default)]
struct Jobs(Mutex<Vec<Job>>);

impl Pool for Jobs {
    fn submit(&self, job: Job) {
        self.0.lock().unwrap().push(job);
    }
}

struct Server {
    reactor: LocalReactor,
    handler: NfsHandler,
    jobs: Arc<Jobs>,
    xid: u32,
}

fn bytes(args: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    args.encode(&mut Encoder::new(&mut bytes));
    bytes
}

fn results(handled: Handled) -> Vec<u8> {
    let Handled::Reply(reply) = handled else { panic!("no reply: {handled:?}") };
    reply.to_bytes()
}

fn refusal(handled: Handled) -> AcceptStatus {
    let Handled::Reject(Rejection::Accept(status)) = handled else { panic!("{handled:?}") };
    status
}

impl Server {
    fn new() -> Self {
        let rules = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
        let store = Arc::new(MemoryStore::new(MemoryOptions::default()));
        let namespace = Namespace::new(vec![Export::new("", store, rules)]).unwrap();
        let config = ServiceConfig::new(Duration::from_secs(90), 1);
        let jobs = Arc::new(Jobs::default());
        let shared = NfsShared::new(
            Arc::new(Service::new(config, namespace)),
            jobs.clone(),
            Arc::new(WriteVerifier::new(1)),
            Admission { own_uid: 0 },
            NfsOptions {
                server_owner: b"owner".to_vec(),
                server_scope: b"scope".to_vec(),
                implementation_domain: String::new(),
                implementation_name: String::new(),
                secret: [1; 16],
                clock_start_ns: 0,
                clock: || 0,
                slow_operation_ns: None,
            },
        );
        let reactor = LocalReactor::new().unwrap();
        Self { reactor, handler: NfsHandler::new(shared), jobs, xid: 0 }
    }

    fn raw(&mut self, (program, version, procedure): (u32, u32, u32), args: &[u8]) -> Handled {
        self.xid += 1;
        let groups = Groups::default();
        let sys = AuthSys { stamp: 0, machine: b"test", uid: 0, gid: 0, groups };
        let request = LocalCall {
            xid: self.xid,
            program,
            version,
            procedure,
            credential: Credential::Sys(sys),
            args,
            now_ns: 1,
        };
        self.reactor.call(&mut self.handler, 1, request)
    }

    fn v3(&mut self, procedure: Procedure, args: &impl Encode) -> Handled {
        self.raw((nfs3::PROGRAM, nfs3::VERSION, procedure.number()), &bytes(args))
    }

    fn mount(&mut self) -> Vec<u8> {
        let number = mount3::Procedure::Mnt.number();
        let program = (mount3::PROGRAM, mount3::VERSION, number);
        let results = results(self.raw(program, &bytes(&Path(b"/"))));
        decode_mounted(&results).unwrap().unwrap().0.0.to_vec()
    }

    /// Runs deferred jobs. Returns the one answer.
    fn run_jobs(&mut self) -> Reply {
        let jobs = std::mem::take(&mut *self.jobs.0.lock().unwrap());
        jobs.into_iter().for_each(|job| job());
        let mut events = self.reactor.take_events();
        let Some(LocalEvent::Answer { xid, answer, .. }) = events.pop() else { panic!("nothing") };
        assert_eq!((xid, events.len()), (self.xid, 0));
        answer.unwrap()
    }
}

#[test]
fn versions_and_procedures_that_are_not_there_are_named() {
    let mut server = Server::new();
    for version in [0, 2, 5] {
        let handled = server.raw((nfs3::PROGRAM, version, 0), &[]);
        let range = VersionRange { low: 3, high: 4 };
        assert_eq!(refusal(handled), AcceptStatus::ProgramMismatch(range));
    }
    let handled = server.raw((mount3::PROGRAM, 1, 0), &[]);
    let range = VersionRange { low: 3, high: 3 };
    assert_eq!(refusal(handled), AcceptStatus::ProgramMismatch(range));
    for (program, procedure) in [(nfs3::PROGRAM, 22), (mount3::PROGRAM, 6)] {
        let handled = server.raw((program, 3, procedure), &[]);
        assert_eq!(refusal(handled), AcceptStatus::ProcedureUnavailable);
    }
    for (program, procedure) in [(nfs3::PROGRAM, 1), (mount3::PROGRAM, 1)] {
        let handled = server.raw((program, 3, procedure), &[0xff; 8]);
        assert_eq!(refusal(handled), AcceptStatus::GarbageArgs);
    }
    for program in [nfs3::PROGRAM, mount3::PROGRAM] {
        assert!(results(server.raw((program, 3, 0), &[])).is_empty());
    }
}

#[test]
fn a_file_is_made_written_and_read() {
    let mut server = Server::new();
    let root = server.mount();
    let place = DirOpArgs { dir: FileHandle(&root), name: b"f" };
    let how = CreateHow::Guarded(SetAttributes::default());
    let made = results(server.v3(Procedure::Create, &CreateArgs { place, how }));
    let made = decode_results::<CreateOk<'_>, ChangeFailure>(&made).unwrap().unwrap();
    let file = made.object.unwrap();
    let (count, data) = (5, &b"hello"[..]);
    let stable = Stability::FileSync;
    let write = WriteArgs { file, offset: 0, count, stable, data: data.into() };
    let handled = server.v3(Procedure::Write, &write);
    assert!(matches!(handled, Handled::Later), "a stable write may wait for a disk");
    let written = server.run_jobs().to_bytes();
    let written = decode_results::<WriteOk, ChangeFailure>(&written).unwrap().unwrap();
    assert_eq!((written.count, written.committed), (5, stable));
    let read = results(server.v3(Procedure::Read, &ReadArgs { file, offset: 1, count: 100 }));
    let read = decode_results::<ReadOk<'_>, ObjectFailure>(&read).unwrap().unwrap();
    assert_eq!((read.data.here().unwrap(), read.eof), (&b"ello"[..], true));
}
