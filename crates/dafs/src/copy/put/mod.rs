//! From this host, or from a server, to a server: the walk through the source.

mod file;
mod mirror;
mod object;
mod small;

pub(super) use mirror::sync;

use super::error::{CopyError, Outcome, remote};
use super::links::Links;
use super::local::component;
use super::pieces::{Pieces, Worker};
use super::queue::{self, Queue};
use super::report::{Copied, Report};
use super::room::Late;
use super::source::{Folder, Source, count_during, failed, leads_through};
use super::sync::Policy;
use super::tree::{self, Directory, Side, Step};
use super::view::{Operand, Trouble};
use super::{CopyOptions, supervise, worker};
use crate::failure::Failure;
use crate::remote::{
    Attributes, DirEntry, Error, Follow, Handle, Owner, Remote, RemoteUrl, SetAttributes, SetTime,
    Status,
};
use crate::session::Sessions;
use dafs_client::SplitPath;
use mirror::{Entries, There};
use small::Small;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

/// Copies `sources` to `target` on its server.
pub(crate) fn run(
    sessions: &mut Sessions<'_>,
    sources: &[Operand],
    target: &RemoteUrl,
    options: &CopyOptions,
) -> Result<(), Failure> {
    supervise(options.json, None, |report| {
        options.check(target)?;
        let client = sessions.client(target)?;
        report.connected(&client);
        let mut result = Ok(());
        // One server after the other, with all its sources.
        let mut left: Vec<&Operand> = sources.iter().collect();
        while let Some(&first) = left.first() {
            let server = server_of(sessions, (first, target), &client, options)?;
            let (now, later): (Vec<&Operand>, Vec<&Operand>) =
                left.iter().partition(|other| first.is_on_server_of(other));
            let put = Put::new((&client, &server), first, target, options, report);
            result = result.and(put.sources(&now, target, sources.len() > 1));
            left = later;
        }
        result
    })
}

/// The session for a source; that of the copy for a source on this host.
fn server_of(
    sessions: &mut Sessions<'_>,
    (source, target): (&Operand, &RemoteUrl),
    client: &Remote,
    options: &CopyOptions,
) -> Result<Remote, Failure> {
    match source {
        Operand::Remote(url) if !url.is_same_session(target) => {
            options.check(url)?;
            sessions.client(url)
        }
        _ => Ok(client.clone()),
    }
}

/// The state that all workers of one copy share.
#[derive(Debug)]
struct Put<'a> {
    client: &'a Remote,
    /// The server of the sources; that of the copy for sources on this host.
    server: &'a Remote,
    /// Both are one session.
    is_same_server: bool,
    options: &'a CopyOptions,
    report: &'a Report,
    /// The rules of a synchronisation, if it is one.
    policy: Option<&'a Policy>,
    links: Links<Handle, Handle>,
}

impl Side for Put<'_> {
    type Attributes = SetAttributes;
    type Listing = Entries;
    type Folder = Folder;
    type Path = Operand;

    fn report(&self) -> &Report {
        self.report
    }

    fn finish(&self, directory: &Directory<'_, Self>, attributes: &SetAttributes) -> Outcome {
        let outcome = self.client.set_attributes(&directory.handle, attributes);
        outcome.map_err(|error| remote(directory.url(), &error))
    }
}

impl Directory<'_, Put<'_>> {
    /// The name of the original for messages.
    fn source(&self) -> Operand {
        let join = |path: Operand, name: OsString| path.join(name.as_bytes());
        self.inside().into_iter().fold(self.top.path.clone(), join)
    }
}

/// An object to copy into a directory.
#[derive(Debug)]
struct Object<'a> {
    directory: Arc<Directory<'a, Put<'a>>>,
    /// Its name at the source.
    name: OsString,
    /// Its name on the server, if that differs.
    renamed: Option<Vec<u8>>,
    /// The listing of this host has shown a regular file under its name.
    is_regular: bool,
    /// Its attributes, if the listing of the source had them.
    listed: Option<Box<Attributes>>,
    /// The object that the directory of the copy listed under its name.
    there: Option<Box<DirEntry>>,
}

