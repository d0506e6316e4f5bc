//! Durable records of clients that may reclaim after a restart (RFC 8881 8.4.2.1), and of locks
//! that outlive their holders (DAFS 9.3).
//!
//! Invariants
//! * When `put` or `remove` has returned, the change survives a crash of the machine.
//! * A record is removed only together with the verifier that it was written with. So the late end
//!   of an old instance does not remove the record of a new one.

use crate::client::{Client, ClientKey, ClientKind, Identity, address};
use crate::database::{DatabaseError, StateDatabase, StateFile, StateFileId};
use crate::handle::Handle;
use crate::lock::{LockChange, LockHolder, LockKind, LockRecord};
use dafs_store::{FileId, FsId};
use redb::{ReadableTable, StorageBackend, TableDefinition, WriteTransaction};
use std::path::Path;
use thiserror::Error;

/// A client that may hold state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRecord {
    /// The client's kind. Names of two kinds are independent of each other.
    pub kind: ClientKind,
    /// The client's own name.
    pub owner: Vec<u8>,
    /// The verifier of the instance that held the state.
    pub verifier: [u8; 8],
    /// The mechanism by which it authenticated.
    pub mechanism: String,
    /// The principal that it authenticated as.
    pub principal: Vec<u8>,
    /// The address of an NFS client, followed by a byte: 1 if its port was privileged, and 2 more
    /// if its record demands protection. Records of earlier versions lack that byte. Empty if the
    /// address is not known.
    pub host: Vec<u8>,
}

impl ClientRecord {
    pub(crate) fn of(client: &Client) -> Self {
        Self {
            kind: client.kind(),
            owner: client.name().to_vec(),
            verifier: client.verifier(),
            mechanism: client.identity().mechanism.to_owned(),
            principal: client.identity().principal.clone(),
            host: client.recorded_host(),
        }
    }

    /// True when the client is the recorded one, back again, from any address.
    pub(crate) fn is_of(&self, client: &Client) -> bool {
        self.kind == client.kind()
            && self.owner == client.name()
            && self.verifier == client.verifier()
            && self.is_by(client.identity())
    }

    /// True if requests about the client demand protection ([`Client::is_protected`]).
    pub(crate) fn is_protected(&self) -> bool {
        self.kind == ClientKind::Nfs && address::is_protected(&self.host)
    }

    /// True when the record belongs to this identity.
    pub(crate) fn is_by(&self, identity: &Identity) -> bool {
        self.mechanism == identity.mechanism && self.principal == identity.principal
    }
}

/// Why records cannot be read or written.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct RecordsError {
    reason: String,
    lost: bool,
}

impl RecordsError {
    /// An error with the reason as the administrator should read it.
    pub fn new(reason: impl std::fmt::Display) -> Self {
        Self { reason: reason.to_string(), lost: false }
    }

    pub(crate) fn of(path: &Path, error: &DatabaseError) -> Self {
        let path = path.display();
        match error {
            DatabaseError::Database(redb::Error::DatabaseAlreadyOpen) => Self::new(format!(
                "{path}: another server uses this state directory; give each its own with \
                 --state-directory"
            )),
            DatabaseError::Database(error) => Self::new(format!("{path}: {error}")),
            lost => Self { reason: lost.to_string(), lost: true },
        }
    }

    /// True if the file was removed or replaced while it was in use.
    pub fn is_lost(&self) -> bool {
        self.lost
    }
}

/// A store of records that survives a restart.
pub trait ClientRecords: Send + Sync {
    /// All records.
    ///
    /// # Errors
    /// Those of the disk, and of a file that is damaged.
    fn load(&self) -> Result<Vec<ClientRecord>, RecordsError>;

    /// Writes a record in place of any other of the same kind and owner.
    ///
    /// # Errors
    /// Those of the disk.
    fn put(&self, record: &ClientRecord) -> Result<(), RecordsError>;

    /// Removes records, in one step. Records that are missing or have another verifier are skipped.
    ///
    /// # Errors
    /// Those of the disk. No record is removed then.
    fn remove(&self, records: &[ClientRecord]) -> Result<(), RecordsError>;

    /// True if records are kept at all.
    fn keeps(&self) -> bool {
        true
    }

    /// All records of locks, in no order.
    ///
    /// # Errors
    /// Those of the disk, and of a file that is damaged.
    fn load_locks(&self) -> Result<Vec<LockRecord>, RecordsError>;

    /// Changes records of locks, in the given order and in one step.
    ///
    /// # Errors
    /// Those of the disk. Then no record is changed.
    fn change_locks(&self, changes: &[LockChange]) -> Result<(), RecordsError>;
}

