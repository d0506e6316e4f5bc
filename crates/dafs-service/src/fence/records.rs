//! Durable fence lists.
//!
//! Invariants
//! * When `put` has returned, the lists survive a crash of the machine.
//! * A server that was never asked to fence anything has no file of fences.

use super::FenceObject;
use crate::handle::Handle;
use crate::records::{RecordsError, own_file};
use dafs_store::{FileId, FsId};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A list on its way to or from the disk: the object, and the names on the list. No names of no list.
pub type FenceRecord = (FenceObject, Option<Vec<Vec<u8>>>);

/// Where fence lists survive a restart.
pub trait FenceRecords: Send + Sync {
    /// All lists.
    ///
    /// # Errors
    /// Those of the disk, and of a file that is damaged.
    fn load(&self) -> Result<Vec<FenceRecord>, RecordsError>;

    /// Writes lists, each in place of the object's last one, in one step.
    ///
    /// # Errors
    /// Those of the disk; then the old lists are still there.
    fn put(&self, records: &[FenceRecord]) -> Result<(), RecordsError>;
}

/// Keeps nothing: fences end with the server.
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

/// Memory for the database; it is read once.
const CACHE_BYTES: usize = 1 << 20;

/// Kind, file system and file; and the names, each behind its length in two bytes.
const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("fences");

const KEY_BYTES: usize = 1 + Handle::BYTES;

/// Lists in a database file of its own, made when the first list is.
#[derive(Debug)]
pub struct FileFences {
    path: PathBuf,
    database: Mutex<Option<Database>>,
}

impl FileFences {
    /// Opens the file if there is one.
    ///
    /// # Errors
    /// When it is damaged, or another server has it open.
    pub fn open(path: &Path) -> Result<Self, RecordsError> {
        let fences = Self { path: path.to_owned(), database: Mutex::new(None) };
        match path.try_exists() {
            Ok(false) => {}
            Ok(true) => {
                let database = fences.create().map_err(|error| fences.reason(&error))?;
                fences.lock().replace(database);
            }
            Err(error) => return Err(RecordsError::new(format!("{}: {error}", path.display()))),
        }
        Ok(fences)
    }

    fn create(&self) -> Result<Database, redb::Error> {
        // Store calls leave threads with the identity of their callers.
        dafs_store::posix::as_server()
            .map_err(|_| std::io::Error::from(std::io::ErrorKind::PermissionDenied))?;
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE_BYTES);
        let database = builder.create_file(own_file(&self.path)?)?;
        // A table that exists makes reading simple.
        let transaction = database.begin_write()?;
        transaction.open_table(TABLE)?;
        transaction.commit()?;
        // The name must be as stable as the content.
        if let Some(directory) = self.path.parent().filter(|path| !path.as_os_str().is_empty()) {
            File::open(directory).and_then(|directory| directory.sync_all())?;
        }
        Ok(database)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Database>> {
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reason(&self, error: &redb::Error) -> RecordsError {
        RecordsError::new(format!("fences in {}: {error}", self.path.display()))
    }

    fn read(database: &Database) -> Result<Option<Vec<FenceRecord>>, redb::Error> {
        let transaction = database.begin_read()?;
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

    fn write(database: &Database, records: &[FenceRecord]) -> Result<(), redb::Error> {
        let transaction = database.begin_write()?;
        let mut table = transaction.open_table(TABLE)?;
        for (object, names) in records {
            let key = key(object);
            match names {
                Some(names) => drop(table.insert(key.as_slice(), value(names).as_slice())?),
                None => drop(table.remove(key.as_slice())?),
            }
        }
        drop(table);
        Ok(transaction.commit()?)
    }
}

impl FenceRecords for FileFences {
    fn load(&self) -> Result<Vec<FenceRecord>, RecordsError> {
        let database = self.lock();
        let Some(database) = &*database else { return Ok(Vec::new()) };
        let records = Self::read(database).map_err(|error| self.reason(&error))?;
        records.ok_or_else(|| {
            RecordsError::new(format!(
                "fences in {}: an entry makes no sense; the file is damaged or of a newer version. \
                 Put a good copy in its place, or move it away and set all fences again before \
                 clients come",
                self.path.display()
            ))
        })
    }

    fn put(&self, records: &[FenceRecord]) -> Result<(), RecordsError> {
        let mut database = self.lock();
        if database.is_none() {
            if records.iter().all(|(_, names)| names.is_none()) {
                return Ok(());
            }
            *database = Some(self.create().map_err(|error| self.reason(&error))?);
        }
        let Some(database) = &*database else { return Ok(()) };
        Self::write(database, records).map_err(|error| self.reason(&error))
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
        let fences = FileFences::open(&path).unwrap();
        assert_eq!(fences.load().unwrap(), []);
        fences.put(&[(file(1), None)]).unwrap();
        assert!(!path.exists(), "nothing is fenced");
        let whole = FenceObject::FileSystem(FsId([1; 16]));
        fences.put(&[(file(1), list(&["a", "b"])), (whole, list(&[]))]).unwrap();
        fences.put(&[(file(2), list(&["c"]))]).unwrap();
        drop(fences);
        let fences = FileFences::open(&path).unwrap();
        let all = [(file(1), list(&["a", "b"])), (file(2), list(&["c"])), (whole, list(&[]))];
        assert_eq!(fences.load().unwrap(), all);
        assert!(FileFences::open(&path).unwrap_err().to_string().contains("fences.redb"));
        fences.put(&[(file(1), None), (whole, None)]).unwrap();
        assert_eq!(fences.load().unwrap(), [(file(2), list(&["c"]))]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fences.redb");
        let fences = FileFences::open(&path).unwrap();
        fences.put(&[(file(1), list(&["a"]))]).unwrap();
        let database = fences.lock();
        let transaction = database.as_ref().unwrap().begin_write().unwrap();
        let mut table = transaction.open_table(TABLE).unwrap();
        table.insert(&[9u8][..], &[][..]).unwrap();
        drop(table);
        transaction.commit().unwrap();
        drop(database);
        let error = fences.load().unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
        drop(fences);
        std::fs::write(&path, b"this is no database").unwrap();
        assert!(FileFences::open(&path).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"this is no database");
    }
}
