//! The server's databases (clients and locks, fences) over a disk that loses, tears and corrupts
//! data: one seed, one history of changes, ends of the process and power failures.
//!
//! Invariants
//! * A change reported stable is there when the database is opened again. A change that was under
//!   way is there as a whole or not at all.
//! * A file that is corrupt, truncated or an older copy of itself is refused, or has the same
//!   content as the intact one.

use dafs_dat::sim::SimRng;
use dafs_mem::Mutex;
use dafs_service::{
    ClientKey, ClientRecords, FenceObject, FenceRecord, FenceRecords, FileFences, FileRecords,
    Handle, LockChange, LockHolder, LockKind, LockRecord, RecordsError, StateFile, StateFileId,
};
use dafs_store::{FileId, FsId};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, MutexGuard};

const SECTOR_BYTES: usize = 512;

/// Changes, ends and openings of one history.
const STEPS: u64 = 40;

/// Damages tried after each end.
const DAMAGES: u64 = 6;

/// Names of entries; few, so that they collide.
const NAMES: u64 = 12;

#[derive(Debug, Clone, Default)]
struct Content {
    bytes: Vec<u8>,
    /// The content after a power failure.
    stable: Vec<u8>,
    /// Sectors that differ.
    dirty: BTreeSet<usize>,
    /// Writes, syncs and changes of length until the process ends.
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

    fn call(&self) -> io::Result<MutexGuard<'_, Content>> {
        let mut content = self.0.lock();
        match &mut content.calls_left {
            Some(0) => return Err(io::Error::other("the process has ended")),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(content)
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.lock().bytes.clone()
    }