/// Keeps no records. No client may reclaim after a restart, and there is no grace period.
/// Persistent locks end with the server.
#[derive(Debug, Default)]
pub struct NoRecords;

impl ClientRecords for NoRecords {
    fn keeps(&self) -> bool {
        false
    }

    fn load(&self) -> Result<Vec<ClientRecord>, RecordsError> {
        Ok(Vec::new())
    }

    fn put(&self, _: &ClientRecord) -> Result<(), RecordsError> {
        Ok(())
    }

    fn remove(&self, _: &[ClientRecord]) -> Result<(), RecordsError> {
        Ok(())
    }

    fn load_locks(&self) -> Result<Vec<LockRecord>, RecordsError> {
        Ok(Vec::new())
    }

    fn change_locks(&self, _: &[LockChange]) -> Result<(), RecordsError> {
        Ok(())
    }
}

/// Verifier, mechanism and principal.
type Value = ([u8; 8], &'static str, &'static [u8]);

type ClientTable = TableDefinition<'static, &'static [u8], Value>;

/// Clients by owner name.
const NFS_CLIENTS: ClientTable = TableDefinition::new("clients");

/// Addresses of NFS clients, by owner name.
const NFS_HOSTS: TableDefinition<'static, &'static [u8], &'static [u8]> =
    TableDefinition::new("client_hosts");

/// Clients by client name.
const DAFS_CLIENTS: ClientTable = TableDefinition::new("dafs_clients");

/// Lock managers of NFSv3 clients, by their name, which begins with their address.
const NLM_CLIENTS: ClientTable = TableDefinition::new("nlm_clients");

/// File system and file of the handle, first and last byte, and the `LOCK_*` bits.
type LockPlace = ([u8; 16], [u8; 48], u64, u64, u8);

/// Client key, verifier, name, mechanism, principal and owner of the holder.
type LockName = (u64, [u8; 8], &'static [u8], &'static str, &'static [u8], &'static [u8]);

/// Records of locks by number.
const LOCKS: TableDefinition<'static, u64, (LockPlace, LockName)> = TableDefinition::new("locks");

/// Bits of a lock.
const LOCK_WRITE: u8 = 1;
const LOCK_AUTORECOVER: u8 = 2;
const LOCK_REPAIR: u8 = 4;
const LOCK_BROKEN: u8 = 8;

/// Records in a database file of its own.
#[derive(Debug)]
pub struct FileRecords {
    database: StateDatabase,
}

impl FileRecords {
    /// Opens the file, or makes it if there is none.
    ///
    /// # Errors
    /// The file cannot be made, is not the expected one, is damaged, or another server has it open.
    pub fn open(path: &Path, expected: StateFile) -> Result<Self, RecordsError> {
        let database = StateDatabase::open(path, expected, Self::tables);
        let database = database.map_err(|error| RecordsError::of(path, &error))?;
        Ok(Self { database })
    }

    /// Opens the records in `backend`, for simulations.
    ///
    /// # Errors
    /// As `open`.
    pub fn on(backend: impl StorageBackend, expected: StateFile) -> Result<Self, RecordsError> {
        let database = StateDatabase::on(backend, expected, Self::tables);
        Ok(Self {
            database: database.map_err(|error| RecordsError::of(Path::new("memory"), &error))?,
        })
    }

    fn tables(transaction: &WriteTransaction) -> Result<(), redb::Error> {
        transaction.open_table(NFS_CLIENTS)?;
        transaction.open_table(NFS_HOSTS)?;
        transaction.open_table(DAFS_CLIENTS)?;
        transaction.open_table(NLM_CLIENTS)?;
        transaction.open_table(LOCKS)?;
        Ok(())
    }

    /// The file's identity.
    pub fn id(&self) -> StateFileId {
        self.database.id()
    }

    fn read(&self) -> Result<Vec<ClientRecord>, redb::Error> {
        let transaction = self.database.read()?;
        let mut records = Vec::new();
        let hosts = transaction.open_table(NFS_HOSTS)?;
        for kind in [ClientKind::Nfs, ClientKind::Dafs, ClientKind::Nlm] {
            for entry in transaction.open_table(table_of(kind))?.iter()? {
                let (owner, value) = entry?;
                let (verifier, mechanism, principal) = value.value();
                let host = hosts.get(owner.value())?.filter(|_| kind == ClientKind::Nfs);
                records.push(ClientRecord {
                    kind,
                    owner: owner.value().to_vec(),
                    verifier,
                    mechanism: mechanism.to_owned(),
                    principal: principal.to_vec(),
                    host: host.map_or_else(Vec::new, |host| host.value().to_vec()),
                });
            }
        }
        Ok(records)
    }

