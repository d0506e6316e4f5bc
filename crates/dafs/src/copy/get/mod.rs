//! From the server to this host: the walk through the server's tree.

mod file;
mod mirror;
mod object;
mod small;

pub(super) use mirror::sync;

use super::error::{CopyError, Outcome, here, remote};
use super::local::{self, Identity, Parent, component};
use super::pieces::{Pieces, Worker};
use super::queue::{self, Queue};
use super::report::{Copied, Report};
use super::room::Late;
use super::source::{Source, count_during};
use super::sync::Policy;
use super::tree::{self, Directory, Side, Step};
use super::{CopyOptions, supervise, worker};
use crate::failure::Failure;
use crate::remote::{Attributes, Error, Follow, Handle, Remote, RemoteUrl};
use crate::session::Sessions;
use crate::show;
use dafs_client::SplitPath;
use mirror::Entries;
use object::LinkPlace;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid, fchmod, fchown, fstat, futimens, mkdirat};
use rustix::io::Errno;
use small::Small;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Copies `sources` from their server to `target`.
pub(crate) fn run(
    sessions: &mut Sessions<'_>,
    sources: &[RemoteUrl],
    target: &Path,
    options: &CopyOptions,
) -> Result<(), Failure> {
    // Every mode below is exact.
    rustix::process::umask(Mode::empty());
    supervise(options.json, None, |report| {
        let mut result = Ok(());
        // One session after the other, with all its sources.
        let mut left: Vec<&RemoteUrl> = sources.iter().collect();
        while let Some(&first) = left.first() {
            options.check(first)?;
            let client = sessions.client(first)?;
            report.connected(&client);
            let same = |url: &&RemoteUrl| url.is_same_server(first);
            let (now, later): (Vec<&RemoteUrl>, Vec<&RemoteUrl>) =
                left.iter().partition(|url| same(url));
            let get = Get::new(&client, options, report);
            result = result.and(get.sources(&now, target, sources.len() > 1));
            left = later;
        }
        result
    })
}

/// The state that all workers of one copy share.
#[derive(Debug)]
struct Get<'a> {
    client: &'a Remote,
    options: &'a CopyOptions,
    report: &'a Report,
    /// The rules of a synchronisation, if it is one.
    policy: Option<&'a Policy>,
    links: super::links::Links<Handle, LinkPlace>,
}

impl Side for Get<'_> {
    type Attributes = Attributes;
    type Listing = Entries;
    type Folder = Parent;
    type Path = PathBuf;

    fn report(&self) -> &Report {
        self.report
    }

    fn finish(&self, directory: &Directory<'_, Self>, attributes: &Attributes) -> Outcome {
        self.finish_open(&directory.local, attributes)
            .map_err(|error| here(directory.path().display(), error))
    }
}

impl Directory<'_, Get<'_>> {
    /// The path of the copy.
    fn path(&self) -> PathBuf {
        let mut path = self.top.path.clone();
        path.extend(self.inside());
        path
    }
}

/// An object to copy into a directory.
#[derive(Debug)]
struct Object<'a> {
    directory: Arc<Directory<'a, Get<'a>>>,
    name: OsString,
    /// For an operand of the command line: its URL and its name on the server.
    named: Option<(RemoteUrl, Vec<u8>)>,
    attributes: Attributes,
    /// The directory of the copy had the name when it was listed.
    is_there: bool,
}

impl Object<'_> {
    fn source(&self) -> RemoteUrl {
        if let Some((url, _)) = &self.named {
            return url.clone();
        }
        let directory = self.directory.url();
        directory.join(self.name.as_bytes()).unwrap_or(directory)
    }

    fn source_name(&self) -> &[u8] {
        self.named.as_ref().map_or(self.name.as_bytes(), |(_, name)| name)
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join(&self.name)
    }

    fn bytes(&self) -> u64 {
        self.attributes.size
    }

    /// A local error about the copy.
    fn here(&self, error: impl Into<std::io::Error>) -> CopyError {
        here(self.path().display(), error)
    }

    /// The server's error about the original.
    fn remote(&self, error: &Error) -> CopyError {
        remote(self.source(), error)
    }
}

