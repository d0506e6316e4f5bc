//! NFS clients and a file with a broken lock of a DAFS client, or with a fence, over every
//! transport. They get an error that an application understands, at once, until the file is
//! repaired.

use super::harness::{Served, existing, refused};
use dafs_client::{Client, FenceChange, FenceObject, File, LockRange, OpenOptions};
use dafs_dat::Address;
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_nfs_client::v3::Client3;
use dafs_nfs_client::{
    Connection, Create, Handle, Identity, Locked, NfsError, OpenFile, OpenOptions as NfsOpen,
    Options, Session, connect_over,
};
use dafs_rpc::client::{Options as RpcOptions, Port};
use dafs_wire::nfs3;
use dafs_wire::nfs4::{
    DENY_NONE, LockType, SetAttributes, ShareAccess, StableHow, Stateid, Status, Want,
};

const NAME: &[u8] = b"kept";
const CONTENT: &[u8] = b"half a record";

/// Opens a session of an NFSv4.1 client over TCP or over RDMA.
fn session(served: &Served, owner: &[u8], rdma: bool) -> (Session, Handle) {
    if !rdma {
        return served.v4(owner);
    }
    let adapter = IwarpAdapter::new(IwarpConfig::default()).unwrap();
    let port = Port::new(Box::new(adapter)).unwrap();
    let identity = Identity::sys("machine", 0, 0, &[]);
    let options = RpcOptions { identity, ..RpcOptions::default() };
    let connection = Connection::open_rdma(&port, &Address::Tcp(served.rdma), options).unwrap();
    let session = connect_over(connection, &Options::new(owner)).unwrap();
    let root = session.root().unwrap();
    (session, root)
}

/// Opens the file as a new instance of the client of this name.
fn node(served: &Served, name: &str) -> (Client, File) {
    let client = served.dafs_with(|options| options.client_id = Some(name.to_owned()));
    let file = client.open(NAME, &OpenOptions::read_write()).unwrap();
    (client, file)
}

/// Returns the status of each operation of NFSv4.1 that accesses the bytes of the file.
fn operations(session: &Session, root: &Handle, file: &OpenFile) -> Vec<(&'static str, Status)> {
    let range = dafs_nfs_client::LockRange { kind: LockType::Write, offset: 0, length: 4 };
    let size = SetAttributes { size: Some(3), ..SetAttributes::default() };
    let emptied = NfsOpen {
        access: ShareAccess::BOTH | Want::None.number(),
        create: Create::Unchecked(SetAttributes { size: Some(0), ..SetAttributes::default() }),
        ..NfsOpen::default()
    };
    let (handle, stateid) = (&file.handle, file.stateid);
    let lock = session.lock(file, b"owner", range).map(|locked| match locked {
        Locked::Held(stateid) => {
            let all = dafs_nfs_client::LockRange { offset: 0, length: u64::MAX, ..range };
            session.unlock(handle, stateid, all).unwrap();
        }
        Locked::Denied { .. } => panic!("there is nobody to wait for: {locked:?}"),
    });
    vec![
        ("READ", outcome(session.read(handle, stateid, 0, 4))),
        ("READ by nobody", outcome(session.read(handle, Stateid::ANONYMOUS, 0, 4))),
        ("WRITE", outcome(session.write(handle, stateid, 0, b"x", StableHow::Unstable))),
        (
            "WRITE large",
            outcome(session.write(handle, stateid, 0, &[0; 9000], StableHow::FileSync)),
        ),
        ("LOCK", outcome(lock)),
        ("SETATTR size", outcome(session.setattr(handle, stateid, &size))),
        ("OPEN that empties", outcome(session.open(root, NAME, &emptied))),
    ]
}

fn outcome<T: std::fmt::Debug>(result: Result<T, NfsError>) -> Status {
    result.map_or_else(|error| refused::<T>(Err(error)), |_| Status::Ok)
}

