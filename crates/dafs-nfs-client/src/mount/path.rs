//! Paths, and symbolic links followed by the client.
//!
//! Invariants
//! * Names are raw bytes; only the slash, "." and ".." mean something.
//! * A path is followed through at most `SYMLINKS_FOLLOWED_MAX` links, so a loop ends.
//! * An absolute link text starts at the root of the server's name space.
//! * That root is a directory, so its attributes are read only for a caller that wants them.
//! * A slash, "." or ".." at the end of a path asks for a directory, also of a link's text (POSIX
//!   4.13).

use super::Mount;
use super::attributes::Attributes;
use super::error::{MountError, Result};
use super::limits::{PATH_BYTES_MAX, SYMLINKS_FOLLOWED_MAX};
use crate::files::Handle;
pub use dafs_parallel::Follow;
use dafs_wire::nfs4::Status;
use dafs_wire::path::{SplitPath, is_dots, prepend};
use std::collections::VecDeque;

/// An object found by path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its handle.
    pub handle: Handle,
    /// Its attributes at that time.
    pub attributes: Attributes,
}

/// The place of a new name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The directory.
    pub dir: Handle,
    /// The name in it, not looked up.
    pub name: Vec<u8>,
}

impl Mount {
    /// The object at `path`, from the root of the server. Links in the middle are always followed.
    ///
    /// # Errors
    /// The server's answer for the component that failed, or too many links.
    pub fn resolve(&self, path: &[u8], follow: Follow) -> Result<Found> {
        let Here { handle, attributes } = self.walk(path, follow)?;
        let attributes = match attributes {
            Some(attributes) => attributes,
            None => self.protocol().attributes(&handle)?,
        };
        Ok(Found { handle, attributes })
    }

    fn walk(&self, path: &[u8], follow: Follow) -> Result<Here> {
        let mut walk = Walk { mount: self, trail: Vec::new(), left: VecDeque::new() };
        walk.prepend(path)?;
        walk.run(follow)
    }

    /// The directory that holds the last component of `path`, and that component, which need not
    /// exist. Links before it are followed. A slash behind the component asks for a directory of
    /// that name: then it must exist, and a link to a directory is none.
    ///
    /// # Errors
    /// As [`Mount::resolve`]; a path that ends in "." or "..", or the root, names no entry.
    pub fn resolve_parent(&self, path: &[u8]) -> Result<Place> {
        let place = self.place(path)?;
        if SplitPath::of(path).wants_directory {
            self.check_directory(&place)?;
        }
        Ok(place)
    }

    /// As [`Mount::resolve_parent`], for a new directory: a slash behind the last component is
    /// ignored.
    ///
    /// # Errors
    /// As [`Mount::resolve`]; EXIST for a path that ends in "." or "..", and for the root.
    pub fn resolve_new_directory(&self, path: &[u8]) -> Result<Place> {
        if SplitPath::of(path).is_nameless() {
            self.resolve(path, Follow::Yes)?;
            return Err(MountError::Refused { operation: "CREATE", status: Status::Exist });
        }
        self.place(path)
    }

    /// The places of both names of a rename. A slash behind either asks for a directory to be
    /// renamed.
    ///
    /// # Errors
    /// As [`Mount::resolve_parent`].
    pub fn resolve_rename(&self, from: &[u8], to: &[u8]) -> Result<(Place, Place)> {
        let (old, new) = (self.place(from)?, self.place(to)?);
        if SplitPath::of(from).wants_directory || SplitPath::of(to).wants_directory {
            self.check_directory(&old)?;
        }
        Ok((old, new))
    }

    /// The directory that holds the last component of a path, and that component.
    fn place(&self, path: &[u8]) -> Result<Place> {
        let split = SplitPath::of(path);
        if split.name.is_empty() {
            return Err(MountError::Argument("the root directory has no name of its own"));
        }
        if split.ends_in_dots() {
            // An error earlier on the path comes first.
            self.resolve(path, Follow::Yes)?;
        }
        let dir = self.walk(split.parent, Follow::Yes)?.handle;
        Ok(Place { dir, name: component(split.name)?.to_vec() })
    }

    fn check_directory(&self, place: &Place) -> Result<()> {
        check_directory(&self.protocol().lookup(&place.dir, &place.name)?.1)
    }
}

