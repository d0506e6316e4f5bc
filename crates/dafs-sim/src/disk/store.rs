//! The file system of a disk, as one server sees it.

use super::file::DiskFile;
use super::{Plug, Shared};
use dafs_store::{
    AccessMask, Acl, Attr, Capabilities, CreateHow, Created, Cred, DirChange, DirEntry, FileId,
    FsId, FsStat, Made, NewObject, OpenFile, OpenMode, Result, SetAttr, SetXattr, Store,
};
use std::sync::Arc;

/// The memory store behind a plug; it records unsynced changes.
pub(crate) struct DiskStore {
    shared: Arc<Shared>,
    plug: Plug,
}

impl DiskStore {
    pub(super) fn new(shared: Arc<Shared>, plug: Plug) -> Self {
        Self { shared, plug }
    }

    fn wrap(&self, file: Arc<dyn OpenFile>) -> Arc<dyn OpenFile> {
        DiskFile::wrap(file, &self.shared, &self.plug)
    }

    /// The file system, for a read.
    fn look(&self) -> Result<&dyn Store> {
        self.plug.look()?;
        Ok(&self.shared.memory)
    }

    /// The file system, for a change.
    fn effect(&self) -> Result<&dyn Store> {
        self.plug.effect()?;
        Ok(&self.shared.memory)
    }

    /// The object behind a name.
    fn behind(&self, dir: &FileId, name: &[u8]) -> Option<FileId> {
        self.shared.memory.lookup(&Cred::new(0, 0), dir, name).ok().map(|(id, _)| id)
    }
}

impl Store for DiskStore {
    fn fs_id(&self) -> FsId {
        self.shared.memory.fs_id()
    }

    fn root(&self) -> FileId {
        self.shared.memory.root()
    }

    fn getattr(&self, id: &FileId) -> Result<Attr> {
        self.look()?.getattr(id)
    }

    fn setattr(
        &self,
        cred: &Cred,
        id: &FileId,
        change: &SetAttr,
        file: Option<&dyn OpenFile>,
    ) -> Result<Attr> {
        let attr = self.effect()?.setattr(cred, id, change, file)?;
        if change.size.is_some() {
            self.shared.data_changed(id, 0, 0)?;
        }
        self.shared.changed(vec![*id]);
        Ok(attr)
    }

    fn access(&self, cred: &Cred, id: &FileId, wanted: AccessMask) -> Result<AccessMask> {
        self.look()?.access(cred, id, wanted)
    }

    fn lookup(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<(FileId, Attr)> {
        self.look()?.lookup(cred, dir, name)
    }

    fn parent(&self, cred: &Cred, dir: &FileId) -> Result<FileId> {
        self.look()?.parent(cred, dir)
    }

    fn open(&self, cred: &Cred, id: &FileId, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        Ok(self.wrap(self.look()?.open(cred, id, mode)?))
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
        let created = self.effect()?.create(cred, dir, name, how, attr, mode)?;
        if created.attr.size == 0 {
            self.shared.data_changed(&created.id, 0, 0)?;
        }
        self.shared.changed(vec![*dir, created.id]);
        if matches!(how, CreateHow::Exclusive(_)) {
            self.plug.effect()?;
            self.shared.settle_names(&[*dir]);
        }
        let file = self.wrap(created.file.clone());
        Ok(Created { file, ..created })
    }

    fn make(
        &self,
        cred: &Cred,
        dir: &FileId,
        name: &[u8],
        object: NewObject<'_>,
        attr: &SetAttr,
    ) -> Result<Made> {
        let made = self.effect()?.make(cred, dir, name, object, attr)?;
        self.shared.changed(vec![*dir, made.id]);
        Ok(made)
    }

    fn link(&self, cred: &Cred, id: &FileId, dir: &FileId, name: &[u8]) -> Result<DirChange> {
        let change = self.effect()?.link(cred, id, dir, name)?;
        self.shared.changed(vec![*dir, *id]);
        Ok(change)
    }

    fn remove(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<DirChange> {
        let mut touched = vec![*dir];
        touched.extend(self.behind(dir, name));
        let change = self.effect()?.remove(cred, dir, name)?;
        self.shared.changed(touched);
        Ok(change)
    }

    fn rename(
        &self,
        cred: &Cred,
        from_dir: &FileId,
        from: &[u8],
        to_dir: &FileId,
        to: &[u8],
    ) -> Result<(DirChange, DirChange)> {
        let mut touched = vec![*from_dir, *to_dir];
        touched.extend(self.behind(from_dir, from));
        touched.extend(self.behind(to_dir, to));
        let changes = self.effect()?.rename(cred, from_dir, from, to_dir, to)?;
        self.shared.changed(touched);
        Ok(changes)
    }

    fn readdir(
        &self,
        cred: &Cred,
        dir: &FileId,
        cookie: u64,
        attr: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        self.look()?.readdir(cred, dir, cookie, attr, sink)
    }

    fn readlink(&self, cred: &Cred, id: &FileId) -> Result<Vec<u8>> {
        self.look()?.readlink(cred, id)
    }

    fn attr_dir(&self, cred: &Cred, id: &FileId) -> Result<FileId> {
        let dir = self.effect()?.attr_dir(cred, id)?;
        self.shared.changed(vec![*id, dir]);
        Ok(dir)
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.memory.capabilities()
    }

    fn xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<Vec<u8>> {
        self.look()?.xattr(cred, id, name)
    }

    fn set_xattr(
        &self,
        cred: &Cred,
        id: &FileId,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<DirChange> {
        let change = self.effect()?.set_xattr(cred, id, name, value, how)?;
        self.shared.changed(vec![*id]);
        Ok(change)
    }

    fn list_xattrs(&self, cred: &Cred, id: &FileId) -> Result<Vec<Vec<u8>>> {
        self.look()?.list_xattrs(cred, id)
    }

    fn remove_xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<DirChange> {
        let change = self.effect()?.remove_xattr(cred, id, name)?;
        self.shared.changed(vec![*id]);
        Ok(change)
    }

    fn acl(&self, id: &FileId) -> Result<Acl> {
        self.look()?.acl(id)
    }

    fn set_acl(&self, cred: &Cred, id: &FileId, acl: &Acl) -> Result<()> {
        self.effect()?.set_acl(cred, id, acl)?;
        self.shared.changed(vec![*id]);
        Ok(())
    }

    fn commit_names(&self, ids: &[FileId]) -> Result<()> {
        for id in ids {
            self.plug.effect()?;
            self.shared.settle_names(std::slice::from_ref(id));
        }
        Ok(())
    }

    fn fs_stat(&self, cred: &Cred, id: &FileId) -> Result<FsStat> {
        self.look()?.fs_stat(cred, id)
    }
}
