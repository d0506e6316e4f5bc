//! The server's database of clients and locks over a disk that loses, tears and rots: one seed, one
//! history of changes, ends of the process and losses of power.
//!
//! Invariants
//! * What was said to be stable is there when the database is opened again, and of a change that was
//!   under way all or nothing.
//! * A file that has rotted, was cut, or is an older state of itself is refused, or it says the same as
//!   the whole one.

use dafs_dat::sim::SimRng;
use dafs_service::{
    ClientKey, ClientRecords, FileRecords, Handle, LockChange, LockHolder, LockKind, LockRecord,
    StateFile, StateFileId,
};
use dafs_store::{FileId, FsId};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SECTOR_BYTES: usize = 512;

/// Changes, ends and openings of one history.
const STEPS: u64 = 40;

/// Damages that are tried after each end.
const DAMAGES: u64 = 6;

/// Names of locks; few, so that they collide.
const LOCKS: u64 = 12;

#[derive(Debug, Clone, Default)]
struct Content {
    bytes: Vec<u8>,
    /// What a loss of power leaves.
    stable: Vec<u8>,
    /// Sectors that differ.
    dirty: BTreeSet<usize>,
    /// The process ends before so many more writes, syncs and changes of length.
    calls_left: Option<u64>,
}

/// A file on the disk. Clones share it.
#[derive(Debug, Clone, Default)]
struct DiskFile(Arc<Mutex<Content>>);

impl DiskFile {
    fn of(bytes: Vec<u8>) -> Self {
        let content = Content { stable: bytes.clone(), bytes, ..Content::default() };
        Self(Arc::new(Mutex::new(content)))
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self) -> io::Result<MutexGuard<'_, Content>> {
        let mut content = self.lock();
        match &mut content.calls_left {
            Some(0) => return Err(io::Error::other("the process has ended")),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(content)
    }

    fn bytes(&self) -> Vec<u8> {
        self.lock().bytes.clone()
    }

    /// The power fails: of what is not stable, each sector lasts or does not.
    fn cut_power(&self, rng: &mut SimRng) {
        let mut content = self.lock();
        let (bytes, dirty) = (content.bytes.clone(), std::mem::take(&mut content.dirty));
        if rng.chance(500_000) {
            content.stable.resize(bytes.len(), 0);
        }
        let len = content.stable.len();
        for sector in dirty.into_iter().filter(|_| rng.chance(500_000)) {
            let (from, to) =
                (sector * SECTOR_BYTES, ((sector + 1) * SECTOR_BYTES).min(bytes.len()));
            if to <= len {
                content.stable[from..to].copy_from_slice(&bytes[from..to]);
            }
        }
        content.bytes = content.stable.clone();
    }
}

impl redb::StorageBackend for DiskFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let content = self.lock();
        let from = offset as usize;
        let found = content.bytes.get(from..from + out.len());
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.call()?.bytes.resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut content = self.call()?;
        content.stable = content.bytes.clone();
        content.dirty.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut content = self.call()?;
        let (from, to) = (offset as usize, offset as usize + data.len());
        let place = content.bytes.get_mut(from..to).ok_or(io::ErrorKind::UnexpectedEof)?;
        place.copy_from_slice(data);
        content.dirty.extend(from / SECTOR_BYTES..to.div_ceil(SECTOR_BYTES));
        Ok(())
    }
}

/// What a history has come across.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateReport {
    /// Changes that were stable.
    pub changes: u64,
    /// Times that the process ended in the middle of something.
    pub ends: u64,
    /// Times that the power failed then.
    pub cuts: u64,
    /// Damages that were told.
    pub told: u64,
    /// Damages that changed nothing.
    pub harmless: u64,
}

type Locks = BTreeMap<u64, LockRecord>;

struct World {
    rng: SimRng,
    file: DiskFile,
    id: StateFileId,
    /// What is stable.
    locks: Locks,
    /// The same with what was under way when the process ended.
    doubt: Option<Locks>,
    /// An older state of the file, and of which opening.
    older: Option<(u64, Vec<u8>)>,
    report: StateReport,
}

/// Runs the history of a seed.
///
/// # Errors
/// What was lost, or not told.
pub fn run(seed: u64) -> Result<StateReport, String> {
    let file = DiskFile::default();
    let records = FileRecords::on(file.clone(), StateFile::New([7; 16]));
    let records = records.map_err(|error| error.to_string())?;
    let (locks, report) = (Locks::new(), StateReport::default());
    let id = records.id();
    let rng = SimRng::new(seed);
    let mut world = World { rng, file, id, locks, doubt: None, older: None, report };
    let mut records = Some(records);
    for _ in 0..STEPS {
        let open = match records.take() {
            Some(open) => open,
            None => world.open()?,
        };
        records = world.step(open)?;
    }
    Ok(world.report)
}

