//! Paths: several components in one request, and symbolic links followed by the client.
//!
//! Invariants
//! * Names are raw bytes; only the slash, "." and ".." mean something.
//! * A path is followed through at most `SYMLINKS_FOLLOWED_MAX` links, so a loop ends.
//! * An absolute link text starts at the root of the server's name space.
//! * A slash, "." or ".." at the end of a path asks for a directory, also of a link's text (POSIX
//!   4.13).

use crate::attributes::{Attributes, FileHandle};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::limits::{NAME_BYTES_MAX, PATH_BYTES_MAX, SYMLINKS_FOLLOWED_MAX};
use crate::names::component;
pub use dafs_parallel::Follow;
use dafs_wire::dafs as wire;
use dafs_wire::dafs::{Procedure, Request, Status};
use dafs_wire::path::{SplitPath, is_dots, prepend};
use std::collections::VecDeque;

/// An object found by path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its handle.
    pub handle: FileHandle,
    /// Its attributes at that time.
    pub attributes: Attributes,
}

/// The place of a new name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The directory.
    pub dir: FileHandle,
    /// The name in it, not looked up.
    pub name: Vec<u8>,
}

/// The most components of one LOOKUP.
pub(crate) const COMPONENTS_PER_LOOKUP: usize = 64;

impl Client {
    /// The object at `path`, from the root of the server. Links in the middle are always followed.
    ///
    /// # Errors
    /// The server's answer for the component that failed, or too many links.
    pub fn resolve(&self, path: &[u8], follow: Follow) -> Result<Found> {
        self.resolve_from(&self.root(), path, follow)
    }

    /// The object at `path`, from a directory.
    ///
    /// # Errors
    /// As [`Client::resolve`].
    pub fn resolve_from(&self, dir: &FileHandle, path: &[u8], follow: Follow) -> Result<Found> {
        let mut walk = Walk::new(self, *dir, path)?;
        loop {
            if let Some(found) = walk.run_ahead(follow)? {
                return Ok(found);
            }
            if let Some(found) = walk.step(follow)? {
                return Ok(found);
            }
        }
    }

    /// The directory that holds the last component of `path`, and that component, which need not
    /// exist. Links before it are followed. A slash behind the component asks for a directory of
    /// that name: then it must exist, and a link to a directory is none.
    ///
    /// # Errors
    /// As [`Client::resolve`]; a path that ends in "." or "..", or the root, names no entry.
    pub fn resolve_parent(&self, path: &[u8]) -> Result<Place> {
        self.resolve_parent_from(&self.root(), path)
    }

    /// As [`Client::resolve_parent`], from a directory.
    ///
    /// # Errors
    /// As [`Client::resolve_parent`].
    pub fn resolve_parent_from(&self, dir: &FileHandle, path: &[u8]) -> Result<Place> {
        let place = self.place(dir, path)?;
        if SplitPath::of(path).wants_directory {
            self.check_directory(&place)?;
        }
        Ok(place)
    }

    /// As [`Client::resolve_parent_from`], for a new directory: a slash behind the last component
    /// is ignored.
    ///
    /// # Errors
    /// As [`Client::resolve`]; EXIST for a path that ends in "." or "..", and for the root.
    pub fn resolve_new_directory_from(&self, dir: &FileHandle, path: &[u8]) -> Result<Place> {
        if SplitPath::of(path).is_nameless() {
            self.resolve_from(dir, path, Follow::Yes)?;
            return Err(exists());
        }
        self.place(dir, path)
    }

    /// As [`Client::resolve_parent_from`], for a new object that is no directory, such as a link: a
    /// path that asks for a directory is refused.
    ///
    /// # Errors
    /// As [`Client::resolve_new_directory_from`]; EXIST or NOENT when there is a slash behind the
    /// last component.
    pub fn resolve_new_from(&self, dir: &FileHandle, path: &[u8]) -> Result<Place> {
        let place = self.resolve_new_directory_from(dir, path)?;
        if SplitPath::of(path).wants_directory {
            self.lookup(&place.dir, &place.name)?;
            return Err(exists());
        }
        Ok(place)
    }

