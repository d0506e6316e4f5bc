//! From this host to the server: links, pipes, sockets, devices, extended attributes; and the
//! choice of the name under which a file is copied.

use super::small::Small;
use super::{Object, Put};
use crate::copy::error::{CopyError, Outcome, here, remote};
use crate::copy::links::Claim;
use crate::copy::local;
use crate::copy::pieces::Worker;
use crate::copy::report::Copied;
use crate::copy::temporary::temporary_name;
use crate::failure::words;
use crate::remote::{Error, Handle, RemoteUrl, SetAttributes, SpecialFile, Status};
use crate::show::readable;
use rustix::fs::{AtFlags, FileType, Stat, major, minor, readlinkat, statat};
use std::os::fd::OwnedFd;
use std::path::Path;

impl Put<'_> {
    /// Copies an object other than a directory, or begins a small file with one name.
    pub(super) fn object(
        &self,
        worker: &mut Worker<'_>,
        object: &Object<'_>,
    ) -> Outcome<Option<Small>> {
        let source = &object.directory.local;
        let stat = statat(source, object.name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| object.here(error))?;
        let there = self.unchanged(worker, object, &stat)?;
        if !self.may_change() {
            if there.is_none() {
                self.plan("copy", &object.directory, &object.name)?;
            }
            return Ok(None);
        }
        if stat.st_nlink > 1 {
            return self.named_often(worker, object, (&stat, there)).map(|()| None);
        }
        if there.is_some() {
            return Ok(None);
        }
        match self.begin_small(object, &stat)? {
            None => self.make(worker, object, &stat).map(|_| None),
            begun => Ok(begun),
        }
    }

    /// Copies an object with several names, or links it to its copy. `there` is the copy if that is the
    /// same.
    fn named_often(
        &self,
        worker: &mut Worker<'_>,
        object: &Object<'_>,
        (stat, there): (&Stat, Option<Handle>),
    ) -> Outcome {
        let names = u32::try_from(stat.st_nlink).unwrap_or(u32::MAX);
        let key = (stat.st_dev, stat.st_ino);
        match self.links.claim(key, names) {
            Claim::First(first) => {
                let copy = match there {
                    None => self.make(worker, object, stat)?,
                    there => there,
                };
                if let Some(handle) = copy {
                    first.copied(handle);
                }
                Ok(())
            }
            Claim::Link(_) if there.is_some() => Ok(()),
            Claim::Link(copy) => self.links.link_or_copy(
                self.report,
                (key, copy),
                |copy| self.link(object, copy).map_err(|error| object.remote(&error)),
                || self.make(worker, object, stat).map(drop),
            ),
        }
    }

    /// Copies an object; returns the copy, or `None` if it was skipped.
    fn make(
        &self,
        worker: &mut Worker<'_>,
        object: &Object<'_>,
        stat: &Stat,
    ) -> Outcome<Option<Handle>> {
        let device = || (major(stat.st_rdev), minor(stat.st_rdev));
        let special = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return self.file(worker, object).map(Some),
            FileType::Symlink => return self.symlink(object, stat).map(Some),
            FileType::Fifo => SpecialFile::Fifo,
            FileType::Socket => SpecialFile::Socket,
            FileType::BlockDevice => {
                let (major, minor) = device();
                SpecialFile::BlockDevice { major, minor }
            }
            FileType::CharacterDevice => {
                let (major, minor) = device();
                SpecialFile::CharDevice { major, minor }
            }
            _ => {
                let path = object.path();
                let text = format!("{}: objects of this type cannot be copied", path.display());
                return Err(CopyError::Object(text));
            }
        };
        self.special(object, special, stat)
    }

    fn symlink(&self, object: &Object<'_>, stat: &Stat) -> Outcome<Handle> {
        let source = &object.directory.local;
        let text = readlinkat(source, object.name.as_os_str(), Vec::new())
            .map_err(|error| object.here(error))?;
        let directory = &object.directory.handle;
        let handle = self
            .make_or_replace(object, |name| self.client.symlink(directory, name, text.as_bytes()))
            .map_err(|error| object.remote(&error))?;
        // A symlink has no permissions of its own.
        let final_attributes = SetAttributes { mode: None, ..self.final_attributes(stat) };
        self.client
            .set_attributes(&handle, &final_attributes)
            .map_err(|error| object.remote(&error))?;
        self.report.add(Copied::Symlink);
        Ok(handle)
    }

    fn special(
        &self,
        object: &Object<'_>,
        kind: SpecialFile,
        stat: &Stat,
    ) -> Outcome<Option<Handle>> {
        let directory = &object.directory.handle;
        let final_attributes = self.final_attributes(stat);
        let made = self.make_or_replace(object, |name| {
            self.client.mknod(directory, name, kind, &final_attributes)
        });
        match made {
            Ok(handle) => {
                self.report.add(Copied::Special);
                Ok(Some(handle))
            }
            Err(error)
                if matches!(
                    error.status(),
                    Some(Status::Perm | Status::Acces | Status::BadType)
                ) =>
            {
                self.report.skip(&format!(
                    "{}: skipped, because the server does not let us make one ({error})",
                    object.target()
                ));
                Ok(None)
            }
            Err(error) => Err(object.remote(&error)),
        }
    }

    fn link(&self, object: &Object<'_>, copy: &Handle) -> Result<(), Error> {
        let directory = &object.directory.handle;
        self.make_or_replace(object, |name| self.client.link(copy, directory, name))
    }

    /// Runs `make` with the final name. If that exists, makes the object under a temporary name and
    /// renames it, so that the old one is replaced atomically.
    fn make_or_replace<T>(
        &self,
        object: &Object<'_>,
        make: impl Fn(&[u8]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match make(object.target_name()) {
            Err(error) if error.status() == Some(Status::Exist) => {}
            other => return other,
        }
        let aside = temporary_name();
        let made = make(aside.as_bytes())?;
        let directory = &object.directory.handle;
        let renamed =
            self.client.rename(directory, aside.as_bytes(), directory, object.target_name());
        // Renaming one name of a file to another of its names has no effect, so the temporary one
        // may still be there even after success.
        match self.client.remove(directory, aside.as_bytes()) {
            Err(error) if renamed.is_ok() && error.status() != Some(Status::NoEnt) => Err(error),
            _ => renamed.map(|()| made),
        }
    }

    /// Copies `user.*` extended attributes of an open file or directory.
    pub(super) fn xattrs(
        &self,
        from: &OwnedFd,
        to: &Handle,
        path: &Path,
        target: &RemoteUrl,
    ) -> Outcome {
        let found = local::xattrs(from).map_err(|error| here(path.display(), error))?;
        if found.is_empty() {
            return Ok(());
        }
        let failed = |error: Error| remote(target, &error);
        for (name, value) in found {
            let error = match self.client.set_xattr(to, &name, &value) {
                Ok(()) => continue,
                Err(error) if error.is_fatal() => return Err(failed(error)),
                Err(error) => error,
            };
            // An attribute that cannot be kept is reported, and the others are copied. EXT4 answers
            // "no space" for a value that is too large for it.
            let why = match error.status() {
                Some(Status::FBig | Status::NoSpc) => format!(
                    "it has {} bytes, and the server's file system keeps no attributes so large, or \
                     is full",
                    value.len()
                ),
                _ => words(&error),
            };
            let text = format!("{target}: the attribute {} is not copied: {why}", readable(&name));
            self.report.book(Err(CopyError::Object(text)));
        }
        Ok(())
    }
}