fn lock(number: u64, content: u64) -> LockRecord {
    let holder = LockHolder {
        client: ClientKey(content),
        name: content.to_le_bytes().repeat(1 + content as usize % 40),
        verifier: content.to_le_bytes(),
        mechanism: "none".to_owned(),
        principal: Vec::new(),
        owner: number.to_le_bytes().to_vec(),
    };
    LockRecord {
        number,
        handle: Handle { fs: FsId([1; 16]), file: FileId([2; 48]) },
        first: content,
        last: u64::MAX,
        kind: LockKind::Write,
        autorecover: false,
        repair: false,
        broken: content % 2 == 1,
        holder,
    }
}

fn found(records: &FileRecords) -> Result<Locks, String> {
    let locks = records.load_locks().map_err(|error| error.to_string())?;
    Ok(locks.into_iter().map(|lock| (lock.number, lock)).collect())
}

impl World {
    /// A change, an end in order, or an end in the middle of either.
    fn step(&mut self, records: FileRecords) -> Result<Option<FileRecords>, String> {
        if self.rng.chance(300_000) {
            self.file.lock().calls_left = Some(self.rng.log_below(30));
        }
        let in_order = self.rng.chance(150_000);
        if !in_order {
            let mut after = self.locks.clone();
            let mut changes = Vec::new();
            for _ in 0..self.rng.between(1, 3) {
                let number = self.rng.below(LOCKS);
                if self.rng.chance(300_000) {
                    after.remove(&number);
                    changes.push(LockChange::Remove(number));
                } else {
                    let lock = lock(number, self.rng.below(1_000));
                    after.insert(number, lock.clone());
                    changes.push(LockChange::Put(lock));
                }
            }
            if records.change_locks(&changes).is_ok() {
                self.locks = after;
                self.report.changes += 1;
            } else {
                self.doubt = Some(after);
            }
        }
        if !in_order && self.file.lock().calls_left.is_none() {
            return Ok(Some(records));
        }
        drop(records);
        self.ended();
        self.damage()?;
        Ok(None)
    }

    fn ended(&mut self) {
        if self.file.lock().calls_left.take().is_some() {
            self.report.ends += 1;
            if self.rng.chance(700_000) {
                self.report.cuts += 1;
                self.file.cut_power(&mut self.rng);
            }
        }
    }

    fn open(&mut self) -> Result<FileRecords, String> {
        if self.rng.chance(100_000) {
            self.file.lock().calls_left = Some(self.rng.below(12));
        }
        loop {
            match FileRecords::on(self.file.clone(), StateFile::Known(self.id)) {
                Ok(records) => {
                    self.file.lock().calls_left = None;
                    self.check(&found(&records)?)?;
                    if self.rng.chance(500_000) {
                        self.older = Some((records.id().openings, self.file.bytes()));
                    }
                    // The inventory may not come to hear of it.
                    if self.rng.chance(800_000) {
                        self.id = records.id();
                    }
                    return Ok(records);
                }
                Err(_) if self.file.lock().calls_left == Some(0) => self.ended(),
                Err(error) => return Err(format!("it cannot be opened again: {error}")),
            }
        }
    }

    /// What is found is what was stable, or what was to be.
    fn check(&mut self, found: &Locks) -> Result<(), String> {
        let doubt = self.doubt.take();
        if doubt.as_ref() == Some(found) {
            self.locks = found.clone();
        }
        if *found == self.locks {
            return Ok(());
        }
        Err(format!("{found:#?} was found, {:#?} was stable, {doubt:#?} was under way", self.locks))
    }

    /// Damages copies of the file, and sees whether that is told.
    fn damage(&mut self) -> Result<(), String> {
        let whole = self.file.bytes();
        for _ in 0..DAMAGES {
            let mut bytes = whole.clone();
            let at = self.place(&bytes);
            let how = self.rng.below(5);
            match how {
                0 => bytes.truncate(at),
                1 => {
                    let from = at - at % SECTOR_BYTES;
                    let to = (from + SECTOR_BYTES).min(bytes.len());
                    bytes[from..to].fill(0);
                }
                2 => match &self.older {
                    Some((openings, older)) if *openings < self.id.openings => {
                        bytes.clone_from(older);
                    }
                    _ => continue,
                },
                _ => bytes[at] ^= 1 << self.rng.below(8),
            }
            let opened = FileRecords::on(DiskFile::of(bytes), StateFile::Known(self.id));
            match opened.map(|records| found(&records)) {
                Ok(Ok(found)) if found == self.locks || Some(&found) == self.doubt.as_ref() => {
                    self.report.harmless += 1;
                }
                Ok(Ok(found)) => {
                    return Err(format!("damage {how} at {at} is not told; found: {found:#?}"));
                }
                Ok(Err(_)) | Err(_) => self.report.told += 1,
            }
        }
        Ok(())
    }

    /// Where to damage it: a third of the time in the header, else where something is.
    fn place(&mut self, bytes: &[u8]) -> usize {
        if self.rng.chance(333_333) {
            return self.rng.below(SECTOR_BYTES as u64) as usize;
        }
        let mut at = 0;
        for _ in 0..20 {
            at = self.rng.below(bytes.len() as u64) as usize;
            if bytes[at] != 0 {
                break;
            }
        }
        at
    }
}
