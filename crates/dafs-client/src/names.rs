//! Operations on names and objects: one request each, by handle.

use crate::attributes::{AccessMask, Attributes, FileHandle, FsStatus, SetAttributes, SpecialFile};
use crate::cache::Effect;
use crate::client::Client;
use crate::convert;
use crate::error::{Error, Result};
use crate::limits::{LINK_TEXT_BYTES_MAX, NAME_BYTES_MAX};
use crate::path::lookup;
use dafs_wire::dafs as wire;
use dafs_wire::dafs::{ObjectType, Reply, Request, SpecData, StateId};

/// A name that can be one component of a path.
///
/// # Errors
/// It is empty, too long ([`Error::TooLong`]), "." or "..", or holds a slash or a zero byte.
pub(crate) fn component(name: &[u8]) -> Result<&[u8]> {
    match name {
        b"" => Err(Error::Argument("a name is empty")),
        b"." | b".." => Err(Error::Argument("\".\" and \"..\" name no entry of a directory")),
        _ if name.len() > NAME_BYTES_MAX => Err(Error::TooLong("a name is over 255 bytes long")),
        _ if name.contains(&b'/') => Err(Error::Argument("a name holds a slash")),
        _ if name.contains(&0) => Err(Error::Argument("a name holds a zero byte")),
        _ => Ok(name),
    }
}

impl Client {
    /// The object called `name` in a directory. Symbolic links are not followed.
    ///
    /// # Errors
    /// The server's answer.
    pub fn lookup(&self, dir: &FileHandle, name: &[u8]) -> Result<FileHandle> {
        lookup(self, dir, &[name])
    }

    /// The directory above. The root has none: NOENT.
    ///
    /// # Errors
    /// The server's answer.
    pub fn parent(&self, dir: &FileHandle) -> Result<FileHandle> {
        self.ask(&Request::LookupP(wire::LookupP { fh: *dir }), |reply| Some(reply.lookup_p()?.fh))
    }

    /// Attributes of an object.
    ///
    /// # Errors
    /// The server's answer.
    pub fn attributes(&self, object: &FileHandle) -> Result<Attributes> {
        drop(self.before(|| Effect::Read(*object)));
        self.attributes_now(object)
    }

    /// Attributes as the server has them.
    pub(crate) fn attributes_now(&self, object: &FileHandle) -> Result<Attributes> {
        let attributes = convert::WANTED;
        let request = Request::GetAttrInline(wire::GetAttrInline { fh: *object, attributes });
        self.shared().ask(&request, |reply| {
            Some(convert::attributes(&reply.get_attr_inline()?.attributes, object))
        })
    }

    /// Changes attributes of an object. To change the size of a file that this client has open,
    /// use [`File::set_attributes`](crate::File::set_attributes).
    ///
    /// # Errors
    /// The server's answer; some of the attributes may have been set.
    pub fn set_attributes(&self, object: &FileHandle, change: &SetAttributes) -> Result<()> {
        self.set_attributes_with(object, StateId::ZERO, change)
    }

    pub(crate) fn set_attributes_with(
        &self,
        object: &FileHandle,
        state_id: StateId,
        change: &SetAttributes,
    ) -> Result<()> {
        let text = convert::OwnerText::new(change);
        let attributes = text.attributes(change);
        let request =
            Request::SetAttrInline(wire::SetAttrInline { fh: *object, state_id, attributes });
        self.ask(&request, |reply| matches!(reply, Reply::SetAttrInline(_)).then_some(()))
    }

    /// The subset of `wanted` that the caller has.
    ///
    /// # Errors
    /// The server's answer.
    pub fn access(&self, object: &FileHandle, wanted: AccessMask) -> Result<AccessMask> {
        let request = Request::Access(wire::Access { fh: *object, mask: wanted });
        self.ask(&request, |reply| Some(reply.access()?.access & wanted))
    }

