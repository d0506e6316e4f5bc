//! A data server: sessions, and I/O on components with the metadata server's authorisation.

use crate::common::*;
use dafs_mem::{Site, VolatileSlice};
use dafs_rpc::{AcceptStatus, Credential, Handled, LocalCall, Rejection, VersionRange};
use dafs_service::{
    Admits, DataRole, Export, ExportOptions, Flavour, ForeignStates, ForeignUse, Namespace,
    ServiceError, StateId, StateRef,
};
use dafs_store::node::{
    ComponentHandle, ComponentId, ComponentStore, DirectoryNode, Elsewhere, component_store_fs,
};
use dafs_store::{DataFiles, DataKeys, FileId, FsId, Stability, StoreError};
use dafs_wire::nfs4::*;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

const SECRET: [u8; 16] = [3; 16];
const UNIT: u64 = 4096;

/// A question to the metadata server: owner, state-id, true for writing.
type Asked = (Vec<u8>, StateRef, bool);

/// A metadata server with prescribed answers.
struct Judge {
    verdict: Mutex<Result<Option<Duration>, ServiceError>>,
    size: Mutex<Result<u64, StoreError>>,
    asked: Mutex<Vec<Asked>>,
}

impl ForeignStates for Judge {
    fn check(&self, wanted: &ForeignUse<'_>) -> dafs_service::Result<Option<Duration>> {
        assert_eq!(wanted.component, handle(5));
        self.asked.lock().unwrap().push((wanted.owner.to_vec(), wanted.state, wanted.write));
        *self.verdict.lock().unwrap()
    }

    fn size(&self, component: &FileId) -> Result<u64, StoreError> {
        let component = ComponentHandle::open(component, &fs(), &SECRET).unwrap();
        assert_eq!(component.component, ComponentId([0xab; 16]));
        *self.size.lock().unwrap()
    }
}

/// The file's content on the other node.
#[derive(Default)]
struct Other(Mutex<Vec<u8>>);

