//! Components of removed files, until the nodes have removed them: a directory with a small file for
//! each, which outlives the process.
//!
//! Invariants
//! * A file's components come here after its last name is gone.

use super::node::ComponentId;
use crate::limits::REMOVALS_PER_SWEEP;
use crate::{Result, StoreError};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The list.
pub(super) struct Removed {
    directory: PathBuf,
}

impl Removed {
    pub(super) fn open(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory)?;
        Ok(Self { directory: directory.to_owned() })
    }

    /// Enters a component that lies on these nodes.
    pub(super) fn enter(&self, component: &ComponentId, nodes: &[u32]) -> Result<()> {
        let bytes: Vec<u8> = nodes.iter().flat_map(|node| node.to_le_bytes()).collect();
        Ok(fs::write(self.directory.join(component.to_string()), bytes)?)
    }

    /// Hands components to `remove`, with the numbers of their nodes, and strikes off those for
    /// which that succeeds. Ends with the first failure of another kind than `Busy`.
    pub(super) fn work_off(
        &self,
        mut remove: impl FnMut(&ComponentId, &[u32]) -> Result<()>,
    ) -> Result<()> {
        for entry in fs::read_dir(&self.directory)?.take(REMOVALS_PER_SWEEP) {
            let entry = entry?;
            let name = entry.file_name();
            let Some(component) = name.to_str().and_then(ComponentId::parse) else { continue };
            let bytes = match fs::read(entry.path()) {
                Ok(bytes) => bytes,
                // Another thread was quicker.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error.into()),
            };
            let nodes: Vec<_> =
                bytes.as_chunks().0.iter().map(|four| u32::from_le_bytes(*four)).collect();
            match remove(&component, &nodes) {
                Ok(()) => {}
                Err(StoreError::Busy) => continue,
                Err(error) => return Err(error),
            }
            match fs::remove_file(entry.path()) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }
}