impl<'a> Get<'a> {
    fn new(client: &'a Remote, options: &'a CopyOptions, report: &'a Report) -> Self {
        Self { client, options, report, policy: None, links: super::links::Links::new() }
    }

    fn sources(&self, urls: &[&RemoteUrl], target: &Path, several: bool) -> Result<(), Failure> {
        let mut result = Ok(());
        let originals = || -> Vec<Source> {
            urls.iter().filter_map(|url| Source::remote(self.client, url).ok()).collect()
        };
        count_during(self.report, None, originals, || {
            self.work(|queue| {
                for url in urls {
                    if self.report.is_stopped() {
                        return;
                    }
                    match self.source(queue, url, target, several) {
                        Ok(outcome) => self.report.book(outcome),
                        Err(failure) => return result = Err(failure),
                    }
                }
            });
        });
        result
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

    /// Copies one URL of the command line.
    fn source(
        &'a self,
        queue: &Queue<'_, Object<'a>>,
        url: &RemoteUrl,
        target: &Path,
        several: bool,
    ) -> Result<Outcome, Failure> {
        let found = match self.client.resolve(url.path(), Follow::No) {
            Ok(found) => found,
            Err(error) => return Ok(Err(remote(url, &error))),
        };
        let attributes = found.attributes;
        let name = component(show::last_name(url).to_vec());
        let contents_only = name.is_none() && attributes.is_directory();
        let place = match Place::find(target, name, several)? {
            Ok(place) => place,
            Err(error) => return Ok(Err(error)),
        };
        let Place { directory: descriptor, path, name, for_directory } = place;
        if for_directory && !attributes.is_directory() {
            return Ok(Err(CopyError::Object(format!(
                "{url}: {} is no directory; make it first, or leave out the slash for a copy of that \
                 name",
                target.display()
            ))));
        }
        let Some(name) = name else {
            if !contents_only {
                let text = format!("{url} has no name that {} could take", target.display());
                return Err(Failure::Usage(text));
            }
            // The contents go into an existing directory that the user has named.
            let places = (descriptor, attributes.handle);
            let top = Directory::top(self, (path, url.clone()), places, None);
            return Ok(self.walk(queue, top, None));
        };
        if attributes.is_directory() {
            let path = path.join(&name);
            let made = self
                .make_directory(&descriptor, &name, &attributes, || (path.clone(), url.clone()));
            return Ok(made.and_then(|descriptor| {
                let places = (descriptor, attributes.handle);
                let directory = Directory::top(self, (path, url.clone()), places, Some(attributes));
                self.walk(queue, directory, None)
            }));
        }
        let parent = match self.client.resolve_parent(url.path()) {
            Ok(parent) => parent,
            Err(error) => return Ok(Err(remote(url, &error))),
        };
        let directory = Directory::top(self, (path, url.clone()), (descriptor, parent.dir), None);
        let named = Some((url.clone(), parent.name));
        queue.push(Object { directory, name, named, attributes, is_there: false });
        Ok(Ok(()))
    }

    /// Walks through a tree. `there` has the names in its copy, for a synchronisation.
    fn walk(
        &'a self,
        queue: &Queue<'_, Object<'a>>,
        top: Arc<Directory<'a, Self>>,
        there: Option<BTreeSet<OsString>>,
    ) -> Outcome {
        // The copy must not copy itself where the target is inside the source.
        let target = local::identity(&top.local);
        let target = target.map_err(|error| here(top.path().display(), error))?;
        let entries = Entries { listing: self.client.read_dir(&top.handle), there };
        tree::walk(entries, top, |entries, directory| self.step(queue, entries, directory, &target))
    }

    /// Takes the next entry of a listing.
    fn step(
        &'a self,
        queue: &Queue<'_, Object<'a>>,
        entries: &mut Entries,
        directory: &Arc<Directory<'a, Self>>,
        target: &Identity,
    ) -> Outcome<Step<'a, Self>> {
        let entry = match entries.listing.next() {
            Some(Ok(entry)) => entry,
            Some(Err(error)) => {
                // Names that are not listed may exist all the same.
                entries.there = None;
                return Err(remote(directory.url(), &error));
            }
            None => {
                self.delete_rest(entries.there.take(), directory);
                return Ok(Step::End);
            }
        };
        let source = || {
            let url = directory.url();
            url.join(&entry.name).unwrap_or(url)
        };
        let name = component(entry.name.clone());
        let is_there = name.as_ref().is_some_and(|name| entries.take(name));
        let attributes = match entry.attributes {
            Some(attributes) => attributes,
            None => self
                .client
                .lookup(&directory.handle, &entry.name)
                .and_then(|handle| self.client.attributes(&handle))
                .map_err(|error| remote(source(), &error))?,
        };
        let Some(name) = name else {
            let text = format!("{}: the server returned a name that is not valid here", source());
            return Err(CopyError::Object(text));
        };
        let path = || directory.relative(&name);
        let leaves_out =
            |policy: &Policy| policy.leaves_out(name.as_bytes(), path, attributes.is_directory());
        if self.policy.is_some_and(leaves_out) {
            return Ok(Step::Object);
        }
        if !attributes.is_directory() {
            let directory = directory.clone();
            queue.push(Object { directory, name, named: None, attributes, is_there });
            return Ok(Step::Object);
        }
        if target.is(&attributes) {
            let text = format!("{} is the target of the copy; left out", source());
            return Err(CopyError::Object(text));
        }
        let (descriptor, there) = self.inner(directory, (&name, is_there), &attributes)?;
        let listing = self.client.read_dir(&attributes.handle);
        let inner = Directory {
            side: self,
            top: directory.top.clone(),
            above: Some((directory.clone(), name)),
            local: descriptor,
            handle: attributes.handle,
            final_attributes: self.may_change().then_some(attributes),
        };
        Ok(Step::Directory(Entries { listing, there }, Arc::new(inner)))
    }

