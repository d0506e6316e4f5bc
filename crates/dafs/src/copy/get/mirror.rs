//! From the server to this host: the synchronisation of a tree with its original.
//!
//! Invariants
//! * See those of [`Policy`]'s module.

use super::{Get, Object, open_named};
use crate::copy::CopyOptions;
use crate::copy::content::{local_digest, remote_digest};
use crate::copy::error::{CopyError, Outcome, here};
use crate::copy::local::{self, Parent};
use crate::copy::pieces::Worker;
use crate::copy::report::Report;
use crate::copy::source::{Folder, Source, count_during};
use crate::copy::sync::{Policy, is_same_time};
use crate::copy::tree::Directory;
use crate::copy::view::Operand;
use crate::failure::Failure;
use crate::remote::{Attributes, Error, Follow, ObjectType, OpenOptions, ReadDir, RemoteUrl};
use crate::session::Sessions;
use crate::show::readable;
use rustix::fs::{AtFlags, FileType, Mode, Stat, readlinkat, statat};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// The entries of a directory of the source.
#[derive(Debug)]
pub(super) struct Entries {
    pub(super) listing: ReadDir,
    /// The names in the copy that have not been listed so far; `None` unless this is a
    /// synchronisation, and all names of the source can be known.
    pub(super) there: Option<BTreeSet<OsString>>,
}

impl Entries {
    /// Notes that the source has a name. True if the copy has it.
    pub(super) fn take(&mut self, name: &OsString) -> bool {
        self.there.as_mut().is_some_and(|there| there.remove(name))
    }
}

/// Makes the directory `target` a copy of the directory at `source`.
pub(in crate::copy) fn sync(
    sessions: &mut Sessions<'_>,
    (source, target): (&RemoteUrl, &Path),
    (options, policy): (&CopyOptions, &Policy),
    report: &Report,
) -> Result<(), Failure> {
    // Every mode below is exact.
    rustix::process::umask(Mode::empty());
    options.check(source)?;
    let client = sessions.client(source)?;
    report.connected(&client);
    let get = Get { policy: Some(policy), ..Get::new(&client, options, report) };
    get.mirror(policy, source, target)
}

