//! The read-only directory that lists the exports of a server with several.

use dafs_store::{
    AccessMask, Acl, Attr, Capabilities, CreateHow, Created, Cred, DirChange, DirEntry,
    FILE_ID_BYTES, FileId, FsId, FsStat, Kind, Made, NewObject, OpenFile, OpenMode, Result,
    SetAttr, SetXattr, Store, StoreError, TimeSpec,
};
use std::sync::Arc;

/// Cookies 0 to 2 are reserved, so the first entry has 3.
const FIRST_COOKIE: u64 = 3;

/// One directory with a fixed list of names. The name space replaces the result of a lookup by the
/// root of the export.
pub(crate) struct PseudoStore {
    names: Vec<Vec<u8>>,
}

impl PseudoStore {
    pub(crate) fn new(names: Vec<Vec<u8>>) -> Self {
        Self { names }
    }

    fn id(index: u64) -> FileId {
        let mut id = [0; FILE_ID_BYTES];
        id[..8].copy_from_slice(b"dafsroot");
        id[8..16].copy_from_slice(&index.to_be_bytes());
        FileId(id)
    }

    fn attr(&self, index: u64) -> Attr {
        let time = TimeSpec::default();
        Attr {
            kind: Kind::Directory,
            mode: 0o555,
            links: 2,
            uid: 0,
            gid: 0,
            size: 0,
            space_used: 0,
            file_id: index + 1,
            raw_device: (0, 0),
            atime: time,
            mtime: time,
            ctime: time,
            btime: None,
            change: 1,
        }
    }

    fn check(&self, id: &FileId) -> Result<()> {
        if *id == Self::id(0) { Ok(()) } else { Err(StoreError::BadHandle) }
    }
}

impl Store for PseudoStore {
    fn fs_id(&self) -> FsId {
        FsId(*b"dafs-export-root")
    }

    fn root(&self) -> FileId {
        Self::id(0)
    }

    fn getattr(&self, id: &FileId) -> Result<Attr> {
        self.check(id).map(|()| self.attr(0))
    }

    fn setattr(&self, _: &Cred, _: &FileId, _: &SetAttr, _: Option<&dyn OpenFile>) -> Result<Attr> {
        Err(StoreError::ReadOnly)
    }

    fn access(&self, _: &Cred, id: &FileId, wanted: AccessMask) -> Result<AccessMask> {
        self.check(id).map(|()| wanted & (AccessMask::READ | AccessMask::LOOKUP))
    }

    fn lookup(&self, _: &Cred, dir: &FileId, name: &[u8]) -> Result<(FileId, Attr)> {
        self.check(dir)?;
        let index =
            self.names.iter().position(|n| n == name).ok_or(StoreError::NotFound)? as u64 + 1;
        Ok((Self::id(index), self.attr(index)))
    }

    fn parent(&self, _: &Cred, dir: &FileId) -> Result<FileId> {
        self.check(dir).and(Err(StoreError::NotFound))
    }

    fn open(&self, _: &Cred, id: &FileId, _: OpenMode) -> Result<Arc<dyn OpenFile>> {
        self.check(id).and(Err(StoreError::IsDirectory))
    }

    fn create(
        &self,
        _: &Cred,
        _: &FileId,
        _: &[u8],
        _: CreateHow,
        _: &SetAttr,
        _: OpenMode,
    ) -> Result<Created> {
        Err(StoreError::ReadOnly)
    }

    fn make(&self, _: &Cred, _: &FileId, _: &[u8], _: NewObject<'_>, _: &SetAttr) -> Result<Made> {
        Err(StoreError::ReadOnly)
    }

    fn link(&self, _: &Cred, _: &FileId, _: &FileId, _: &[u8]) -> Result<DirChange> {
        Err(StoreError::ReadOnly)
    }

    fn remove(&self, _: &Cred, _: &FileId, _: &[u8]) -> Result<DirChange> {
        Err(StoreError::ReadOnly)
    }

    fn rename(
        &self,
        _: &Cred,
        _: &FileId,
        _: &[u8],
        _: &FileId,
        _: &[u8],
    ) -> Result<(DirChange, DirChange)> {
        Err(StoreError::ReadOnly)
    }

    fn readdir(
        &self,
        _: &Cred,
        dir: &FileId,
        cookie: u64,
        attr: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        self.check(dir)?;
        let start = match cookie {
            0 => 0,
            cookie => usize::try_from(cookie - FIRST_COOKIE.min(cookie) + 1)
                .map_err(|_| StoreError::BadCookie)?,
        };
        for (index, name) in self.names.iter().enumerate().skip(start) {
            let id = index as u64 + 1;
            let entry = DirEntry {
                name,
                cookie: FIRST_COOKIE + index as u64,
                file_id: id + 1,
                object: attr.then(|| (Self::id(id), self.attr(id))),
            };
            if !sink(entry) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn readlink(&self, _: &Cred, id: &FileId) -> Result<Vec<u8>> {
        self.check(id).and(Err(StoreError::BadType))
    }

    fn attr_dir(&self, _: &Cred, _: &FileId) -> Result<FileId> {
        Err(StoreError::NotSupported)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn xattr(&self, _: &Cred, id: &FileId, _: &[u8]) -> Result<Vec<u8>> {
        self.check(id).and(Err(StoreError::NoXattr))
    }

    fn set_xattr(
        &self,
        _: &Cred,
        _: &FileId,
        _: &[u8],
        _: &[u8],
        _: SetXattr,
    ) -> Result<DirChange> {
        Err(StoreError::ReadOnly)
    }

    fn list_xattrs(&self, _: &Cred, id: &FileId) -> Result<Vec<Vec<u8>>> {
        self.check(id).map(|()| Vec::new())
    }

    fn remove_xattr(&self, _: &Cred, _: &FileId, _: &[u8]) -> Result<DirChange> {
        Err(StoreError::ReadOnly)
    }

    fn acl(&self, id: &FileId) -> Result<Acl> {
        self.check(id).map(|()| Acl::from_mode(0o555, true))
    }

    fn set_acl(&self, _: &Cred, _: &FileId, _: &Acl) -> Result<()> {
        Err(StoreError::ReadOnly)
    }

    fn commit_names(&self, ids: &[FileId]) -> Result<()> {
        ids.iter().try_for_each(|id| self.check(id))
    }

    fn fs_stat(&self, _: &Cred, id: &FileId) -> Result<FsStat> {
        self.check(id)?;
        Ok(FsStat {
            name_bytes_max: dafs_store::NAME_BYTES_MAX as u32,
            links_max: 1,
            read_only: true,
            ..FsStat::default()
        })
    }
}