fn check_directory(attributes: &Attributes) -> Result<()> {
    match attributes.is_directory() {
        true => Ok(()),
        false => Err(MountError::Refused { operation: "LOOKUP", status: Status::NotDir }),
    }
}

/// Refuses an invalid name.
pub(crate) fn component(name: &[u8]) -> Result<&[u8]> {
    match name {
        b"" => Err(MountError::Argument("a name is empty")),
        b"." | b".." => Err(MountError::Argument("\".\" and \"..\" are no names of their own")),
        _ if name.contains(&b'/') => Err(MountError::Argument("a name holds a slash")),
        _ if name.contains(&0) => Err(MountError::Argument("a name holds a zero byte")),
        _ => Ok(name),
    }
}

/// The current object of a walk; without attributes it is the root of the server's name space.
struct Here {
    handle: Handle,
    attributes: Option<Attributes>,
}

/// The state of a path's resolution.
struct Walk<'a> {
    mount: &'a Mount,
    /// The names from the root to the current object, with the objects found. Objects in the
    /// directory in which the walk begins (an export of NFSv3) have no handle above them.
    trail: Vec<(Vec<u8>, Option<Found>)>,
    left: VecDeque<Vec<u8>>,
}

impl Walk<'_> {
    /// Puts the components of `path` before the remaining ones. An absolute path starts at the
    /// root. The last component is "." when the whole must end at a directory.
    fn prepend(&mut self, path: &[u8]) -> Result<()> {
        if !prepend(&mut self.left, path, PATH_BYTES_MAX) {
            return Err(MountError::Argument("a path is over 4096 bytes long"));
        }
        if path.first() == Some(&b'/') {
            self.trail.clear();
        }
        Ok(())
    }

    fn run(mut self, follow: Follow) -> Result<Here> {
        let mut links = 0;
        loop {
            while self.left.front().is_some_and(|name| name == b"..") {
                if let Some((_, Some(found))) = self.trail.last() {
                    check_directory(&found.attributes)?;
                }
                self.left.pop_front();
                // The root is above itself.
                self.trail.pop();
            }
            let here = self.here()?;
            let Some(name) = self.left.pop_front() else { return Ok(here) };
            if name == b".." {
                self.left.push_front(name);
                continue;
            }
            if let Some(attributes) = &here.attributes {
                check_directory(attributes)?;
            }
            if name == b"." {
                continue;
            }
            let (handle, attributes) =
                self.mount.protocol().lookup(&here.handle, component(&name)?)?;
            if attributes.is_symlink() && !(self.left.is_empty() && follow == Follow::No) {
                links += 1;
                if links > SYMLINKS_FOLLOWED_MAX {
                    return Err(MountError::SymlinkLoop(SYMLINKS_FOLLOWED_MAX));
                }
                let text = self.mount.protocol().readlink(&handle)?;
                if text.is_empty() {
                    let operation = "LOOKUP";
                    return Err(MountError::Refused { operation, status: Status::NoEnt });
                }
                self.prepend(&text)?;
                continue;
            }
            self.trail.push((name, Some(Found { handle, attributes })));
        }
    }

    /// The current object of the walk. At the root, or outside of known objects, the server is
    /// asked for the start of the rest of the path.
    fn here(&mut self) -> Result<Here> {
        if let Some((_, Some(found))) = self.trail.last() {
            let Found { handle, attributes } = found.clone();
            return Ok(Here { handle, attributes: Some(attributes) });
        }
        let ahead = self.left.iter().take_while(|name| !is_dots(name));
        let path: Vec<&[u8]> =
            self.trail.iter().map(|(name, _)| name).chain(ahead).map(Vec::as_slice).collect();
        let start = self.mount.protocol().start(&path)?;
        while self.trail.len() > start.components {
            if let Some((name, _)) = self.trail.pop() {
                self.left.push_front(name);
            }
        }
        while self.trail.len() < start.components {
            match self.left.pop_front() {
                Some(name) => self.trail.push((name, None)),
                None => return Err(MountError::protocol("a root lies below its own path")),
            }
        }
        let handle = start.handle;
        let Some(last) = self.trail.last_mut() else {
            return Ok(Here { handle, attributes: None });
        };
        let attributes = self.mount.protocol().attributes(&handle)?;
        last.1 = Some(Found { handle: handle.clone(), attributes: attributes.clone() });
        Ok(Here { handle, attributes: Some(attributes) })
    }
}
