//! Folders for the files of a run, such as those that lie in memory and would take it for ever.
//!
//! Invariants
//! * A folder has a holder, a child process. The holder removes the folder when its parent is gone,
//!   also if that is killed.

use crate::child::{Process, announce, leave_interrupts_to_parent, wait_for_parent};
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// Attempts to remove a folder into which processes write that are about to end, and the pause
/// between them.
const ATTEMPTS: usize = 100;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(20);

/// The word of a holder that is ready.
const HELD: &str = "held";

/// A new folder, removed on drop.
pub(crate) struct Folder {
    folder: TempDir,
    _holder: Process,
}

impl Folder {
    /// Makes a folder below `place`.
    pub(crate) fn make(place: &Path) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("dafs-bench").tempdir_in(place)?;
        let path = folder.path().to_str().context("the directory's name is not UTF-8")?;
        let holder = Process::start(&["hold-folder", path])?;
        ensure!(holder.address == HELD, "nothing would remove {path} in the end");
        Ok(Self { folder, _holder: holder })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Holds a folder in a child until its parent is gone.
pub(crate) fn hold(folder: &Path) -> Result<()> {
    leave_interrupts_to_parent()?;
    announce(HELD)?;
    wait_for_parent();
    remove(folder)
}

fn remove(folder: &Path) -> Result<()> {
    for _ in 0..ATTEMPTS {
        if std::fs::remove_dir_all(folder).is_ok() || !folder.exists() {
            return Ok(());
        }
        std::thread::sleep(ATTEMPT_PAUSE);
    }
    bail!("{} cannot be removed", folder.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_removed_with_its_files_and_also_if_it_is_gone() {
        let above = tempfile::tempdir().expect("a folder");
        let folder = above.path().join("held");
        std::fs::create_dir_all(folder.join("export")).expect("a folder");
        std::fs::write(folder.join("export/data"), "some").expect("written");
        remove(&folder).expect("removed");
        assert!(!folder.exists());
        remove(&folder).expect("it is gone");
    }
}
