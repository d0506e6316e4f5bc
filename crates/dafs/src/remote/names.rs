//! Names, attributes and directories.

use super::error::Error;
use super::types::{Attributes, DirEntry, Found, Handle, Place, nfs_set};
use super::{Follow, FsStatus, ReadDir, Remote, SetAttributes, SpecialFile};
use dafs_client::{self as dafs, Client, SetXattr};
use dafs_nfs_client::mount as nfs;
use dafs_wire::nfs4;

/// The entries of a directory by either protocol.
#[derive(Debug)]
pub(super) enum Listing {
    Dafs(dafs::ReadDir),
    Nfs(nfs::ReadDir),
}

impl Listing {
    pub(super) fn next(&mut self) -> Option<Result<DirEntry, Error>> {
        match self {
            Self::Dafs(entries) => {
                let entry = entries.next()?;
                Some(entry.map_err(Error::from).map(|entry| DirEntry {
                    name: entry.name,
                    attributes: entry.attributes.map(Attributes::from),
                }))
            }
            Self::Nfs(entries) => {
                let entry = entries.next()?;
                Some(entry.map_err(Error::from).map(|entry| {
                    let known = entry.handle.as_ref().zip(entry.attributes.as_ref());
                    DirEntry {
                        attributes: known.map(|(handle, told)| Attributes::nfs(handle, told)),
                        name: entry.name,
                    }
                }))
            }
        }
    }
}

impl Remote {
    /// The object at a path.
    pub(crate) fn resolve(&self, path: &[u8], follow: Follow) -> Result<Found, Error> {
        Ok(match self {
            Self::Dafs(client) => {
                let found = client.resolve(path, follow)?;
                Found { handle: found.handle.into(), attributes: found.attributes.into() }
            }
            Self::Nfs(mount) => {
                let found = mount.resolve(path, follow)?;
                let attributes = Attributes::nfs(&found.handle, &found.attributes);
                Found { handle: attributes.handle, attributes }
            }
        })
    }

    /// The directory of the last component of a path, and that component. A slash behind it demands
    /// an existing directory of that name.
    pub(crate) fn resolve_parent(&self, path: &[u8]) -> Result<Place, Error> {
        Ok(match self {
            Self::Dafs(client) => client.resolve_parent(path)?.into(),
            Self::Nfs(mount) => mount.resolve_parent(path)?.into(),
        })
    }

    /// As [`Remote::resolve_parent`], for a present or future directory: a slash behind the last
    /// component changes nothing.
    pub(crate) fn resolve_new_directory(&self, path: &[u8]) -> Result<Place, Error> {
        Ok(match self {
            Self::Dafs(client) => client.resolve_new_directory_from(&client.root(), path)?.into(),
            Self::Nfs(mount) => mount.resolve_new_directory(path)?.into(),
        })
    }

    /// The places of both names of a rename.
    pub(crate) fn resolve_rename(&self, from: &[u8], to: &[u8]) -> Result<(Place, Place), Error> {
        Ok(match self {
            Self::Dafs(client) => {
                let root = client.root();
                let (from, to) = client.resolve_rename((&root, from), (&root, to))?;
                (from.into(), to.into())
            }
            Self::Nfs(mount) => {
                let (from, to) = mount.resolve_rename(from, to)?;
                (from.into(), to.into())
            }
        })
    }

    pub(crate) fn lookup(&self, dir: &Handle, name: &[u8]) -> Result<Handle, Error> {
        Ok(match self {
            Self::Dafs(client) => client.lookup(&dir.dafs(), name)?.into(),
            Self::Nfs(mount) => (&mount.lookup(&dir.nfs(), name)?.0).into(),
        })
    }

    pub(crate) fn attributes(&self, object: &Handle) -> Result<Attributes, Error> {
        Ok(match self {
            Self::Dafs(client) => client.attributes(&object.dafs())?.into(),
            Self::Nfs(mount) => {
                let handle = object.nfs();
                Attributes::nfs(&handle, &mount.attributes(&handle)?)
            }
        })
    }

    pub(crate) fn set_attributes(&self, object: &Handle, new: &SetAttributes) -> Result<(), Error> {
        match self {
            Self::Dafs(client) => Ok(client.set_attributes(&object.dafs(), new)?),
            Self::Nfs(mount) => Ok(mount.set_attributes(&object.nfs(), &nfs_set(new))?),
        }
    }

    pub(crate) fn mkdir(
        &self,
        dir: &Handle,
        name: &[u8],
        new: &SetAttributes,
    ) -> Result<Handle, Error> {
        Ok(match self {
            Self::Dafs(client) => client.mkdir(&dir.dafs(), name, new)?.into(),
            Self::Nfs(mount) => (&mount.mkdir(&dir.nfs(), name, &nfs_set(new))?).into(),
        })
    }