    /// The copy of a directory, with the names in it for a synchronisation.
    fn inner(
        &self,
        directory: &Directory<'_, Get<'_>>,
        (name, is_there): (&OsString, bool),
        attributes: &Attributes,
    ) -> Outcome<(Parent, Option<BTreeSet<OsString>>)> {
        if let Some(policy) = self.policy {
            return self.mirror_directory(policy, directory, (name, is_there), attributes);
        }
        let made = self.make_directory(&directory.local, name, attributes, || {
            let url = directory.url();
            (directory.path().join(name), url.join(name.as_bytes()).unwrap_or(url))
        });
        Ok((made?, None))
    }

    /// Makes a directory, or uses an existing one. `names` returns path and URL for messages.
    fn make_directory(
        &self,
        above: &Parent,
        name: &OsString,
        attributes: &Attributes,
        names: impl Fn() -> (PathBuf, RemoteUrl),
    ) -> Outcome<Parent> {
        self.report.room.directory(|| {
            let fail = |error: Errno| here(names().0.display(), error);
            match mkdirat(above, name.as_os_str(), Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(fail(error)),
            }
            let descriptor = local::open_directory(above, name).map_err(fail)?;
            if self.options.xattrs {
                let (path, source) = names();
                self.xattrs(&attributes.handle, &descriptor, &source, &path)?;
            }
            self.report.add(Copied::Directory);
            Ok(Arc::new(descriptor))
        })
    }
}