    /// The places of both names of a rename, each from a directory. A slash behind either asks for
    /// a directory to be renamed.
    ///
    /// # Errors
    /// As [`Client::resolve_parent`].
    pub fn resolve_rename(
        &self,
        (from_dir, from): (&FileHandle, &[u8]),
        (to_dir, to): (&FileHandle, &[u8]),
    ) -> Result<(Place, Place)> {
        let (old, new) = (self.place(from_dir, from)?, self.place(to_dir, to)?);
        if SplitPath::of(from).wants_directory || SplitPath::of(to).wants_directory {
            self.check_directory(&old)?;
        }
        Ok((old, new))
    }

    /// Removes the object that a path names: an empty directory, or another object, as
    /// `is_directory` says.
    ///
    /// # Errors
    /// The server's answer; ISDIR or NOTDIR for an object of the other kind.
    pub fn remove_from(&self, dir: &FileHandle, path: &[u8], is_directory: bool) -> Result<()> {
        let refuse = |status| Err(Error::Status { procedure: Procedure::Remove, status });
        let split = SplitPath::of(path);
        if split.is_nameless() && (!is_directory || split.name == b"..") {
            self.resolve_from(dir, path, Follow::Yes)?;
            return refuse(if is_directory { Status::NotEmpty } else { Status::IsDir });
        }
        let place = self.resolve_parent_from(dir, path)?;
        // One procedure removes either kind (DAFS 6), so the kind is checked first.
        let (_, found) = self.lookup_attributes(&place.dir, &place.name)?;
        match (found.is_directory(), is_directory) {
            (true, false) => refuse(Status::IsDir),
            (false, true) => refuse(Status::NotDir),
            _ => self.remove(&place.dir, &place.name),
        }
    }

    /// Makes a hard link to the object that a path names. A symbolic link is linked itself.
    ///
    /// # Errors
    /// The server's answer; PERM for a directory.
    pub fn link_from(
        &self,
        (from_dir, from): (&FileHandle, &[u8]),
        (to_dir, to): (&FileHandle, &[u8]),
    ) -> Result<()> {
        let found = self.resolve_from(from_dir, from, Follow::No)?;
        let place = self.resolve_new_from(to_dir, to)?;
        if found.attributes.is_directory() {
            let there = self.lookup(&place.dir, &place.name).is_ok();
            let status = if there { Status::Exist } else { Status::Perm };
            return Err(Error::Status { procedure: Procedure::Link, status });
        }
        self.link(&found.handle, &place.dir, &place.name)
    }

    /// The directory that holds the last component of a path, and that component.
    fn place(&self, dir: &FileHandle, path: &[u8]) -> Result<Place> {
        let split = SplitPath::of(path);
        if split.name.is_empty() {
            return Err(Error::Argument("the root directory has no name of its own"));
        }
        if split.ends_in_dots() {
            // An error earlier on the path comes first.
            self.resolve_from(dir, path, Follow::Yes)?;
        }
        let dir = match split.parent {
            b"" => *dir,
            parent => self.resolve_from(dir, parent, Follow::Yes)?.handle,
        };
        Ok(Place { dir, name: component(split.name)?.to_vec() })
    }

    fn check_directory(&self, place: &Place) -> Result<()> {
        let found = self.resolve_from(&place.dir, &place.name, Follow::No)?;
        if found.attributes.is_directory() { Ok(()) } else { Err(no_directory()) }
    }
}

fn exists() -> Error {
    Error::Status { procedure: Procedure::Create, status: Status::Exist }
}

fn no_directory() -> Error {
    Error::Status { procedure: Procedure::Lookup, status: Status::NotDir }
}

/// The state of a path's resolution.
struct Walk<'a> {
    client: &'a Client,
    at: FileHandle,
    left: VecDeque<Vec<u8>>,
    links: u32,
    /// Set when a batched LOOKUP has met a link; from then on every component is looked up alone.
    careful: bool,
}

impl<'a> Walk<'a> {
    fn new(client: &'a Client, dir: FileHandle, path: &[u8]) -> Result<Self> {
        let mut walk = Self { client, at: dir, left: VecDeque::new(), links: 0, careful: false };
        walk.prepend(path)?;
        Ok(walk)
    }

