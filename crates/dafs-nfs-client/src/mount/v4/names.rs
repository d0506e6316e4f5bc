//! Operations on names and attributes.

use super::client::Client;
use super::secinfo::Guarded;
use super::{GETATTR, V4, take_attributes, usual_attributes};
use crate::compound::Compound;
use crate::files::{Handle, handle, putfh};
use crate::mount::attributes::{
    Attributes, DirEntry, FsStatus, SetAttributes, SpecialFile, with_nfs4,
};
use crate::mount::error::{MountError, Result};
use crate::mount::limits::{DIRECTORY_BYTES, LINK_TEXT_BYTES_MAX, SMALL_RESULT_BYTES};
use crate::mount::open::Open;
use crate::mount::options::OpenOptions;
use crate::mount::protocol::{Cursor, Names, New, Page};
use dafs_wire::nfs4::{
    self, Attr, Bitmap, CreateArgs, CreateType, DeviceNumbers, Fattr, FileType, GetattrArgs,
    GetfhArgs, LinkArgs, LookupArgs, Op, OpNum, OpenClaim, ReaddirArgs, ReadlinkArgs, RemoveArgs,
    RenameArgs, SavefhArgs, Verifier,
};
use std::sync::Arc;

/// The attributes of each entry that a listing asks for.
const ENTRY: Bitmap =
    Attributes::REQUEST.with(Attr::RdattrError as u32).with(Attr::Filehandle as u32);

const FS_STATUS: Bitmap = Attr::set(&[
    Attr::FilesAvail,
    Attr::FilesFree,
    Attr::FilesTotal,
    Attr::Maxfilesize,
    Attr::Maxname,
    Attr::QuotaAvailHard,
    Attr::QuotaUsed,
    Attr::SpaceAvail,
    Attr::SpaceFree,
    Attr::SpaceTotal,
]);

impl Client {
    /// A compound that is not idempotent, all of whose operations must succeed.
    pub(super) fn change_all(&self, build: &dyn Fn(&mut Compound)) -> Result<()> {
        Ok(self.change(build)?.finish()?)
    }

    /// An operation on an object that is not idempotent.
    pub(super) fn change_by(&self, object: &Handle, op: &Op<'_>) -> Result<()> {
        self.change_all(&|compound| {
            compound.op(&putfh(object)).op(op);
        })
    }
}

impl Names for V4 {
    fn lookup(&self, dir: &Handle, name: &[u8]) -> Result<(Handle, Attributes)> {
        let mut results = self.client.ask(&|compound| {
            compound.op(&putfh(dir)).op(&Op::Lookup(LookupArgs { name }));
            compound.op(&Op::Getfh(GetfhArgs)).op(&GETATTR);
        })?;
        let found = results.skip(&[OpNum::Putfh, OpNum::Lookup]).and_then(handle);
        let found =
            found.map_err(|error| self.client.explained(error.into(), Guarded::Name(dir, name)))?;
        let attributes = usual_attributes(&mut results)?;
        match self.tell_of(&found)? {
            true => self.attributes(&found).map(|attributes| (found, attributes)),
            false => Ok((found, attributes)),
        }
    }

    fn attributes(&self, object: &Handle) -> Result<Attributes> {
        self.tell_of(object)?;
        let mut results = self.client.ask(&|compound| {
            compound.op(&putfh(object)).op(&GETATTR);
        })?;
        let found = results.skip(&[OpNum::Putfh]).map_err(MountError::from);
        let found = found.and_then(usual_attributes);
        found.map_err(|error| self.client.explained(error, Guarded::Object(object)))
    }

    fn set_attributes(
        &self,
        object: &Handle,
        open: Option<&Open>,
        new: &SetAttributes,
    ) -> Result<()> {
        self.client.set_attributes(object, open, new)
    }

    fn make(
        &self,
        dir: &Handle,
        name: &[u8],
        what: New<'_>,
        attributes: &SetAttributes,
    ) -> Result<Handle> {
        let kind = match what {
            New::Directory => CreateType::Plain(FileType::Directory),
            New::Symlink(text) => CreateType::Symlink(text.into()),
            New::Special(SpecialFile::BlockDevice { major, minor }) => {
                CreateType::BlockDevice(DeviceNumbers { major, minor })
            }
            New::Special(SpecialFile::CharDevice { major, minor }) => {
                CreateType::CharacterDevice(DeviceNumbers { major, minor })
            }
            New::Special(SpecialFile::Fifo) => CreateType::Plain(FileType::Fifo),
            New::Special(SpecialFile::Socket) => CreateType::Plain(FileType::Socket),
        };
        let (values, mask) = with_nfs4(attributes, |new| (new.to_values(), new.mask()));
        let mut results = self.client.change(&|compound| {
            let attributes = Fattr { mask, values: &values };
            compound.op(&putfh(dir)).op(&Op::Create(CreateArgs { kind, name, attributes }));
            compound.op(&Op::Getfh(GetfhArgs));
        })?;
        Ok(handle(results.skip(&[OpNum::Putfh, OpNum::Create])?)?)
    }

