//! Files and directories over a session: one or two compounds per function, errors as the server
//! gave them.
//!
//! Invariants
//! * There is no cache here: every call asks the server.

use crate::compound::Results;
use crate::error::NfsError;
use crate::session::{PendingCompound, Session};
use dafs_wire::nfs4::*;
use dafs_wire::xdr::Payload;

/// A file handle.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Handle(pub Vec<u8>);

/// The common attributes of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// Its type.
    pub kind: FileType,
    /// Its change attribute.
    pub change: u64,
    /// Its length.
    pub size: u64,
    /// Its number in its file system.
    pub fileid: u64,
    /// Its mode.
    pub mode: u32,
    /// The number of its names.
    pub numlinks: u32,
    /// Its owner.
    pub owner: Vec<u8>,
    /// Its group.
    pub owner_group: Vec<u8>,
    /// When its data was changed.
    pub time_modify: Time,
    /// When its attributes were changed.
    pub time_metadata: Time,
}

/// The attributes of [`Stat`].
pub const STAT: Bitmap = Attr::set(&[
    Attr::Type,
    Attr::Change,
    Attr::Size,
    Attr::Fileid,
    Attr::Mode,
    Attr::Numlinks,
    Attr::Owner,
    Attr::OwnerGroup,
    Attr::TimeModify,
    Attr::TimeMetadata,
]);

impl Stat {
    /// Takes the values out of attributes that have them all.
    ///
    /// # Errors
    /// [`NfsError::Unexpected`] when one is missing.
    pub fn from_attributes(read: &Attributes<'_>) -> Result<Self, NfsError> {
        let all = || {
            Some(Self {
                kind: read.kind?,
                change: read.change?,
                size: read.size?,
                fileid: read.fileid?,
                mode: read.mode?,
                numlinks: read.numlinks?,
                owner: read.owner?.to_vec(),
                owner_group: read.owner_group?.to_vec(),
                time_modify: read.time_modify?,
                time_metadata: read.time_metadata?,
            })
        };
        all().ok_or(NfsError::Unexpected("an attribute is missing"))
    }
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The cookie with which a listing goes on behind it.
    pub cookie: u64,
    /// Its name.
    pub name: Vec<u8>,
    /// The number of its object, if that could be read.
    pub fileid: Option<u64>,
}

pub(crate) fn putfh(handle: &Handle) -> Op<'_> {
    Op::Putfh(PutfhArgs { handle: &handle.0 })
}

/// The handle in a result of GETFH.
pub(crate) fn handle(results: &mut Results) -> Result<Handle, NfsError> {
    Ok(Handle(results.take_getfh()?.handle.to_vec()))
}

impl Session {
    fn on(&self, object: &Handle, op: &Op<'_>, cached: bool) -> Result<Results, NfsError> {
        let pending = self.submit(cached, |compound| {
            compound.op(&putfh(object)).op(op);
        })?;
        let mut results = pending.wait()?;
        results.skip(&[OpNum::Putfh])?;
        Ok(results)
    }

    /// Carries out an operation on an object. Its result is the next one of the answer, which the
    /// server need not keep.
    pub(crate) fn ask(&self, object: &Handle, op: &Op<'_>) -> Result<Results, NfsError> {
        self.on(object, op, false)
    }

    /// As [`Session::ask`], but the server has to keep the answer.
    pub(crate) fn change(&self, object: &Handle, op: &Op<'_>) -> Result<Results, NfsError> {
        self.on(object, op, true)
    }