    /// Puts the components of `path` before the remaining ones. An absolute path starts at the
    /// root. The last component is "." when the whole must end at a directory.
    fn prepend(&mut self, path: &[u8]) -> Result<()> {
        if !prepend(&mut self.left, path, PATH_BYTES_MAX) {
            return Err(Error::TooLong("a path is over 4096 bytes long"));
        }
        if path.first() == Some(&b'/') {
            self.at = self.client.root();
        }
        Ok(())
    }

    /// Looks up all remaining components in few requests, which works as long as there is no link.
    /// Returns the object at the end of the path.
    fn run_ahead(&mut self, follow: Follow) -> Result<Option<Found>> {
        while !self.careful && !self.left.is_empty() {
            if is_dots(&self.left[0]) {
                self.go_by_dots()?;
                continue;
            }
            let batch: Vec<&[u8]> = self
                .left
                .iter()
                .enumerate()
                // An error before a name that is too long comes first.
                .take_while(|(at, name)| {
                    !is_dots(name) && (*at == 0 || name.len() <= NAME_BYTES_MAX)
                })
                .take(COMPONENTS_PER_LOOKUP)
                .map(|(_, name)| name.as_slice())
                .collect();
            match lookup(self.client, &self.at, &batch) {
                Ok(handle) => {
                    let (count, last) = (batch.len(), batch.len() == self.left.len());
                    if last {
                        let attributes = self.client.attributes(&handle)?;
                        if follow == Follow::No || !attributes.is_symlink() {
                            return Ok(Some(Found { handle, attributes }));
                        }
                        self.careful = true;
                        break;
                    }
                    // The next component may be "..", which means something else behind a link.
                    let attributes = self.client.attributes(&handle)?;
                    if attributes.is_symlink() {
                        self.careful = true;
                        break;
                    }
                    if !attributes.is_directory() {
                        return Err(no_directory());
                    }
                    self.left.drain(..count);
                    self.at = handle;
                }
                Err(error) if matches!(error.status(), Some(Status::NotDir | Status::Symlink)) => {
                    self.careful = true;
                }
                Err(error) => return Err(error),
            }
        }
        if self.left.is_empty() {
            let attributes = self.client.attributes(&self.at)?;
            return Ok(Some(Found { handle: self.at, attributes }));
        }
        Ok(None)
    }

    /// Looks up one component and checks its kind.
    fn step(&mut self, follow: Follow) -> Result<Option<Found>> {
        let Some(name) = self.left.pop_front() else { return Ok(None) };
        if is_dots(&name) {
            self.left.push_front(name);
            self.go_by_dots()?;
            return Ok(None);
        }
        let handle = lookup(self.client, &self.at, &[&name])?;
        let attributes = self.client.attributes(&handle)?;
        let last = self.left.is_empty();
        if attributes.is_symlink() && !(last && follow == Follow::No) {
            self.links += 1;
            if self.links > SYMLINKS_FOLLOWED_MAX {
                return Err(Error::SymlinkLoop(SYMLINKS_FOLLOWED_MAX));
            }
            let text = self.client.readlink(&handle)?;
            if text.is_empty() {
                let (procedure, status) = (Procedure::Lookup, Status::NoEnt);
                return Err(Error::Status { procedure, status });
            }
            self.prepend(&text)?;
            return Ok(None);
        }
        if last {
            return Ok(Some(Found { handle, attributes }));
        }
        if !attributes.is_directory() {
            return Err(no_directory());
        }
        self.at = handle;
        Ok(None)
    }

    /// Stays in the directory for ".", goes up one for ".."; the root is above itself.
    fn go_by_dots(&mut self) -> Result<()> {
        if self.left.pop_front().is_none_or(|name| name == b".") || self.at == self.client.root() {
            return Ok(());
        }
        match self.client.parent(&self.at) {
            Ok(parent) => self.at = parent,
            Err(error) if error.status() == Some(Status::NoEnt) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// One LOOKUP of several components.
pub(crate) fn lookup(client: &Client, dir: &FileHandle, path: &[&[u8]]) -> Result<FileHandle> {
    for name in path {
        component(name)?;
    }
    let request = Request::Lookup(wire::Lookup { dir: *dir, path: wire::Path::new(path) });
    client.ask(&request, |reply| Some(reply.lookup()?.fh))
}
