//! The source of a copy to a server: a tree of this host, or one of the same or another server.
//!
//! Invariants
//! * Below the top no symlink is followed.

use super::error::{CopyError, here, remote};
use super::local::{self, Identity, Parent, Xattr, component};
use super::pieces;
use super::report::Report;
use super::sync::Policy;
use super::view::{Operand, Trouble};
use crate::remote::{
    Attributes, Error, File, Follow, Handle, OpenOptions, ReadDir, Remote, RemoteUrl, Status,
};
use crate::show;
use dafs_client::SplitPath;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, fstat, readlinkat, seek, statat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An open directory of the source.
#[derive(Debug, Clone)]
pub(super) enum Folder {
    Local(Parent),
    Remote(Remote, Handle),
}

/// An open file of the source.
#[derive(Debug)]
pub(super) enum Original {
    Local(OwnedFd),
    Remote(File),
}

/// The entries of a directory of the source.
#[derive(Debug)]
pub(super) enum Listing {
    Local(Dir),
    Remote(ReadDir),
}

/// An entry of a directory of the source.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    /// `None` if the listing does not say.
    pub(super) is_directory: Option<bool>,
    /// The listing of this host says that it is a regular file.
    pub(super) is_regular: bool,
    /// Those that came with the listing.
    pub(super) attributes: Option<Attributes>,
}

/// The error about an object of the source.
pub(super) fn failed(what: impl Display, error: &Trouble) -> CopyError {
    match error {
        Trouble::Here(error) => here(what, *error),
        Trouble::Remote(error) => remote(what, error),
    }
}

impl Folder {
    /// The objects in it.
    pub(super) fn list(&self) -> Result<Listing, Trouble> {
        Ok(match self {
            Self::Local(parent) => Listing::Local(Dir::read_from(parent)?),
            Self::Remote(client, handle) => Listing::Remote(client.read_dir(handle)),
        })
    }

    /// Its own attributes.
    pub(super) fn attributes(&self) -> Result<Attributes, Trouble> {
        Ok(match self {
            Self::Local(parent) => Attributes::of_stat(&fstat(parent)?),
            Self::Remote(client, handle) => client.attributes(handle)?,
        })
    }

    /// The attributes of an object in it.
    pub(super) fn attributes_of(&self, name: &OsStr) -> Result<Attributes, Trouble> {
        Ok(match self {
            Self::Local(parent) => {
                Attributes::of_stat(&statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?)
            }
            Self::Remote(client, handle) => {
                client.attributes(&client.lookup(handle, name.as_bytes())?)?
            }
        })
    }

    /// Opens a directory in it.
    pub(super) fn enter(&self, name: &OsString, attributes: &Attributes) -> Result<Self, Trouble> {
        Ok(match self {
            Self::Local(parent) => Self::Local(Arc::new(local::open_directory(parent, name)?)),
            Self::Remote(client, _) => Self::Remote(client.clone(), attributes.handle),
        })
    }

    /// Opens a file in it for reading.
    pub(super) fn open(&self, name: &OsString) -> Result<Original, Trouble> {
        Ok(match self {
            Self::Local(parent) => Original::Local(local::open_for_reading(parent, name)?),
            Self::Remote(client, handle) => {
                Original::Remote(client.open_at(handle, name.as_bytes(), &OpenOptions::read())?)
            }
        })
    }

    /// The text of a symlink in it.
    pub(super) fn readlink(
        &self,
        name: &OsStr,
        attributes: &Attributes,
    ) -> Result<Vec<u8>, Trouble> {
        Ok(match self {
            Self::Local(parent) => readlinkat(parent, name, Vec::new())?.into_bytes(),
            Self::Remote(client, _) => client.readlink(&attributes.handle)?,
        })
    }

    /// Its extended attributes.
    pub(super) fn xattrs(&self) -> Result<Vec<Xattr>, Trouble> {
        Ok(match self {
            Self::Local(parent) => local::xattrs(parent)?,
            Self::Remote(client, handle) => remote_xattrs(client, handle)?,
        })
    }

    /// True if it is the directory with the attributes `other` at the server of the copy. With
    /// `is_same_server` the handles tell. `own` are its attributes.
    pub(super) fn is(
        &self,
        own: &Attributes,
        other: &Attributes,
        is_same_server: bool,
    ) -> Result<bool, Errno> {
        Ok(match self {
            Self::Local(parent) => local::identity(parent)?.is(other),
            Self::Remote(..) => is_same(own, other, is_same_server),
        })
    }
}

impl Original {
    pub(super) fn attributes(&self) -> Result<Attributes, Trouble> {
        Ok(match self {
            Self::Local(file) => Attributes::of_stat(&fstat(file)?),
            Self::Remote(file) => file.attributes()?,
        })
    }

    /// Its extended attributes.
    pub(super) fn xattrs(&self) -> Result<Vec<Xattr>, Trouble> {
        Ok(match self {
            Self::Local(file) => local::xattrs(file)?,
            Self::Remote(file) => remote_xattrs(file.remote(), file.handle())?,
        })
    }

