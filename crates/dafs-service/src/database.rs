//! Databases in the state directory, which distinguish damage from the effects of a crash.
//!
//! The database commits in two phases, so the commit that its header names is complete. A page that
//! does not match its checksum is therefore damaged. The header itself has no checksum of its own.
//! So it gets a seal: the rest of its sector holds the identity of the file, the number of its
//! openings, and a checksum over header and seal. A disk writes a sector wholly or not at all.
//!
//! Invariants
//! * Committed data is read back as it was, or the file is refused.
//! * A known file is never recreated, and neither another file nor a state from before the last
//!   opening is accepted for it.

use crate::limits::DATABASE_CACHE_BYTES;
use crc_fast::{CrcAlgorithm, Digest};
use dafs_store::own;
use redb::backends::FileBackend;
use redb::{
    BackendError, Database, ReadTransaction, ReadableDatabase, StorageBackend, WriteTransaction,
};
use std::fs::File;
use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use thiserror::Error;

/// The identity of a state file, and its age.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateFileId {
    /// Random, from the time when it was made or adopted.
    pub instance: [u8; 16],
    /// The number of its openings.
    pub openings: u64,
}

/// The file that is expected.
#[derive(Debug, Clone, Copy)]
pub enum StateFile {
    /// This file, in this state or a newer one.
    Known(StateFileId),
    /// Any file, or none yet. It becomes this instance.
    New([u8; 16]),
}

/// Why a database cannot be used.
#[derive(Debug, Error)]
pub(crate) enum DatabaseError {
    #[error("it is missing")]
    Missing,
    #[error("it is empty")]
    Empty,
    #[error("it is damaged: {0}")]
    Damaged(String),
    #[error("it is another one than the server has used before")]
    Foreign,
    #[error(
        "it is an older state of itself, from its opening number {found} of {known}, as one from a \
         backup"
    )]
    Older { found: u64, known: u64 },
    #[error(transparent)]
    Database(#[from] redb::Error),
}

impl From<io::Error> for DatabaseError {
    fn from(error: io::Error) -> Self {
        Self::Database(error.into())
    }
}

const SECTOR_BYTES: usize = 512;

/// The part that the database writes at the beginning of the file, always as a whole.
const HEADER_BYTES: usize = 320;

const MAGIC: [u8; 8] = *b"dafsseal";

/// Magic, instance, openings and checksum.
const SEAL_BYTES: usize = 8 + 16 + 8 + 4;

/// Returns the sector of a header with its seal.
fn seal(header: &[u8; HEADER_BYTES], id: &StateFileId) -> [u8; SECTOR_BYTES] {
    let mut sector = [0; SECTOR_BYTES];
    sector[..HEADER_BYTES].copy_from_slice(header);
    let body = [&MAGIC[..], &id.instance, &id.openings.to_le_bytes()].concat();
    let end = HEADER_BYTES + SEAL_BYTES;
    sector[HEADER_BYTES..end - 4].copy_from_slice(&body);
    let sum = checksum(&sector[..end - 4]);
    sector[end - 4..end].copy_from_slice(&sum.to_le_bytes());
    sector
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(bytes);
    // The algorithm has 32 bits, so the conversion loses none.
    digest.finalize() as u32
}

/// Returns the identity in the seal of a sector, if the seal is valid.
fn sealed(sector: &[u8; SECTOR_BYTES]) -> Option<StateFileId> {
    let (header, rest) = sector.split_first_chunk::<HEADER_BYTES>()?;
    let (instance, rest) = rest.strip_prefix(&MAGIC)?.split_first_chunk::<16>()?;
    let (openings, _) = rest.split_first_chunk::<8>()?;
    let id = StateFileId { instance: *instance, openings: u64::from_le_bytes(*openings) };
    (seal(header, &id) == *sector).then_some(id)
}

/// True if a file has a seal, even a damaged one.
///
/// # Errors
/// Those of the disk.
pub fn bears_seal(path: &Path) -> io::Result<bool> {
    let mut sector = [0; SECTOR_BYTES];
    let mut file = match own::open_to_read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        file => file?,
    };
    match io::Read::read_exact(&mut file, &mut sector) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| sector[HEADER_BYTES..].starts_with(&MAGIC)),
    }
}

/// Adds a seal to every header that is written.
#[derive(Debug)]
struct Sealing<B> {
    inner: B,
    id: StateFileId,
}

impl<B: StorageBackend> StorageBackend for Sealing<B> {
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if offset != 0 {
            return self.inner.write(offset, data);
        }
        let other = || io::Error::new(io::ErrorKind::InvalidInput, "a header of another length");
        let header = data.try_into().map_err(|_| other())?;
        self.inner.write(0, &seal(header, &self.id))
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.inner.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.query_lock_range(start, end)
    }
}

