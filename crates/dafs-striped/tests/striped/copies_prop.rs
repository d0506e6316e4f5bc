//! Files with two copies on three nodes against a model, with faults at every step. Nodes become
//! unreachable, come back and lose unstable data. The metadata server dies. Clients write to the
//! copies by layouts and die between them.

use crate::common::nodes::SimNode;
use crate::common::striped::{Surroundings, as_nodes, open_copies};
use dafs_mem::{Mutex, VolatileSlice};
use dafs_store::node::{ComponentId, Node};
use dafs_store::*;
use dafs_striped::{Leaving, StripedStore};
use dafs_testkit::stores::{READ_WRITE, me, read};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

const SIZE: u64 = 6000;

/// * `Leave`: an administrator marks a node as being emptied, or withdraws the mark.
/// * `Move`: the thread that empties nodes works on the file.
/// * `Disk`: a node comes back with an empty disk, if no file needs its data.
/// * `Client`: a client writes to some of the copies and commits, or dies.
#[derive(Debug, Clone)]
enum Step {
    Write { offset: u64, len: usize, seed: u8, stability: Stability },
    Commit,
    Truncate(u64),
    Read { offset: u64, len: usize },
    Away(usize),
    Back(usize),
    Lose(usize),
    Die { node: usize, calls: u32 },
    Reopen,
    Repair { pieces: usize },
    Leave(u32, bool),
    Move,
    Disk(usize),
    Client { offset: u64, len: usize, seed: u8, copies: usize, dies: bool },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (offset, len) = (0..SIZE, 1..2500_usize);
    let stability = prop_oneof![Just(Stability::Unstable), Just(Stability::Data)];
    let step = prop_oneof![
        6 => (offset.clone(), len.clone(), 1..=u8::MAX, stability)
            .prop_map(|(offset, len, seed, stability)| Step::Write { offset, len, seed, stability }),
        3 => Just(Step::Commit),
        1 => (0..SIZE).prop_map(Step::Truncate),
        4 => (offset.clone(), len.clone()).prop_map(|(offset, len)| Step::Read { offset, len }),
        3 => (0..3_usize).prop_map(Step::Away),
        3 => (0..3_usize).prop_map(Step::Back),
        1 => (0..3_usize).prop_map(Step::Lose),
        2 => (0..3_usize, 0..4_u32).prop_map(|(node, calls)| Step::Die { node, calls }),
        1 => Just(Step::Reopen),
        3 => (0..4_usize).prop_map(|pieces| Step::Repair { pieces }),
        1 => (1..=3_u32, any::<bool>()).prop_map(|(node, leaves)| Step::Leave(node, leaves)),
        3 => Just(Step::Move),
        1 => (0..3_usize).prop_map(Step::Disk),
        2 => (offset, len, 1..=u8::MAX, 0..3_usize, any::<bool>()).prop_map(
            |(offset, len, seed, copies, dies)| Step::Client { offset, len, seed, copies, dies }
        ),
    ];
    proptest::collection::vec(step, 1..40)
}

/// The values that a byte may have.
#[derive(Debug, Clone, Default)]
struct Cell {
    /// The last acknowledged value.
    latest: u8,
    /// The values that may come back while the last one is not known to be stable.
    before: Vec<u8>,
    /// The values that were written and never acknowledged.
    maybe: Vec<u8>,
}

impl Cell {
    fn write(&mut self, value: u8) {
        let old = std::mem::replace(&mut self.latest, value);
        self.before.push(old);
        // An unacknowledged value may come back only if this write is lost.
        self.before.append(&mut self.maybe);
    }

    fn allows(&self, value: u8, lost: bool) -> bool {
        value == self.latest || self.maybe.contains(&value) || lost && self.before.contains(&value)
    }
}