    fn read_locks(&self) -> Result<Vec<LockRecord>, redb::Error> {
        let transaction = self.database.read()?;
        let mut records = Vec::new();
        for entry in transaction.open_table(LOCKS)?.iter()? {
            let (number, value) = entry?;
            let ((fs, file, first, last, bits), holder) = value.value();
            let (client, verifier, name, mechanism, principal, owner) = holder;
            let is = |bit| bits & bit != 0;
            records.push(LockRecord {
                number: number.value(),
                handle: Handle { fs: FsId(fs), file: FileId(file) },
                first,
                last,
                kind: if is(LOCK_WRITE) { LockKind::Write } else { LockKind::Read },
                autorecover: is(LOCK_AUTORECOVER),
                repair: is(LOCK_REPAIR),
                broken: is(LOCK_BROKEN),
                holder: LockHolder {
                    client: ClientKey(client),
                    name: name.to_vec(),
                    verifier,
                    mechanism: mechanism.to_owned(),
                    principal: principal.to_vec(),
                    owner: owner.to_vec(),
                },
            });
        }
        Ok(records)
    }
}

fn table_of(kind: ClientKind) -> ClientTable {
    match kind {
        ClientKind::Dafs => DAFS_CLIENTS,
        ClientKind::Nlm => NLM_CLIENTS,
        // Stateless callers have no records.
        ClientKind::Nfs | ClientKind::Stateless => NFS_CLIENTS,
    }
}

fn put_lock(transaction: &WriteTransaction, record: &LockRecord) -> Result<(), redb::Error> {
    let LockRecord { handle, first, last, holder, .. } = record;
    let bit = |set: bool, bit: u8| if set { bit } else { 0 };
    let bits = bit(record.kind == LockKind::Write, LOCK_WRITE)
        | bit(record.autorecover, LOCK_AUTORECOVER)
        | bit(record.repair, LOCK_REPAIR)
        | bit(record.broken, LOCK_BROKEN);
    let place = (handle.fs.0, handle.file.0, *first, *last, bits);
    let LockHolder { client, verifier, name, mechanism, principal, owner } = holder;
    let name = (
        client.0,
        *verifier,
        name.as_slice(),
        mechanism.as_str(),
        principal.as_slice(),
        owner.as_slice(),
    );
    transaction.open_table(LOCKS)?.insert(record.number, (place, name))?;
    Ok(())
}

impl ClientRecords for FileRecords {
    fn load(&self) -> Result<Vec<ClientRecord>, RecordsError> {
        self.read().map_err(RecordsError::new)
    }

    fn put(&self, record: &ClientRecord) -> Result<(), RecordsError> {
        let value = (record.verifier, record.mechanism.as_str(), record.principal.as_slice());
        let put = self.database.write(|transaction| {
            let mut table = transaction.open_table(table_of(record.kind))?;
            table.insert(record.owner.as_slice(), value)?;
            if record.kind == ClientKind::Nfs {
                let mut hosts = transaction.open_table(NFS_HOSTS)?;
                hosts.insert(record.owner.as_slice(), record.host.as_slice())?;
            }
            Ok(())
        });
        put.map_err(RecordsError::new)
    }

    fn remove(&self, records: &[ClientRecord]) -> Result<(), RecordsError> {
        if records.is_empty() {
            return Ok(());
        }
        let removed = self.database.write(|transaction| {
            for record in records {
                let mut table = transaction.open_table(table_of(record.kind))?;
                let owner = record.owner.as_slice();
                let same = table.get(owner)?.is_some_and(|old| old.value().0 == record.verifier);
                if same {
                    table.remove(owner)?;
                    if record.kind == ClientKind::Nfs {
                        transaction.open_table(NFS_HOSTS)?.remove(owner)?;
                    }
                }
            }
            Ok(())
        });
        removed.map_err(RecordsError::new)
    }

    fn load_locks(&self) -> Result<Vec<LockRecord>, RecordsError> {
        self.read_locks().map_err(RecordsError::new)
    }

