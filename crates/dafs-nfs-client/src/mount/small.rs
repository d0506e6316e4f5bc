//! Small files in one call each, with many calls under way: for NFSv4, which has compounds.

use super::attributes::SetAttributes;
use super::error::Result;
use super::path::component;
use super::v4::{NewFlight, RemovalFlight, StartFlight};
use super::{Handle, Mount};

/// A small file to make.
#[derive(Debug, Clone, Copy)]
pub struct NewFile<'a> {
    /// The directory of both names.
    pub dir: &'a Handle,
    /// The name until the file is complete; nothing may have it.
    pub temporary_name: &'a [u8],
    /// The name of the complete file. The file replaces another object that has it.
    pub name: &'a [u8],
    /// The content, no more than [`Mount::small_bytes_max`] bytes.
    pub data: &'a [u8],
    /// The attributes of the complete file, without a size.
    pub attributes: &'a SetAttributes,
}

/// The start of a file, or all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileStart {
    /// The file.
    pub handle: Handle,
    /// Its first bytes.
    pub data: Vec<u8>,
    /// True when the file ends there.
    pub is_whole: bool,
}

/// A new file under way.
#[derive(Debug)]
pub struct PendingFile(NewFlight);

/// The read of the start of a file under way.
#[derive(Debug)]
pub struct PendingStart(StartFlight);

/// A removal under way.
#[derive(Debug)]
pub struct PendingRemoval(RemovalFlight);

impl Mount {
    /// The longest content of a small file, in bytes; 0 if the version has no compounds.
    pub fn small_bytes_max(&self) -> usize {
        self.protocol().small_bytes_max()
    }

    /// Small files and removals that can be under way at a time; 0 if the version has no compounds.
    pub fn small_under_way_max(&self) -> usize {
        self.protocol().small_under_way_max()
    }

    /// Begins to make a file in one call: it is opened under its temporary name, filled, given its
    /// attributes, closed and renamed. Its content is stable then. `None` without compounds, or while
    /// many are under way.
    ///
    /// # Errors
    /// [`MountError::Argument`](super::MountError::Argument): a name. The server cannot be reached.
    pub fn begin_new_file(&self, new: &NewFile<'_>) -> Result<Option<PendingFile>> {
        component(new.temporary_name)?;
        component(new.name)?;
        Ok(self.protocol().begin_new_file(new)?.map(PendingFile))
    }

    /// Begins to read up to `bytes_max` bytes from the start of a file without opening it, and no more than
    /// a message holds. Data that this mount writes to data servers at the time may be missing. `None`
    /// without compounds, or while many are under way.
    ///
    /// # Errors
    /// [`MountError::Argument`](super::MountError::Argument): the name. The server cannot be reached.
    pub fn begin_file_start(
        &self,
        dir: &Handle,
        name: &[u8],
        bytes_max: usize,
    ) -> Result<Option<PendingStart>> {
        let begun = self.protocol().begin_start(dir, component(name)?, bytes_max)?;
        Ok(begun.map(PendingStart))
    }

    /// Begins to remove a name, also that of an empty directory. `None` without compounds, or while many
    /// are under way.
    ///
    /// # Errors
    /// [`MountError::Argument`](super::MountError::Argument): the name. The server cannot be reached.
    pub fn begin_remove(&self, dir: &Handle, name: &[u8]) -> Result<Option<PendingRemoval>> {
        Ok(self.protocol().begin_remove(dir, component(name)?)?.map(PendingRemoval))
    }
}

impl PendingFile {
    /// Waits until the file has its name.
    ///
    /// # Errors
    /// The server's answer. If the server has restarted meanwhile, the file may have its name all the same.
    pub fn wait(self) -> Result<()> {
        self.0.wait()
    }
}

impl PendingStart {
    /// Waits for the start of the file.
    ///
    /// # Errors
    /// The server's answer.
    pub fn wait(self) -> Result<FileStart> {
        self.0.wait()
    }
}

impl PendingRemoval {
    /// Waits for the end of the removal.
    ///
    /// # Errors
    /// The server's answer.
    pub fn wait(self) -> Result<()> {
        self.0.wait()
    }
}
