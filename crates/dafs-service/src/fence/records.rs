//! Durable fence lists.
//!
//! Invariants
//! * When `put` has returned, the lists survive a crash of the machine.

use super::FenceObject;
use crate::database::{StateDatabase, StateFile, StateFileId};
use crate::handle::Handle;
use crate::records::RecordsError;
use dafs_store::{FileId, FsId};
use redb::{ReadableTable, StorageBackend, TableDefinition, WriteTransaction};
use std::path::{Path, PathBuf};

/// A list on its way to or from the disk: the object, and the names on the list. `None` stands for
/// no list.
pub type FenceRecord = (FenceObject, Option<Vec<Vec<u8>>>);

/// A store of fence lists that survives a restart.
pub trait FenceRecords: Send + Sync {
    /// All lists.
    ///
    /// # Errors
    /// Those of the disk, and of a file that is damaged.
    fn load(&self) -> Result<Vec<FenceRecord>, RecordsError>;

    /// Writes lists, each in place of the object's last one, in one step.
    ///
    /// # Errors
    /// Those of the disk. The old lists are kept then.
    fn put(&self, records: &[FenceRecord]) -> Result<(), RecordsError>;
}

/// Keeps no lists: fences end with the server.
#[derive(Debug, Default)]
pub struct NoFenceRecords;

impl FenceRecords for NoFenceRecords {
    fn load(&self) -> Result<Vec<FenceRecord>, RecordsError> {
        Ok(Vec::new())
    }

    fn put(&self, _: &[FenceRecord]) -> Result<(), RecordsError> {
        Ok(())
    }
}

/// Kind, file system and file. The value has the names, each after its length in two bytes.
const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("fences");

const KEY_BYTES: usize = 1 + Handle::BYTES;

/// Lists in a database file of their own.
#[derive(Debug)]
pub struct FileFences {
    path: PathBuf,
    database: StateDatabase,
}

impl FileFences {
    /// Opens the file, or makes it if there is none.
    ///
    /// # Errors
    /// The file cannot be made, is not the expected one, is damaged, or another server has it open.
    pub fn open(path: &Path, expected: StateFile) -> Result<Self, RecordsError> {
        let database = StateDatabase::open(path, expected, Self::tables);
        let database = database.map_err(|error| RecordsError::of(path, &error))?;
        Ok(Self { path: path.to_owned(), database })
    }

    /// Opens the lists in `backend`, for simulations.
    ///
    /// # Errors
    /// As `open`.
    pub fn on(backend: impl StorageBackend, expected: StateFile) -> Result<Self, RecordsError> {
        let path = Path::new("memory");
        let database = StateDatabase::on(backend, expected, Self::tables);
        let database = database.map_err(|error| RecordsError::of(path, &error))?;
        Ok(Self { path: path.to_owned(), database })
    }

    fn tables(transaction: &WriteTransaction) -> Result<(), redb::Error> {
        transaction.open_table(TABLE)?;
        Ok(())
    }

    /// The file's identity.
    pub fn id(&self) -> StateFileId {
        self.database.id()
    }

    fn reason(&self, error: &redb::Error) -> RecordsError {
        RecordsError::new(format!("fences in {}: {error}", self.path.display()))
    }

    fn read(&self) -> Result<Option<Vec<FenceRecord>>, redb::Error> {
        let transaction = self.database.read()?;
        let table = transaction.open_table(TABLE)?;
        let mut records = Vec::new();
        for entry in table.iter()? {
            let (key, value) = entry?;
            let (Some(object), Some(names)) = (object(key.value()), names(value.value())) else {
                return Ok(None);
            };
            records.push((object, Some(names)));
        }
        Ok(Some(records))
    }

    fn write(transaction: &WriteTransaction, records: &[FenceRecord]) -> Result<(), redb::Error> {
        let mut table = transaction.open_table(TABLE)?;
        for (object, names) in records {
            let key = key(object);
            match names {
                Some(names) => drop(table.insert(key.as_slice(), value(names).as_slice())?),
                None => drop(table.remove(key.as_slice())?),
            }
        }
        Ok(())
    }
}

