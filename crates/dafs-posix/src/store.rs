//! The `Store` calls of the posix store: they find objects as the server, then act as the caller.

use super::PosixStore;
use super::export::stat_fd;
use super::file::PosixFile;
use super::id::{Ids, Target};
use super::node::Node;
use crate::limits::POSIX_LINKS_MAX;
use dafs_store::backend::{FILE_BYTES_MAX, check_name, check_symlink_text};
use dafs_store::{
    AccessMask, Acl, Attr, Capabilities, CreateHow, Created, Cred, DirChange, DirEntry, FileId,
    FsId, FsStat, Kind, Made, NAME_BYTES_MAX, NewObject, OpenFile, OpenMode, PosixAcls, Quota,
    RemoveKind, Result, SetAttr, SetXattr, Store, StoreError, Watch,
};
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// The object of an id.
enum Found {
    Object(Arc<Node>),
    AttrDir(Arc<Node>),
    NamedAttr(Arc<Node>, u64),
}

fn c_name(name: &[u8]) -> Result<CString> {
    CString::new(name).map_err(|_| StoreError::Invalid)
}

impl PosixStore {
    fn found(&self, id: &FileId) -> Result<Found> {
        if !Ids::claims_attr(id) {
            return self.export.node(id).map(Found::Object);
        }
        match self.export.target(id)? {
            Target::Object(_) => self.export.node(id).map(Found::Object),
            Target::AttrDir(base) => self.export.node(&base).map(Found::AttrDir),
            Target::NamedAttr(base, hash) => Ok(Found::NamedAttr(self.export.node(&base)?, hash)),
        }
    }

    fn remove_hinted(
        &self,
        cred: &Cred,
        dir: &FileId,
        name: &[u8],
        hint: Option<&FileId>,
        kind: RemoveKind,
    ) -> Result<DirChange> {
        check_name(name)?;
        self.export.writable()?;
        let found = self.found_dir(dir)?;
        let caller = self.export.identity.caller(cred)?;
        match found {
            Found::Object(dir) => self.export.remove(&caller, &dir, name, hint, kind),
            Found::AttrDir(node) | Found::NamedAttr(node, _) => {
                kind.check(Kind::NamedAttr)?;
                self.export.remove_attr(&caller, &node, name)
            }
        }
    }

    /// Renames. `target` is the object that has the new name, if the caller knows that.
    fn rename_hinted(
        &self,
        cred: &Cred,
        (from_dir, from): (&FileId, &[u8]),
        (to_dir, to): (&FileId, &[u8]),
        target: Option<Option<&FileId>>,
    ) -> Result<(DirChange, DirChange)> {
        check_name(from)?;
        check_name(to)?;
        self.export.writable()?;
        match (self.found_dir(from_dir)?, self.found_dir(to_dir)?) {
            (Found::Object(from_dir), Found::Object(to_dir)) => {
                let caller = self.export.identity.caller(cred)?;
                self.export.rename(&caller, (&from_dir, from), (&to_dir, to), target)
            }
            _ => Err(StoreError::NotSupported),
        }
    }

    /// Returns a directory of names, or of named attributes.
    fn found_dir(&self, id: &FileId) -> Result<Found> {
        match self.found(id)? {
            Found::Object(node) if node.kind != Kind::Directory => Err(StoreError::NotDirectory),
            Found::NamedAttr(..) => Err(StoreError::NotDirectory),
            found => Ok(found),
        }
    }
}

impl Store for PosixStore {
    fn fs_id(&self) -> FsId {
        self.export.ids.fs_id()
    }

    fn sweep(&self) {
        self.sweep();
    }

    fn root(&self) -> FileId {
        self.export.root.id
    }

    fn getattr(&self, id: &FileId) -> Result<Attr> {
        match self.found(id)? {
            Found::Object(node) => self.export.node_attr(&node, &self.export.stat_live(&node)?),
            Found::AttrDir(node) => self.export.attr_dir_attr(&node),
            Found::NamedAttr(node, hash) => {
                let _server = self.export.identity.server()?;
                self.export.named_attr_attr(&node, hash)
            }
        }
    }

