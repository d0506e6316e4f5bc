//! From this host, or from a server, to a server: the synchronisation of a tree with its original.
//!
//! Invariants
//! * See those of [`Policy`]'s module.

use super::{Object, Put, server_of};
use crate::commands::rm::empty_directory;
use crate::copy::CopyOptions;
use crate::copy::content::{local_digest, remote_digest};
use crate::copy::error::{CopyError, Outcome, here, remote};
use crate::copy::local;
use crate::copy::pieces::Worker;
use crate::copy::report::Report;
use crate::copy::source::{Folder, Listing, Original, Source, count_during, leads_through};
use crate::copy::sync::{Policy, is_same_time};
use crate::copy::tree::Directory;
use crate::copy::view::{Operand, Tree};
use crate::failure::Failure;
use crate::remote::{
    Attributes, DirEntry, Error, Follow, Handle, ObjectType, OpenOptions, RemoteUrl, SetAttributes,
    Status,
};
use crate::session::Sessions;
use crate::show::readable;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

/// The objects in a directory of the copy, by name.
pub(super) type There = BTreeMap<Vec<u8>, DirEntry>;

/// The entries of a directory of the source.
#[derive(Debug)]
pub(super) struct Entries {
    pub(super) listing: Listing,
    /// The objects in the copy whose names have not been listed so far; `None` unless this is a
    /// synchronisation, and all names of the source can be known.
    pub(super) there: Option<There>,
}

impl Entries {
    /// Notes that the source has a name. Returns the object of the copy.
    pub(super) fn take(&mut self, name: &[u8]) -> Option<DirEntry> {
        self.there.as_mut()?.remove(name)
    }
}

/// Makes the directory at `target` a copy of the directory `source`.
pub(in crate::copy) fn sync(
    sessions: &mut Sessions<'_>,
    (source, target): (&Operand, &RemoteUrl),
    (options, policy): (&CopyOptions, &Policy),
    report: &Report,
) -> Result<(), Failure> {
    options.check(target)?;
    let top = Tree::open(sessions, source)?.source();
    let top = top.ok_or_else(|| {
        Failure::Usage(format!("{source} is no directory; copy a file with dafs cp"))
    })?;
    let client = sessions.client(target)?;
    report.connected(&client);
    let server = server_of(sessions, (source, target), &client, options)?;
    let put = Put::new((&client, &server), source, target, options, report);
    Put { policy: Some(policy), ..put }.mirror(top, target)
}

