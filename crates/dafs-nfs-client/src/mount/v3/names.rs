//! Operations on names, attributes and files.

use super::call::{call, decoded};
use super::{V3, refused};
use crate::files::Handle;
use crate::mount::attributes::{
    Attributes, DirEntry, FileType, FsStatus, SetAttributes, SpecialFile, to_nfs3,
};
use crate::mount::error::{MountError, Result};
use crate::mount::limits::{DIRECTORY_BYTES, LINK_TEXT_BYTES_MAX, SMALL_RESULT_BYTES};
use crate::mount::open::Open;
use crate::mount::options::{Create, OpenOptions};
use crate::mount::protocol::{Cursor, Names, New, Page};
use crate::mount::v4::random;
use dafs_rpc::client::Results;
use dafs_wire::nfs3::*;
use dafs_wire::nfs4::{Stateid, Status as Status4};
use dafs_wire::xdr::{Decode, Encode};
use std::sync::Arc;

impl Handle {
    pub(super) fn wire(&self) -> FileHandle<'_> {
        FileHandle(&self.0)
    }
}

fn place<'a>(dir: &'a Handle, name: &'a [u8]) -> DirOpArgs<'a> {
    DirOpArgs { dir: dir.wire(), name }
}

impl V3 {
    /// A call with small results; passes the results of a success to `look`.
    pub(super) fn ask<T, F, R>(
        &self,
        procedure: Procedure,
        args: &impl Encode,
        look: impl FnOnce(T) -> R,
    ) -> Result<R>
    where
        T: for<'a> Decode<'a>,
        F: for<'a> Decode<'a>,
    {
        let results = self.call(procedure, args)?;
        Ok(look(decoded::<T, F>(procedure, &results)?))
    }

    fn call(&self, procedure: Procedure, args: &impl Encode) -> Result<Results> {
        call(&self.link, procedure, args, SMALL_RESULT_BYTES)
    }

    /// The handle of a new object; some servers must be asked for it.
    fn made(
        &self,
        procedure: Procedure,
        results: &Results,
        dir: &Handle,
        name: &[u8],
    ) -> Result<Handle> {
        let ok: CreateOk<'_> = decoded::<_, ChangeFailure>(procedure, results)?;
        match ok.object {
            Some(object) => Ok(Handle(object.0.to_vec())),
            None => Ok(self.lookup(dir, name)?.0),
        }
    }

    fn create(&self, dir: &Handle, name: &[u8], how: CreateHow) -> Result<Handle> {
        let results = self.call(Procedure::Create, &CreateArgs { place: place(dir, name), how })?;
        self.made(Procedure::Create, &results, dir, name)
    }

    /// Applies the rules of NFSv4's OPEN to a file that exists.
    fn open_found(&self, found: (Handle, Attributes), options: &OpenOptions) -> Result<Arc<Open>> {
        let (handle, attributes) = found;
        match attributes.kind {
            FileType::Regular => {}
            FileType::Directory => return Err(refused(Procedure::Lookup, Status4::IsDir)),
            FileType::Symlink => return Err(refused(Procedure::Lookup, Status4::Symlink)),
            _ => return Err(refused(Procedure::Lookup, Status4::Inval)),
        }
        self.check_access(&handle, options)?;
        if options.truncate {
            let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
            self.set_attributes(&handle, None, &cut)?;
        }
        Ok(opened(handle, options))
    }

    /// Checks that the caller has the access that it opens the file for; NFSv3 has no other check.
    fn check_access(&self, file: &Handle, options: &OpenOptions) -> Result<()> {
        let read = if options.read { access::READ } else { 0 };
        let wanted = read | if options.write { access::MODIFY } else { 0 };
        let args = AccessArgs { object: file.wire(), wanted };
        let granted =
            self.ask::<_, ObjectFailure, _>(Procedure::Access, &args, |ok: AccessOk| ok.granted)?;
        match granted & wanted == wanted {
            true => Ok(()),
            false => Err(refused(Procedure::Access, Status4::Access)),
        }
    }
}

impl Names for V3 {
    fn lookup(&self, dir: &Handle, name: &[u8]) -> Result<(Handle, Attributes)> {
        let results = self.call(Procedure::Lookup, &place(dir, name))?;
        let ok: LookupOk<'_> = decoded::<_, ObjectFailure>(Procedure::Lookup, &results)?;
        let handle = Handle(ok.object.0.to_vec());
        let attributes = match ok.attributes {
            Some(attributes) => Attributes::from_nfs3(&attributes),
            None => self.attributes(&handle)?,
        };
        Ok((handle, attributes))
    }

    fn attributes(&self, object: &Handle) -> Result<Attributes> {
        let args = GetattrArgs { object: object.wire() };
        self.ask::<_, NoFailureBody, _>(Procedure::Getattr, &args, |ok: GetattrOk| {
            Attributes::from_nfs3(&ok.attributes)
        })
    }

    fn set_attributes(&self, object: &Handle, _: Option<&Open>, new: &SetAttributes) -> Result<()> {
        let args = SetattrArgs { object: object.wire(), new: to_nfs3(*new), guard: None };
        self.ask::<WccResult, WccResult, _>(Procedure::Setattr, &args, drop)
    }