    /// The root of the server's name space.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn root(&self) -> Result<Handle, NfsError> {
        let mut results = self.call(|compound| {
            compound.op(&Op::Putrootfh(PutrootfhArgs)).op(&Op::Getfh(GetfhArgs));
        })?;
        handle(results.skip(&[OpNum::Putrootfh])?)
    }

    /// The object of this name in a directory.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn lookup(&self, directory: &Handle, name: &[u8]) -> Result<Handle, NfsError> {
        let mut results = self.call(|compound| {
            let lookup = Op::Lookup(LookupArgs { name });
            compound.op(&putfh(directory)).op(&lookup).op(&Op::Getfh(GetfhArgs));
        })?;
        handle(results.skip(&[OpNum::Putfh, OpNum::Lookup])?)
    }

    /// The object at the end of a path from the root; empty components are skipped.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn lookup_path(&self, path: &str) -> Result<Handle, NfsError> {
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        let mut results = self.call(|compound| {
            compound.op(&Op::Putrootfh(PutrootfhArgs));
            for name in &names {
                compound.op(&Op::Lookup(LookupArgs { name: name.as_bytes() }));
            }
            compound.op(&Op::Getfh(GetfhArgs));
        })?;
        results.skip(&[OpNum::Putrootfh])?;
        for _ in &names {
            results.take(OpNum::Lookup)?;
        }
        handle(&mut results)
    }

    /// Reads attributes and shows them to `look`.
    ///
    /// # Errors
    /// Those of [`Session::call`]; [`NfsError::Attributes`].
    pub fn getattr<T>(
        &self,
        object: &Handle,
        request: Bitmap,
        look: impl FnOnce(&Attributes<'_>) -> T,
    ) -> Result<T, NfsError> {
        let mut results = self.ask(object, &Op::Getattr(GetattrArgs { request }))?;
        Ok(look(&Attributes::decode(&results.take_getattr()?.attributes)?))
    }

    /// Reads the usual attributes.
    ///
    /// # Errors
    /// Those of [`Session::getattr`].
    pub fn stat(&self, object: &Handle) -> Result<Stat, NfsError> {
        self.getattr(object, STAT, Stat::from_attributes)?
    }

    /// Sets attributes; the size under `stateid`. Returns the attributes that were set.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn setattr(
        &self,
        object: &Handle,
        stateid: Stateid,
        new: &SetAttributes<'_>,
    ) -> Result<Bitmap, NfsError> {
        let values = new.to_values();
        let attributes = Fattr { mask: new.mask(), values: &values };
        let mut results = self.change(object, &Op::Setattr(SetattrArgs { stateid, attributes }))?;
        Ok(results.take_setattr()?.attributes_set)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn mkdir(&self, directory: &Handle, name: &[u8]) -> Result<Handle, NfsError> {
        self.make(directory, name, CreateType::Plain(FileType::Directory))
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn symlink(
        &self,
        directory: &Handle,
        name: &[u8],
        text: &[u8],
    ) -> Result<Handle, NfsError> {
        self.make(directory, name, CreateType::Symlink(text.into()))
    }

    fn make(
        &self,
        directory: &Handle,
        name: &[u8],
        kind: CreateType<'_>,
    ) -> Result<Handle, NfsError> {
        let new = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
        let values = new.to_values();
        let attributes = Fattr { mask: new.mask(), values: &values };
        let mut results = self.call_cached(|compound| {
            let create = Op::Create(CreateArgs { kind, name, attributes });
            compound.op(&putfh(directory)).op(&create).op(&Op::Getfh(GetfhArgs));
        })?;
        handle(results.skip(&[OpNum::Putfh, OpNum::Create])?)
    }

    /// The text of a symbolic link.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn readlink(&self, link: &Handle) -> Result<Vec<u8>, NfsError> {
        let mut results = self.ask(link, &Op::Readlink(ReadlinkArgs))?;
        Ok(here(results.take_readlink()?.text)?.to_vec())
    }

    /// Removes a name.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn remove(&self, directory: &Handle, name: &[u8]) -> Result<ChangeInfo, NfsError> {
        let mut results = self.change(directory, &Op::Remove(RemoveArgs { name }))?;
        Ok(results.take_remove()?.change)
    }

    /// Renames an object.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn rename(
        &self,
        from: &Handle,
        old_name: &[u8],
        to: &Handle,
        new_name: &[u8],
    ) -> Result<(), NfsError> {
        self.call_cached(|compound| {
            compound.op(&putfh(from)).op(&Op::Savefh(SavefhArgs)).op(&putfh(to));
            compound.op(&Op::Rename(RenameArgs { old_name, new_name }));
        })?
        .finish()
    }

    /// Gives an object a further name.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn link(&self, object: &Handle, directory: &Handle, name: &[u8]) -> Result<(), NfsError> {
        self.call_cached(|compound| {
            compound.op(&putfh(object)).op(&Op::Savefh(SavefhArgs)).op(&putfh(directory));
            compound.op(&Op::Link(LinkArgs { name }));
        })?
        .finish()
    }

    /// Reads a whole directory, `result_bytes_max` bytes at a time.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn read_directory(
        &self,
        directory: &Handle,
        result_bytes_max: u32,
    ) -> Result<Vec<Entry>, NfsError> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut cookie_verifier = Verifier::default();
        loop {
            let cookie = entries.last().map_or(0, |last| last.cookie);
            let mut results = self.ask(
                directory,
                &Op::Readdir(ReaddirArgs {
                    cookie,
                    cookie_verifier,
                    directory_bytes: result_bytes_max,
                    result_bytes_max,
                    request: Attr::set(&[Attr::RdattrError, Attr::Fileid]),
                }),
            )?;
            let list = results.take_readdir()?;
            let before = entries.len();
            for entry in list.entries() {
                let fileid = Attributes::decode(&entry.attributes)?.fileid;
                let (cookie, name) = (entry.cookie, entry.name.to_vec());
                entries.push(Entry { cookie, name, fileid });
            }
            if list.eof {
                return Ok(entries);
            }
            if entries.len() == before {
                return Err(NfsError::Unexpected("an empty part of a directory"));
            }
            cookie_verifier = list.cookie_verifier;
        }
    }

    /// The subset of the rights that the caller has.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn access(&self, object: &Handle, access: Access) -> Result<Access, NfsError> {
        let mut results = self.ask(object, &Op::Access(AccessArgs { access }))?;
        Ok(results.take_access()?.access)
    }

    /// Sends a READ; the answer goes to [`read_result`].
    ///
    /// # Errors
    /// Those of [`Session::submit`].
    pub fn submit_read(
        &self,
        file: &Handle,
        stateid: Stateid,
        offset: u64,
        count: u32,
    ) -> Result<PendingCompound, NfsError> {
        self.submit(false, |compound| {
            compound.op(&putfh(file)).op(&Op::Read(ReadArgs { stateid, offset, count }));
        })
    }

    /// As [`Session::submit_read`], but the request is sent with the next one, or when a thread
    /// waits for an answer.
    ///
    /// # Errors
    /// Those of [`Session::queue`].
    pub fn queue_read(
        &self,
        file: &Handle,
        stateid: Stateid,
        offset: u64,
        count: u32,
    ) -> Result<PendingCompound, NfsError> {
        self.queue(false, |compound| {
            compound.op(&putfh(file)).op(&Op::Read(ReadArgs { stateid, offset, count }));
        })
    }
}

/// Takes the data of a READ from the answer to [`Session::submit_read`]: returns the length, and
/// true at the end of the file.
///
/// # Errors
/// [`NfsError::Status`], [`NfsError::Malformed`]; [`NfsError::Unexpected`] when there is more data
/// than asked for.
pub fn read_result(results: &mut Results, into: &mut [u8]) -> Result<(usize, bool), NfsError> {
    let result = results.skip(&[OpNum::Putfh])?.take_read()?;
    let data = here(result.data)?;
    let place =
        into.get_mut(..data.len()).ok_or(NfsError::Unexpected("more data than was asked for"))?;
    place.copy_from_slice(data);
    Ok((data.len(), result.eof))
}

/// Data in the results, because no other place was asked for.
fn here(payload: Payload<'_>) -> Result<&[u8], NfsError> {
    payload.here().ok_or(NfsError::Unexpected("data apart from the results"))
}
