use super::{Power, SimDisk};
use dafs_dat::sim::SimRng;
use dafs_mem::VolatileSlice;
use dafs_store::{
    CreateHow, Cred, FileId, MemoryOptions, MemoryStore, OpenFile, OpenMode, SetAttr, Stability,
    Store, StoreError, Wait,
};
use std::collections::BTreeSet;

const ROOT: fn() -> Cred = || Cred::new(0, 0);
const BOTH: OpenMode = OpenMode { read: true, write: true };

struct World {
    disk: SimDisk,
    power: Power,
    store: super::DiskStore,
    top: FileId,
}

impl World {
    fn new() -> Self {
        let disk = SimDisk::new(MemoryStore::new(MemoryOptions::default()), false);
        let power = Power::new(|| {});
        let store = disk.store(power.plug());
        let top = store.root();
        Self { disk, power, store, top }
    }

    fn create(&self, name: &[u8]) -> (FileId, std::sync::Arc<dyn OpenFile>) {
        let attr = SetAttr::default();
        let made = self.store.create(&ROOT(), &self.top, name, CreateHow::Guarded, &attr, BOTH);
        let made = made.unwrap();
        (made.id, made.file)
    }

    fn restart(&mut self, seed: u64) {
        self.power.end();
        self.disk.cut_power(&mut SimRng::new(seed)).unwrap();
        self.store = self.disk.store(self.power.plug());
    }

    fn names(&self) -> BTreeSet<Vec<u8>> {
        let mut names = BTreeSet::new();
        let mut sink = |entry: dafs_store::DirEntry<'_>| names.insert(entry.name.to_vec());
        self.store.readdir(&ROOT(), &self.top, 0, false, &mut sink).unwrap();
        names
    }

    fn read(&self, id: &FileId) -> Vec<u8> {
        let file = self.store.open(&ROOT(), id, BOTH).unwrap();
        let mut bytes = vec![0xee; file.attr().unwrap().size as usize];
        file.read_at(&[VolatileSlice::from_mut(&mut bytes)], 0, Wait::Allowed).unwrap();
        bytes
    }
}

fn write(file: &dyn OpenFile, offset: u64, bytes: &[u8], stability: Stability) {
    let mut bytes = bytes.to_vec();
    let views = [VolatileSlice::from_mut(&mut bytes)];
    assert_eq!(file.write_at(&views, offset, stability, Wait::Allowed), Ok(bytes.len()));
}

#[test]
fn a_power_cut_undoes_names_from_some_point_on_and_keeps_what_is_stable() {
    let mut seen = BTreeSet::new();
    for seed in 0..50 {
        let mut world = World::new();
        let attr = SetAttr::default();
        world.create(b"a");
        let how = CreateHow::Exclusive([7; 8]);
        world.store.create(&ROOT(), &world.top, b"b", how, &attr, BOTH).unwrap();
        let (lost, _) = world.create(b"c");
        if seed % 2 == 0 {
            world.store.commit_names(&[lost]).unwrap();
        }
        world.create(b"d");
        world.store.remove(&ROOT(), &world.top, b"a").unwrap();
        world.restart(seed);
        let names: Vec<_> = world.names().into_iter().collect();
        assert!(seed % 2 == 1 || names.contains(&b"c".to_vec()));
        let gone = world.store.getattr(&lost) == Err(StoreError::Stale);
        assert_eq!(gone, !names.contains(&b"c".to_vec()));
        seen.insert(names);
    }
    let expected: BTreeSet<Vec<Vec<u8>>> = [&b"ab"[..], b"abc", b"abcd", b"bcd"]
        .map(|names| names.iter().map(|name| vec![*name]).collect())
        .into();
    assert_eq!(seen, expected);
}

#[test]
fn data_that_is_not_stable_is_kept_lost_or_torn_by_pages() {
    let mut seen = [BTreeSet::new(), BTreeSet::new()];
    let mut torn = 0;
    for seed in 0..100 {
        let mut world = World::new();
        let (id, file) = world.create(b"a");
        write(file.as_ref(), 0, &[1; 12288], Stability::Unstable);
        world.disk.settle();
        write(file.as_ref(), 0, &[2; 8192], Stability::Unstable);
        write(file.as_ref(), 8192, &[2; 4096], Stability::Data);
        file.set_size(16384).unwrap();
        world.restart(seed);
        let bytes = world.read(&id);
        assert!(bytes.len() == 12288 || bytes.len() == 16384, "{}", bytes.len());
        assert!(bytes[8192..12288].iter().all(|byte| *byte == 2));
        assert!(bytes[12288..].iter().all(|byte| *byte == 0));
        for (page, seen) in bytes[..8192].chunks(4096).zip(&mut seen) {
            let whole = page.iter().all(|byte| *byte == page[0]);
            torn += u32::from(!whole);
            if whole {
                seen.insert(page[0]);
            }
            let sectors = || page.chunks(512);
            assert!(sectors().all(|sector| sector == [1; 512] || sector == [2; 512]));
        }
    }
    assert_eq!(seen, [BTreeSet::from([1, 2]), BTreeSet::from([1, 2])]);
    assert!(torn > 0);
}

#[test]
fn a_file_removed_after_the_cut_comes_back_with_its_data() {
    let mut found = 0;
    for seed in 0..20 {
        let mut world = World::new();
        let (id, file) = world.create(b"a");
        write(file.as_ref(), 3, &[9; 5000], Stability::File);
        world.disk.settle();
        let change = world.store.getattr(&id).unwrap().change;
        drop(file);
        world.store.remove(&ROOT(), &world.top, b"a").unwrap();
        world.restart(seed);
        if let Ok(attr) = world.store.getattr(&id) {
            assert_eq!(world.read(&id), [&[0; 3][..], &[9; 5000]].concat());
            assert_eq!(attr.change, change);
            found += 1;
        }
    }
    assert!((1..20).contains(&found), "{found}");
}

#[test]
fn after_its_end_a_server_neither_sees_nor_changes_anything() {
    let mut world = World::new();
    let (id, file) = world.create(b"a");
    world.power.end_after(1);
    write(file.as_ref(), 0, &[1; 10], Stability::Unstable);
    let mut more = [2; 10];
    let more = [VolatileSlice::from_mut(&mut more)];
    let write = || file.write_at(&more, 0, Stability::Unstable, Wait::Allowed);
    assert_eq!(write(), Err(StoreError::Io));
    assert!(world.power.is_off());
    assert_eq!(world.store.getattr(&id), Err(StoreError::Io));
    world.store = world.disk.store(world.power.plug());
    // The process ended, not the machine: all its changes are there.
    assert_eq!(world.read(&id), [1; 10]);
    assert_eq!(write(), Err(StoreError::Io));
    assert_eq!(world.read(&id), [1; 10]);
}