    fn make(
        &self,
        dir: &Handle,
        name: &[u8],
        what: New<'_>,
        attributes: &SetAttributes,
    ) -> Result<Handle> {
        let (place, attributes) = (place(dir, name), to_nfs3(*attributes));
        let (procedure, results) = match what {
            New::Directory => {
                let args = MkdirArgs { place, attributes };
                (Procedure::Mkdir, self.call(Procedure::Mkdir, &args)?)
            }
            New::Symlink(text) => {
                let target = text.into();
                let args = SymlinkArgs { place, attributes, target };
                (Procedure::Symlink, self.call(Procedure::Symlink, &args)?)
            }
            New::Special(special) => {
                let object = match special {
                    SpecialFile::BlockDevice { major, minor } => {
                        MknodObject::BlockDevice { attributes, device: (major, minor) }
                    }
                    SpecialFile::CharDevice { major, minor } => {
                        MknodObject::CharDevice { attributes, device: (major, minor) }
                    }
                    SpecialFile::Fifo => MknodObject::Fifo(attributes),
                    SpecialFile::Socket => MknodObject::Socket(attributes),
                };
                let args = MknodArgs { place, object };
                (Procedure::Mknod, self.call(Procedure::Mknod, &args)?)
            }
        };
        self.made(procedure, &results, dir, name)
    }

    fn remove(&self, dir: &Handle, name: &[u8], directory: bool) -> Result<()> {
        let procedure = if directory { Procedure::Rmdir } else { Procedure::Remove };
        self.ask::<WccResult, WccResult, _>(procedure, &place(dir, name), drop)
    }

    fn rename(&self, from: &Handle, old: &[u8], to: &Handle, new: &[u8]) -> Result<()> {
        let args = RenameArgs { from: place(from, old), to: place(to, new) };
        self.ask::<RenameResult, RenameResult, _>(Procedure::Rename, &args, drop)
    }

    fn link_to(&self, object: &Handle, dir: &Handle, name: &[u8]) -> Result<()> {
        let args = LinkArgs { file: object.wire(), place: place(dir, name) };
        self.ask::<LinkResult, LinkResult, _>(Procedure::Link, &args, drop)
    }

    fn readlink(&self, link: &Handle) -> Result<Vec<u8>> {
        let args = GetattrArgs { object: link.wire() };
        let room = SMALL_RESULT_BYTES + LINK_TEXT_BYTES_MAX;
        let results = call(&self.link, Procedure::Readlink, &args, room)?;
        let ok: ReadlinkOk<'_> = decoded::<_, ObjectFailure>(Procedure::Readlink, &results)?;
        match ok.target.here() {
            Some(text) => Ok(text.to_vec()),
            None => Err(MountError::protocol("the text of a link is not where it belongs")),
        }
    }

    fn read_directory(&self, dir: &Handle, from: Cursor) -> Result<Page> {
        let args = ReaddirplusArgs {
            dir: dir.wire(),
            cookie: from.cookie,
            verifier: from.verifier,
            dir_count: DIRECTORY_BYTES,
            max_count: DIRECTORY_BYTES,
        };
        let room = SMALL_RESULT_BYTES + DIRECTORY_BYTES as usize;
        let results = call(&self.link, Procedure::Readdirplus, &args, room)?;
        let ok: ReaddirplusOk<'_> = decoded::<_, ObjectFailure>(Procedure::Readdirplus, &results)?;
        let mut page = Page::default();
        let mut cookie = None;
        for entry in ok.entries.iter() {
            cookie = Some(entry.cookie);
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            page.entries.push(DirEntry {
                name: entry.name.to_vec(),
                handle: entry.object.map(|object| Handle(object.0.to_vec())),
                attributes: entry.attributes.as_ref().map(Attributes::from_nfs3),
            });
        }
        if !ok.eof {
            let cookie =
                cookie.ok_or_else(|| MountError::protocol("an empty part of a listing"))?;
            page.next = Some(Cursor { cookie, verifier: ok.verifier });
        }
        Ok(page)
    }

    fn fs_status(&self, object: &Handle) -> Result<FsStatus> {
        let args = GetattrArgs { object: object.wire() };
        let space: FsStatOk =
            self.ask::<_, ObjectFailure, _>(Procedure::FsStat, &args, |ok: FsStatOk| ok)?;
        let file_bytes_max =
            self.ask::<_, ObjectFailure, _>(Procedure::FsInfo, &args, |ok: FsInfoOk| {
                ok.file_bytes_max
            })?;
        let name_bytes_max =
            self.ask::<_, ObjectFailure, _>(Procedure::PathConf, &args, |ok: PathConfOk| {
                ok.name_bytes_max
            })?;
        Ok(FsStatus {
            space_total: Some(space.bytes_total),
            space_free: Some(space.bytes_free),
            space_available: Some(space.bytes_available),
            files_total: Some(space.files_total),
            files_free: Some(space.files_free),
            files_available: Some(space.files_available),
            name_bytes_max: Some(name_bytes_max),
            file_bytes_max: Some(file_bytes_max),
            quota_used: None,
            quota_left: None,
        })
    }

    fn open(&self, dir: &Handle, name: &[u8], options: &OpenOptions) -> Result<Arc<Open>> {
        let mode = SetAttributes::mode(options.mode);
        let handle = match options.create {
            Create::No => return self.open_found(self.lookup(dir, name)?, options),
            Create::IfMissing => {
                let size = options.truncate.then_some(0);
                let new = SetAttributes { size, ..mode };
                self.create(dir, name, CreateHow::Unchecked(to_nfs3(new)))?
            }
            Create::New => {
                // The verifier takes the place of the attributes, so they are set afterwards.
                let handle = self.create(dir, name, CreateHow::Exclusive(random()))?;
                self.set_attributes(&handle, None, &mode)?;
                handle
            }
        };
        Ok(opened(handle, options))
    }

    fn open_handle(&self, file: &Handle, options: &OpenOptions) -> Result<Arc<Open>> {
        self.open_found((file.clone(), self.attributes(file)?), options)
    }
}

fn opened(handle: Handle, options: &OpenOptions) -> Arc<Open> {
    Arc::new(Open::new(0, handle, options.read, options.write, Stateid::ANONYMOUS))
}