impl Elsewhere for Other {
    fn read(
        &self,
        handle: &ComponentHandle,
        views: &[VolatileSlice<'_>],
        offset: u64,
    ) -> Result<usize, StoreError> {
        assert_eq!(handle.component, ComponentId([0xab; 16]));
        let file = self.0.lock().unwrap();
        let there = file.get(offset as usize..).unwrap_or_default();
        Ok(views[0].copy_from(there, Site::Sim))
    }

    fn write(
        &self,
        handle: &ComponentHandle,
        views: &[VolatileSlice<'_>],
        offset: u64,
        _stability: Stability,
    ) -> Result<usize, StoreError> {
        assert_eq!(handle.component, ComponentId([0xab; 16]));
        let (bytes, offset) = (views[0].to_vec(Site::Sim), offset as usize);
        let mut file = self.0.lock().unwrap();
        let end = file.len().max(offset + bytes.len());
        file.resize(end, 0);
        file[offset..offset + bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }
}

fn fs() -> FsId {
    Export::fs_of(&component_store_fs(&SECRET), "")
}

/// Returns a handle for the second of two nodes, where the first stripe lies on the first one.
fn handle(node: u32) -> Vec<u8> {
    let handle = ComponentHandle {
        component: ComponentId([0xab; 16]),
        node,
        place: 1,
        count: 2,
        first: 0,
        unit_bytes: NonZeroU32::new(UNIT as u32).unwrap(),
    };
    [&fs().0[..], &handle.seal(&fs(), &SECRET).0[..]].concat()
}

struct Rig {
    world: World,
    session: Session,
    judge: Arc<Judge>,
    components: Arc<ComponentStore>,
    other: Arc<Other>,
    _dir: TempDir,
}

const STATE: Stateid = Stateid { seqid: 3, other: [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0] };

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        DirectoryNode::make(dir.path(), &[1; 16], 5).unwrap();
        let node = Arc::new(DirectoryNode::open(dir.path(), &[1; 16], 5, vec![]).unwrap());
        let other = Arc::new(Other::default());
        let keys = DataKeys::new(SECRET, SECRET);
        let components = Arc::new(ComponentStore::new(node, keys, fs(), other.clone()));
        let judge = Arc::new(Judge {
            verdict: Mutex::new(Ok(None)),
            size: Mutex::new(Ok(0)),
            asked: Mutex::default(),
        });
        let role = DataRole { files: components.clone(), states: judge.clone() };
        let mut world = World::data_server(role);
        let exchanged = world.exchange(0, b"client", 1);
        let which =
            ExchangeFlags::USE_NON_PNFS | ExchangeFlags::USE_PNFS_MDS | ExchangeFlags::USE_PNFS_DS;
        assert_eq!(exchanged.flags & which, ExchangeFlags::USE_PNFS_DS, "and nothing else");
        let args = create_session(exchanged.client_id, exchanged.sequence_id);
        let session = world.session(1, args);
        Self { world, session, judge, components, other, _dir: dir }
    }

    fn run(&mut self, op: Op<'_>) -> Answer {
        let handle = handle(5);
        let putfh = Op::Putfh(PutfhArgs { handle: &handle });
        self.world.next(&mut self.session, &[putfh, op])
    }

    fn write(
        &mut self,
        offset: u64,
        data: &[u8],
        stable: StableHow,
    ) -> Result<WriteResult, Status> {
        let answer =
            self.run(Op::Write(WriteArgs { stateid: STATE, offset, stable, data: data.into() }));
        if answer.status() != Status::Ok {
            return Err(answer.status());
        }
        let ResultBody::Write(result) = answer.body(2) else { panic!() };
        Ok(result)
    }

    fn read(&mut self, offset: u64, count: u32) -> Result<(Vec<u8>, bool), Status> {
        let answer = self.run(Op::Read(ReadArgs { stateid: STATE, offset, count }));
        if answer.status() != Status::Ok {
            return Err(answer.status());
        }
        let ResultBody::Read(result) = answer.body(2) else { panic!() };
        Ok((result.data.here().unwrap().to_vec(), result.eof))
    }

    fn say(&self, verdict: Result<Option<Duration>, ServiceError>) {
        *self.judge.verdict.lock().unwrap() = verdict;
    }

    fn set_size(&self, size: Result<u64, StoreError>) {
        *self.judge.size.lock().unwrap() = size;
    }
}

#[test]
fn data_is_moved_by_leave_of_the_metadata_server() {
    let mut rig = Rig::new();
    let written = rig.write(UNIT, b"stripe", StableHow::Unstable).unwrap();
    assert_eq!((written.count, written.committed), (6, StableHow::Unstable));
    assert_eq!(rig.read(UNIT, 6), Ok((b"stripe".to_vec(), false)));
    let state = StateRef { id: StateId(0x0102_0304_0506_0708), seqid: 3 };
    let asked: Vec<_> = rig.judge.asked.lock().unwrap().drain(..).collect();
    assert_eq!(asked, [(b"client".to_vec(), state, true), (b"client".to_vec(), state, false)]);
    for (verdict, status) in [
        (ServiceError::BadStateId, Status::BadStateId),
        (ServiceError::Expired, Status::Expired),
        (ServiceError::OldStateId, Status::OldStateId),
        (ServiceError::OpenMode, Status::OpenMode),
        (ServiceError::Delay, Status::Delay),
        (ServiceError::BadLayout, Status::PnfsNoLayout),
    ] {
        rig.say(Err(verdict));
        assert_eq!(rig.write(UNIT, b"XX", StableHow::Unstable).err(), Some(status));
        assert_eq!(rig.read(UNIT, 6), Err(status));
    }
    rig.say(Ok(None));
    assert_eq!(rig.read(UNIT, 6), Ok((b"stripe".to_vec(), false)), "nothing was written");
}

/// A layout leads to data servers, whose exports have flavours of their own.
#[test]
fn an_export_that_demands_a_proof_takes_no_claim_at_its_data_servers() {
    let mut rig = Rig::new();
    rig.write(UNIT, b"stripe", StableHow::Unstable).unwrap();
    let asked = rig.judge.asked.lock().unwrap().len();
    let admits = Admits { flavours: vec![Flavour::Krb5p], ..Admits::default() };
    let options = ExportOptions { admits, ..ExportOptions::default() };
    let store = Arc::new(dafs_store::DataStore::new(rig.components.clone()));
    let namespace = Namespace::new(vec![Export::new("", store, options)]).unwrap();
    rig.world.shared.service.replace_namespace(namespace);
    assert_eq!(rig.read(UNIT, 6), Err(Status::WrongSec));
    assert_eq!(rig.write(UNIT, b"XX", StableHow::Unstable).err(), Some(Status::WrongSec));
    assert_eq!(rig.judge.asked.lock().unwrap().len(), asked, "nothing was asked for");
}

#[test]
fn a_write_that_may_have_been_given_up_ends_its_session() {
    let mut rig = Rig::new();
    let (second, unstable) = (1_000_000_000, StableHow::Unstable);
    rig.world.tick(5 * second);
    rig.say(Ok(Some(Duration::from_secs(5))));
    rig.write(UNIT, b"stripe", unstable).unwrap();
    rig.say(Ok(Some(Duration::from_secs(4))));
    assert_eq!(rig.read(UNIT, 6), Ok((b"stripe".to_vec(), false)), "nothing comes of a late read");
    assert_eq!(rig.write(UNIT, b"X", unstable).err(), Some(Status::DeadSession));
    assert_eq!(rig.write(UNIT, b"X", unstable).err(), Some(Status::BadSession));
    let exchanged = rig.world.exchange(0, b"client", 1);
    let args = create_session(exchanged.client_id, exchanged.sequence_id);
    rig.session = rig.world.session(1, args);
    assert_eq!(rig.read(UNIT, 6), Ok((b"stripe".to_vec(), false)), "nothing was written");
    rig.write(UNIT, b"S", unstable).unwrap();
    assert_eq!(rig.read(UNIT, 6), Ok((b"Stripe".to_vec(), false)));
}

#[test]
fn the_size_of_a_file_is_never_promised() {
    let mut rig = Rig::new();
    for (asked, told) in [
        (StableHow::Unstable, StableHow::Unstable),
        (StableHow::DataSync, StableHow::DataSync),
        (StableHow::FileSync, StableHow::DataSync),
    ] {
        assert_eq!(rig.write(UNIT, b"x", asked).unwrap().committed, told);
    }
    let commit = Op::Commit(CommitArgs { offset: 0, count: 0 });
    let answer = rig.run(commit);
    assert_eq!(answer.status(), Status::Ok);
    let ResultBody::Commit(result) = answer.body(2) else { panic!() };
    assert_eq!(result.verifier, rig.write(UNIT, b"x", StableHow::Unstable).unwrap().verifier);
}

#[test]
fn a_component_that_ends_before_the_file_has_a_hole_there() {
    let mut rig = Rig::new();
    rig.write(UNIT, b"abc", StableHow::Unstable).unwrap();
    rig.set_size(Ok(UNIT + 3));
    assert_eq!(rig.read(UNIT, 9), Ok((b"abc".to_vec(), true)));
    rig.set_size(Ok(UNIT + 6));
    assert_eq!(rig.read(UNIT, 9), Ok((b"abc\0\0\0".to_vec(), true)));
    rig.set_size(Ok(9 * UNIT));
    assert_eq!(rig.read(UNIT + 1, 5), Ok((b"bc\0\0\0".to_vec(), false)));
    assert_eq!(rig.read(3 * UNIT, 4), Ok((vec![0; 4], false)));
    rig.set_size(Ok(0));
    assert_eq!(rig.read(UNIT, 9), Ok((b"abc".to_vec(), true)), "not committed yet");
    assert_eq!(rig.read(UNIT + 50, 9), Ok((vec![], true)));
    rig.set_size(Err(StoreError::Busy));
    assert_eq!(rig.read(UNIT, 9), Err(Status::Delay), "nobody knows");
    assert_eq!(rig.read(UNIT, 3), Ok((b"abc".to_vec(), false)));
}

#[test]
fn other_nodes_bytes_are_served_and_counted() {
    let mut rig = Rig::new();
    rig.set_size(Ok(9 * UNIT));
    assert_eq!(rig.write(0, b"there", StableHow::Unstable).unwrap().count, 5);
    assert_eq!(*rig.other.0.lock().unwrap(), b"there");
    assert_eq!(rig.read(0, 5), Ok((b"there".to_vec(), false)));
    assert_eq!(rig.components.indirect_bytes(), 10);
    // One part at a time.
    let both = rig.write(2 * UNIT - 2, b"both", StableHow::Unstable).unwrap();
    assert_eq!(both.count, 2);
    assert_eq!(rig.write(2 * UNIT, b"th", StableHow::Unstable).unwrap().count, 2);
    assert_eq!(rig.read(2 * UNIT - 2, 100), Ok((b"bo".to_vec(), false)), "no zeros for the rest");
    let (rest, eof) = rig.read(2 * UNIT, 100).unwrap();
    assert_eq!((&rest[..2], rest.len(), eof), (&b"th"[..], 100, false));
    assert!(rest[2..].iter().all(|&byte| byte == 0), "a hole there");
    // A short component is queried twice, because it may have been written meanwhile.
    assert_eq!(rig.components.indirect_bytes(), 10 + 2 + 100 + 98);
}

#[test]
fn a_data_server_refuses_other_operations() {
    let mut rig = Rig::new();
    let mut status = |op| rig.run(op).status();
    let refused = [
        Op::Putrootfh(PutrootfhArgs),
        Op::Getfh(GetfhArgs),
        Op::Savefh(SavefhArgs),
        Op::Lookup(LookupArgs { name: b"x" }),
        Op::Remove(RemoveArgs { name: b"x" }),
        Op::Access(AccessArgs { access: Access::READ }),
        Op::Close(CloseArgs { seqid: 0, stateid: STATE }),
        Op::TestStateid(TestStateidArgs { stateids: vec![STATE] }),
    ];
    for op in refused {
        assert_eq!(status(op.clone()), Status::NotSupp, "{op:?}");
    }
    let getattr = Op::Getattr(GetattrArgs { request: Attr::set(&[Attr::Type, Attr::Size]) });
    assert_eq!(status(getattr), Status::Ok);
    assert_eq!(rig.judge.asked.lock().unwrap().len(), 0);
    let foreign = handle(6);
    let read = Op::Read(ReadArgs { stateid: STATE, offset: 0, count: 1 });
    let ops = [Op::Putfh(PutfhArgs { handle: &foreign }), read];
    let answer = rig.world.next(&mut rig.session, &ops);
    assert_eq!(answer.status(), Status::BadHandle);
    for (program, version, reject) in [
        (100_003, 3, AcceptStatus::ProgramMismatch(VersionRange { low: 4, high: 4 })),
        (100_005, 3, AcceptStatus::ProgramUnavailable),
    ] {
        let call = LocalCall {
            xid: 9,
            program,
            version,
            procedure: 0,
            credential: Credential::None,
            args: b"",
            now_ns: 0,
        };
        let handled = rig.world.reactor.call(&mut rig.world.handler, 1, call);
        let Handled::Reject(rejection) = handled else { panic!() };
        assert_eq!(rejection, Rejection::Accept(reject));
    }
}
