//! Records of clients that outlive the server, as its database does.

use crate::disk::Plug;
use dafs_service::{ClientRecord, ClientRecords, RecordsError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// By owner.
type Table = BTreeMap<Vec<u8>, ClientRecord>;

/// The database. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct SimRecords {
    table: Arc<Mutex<Table>>,
}

/// The database as one server sees it.
struct PluggedRecords {
    records: SimRecords,
    plug: Plug,
}

impl SimRecords {
    /// For the server that holds `plug`.
    pub(crate) fn plugged(&self, plug: Plug) -> Box<dyn ClientRecords> {
        Box::new(PluggedRecords { records: self.clone(), plug })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn off(_: crate::disk::Off) -> RecordsError {
    RecordsError::new("the server has ended")
}

impl ClientRecords for PluggedRecords {
    fn load(&self) -> Result<Vec<ClientRecord>, RecordsError> {
        Ok(self.records.table().values().cloned().collect())
    }

    fn put(&self, record: &ClientRecord) -> Result<(), RecordsError> {
        self.plug.effect().map_err(off)?;
        self.records.table().insert(record.owner.clone(), record.clone());
        Ok(())
    }

    fn remove(&self, records: &[ClientRecord]) -> Result<(), RecordsError> {
        self.plug.effect().map_err(off)?;
        let mut table = self.records.table();
        for record in records {
            let known = table.get(&record.owner);
            if known.is_some_and(|known| known.verifier == record.verifier) {
                table.remove(&record.owner);
            }
        }
        Ok(())
    }
}
