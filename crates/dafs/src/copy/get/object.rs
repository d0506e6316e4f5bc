//! From the server to this host: links, pipes, sockets, devices, extended attributes; and the
//! choice of the name under which a file is copied.

use super::small::Small;
use super::{Get, Object};
use crate::copy::error::{CopyError, Outcome, remote};
use crate::copy::links::Claim;
use crate::copy::local::{self, Parent, make_or_replace, open_below};
use crate::copy::pieces::Worker;
use crate::copy::report::Copied;
use crate::remote::{Error, Handle, ObjectType, RemoteUrl, Status};
use crate::show::readable;
use rustix::fs::{AtFlags, Mode, linkat, makedev, mknodat, symlinkat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// The copy of a file with several names. It is no open directory, because there may be as many
/// places as such files.
#[derive(Debug, Clone)]
pub(super) struct LinkPlace {
    root: Parent,
    inside: Arc<[OsString]>,
    name: OsString,
}

impl<'a> Get<'a> {
    /// Copies an object other than a directory, or begins a small file with one name.
    pub(super) fn object(
        &self,
        worker: &mut Worker<'_>,
        object: &Object<'_>,
    ) -> Outcome<Option<Small>> {
        let is_there = self.is_unchanged(worker, object)?;
        if !self.may_change() {
            if !is_there {
                self.plan("copy", &object.directory, &object.name)?;
            }
            return Ok(None);
        }
        if object.attributes.links > 1 {
            return self.named_often(worker, object, is_there).map(|()| None);
        }
        if is_there {
            return Ok(None);
        }
        match self.begin_small(object)? {
            None => self.make(worker, object).map(|()| None),
            begun => Ok(begun),
        }
    }

    /// Copies an object with several names, or links it to its copy, which is there if `is_there`.
    fn named_often(&self, worker: &mut Worker<'_>, object: &Object<'_>, is_there: bool) -> Outcome {
        match self.links.claim(object.attributes.handle, object.attributes.links) {
            Claim::First(first) => {
                if !is_there {
                    self.make(worker, object)?;
                }
                let directory = &object.directory;
                first.copied(LinkPlace {
                    root: directory.top.local.clone(),
                    inside: directory.inside().into(),
                    name: object.name.clone(),
                });
                Ok(())
            }
            Claim::Link(_) if is_there => Ok(()),
            Claim::Link(place) => self.links.link_or_copy(
                self.report,
                (object.attributes.handle, place),
                |place| link(place, object).map_err(|error| object.here(error)),
                || self.make(worker, object),
            ),
        }
    }

    fn make(&self, worker: &mut Worker<'_>, object: &Object<'_>) -> Outcome {
        match object.attributes.kind {
            ObjectType::Regular => self.file(worker, object),
            ObjectType::Symlink => self.symlink(object),
            kind => match local::special_type(kind) {
                Some(_) => self.special(object),
                None => Err(CopyError::Object(format!(
                    "{}: objects of this type cannot be copied",
                    object.source()
                ))),
            },
        }
    }

    fn symlink(&self, object: &Object<'_>) -> Outcome {
        let text = self
            .client
            .readlink(&object.attributes.handle)
            .map_err(|error| object.remote(&error))?;
        let parent = &object.directory.local;
        make_or_replace(parent, &object.name, |name| {
            symlinkat(text.as_slice(), parent, name.as_os_str())?;
            self.finish_named(object, name)
        })
        .map_err(|error| object.here(error))?;
        self.report.add(Copied::Symlink);
        Ok(())
    }

    fn special(&self, object: &Object<'_>) -> Outcome {
        let attributes = &object.attributes;
        let Some(kind) = local::special_type(attributes.kind) else { return Ok(()) };
        let mode = Mode::from_raw_mode(attributes.mode & 0o1777);
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let (major, minor) = attributes.raw_device;
        let parent = &object.directory.local;
        let made = make_or_replace(parent, &object.name, |name| {
            let device = makedev(number(major), number(minor));
            mknodat(parent, name.as_os_str(), kind, mode, device)?;
            self.finish_named(object, name)
        });
        match made {
            Ok(()) => self.report.add(Copied::Special),
            Err(Errno::PERM | Errno::ACCESS) => self.report.skip(&format!(
                "{}: skipped, because only root may make a {} here",
                object.path().display(),
                crate::show::kind(attributes.kind)
            )),
            Err(error) => return Err(object.here(error)),
        }
        Ok(())
    }

    /// Copies named attributes to an open file or directory.
    pub(super) fn xattrs(
        &self,
        handle: &Handle,
        to: &OwnedFd,
        source: &RemoteUrl,
        path: &Path,
    ) -> Outcome {
        let failed = |error: &Error| remote(source, error);
        for name in self.client.xattr_names(handle).map_err(|error| failed(&error))? {
            let value = match self.client.xattr(handle, &name) {
                // It was removed meanwhile.
                Err(error) if error.status() == Some(Status::NoEnt) => continue,
                value => value.map_err(|error| failed(&error))?,
            };
            let why = match local::set_xattr(to, &name, &value) {
                Ok(()) => continue,
                Err(Errno::NOSPC | Errno::TOOBIG) => format!(
                    "it has {} bytes, and this file system keeps no attributes so large, or is full",
                    value.len()
                ),
                Err(error) => std::io::Error::from(error).to_string(),
            };
            // An attribute that cannot be kept is reported, and the others are copied.
            self.report.book(Err(CopyError::Object(format!(
                "{}: the attribute {} is not copied: {why}",
                path.display(),
                readable(&name)
            ))));
        }
        Ok(())
    }
}

/// Makes an object a further name of an existing copy.
fn link(place: &LinkPlace, object: &Object<'_>) -> Result<(), Errno> {
    let directory = &*object.directory;
    let link_from = |from: &OwnedFd| {
        make_or_replace(&directory.local, &object.name, |name| {
            let to = &directory.local;
            linkat(from, place.name.as_os_str(), to, name.as_os_str(), AtFlags::empty())
        })
    };
    if Arc::ptr_eq(&place.root, &directory.top.local) && *place.inside == directory.inside() {
        return link_from(&directory.local);
    }
    link_from(&open_below(&place.root, &place.inside)?)
}