fn operations3(client: &Client3, file: &Handle) -> [(&'static str, nfs3::Status); 3] {
    let size = nfs3::SetAttributes { size: Some(3), ..nfs3::SetAttributes::default() };
    [
        ("READ", outcome3(client.read(file, 0, 4))),
        ("WRITE", outcome3(client.write(file, 0, b"x", nfs3::Stability::Unstable))),
        ("SETATTR size", outcome3(client.setattr(file, size))),
    ]
}

fn outcome3<T: std::fmt::Debug>(result: Result<T, NfsError>) -> nfs3::Status {
    match result {
        Ok(_) => nfs3::Status::Ok,
        Err(NfsError::Status3 { status, .. }) => status,
        Err(error) => panic!("{error}"),
    }
}

fn content(served: &Served) -> Vec<u8> {
    std::fs::read(served.path().join("kept")).unwrap()
}

#[test]
fn a_broken_lock_is_an_error_for_nfs_clients_until_it_is_repaired() {
    for rdma in [false, true] {
        let served = Served::new();
        std::fs::write(served.path().join("kept"), CONTENT).unwrap();
        let (nfs, root) = session(&served, b"nfs", rdma);
        let opened = nfs.open(&root, NAME, &existing(ShareAccess::BOTH, DENY_NONE)).unwrap();
        let (v3, root3) = served.v3();
        let handle3 = v3.lookup(&root3, NAME).unwrap();
        let (holder, kept) = node(&served, "node");
        kept.try_lock(&LockRange::exclusive().persist(true)).unwrap();
        // A client waits for a held lock, and the lock does not block reads.
        let range = dafs_nfs_client::LockRange { kind: LockType::Read, offset: 0, length: 4 };
        let denied = nfs.lock(&opened, b"owner", range).unwrap();
        assert!(matches!(denied, Locked::Denied { .. }), "{denied:?}");
        assert_eq!(nfs.read(&opened.handle, opened.stateid, 0, 4).unwrap().0, CONTENT[..4]);
        // The holder restarts.
        let (_again, mended) = node(&served, "node");
        for (operation, status) in operations(&nfs, &root, &opened) {
            let expected = if operation == "LOCK" { Status::LockRange } else { Status::Io };
            assert_eq!(status, expected, "{operation}, {rdma}");
        }
        for (procedure, status) in operations3(&v3, &handle3) {
            assert_eq!(status, nfs3::Status::Io, "{procedure}");
        }
        assert_eq!(content(&served), CONTENT, "{rdma}");
        // A read of its attributes does not access its bytes.
        assert_eq!(nfs.stat(&opened.handle).unwrap().size, CONTENT.len() as u64);
        mended.lock_for_repair(0, u64::MAX).unwrap();
        mended.unlock(0, u64::MAX).unwrap();
        for (operation, status) in operations(&nfs, &root, &opened) {
            assert_eq!(status, Status::Ok, "{operation}, {rdma}");
        }
        for (procedure, status) in operations3(&v3, &handle3) {
            assert_eq!(status, nfs3::Status::Ok, "{procedure}");
        }
        drop((holder, kept));
    }
}

#[test]
fn a_fence_is_lack_of_access_for_nfs_clients_until_it_is_lifted() {
    for rdma in [false, true] {
        let served = Served::new();
        std::fs::write(served.path().join("kept"), CONTENT).unwrap();
        let (nfs, root) = session(&served, b"nfs", rdma);
        let opened = nfs.open(&root, NAME, &existing(ShareAccess::BOTH, DENY_NONE)).unwrap();
        let (v3, root3) = served.v3();
        let handle3 = v3.lookup(&root3, NAME).unwrap();
        let manager = served.dafs();
        let handle = manager.lookup(&manager.root(), NAME).unwrap();
        let fence = |change| manager.set_fence(&handle, FenceObject::File, change).unwrap();
        fence(FenceChange::Set(&[b"nfs:another"]));
        for (operation, status) in operations(&nfs, &root, &opened) {
            assert_eq!(status, Status::Access, "{operation}, {rdma}");
        }
        for (procedure, status) in operations3(&v3, &handle3) {
            assert_eq!(status, nfs3::Status::Acces, "{procedure}");
        }
        assert_eq!(content(&served), CONTENT, "{rdma}");
        fence(FenceChange::Add(&[b"nfs:nfs"]));
        for (operation, status) in operations(&nfs, &root, &opened) {
            assert_eq!(status, Status::Ok, "{operation}, {rdma}");
        }
        assert_eq!(outcome3(v3.read(&handle3, 0, 4)), nfs3::Status::Acces);
        fence(FenceChange::Clear);
        assert_eq!(outcome3(v3.read(&handle3, 0, 4)), nfs3::Status::Ok);
    }
}
