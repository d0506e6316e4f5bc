//! From this host to the server: the walk through a local tree.

mod file;
mod mirror;
mod object;
mod small;

pub(super) use mirror::sync;

use super::error::{CopyError, Outcome, here, remote};
use super::links::Links;
use super::local::{self, Parent};
use super::pieces::{Pieces, Worker};
use super::queue::{self, Queue};
use super::report::{Copied, Report};
use super::room::Late;
use super::sync::Policy;
use super::tree::{self, Directory, Side, Step};
use super::{CopyOptions, supervise, worker};
use crate::failure::Failure;
use crate::remote::{
    Attributes, DirEntry, Error, Follow, Handle, Remote, RemoteUrl, SetAttributes, SetTime, Status,
};
use crate::session::Sessions;
use dafs_client::SplitPath;
use mirror::{Entries, There};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, statat};
use rustix::io::Errno;
use small::Small;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Copies `sources` to `target` on its server.
pub(crate) fn run(
    sessions: &mut Sessions<'_>,
    sources: &[PathBuf],
    target: &RemoteUrl,
    options: &CopyOptions,
) -> Result<(), Failure> {
    supervise(options.json, None, |report| {
        options.check(target)?;
        let client = sessions.client(target)?;
        report.connected(&client);
        let put = Put { client: &client, options, report, policy: None, links: Links::new() };
        put.sources(sources, target)
    })
}

/// The state that all workers of one copy share.
#[derive(Debug)]
struct Put<'a> {
    client: &'a Remote,
    options: &'a CopyOptions,
    report: &'a Report,
    /// The rules of a synchronisation, if it is one.
    policy: Option<&'a Policy>,
    /// By device and inode number.
    links: Links<(u64, u64), Handle>,
}

impl Side for Put<'_> {
    type Attributes = SetAttributes;
    type Listing = Entries;

    fn report(&self) -> &Report {
        self.report
    }

    fn finish(&self, directory: &Directory<'_, Self>, attributes: &SetAttributes) -> Outcome {
        let outcome = self.client.set_attributes(&directory.handle, attributes);
        outcome.map_err(|error| remote(directory.url(), &error))
    }
}

/// An object to copy into a directory.
#[derive(Debug)]
struct Object<'a> {
    directory: Arc<Directory<'a, Put<'a>>>,
    /// Its name on this host.
    name: OsString,
    /// Its name on the server, if that differs.
    renamed: Option<Vec<u8>>,
    /// The object that the directory of the copy listed under its name.
    there: Option<Box<DirEntry>>,
}

impl Object<'_> {
    fn path(&self) -> PathBuf {
        self.directory.path().join(&self.name)
    }

    /// Its length; 0 if it is unknown.
    fn bytes(&self) -> u64 {
        let stat = statat(&self.directory.local, self.name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW);
        stat.map_or(0, |stat| stat.st_size.unsigned_abs())
    }

    fn target_name(&self) -> &[u8] {
        self.renamed.as_deref().unwrap_or(self.name.as_bytes())
    }

    fn target(&self) -> RemoteUrl {
        let directory = self.directory.url();
        directory.join(self.target_name()).unwrap_or(directory)
    }

    /// A local error about the original.
    fn here(&self, error: impl Into<std::io::Error>) -> CopyError {
        here(self.path().display(), error)
    }

    /// The server's error about the copy.
    fn remote(&self, error: &Error) -> CopyError {
        remote(self.target(), error)
    }
}

/// The target of the copies.
struct Place {
    handle: Handle,
    url: RemoteUrl,
    /// The name there; `None` when sources keep their own.
    name: Option<Vec<u8>>,
    /// The name ends with a slash, so that only a directory can get it.
    for_directory: bool,
}

impl<'a> Put<'a> {
    fn sources(&self, paths: &[PathBuf], target: &RemoteUrl) -> Result<(), Failure> {
        let place = self.place(target, paths.len() > 1)?;
        self.work(|queue| {
            for path in paths {
                if !self.report.is_stopped() {
                    self.report.book(self.source(queue, path, &place));
                }
            }
        });
        Ok(())
    }