impl Object<'_> {
    fn source(&self) -> Operand {
        self.directory.source().join(self.name.as_bytes())
    }

    fn attributes(&self) -> Outcome<Attributes> {
        match &self.listed {
            Some(attributes) => Ok(Attributes::clone(attributes)),
            None => {
                let found = self.directory.local.attributes_of(&self.name);
                found.map_err(|error| self.failed(&error))
            }
        }
    }

    /// Its length; 0 if it is unknown.
    fn bytes(&self) -> u64 {
        self.attributes().map_or(0, |attributes| attributes.size)
    }

    fn target_name(&self) -> &[u8] {
        self.renamed.as_deref().unwrap_or(self.name.as_bytes())
    }

    fn target(&self) -> RemoteUrl {
        let directory = self.directory.url();
        directory.join(self.target_name()).unwrap_or(directory)
    }

    /// An error about the original.
    fn failed(&self, error: &Trouble) -> CopyError {
        failed(self.source(), error)
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
    /// A copy from the server, the second one, of `source`.
    fn new(
        (client, server): (&'a Remote, &'a Remote),
        source: &Operand,
        target: &RemoteUrl,
        options: &'a CopyOptions,
        report: &'a Report,
    ) -> Self {
        let is_same_server = match source {
            Operand::Local(_) => true,
            Operand::Remote(url) => url.is_same_session(target),
        };
        let links = Links::new();
        Self { client, server, is_same_server, options, report, policy: None, links }
    }

    fn sources(
        &self,
        sources: &[&Operand],
        target: &RemoteUrl,
        several: bool,
    ) -> Result<(), Failure> {
        let place = self.place(target, several)?;
        let originals = || -> Vec<Source> {
            sources.iter().filter_map(|source| Source::open(self.server, source).ok()).collect()
        };
        count_during(self.report, None, originals, || {
            self.work(|queue| {
                for source in sources {
                    if !self.report.is_stopped() {
                        self.report.book(self.source(queue, source, &place));
                    }
                }
            });
        });
        Ok(())
    }

    /// Copies the objects that `walk` puts into the queue.
    fn work<'s>(&'s self, walk: impl FnOnce(&Queue<'_, Object<'s>>)) {
        let other = (!self.is_same_server).then_some(self.server);
        let (pieces, late) = (Pieces::between(self.client, other), Late::new());
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
    fn source(
        &'a self,
        queue: &Queue<'_, Object<'a>>,
        operand: &Operand,
        place: &Place,
    ) -> Outcome {
        let opened = Source::open(self.server, operand).map_err(|error| failed(operand, &error))?;
        let Source { name, attributes, folder, path } = opened;
        let is_directory = attributes.is_directory();
        let is_loop = |folder: &Folder| {
            let is_remote = matches!(folder, Folder::Remote(..));
            is_remote && leads_through(self.client, &place.url, &attributes, self.is_same_server)
        };
        if is_directory && is_loop(&folder) {
            return Err(CopyError::Object(format!(
                "{operand} cannot be copied into itself: {} is inside of it",
                place.url
            )));
        }
        let wanted = place.name.clone().or_else(|| name.clone().map(OsString::into_vec));
        let Some(target_name) = wanted.filter(|_| is_directory || name.is_some()) else {
            if !is_directory {
                let text = format!("{operand} has no name that {} could take", place.url);
                return Err(CopyError::Object(text));
            }
            // The contents go into an existing directory that the user has named.
            let names = (path, place.url.clone());
            let top = Directory::top(self, names, (folder, place.handle), None);
            return self.walk(queue, top, None);
        };
        let target = place.url.join(&target_name).unwrap_or(place.url.clone());
        if is_directory {
            let names = || (operand.clone(), target.clone());
            let handle = self.make_directory(&place.handle, &target_name, &folder, names)?;
            let attributes = Some(self.final_attributes(&attributes));
            let top = Directory::top(self, (path, target), (folder, handle), attributes);
            return self.walk(queue, top, None);
        }
        if place.for_directory {
            return Err(CopyError::Object(format!(
                "{operand}: {target} is no directory; make it first with dafs mkdir, or leave out the \
                 slash for a copy of that name"
            )));
        }
        let names = (path, place.url.clone());
        let directory = Directory::top(self, names, (folder, place.handle), None);
        queue.push(Object {
            directory,
            name: name.unwrap_or_default(),
            renamed: Some(target_name),
            is_regular: false,
            listed: Some(Box::new(attributes)),
            there: None,
        });
        Ok(())
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
        let fail = |error: Trouble| failed(top.source(), &error);
        if let Folder::Remote(..) = &top.local {
            let own = top.local.attributes().map_err(fail)?;
            let is_target = top.local.is(&own, &target, self.is_same_server);
            if is_target.map_err(|error| fail(error.into()))? {
                let text = format!("{} is the target of the copy; left out", top.source());
                return Err(CopyError::Object(text));
            }
        }
        let listing = top.local.list().map_err(fail)?;
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
        let entry = match entries.listing.next() {
            Some(Ok(entry)) => entry,
            Some(Err(error)) => {
                // Names that are not listed may exist all the same.
                entries.there = None;
                return Err(failed(directory.source(), &error));
            }
            None => {
                self.delete_rest(entries.there.take(), directory);
                return Ok(Step::End);
            }
        };
        let there = entries.take(&entry.name);
        let above = &directory.local;
        let what = || directory.source().join(&entry.name);
        let fail = |error: Trouble| failed(what(), &error);
        let Some(name) = component(entry.name.clone()) else {
            let text = format!("{}: the server returned a name that is not valid here", what());
            return Err(CopyError::Object(text));
        };
        let mut listed = entry.attributes;
        let is_directory = match entry.is_directory {
            Some(is_directory) => is_directory,
            None => listed.insert(above.attributes_of(&name).map_err(fail)?).is_directory(),
        };
        let relative = || directory.relative(&name);
        let leaves_out =
            |policy: &Policy| policy.leaves_out(name.as_bytes(), relative, is_directory);
        if self.policy.is_some_and(leaves_out) {
            return Ok(Step::Object);
        }
        if !is_directory {
            let (listed, there) = (listed.map(Box::new), there.map(Box::new));
            let (directory, is_regular) = (directory.clone(), entry.is_regular);
            queue.push(Object { directory, name, renamed: None, is_regular, listed, there });
            return Ok(Step::Object);
        }
        // Taken before the directory is read, for its time of access.
        let attributes = match listed {
            Some(attributes) => attributes,
            None => above.attributes_of(&name).map_err(fail)?,
        };
        let source = above.enter(&name, &attributes).map_err(fail)?;
        let is_target = source.is(&attributes, target, self.is_same_server);
        if is_target.map_err(|error| fail(error.into()))? {
            let text = format!("{} is the target of the copy; left out", what());
            return Err(CopyError::Object(text));
        }
        let listing = source.list().map_err(fail)?;
        let (handle, there) = self.inner(directory, (&name, there), &source)?;
        let inner = Directory {
            side: self,
            top: directory.top.clone(),
            above: Some((directory.clone(), name)),
            local: source,
            handle,
            final_attributes: self.may_change().then(|| self.final_attributes(&attributes)),
        };
        Ok(Step::Directory(Entries { listing, there }, Arc::new(inner)))
    }

    /// The copy of a directory, with the objects in it for a synchronisation.
    fn inner(
        &self,
        directory: &Directory<'_, Put<'_>>,
        (name, there): (&OsString, Option<DirEntry>),
        source: &Folder,
    ) -> Outcome<(Handle, Option<There>)> {
        if let Some(policy) = self.policy {
            return self.mirror_directory(policy, directory, (name, there), source);
        }
        let made = self.make_directory(&directory.handle, name.as_bytes(), source, || {
            let url = directory.url();
            let source = directory.source().join(name.as_bytes());
            (source, url.join(name.as_bytes()).unwrap_or(url))
        });
        Ok((made?, None))
    }

    /// Makes a directory, or uses an existing one. `names` returns those of the original and of the
    /// copy for messages.
    fn make_directory(
        &self,
        above: &Handle,
        name: &[u8],
        source: &Folder,
        names: impl Fn() -> (Operand, RemoteUrl),
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
                let (original, target) = names();
                let found = source.xattrs().map_err(|error| failed(original, &error))?;
                self.xattrs(found, &handle, &target)?;
            }
            self.report.add(Copied::Directory);
            Ok(handle)
        })
    }

    /// The final attributes of an object's copy.
    fn final_attributes(&self, original: &Attributes) -> SetAttributes {
        let kept = |owner: &Owner| owner.id().filter(|_| self.options.owner);
        SetAttributes {
            mode: Some(original.mode & 0o7777),
            owner: kept(&original.owner),
            group: kept(&original.group),
            size: None,
            accessed: original.accessed.map(SetTime::Client),
            modified: original.modified.map(SetTime::Client),
        }
    }
}