    pub(crate) fn symlink(&self, dir: &Handle, name: &[u8], text: &[u8]) -> Result<Handle, Error> {
        Ok(match self {
            Self::Dafs(client) => client.symlink(&dir.dafs(), name, text)?.into(),
            Self::Nfs(mount) => (&mount.symlink(&dir.nfs(), name, text)?).into(),
        })
    }

    pub(crate) fn mknod(
        &self,
        dir: &Handle,
        name: &[u8],
        kind: SpecialFile,
        new: &SetAttributes,
    ) -> Result<Handle, Error> {
        match self {
            Self::Dafs(client) => Ok(client.mknod(&dir.dafs(), name, kind, new)?.into()),
            Self::Nfs(mount) => {
                // Not every server sets owner and times of a new object.
                let mode = nfs::SetAttributes { mode: new.mode, ..nfs::SetAttributes::default() };
                let made = mount.mknod(&dir.nfs(), name, kind, &mode)?;
                mount.set_attributes(&made, &nfs_set(new))?;
                Ok((&made).into())
            }
        }
    }

    pub(crate) fn link(&self, object: &Handle, dir: &Handle, name: &[u8]) -> Result<(), Error> {
        match self {
            Self::Dafs(client) => Ok(client.link(&object.dafs(), &dir.dafs(), name)?),
            Self::Nfs(mount) => Ok(mount.link(&object.nfs(), &dir.nfs(), name)?),
        }
    }

    /// Removes a name, also that of an empty directory.
    pub(crate) fn remove(&self, dir: &Handle, name: &[u8]) -> Result<(), Error> {
        match self {
            Self::Dafs(client) => Ok(client.remove(&dir.dafs(), name)?),
            Self::Nfs(mount) => {
                let dir = dir.nfs();
                match mount.remove(&dir, name) {
                    Err(error) if error.status() == Some(nfs4::Status::IsDir) => {
                        Ok(mount.rmdir(&dir, name)?)
                    }
                    other => Ok(other?),
                }
            }
        }
    }

    pub(crate) fn rename(
        &self,
        from: &Handle,
        old: &[u8],
        to: &Handle,
        new: &[u8],
    ) -> Result<(), Error> {
        match self {
            Self::Dafs(client) => Ok(client.rename(&from.dafs(), old, &to.dafs(), new)?),
            Self::Nfs(mount) => Ok(mount.rename(&from.nfs(), old, &to.nfs(), new)?),
        }
    }

    pub(crate) fn readlink(&self, link: &Handle) -> Result<Vec<u8>, Error> {
        Ok(match self {
            Self::Dafs(client) => client.readlink(&link.dafs())?,
            Self::Nfs(mount) => mount.readlink(&link.nfs())?,
        })
    }

    pub(crate) fn read_dir(&self, dir: &Handle) -> ReadDir {
        ReadDir(match self {
            Self::Dafs(client) => Listing::Dafs(client.read_dir(&dir.dafs())),
            Self::Nfs(mount) => Listing::Nfs(mount.read_dir(&dir.nfs())),
        })
    }

    /// The names of an object's extended attributes, each without `user.`.
    pub(crate) fn xattr_names(&self, object: &Handle) -> Result<Vec<Vec<u8>>, Error> {
        Ok(self.with_xattrs()?.xattr_names(&object.dafs())?)
    }

    /// The value of an extended attribute.
    pub(crate) fn xattr(&self, object: &Handle, name: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(self.with_xattrs()?.xattr(&object.dafs(), name)?)
    }

    /// Makes or replaces an extended attribute atomically.
    pub(crate) fn set_xattr(
        &self,
        object: &Handle,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), Error> {
        Ok(self.with_xattrs()?.set_xattr(&object.dafs(), name, value, SetXattr::Either)?)
    }

    fn with_xattrs(&self) -> Result<&Client, Error> {
        match self {
            Self::Dafs(client) => Ok(client),
            Self::Nfs(_) => Err(Error::NotByNfs("extended attributes are kept by dafs:// only")),
        }
    }

    pub(crate) fn fs_status(&self, object: &Handle) -> Result<FsStatus, Error> {
        Ok(match self {
            Self::Dafs(client) => client.fs_status(&object.dafs())?,
            Self::Nfs(mount) => {
                let status = mount.fs_status(&object.nfs())?;
                FsStatus {
                    space_total: status.space_total,
                    space_free: status.space_free,
                    space_available: status.space_available,
                    files_total: status.files_total,
                    files_free: status.files_free,
                    files_available: status.files_available,
                    name_bytes_max: status.name_bytes_max,
                    file_bytes_max: status.file_bytes_max,
                    quota_used: status.quota_used,
                    quota_left: status.quota_left,
                    ..FsStatus::default()
                }
            }
        })
    }
}
