//! Records of clients that outlive a run of the server.

use super::assert_may_wait;
use dafs_service::{ClientRecord, ClientRecords, LockChange, LockRecord, RecordsError};
use std::sync::{Arc, Mutex};

/// Records of clients that outlive a run of the server. Those of locks are written and never read.
#[derive(Clone, Default)]
pub struct Recorded(Arc<Mutex<Vec<ClientRecord>>>);

impl ClientRecords for Recorded {
    fn load(&self) -> Result<Vec<ClientRecord>, RecordsError> {
        Ok(self.0.lock().unwrap().clone())
    }

    fn put(&self, record: &ClientRecord) -> Result<(), RecordsError> {
        assert_may_wait();
        let mut records = self.0.lock().unwrap();
        records.retain(|old| (old.kind, &old.owner) != (record.kind, &record.owner));
        records.push(record.clone());
        Ok(())
    }

    fn remove(&self, gone: &[ClientRecord]) -> Result<(), RecordsError> {
        assert_may_wait();
        self.0.lock().unwrap().retain(|record| !gone.contains(record));
        Ok(())
    }

    fn load_locks(&self) -> Result<Vec<LockRecord>, RecordsError> {
        Ok(Vec::new())
    }

    fn change_locks(&self, _: &[LockChange]) -> Result<(), RecordsError> {
        assert_may_wait();
        Ok(())
    }
}