    /// Space and limits of the file system that an object is in.
    ///
    /// # Errors
    /// The server's answer.
    pub fn fs_status(&self, object: &FileHandle) -> Result<FsStatus> {
        let attributes = convert::FS_WANTED;
        let request = Request::GetFsAttr(wire::GetFsAttr { fh: *object, attributes });
        self.ask(&request, |reply| Some(convert::fs_status(&reply.get_fs_attr()?.attributes)))
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// The server's answer.
    pub fn mkdir(
        &self,
        dir: &FileHandle,
        name: &[u8],
        attributes: &SetAttributes,
    ) -> Result<FileHandle> {
        let text = convert::OwnerText::new(attributes);
        self.make(
            dir,
            name,
            wire::NewObject::Plain(ObjectType::Directory),
            text.attributes(attributes),
        )
    }

    /// Makes a symbolic link that holds `text`.
    ///
    /// # Errors
    /// The server's answer.
    pub fn symlink(&self, dir: &FileHandle, name: &[u8], text: &[u8]) -> Result<FileHandle> {
        if text.len() > LINK_TEXT_BYTES_MAX {
            return Err(Error::TooLong("the text of a link is over 4096 bytes long"));
        }
        if text.contains(&0) {
            return Err(Error::Argument("the text of a link holds a zero byte"));
        }
        self.make(dir, name, wire::NewObject::Symlink(text), wire::Attributes::default())
    }

    /// Makes a device, pipe or socket, and then sets its mode.
    ///
    /// # Errors
    /// The server's answer; when only the mode was refused, the object stays.
    pub fn mknod(
        &self,
        dir: &FileHandle,
        name: &[u8],
        kind: SpecialFile,
        attributes: &SetAttributes,
    ) -> Result<FileHandle> {
        let device = |major: u32, minor: u32| SpecData { major: major.into(), minor: minor.into() };
        let object = match kind {
            SpecialFile::BlockDevice { major, minor } => {
                wire::NewObject::BlockDevice(device(major, minor))
            }
            SpecialFile::CharDevice { major, minor } => {
                wire::NewObject::CharDevice(device(major, minor))
            }
            SpecialFile::Fifo => wire::NewObject::Plain(ObjectType::Fifo),
            SpecialFile::Socket => wire::NewObject::Plain(ObjectType::Socket),
        };
        let made = self.make(dir, name, object, wire::Attributes::default())?;
        // CREATE takes attributes for directories only (DAFS 6).
        if !attributes.is_empty() {
            self.set_attributes(&made, attributes)?;
        }
        Ok(made)
    }

    fn make(
        &self,
        dir: &FileHandle,
        name: &[u8],
        object: wire::NewObject<'_>,
        attributes: wire::Attributes<'_>,
    ) -> Result<FileHandle> {
        let name = component(name)?;
        let request = Request::Create(wire::Create { dir: *dir, name, object, attributes });
        self.ask(&request, |reply| Some(reply.create()?.fh))
    }

    /// Makes another name for an object that is not a directory.
    ///
    /// # Errors
    /// The server's answer.
    pub fn link(&self, object: &FileHandle, dir: &FileHandle, name: &[u8]) -> Result<()> {
        let name = component(name)?;
        let request = Request::Link(wire::Link { source: *object, target_dir: *dir, name });
        self.ask(&request, |reply| matches!(reply, Reply::Link(_)).then_some(()))
    }

    /// Removes a name; directories must be empty. A file stays usable to those who have it open.
    ///
    /// # Errors
    /// The server's answer.
    pub fn remove(&self, dir: &FileHandle, name: &[u8]) -> Result<()> {
        self.remove_with(dir, name, wire::RemoveMode::Unchecked)
    }

    /// As [`Client::remove`], unless anybody has the file open: then DENYDISP_CONFLICT.
    ///
    /// # Errors
    /// The server's answer.
    pub fn remove_unused(&self, dir: &FileHandle, name: &[u8]) -> Result<()> {
        self.remove_with(dir, name, wire::RemoveMode::CheckOpen)
    }

    fn remove_with(
        &self,
        dir: &FileHandle,
        name: &[u8],
        remove_mode: wire::RemoveMode,
    ) -> Result<()> {
        let name = component(name)?;
        let request = Request::Remove(wire::Remove { dir: *dir, name, remove_mode });
        self.ask(&request, |reply| matches!(reply, Reply::Remove(_)).then_some(()))
    }

    /// Renames, replacing a target of a fitting kind.
    ///
    /// # Errors
    /// The server's answer.
    pub fn rename(
        &self,
        from_dir: &FileHandle,
        from: &[u8],
        to_dir: &FileHandle,
        to: &[u8],
    ) -> Result<()> {
        let request = Request::Rename(wire::Rename {
            source_dir: *from_dir,
            target_dir: *to_dir,
            old_name: component(from)?,
            new_name: component(to)?,
        });
        self.ask(&request, |reply| matches!(reply, Reply::Rename(_)).then_some(()))
    }

    /// The text of a symbolic link.
    ///
    /// # Errors
    /// The server's answer.
    pub fn readlink(&self, link: &FileHandle) -> Result<Vec<u8>> {
        let request = Request::ReadLinkInline(wire::ReadLinkInline { fh: *link });
        self.ask(&request, |reply| Some(reply.read_link_inline()?.text.to_vec()))
    }

    /// The directory of an object's named attributes, whose entries are opened as files.
    ///
    /// # Errors
    /// The server's answer.
    pub fn attribute_directory(&self, object: &FileHandle) -> Result<FileHandle> {
        self.ask(&Request::OpenAttr(wire::OpenAttr { fh: *object }), |reply| {
            Some(reply.open_attr()?.fh)
        })
    }
}
