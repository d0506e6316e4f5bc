//! Procedures against a store in memory, through the service, by the bytes of the wire.

mod acl;
mod apart;
mod data;
mod flavours;
mod hostile;
mod listing;
mod mount;
mod names;
mod random;

use super::*;
use crate::admission::Admission;
use crate::shared::NfsOptions;
use dafs_rpc::{CallerProcess, LocalReactor};
use dafs_service::{
    Export, ExportOptions, Flavour, Job, Namespace, Pool, ServiceConfig, Squash, WriteVerifier,
};
use dafs_store::{Cred, MemoryOptions, MemoryStore};
use dafs_wire::nfs3::{
    AccessArgs, AccessOk, ChangeFailure, CreateArgs, CreateHow, CreateOk, DirOpArgs, Failure,
    GetattrArgs, GetattrOk, LookupOk, NoFailureBody, ObjectFailure, SetAttributes, WccResult,
    decode_results,
};
use dafs_wire::xdr::Encoder;
use std::time::Duration;

/// A server with its caller.
pub(super) struct World {
    pub(super) shared: Arc<NfsShared>,
    pub(super) sender: Sender,
    xid: Cell<u32>,
}

/// Executes a request of NFSv3.
fn call(shared: &Arc<NfsShared>, sender: Sender, xid: u32, number: u32, args: Args<'_>) -> Answer {
    super::call(shared, sender, xid, Operation::of_nfs(number), args)
}

/// Makes a connection from an address of another host.
pub(crate) fn from(peer: &str) -> Origin {
    let admission = Admission { own_uid: 0 };
    admission.origin(peer.parse().unwrap(), CallerProcess::Elsewhere)
}

/// The bytes of a handle.
pub(super) type Fh = Vec<u8>;

pub(crate) fn export(name: &str, options: impl FnOnce(&mut ExportOptions)) -> Export {
    let mut rules = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
    rules.admits.unprivileged_ports = true;
    options(&mut rules);
    Export::new(name, Arc::new(MemoryStore::new(MemoryOptions::default())), rules)
}

impl World {
    pub(super) fn new() -> Self {
        Self::with(vec![export("", |_| {})])
    }

    pub(super) fn with(exports: Vec<Export>) -> Self {
        let config = ServiceConfig::new(Duration::from_secs(90), 1);
        let service = Arc::new(Service::new(config, Namespace::new(exports).unwrap()));
        let shared = shared(service);
        let who = CallerIdentity::unproven(Cred::new(0, 0), Flavour::Sys);
        let listings = Arc::<Listings>::default();
        let connection =
            Connection::new(LocalReactor::new().unwrap().connection(1), listings.clone());
        let sender = Sender { origin: from("127.0.0.1:700"), who, connection, now_ns: 1, listings };
        Self { shared, sender, xid: Cell::new(0) }
    }

    pub(super) fn root(&self) -> Fh {
        wire_handle::encode(&self.shared.service.root()).to_vec()
    }

    /// Sends a request with a number, and runs it if it is parked.
    pub(super) fn send(&self, xid: u32, procedure: Procedure, args: &[u8]) -> Option<Vec<u8>> {
        let answer =
            call(&self.shared, self.sender.clone(), xid, procedure.number(), Args::plain(args));
        match answer {
            Answer::Reply(reply) => Some(reply.to_bytes()),
            Answer::Parked(parked) => Some(parked.run(Args::plain(args)).unwrap().to_bytes()),
            Answer::Garbage | Answer::Drop | Answer::NoProcedure | Answer::TooWeak => None,
        }
    }

    /// Sends a new request.
    pub(super) fn call(&self, procedure: Procedure, args: &impl Encode) -> Vec<u8> {
        self.xid.set(self.xid.get() + 1);
        self.send(self.xid.get(), procedure, &bytes(args)).expect("an answer")
    }

    pub(super) fn lookup(&self, dir: &Fh, name: &str) -> Result<(Fh, Attributes), Status> {
        let args = DirOpArgs { dir: FileHandle(dir), name: name.as_bytes() };
        let results = self.call(Procedure::Lookup, &args);
        let result = decode_results::<LookupOk<'_>, ObjectFailure>(&results).unwrap();
        match result {
            Ok(ok) => Ok((ok.object.0.to_vec(), ok.attributes.unwrap())),
            Err(failure) => Err(failure.status),
        }
    }

    pub(super) fn getattr(&self, object: &Fh) -> Result<Attributes, Status> {
        let results = self.call(Procedure::Getattr, &GetattrArgs { object: FileHandle(object) });
        let result = decode_results::<GetattrOk, NoFailureBody>(&results).unwrap();
        result.map(|ok| ok.attributes).map_err(|failure| failure.status)
    }