/// The target of a source's copy.
struct Place {
    directory: Parent,
    path: PathBuf,
    /// Its name there; `None` if the contents go into the directory itself.
    name: Option<OsString>,
    /// The name ends with a slash, so that only a directory can get it.
    for_directory: bool,
}

impl Place {
    /// In `target` if that is a directory, else `target` itself; `name` is that of the source.
    fn find(
        target: &Path,
        name: Option<OsString>,
        several: bool,
    ) -> Result<Outcome<Self>, Failure> {
        let split = SplitPath::of(target.as_os_str().as_bytes());
        match open_named(target) {
            Ok(directory) => {
                let (directory, path) = (Arc::new(directory), target.to_owned());
                return Ok(Ok(Self { directory, path, name, for_directory: false }));
            }
            Err(Errno::NOENT | Errno::NOTDIR) if several => {
                let text = format!(
                    "{} is no directory, and several things cannot go to one name; make it first",
                    target.display()
                );
                return Err(Failure::Usage(text));
            }
            Err(Errno::NOENT) if !split.name.is_empty() && !split.ends_in_dots() => {}
            // A symlink that names a directory and leads to another object is refused, as by `put`.
            Err(Errno::NOTDIR) if !split.wants_directory && rustix::fs::stat(target).is_ok() => {}
            Err(error) => return Ok(Err(here(target.display(), error))),
        }
        let above = if split.parent.is_empty() { &b"."[..] } else { split.parent };
        let above = Path::new(OsStr::from_bytes(above));
        Ok(match open_named(above) {
            Ok(directory) => Ok(Self {
                directory: Arc::new(directory),
                path: above.to_owned(),
                name: Some(OsStr::from_bytes(split.name).to_owned()),
                for_directory: split.wants_directory,
            }),
            Err(error) => Err(here(above.display(), error)),
        })
    }
}

/// Opens a directory that the user has named. Symlinks in that name are followed.
fn open_named(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

impl Get<'_> {
    /// Sets the owner of an open file or directory if requested, then its permissions, then its
    /// times: each of these may change the later ones.
    fn finish_open(&self, file: &OwnedFd, attributes: &Attributes) -> Result<(), Errno> {
        if self.options.owner {
            fchown(
                file,
                attributes.owner.id().map(Uid::from_raw),
                attributes.group.id().map(Gid::from_raw),
            )?;
        }
        fchmod(file, Mode::from_raw_mode(self.mode(file, attributes)?))?;
        futimens(file, &local::times(attributes))
    }

    /// The permissions of the copy. Set-id bits are kept only for the same owner or group.
    /// Otherwise a copy made by root would grant root's rights to any file of a server.
    fn mode(&self, file: &OwnedFd, attributes: &Attributes) -> Result<u32, Errno> {
        let mut mode = attributes.mode & 0o7777;
        if mode & 0o6000 == 0 || attributes.is_directory() {
            return Ok(mode);
        }
        let own = fstat(file)?;
        if attributes.owner.id() != Some(own.st_uid) {
            mode &= !0o4000;
        }
        if attributes.group.id() != Some(own.st_gid) {
            mode &= !0o2000;
        }
        if mode != attributes.mode & 0o7777 {
            self.report.warn(
                "a set-user-id or set-group-id bit was left out, because the copy belongs to \
                 somebody else; --owner keeps both",
            );
        }
        Ok(mode)
    }

    /// As `finish_open`, by name, for objects that cannot be opened.
    fn finish_named(&self, object: &Object<'_>, name: &OsString) -> Result<(), Errno> {
        let (parent, attributes) = (&object.directory.local, &object.attributes);
        if self.options.owner {
            let owner = attributes.owner.id().map(Uid::from_raw);
            let group = attributes.group.id().map(Gid::from_raw);
            rustix::fs::chownat(parent, name.as_os_str(), owner, group, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        let times = local::times(attributes);
        rustix::fs::utimensat(parent, name.as_os_str(), &times, AtFlags::SYMLINK_NOFOLLOW)
    }
}