/// Takes the place of the service, which knows if clients hold layouts for writing.
struct Service {
    store: Arc<Mutex<Weak<StripedStore>>>,
    writes: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    fn new() -> Self {
        let store: Arc<Mutex<Weak<StripedStore>>> = Arc::default();
        let (writes, stop): (Arc<AtomicBool>, Arc<AtomicBool>) = Default::default();
        let (own, busy, over) = (store.clone(), writes.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::SeqCst) {
                if let Some(store) = own.lock().upgrade() {
                    let none = || !busy.load(Ordering::SeqCst);
                    store.layouts().unwrap().take_write_recalls(&mut |_, _| none());
                }
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        Self { store, writes, stop, thread: Some(thread) }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = self.thread.take().unwrap().join();
    }
}

struct World {
    dir: TempDir,
    nodes: Vec<Arc<SimNode>>,
    store: Option<Arc<StripedStore>>,
    service: Service,
    file: Option<Arc<dyn OpenFile>>,
    id: FileId,
    cells: Vec<Cell>,
    /// The least size of the file.
    size: u64,
    /// The writes to be repeated if unstable data is lost.
    unstable: Vec<(u64, usize)>,
    /// True if unstable data may be lost, reported or not.
    lost: bool,
    around: Arc<Surroundings>,
    /// The number of reports of lost data when all was stable last.
    told: usize,
    reopened: bool,
}

fn fill(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| seed.wrapping_add((at / 16) as u8)).collect()
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("meta")).unwrap();
        let nodes: Vec<_> = (1..=3).map(SimNode::new).collect();
        let mut world = Self {
            dir,
            nodes,
            store: None,
            service: Service::new(),
            file: None,
            id: FileId([0; FILE_ID_BYTES]),
            cells: Vec::new(),
            size: 0,
            unstable: Vec::new(),
            lost: false,
            around: Arc::default(),
            told: 0,
            reopened: false,
        };
        world.open();
        let (how, none) = (CreateHow::Guarded, SetAttr::default());
        let store = world.store();
        let made = store.create(&me(), &Store::root(store), b"f", how, &none, READ_WRITE).unwrap();
        (world.id, world.file) = (made.id, Some(made.file));
        world
    }

    fn open(&mut self) {
        let nodes = as_nodes(&self.nodes);
        let store = Arc::new(open_copies(self.dir.path(), nodes, 2, &self.around));
        *self.service.store.lock() = Arc::downgrade(&store);
        self.store = Some(store);
    }

    fn store(&self) -> &StripedStore {
        self.store.as_ref().unwrap()
    }

    fn file(&self) -> &dyn OpenFile {
        &**self.file.as_ref().unwrap()
    }

    fn all_back(&self) {
        self.nodes.iter().for_each(|node| node.set_away(false));
    }

    fn layouts(&self) -> &dyn Layouts {
        self.store().layouts().unwrap()
    }

    /// Records a write that was acknowledged, or that may have taken effect.
    fn note(&mut self, offset: u64, bytes: &[u8], done: bool) {
        let (from, end) = (offset as usize, offset as usize + bytes.len());
        self.cells.resize_with(self.cells.len().max(end), Cell::default);
        for (cell, byte) in self.cells[from..end].iter_mut().zip(bytes) {
            if done { cell.write(*byte) } else { cell.maybe.push(*byte) }
        }
        if done {
            self.size = self.size.max(end as u64);
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8], stability: Stability) -> Result<usize> {
        let mut data = bytes.to_vec();
        let views = [VolatileSlice::from_mut(&mut data)];
        let written = self.file().write_at(&views, offset, stability, Wait::Allowed);
        if stability == Stability::Unstable || written.is_err() {
            self.note(offset, bytes, written.is_ok());
        } else {
            self.note(offset, bytes, true);
            // A stable write cannot be undone; earlier data around it may be lost.
            let range = offset as usize..offset as usize + bytes.len();
            self.cells[range].iter_mut().for_each(|cell| cell.before.clear());
        }
        if written.is_ok() && stability == Stability::Unstable {
            self.unstable.push((offset, bytes.len()));
        }
        written
    }

    /// Acts like a client that was told of lost data: repeats its writes until they are stable.
    fn make_stable(&mut self) {
        self.all_back();
        for _ in 0..20 {
            let again = std::mem::take(&mut self.unstable);
            for &(offset, len) in &again {
                let range = offset as usize..offset as usize + len;
                let mut data: Vec<_> = self.cells[range].iter().map(|cell| cell.latest).collect();
                let views = [VolatileSlice::from_mut(&mut data)];
                self.file().write_at(&views, offset, Stability::Unstable, Wait::Allowed).unwrap();
            }
            if self.file().commit(0, 0).is_ok() {
                return self.is_stable();
            }
            self.unstable = again;
        }
        panic!("it does not become stable");
    }

    fn is_stable(&mut self) {
        self.cells.iter_mut().for_each(|cell| cell.before.clear());
        self.unstable.clear();
        (self.lost, self.reopened) = (false, false);
        self.told = self.around.lost();
    }

    fn check(&self, offset: u64, bytes: &[u8], wanted: usize) {
        let there = self.size.saturating_sub(offset).min(wanted as u64) as usize;
        assert!(bytes.len() >= there, "{} bytes of {there}", bytes.len());
        for (at, byte) in (offset as usize..).zip(bytes) {
            let cell = &self.cells[at];
            assert!(cell.allows(*byte, self.lost), "byte {at} is {byte}: {cell:?}, {}", self.lost);
        }
    }

    /// A client that writes to copies by a layout.
    fn client(&mut self, offset: u64, bytes: &[u8], copies: usize, dies: bool) {
        self.service.writes.store(true, Ordering::SeqCst);
        self.client_writes(offset, bytes, copies, dies);
        self.service.writes.store(false, Ordering::SeqCst);
    }

    fn client_writes(&mut self, offset: u64, bytes: &[u8], copies: usize, dies: bool) {
        let Ok(Some(placement)) = self.layouts().placement(&self.id, true) else { return };
        let Spread::Copies(told) = &placement.spread else { panic!("the store has copies") };
        let component = ComponentId(*told[0].handle[32..].first_chunk().unwrap());
        let of = |copy: &FileCopy| {
            let device = self.layouts().device(&copy.device).unwrap();
            self.nodes[usize::from(device.servers[0].tcp[0].port()) - 7001].clone()
        };
        let nodes: Vec<_> = told.iter().map(of).collect();
        let mut data = bytes.to_vec();
        let views = [VolatileSlice::from_mut(&mut data)];
        let count = if dies { copies } else { nodes.len() };
        let mut failed = Vec::new();
        for (node, copy) in nodes.iter().zip(told).take(count) {
            if node.write(&component, &views, offset, Stability::Data).is_err() {
                failed.push(copy.device);
            }
        }
        let end = offset + bytes.len() as u64;
        let good = !dies
            && failed.len() < nodes.len()
            && failed.iter().all(|device| {
                self.layouts().report(&self.id, device, DeviceTrouble::Failed).is_ok()
            })
            && self.layouts().commit(&self.id, Some(end)).is_ok();
        self.note(offset, bytes, good);
        if good {
            let range = offset as usize..end as usize;
            self.cells[range].iter_mut().for_each(|cell| cell.before.clear());
        } else {
            // Retries until it succeeds, as the service does.
            for _ in 0..10 {
                if self.layouts().recover_size(&self.id).is_ok() {
                    break;
                }
                self.nodes.iter().for_each(|node| node.set_away(false));
            }
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Write { offset, len, seed, stability } => {
                let written = self.write(offset, &fill(len, seed), stability);
                assert!(matches!(written, Ok(_) | Err(StoreError::Busy)), "{written:?}");
            }
            Step::Commit => match self.file().commit(0, 0) {
                // The write verifier differs from that of the writes.
                Ok(()) if self.reopened || self.told != self.around.lost() => {
                    self.make_stable();
                }
                Ok(()) => self.is_stable(),
                Err(error) => {
                    assert_eq!(error, StoreError::Busy);
                    self.make_stable();
                }
            },
            Step::Truncate(size) => {
                self.make_stable();
                self.file().set_size(size).unwrap();
                self.cells.resize_with(size as usize, Cell::default);
                self.size = size;
            }
            Step::Read { offset, len } => match read(self.file(), offset, len) {
                Ok(bytes) => self.check(offset, &bytes, len),
                Err(error) => assert_eq!(error, StoreError::Busy),
            },
            Step::Away(node) => self.nodes[node].set_away(true),
            Step::Back(node) => self.nodes[node].set_away(false),
            Step::Lose(node) => {
                self.nodes[node].lose_unstable();
                self.lost = true;
            }
            Step::Die { node, calls } => self.nodes[node].die_after(calls),
            Step::Reopen => {
                (self.lost, self.reopened) = (true, true);
                drop(self.file.take());
                *self.service.store.lock() = Weak::new();
                drop(self.store.take());
                self.open();
                self.file = Some(self.store().open(&me(), &self.id, READ_WRITE).unwrap());
            }
            Step::Repair { pieces } => {
                let left = std::cell::Cell::new(pieces);
                self.store().repair(Duration::ZERO, &|bytes| {
                    left.set(left.get().saturating_sub(usize::from(bytes > 0)));
                    left.get() > 0
                });
            }
            Step::Leave(node, leaves) => match self.store().set_leaving(node, leaves) {
                Ok(()) => {}
                // Two nodes must stay.
                Err(error) => assert_eq!((error, leaves), (StoreError::Invalid, true)),
            },
            Step::Move => match self.store().leave_nodes(&self.id) {
                Ok(_) => self.store().sweep(),
                Err(error) => assert_eq!(error, StoreError::Busy),
            },
            Step::Disk(node) => {
                let number = node as u32 + 1;
                self.nodes[node].set_away(true);
                self.store().set_lost(number, true).unwrap();
                match self.store().give_up_lost(&self.id, number) {
                    Ok(()) => {
                        self.store().give_up_lost_in_use(number).unwrap();
                        self.nodes[node].lose_all();
                    }
                    Err(error) => assert_eq!(error, StoreError::Busy),
                }
                self.store().set_lost(number, false).unwrap();
                self.nodes[node].set_away(false);
            }
            Step::Client { offset, len, seed, copies, dies } => {
                self.client(offset, &fill(len, seed), copies, dies);
            }
        }
    }

    /// All nodes come back, and all copies become equal.
    fn end(&mut self) {
        self.make_stable();
        for _ in 0..10 {
            self.store().repair(Duration::ZERO, &|_| true);
        }
        let copies = self.layouts().copies(&self.id).unwrap();
        let reported = |copy: &CopyState| !copy.fresh;
        if copies.is_empty() || copies.iter().any(reported) {
            // No data was written, or a client has reported a copy, whose repair is delayed.
            // Another run does not know of the report.
            self.run(Step::Reopen);
            self.make_stable();
            (0..10).for_each(|_| self.store().repair(Duration::ZERO, &|_| true));
        }
        for round in 0..30 {
            if self.store().leave_nodes(&self.id) == Ok(Leaving::Nothing) {
                break;
            }
            assert!(round < 29, "copies do not leave: {:?}", self.layouts().copies(&self.id));
            // Recalled clients need a moment to return their layouts.
            std::thread::sleep(Duration::from_millis(1));
            self.store().repair(Duration::ZERO, &|_| true);
        }
        (0..2).for_each(|_| self.store().repair(Duration::ZERO, &|_| true));
        self.store().sweep();
        let copies = self.layouts().copies(&self.id).unwrap();
        assert!(copies.iter().all(|copy| copy.fresh), "{copies:?}");
        let leaving = self.store().leaving();
        assert!(copies.len() != 1 && copies.iter().all(|copy| !leaving.contains(&copy.node)));
        assert!(leaving.iter().all(|&number| self.store().is_idle(number).unwrap()));
        assert!(leaving.iter().all(|&number| self.nodes[number as usize - 1].is_bare()));
        assert_eq!(self.store().to_repair().unwrap().len(), 0);
        let whole = read(self.file(), 0, 20_000).unwrap();
        self.check(0, &whole, 20_000);
        for copy in &copies {
            let node = &self.nodes[copy.node as usize - 1];
            node.set_away(true);
            assert!(read(self.file(), 0, 20_000).unwrap() == whole, "the copies differ");
            node.set_away(false);
        }
    }
}

fn cases() -> u32 {
    if std::env::var_os("DAFS_TEST_LONG").is_some() { 4000 } else { 200 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]
    #[test]
    fn copies_are_as_one_file(steps in steps()) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.run(step));
        world.end();
    }
}