/// A database of the server's state.
#[derive(Debug)]
pub(crate) struct StateDatabase {
    database: Database,
    id: StateFileId,
}

impl StateDatabase {
    /// Opens the file, or makes it with `tables` if it never existed. A file gets its name when it
    /// is complete.
    pub(crate) fn open(
        path: &Path,
        expected: StateFile,
        tables: fn(&WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<Self, DatabaseError> {
        // Store calls leave threads with the identity of their callers.
        dafs_mem::sys::as_server()?;
        if path.symlink_metadata().is_ok() {
            let file = own::open(path, false)?;
            if file.metadata()?.len() == 0 {
                return Err(DatabaseError::Empty);
            }
            return Self::on(FileBackend::new(file).map_err(redb::Error::from)?, expected, tables);
        }
        if let StateFile::Known(_) = expected {
            return Err(DatabaseError::Missing);
        }
        let unfinished = path.with_extension("new");
        let file = own::create(&unfinished)?;
        let backend = FileBackend::new(file).map_err(redb::Error::from)?;
        let made = Self::on(backend, expected, tables)?;
        std::fs::rename(&unfinished, path)?;
        // The name must be as stable as the content.
        if let Some(directory) = path.parent().filter(|path| !path.as_os_str().is_empty()) {
            File::open(directory)?.sync_all()?;
        }
        Ok(made)
    }

    /// Opens the database in `backend`, which is empty if it is new.
    pub(crate) fn on(
        backend: impl StorageBackend,
        expected: StateFile,
        tables: fn(&WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<Self, DatabaseError> {
        let id = match expected {
            StateFile::New(instance) => StateFileId { instance, openings: 1 },
            StateFile::Known(known) => Self::check(&backend, known)?,
        };
        // The library uses some pages before it compares them with their checksums, and panics.
        let open = AssertUnwindSafe(|| Self::verified(Sealing { inner: backend, id }));
        let nonsense = |_| DatabaseError::Damaged("a page is invalid".to_owned());
        let database = catch_unwind(open).map_err(nonsense)?.map_err(|error| match error {
            redb::Error::Corrupted(what) => DatabaseError::Damaged(what),
            // The file has no header of a database.
            redb::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
                DatabaseError::Damaged(error.to_string())
            }
            error => DatabaseError::Database(error),
        })?;
        let opened = Self { database, id };
        // Readers can rely on tables that exist.
        opened.write(tables)?;
        Ok(opened)
    }

    fn verified(backend: impl StorageBackend) -> Result<Database, redb::Error> {
        let mut builder = Database::builder();
        builder.set_cache_size(DATABASE_CACHE_BYTES);
        builder.set_repair_callback(|repair| {
            if repair.progress() == 0.0 {
                tracing::info!("a database was not closed cleanly; it is checked");
            }
        });
        let mut database = builder.create_with_backend(backend)?;
        // Pages of a file that was closed in order were not compared with their checksums yet.
        if !database.check_integrity()? {
            tracing::warn!("a database did not know which of its pages are free; it does now");
        }
        Ok(database)
    }

    /// Checks that the file is the known one. Returns its identity from now on.
    fn check(
        backend: &impl StorageBackend,
        known: StateFileId,
    ) -> Result<StateFileId, DatabaseError> {
        let mut sector = [0; SECTOR_BYTES];
        if backend.len()? >= SECTOR_BYTES as u64 {
            backend.read(0, &mut sector)?;
        }
        let Some(found) = sealed(&sector) else {
            return Err(DatabaseError::Damaged("its header does not match its seal".to_owned()));
        };
        if found.instance != known.instance {
            return Err(DatabaseError::Foreign);
        }
        if found.openings < known.openings {
            return Err(DatabaseError::Older { found: found.openings, known: known.openings });
        }
        Ok(StateFileId { openings: found.openings.saturating_add(1), ..found })
    }

    /// The file's identity.
    pub(crate) fn id(&self) -> StateFileId {
        self.id
    }

    /// Changes the database. All changes are stable when this returns, or none is made.
    pub(crate) fn write(
        &self,
        change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), redb::Error> {
        let mut transaction = self.database.begin_write()?;
        // Otherwise a commit that is damaged later looks like one that a crash has torn.
        transaction.set_two_phase_commit(true);
        change(&transaction)?;
        Ok(transaction.commit()?)
    }

    pub(crate) fn read(&self) -> Result<ReadTransaction, redb::Error> {
        Ok(self.database.begin_read()?)
    }
}
