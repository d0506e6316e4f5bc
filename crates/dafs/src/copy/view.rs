//! Trees on this host and on servers in one form, for commands that read or tidy them.
//!
//! Invariants
//! * Below a tree no symlink is followed.
//! * The way into a tree is on the heap. A tree on this host may be as deep as the limit of open files
//!   allows.

use super::local::{self, Parent};
use super::source::{Folder, Source};
use crate::failure::Failure;
use crate::output::complain;
use crate::remote::{Attributes, DirEntry, Error, Follow, Handle, Remote, RemoteUrl, Status};
use crate::session::Sessions;
use crate::show::readable;
use rustix::fs::{AtFlags, Mode, OFlags, readlinkat, statat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A tree, as the command line names it.
#[derive(Debug, Clone)]
pub(crate) enum Operand {
    Local(PathBuf),
    Remote(RemoteUrl),
}

impl Operand {
    /// A URL, or a path of this host.
    pub(crate) fn parse(text: &OsStr) -> Result<Self, Failure> {
        let is_of_scheme = |letter: u8| letter.is_ascii_alphanumeric() || letter == b'+';
        let url = text.to_str().filter(|text| {
            text.split_once("://").is_some_and(|(scheme, _)| scheme.bytes().all(is_of_scheme))
        });
        match url {
            Some(url) => RemoteUrl::parse(url).map(Self::Remote).map_err(Failure::Usage),
            None => Ok(Self::Local(PathBuf::from(text))),
        }
    }

    /// True if both are on this host, or one session serves both.
    pub(crate) fn is_on_server_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Local(_), Self::Local(_)) => true,
            (Self::Remote(one), Self::Remote(other)) => one.is_same_session(other),
            _ => false,
        }
    }

    /// The object at a path below this one.
    pub(crate) fn join(&self, path: &[u8]) -> Self {
        match self {
            _ if path.is_empty() => self.clone(),
            Self::Local(top) => Self::Local(top.join(OsStr::from_bytes(path))),
            // INVARIANT: names of objects are valid in URLs; the top itself stands for others.
            Self::Remote(top) => Self::Remote(top.join(path).unwrap_or_else(|_| top.clone())),
        }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => f.write_str(&readable(path.as_os_str().as_bytes())),
            Self::Remote(url) => url.fmt(f),
        }
    }
}

/// An open directory.
#[derive(Debug, Clone)]
pub(crate) enum Opened {
    Local(Parent),
    Remote(Handle),
}

/// A tree, or a single object.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) top: Operand,
    pub(crate) attributes: Attributes,
    /// The server; `None` for a tree of this host.
    pub(crate) remote: Option<Remote>,
    /// The top, if it is a directory.
    pub(crate) directory: Option<Opened>,
}

impl Tree {
    /// Opens the tree that the user has named. Symlinks in that name are followed.
    pub(crate) fn open(sessions: &mut Sessions<'_>, top: &Operand) -> Result<Self, Failure> {
        match top {
            Operand::Remote(url) => {
                let client = sessions.client(url)?;
                let found = client
                    .resolve(url.path(), Follow::Yes)
                    .map_err(|error| Failure::remote(url, &error))?;
                let is_directory = found.attributes.is_directory();
                Ok(Self {
                    top: top.clone(),
                    attributes: found.attributes,
                    remote: Some(client),
                    directory: is_directory.then_some(Opened::Remote(found.handle)),
                })
            }
            Operand::Local(path) => {
                let failed = |error: Errno| Failure::local(path.display(), &error.into());
                let attributes =
                    Attributes::of_stat(&rustix::fs::stat(path.as_path()).map_err(failed)?);
                let directory = match attributes.is_directory() {
                    true => Some(Opened::Local(Arc::new(open_named(path).map_err(failed)?))),
                    false => None,
                };
                Ok(Self { top: top.clone(), attributes, remote: None, directory })
            }
        }
    }

    /// As [`Tree::open`], for a directory.
    pub(crate) fn open_directory(
        sessions: &mut Sessions<'_>,
        top: &Operand,
    ) -> Result<(Self, Opened), Failure> {
        let tree = Self::open(sessions, top)?;
        match tree.directory.clone() {
            Some(directory) => Ok((tree, directory)),
            None => Err(Failure::Usage(format!("{top} is no directory"))),
        }
    }