impl FenceRecords for FileFences {
    fn load(&self) -> Result<Vec<FenceRecord>, RecordsError> {
        let records = self.read().map_err(|error| self.reason(&error))?;
        records.ok_or_else(|| {
            RecordsError::new(format!(
                "fences in {}: an entry is invalid; the file is damaged or of a newer version. \
                 Put a good copy in its place, or move it away and set all fences again before \
                 clients come",
                self.path.display()
            ))
        })
    }

    fn put(&self, records: &[FenceRecord]) -> Result<(), RecordsError> {
        let written = self.database.write(|transaction| Self::write(transaction, records));
        written.map_err(|error| self.reason(&error))
    }
}

fn key(object: &FenceObject) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    let fs = match object {
        FenceObject::FileSystem(fs) => {
            key[0] = 2;
            fs
        }
        FenceObject::File(handle) => {
            key[0] = 1;
            key[17..].copy_from_slice(&handle.file.0);
            &handle.fs
        }
    };
    key[1..17].copy_from_slice(&fs.0);
    key
}

fn object(key: &[u8]) -> Option<FenceObject> {
    let (&kind, rest) = key.split_first()?;
    let (&fs, file) = rest.split_first_chunk::<16>()?;
    match kind {
        1 => {
            let file = FileId(file.try_into().ok()?);
            Some(FenceObject::File(Handle { fs: FsId(fs), file }))
        }
        2 => Some(FenceObject::FileSystem(FsId(fs))),
        _ => None,
    }
}

fn value(names: &[Vec<u8>]) -> Vec<u8> {
    let name = |name: &Vec<u8>| {
        // INVARIANT: names are bounded far below this.
        let len = u16::try_from(name.len()).expect("a name is at most 1 KiB long");
        [&len.to_be_bytes(), name.as_slice()].concat()
    };
    names.iter().flat_map(name).collect()
}

fn names(mut value: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    while !value.is_empty() {
        let (len, rest) = value.split_first_chunk::<2>()?;
        let (name, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
        names.push(name.to_vec());
        value = rest;
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: StateFile = StateFile::New([7; 16]);

    fn file(number: u8) -> FenceObject {
        FenceObject::File(Handle { fs: FsId([number; 16]), file: FileId([number; 48]) })
    }

    fn list(names: &[&str]) -> Option<Vec<Vec<u8>>> {
        Some(names.iter().map(|name| name.as_bytes().to_vec()).collect())
    }

    #[test]
    fn lists_survive_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fences.redb");
        let fences = FileFences::open(&path, NEW).unwrap();
        assert_eq!(fences.load().unwrap(), []);
        fences.put(&[(file(1), None)]).unwrap();
        let whole = FenceObject::FileSystem(FsId([1; 16]));
        fences.put(&[(file(1), list(&["a", "b"])), (whole, list(&[]))]).unwrap();
        fences.put(&[(file(2), list(&["c"]))]).unwrap();
        let known = StateFile::Known(fences.id());
        drop(fences);
        let fences = FileFences::open(&path, known).unwrap();
        let all = [(file(1), list(&["a", "b"])), (file(2), list(&["c"])), (whole, list(&[]))];
        assert_eq!(fences.load().unwrap(), all);
        assert!(FileFences::open(&path, known).unwrap_err().to_string().contains("fences.redb"));
        fences.put(&[(file(1), None), (whole, None)]).unwrap();
        assert_eq!(fences.load().unwrap(), [(file(2), list(&["c"]))]);
    }

    #[test]
    fn an_invalid_record_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fences.redb");
        let fences = FileFences::open(&path, NEW).unwrap();
        fences.put(&[(file(1), list(&["a"]))]).unwrap();
        let wrong = |transaction: &WriteTransaction| {
            transaction.open_table(TABLE)?.insert(&[9u8][..], &[][..])?;
            Ok(())
        };
        fences.database.write(wrong).unwrap();
        let error = fences.load().unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
        drop(fences);
        std::fs::write(&path, b"this is no database").unwrap();
        assert!(FileFences::open(&path, NEW).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"this is no database");
    }
}