    fn change_locks(&self, changes: &[LockChange]) -> Result<(), RecordsError> {
        if changes.is_empty() {
            return Ok(());
        }
        let changed = self.database.write(|transaction| {
            for change in changes {
                match change {
                    LockChange::Put(record) => put_lock(transaction, record)?,
                    LockChange::Remove(number) => {
                        transaction.open_table(LOCKS)?.remove(number)?;
                    }
                }
            }
            Ok(())
        });
        changed.map_err(RecordsError::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    const NEW: StateFile = StateFile::New([7; 16]);

    fn record(owner: &[u8], verifier: u8) -> ClientRecord {
        ClientRecord {
            kind: ClientKind::Nfs,
            owner: owner.to_vec(),
            verifier: [verifier; 8],
            mechanism: "sys".to_owned(),
            principal: b"0@host".to_vec(),
            host: vec![192, 0, 2, verifier],
        }
    }

    #[test]
    fn records_survive_and_go_only_with_their_verifier() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clients.redb");
        let records = FileRecords::open(&path, NEW).unwrap();
        assert_eq!(records.load().unwrap(), []);
        records.put(&record(b"a", 1)).unwrap();
        records.put(&record(b"b", 1)).unwrap();
        records.put(&record(b"a", 2)).unwrap();
        drop(records);
        let records = FileRecords::open(&path, NEW).unwrap();
        assert_eq!(records.load().unwrap(), [record(b"a", 2), record(b"b", 1)]);
        records.remove(&[record(b"a", 1), record(b"c", 1)]).unwrap();
        assert_eq!(records.load().unwrap().len(), 2);
        records.remove(&[record(b"a", 2), record(b"b", 1)]).unwrap();
        assert_eq!(records.load().unwrap(), []);
    }

    #[test]
    fn other_users_cannot_read_or_write_the_records() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clients.redb");
        let mode = || path.metadata().unwrap().permissions().mode() & 0o777;
        drop(FileRecords::open(&path, NEW).unwrap());
        assert_eq!(mode(), 0o600);
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        drop(FileRecords::open(&path, NEW).unwrap());
        assert_eq!(mode(), 0o600);
    }

    #[test]
    fn kinds_of_clients_do_not_share_names() {
        let dir = tempfile::tempdir().unwrap();
        let records = FileRecords::open(&dir.path().join("clients.redb"), NEW).unwrap();
        let dafs = ClientRecord { kind: ClientKind::Dafs, host: vec![], ..record(b"a", 1) };
        records.put(&record(b"a", 1)).unwrap();
        records.put(&dafs).unwrap();
        assert_eq!(records.load().unwrap(), [record(b"a", 1), dafs.clone()]);
        records.remove(&[record(b"a", 1)]).unwrap();
        assert_eq!(records.load().unwrap(), [dafs]);
    }

    fn lock(number: u64) -> LockRecord {
        let holder = LockHolder {
            client: ClientKey(7),
            name: b"node".to_vec(),
            verifier: *b"verifier",
            mechanism: "text".to_owned(),
            principal: b"alice".to_vec(),
            owner: number.to_le_bytes().to_vec(),
        };
        LockRecord {
            number,
            handle: Handle { fs: FsId([1; 16]), file: FileId([2; 48]) },
            first: number,
            last: u64::MAX,
            kind: if number & 1 != 0 { LockKind::Write } else { LockKind::Read },
            autorecover: number & 2 != 0,
            repair: number & 4 != 0,
            broken: number & 8 != 0,
            holder,
        }
    }