    /// The tree as the source of a copy; `None` if it is no directory.
    pub(super) fn source(&self) -> Option<Source> {
        let folder = match (self.directory.clone()?, &self.remote) {
            (Opened::Local(parent), _) => Folder::Local(parent),
            (Opened::Remote(handle), client) => Folder::Remote(client.clone()?, handle),
        };
        let (attributes, path) = (self.attributes.clone(), self.top.clone());
        Some(Source { name: None, attributes, folder, path })
    }

    /// An error about the object at a path below the top.
    pub(crate) fn failure(&self, path: &[u8], error: &Trouble) -> Failure {
        let what = self.top.join(path);
        match error {
            Trouble::Here(error) => Failure::local(what, &(*error).into()),
            Trouble::Remote(error) => Failure::remote(what, error),
        }
    }

    /// The objects in a directory, by name. One that the server has mounted there has no attributes.
    pub(crate) fn list(&self, directory: &Opened) -> Result<Vec<DirEntry>, Trouble> {
        let mut entries = Vec::new();
        match (directory, &self.remote) {
            (Opened::Remote(handle), Some(client)) => {
                for entry in client.read_dir(handle) {
                    let mut entry = entry?;
                    if entry.attributes.is_none() {
                        let found = client.lookup(handle, &entry.name);
                        match found.and_then(|found| client.attributes(&found)) {
                            Ok(attributes) => entry.attributes = Some(attributes),
                            Err(error) if error.status() == Some(Status::NoEnt) => continue,
                            Err(error) if error.is_mount_point() => {}
                            Err(error) => return Err(error.into()),
                        }
                    }
                    entries.push(entry);
                }
            }
            (Opened::Local(parent), _) => {
                for name in local::names(parent)? {
                    match statat(parent, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW) {
                        Ok(stat) => entries.push(DirEntry {
                            name: name.into_vec(),
                            attributes: Some(Attributes::of_stat(&stat)),
                        }),
                        Err(Errno::NOENT) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            (Opened::Remote(_), None) => {}
        }
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    /// Opens a directory in another one.
    pub(crate) fn enter(
        &self,
        directory: &Opened,
        name: &[u8],
        attributes: &Attributes,
    ) -> Result<Opened, Trouble> {
        Ok(match directory {
            Opened::Local(parent) => {
                let name = OsString::from_vec(name.to_vec());
                Opened::Local(Arc::new(local::open_directory(parent, &name)?))
            }
            Opened::Remote(_) => Opened::Remote(attributes.handle),
        })
    }

    /// The text of a symlink.
    pub(crate) fn readlink(
        &self,
        directory: &Opened,
        name: &[u8],
        attributes: &Attributes,
    ) -> Result<Vec<u8>, Trouble> {
        match (directory, &self.remote) {
            (Opened::Local(parent), _) => {
                Ok(readlinkat(parent, OsStr::from_bytes(name), Vec::new())?.into_bytes())
            }
            (Opened::Remote(_), Some(client)) => Ok(client.readlink(&attributes.handle)?),
            (Opened::Remote(_), None) => Ok(Vec::new()),
        }
    }
}

fn open_named(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// An error of this host or of a server.
#[derive(Debug)]
pub(crate) enum Trouble {
    Here(Errno),
    Remote(Error),
}

impl From<Errno> for Trouble {
    fn from(error: Errno) -> Self {
        Self::Here(error)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Remote(error)
    }
}

/// An object that a walk has met.
#[derive(Debug)]
pub(crate) struct Visited<'a> {
    pub(crate) directory: &'a Opened,
    pub(crate) entry: &'a DirEntry,
    /// Its path below the top.
    pub(crate) path: &'a [u8],
    /// 1 for an object in the top.
    pub(crate) depth: usize,
    /// It is the last one of its directory.
    pub(crate) is_last: bool,
}

/// A directory on the way.
struct Level {
    directory: Opened,
    /// Its path, with a slash at the end, or empty.
    path: Vec<u8>,
    left: std::vec::IntoIter<DirEntry>,
}

/// Shows `visit` each object below the top, depth first, by name. A failure is reported and does not
/// stop the walk, unless the server is gone.
pub(crate) fn walk(
    tree: &Tree,
    mut visit: impl FnMut(&Visited<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Some(top) = tree.directory.clone() else { return Ok(()) };
    let mut result = Ok(());
    let mut levels = vec![level(tree, top, Vec::new()).map_err(|e| tree.failure(b"", &e))?];
    loop {
        let depth = levels.len();
        let Some(current) = levels.last_mut() else { return result };
        let Some(entry) = current.left.next() else {
            levels.pop();
            continue;
        };
        let path = [&current.path[..], &entry.name[..]].concat();
        let is_last = current.left.as_slice().is_empty();
        let directory = &current.directory;
        let visited = Visited { directory, entry: &entry, path: &path, depth, is_last };
        let mut outcome = visit(&visited);
        if let Some(attributes) = entry.attributes.as_ref().filter(|found| found.is_directory()) {
            let inner = tree.enter(directory, &entry.name, attributes);
            match inner.and_then(|inner| level(tree, inner, [&path[..], b"/"].concat())) {
                Ok(inner) => levels.push(inner),
                Err(error) => outcome = outcome.and(Err(tree.failure(&path, &error))),
            }
        }
        match outcome {
            Ok(()) => {}
            Err(Failure::Failed(text)) => {
                complain!("dafs: {text}");
                result = Err(Failure::Reported);
            }
            Err(Failure::Reported) => result = Err(Failure::Reported),
            Err(other) => return Err(other),
        }
    }
}

fn level(tree: &Tree, directory: Opened, path: Vec<u8>) -> Result<Level, Trouble> {
    let left = tree.list(&directory)?.into_iter();
    Ok(Level { directory, path, left })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_makes_a_url() {
        let parse = |text: &str| Operand::parse(OsStr::new(text));
        assert!(matches!(parse("dafs://h/a"), Ok(Operand::Remote(_))));
        assert!(matches!(parse("./x://y"), Ok(Operand::Local(_))));
        assert!(matches!(parse("a:b"), Ok(Operand::Local(_))));
        assert!(matches!(parse("http://h/"), Err(Failure::Usage(_))));
    }

    #[test]
    fn operands_of_one_session_are_told() {
        let parse = |text: &str| Operand::parse(OsStr::new(text)).unwrap();
        let same = |one: &str, other: &str| parse(one).is_on_server_of(&parse(other));
        assert!(same("a", "/b") && same("nfs://h/a", "nfs://h/b"));
        assert!(!same("a", "dafs://h/a") && !same("nfs://h/a", "dafs://h/a"));
        assert!(!same("dafs://h/a", "dafs://g/a"));
    }

    #[test]
    fn a_walk_shows_each_object_once_and_follows_no_symlink() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("b/c")).unwrap();
        std::fs::write(dir.path().join("b/c/file"), "1234").unwrap();
        std::os::unix::fs::symlink("b", dir.path().join("a")).unwrap();
        let top = Operand::Local(dir.path().to_owned());
        let attributes = Attributes::of_stat(&rustix::fs::stat(dir.path()).unwrap());
        let directory = Some(Opened::Local(Arc::new(open_named(dir.path()).unwrap())));
        let tree = Tree { top, attributes, remote: None, directory };
        let mut seen = Vec::new();
        walk(&tree, |visited| {
            let size = visited.entry.attributes.as_ref().unwrap().size;
            let path = String::from_utf8(visited.path.to_vec()).unwrap();
            seen.push((path, visited.depth, visited.is_last, size));
            Ok(())
        })
        .unwrap();
        let shown: Vec<_> = seen
            .iter()
            .map(|(path, depth, is_last, _)| (path.as_str(), *depth, *is_last))
            .collect();
        assert_eq!(
            shown,
            [("a", 1, false), ("b", 1, true), ("b/c", 2, true), ("b/c/file", 3, true)]
        );
        assert_eq!(seen[3].3, 4);
    }
}
