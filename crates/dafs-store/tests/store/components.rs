//! The export of a data server: components by sealed handles, and only the bytes of this node.

use dafs_mem::{Mutex, VolatileSlice};
use dafs_store::node::*;
use dafs_store::*;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

const SECRET: [u8; 16] = [3; 16];
const FS: FsId = FsId([4; 16]);
const UNIT: u64 = 4096;

fn keys() -> DataKeys {
    DataKeys::new([9; 16], SECRET)
}

fn store(path: &Path, elsewhere: Arc<dyn Elsewhere>) -> ComponentStore {
    DirectoryNode::make(path, &[1; 16], 5).unwrap();
    let node = DirectoryNode::open(path, &[1; 16], 5, vec![]).unwrap();
    ComponentStore::new(Arc::new(node), keys(), FS, elsewhere)
}

/// A handle for the second of two nodes; the first stripe is on the first one.
fn handle() -> ComponentHandle {
    ComponentHandle {
        component: ComponentId([0xab; 16]),
        node: 5,
        place: 1,
        count: 2,
        first: 0,
        unit_bytes: NonZeroU32::new(UNIT as u32).unwrap(),
    }
}

fn open(store: &ComponentStore) -> ComponentFile {
    store.component(&handle().seal(&FS, &SECRET)).unwrap()
}

fn write(file: &ComponentFile, offset: u64, bytes: &[u8]) -> Result<usize> {
    let mut bytes = bytes.to_vec();
    let views = [VolatileSlice::from_mut(&mut bytes)];
    file.write_at(&views, offset, Stability::Data, Wait::Allowed)
}

fn read(file: &ComponentFile, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0xee; len];
    let count = file.read_at(&[VolatileSlice::from_mut(&mut bytes)], offset, Wait::Allowed)?;
    bytes.truncate(count);
    Ok(bytes)
}

#[test]
fn a_write_makes_the_component_and_other_nodes_bytes_are_not_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), Arc::new(Away));
    let file = open(&store);
    assert_eq!(read(&file, UNIT, 9).unwrap(), b"", "nothing was written yet");
    assert_eq!(file.attr().unwrap().size, 0);
    assert_eq!(write(&file, UNIT + 5, b"here"), Ok(4));
    assert_eq!(read(&file, UNIT + 4, 9).unwrap(), b"\0here");
    assert_eq!(file.attr().unwrap().size, UNIT + 9);
    file.commit(0, 0).unwrap();
    assert_eq!(store.indirect_bytes(), 0);
    assert_eq!(write(&file, 0, b"there"), Err(StoreError::Busy));
    assert_eq!(read(&file, 2 * UNIT, 3), Err(StoreError::Busy));
    assert_eq!(write(&file, 2 * UNIT - 2, b"both"), Ok(2), "as far as it is here");
    assert_eq!(file.attr().unwrap().size, 2 * UNIT);
    assert_eq!(store.indirect_bytes(), 5 + 3 + 2);
    assert_eq!(file.set_size(0), Err(StoreError::NotSupported));
    let end = write(&file, u64::MAX, b"xx");
    assert!(matches!(end, Err(StoreError::FileTooBig | StoreError::Busy)), "{end:?}");
}

#[test]
fn reads_without_waiting_say_when_they_would() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), Arc::new(Away));
    let file = open(&store);
    let mut bytes = [0; 4];
    let views = [VolatileSlice::from_mut(&mut bytes)];
    let not_open = file.read_at(&views, UNIT, Wait::Never);
    assert_eq!(not_open, Err(StoreError::WouldBlock));
    write(&file, UNIT, b"data").unwrap();
    match file.read_at(&views, UNIT, Wait::Never) {
        Ok(4) => assert_eq!(&bytes, b"data"),
        other => assert_eq!(other, Err(StoreError::WouldBlock)),
    }
}

#[test]
fn only_handles_for_this_node_lead_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), Arc::new(Away));
    let other = ComponentHandle { node: 6, ..handle() };
    let foreign = [
        other.seal(&FS, &SECRET),
        handle().seal(&FS, &[9; 16]),
        handle().seal(&FsId([9; 16]), &SECRET),
        FileId([0xc1; FILE_ID_BYTES]),
    ];
    for id in foreign {
        assert_eq!(store.component(&id).err(), Some(StoreError::BadHandle));
    }
    let store = DataStore::new(Arc::new(store));
    for id in foreign {
        assert_eq!(store.getattr(&id).err(), Some(StoreError::BadHandle));
    }
    let root = store.root();
    assert_eq!(store.getattr(&root).unwrap().kind, Kind::Directory);
    let found = store.lookup(&Cred::new(0, 0), &root, b"node");
    assert_eq!(found.err(), Some(StoreError::NotFound));
}