    fn setattr(
        &self,
        cred: &Cred,
        id: &FileId,
        change: &SetAttr,
        file: Option<&dyn OpenFile>,
    ) -> Result<Attr> {
        self.export.writable()?;
        if file.is_some_and(|file| file.id() != *id) {
            return Err(StoreError::Invalid);
        }
        let by_file = file.map(|file| move |size| file.set_size(size));
        match self.found(id)? {
            Found::Object(node) => {
                let stat = self.export.stat_live(&node)?;
                let caller = self.export.identity.caller(cred)?;
                let cut = by_file.as_ref().map(|cut| cut as &dyn Fn(u64) -> Result<()>);
                self.export.change_attr(&caller, cred, (&node, &stat), change, cut)?;
                let stat = stat_fd(node.as_fd())?;
                self.export.note(&node, &stat);
                self.export.node_attr(&node, &stat)
            }
            Found::AttrDir(_) => Err(StoreError::NotSupported),
            Found::NamedAttr(node, hash) => {
                let caller = self.export.identity.caller(cred)?;
                // Only the size of a named attribute is its own.
                if (SetAttr { size: None, ..*change }) != SetAttr::default() {
                    return Err(StoreError::NotSupported);
                }
                match (change.size, by_file) {
                    (Some(size), Some(cut)) => cut(size)?,
                    (Some(size), None) => self.export.cut_attr(&caller, &node, hash, size)?,
                    (None, _) => {}
                }
                let _server = self.export.identity.server()?;
                self.export.named_attr_attr(&node, hash)
            }
        }
    }

    fn access(&self, cred: &Cred, id: &FileId, wanted: AccessMask) -> Result<AccessMask> {
        let found = self.found(id)?;
        let caller = self.export.identity.caller(cred)?;
        match found {
            Found::Object(node) => {
                let stat = self.export.stat_live(&node)?;
                self.export.allowed(&caller, cred, (&node, &stat), wanted)
            }
            Found::AttrDir(node) => self.export.attr_access(&caller, cred, &node, wanted, true),
            Found::NamedAttr(node, _) => {
                self.export.attr_access(&caller, cred, &node, wanted, false)
            }
        }
    }

