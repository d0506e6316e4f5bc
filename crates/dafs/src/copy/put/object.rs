//! From this host, or from a server, to a server: links, pipes, sockets, devices, extended attributes;
//! and the choice of the name under which a file is copied.

use super::small::Small;
use super::{Object, Put};
use crate::copy::error::{CopyError, Outcome, remote};
use crate::copy::links::Claim;
use crate::copy::local::Xattr;
use crate::copy::pieces::Worker;
use crate::copy::report::Copied;
use crate::copy::temporary::temporary_name;
use crate::failure::words;
use crate::remote::{
    Attributes, Error, Handle, ObjectType, RemoteUrl, SetAttributes, SpecialFile, Status,
};
use crate::show::readable;

impl Put<'_> {
    /// Copies an object other than a directory, or begins a small file with one name.
    pub(super) fn object(
        &self,
        worker: &mut Worker<'_>,
        object: &Object<'_>,
    ) -> Outcome<Option<Small>> {
        if object.is_regular
            && self.policy.is_none()
            && let Some(begun) = self.begin_unseen(object)?
        {
            return Ok(Some(begun));
        }
        let original = object.attributes()?;
        let there = self.unchanged(worker, object, &original)?;
        if !self.may_change() {
            if there.is_none() {
                self.plan("copy", &object.directory, &object.name)?;
            }
            return Ok(None);
        }
        if original.links > 1 {
            return self.named_often(worker, object, (&original, there)).map(|()| None);
        }
        if there.is_some() {
            return Ok(None);
        }
        match self.begin_small(object, &original)? {
            None => self.make(worker, object, &original).map(|_| None),
            begun => Ok(begun),
        }
    }

    /// Copies an object with several names, or links it to its copy. `there` is the copy if that is the
    /// same.
    fn named_often(
        &self,
        worker: &mut Worker<'_>,
        object: &Object<'_>,
        (original, there): (&Attributes, Option<Handle>),
    ) -> Outcome {
        let key = original.handle;
        match self.links.claim(key, original.links) {
            Claim::First(first) => {
                let copy = match there {
                    None => self.make(worker, object, original)?,
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
                || self.make(worker, object, original).map(drop),
            ),
        }
    }

    /// Copies an object; returns the copy, or `None` if it was skipped.
    fn make(
        &self,
        worker: &mut Worker<'_>,
        object: &Object<'_>,
        original: &Attributes,
    ) -> Outcome<Option<Handle>> {
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let (major, minor) = (number(original.raw_device.0), number(original.raw_device.1));
        let special = match original.kind {
            ObjectType::Regular => return self.file(worker, object).map(Some),
            ObjectType::Symlink => return self.symlink(object, original).map(Some),
            ObjectType::Fifo => SpecialFile::Fifo,
            ObjectType::Socket => SpecialFile::Socket,
            ObjectType::BlockDevice => SpecialFile::BlockDevice { major, minor },
            ObjectType::CharDevice => SpecialFile::CharDevice { major, minor },
            _ => {
                let text = format!("{}: objects of this type cannot be copied", object.source());
                return Err(CopyError::Object(text));
            }
        };
        self.special(object, special, original)
    }

    fn symlink(&self, object: &Object<'_>, original: &Attributes) -> Outcome<Handle> {
        let text = object.directory.local.readlink(&object.name, original);
        let text = text.map_err(|error| object.failed(&error))?;
        let directory = &object.directory.handle;
        let handle = self
            .make_or_replace(object, |name| self.client.symlink(directory, name, &text))
            .map_err(|error| object.remote(&error))?;
        // A symlink has no permissions of its own.
        let final_attributes = SetAttributes { mode: None, ..self.final_attributes(original) };
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
        original: &Attributes,
    ) -> Outcome<Option<Handle>> {
        let directory = &object.directory.handle;
        let final_attributes = self.final_attributes(original);
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

    /// Sets extended attributes of a copy.
    pub(super) fn xattrs(&self, found: Vec<Xattr>, to: &Handle, target: &RemoteUrl) -> Outcome {
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
