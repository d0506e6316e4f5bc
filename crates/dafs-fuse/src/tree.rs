//! Names and attributes.
//!
//! Invariants
//! * A new object belongs to the user who made it: the server makes it as that user, or the session
//!   gives it away, as far as the server lets it change owners. In a directory with the setgid bit
//!   it has the group that the server gave it.
//! * A node is entered into the table only when the kernel is going to be told of it.

use crate::kernel::{Caller, Errno, NodeId};
use crate::limits::NAME_BYTES_MAX;
use crate::nodes::Nodes;
use dafs_client::{
    Attributes, Client, Create, File, FileHandle, FsStatus, OpenOptions, SetAttributes,
    SpecialFile, Status, posix,
};

/// The result of an operation.
pub(crate) type Outcome<T> = Result<T, Errno>;

/// An object to make that is no regular file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum New<'a> {
    Directory,
    Symlink(&'a [u8]),
    Special(SpecialFile),
}

/// The mounted tree.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) client: Client,
    pub(crate) nodes: Nodes,
    /// The server makes objects as the user who makes them.
    pub(crate) makes_as_caller: bool,
}

/// A name that can be sent.
fn checked(name: &[u8]) -> Outcome<&[u8]> {
    if name.len() > NAME_BYTES_MAX { Err(Errno::ENAMETOOLONG) } else { Ok(name) }
}

impl Tree {
    pub(crate) fn new(client: Client, root: FileHandle) -> Self {
        Self { client, nodes: Nodes::new(root), makes_as_caller: false }
    }

    pub(crate) fn handle(&self, node: NodeId) -> Outcome<FileHandle> {
        self.nodes.handle(node).ok_or(Errno::ESTALE)
    }

    pub(crate) fn lookup(&self, dir: NodeId, name: &[u8]) -> Outcome<Attributes> {
        let dir = self.handle(dir)?;
        Ok(self.client.lookup_attributes(&dir, checked(name)?)?.1)
    }

    pub(crate) fn attributes(&self, node: NodeId) -> Outcome<Attributes> {
        let found = self.client.attributes(&self.handle(node)?);
        found.map_err(Errno::from).or_else(|error| match error {
            Errno::ESTALE => self.nodes.removed(node).ok_or(error),
            _ => Err(error),
        })
    }

    /// Changes attributes; under an open file, if there is one, for the size.
    pub(crate) fn set_attributes(
        &self,
        node: NodeId,
        file: Option<&File>,
        change: &SetAttributes,
    ) -> Outcome<()> {
        let handle = self.handle(node)?;
        let done = match file {
            Some(file) if change.size.is_some() => file.set_attributes(change),
            // The kernel sends an empty change for a `chown` with neither owner nor group.
            _ if change.is_empty() => posix::chown_to_same(&self.client, &handle),
            _ => self.client.set_attributes(&handle, change),
        };
        Ok(done?)
    }

    pub(crate) fn readlink(&self, node: NodeId) -> Outcome<Vec<u8>> {
        Ok(self.client.readlink(&self.handle(node)?)?)
    }

    /// Makes any object but a regular file.
    pub(crate) fn make(
        &self,
        dir: NodeId,
        name: &[u8],
        new: New<'_>,
        mode: u32,
        caller: Caller,
    ) -> Outcome<Attributes> {
        let (dir, name) = (self.handle(dir)?, checked(name)?);
        let attributes = SetAttributes::mode(mode & 0o7777);
        let made = match new {
            New::Directory => self.client.mkdir(&dir, name, &attributes),
            New::Symlink(text) => self.client.symlink(&dir, name, text),
            New::Special(kind) => self.client.mknod(&dir, name, kind, &attributes),
        }?;
        self.give_to(&dir, name, &made, caller)
    }