    #[test]
    fn records_of_locks_survive_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clients.redb");
        let records = FileRecords::open(&path, NEW).unwrap();
        let put: Vec<_> = (0..16).map(lock).map(LockChange::Put).collect();
        records.change_locks(&put).unwrap();
        drop(records);
        let records = FileRecords::open(&path, NEW).unwrap();
        assert_eq!(records.load_locks().unwrap(), (0..16).map(lock).collect::<Vec<_>>());
        let moved = LockRecord { first: 99, ..lock(3) };
        let changes = [
            LockChange::Remove(1),
            LockChange::Remove(100),
            LockChange::Put(moved.clone()),
            LockChange::Put(lock(20)),
            LockChange::Remove(20),
        ];
        records.change_locks(&changes).unwrap();
        let kept = records.load_locks().unwrap();
        assert_eq!(kept.len(), 15);
        assert_eq!(kept[..3], [lock(0), lock(2), moved]);
    }

    #[test]
    fn two_servers_do_not_share_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clients.redb");
        let _first = FileRecords::open(&path, NEW).unwrap();
        let error = FileRecords::open(&path, NEW).unwrap_err().to_string();
        assert!(error.contains("clients.redb"), "{error}");
    }

    /// Writes three locks with a server that is killed or ends in order.
    fn with_locks(path: &Path, killed: bool) -> (StateFileId, Vec<u8>) {
        let records = FileRecords::open(path, NEW).unwrap();
        for number in 0..3 {
            records.change_locks(&[LockChange::Put(lock(number))]).unwrap();
        }
        let id = records.id();
        let bytes = std::fs::read(path).unwrap();
        drop(records);
        (id, if killed { bytes } else { std::fs::read(path).unwrap() })
    }

    fn found(path: &Path, id: StateFileId) -> Result<Vec<LockRecord>, RecordsError> {
        FileRecords::open(path, StateFile::Known(id))?.load_locks()
    }

    #[test]
    fn a_flipped_bit_is_refused_or_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for killed in [false, true] {
            let path = dir.path().join(format!("{killed}.redb"));
            let (id, whole) = with_locks(&path, killed);
            let locks: Vec<_> = (0..3).map(lock).collect();
            // Flips one bit in each byte of the header, and in enough bytes of the rest that is in
            // use.
            let used =
                |&at: &usize| at < 360 || whole[at] != 0 && (at % 4096 < 24 || at % 499 == 0);
            let mut refused = 0;
            for at in (0..whole.len()).filter(used) {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << (at % 8);
                // File systems would wait for the write-back of a file that is overwritten.
                std::fs::remove_file(&path).unwrap();
                std::fs::write(&path, flipped).unwrap();
                match found(&path, id) {
                    Ok(found) => assert_eq!(found, locks, "byte {at}, killed {killed}"),
                    Err(error) => {
                        refused += 1;
                        assert!(error.to_string().contains("damaged"), "byte {at}: {error}");
                        // A retry is refused, too.
                        assert!(found(&path, id).is_err(), "byte {at}, killed {killed}");
                    }
                }
            }
            assert!(refused > 360, "{refused}");
            std::fs::write(&path, &whole).unwrap();
            assert_eq!(found(&path, id).unwrap(), locks);
        }
    }

    #[test]
    fn only_the_known_file_and_no_older_state_of_it_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clients.redb");
        let (id, old) = with_locks(&path, false);
        assert_eq!(id, StateFileId { instance: [7; 16], openings: 1 });
        let records = FileRecords::open(&path, StateFile::Known(id)).unwrap();
        let newer = records.id();
        assert_eq!(newer.openings, 2);
        drop(records);
        let refused = |id, why: &str| {
            let error = found(&path, id).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        // The server was killed before it could record the last opening.
        assert_eq!(found(&path, id).unwrap().len(), 3);
        refused(StateFileId { instance: [8; 16], openings: 1 }, "another one");
        std::fs::write(&path, &old).unwrap();
        refused(newer, "older state");
        assert_eq!(std::fs::read(&path).unwrap(), old, "it is left alone");
        for len in [0, 100, 512, 4096, old.len() / 2] {
            std::fs::write(&path, &old[..len]).unwrap();
            refused(id, if len == 0 { "empty" } else { "damaged" });
        }
        std::fs::write(&path, vec![0; old.len()]).unwrap();
        refused(id, "damaged");
        std::fs::write(&path, []).unwrap();
        assert!(FileRecords::open(&path, NEW).is_err(), "not even as a new one");
        std::fs::remove_file(&path).unwrap();
        refused(id, "missing");
        assert!(!path.exists());
    }

    #[test]
    fn a_file_without_a_seal_is_taken_over_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clients.redb");
        let (id, mut bytes) = with_locks(&path, false);
        assert!(crate::bears_seal(&path).unwrap());
        // A file as earlier versions left it.
        bytes[320..512].fill(0);
        std::fs::write(&path, &bytes).unwrap();
        assert!(!crate::bears_seal(&path).unwrap());
        assert!(found(&path, id).is_err());
        let records = FileRecords::open(&path, StateFile::New([9; 16])).unwrap();
        assert_eq!(records.load_locks().unwrap().len(), 3);
        let id = records.id();
        drop(records);
        assert_eq!(found(&path, id).unwrap().len(), 3);
    }

    #[test]
    fn no_database_is_reached_by_a_symlink() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, path) = (dir.path().join("victim"), dir.path().join("clients.redb"));
        let (id, bytes) = with_locks(&victim, false);
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        for expected in [StateFile::Known(id), NEW] {
            let error = FileRecords::open(&path, expected).unwrap_err().to_string();
            assert!(error.contains("clients.redb is a symlink"), "{error}");
        }
        crate::bears_seal(&path).unwrap_err();
        assert_eq!(std::fs::read(&victim).unwrap(), bytes);
        // A new file replaces the link.
        std::fs::rename(&path, path.with_extension("new")).unwrap();
        drop(FileRecords::open(&path, NEW).unwrap());
        assert_eq!(std::fs::read(&victim).unwrap(), bytes);
    }

    #[test]
    fn one_whose_making_was_not_finished_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clients.redb");
        std::fs::write(path.with_extension("new"), b"half").unwrap();
        drop(FileRecords::open(&path, NEW).unwrap());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
