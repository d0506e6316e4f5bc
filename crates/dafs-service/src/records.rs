//! Durable records of clients: who may reclaim after a restart (RFC 8881 8.4.2.1).
//!
//! Invariants
//! * When `put` or `remove` has returned, the change survives a crash of the machine.
//! * A record is removed only together with the verifier that it was written with, so that the late
//!   end of an old instance does not take the record of a new one.

use crate::client::Client;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::path::Path;
use thiserror::Error;

/// One NFS client that may hold state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRecord {
    /// Its own name.
    pub owner: Vec<u8>,
    /// Of the instance that held the state.
    pub verifier: [u8; 8],
    /// How it proved who it is.
    pub mechanism: String,
    /// Who it is.
    pub principal: Vec<u8>,
}

impl ClientRecord {
    pub(crate) fn of(client: &Client) -> Self {
        Self {
            owner: client.name().to_vec(),
            verifier: client.verifier(),
            mechanism: client.identity().mechanism.to_owned(),
            principal: client.identity().principal.clone(),
        }
    }

    /// True when the client is the one that was recorded, back again.
    pub(crate) fn is_of(&self, client: &Client) -> bool {
        *self == Self::of(client)
    }
}

/// Why client records cannot be read or written.
#[derive(Debug, Error)]
#[error("client records: {0}")]
pub struct RecordsError(String);

impl RecordsError {
    /// An error with the reason as the administrator should read it.
    pub fn new(reason: impl std::fmt::Display) -> Self {
        Self(reason.to_string())
    }
}

/// Where client records survive a restart.
pub trait ClientRecords: Send + Sync {
    /// All records.
    ///
    /// # Errors
    /// Those of the disk, and of a file that is damaged.
    fn load(&self) -> Result<Vec<ClientRecord>, RecordsError>;

    /// Writes a record in place of any other of the same owner.
    ///
    /// # Errors
    /// Those of the disk.
    fn put(&self, record: &ClientRecord) -> Result<(), RecordsError>;

    /// Removes records, in one step; those that are not there, or have another verifier, are left.
    ///
    /// # Errors
    /// Those of the disk; then all records are still there.
    fn remove(&self, records: &[ClientRecord]) -> Result<(), RecordsError>;
}

/// Keeps nothing: no client may reclaim after a restart, and there is no grace period.
#[derive(Debug, Default)]
pub struct NoRecords;

impl ClientRecords for NoRecords {
    fn load(&self) -> Result<Vec<ClientRecord>, RecordsError> {
        Ok(Vec::new())
    }

    fn put(&self, _: &ClientRecord) -> Result<(), RecordsError> {
        Ok(())
    }

    fn remove(&self, _: &[ClientRecord]) -> Result<(), RecordsError> {
        Ok(())
    }
}

/// Memory for the database; a record is a few hundred bytes and read once.
const CACHE_BYTES: usize = 1 << 20;

/// Verifier, mechanism and principal.
type Value = ([u8; 8], &'static str, &'static [u8]);

/// By owner name.
const TABLE: TableDefinition<'_, &[u8], Value> = TableDefinition::new("clients");

/// Records in a database file of its own.
#[derive(Debug)]
pub struct FileRecords {
    database: Database,
}

impl FileRecords {
    /// Opens or makes the file.
    ///
    /// # Errors
    /// When it cannot be made, is damaged, or another server has it open.
    pub fn open(path: &Path) -> Result<Self, RecordsError> {
        let reason = |error: redb::Error| RecordsError(format!("{}: {error}", path.display()));
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE_BYTES);
        let database = builder.create(path).map_err(|error| reason(error.into()))?;
        let records = Self { database };
        // A table that exists makes reading simple.
        records.write(|_| Ok(())).map_err(reason)?;
        Ok(records)
    }

    fn write(
        &self,
        change: impl FnOnce(&mut redb::Table<'_, &'static [u8], Value>) -> Result<(), redb::Error>,
    ) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        change(&mut transaction.open_table(TABLE)?)?;
        Ok(transaction.commit()?)
    }

    fn read(&self) -> Result<Vec<ClientRecord>, redb::Error> {
        let transaction = self.database.begin_read()?;
        let table = transaction.open_table(TABLE)?;
        let mut records = Vec::new();
        for entry in table.iter()? {
            let (owner, value) = entry?;
            let (verifier, mechanism, principal) = value.value();
            records.push(ClientRecord {
                owner: owner.value().to_vec(),
                verifier,
                mechanism: mechanism.to_owned(),
                principal: principal.to_vec(),
            });
        }
        Ok(records)
    }
}

impl ClientRecords for FileRecords {
    fn load(&self) -> Result<Vec<ClientRecord>, RecordsError> {
        self.read().map_err(RecordsError::new)
    }

    fn put(&self, record: &ClientRecord) -> Result<(), RecordsError> {
        let value = (record.verifier, record.mechanism.as_str(), record.principal.as_slice());
        let put = self.write(|table| {
            table.insert(record.owner.as_slice(), value)?;
            Ok(())
        });
        put.map_err(RecordsError::new)
    }

    fn remove(&self, records: &[ClientRecord]) -> Result<(), RecordsError> {
        if records.is_empty() {
            return Ok(());
        }
        let removed = self.write(|table| {
            for record in records {
                let owner = record.owner.as_slice();
                let same = table.get(owner)?.is_some_and(|old| old.value().0 == record.verifier);
                if same {
                    table.remove(owner)?;
                }
            }
            Ok(())
        });
        removed.map_err(RecordsError::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(owner: &[u8], verifier: u8) -> ClientRecord {
        ClientRecord {
            owner: owner.to_vec(),
            verifier: [verifier; 8],
            mechanism: "sys".to_owned(),
            principal: b"0@host".to_vec(),
        }
    }

    #[test]
    fn records_survive_and_go_only_with_their_verifier() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clients.redb");
        let records = FileRecords::open(&path).unwrap();
        assert_eq!(records.load().unwrap(), []);
        records.put(&record(b"a", 1)).unwrap();
        records.put(&record(b"b", 1)).unwrap();
        records.put(&record(b"a", 2)).unwrap();
        drop(records);
        let records = FileRecords::open(&path).unwrap();
        assert_eq!(records.load().unwrap(), [record(b"a", 2), record(b"b", 1)]);
        records.remove(&[record(b"a", 1), record(b"c", 1)]).unwrap();
        assert_eq!(records.load().unwrap().len(), 2);
        records.remove(&[record(b"a", 2), record(b"b", 1)]).unwrap();
        assert_eq!(records.load().unwrap(), []);
    }

    #[test]
    fn two_servers_do_not_share_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clients.redb");
        let _first = FileRecords::open(&path).unwrap();
        let error = FileRecords::open(&path).unwrap_err().to_string();
        assert!(error.contains("clients.redb"), "{error}");
    }
}