    /// The next run of data from `from` on, in a file with holes; `None` if there is none before `size`.
    /// A run without an end is one in which the file ends.
    pub(super) fn next_run(&self, from: u64, size: u64) -> Result<Option<Range<u64>>, Trouble> {
        if from >= size {
            return Ok(None);
        }
        let file = match self {
            Self::Local(file) => file,
            Self::Remote(file) => return Ok(pieces::next_run(file, from)?),
        };
        let start = match seek(file, SeekFrom::Data(from)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            // A file system without holes has only data.
            Err(Errno::INVAL) => return Ok(Some(from..u64::MAX)),
            Err(error) => return Err(error.into()),
        };
        let end = seek(file, SeekFrom::Hole(start))?;
        Ok((start < end).then_some(start..end))
    }
}

impl Iterator for Listing {
    type Item = Result<Entry, Trouble>;

    fn next(&mut self) -> Option<Self::Item> {
        let listing = match self {
            Self::Local(listing) => listing,
            Self::Remote(entries) => {
                return Some(entries.next()?.map_err(Trouble::from).map(|entry| Entry {
                    name: entry.name,
                    is_directory: entry.attributes.as_ref().map(Attributes::is_directory),
                    is_regular: false,
                    attributes: entry.attributes,
                }));
            }
        };
        loop {
            let entry = match listing.read()? {
                Ok(entry) => entry,
                Err(error) => return Some(Err(error.into())),
            };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let is_directory = match entry.file_type() {
                // Some file systems do not report the type in a listing.
                FileType::Unknown => None,
                kind => Some(kind == FileType::Directory),
            };
            let is_regular = entry.file_type() == FileType::RegularFile;
            let (name, attributes) = (name.to_vec(), None);
            return Some(Ok(Entry { name, is_directory, is_regular, attributes }));
        }
    }
}

fn remote_xattrs(client: &Remote, object: &Handle) -> Result<Vec<Xattr>, Error> {
    let mut found = Vec::new();
    for name in client.xattr_names(object)? {
        match client.xattr(object, &name) {
            // It was removed meanwhile.
            Err(error) if error.status() == Some(Status::NoEnt) => {}
            value => found.push((name, value?)),
        }
    }
    Ok(found)
}

/// A source that the command line names.
#[derive(Debug, Clone)]
pub(super) struct Source {
    /// `None` for a path that ends in "." or "..", or is the root.
    pub(super) name: Option<OsString>,
    pub(super) attributes: Attributes,
    /// It if it is a directory, otherwise the directory that it is in.
    pub(super) folder: Folder,
    /// The name of `folder` for messages.
    pub(super) path: Operand,
}

impl Source {
    /// Opens a source. `server` is that of a URL.
    pub(super) fn open(server: &Remote, operand: &Operand) -> Result<Self, Trouble> {
        Ok(match operand {
            Operand::Local(path) => Self::local(path)?,
            Operand::Remote(url) => Self::remote(server, url)?,
        })
    }

    fn local(path: &Path) -> Result<Self, Errno> {
        let split = SplitPath::of(path.as_os_str().as_bytes());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |path: &Path| rustix::fs::open(path, flags, Mode::empty()).map(Arc::new);
        let itself = |name: Option<OsString>, directory: Parent| -> Result<Self, Errno> {
            let attributes = Attributes::of_stat(&fstat(&directory)?);
            let path = Operand::Local(path.to_owned());
            Ok(Self { name, attributes, folder: Folder::Local(directory), path })
        };
        if split.name.is_empty() || split.ends_in_dots() {
            return itself(None, open(path)?);
        }
        let name = OsString::from_vec(split.name.to_vec());
        if split.wants_directory {
            return itself(Some(name), open(path)?);
        }
        let above = if split.parent.is_empty() { &b"."[..] } else { split.parent };
        let above = Path::new(OsStr::from_bytes(above));
        let parent = open(above)?;
        let stat = statat(&parent, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW)?;
        let attributes = Attributes::of_stat(&stat);
        if attributes.is_directory() {
            let directory = local::open_directory(&parent, &name)?;
            return itself(Some(name), Arc::new(directory));
        }
        let (folder, path) = (Folder::Local(parent), Operand::Local(above.to_owned()));
        Ok(Self { name: Some(name), attributes, folder, path })
    }

    /// As [`Source::open`], for a URL.
    pub(super) fn remote(server: &Remote, url: &RemoteUrl) -> Result<Self, Error> {
        let attributes = server.resolve(url.path(), Follow::No)?.attributes;
        let folder = |handle: Handle| Folder::Remote(server.clone(), handle);
        if attributes.is_directory() {
            let name = component(show::last_name(url).to_vec());
            let (folder, path) = (folder(attributes.handle), Operand::Remote(url.clone()));
            return Ok(Self { name, attributes, folder, path });
        }
        let place = server.resolve_parent(url.path())?;
        let above = url.with_path(SplitPath::of(url.path()).parent).unwrap_or(url.clone());
        let (folder, path) = (folder(place.dir), Operand::Remote(above));
        Ok(Self { name: component(place.name), attributes, folder, path })
    }
}