    /// Makes and opens a regular file. If a file has appeared meanwhile that need not be new, the
    /// kernel must look it up again: it alone knows whether the user may open it.
    pub(crate) fn create(
        &self,
        dir: NodeId,
        name: &[u8],
        options: &OpenOptions,
        must_be_new: bool,
        mode: u32,
        caller: Caller,
    ) -> Outcome<(File, Attributes)> {
        let (dir, name) = (self.handle(dir)?, checked(name)?);
        let new = options.create(Create::New).mode(mode & 0o7777);
        let file = self.client.open_at(&dir, name, &new).map_err(|error| match error.status() {
            Some(Status::Exist) if !must_be_new => Errno::ESTALE,
            _ => error.into(),
        })?;
        let attributes = self.give_to(&dir, name, file.handle(), caller)?;
        Ok((file, attributes))
    }

    /// Gives a new object to the user who made it, and returns its attributes. On failure the
    /// object is removed again, as if it had not been made.
    fn give_to(
        &self,
        dir: &FileHandle,
        name: &[u8],
        made: &FileHandle,
        caller: Caller,
    ) -> Outcome<Attributes> {
        self.try_to_give(dir, made, caller).map_err(|error| {
            if let Err(error) = self.client.remove(dir, name) {
                tracing::warn!(%error, "what could not be given to its maker stays");
            }
            error.into()
        })
    }

    fn try_to_give(
        &self,
        dir: &FileHandle,
        made: &FileHandle,
        caller: Caller,
    ) -> dafs_client::Result<Attributes> {
        let now = self.client.attributes(made)?;
        if self.makes_as_caller {
            return Ok(now);
        }
        let owner = Some(caller.uid).filter(|&uid| now.owner.id() != Some(uid));
        let mut group = Some(caller.gid).filter(|&gid| now.group.id() != Some(gid));
        if group.is_some() {
            let dir = self.client.attributes(dir)?;
            group = group.filter(|_| dir.mode & libc::S_ISGID == 0);
        }
        if owner.is_none() && group.is_none() {
            return Ok(now);
        }
        // A change of the owner clears setuid and setgid, which were requested together with this
        // owner.
        let lends = now.mode & (libc::S_ISUID | libc::S_ISGID) != 0 && !now.is_symlink();
        let mode = lends.then_some(now.mode);
        let change = SetAttributes { owner, group, mode, ..SetAttributes::default() };
        match self.client.set_attributes(made, &change) {
            Ok(()) => self.client.attributes(made),
            // A server that refuses changes of owners keeps the object for the user of the session.
            Err(error) if matches!(error.status(), Some(Status::Perm | Status::Acces)) => {
                tracing::debug!(uid = caller.uid, gid = caller.gid, %error, "not given to its maker");
                Ok(now)
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn link(&self, node: NodeId, dir: NodeId, name: &[u8]) -> Outcome<Attributes> {
        let (source, dir) = (self.handle(node)?, self.handle(dir)?);
        self.client.link(&source, &dir, checked(name)?)?;
        self.attributes(node)
    }

    /// Removes a directory, or another object. The server makes no difference, and the kernel's
    /// type may be stale, so it is checked right before. The result of `before` is held until the
    /// object is removed.
    pub(crate) fn remove<T>(
        &self,
        dir: NodeId,
        name: &[u8],
        is_directory: bool,
        before: impl FnOnce(&FileHandle) -> T,
    ) -> Outcome<()> {
        let (dir, name) = (self.handle(dir)?, checked(name)?);
        let found = self.client.lookup_attributes(&dir, name)?;
        match (found.1.is_directory(), is_directory) {
            (true, false) => Err(Errno::EISDIR),
            (false, true) => Err(Errno::ENOTDIR),
            _ => {
                let _during = before(&found.1.handle);
                self.client.remove(&dir, name)?;
                if is_directory {
                    self.nodes.note_removed(found.1);
                }
                Ok(())
            }
        }
    }

    pub(crate) fn rename(&self, from: (NodeId, &[u8]), to: (NodeId, &[u8])) -> Outcome<()> {
        let (from_dir, from) = (self.handle(from.0)?, checked(from.1)?);
        let (to_dir, to) = (self.handle(to.0)?, checked(to.1)?);
        Ok(self.client.rename(&from_dir, from, &to_dir, to)?)
    }

    pub(crate) fn fs_status(&self, node: NodeId) -> Outcome<FsStatus> {
        Ok(self.client.fs_status(&self.handle(node)?)?)
    }
}