    /// Copies the objects that `walk` puts into the queue.
    fn work<'s>(&'s self, walk: impl FnOnce(&Queue<'_, Object<'s>>)) {
        let (pieces, late) = (Pieces::new(self.client), Late::new());
        let share = worker::share(self.client.small_under_way_max());
        queue::run(self.report, walk, |queue| {
            let mut worker = Worker::new(&pieces);
            worker::work((self.report, &late), (queue, share), Object::bytes, |object, small| {
                self.copy(&mut worker, object, small)
            });
        });
        let mut worker = Worker::new(&pieces);
        late.finish(self.report, |object| {
            worker::alone(object, |object, small| self.copy(&mut worker, object, small))
        });
    }

    /// Copies an object other than a directory, or begins a small file; for that it is called again.
    fn copy(
        &self,
        worker: &mut Worker<'_>,
        object: &Object<'_>,
        small: Option<Small>,
    ) -> Outcome<Option<Small>> {
        match small {
            Some(small) => self.end_small(worker, object, small).map(|()| None),
            None => self.object(worker, object),
        }
    }

    /// In `target` if that is a directory, else `target` itself.
    fn place(&self, target: &RemoteUrl, several: bool) -> Result<Place, Failure> {
        let failed = |error| Failure::remote(target, &error);
        match self.client.resolve(target.path(), Follow::Yes) {
            Ok(found) if found.attributes.is_directory() => {
                let (handle, url) = (found.handle, target.clone());
                Ok(Place { handle, url, name: None, for_directory: false })
            }
            Err(error) if error.status() != Some(Status::NoEnt) => Err(failed(error)),
            _ if several => Err(Failure::Usage(format!(
                "{target} is no directory, and several things cannot go to one name; make it \
                 first: dafs mkdir {target}"
            ))),
            _ => {
                let above = self.client.resolve_new_directory(target.path()).map_err(|error| {
                    match error.status() {
                        Some(Status::NoEnt) => Failure::Failed(format!(
                            "{target}: the directory above it does not exist; make it first with \
                             dafs mkdir -p"
                        )),
                        _ => failed(error),
                    }
                })?;
                let split = SplitPath::of(target.path());
                let url = target.with_path(split.parent).unwrap_or(target.clone());
                let for_directory = split.wants_directory;
                Ok(Place { handle: above.dir, url, name: Some(above.name), for_directory })
            }
        }
    }

    /// Copies one source of the command line.
    fn source(&'a self, queue: &Queue<'_, Object<'a>>, path: &Path, place: &Place) -> Outcome {
        let fail = |error: Errno| here(path.display(), error);
        let Source { parent, name, path: parent_path, directory } =
            Source::open(path).map_err(fail)?;
        let Some(name) = name else {
            // The path ends in "." or "..": the contents go into the target, if that exists.
            let stat = rustix::fs::fstat(&parent).map_err(fail)?;
            return match &place.name {
                None => self.contents(queue, parent, path, place),
                Some(target_name) => {
                    let made = self.make_directory(&place.handle, target_name, &parent, || {
                        (path.to_owned(), place.url.join(target_name).unwrap_or(place.url.clone()))
                    })?;
                    let names =
                        (path.to_owned(), place.url.join(target_name).unwrap_or(place.url.clone()));
                    let attributes = Some(self.final_attributes(&stat));
                    self.walk(queue, Directory::top(self, names, (parent, made), attributes), None)
                }
            };
        };
        let stat = match &directory {
            Some(directory) => rustix::fs::fstat(directory),
            None => statat(&parent, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW),
        };
        let stat = stat.map_err(fail)?;
        let target_name = place.name.clone().unwrap_or_else(|| name.as_bytes().to_vec());
        let target = place.url.join(&target_name).unwrap_or(place.url.clone());
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let source = match directory {
                Some(directory) => directory,
                None => Arc::new(local::open_directory(&parent, &name).map_err(fail)?),
            };
            let handle = self.make_directory(&place.handle, &target_name, &source, || {
                (path.to_owned(), target.clone())
            })?;
            let attributes = Some(self.final_attributes(&stat));
            let names = (path.to_owned(), target);
            let top = Directory::top(self, names, (source, handle), attributes);
            return self.walk(queue, top, None);
        }
        if place.for_directory {
            return Err(CopyError::Object(format!(
                "{}: {target} is no directory; make it first with dafs mkdir, or leave out the slash \
                 for a copy of that name",
                path.display()
            )));
        }
        let names = (parent_path, place.url.clone());
        let directory = Directory::top(self, names, (parent, place.handle), None);
        queue.push(Object { directory, name, renamed: Some(target_name), there: None });
        Ok(())
    }

    fn contents(
        &'a self,
        queue: &Queue<'_, Object<'a>>,
        source: Parent,
        path: &Path,
        place: &Place,
    ) -> Outcome {
        let names = (path.to_owned(), place.url.clone());
        self.walk(queue, Directory::top(self, names, (source, place.handle), None), None)
    }

    /// Walks through a tree. `there` has the objects in its copy, for a synchronisation.
    fn walk(
        &'a self,
        queue: &Queue<'_, Object<'a>>,
        top: Arc<Directory<'a, Self>>,
        there: Option<There>,
    ) -> Outcome {
        // The copy must not copy itself where the target is inside the source.
        let target = self.client.attributes(&top.handle);
        let target = target.map_err(|error| remote(top.url(), &error))?;
        let listing = Dir::read_from(&top.local);
        let listing = listing.map_err(|error| here(top.path().display(), error))?;
        let entries = Entries { listing, there };
        tree::walk(entries, top, |entries, directory| self.step(queue, entries, directory, &target))
    }

    /// Takes the next entry of a directory.
    fn step(
        &'a self,
        queue: &Queue<'_, Object<'a>>,
        entries: &mut Entries,
        directory: &Arc<Directory<'a, Self>>,
        target: &Attributes,
    ) -> Outcome<Step<'a, Self>> {
        let entry = match entries.listing.read() {
            Some(Ok(entry)) => entry,
            Some(Err(error)) => {
                // Names that are not listed may exist all the same.
                entries.there = None;
                return Err(here(directory.path().display(), error));
            }
            None => {
                self.delete_rest(entries.there.take(), directory);
                return Ok(Step::End);
            }
        };
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            return Ok(Step::Object);
        }
        let there = entries.take(name);
        let name = OsString::from_vec(name.to_vec());
        let path = || directory.path().join(&name);
        let fail = |error: Errno| here(path().display(), error);
        let is_directory = match entry.file_type() {
            FileType::Directory => true,
            // Some file systems do not report the type in a listing.
            FileType::Unknown => {
                let stat = statat(&directory.local, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW);
                FileType::from_raw_mode(stat.map_err(fail)?.st_mode) == FileType::Directory
            }
            _ => false,
        };
        let relative = || directory.relative(&name);
        let leaves_out =
            |policy: &Policy| policy.leaves_out(name.as_bytes(), relative, is_directory);
        if self.policy.is_some_and(leaves_out) {
            return Ok(Step::Object);
        }
        if !is_directory {
            let there = there.map(Box::new);
            queue.push(Object { directory: directory.clone(), name, renamed: None, there });
            return Ok(Step::Object);
        }
        // Taken before the directory is read, for its time of access.
        let stat = statat(&directory.local, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.map_err(fail)?;
        let source = local::open_directory(&directory.local, &name).map_err(fail)?;
        if local::identity(&source).map_err(fail)?.is(target) {
            let path = path();
            let text = format!("{} is the target of the copy; left out", path.display());
            return Err(CopyError::Object(text));
        }
        let listing = Dir::read_from(&source).map_err(fail)?;
        let (handle, there) = self.inner(directory, (&name, there), &source)?;
        let inner = Directory {
            side: self,
            top: directory.top.clone(),
            above: Some((directory.clone(), name)),
            local: Arc::new(source),
            handle,
            final_attributes: self.may_change().then(|| self.final_attributes(&stat)),
        };
        Ok(Step::Directory(Entries { listing, there }, Arc::new(inner)))
    }

    /// The copy of a directory, with the objects in it for a synchronisation.
    fn inner(
        &self,
        directory: &Directory<'_, Put<'_>>,
        (name, there): (&OsString, Option<DirEntry>),
        source: &OwnedFd,
    ) -> Outcome<(Handle, Option<There>)> {
        if let Some(policy) = self.policy {
            return self.mirror_directory(policy, directory, (name, there), source);
        }
        let made = self.make_directory(&directory.handle, name.as_bytes(), source, || {
            let url = directory.url();
            (directory.path().join(name), url.join(name.as_bytes()).unwrap_or(url))
        });
        Ok((made?, None))
    }

    /// Makes a directory, or uses an existing one. `names` returns path and URL for messages.
    fn make_directory(
        &self,
        above: &Handle,
        name: &[u8],
        source: &OwnedFd,
        names: impl Fn() -> (PathBuf, RemoteUrl),
    ) -> Outcome<Handle> {
        self.report.room.directory(|| {
            let fail = |error: Error| remote(names().1, &error);
            let handle = match self.client.mkdir(above, name, &SetAttributes::mode(0o700)) {
                Ok(handle) => handle,
                Err(error) if error.status() == Some(Status::Exist) => {
                    let handle = self.client.lookup(above, name).map_err(fail)?;
                    let there: Attributes = self.client.attributes(&handle).map_err(fail)?;
                    if !there.is_directory() {
                        let text = format!("{} is there and is no directory; remove it", names().1);
                        return Err(CopyError::Object(text));
                    }
                    handle
                }
                Err(error) => return Err(fail(error)),
            };
            if self.options.xattrs {
                let (path, target) = names();
                self.xattrs(source, &handle, &path, &target)?;
            }
            self.report.add(Copied::Directory);
            Ok(handle)
        })
    }

    /// The final attributes of an object's copy.
    fn final_attributes(&self, stat: &Stat) -> SetAttributes {
        let owner = self.options.owner;
        SetAttributes {
            mode: Some(local::permissions(stat)),
            owner: owner.then_some(stat.st_uid),
            group: owner.then_some(stat.st_gid),
            size: None,
            accessed: Some(SetTime::Client(local::time(stat.st_atime, stat.st_atime_nsec))),
            modified: Some(SetTime::Client(local::time(stat.st_mtime, stat.st_mtime_nsec))),
        }
    }
}

/// A source from the command line.
struct Source {
    parent: Parent,
    /// `None` for a path that ends in "." or "..", or is the root.
    name: Option<OsString>,
    path: PathBuf,
    /// The directory behind the name, if a slash at its end demands one.
    directory: Option<Parent>,
}

impl Source {
    fn open(path: &Path) -> Result<Self, Errno> {
        let split = SplitPath::of(path.as_os_str().as_bytes());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |path: &Path| rustix::fs::open(path, flags, Mode::empty()).map(Arc::new);
        if split.name.is_empty() || split.ends_in_dots() {
            let parent = open(path)?;
            return Ok(Self { parent, name: None, path: path.to_owned(), directory: None });
        }
        let above = if split.parent.is_empty() { &b"."[..] } else { split.parent };
        let above = Path::new(OsStr::from_bytes(above));
        let name = Some(OsString::from_vec(split.name.to_vec()));
        let directory = if split.wants_directory { Some(open(path)?) } else { None };
        Ok(Self { parent: open(above)?, name, path: above.to_owned(), directory })
    }
}
