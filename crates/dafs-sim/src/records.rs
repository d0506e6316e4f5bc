//! Records of clients that survive the server, as its database does.

use crate::disk::Plug;
use dafs_mem::Mutex;
use dafs_service::{
    ClientRecord, ClientRecords, FenceObject, FenceRecord, FenceRecords, LockChange, LockRecord,
    RecordsError,
};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug, Default)]
struct Tables {
    clients: Vec<ClientRecord>,
    locks: BTreeMap<u64, LockRecord>,
    fences: Vec<FenceRecord>,
}

/// Danger: the records that the database loses when a server starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Forgets {
    pub(crate) locks: bool,
    pub(crate) fences: bool,
}

/// The database. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct SimRecords {
    tables: Arc<Mutex<Tables>>,
}

/// The database as one server sees it.
struct PluggedRecords {
    records: SimRecords,
    plug: Plug,
    forgets: Forgets,
}

impl SimRecords {
    /// Sets the allow list of a file.
    pub(crate) fn fence(&self, object: FenceObject, names: Vec<Vec<u8>>) {
        self.tables.lock().fences.push((object, Some(names)));
    }

    /// The fences, for the server that holds `plug`.
    pub(crate) fn plugged_fences(&self, plug: Plug, forgets: Forgets) -> Box<dyn FenceRecords> {
        Box::new(PluggedRecords { records: self.clone(), plug, forgets })
    }

    /// The records, for the server that holds `plug`.
    pub(crate) fn plugged(&self, plug: Plug, forgets: Forgets) -> Box<dyn ClientRecords> {
        Box::new(PluggedRecords { records: self.clone(), plug, forgets })
    }
}

fn off(_: crate::disk::Off) -> RecordsError {
    RecordsError::new("the server has ended")
}

impl ClientRecords for PluggedRecords {
    fn load(&self) -> Result<Vec<ClientRecord>, RecordsError> {
        Ok(self.records.tables.lock().clients.clone())
    }

    fn put(&self, record: &ClientRecord) -> Result<(), RecordsError> {
        self.plug.effect().map_err(off)?;
        let clients = &mut self.records.tables.lock().clients;
        clients.retain(|known| known.kind != record.kind || known.owner != record.owner);
        clients.push(record.clone());
        Ok(())
    }

    fn remove(&self, records: &[ClientRecord]) -> Result<(), RecordsError> {
        self.plug.effect().map_err(off)?;
        let gone = |known: &ClientRecord| {
            records.iter().any(|record| {
                record.kind == known.kind
                    && record.owner == known.owner
                    && record.verifier == known.verifier
            })
        };
        self.records.tables.lock().clients.retain(|known| !gone(known));
        Ok(())
    }

    fn load_locks(&self) -> Result<Vec<LockRecord>, RecordsError> {
        if self.forgets.locks {
            return Ok(Vec::new());
        }
        Ok(self.records.tables.lock().locks.values().cloned().collect())
    }

    fn change_locks(&self, changes: &[LockChange]) -> Result<(), RecordsError> {
        self.plug.effect().map_err(off)?;
        let locks = &mut self.records.tables.lock().locks;
        for change in changes {
            match change {
                LockChange::Put(record) => {
                    locks.insert(record.number, record.clone());
                }
                LockChange::Remove(number) => {
                    locks.remove(number);
                }
            }
        }
        Ok(())
    }
}

impl FenceRecords for PluggedRecords {
    fn load(&self) -> Result<Vec<FenceRecord>, RecordsError> {
        let tables = self.records.tables.lock();
        let kept = tables.fences.iter().filter(|(_, names)| names.is_some());
        let all = kept.cloned().collect();
        Ok(if self.forgets.fences { Vec::new() } else { all })
    }

    fn put(&self, records: &[FenceRecord]) -> Result<(), RecordsError> {
        self.plug.effect().map_err(off)?;
        let fences = &mut self.records.tables.lock().fences;
        fences.retain(|(known, _)| !records.iter().any(|(object, _)| object == known));
        fences.extend_from_slice(records);
        Ok(())
    }
}
