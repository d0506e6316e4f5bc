//! From this host to the server: the synchronisation of a tree with its original.
//!
//! Invariants
//! * See those of [`Policy`]'s module.

use super::{Object, Put};
use crate::commands::rm::empty_directory;
use crate::copy::CopyOptions;
use crate::copy::content::{local_digest, remote_digest};
use crate::copy::error::{CopyError, Outcome, remote};
use crate::copy::links::Links;
use crate::copy::local::{self, Parent};
use crate::copy::pieces::Worker;
use crate::copy::report::Report;
use crate::copy::sync::{Policy, is_same_time};
use crate::copy::tree::Directory;
use crate::failure::Failure;
use crate::remote::{
    Attributes, DirEntry, Error, Follow, Handle, ObjectType, OpenOptions, RemoteUrl, SetAttributes,
    Status,
};
use crate::session::Sessions;
use crate::show::readable;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, major, minor, readlinkat, statat,
};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The objects in a directory of the copy, by name.
pub(super) type There = BTreeMap<Vec<u8>, DirEntry>;

/// The entries of a directory of the source.
#[derive(Debug)]
pub(super) struct Entries {
    pub(super) listing: Dir,
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
    (source, target): (&Path, &RemoteUrl),
    (options, policy): (&CopyOptions, &Policy),
    report: &Report,
) -> Result<(), Failure> {
    options.check(target)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(source, flags, Mode::empty()).map_err(|error| match error {
        Errno::NOTDIR => Failure::Usage(format!(
            "{} is no directory; copy a file with dafs put",
            source.display()
        )),
        error => Failure::local(source.display(), &error.into()),
    })?;
    let client = sessions.client(target)?;
    report.connected(&client);
    let policy = Some(policy);
    let put = Put { client: &client, options, report, policy, links: Links::new() };
    put.mirror((source, opened), target)
}

impl Put<'_> {
    /// False on a dry run.
    pub(super) fn may_change(&self) -> bool {
        !self.policy.is_some_and(|policy| policy.dry_run)
    }

    fn mirror(&self, (path, opened): (&Path, OwnedFd), url: &RemoteUrl) -> Result<(), Failure> {
        let failed = |error: Error| Failure::remote(url, &error);
        let stat = fstat(&opened).map_err(|error| Failure::local(path.display(), &error.into()))?;
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
        let (source, is_over) = (Arc::new(opened), AtomicBool::new(false));
        std::thread::scope(|scope| {
            if self.report.is_shown() {
                let (source, is_over) = (source.clone(), &is_over);
                scope.spawn(move || {
                    if let Some(bytes) = self.total(source, is_over) {
                        self.report.set_total(bytes);
                    }
                });
            }
            self.work(|queue| {
                let names = (path.to_owned(), url.clone());
                let attributes = self.may_change().then(|| self.final_attributes(&stat));
                let top = Directory::top(self, names, (source, handle), attributes);
                self.report.book(self.walk(queue, top, Some(there)));
            });
            is_over.store(true, Ordering::Relaxed);
        });
        Ok(())
    }

    /// The bytes of all files of the source; `None` if the copy is over first. The walk reports
    /// errors.
    fn total(&self, top: Parent, is_over: &AtomicBool) -> Option<u64> {
        let (mut bytes, mut left) = (0u64, vec![(top, None::<OsString>, Vec::<u8>::new())]);
        while let Some((mut directory, name, above)) = left.pop() {
            if let Some(name) = name {
                let Ok(inner) = local::open_directory(&directory, &name) else { continue };
                directory = Arc::new(inner);
            }
            for name in local::names(&directory).unwrap_or_default() {
                if is_over.load(Ordering::Relaxed) || self.report.is_stopped() {
                    return None;
                }
                let stat = statat(&directory, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW);
                let Ok(stat) = stat else { continue };
                let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
                let path = [&above[..], name.as_bytes()].concat();
                let leaves_out = |policy: &Policy| {
                    policy.leaves_out(name.as_bytes(), || path.clone(), is_directory)
                };
                if self.policy.is_some_and(leaves_out) {
                    continue;
                }
                if is_directory {
                    left.push((directory.clone(), Some(name), [&path[..], b"/"].concat()));
                } else {
                    bytes = bytes.saturating_add(stat.st_size.unsigned_abs());
                }
            }
        }
        Some(bytes)
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
        source: &OwnedFd,
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
        let names = || (directory.path().join(name), url());
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
        stat: &Stat,
    ) -> Outcome<Option<Handle>> {
        let (Some(policy), Some(entry)) = (self.policy, &object.there) else { return Ok(None) };
        let directory = &object.directory;
        let failed = |error: Error| object.remote(&error);
        let Some(there) = self.attributes_of(directory, entry).map_err(failed)? else {
            return Ok(None);
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_same = match (kind, there.kind) {
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
            (FileType::RegularFile, ObjectType::Regular) => {
                self.is_same_file(worker, (object, stat), &there, policy.checksum)?
            }
            (FileType::Symlink, ObjectType::Symlink) => {
                let own = readlinkat(&directory.local, object.name.as_os_str(), Vec::new());
                let own = own.map_err(|error| object.here(error))?;
                self.client.readlink(&there.handle).is_ok_and(|text| text == own.as_bytes())
            }
            _ => {
                let numbers = (u64::from(major(stat.st_rdev)), u64::from(minor(stat.st_rdev)));
                let is_device = matches!(kind, FileType::BlockDevice | FileType::CharacterDevice);
                local::special_type(there.kind) == Some(kind)
                    && local::permissions(stat) & 0o1777 == there.mode & 0o1777
                    && (!is_device || numbers == there.raw_device)
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
        (object, stat): (&Object<'_>, &Stat),
        there: &Attributes,
        by_content: bool,
    ) -> Outcome<bool> {
        let time = local::time(stat.st_mtime, stat.st_mtime_nsec);
        let has_time = there.modified.is_some_and(|copy| is_same_time(copy, time));
        if there.size != stat.st_size.unsigned_abs() || !(by_content || has_time) {
            return Ok(false);
        }
        let failed = |error: &Error| object.remote(error);
        if by_content {
            let directory = &object.directory;
            let original = local::open_for_reading(&directory.local, &object.name)
                .map_err(|error| object.here(error))?;
            let options = OpenOptions::read();
            let copy = self.client.open_at(&directory.handle, object.target_name(), &options);
            let Ok(copy) = copy else { return Ok(false) };
            let own = local_digest(self.report, original.as_fd(), |error| object.here(error))?;
            let mut ring = worker.ring(there.size)?;
            let (sum, length) = remote_digest(self.report, &mut ring, &copy, there.size, failed)?;
            if length != there.size || sum.value() != own.value() {
                return Ok(false);
            }
        }
        let mut attributes = self.final_attributes(stat);
        if !self.options.owner {
            // Set-id bits of a copy that belongs to another user are left as they are.
            attributes.mode = attributes.mode.map(|mode| (mode & 0o1777) | (there.mode & 0o6000));
        }
        let has_mode = attributes.mode == Some(there.mode & 0o7777);
        if self.may_change() && !(has_mode && has_time) {
            let set = self.client.set_attributes(&there.handle, &attributes);
            set.map_err(|error| failed(&error))?;
        }
        Ok(true)
    }
}
