//! The mark of a server that shows files by RDMA devices, in its state directory.
//!
//! A device answers reads for a moment after its server was killed: the kernel ends the lock of the state
//! directory and the queue pairs in no certain order. A client trusts a device for a second after the
//! last request that the server has answered. So a server that finds the mark of another one waits for so
//! long before it changes anything. Then no read that begins after a change finds what was there before.
//!
//! Invariants
//! * The mark is there before the first reactor starts, and until the last one has ended. A start that
//!   fails leaves none.

use super::StartError;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The name of the mark, in the state directory.
const MARK: &str = "shown-by-devices";

/// The mark of this server. Its drop removes it: no device answers for this server any more.
pub(super) struct DeviceMark {
    path: PathBuf,
}

impl DeviceMark {
    /// Waits for `time` if the last server of this state directory has not removed its mark. Returns true
    /// if so. The caller has locked the directory.
    pub(super) fn wait_for_former(directory: &Path, time: Duration) -> Result<bool, StartError> {
        let path = directory.join(MARK);
        match path.symlink_metadata() {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(StartError::State { path, error }),
        }
        std::thread::sleep(time);
        drop(Self { path });
        Ok(true)
    }

    /// Sets the mark. It need not outlive a crash of the host, which ends the device's queue pairs, too.
    pub(super) fn set(directory: &Path) -> Result<Self, StartError> {
        let path = directory.join(MARK);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        match options.open(&path) {
            Ok(_) => Ok(Self { path }),
            Err(error) => Err(StartError::State { path, error }),
        }
    }
}

impl Drop for DeviceMark {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            // The next server waits in vain.
            tracing::warn!(path = %self.path.display(), %error, "cannot remove a file");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_waits_once_for_one_that_was_killed() {
        let directory = tempfile::tempdir().unwrap();
        let waits = || DeviceMark::wait_for_former(directory.path(), Duration::ZERO).unwrap();
        assert!(!waits());
        drop(DeviceMark::set(directory.path()).unwrap());
        assert!(!waits(), "the last one ended well");
        let killed = || std::mem::forget(DeviceMark::set(directory.path()).unwrap());
        killed();
        killed();
        assert!(waits());
        assert!(!waits());
    }
}
