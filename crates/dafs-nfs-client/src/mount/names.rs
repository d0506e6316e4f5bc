//! Names and attributes: one call to the server per function.

use super::attributes::{Attributes, FsStatus, SetAttributes, SpecialFile};
use super::directory::ReadDir;
use super::error::Result;
use super::path::component;
use super::protocol::New;
use super::{Handle, Mount};

impl Mount {
    /// The object of this name in a directory, and its attributes.
    ///
    /// # Errors
    /// The server's answer.
    pub fn lookup(&self, dir: &Handle, name: &[u8]) -> Result<(Handle, Attributes)> {
        self.protocol().lookup(dir, component(name)?)
    }

    /// The attributes of an object.
    ///
    /// # Errors
    /// The server's answer.
    pub fn attributes(&self, object: &Handle) -> Result<Attributes> {
        self.protocol().attributes(object)
    }

    /// Changes attributes. A size is set without an open; of an open file, use
    /// [`File::set_attributes`](super::File::set_attributes).
    ///
    /// # Errors
    /// The server's answer.
    pub fn set_attributes(&self, object: &Handle, new: &SetAttributes) -> Result<()> {
        match new.is_empty() {
            true => Ok(()),
            false => self.protocol().set_attributes(object, None, new),
        }
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// The server's answer.
    pub fn mkdir(&self, dir: &Handle, name: &[u8], new: &SetAttributes) -> Result<Handle> {
        self.protocol().make(dir, component(name)?, New::Directory, new)
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// The server's answer.
    pub fn symlink(&self, dir: &Handle, name: &[u8], text: &[u8]) -> Result<Handle> {
        let new = SetAttributes::mode(0o777);
        self.protocol().make(dir, component(name)?, New::Symlink(text), &new)
    }

    /// Makes a pipe, socket or device.
    ///
    /// # Errors
    /// The server's answer.
    pub fn mknod(
        &self,
        dir: &Handle,
        name: &[u8],
        kind: SpecialFile,
        new: &SetAttributes,
    ) -> Result<Handle> {
        self.protocol().make(dir, component(name)?, New::Special(kind), new)
    }

    /// Removes an object that is no directory. NFSv4 removes an empty directory too.
    ///
    /// # Errors
    /// The server's answer.
    pub fn remove(&self, dir: &Handle, name: &[u8]) -> Result<()> {
        self.protocol().remove(dir, component(name)?, false)
    }

    /// Removes an empty directory. NFSv4 removes other objects too.
    ///
    /// # Errors
    /// The server's answer.
    pub fn rmdir(&self, dir: &Handle, name: &[u8]) -> Result<()> {
        self.protocol().remove(dir, component(name)?, true)
    }

    /// Renames an object, and replaces an object of the new name.
    ///
    /// # Errors
    /// The server's answer.
    pub fn rename(&self, from: &Handle, old: &[u8], to: &Handle, new: &[u8]) -> Result<()> {
        self.protocol().rename(from, component(old)?, to, component(new)?)
    }

    /// Gives an object a further name.
    ///
    /// # Errors
    /// The server's answer.
    pub fn link(&self, object: &Handle, dir: &Handle, name: &[u8]) -> Result<()> {
        self.protocol().link_to(object, dir, component(name)?)
    }

    /// The text of a symbolic link.
    ///
    /// # Errors
    /// The server's answer.
    pub fn readlink(&self, link: &Handle) -> Result<Vec<u8>> {
        self.protocol().readlink(link)
    }

    /// The entries of a directory, without "." and "..", in the server's order.
    pub fn read_dir(&self, dir: &Handle) -> ReadDir {
        ReadDir::new(self.clone(), dir.clone())
    }

    /// Space and limits of the file system that holds an object.
    ///
    /// # Errors
    /// The server's answer.
    pub fn fs_status(&self, object: &Handle) -> Result<FsStatus> {
        self.protocol().fs_status(object)
    }
}