    fn lookup(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<(FileId, Attr)> {
        check_name(name)?;
        let found = self.found_dir(dir)?;
        let caller = self.export.identity.caller(cred)?;
        match found {
            Found::Object(dir) => {
                let (node, stat) = self.export.step(&dir, name)?;
                Ok((node.id, self.export.node_attr(&node, &stat)?))
            }
            Found::AttrDir(node) | Found::NamedAttr(node, _) => {
                self.export.lookup_attr(&caller, &node, name)
            }
        }
    }

    fn peek(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<(FileId, Kind)> {
        check_name(name)?;
        let Found::Object(node) = self.found_dir(dir)? else {
            return self.lookup(cred, dir, name).map(|(id, attr)| (id, attr.kind));
        };
        let caller = self.export.identity.caller(cred)?;
        self.export.peek_kind(&caller, &node, &c_name(name)?)
    }

    fn peek_of_kind(
        &self,
        cred: &Cred,
        dir: &FileId,
        name: &[u8],
        kind: RemoveKind,
    ) -> Result<FileId> {
        check_name(name)?;
        let found = self.found_dir(dir)?;
        let (Found::Object(node), false) = (found, kind == RemoveKind::Directory) else {
            // A file is no reason to ask other clients for their delegations of it.
            let (id, found) = self.peek(cred, dir, name)?;
            return kind.check(found).map(|()| id);
        };
        let caller = self.export.identity.caller(cred)?;
        let (id, found) = self.export.peek(&caller, &node, &c_name(name)?)?;
        if let Some(found) = found {
            kind.check(found)?;
        }
        Ok(id)
    }

    fn parent(&self, cred: &Cred, dir: &FileId) -> Result<FileId> {
        let found = self.found_dir(dir)?;
        let caller = self.export.identity.caller(cred)?;
        match found {
            Found::Object(dir) => self.export.parent(&caller, &dir),
            Found::AttrDir(node) | Found::NamedAttr(node, _) => Ok(node.id),
        }
    }

    fn open(&self, cred: &Cred, id: &FileId, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        let found = self.found(id)?;
        let caller = self.export.identity.caller(cred)?;
        match found {
            Found::Object(node) => Ok(PosixFile::open(&self.export, &caller, cred, &node, mode)?),
            Found::AttrDir(_) => Err(StoreError::IsDirectory),
            Found::NamedAttr(node, hash) => self.export.open_attr(&caller, cred, &node, hash, mode),
        }
    }

    fn create(
        &self,
        cred: &Cred,
        dir: &FileId,
        name: &[u8],
        how: CreateHow,
        attr: &SetAttr,
        mode: OpenMode,
    ) -> Result<Created> {
        check_name(name)?;
        self.export.writable()?;
        let found = self.found_dir(dir)?;
        let caller = self.export.identity.caller(cred)?;
        match found {
            Found::Object(dir) => self.export.create(&caller, cred, &dir, name, how, attr, mode),
            Found::AttrDir(node) | Found::NamedAttr(node, _) => {
                self.export.create_attr(&caller, cred, &node, name, how, attr, mode)
            }
        }
    }

    fn create_unlinked(
        &self,
        cred: &Cred,
        dir: &FileId,
        attr: &SetAttr,
        mode: OpenMode,
    ) -> Result<Created> {
        self.export.writable()?;
        let Found::Object(dir) = self.found_dir(dir)? else {
            return Err(StoreError::NotSupported);
        };
        let caller = self.export.identity.caller(cred)?;
        self.export.create_unlinked(&caller, cred, &dir, attr, mode)
    }

    fn owner_of_new(&self, cred: &Cred) -> u32 {
        if self.export.identity.switches() { cred.uid } else { rustix::process::geteuid().as_raw() }
    }

    fn make(
        &self,
        cred: &Cred,
        dir: &FileId,
        name: &[u8],
        object: NewObject<'_>,
        attr: &SetAttr,
    ) -> Result<Made> {
        check_name(name)?;
        self.export.writable()?;
        if let NewObject::Symlink(text) = object {
            check_symlink_text(text)?;
        }
        let Found::Object(dir) = self.found_dir(dir)? else {
            return Err(StoreError::NotSupported);
        };
        let caller = self.export.identity.caller(cred)?;
        self.export.make(&caller, cred, &dir, name, object, attr)
    }

    fn link(&self, cred: &Cred, id: &FileId, dir: &FileId, name: &[u8]) -> Result<DirChange> {
        check_name(name)?;
        self.export.writable()?;
        let (Found::Object(node), Found::Object(dir)) = (self.found(id)?, self.found_dir(dir)?)
        else {
            return Err(StoreError::NotSupported);
        };
        let caller = self.export.identity.caller(cred)?;
        self.export.link(&caller, &node, &dir, name)
    }

    fn remove(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<DirChange> {
        self.remove_hinted(cred, dir, name, None, RemoveKind::Any)
    }

    fn remove_known(
        &self,
        cred: &Cred,
        dir: &FileId,
        name: &[u8],
        id: &FileId,
        kind: RemoveKind,
    ) -> Result<DirChange> {
        self.remove_hinted(cred, dir, name, Some(id), kind)
    }

    fn rename(
        &self,
        cred: &Cred,
        from_dir: &FileId,
        from: &[u8],
        to_dir: &FileId,
        to: &[u8],
    ) -> Result<(DirChange, DirChange)> {
        self.rename_hinted(cred, (from_dir, from), (to_dir, to), None)
    }

    fn rename_known(
        &self,
        cred: &Cred,
        from: (&FileId, &[u8]),
        to: (&FileId, &[u8]),
        target: Option<&FileId>,
    ) -> Result<(DirChange, DirChange)> {
        self.rename_hinted(cred, from, to, Some(target))
    }

    fn readdir(
        &self,
        cred: &Cred,
        dir: &FileId,
        cookie: u64,
        attr: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        let found = self.found_dir(dir)?;
        let caller = self.export.identity.caller(cred)?;
        match found {
            Found::Object(node) => {
                if self.export.stat_live(&node).is_err() {
                    return Err(StoreError::Stale);
                }
                self.export.list(&caller, cred, &node, cookie, attr, sink)
            }
            Found::AttrDir(node) | Found::NamedAttr(node, _) => {
                self.export.list_attrs(&caller, &node, cookie, attr, sink)
            }
        }
    }

    fn readlink(&self, _cred: &Cred, id: &FileId) -> Result<Vec<u8>> {
        match self.found(id)? {
            Found::Object(node) if node.kind == Kind::Symlink => {
                self.export.stat_live(&node)?;
                Ok(rustix::fs::readlinkat(&*node, c"", Vec::new())?.into_bytes())
            }
            _ => Err(StoreError::Invalid),
        }
    }

    fn attr_dir(&self, cred: &Cred, id: &FileId) -> Result<FileId> {
        let Found::Object(node) = self.found(id)? else { return Err(StoreError::NotSupported) };
        let caller = self.export.identity.caller(cred)?;
        self.export.stat_live(&node)?;
        self.export.attr_dir(&caller, &node)
    }

    fn capabilities(&self) -> Capabilities {
        self.export.abilities
    }

    fn xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<Vec<u8>> {
        self.read_xattr(cred, id, name)
    }

    fn set_xattr(
        &self,
        cred: &Cred,
        id: &FileId,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<DirChange> {
        self.write_xattr(cred, id, name, value, how)
    }

    fn list_xattrs(&self, cred: &Cred, id: &FileId) -> Result<Vec<Vec<u8>>> {
        self.xattr_names(cred, id)
    }

    fn remove_xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<DirChange> {
        self.drop_xattr(cred, id, name)
    }

    fn acl(&self, id: &FileId) -> Result<Acl> {
        self.read_acl(id)
    }

    fn set_acl(&self, cred: &Cred, id: &FileId, acl: &Acl) -> Result<()> {
        self.write_acl(cred, id, acl)
    }

    fn posix_acls(&self, id: &FileId) -> Result<PosixAcls> {
        self.read_posix_acls(id)
    }

    fn set_posix_acls(&self, cred: &Cred, id: &FileId, lists: &PosixAcls) -> Result<()> {
        self.write_posix_acls(cred, id, lists)
    }

    fn watch(&self, id: &FileId, what: Watch) -> Result<()> {
        self.start_watch(id, what)
    }

    fn unwatch(&self, id: &FileId) {
        self.end_watch(id);
    }

    fn take_local_changes(&self, sink: &mut dyn FnMut(FileId)) {
        self.report_changes(sink);
    }

    fn local_changes_fd(&self) -> Option<BorrowedFd<'_>> {
        self.changes_fd()
    }

    fn commit_names(&self, ids: &[FileId]) -> Result<()> {
        let _server = self.export.identity.server()?;
        for (at, id) in ids.iter().enumerate() {
            if ids[..at].contains(id) {
                continue;
            }
            match self.found(id) {
                Ok(Found::Object(node) | Found::AttrDir(node) | Found::NamedAttr(node, _)) => {
                    self.export.commit_node(&node)?;
                }
                Err(StoreError::Stale) => {}
                // No name leads there now, or only a long scan finds one: the whole file system is
                // synced.
                Err(StoreError::MovedOut | StoreError::Busy) => {
                    return Ok(rustix::fs::syncfs(self.export.mount())?);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn fs_stat(&self, _cred: &Cred, id: &FileId) -> Result<FsStat> {
        let (Found::Object(node) | Found::AttrDir(node) | Found::NamedAttr(node, _)) =
            self.found(id)?;
        let stat = rustix::fs::fstatvfs(&*node)?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        let name_max = u32::try_from(stat.f_namemax).unwrap_or(u32::MAX);
        Ok(FsStat {
            space_total: bytes(stat.f_blocks),
            space_free: bytes(stat.f_bfree),
            space_available: bytes(stat.f_bavail),
            files_total: stat.f_files,
            files_free: stat.f_ffree,
            files_available: stat.f_favail,
            name_bytes_max: name_max.min(NAME_BYTES_MAX as u32),
            links_max: POSIX_LINKS_MAX,
            file_bytes_max: FILE_BYTES_MAX,
            read_only: self.export.read_only
                || stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY),
        })
    }

    fn quota(&self, cred: &Cred) -> Result<Quota> {
        let export = &self.export;
        if !export.abilities.quotas {
            return Err(StoreError::NotSupported);
        }
        Ok(export.quotas.of(export.mount(), export.identity, cred.uid))
    }
}