    pub(super) fn create(
        &self,
        dir: &Fh,
        name: &str,
        how: CreateHow,
    ) -> Result<(Fh, Attributes), Status> {
        let place = DirOpArgs { dir: FileHandle(dir), name: name.as_bytes() };
        let results = self.call(Procedure::Create, &CreateArgs { place, how });
        made(&results)
    }

    pub(super) fn file(&self, name: &str) -> Fh {
        let how = CreateHow::Guarded(SetAttributes { mode: Some(0o644), ..Default::default() });
        self.create(&self.root(), name, how).unwrap().0
    }

    pub(super) fn remove(&self, dir: &Fh, name: &str) -> Result<(), Status> {
        self.remove_by(Procedure::Remove, dir, name)
    }

    pub(super) fn remove_by(
        &self,
        procedure: Procedure,
        dir: &Fh,
        name: &str,
    ) -> Result<(), Status> {
        let args = DirOpArgs { dir: FileHandle(dir), name: name.as_bytes() };
        let results = self.call(procedure, &args);
        let result = decode_results::<WccResult, ChangeFailure>(&results).unwrap();
        result.map(|_| ()).map_err(|failure| failure.status)
    }
}

pub(super) fn bytes(args: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    args.encode(&mut Encoder::new(&mut bytes));
    bytes
}

/// Decodes the results of CREATE, MKDIR, SYMLINK and MKNOD.
pub(super) fn made(results: &[u8]) -> Result<(Fh, Attributes), Status> {
    match decode_results::<CreateOk<'_>, ChangeFailure>(results).unwrap() {
        Ok(ok) => {
            assert!(ok.dir.after.is_some());
            Ok((ok.object.unwrap().0.to_vec(), ok.attributes.unwrap()))
        }
        Err(failure) => Err(failure.status),
    }
}

pub(crate) fn shared(service: Arc<Service>) -> Arc<NfsShared> {
    let options = NfsOptions {
        server_owner: b"owner".to_vec(),
        server_scope: b"scope".to_vec(),
        implementation_domain: String::new(),
        implementation_name: String::new(),
        secret: [1; 16],
        clock_start_ns: 0,
        clock: || 0,
    };
    let verifier = Arc::new(WriteVerifier::new(7));
    let admission = Admission { own_uid: 0 };
    NfsShared::new(service, Arc::new(Nowhere), verifier, admission, options)
}

/// Drops jobs: the tests themselves run parked requests.
struct Nowhere;

impl Pool for Nowhere {
    fn submit(&self, _: Job) {
        panic!("nothing is submitted but by the handler");
    }
}

#[test]
fn every_procedure_answers() {
    let world = World::new();
    for procedure in Procedure::ALL {
        let args = bytes(&GetattrArgs { object: FileHandle(&[]) });
        let answer = world.send(procedure.number(), procedure, &args);
        if procedure == Procedure::Null {
            assert_eq!(answer, Some(Vec::new()));
        } else if let Some(results) = answer {
            assert_eq!(results[..4], Status::BadHandle.number().to_be_bytes(), "{procedure:?}");
        }
    }
    let none = call(&world.shared, world.sender.clone(), 1, 22, Args::plain(&[]));
    assert!(matches!(none, Answer::NoProcedure));
}

#[test]
fn attributes_and_rights_follow_the_mode() {
    let mut world = World::new();
    let file = world.file("f");
    let attributes = world.getattr(&file).unwrap();
    assert_eq!((attributes.mode, attributes.links, attributes.size), (0o644, 1, 0));
    assert_eq!(world.lookup(&world.root(), "f").unwrap(), (file.clone(), attributes));
    world.sender.who.cred = Cred::new(1001, 1001);
    let args = AccessArgs { object: FileHandle(&file), wanted: 0xffff_ffff };
    let results = world.call(Procedure::Access, &args);
    let ok = decode_results::<AccessOk, ObjectFailure>(&results).unwrap().unwrap();
    assert_eq!(ok.granted, dafs_wire::nfs3::access::READ);
    assert_eq!(ok.attributes, Some(attributes));
    assert_eq!(world.create(&world.root(), "g", guarded()), Err(Status::Acces));
}

pub(super) fn guarded() -> CreateHow {
    CreateHow::Guarded(SetAttributes::default())
}

/// Decodes a failure's status and body.
pub(super) fn failure<'a, F: Decode<'a>>(results: &'a [u8]) -> Failure<F> {
    decode_results::<NoFailureBody, F>(results).unwrap().unwrap_err()
}
