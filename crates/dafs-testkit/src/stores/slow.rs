//! A disk that writes at a limited rate. Reads find their data in memory.

use super::layer::{FileLayer, Layer, LayeredFile, Transfer, Verdict};
use dafs_store::*;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The layer of a store on such a disk, and of its files.
#[derive(Debug, Clone)]
pub struct SlowDisk {
    bytes_per_second: u64,
    /// Held during a write, because the disk does one at a time.
    head: Arc<Mutex<()>>,
}

impl SlowDisk {
    pub fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), head: Arc::default() }
    }
}

impl Layer for SlowDisk {
    fn wrap(&self, file: Arc<dyn OpenFile>) -> Arc<dyn OpenFile> {
        LayeredFile::over(file, self.clone())
    }
}

impl FileLayer for SlowDisk {
    fn judge(&self, transfer: Transfer) -> Result<Verdict> {
        let Transfer { bytes, wait, writes, .. } = transfer;
        if writes {
            if wait == Wait::Never {
                return Err(StoreError::WouldBlock);
            }
            let _head = self.head.lock().unwrap();
            let seconds = bytes as f64 / self.bytes_per_second as f64;
            std::thread::sleep(Duration::from_secs_f64(seconds));
        }
        Ok(Verdict::Pass(bytes))
    }
}