    fn remove(&self, dir: &Handle, name: &[u8], _: bool) -> Result<()> {
        self.client.change_by(dir, &Op::Remove(RemoveArgs { name }))
    }

    fn rename(&self, from: &Handle, old_name: &[u8], to: &Handle, new_name: &[u8]) -> Result<()> {
        self.client.change_all(&|compound| {
            compound.op(&putfh(from)).op(&Op::Savefh(SavefhArgs)).op(&putfh(to));
            compound.op(&Op::Rename(RenameArgs { old_name, new_name }));
        })
    }

    fn link_to(&self, object: &Handle, dir: &Handle, name: &[u8]) -> Result<()> {
        self.client.change_all(&|compound| {
            compound.op(&putfh(object)).op(&Op::Savefh(SavefhArgs)).op(&putfh(dir));
            compound.op(&Op::Link(LinkArgs { name }));
        })
    }

    fn readlink(&self, link: &Handle) -> Result<Vec<u8>> {
        let room = SMALL_RESULT_BYTES + LINK_TEXT_BYTES_MAX;
        let mut results = self.client.call(false, room, &|compound| {
            compound.op(&putfh(link)).op(&Op::Readlink(ReadlinkArgs));
        })?;
        let result = results.skip(&[OpNum::Putfh])?.take_readlink()?;
        match result.text.here() {
            Some(text) => Ok(text.to_vec()),
            None => Err(MountError::protocol("the text of a link is not where it belongs")),
        }
    }

    fn read_directory(&self, dir: &Handle, from: Cursor) -> Result<Page> {
        let result_bytes_max = DIRECTORY_BYTES;
        let room = SMALL_RESULT_BYTES + result_bytes_max as usize;
        let mut results = self.client.call(false, room, &|compound| {
            compound.op(&putfh(dir)).op(&Op::Readdir(ReaddirArgs {
                cookie: from.cookie,
                cookie_verifier: Verifier(from.verifier),
                directory_bytes: result_bytes_max,
                result_bytes_max,
                request: ENTRY,
            }));
        })?;
        let list = results.skip(&[OpNum::Putfh])?.take_readdir()?;
        let mut page = Page::default();
        let mut cookie = None;
        for entry in list.entries() {
            let told = nfs4::Attributes::decode(&entry.attributes).map_err(MountError::protocol)?;
            page.entries.push(DirEntry {
                name: entry.name.to_vec(),
                handle: told.filehandle.map(|bytes| Handle(bytes.to_vec())),
                attributes: Attributes::from_nfs4(&told),
            });
            cookie = Some(entry.cookie);
        }
        if !list.eof {
            let cookie =
                cookie.ok_or_else(|| MountError::protocol("an empty part of a listing"))?;
            page.next = Some(Cursor { cookie, verifier: list.cookie_verifier.0 });
        }
        // Its memory is needed no more while other calls wait.
        drop(results);
        for entry in &mut page.entries {
            if let Some(handle) = &entry.handle
                && self.tell_of(handle)?
            {
                entry.attributes = Some(self.attributes(handle)?);
            }
        }
        Ok(page)
    }

    fn fs_status(&self, object: &Handle) -> Result<FsStatus> {
        let mut results = self.client.ask(&|compound| {
            compound.op(&putfh(object)).op(&Op::Getattr(GetattrArgs { request: FS_STATUS }));
        })?;
        take_attributes(results.skip(&[OpNum::Putfh])?, |told| FsStatus {
            space_total: told.space_total,
            space_free: told.space_free,
            space_available: told.space_avail,
            files_total: told.files_total,
            files_free: told.files_free,
            files_available: told.files_avail,
            name_bytes_max: told.maxname,
            file_bytes_max: told.maxfilesize,
            quota_used: told.quota_used,
            quota_left: told.quota_avail_hard,
        })
    }

    fn open(&self, dir: &Handle, name: &[u8], options: &OpenOptions) -> Result<Arc<Open>> {
        let opened = self.client.open(dir, OpenClaim::Null(name), options);
        opened.map_err(|error| self.client.explained(error, Guarded::Name(dir, name)))
    }

    fn open_handle(&self, file: &Handle, options: &OpenOptions) -> Result<Arc<Open>> {
        self.client.open(file, OpenClaim::Handle, options)
    }
}
