//! `dafs manual`: writes the manual pages, for those who install or package dafs.

use crate::failure::Failure;
use crate::manual::pages;
use std::path::PathBuf;

/// Write the manual pages into a directory
#[derive(Debug, clap::Args)]
pub(crate) struct Manual {
    /// The directory, which exists; files of the same names are replaced
    directory: PathBuf,
}

impl Manual {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        for page in pages() {
            let path = self.directory.join(page.file);
            std::fs::write(&path, page.text)
                .map_err(|error| Failure::local(path.display(), &error))?;
        }
        Ok(())
    }
}