impl Put<'_> {
    /// False on a dry run.
    pub(super) fn may_change(&self) -> bool {
        !self.policy.is_some_and(|policy| policy.dry_run)
    }

    fn mirror(&self, original: Source, url: &RemoteUrl) -> Result<(), Failure> {
        let failed = |error: Error| Failure::remote(url, &error);
        self.refuse_loop(&original, url)?;
        let (handle, there) = match self.client.resolve(url.path(), Follow::Yes) {
            Ok(found) if found.attributes.is_directory() => {
                let there = self.objects(&found.handle).map_err(failed)?;
                (found.handle, there)
            }
            Ok(_) => return Err(Failure::Usage(format!("{url} is no directory"))),
            Err(error) if error.status() == Some(Status::NoEnt) => {
                let place = self.client.resolve_new_directory(url.path()).map_err(failed)?;
                // The directory above stands for the missing one, in which nothing is looked up.
                let handle = match self.may_change() {
                    true => self
                        .client
                        .mkdir(&place.dir, &place.name, &SetAttributes::mode(0o700))
                        .map_err(failed)?,
                    false => place.dir,
                };
                (handle, There::new())
            }
            Err(error) => return Err(failed(error)),
        };
        let top = original.clone();
        let originals = || vec![original];
        count_during(self.report, self.policy, originals, || {
            self.work(|queue| {
                let final_attributes =
                    self.may_change().then(|| self.final_attributes(&top.attributes));
                let (names, places) = ((top.path, url.clone()), (top.folder, handle));
                let top = Directory::top(self, names, places, final_attributes);
                self.report.book(self.walk(queue, top, Some(there)));
            });
        });
        Ok(())
    }

    /// Refuses two directories of which one is inside of the other one: the copy would copy itself, or
    /// `--delete` remove the source.
    fn refuse_loop(&self, original: &Source, url: &RemoteUrl) -> Result<(), Failure> {
        let (Operand::Remote(source), is_same) = (&original.path, self.is_same_server) else {
            return Ok(());
        };
        let is_above = leads_through(self.client, url, &original.attributes, is_same);
        let found = self.client.resolve(url.path(), Follow::Yes);
        let is_below = || {
            found.is_ok_and(|found| leads_through(self.server, source, &found.attributes, is_same))
        };
        if is_above || is_below() {
            let text =
                format!("{source} and {url} are the same, or one is inside of the other one");
            return Err(Failure::Usage(text));
        }
        Ok(())
    }

    fn objects(&self, directory: &Handle) -> Result<There, Error> {
        let entries = self.client.read_dir(directory);
        entries.map(|entry| entry.map(|entry| (entry.name.clone(), entry))).collect()
    }

    /// Makes a directory of the copy where it is missing. Returns it with the objects in it. On a
    /// dry run the directory above stands for one that is missing.
    pub(super) fn mirror_directory(
        &self,
        policy: &Policy,
        directory: &Directory<'_, Put<'_>>,
        (name, there): (&OsString, Option<DirEntry>),
        source: &Folder,
    ) -> Outcome<(Handle, Option<There>)> {
        let url = || {
            let url = directory.url();
            url.join(name.as_bytes()).unwrap_or(url)
        };
        let fail = |error: Error| remote(url(), &error);
        let mut kept = None;
        if let Some(entry) = there {
            match self.attributes_of(directory, &entry).map_err(fail)? {
                Some(attributes) if attributes.is_directory() => kept = Some(attributes.handle),
                None => {}
                Some(_) if policy.delete => self.delete(policy, directory, &entry)?,
                Some(_) => {
                    return Err(CopyError::Object(format!(
                        "{} is no directory, and its original is one; --delete removes it",
                        url()
                    )));
                }
            }
        }
        if policy.dry_run {
            let Some(handle) = kept else {
                self.plan("make", directory, name)?;
                return Ok((directory.handle, Some(There::new())));
            };
            return Ok((handle, Some(self.objects(&handle).map_err(fail)?)));
        }
        let names = || (directory.source().join(name.as_bytes()), url());
        let handle = self.make_directory(&directory.handle, name.as_bytes(), source, names)?;
        let there = match kept {
            Some(_) => self.objects(&handle).map_err(fail)?,
            None => There::new(),
        };
        Ok((handle, Some(there)))
    }

    /// The attributes of a listed object, asked for if the listing had none; `None` if it is gone.
    fn attributes_of(
        &self,
        directory: &Directory<'_, Put<'_>>,
        entry: &DirEntry,
    ) -> Result<Option<Attributes>, Error> {
        if let Some(attributes) = &entry.attributes {
            return Ok(Some(attributes.clone()));
        }
        let found = self.client.lookup(&directory.handle, &entry.name);
        match found.and_then(|handle| self.client.attributes(&handle)) {
            Err(error) if error.status() == Some(Status::NoEnt) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Removes the objects of a copy that its original does not have.
    pub(super) fn delete_rest(&self, there: Option<There>, directory: &Directory<'_, Put<'_>>) {
        let Some(policy) = self.policy.filter(|policy| policy.delete) else { return };
        for entry in there.into_iter().flat_map(BTreeMap::into_values) {
            if self.report.is_stopped() {
                return;
            }
            self.report.book(self.delete(policy, directory, &entry));
        }
    }

    fn delete(
        &self,
        policy: &Policy,
        directory: &Directory<'_, Put<'_>>,
        entry: &DirEntry,
    ) -> Outcome {
        let name = OsStr::from_bytes(&entry.name);
        let above = directory.url();
        let url = above.join(&entry.name).unwrap_or(above);
        let failed = |error: Error| remote(&url, &error);
        let Some(attributes) = self.attributes_of(directory, entry).map_err(failed)? else {
            return Ok(());
        };
        if policy.keeps(&entry.name, || directory.relative(name), attributes.is_directory()) {
            return Ok(());
        }
        if policy.dry_run {
            self.plan("delete", directory, name)?;
        } else {
            if attributes.is_directory() {
                // Asked for again: since it was listed, it may have been moved to another place.
                let found = match self.client.lookup(&directory.handle, &entry.name) {
                    Err(error) if error.status() == Some(Status::NoEnt) => return Ok(()),
                    other => other.map_err(failed)?,
                };
                empty_directory(self.client, &url, found).map_err(|failure| match failure {
                    Failure::Failed(text) => CopyError::Object(text),
                    Failure::Reported => {
                        CopyError::Object(format!("{url}: not all of it was removed"))
                    }
                    other => CopyError::Stop(other),
                })?;
            }
            match self.client.remove(&directory.handle, &entry.name) {
                Err(error) if error.status() == Some(Status::NoEnt) => {}
                other => other.map_err(failed)?,
            }
        }
        self.report.deleted();
        Ok(())
    }

    /// Prints a change that a dry run leaves out.
    pub(super) fn plan(
        &self,
        change: &str,
        directory: &Directory<'_, Put<'_>>,
        name: &OsStr,
    ) -> Outcome {
        if self.options.json {
            return Ok(());
        }
        self.report.print(&format!("{change} {}", readable(&directory.relative(name))))
    }

    /// The copy of an object, if it is there and need not be made again. Its permissions are those
    /// of the original then.
    pub(super) fn unchanged(
        &self,
        worker: &mut Worker<'_>,
        object: &Object<'_>,
        original: &Attributes,
    ) -> Outcome<Option<Handle>> {
        let (Some(policy), Some(entry)) = (self.policy, &object.there) else { return Ok(None) };
        let directory = &object.directory;
        let failed = |error: Error| object.remote(&error);
        let Some(there) = self.attributes_of(directory, entry).map_err(failed)? else {
            return Ok(None);
        };
        let is_same = match (original.kind, there.kind) {
            _ if there.is_directory() && policy.delete => {
                self.delete(policy, directory, entry)?;
                false
            }
            _ if there.is_directory() => {
                return Err(CopyError::Object(format!(
                    "{} is a directory, and its original is none; --delete removes it",
                    object.target()
                )));
            }
            (ObjectType::Regular, ObjectType::Regular) => {
                self.is_same_file(worker, (object, original), &there, policy.checksum)?
            }
            (ObjectType::Symlink, ObjectType::Symlink) => {
                let own = directory.local.readlink(&object.name, original);
                let own = own.map_err(|error| object.failed(&error))?;
                self.client.readlink(&there.handle).is_ok_and(|text| text == own)
            }
            (kind, copy) => {
                let is_device = matches!(kind, ObjectType::BlockDevice | ObjectType::CharDevice);
                kind == copy
                    && local::special_type(kind).is_some()
                    && original.mode & 0o1777 == there.mode & 0o1777
                    && (!is_device || original.raw_device == there.raw_device)
            }
        };
        if is_same {
            self.report.unchanged(there.size);
        }
        Ok(is_same.then_some(there.handle))
    }

    fn is_same_file(
        &self,
        worker: &mut Worker<'_>,
        (object, original): (&Object<'_>, &Attributes),
        there: &Attributes,
        by_content: bool,
    ) -> Outcome<bool> {
        let times = there.modified.zip(original.modified);
        let has_time = times.is_some_and(|(copy, own)| is_same_time(copy, own));
        if there.size != original.size || !(by_content || has_time) {
            return Ok(false);
        }
        if by_content && !self.has_same_content(worker, object, there.size)? {
            return Ok(false);
        }
        let mut attributes = self.final_attributes(original);
        if !self.options.owner {
            // Set-id bits of a copy that belongs to another user are left as they are.
            attributes.mode = attributes.mode.map(|mode| (mode & 0o1777) | (there.mode & 0o6000));
        }
        let has_mode = attributes.mode == Some(there.mode & 0o7777);
        if self.may_change() && !(has_mode && has_time) {
            let set = self.client.set_attributes(&there.handle, &attributes);
            set.map_err(|error| object.remote(&error))?;
        }
        Ok(true)
    }

    /// True if a file of `size` bytes and its copy have the same content.
    fn has_same_content(
        &self,
        worker: &mut Worker<'_>,
        object: &Object<'_>,
        size: u64,
    ) -> Outcome<bool> {
        let directory = &object.directory;
        let opened = directory.local.open(&object.name);
        let original = opened.map_err(|error| object.failed(&error))?;
        let options = OpenOptions::read();
        let copy = self.client.open_at(&directory.handle, object.target_name(), &options);
        let Ok(copy) = copy else { return Ok(false) };
        let mut ring = worker.ring(size)?;
        let (own, own_length) = match &original {
            Original::Local(file) => {
                let failed = |error: Errno| here(object.source(), error);
                (local_digest(self.report, file.as_fd(), failed)?, size)
            }
            Original::Remote(file) => {
                let failed = |error: &Error| remote(object.source(), error);
                ring.read_from_source(true);
                remote_digest(self.report, &mut ring, file, size, failed)?
            }
        };
        let failed = |error: &Error| object.remote(error);
        ring.read_from_source(false);
        let (sum, length) = remote_digest(self.report, &mut ring, &copy, size, failed)?;
        Ok((length, sum.value()) == (own_length, own.value()) && length == size)
    }
}