    /// Applies a power failure: each unsynced sector survives or not.
    fn cut_power(&self, rng: &mut SimRng) {
        let mut content = self.0.lock();
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
        Ok(self.0.lock().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let content = self.0.lock();
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

/// The events of a history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateReport {
    /// Changes that were stable.
    pub changes: u64,
    /// Ends of the process inside an operation.
    pub ends: u64,
    /// Power failures at such ends.
    pub cuts: u64,
    /// Damages that were reported.
    pub told: u64,
    /// Damages without an effect.
    pub harmless: u64,
}

/// One of the server's databases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Clients and locks.
    Clients,
    /// Fences.
    Fences,
}

/// Entries by name. Each is a number from which the database's entry is made.
type Entries = BTreeMap<u64, u64>;

/// A database that is open.
enum Open {
    Clients(FileRecords),
    Fences(FileFences),
}

struct World {
    kept: Kept,
    /// The server does not know which file it has used.
    forgets: bool,
    rng: SimRng,
    file: DiskFile,
    id: StateFileId,
    /// The stable entries.
    entries: Entries,
    /// The entries with the change that was under way when the process ended.
    doubt: Option<Entries>,
    /// An older copy of the file, and the number of its opening.
    older: Option<(u64, Vec<u8>)>,
    report: StateReport,
}

/// Runs the history of a seed. With `forgets`, the server does not know which file it has used, so
/// it cannot recognise an older copy; this proves that the checks notice.
///
/// # Errors
/// A lost change, or damage that was not reported.
pub fn run(kept: Kept, seed: u64, forgets: bool) -> Result<StateReport, String> {
    let file = DiskFile::default();
    let open = Open::on(kept, file.clone(), StateFile::New([7; 16]));
    let open = open.map_err(|error| error.to_string())?;
    let (entries, report) = (Entries::new(), StateReport::default());
    let (id, rng) = (open.id(), SimRng::new(seed));
    let mut world =
        World { kept, forgets, rng, file, id, entries, doubt: None, older: None, report };
    let mut open = Some(open);
    for _ in 0..STEPS {
        let next = match open.take() {
            Some(open) => open,
            None => world.open()?,
        };
        open = world.step(next)?;
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

/// A fence: of a file for most numbers, of a whole file system for some.
fn fence(number: u64, content: u64) -> FenceRecord {
    let fs = FsId([number as u8; 16]);
    let object = match number % 4 {
        0 => FenceObject::FileSystem(fs),
        _ => FenceObject::File(Handle { fs, file: FileId([2; 48]) }),
    };
    let names = (0..=content % 40).map(|at| (content + at).to_le_bytes().to_vec());
    (object, Some(names.collect()))
}

impl Open {
    fn on(kept: Kept, file: DiskFile, expected: StateFile) -> Result<Self, RecordsError> {
        Ok(match kept {
            Kept::Clients => Self::Clients(FileRecords::on(file, expected)?),
            Kept::Fences => Self::Fences(FileFences::on(file, expected)?),
        })
    }

    fn id(&self) -> StateFileId {
        match self {
            Self::Clients(records) => records.id(),
            Self::Fences(fences) => fences.id(),
        }
    }

    /// Changes entries in one step. Entries without a number are removed.
    fn change(&self, changes: &[(u64, Option<u64>)]) -> Result<(), RecordsError> {
        match self {
            Self::Clients(records) => {
                let change = |(number, content): &(u64, Option<u64>)| match content {
                    Some(content) => LockChange::Put(lock(*number, *content)),
                    None => LockChange::Remove(*number),
                };
                records.change_locks(&changes.iter().map(change).collect::<Vec<_>>())
            }
            Self::Fences(fences) => {
                let change = |(number, content): &(u64, Option<u64>)| {
                    let (object, names) = fence(*number, content.unwrap_or(0));
                    (object, names.filter(|_| content.is_some()))
                };
                fences.put(&changes.iter().map(change).collect::<Vec<_>>())
            }
        }
    }

    /// All entries. Checks that each is, to the last byte, the entry made from its number.
    fn found(&self) -> Result<Entries, String> {
        let failed = |error: RecordsError| error.to_string();
        let mut entries = Entries::new();
        match self {
            Self::Clients(records) => {
                for found in records.load_locks().map_err(failed)? {
                    entries.insert(found.number, found.first);
                    if found != lock(found.number, found.first) {
                        return Err(format!("{found:?} was never there"));
                    }
                }
            }
            Self::Fences(fences) => {
                for found in fences.load().map_err(failed)? {
                    let (FenceObject::FileSystem(fs) | FenceObject::File(Handle { fs, .. })) =
                        found.0;
                    let first = found.1.iter().flatten().next().and_then(|name| name.first_chunk());
                    let content = first.map_or(0, |bytes| u64::from_le_bytes(*bytes));
                    let number = fs.0[0].into();
                    entries.insert(number, content);
                    if found != fence(number, content) {
                        return Err(format!("{found:?} was never there"));
                    }
                }
            }
        }
        Ok(entries)
    }
}

impl World {
    /// A change, an orderly end, or an end in the middle of either.
    fn step(&mut self, open: Open) -> Result<Option<Open>, String> {
        if self.rng.chance(300_000) {
            self.file.0.lock().calls_left = Some(self.rng.log_below(30));
        }
        let in_order = self.rng.chance(150_000);
        if !in_order {
            let mut after = self.entries.clone();
            let mut changes = BTreeMap::new();
            for _ in 0..self.rng.between(1, 3) {
                let number = self.rng.below(NAMES);
                let content = self.rng.chance(700_000).then(|| self.rng.below(1_000));
                changes.insert(number, content);
                match content {
                    Some(content) => after.insert(number, content),
                    None => after.remove(&number),
                };
            }
            if open.change(&changes.into_iter().collect::<Vec<_>>()).is_ok() {
                self.entries = after;
                self.report.changes += 1;
            } else {
                self.doubt = Some(after);
            }
        }
        if !in_order && self.file.0.lock().calls_left.is_none() {
            return Ok(Some(open));
        }
        drop(open);
        self.ended();
        self.damage()?;
        Ok(None)
    }

    fn ended(&mut self) {
        if self.file.0.lock().calls_left.take().is_some() {
            self.report.ends += 1;
            if self.rng.chance(700_000) {
                self.report.cuts += 1;
                self.file.cut_power(&mut self.rng);
            }
        }
    }

    fn open(&mut self) -> Result<Open, String> {
        if self.rng.chance(100_000) {
            self.file.0.lock().calls_left = Some(self.rng.below(12));
        }
        loop {
            match Open::on(self.kept, self.file.clone(), StateFile::Known(self.id)) {
                Ok(open) => {
                    self.file.0.lock().calls_left = None;
                    self.check(&open.found()?)?;
                    if self.rng.chance(500_000) {
                        self.older = Some((open.id().openings, self.file.bytes()));
                    }
                    // The inventory may miss the new id.
                    if self.rng.chance(800_000) {
                        self.id = open.id();
                    }
                    return Ok(open);
                }
                Err(_) if self.file.0.lock().calls_left == Some(0) => self.ended(),
                Err(error) => return Err(format!("it cannot be opened again: {error}")),
            }
        }
    }

    /// Checks that the found entries are the stable ones, or those with the change under way.
    fn check(&mut self, found: &Entries) -> Result<(), String> {
        let doubt = self.doubt.take();
        if doubt.as_ref() == Some(found) {
            self.entries = found.clone();
        }
        if *found == self.entries {
            return Ok(());
        }
        let stable = &self.entries;
        Err(format!("{found:?} was found, {stable:?} was stable, {doubt:?} was under way"))
    }

    /// Damages copies of the file, and checks that the damage is reported.
    fn damage(&mut self) -> Result<(), String> {
        let whole = self.file.bytes();
        let expected = match self.forgets {
            true => StateFile::New(self.id.instance),
            false => StateFile::Known(self.id),
        };
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
            let opened = Open::on(self.kept, DiskFile::of(bytes), expected);
            match opened.map(|open| open.found()) {
                Ok(Ok(found)) if found == self.entries || Some(&found) == self.doubt.as_ref() => {
                    self.report.harmless += 1;
                }
                Ok(Ok(found)) => {
                    return Err(format!("damage {how} at {at} is not told; found: {found:?}"));
                }
                Ok(Err(_)) | Err(_) => self.report.told += 1,
            }
        }
        Ok(())
    }

    /// The place of a damage: a third of the time in the header, else in used bytes.
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