/// True if both are the same directory. Servers that keep no time of birth tell only while it does not
/// change.
fn is_same(one: &Attributes, other: &Attributes, is_same_server: bool) -> bool {
    (is_same_server && one.handle == other.handle) || Identity::of(one).is(other)
}

/// True if the way to `url` leads through a directory, or ends there or below it, where symlinks may
/// lead. With `is_same_server` the handles tell.
pub(super) fn leads_through(
    client: &Remote,
    url: &RemoteUrl,
    directory: &Attributes,
    is_same_server: bool,
) -> bool {
    let path = url.path();
    let is_end = |&end: &usize| path.get(end).is_none_or(|&letter| letter == b'/');
    let find = |way: &[u8]| client.resolve(way, Follow::Yes).ok().map(|found| found.attributes);
    let is_it = |found: &Attributes| is_same(found, directory, is_same_server);
    let mut nearest = None;
    for end in (0..=path.len()).filter(is_end) {
        // The first way is that to the root, which an NFS server may not show.
        let way = &path[..end.max(1)];
        let Some(found) = find(way) else { continue };
        if is_it(&found) {
            return true;
        }
        nearest = Some((way.to_vec(), found));
    }
    // The directories above the last one that exists are others behind a symlink.
    while let Some((mut way, found)) = nearest {
        way.extend_from_slice(b"/..");
        // The root is above itself.
        let above = find(&way).filter(|above| above.handle != found.handle);
        if above.as_ref().is_some_and(is_it) {
            return true;
        }
        nearest = above.map(|above| (way, above));
    }
    false
}

/// Runs `copy`, and meanwhile counts the bytes of the source for the progress line.
pub(super) fn count_during(
    report: &Report,
    policy: Option<&Policy>,
    tops: impl FnOnce() -> Vec<Source> + Send,
    copy: impl FnOnce(),
) {
    let (before, is_over) = (report.position(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        if report.is_shown() {
            scope.spawn(|| {
                if let Some(bytes) = total(report, policy, tops(), &is_over) {
                    report.set_total(before.saturating_add(bytes));
                }
            });
        }
        copy();
        is_over.store(true, Ordering::Relaxed);
    });
}

/// The bytes of all files of the source; `None` if the copy is over first. The walk reports errors.
fn total(
    report: &Report,
    policy: Option<&Policy>,
    tops: Vec<Source>,
    is_over: &AtomicBool,
) -> Option<u64> {
    let (mut bytes, mut left) = (0u64, Vec::new());
    for top in tops {
        match top.attributes.is_directory() {
            true => left.push((top.folder, None::<(OsString, Attributes)>, Vec::<u8>::new())),
            false => bytes = bytes.saturating_add(top.attributes.size),
        }
    }
    while let Some((mut folder, name, above)) = left.pop() {
        if let Some((name, attributes)) = name {
            let Ok(inner) = folder.enter(&name, &attributes) else { continue };
            folder = inner;
        }
        let Ok(listing) = folder.list() else { continue };
        for entry in listing.flatten() {
            if is_over.load(Ordering::Relaxed) || report.is_stopped() {
                return None;
            }
            let name = OsString::from_vec(entry.name);
            let listed = entry.attributes.map_or_else(|| folder.attributes_of(&name), Ok);
            let Ok(attributes) = listed else { continue };
            let path = [&above[..], name.as_bytes()].concat();
            let is_directory = attributes.is_directory();
            let leaves_out =
                |policy: &Policy| policy.leaves_out(name.as_bytes(), || path.clone(), is_directory);
            if policy.is_some_and(leaves_out) {
                continue;
            }
            if is_directory {
                let inner = Some((name, attributes));
                left.push((folder.clone(), inner, [&path[..], b"/"].concat()));
            } else {
                bytes = bytes.saturating_add(attributes.size);
            }
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("a/b/file"), "12345").unwrap();
        fs::write(dir.path().join("single"), "123").unwrap();
        symlink("a", dir.path().join("link")).unwrap();
        dir
    }

    #[test]
    fn the_bytes_of_all_sources_are_counted() {
        let dir = tree();
        let open = |name: &&str| Source::local(&dir.path().join(name)).unwrap();
        let (report, is_over) = (Report::new(), AtomicBool::new(false));
        let sources: Vec<Source> = ["a", "single"].iter().map(open).collect();
        assert_eq!(total(&report, None, sources.clone(), &is_over), Some(8));
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(total(&report, None, sources, &is_over), None, "the copy is over");
    }

    #[test]
    fn the_end_of_a_path_says_how_it_is_copied() {
        let dir = tree();
        let open = |path: &str| Source::local(&dir.path().join(path)).unwrap();
        assert_eq!(open("a").name.as_deref(), Some(OsStr::new("a")));
        assert!(open("a/.").name.is_none() && open("a/.").attributes.is_directory());
        assert!(open("link").attributes.is_symlink());
        assert!(open("link/").attributes.is_directory());
        assert_eq!(open("link/").name.as_deref(), Some(OsStr::new("link")));
        assert_eq!(open("single").attributes.size, 3);
        assert!(Source::local(&dir.path().join("single/")).is_err());
    }
}