impl Get<'_> {
    /// False on a dry run.
    pub(super) fn may_change(&self) -> bool {
        !self.policy.is_some_and(|policy| policy.dry_run)
    }

    fn mirror(&self, policy: &Policy, url: &RemoteUrl, target: &Path) -> Result<(), Failure> {
        let failed = |error: Error| Failure::remote(url, &error);
        let found = self.client.resolve(url.path(), Follow::Yes).map_err(failed)?;
        if !found.attributes.is_directory() {
            let text = format!("{url} is no directory; copy a file with dafs get");
            return Err(Failure::Usage(text));
        }
        let failed = |error: Errno| Failure::local(target.display(), &error.into());
        let (local, there) = match open_named(target) {
            Ok(local) => {
                let names = local::names(&local).map_err(failed)?;
                (local, names)
            }
            // The directory stands for the missing one, in which nothing is looked up.
            Err(Errno::NOENT) if policy.dry_run => {
                (open_named(Path::new(".")).map_err(failed)?, BTreeSet::new())
            }
            Err(Errno::NOENT) => {
                rustix::fs::mkdir(target, Mode::RWXU).map_err(failed)?;
                (open_named(target).map_err(failed)?, BTreeSet::new())
            }
            Err(error) => return Err(failed(error)),
        };
        let original = Source {
            name: None,
            attributes: found.attributes.clone(),
            folder: Folder::Remote(self.client.clone(), found.handle),
            path: Operand::Remote(url.clone()),
        };
        let originals = || vec![original];
        count_during(self.report, Some(policy), originals, || {
            self.work(|queue| {
                let names = (target.to_owned(), url.clone());
                let places = (Arc::new(local), found.handle);
                let attributes = self.may_change().then(|| found.attributes.clone());
                let top = Directory::top(self, names, places, attributes);
                self.report.book(self.walk(queue, top, Some(there)));
            });
        });
        Ok(())
    }

    /// Makes a directory of the copy where it is missing. Returns it with the names in it. On a dry
    /// run the directory above stands for one that is missing.
    pub(super) fn mirror_directory(
        &self,
        policy: &Policy,
        directory: &Directory<'_, Get<'_>>,
        (name, is_there): (&OsString, bool),
        attributes: &Attributes,
    ) -> Outcome<(Parent, Option<BTreeSet<OsString>>)> {
        let path = || directory.path().join(name);
        let fail = |error: Errno| here(path().display(), error);
        let mut is_new = !is_there;
        if is_there {
            let stat = statat(&directory.local, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW);
            let stat = stat.map_err(fail)?;
            is_new = FileType::from_raw_mode(stat.st_mode) != FileType::Directory;
        }
        if is_there && is_new {
            if !policy.delete {
                let text = format!(
                    "{} is no directory, and its original is one; --delete removes it",
                    path().display()
                );
                return Err(CopyError::Object(text));
            }
            self.delete(policy, directory, name)?;
        }
        if policy.dry_run && is_new {
            self.plan("make", directory, name)?;
            return Ok((directory.local.clone(), Some(BTreeSet::new())));
        }
        let local = if policy.dry_run {
            Arc::new(local::open_directory(&directory.local, name).map_err(fail)?)
        } else {
            self.make_directory(&directory.local, name, attributes, || {
                let url = directory.url();
                (path(), url.join(name.as_bytes()).unwrap_or(url))
            })?
        };
        let names = if is_new { BTreeSet::new() } else { local::names(&local).map_err(fail)? };
        Ok((local, Some(names)))
    }

    /// Removes the objects of a copy that its original does not have.
    pub(super) fn delete_rest(
        &self,
        there: Option<BTreeSet<OsString>>,
        directory: &Directory<'_, Get<'_>>,
    ) {
        let Some(policy) = self.policy.filter(|policy| policy.delete) else { return };
        for name in there.into_iter().flatten() {
            if self.report.is_stopped() {
                return;
            }
            self.report.book(self.delete(policy, directory, &name));
        }
    }

    fn delete(
        &self,
        policy: &Policy,
        directory: &Directory<'_, Get<'_>>,
        name: &OsString,
    ) -> Outcome {
        let fail = |error: Errno| here(directory.path().join(name).display(), error);
        let stat = match statat(&directory.local, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            other => other.map_err(fail)?,
        };
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if policy.keeps(name.as_bytes(), || directory.relative(name), is_directory) {
            return Ok(());
        }
        if policy.dry_run {
            self.plan("delete", directory, name)?;
        } else {
            local::remove(&directory.local, name).map_err(fail)?;
        }
        self.report.deleted();
        Ok(())
    }

    /// Prints a change that a dry run leaves out.
    pub(super) fn plan(
        &self,
        change: &str,
        directory: &Directory<'_, Get<'_>>,
        name: &OsStr,
    ) -> Outcome {
        if self.options.json {
            return Ok(());
        }
        self.report.print(&format!("{change} {}", readable(&directory.relative(name))))
    }

    /// True if the copy of an object is there and need not be made again. Its permissions are those
    /// of the original then.
    pub(super) fn is_unchanged(
        &self,
        worker: &mut Worker<'_>,
        object: &Object<'_>,
    ) -> Outcome<bool> {
        let Some(policy) = self.policy.filter(|_| object.is_there) else { return Ok(false) };
        let directory = &object.directory;
        let stat = statat(&directory.local, object.name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW);
        let stat = match stat {
            Err(Errno::NOENT) => return Ok(false),
            other => other.map_err(|error| object.here(error))?,
        };
        let attributes = &object.attributes;
        let is_same = match (FileType::from_raw_mode(stat.st_mode), attributes.kind) {
            (FileType::Directory, _) if policy.delete => {
                self.delete(policy, directory, &object.name)?;
                false
            }
            (FileType::Directory, _) => {
                let path = object.path();
                let text = format!(
                    "{} is a directory, and its original is none; --delete removes it",
                    path.display()
                );
                return Err(CopyError::Object(text));
            }
            (FileType::RegularFile, ObjectType::Regular) => {
                self.is_same_file(worker, object, &stat, policy.checksum)?
            }
            (FileType::Symlink, ObjectType::Symlink) => {
                let text = self.client.readlink(&attributes.handle);
                let text = text.map_err(|error| object.remote(&error))?;
                let own = readlinkat(&directory.local, object.name.as_os_str(), Vec::new());
                own.is_ok_and(|own| own.as_bytes() == text)
            }
            (kind, original) => {
                let numbers = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
                let numbers = (u64::from(numbers.0), u64::from(numbers.1));
                let is_device = matches!(kind, FileType::BlockDevice | FileType::CharacterDevice);
                local::special_type(original) == Some(kind)
                    && local::permissions(&stat) & 0o1777 == attributes.mode & 0o1777
                    && (!is_device || numbers == attributes.raw_device)
            }
        };
        if is_same {
            self.report.unchanged(attributes.size);
        }
        Ok(is_same)
    }

    fn is_same_file(
        &self,
        worker: &mut Worker<'_>,
        object: &Object<'_>,
        stat: &Stat,
        by_content: bool,
    ) -> Outcome<bool> {
        let (attributes, directory) = (&object.attributes, &object.directory);
        let size = attributes.size;
        let time = local::time(stat.st_mtime, stat.st_mtime_nsec);
        let has_time = attributes.modified.is_some_and(|original| is_same_time(original, time));
        if size != stat.st_size.unsigned_abs() || !(by_content || has_time) {
            return Ok(false);
        }
        let has_mode = local::permissions(stat) == attributes.mode & 0o7777;
        if !by_content && has_mode {
            return Ok(true);
        }
        let Ok(copy) = local::open_for_reading(&directory.local, &object.name) else {
            return Ok(false);
        };
        if by_content {
            let failed = |error: &Error| object.remote(error);
            let name = object.source_name();
            let original = self.client.open_at(&directory.handle, name, &OpenOptions::read());
            let original = original.map_err(|error| failed(&error))?;
            let mut ring = worker.ring(size)?;
            let (sum, length) = remote_digest(self.report, &mut ring, &original, size, failed)?;
            let own = local_digest(self.report, copy.as_fd(), |error| object.here(error))?;
            if length != size || sum.value() != own.value() {
                return Ok(false);
            }
        }
        if self.may_change() && !(has_mode && has_time) {
            self.finish_open(&copy, attributes).map_err(|error| object.here(error))?;
        }
        Ok(true)
    }
}