/// Another node, which records the requests.
#[derive(Default)]
struct Other(Mutex<Vec<(u64, usize)>>);

impl Elsewhere for Other {
    fn read(
        &self,
        _handle: &ComponentHandle,
        views: &[VolatileSlice<'_>],
        offset: u64,
    ) -> Result<usize> {
        let len = views.iter().map(VolatileSlice::len).sum();
        views.iter().for_each(|view| view.fill(b'o'));
        self.0.lock().push((offset, len));
        Ok(len)
    }
    fn write(
        &self,
        _handle: &ComponentHandle,
        views: &[VolatileSlice<'_>],
        offset: u64,
        _stability: Stability,
    ) -> Result<usize> {
        let len = views.iter().map(VolatileSlice::len).sum();
        self.0.lock().push((offset, len));
        Ok(len)
    }
}

#[test]
fn bytes_of_other_nodes_come_from_there_and_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let other = Arc::new(Other::default());
    let store = store(dir.path(), other.clone());
    let file = open(&store);
    let len = 3 * UNIT as usize;
    assert_eq!(write(&file, 10, &vec![b'x'; len]), Ok(len));
    let asked: Vec<_> = other.0.lock().drain(..).collect();
    assert_eq!(asked, [(10, UNIT as usize - 10), (2 * UNIT, UNIT as usize)]);
    assert_eq!(store.indirect_bytes(), 2 * UNIT - 10);
    let bytes = read(&file, UNIT - 1, UNIT as usize + 2).unwrap();
    assert_eq!((bytes[0], bytes[1], bytes[bytes.len() - 1]), (b'o', b'x', b'o'));
    assert_eq!(file.seek(0, SeekWhat::Data), Err(StoreError::NotSupported));
    // The end of one part must not hide data in the next.
    let unit = UNIT as usize;
    assert_eq!(file.served_bytes(0, 77), Ok(77));
    assert_eq!(file.served_bytes(UNIT - 5, 2 * unit), Ok(5));
    assert_eq!(file.served_bytes(UNIT, 2 * unit), Ok(unit));
    assert_eq!(file.served_bytes(2 * UNIT + 1, 2 * unit), Ok(unit - 1));
}

/// Another node that is unreachable.
struct Away;

impl Elsewhere for Away {
    fn read(&self, _: &ComponentHandle, _: &[VolatileSlice<'_>], _: u64) -> Result<usize> {
        Err(StoreError::Busy)
    }
    fn write(
        &self,
        _: &ComponentHandle,
        _: &[VolatileSlice<'_>],
        _: u64,
        _: Stability,
    ) -> Result<usize> {
        Err(StoreError::Busy)
    }
}

#[test]
fn an_error_behind_other_bytes_is_no_hole() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), Arc::new(Away));
    let file = open(&store);
    let unit = UNIT as usize;
    assert_eq!(write(&file, UNIT, &vec![b'x'; unit + 5]), Ok(unit), "writes say how far they got");
    assert_eq!(read(&file, UNIT, unit).unwrap(), vec![b'x'; unit]);
    assert_eq!(read(&file, UNIT, unit + 5), Err(StoreError::Busy));
}

#[test]
fn a_node_drops_grants_when_no_request_uses_them() {
    let dir = tempfile::tempdir().unwrap();
    DirectoryNode::make(dir.path(), &[1; 16], 5).unwrap();
    let node = Arc::new(DirectoryNode::open(dir.path(), &[1; 16], 5, vec![]).unwrap());
    let store = ComponentStore::new(node.clone(), keys(), FS, Arc::new(Away));
    let file = open(&store);
    let used = [DataUse::begin(&file), DataUse::begin(&file)];
    node.drop_grants(&ComponentId([1; 16])).unwrap();
    let component = handle().component;
    assert_eq!(node.drop_grants(&component), Err(StoreError::Busy));
    std::thread::scope(|scope| {
        let forgets = scope.spawn(|| node.drop_grants(&component));
        drop(used);
        assert_eq!(forgets.join().unwrap(), Ok(()));
    });
}
