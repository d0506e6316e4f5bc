//! A store that forwards to another one, except for the changes of a layer: for tests and
//! simulations.
//!
//! A layer defines only its changes. [`Layered`] forwards each required operation of [`Store`] by
//! name, so that it does not compile when one is added. It passes each as a [`Call`], which a layer
//! may match in full.

use dafs_mem::VolatileSlice;
use dafs_store::backend::before;
use dafs_store::*;
use std::any::Any;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The operations of a store that layers can distinguish.
#[derive(Debug, Clone, Copy)]
pub enum Call<'a> {
    GetAttr,
    SetAttr(&'a SetAttr),
    Access,
    Lookup,
    Parent,
    Open,
    Create(CreateHow, &'a SetAttr),
    CreateUnlinked,
    Make,
    Link,
    Remove,
    Rename,
    ReadDir,
    ReadLink,
    AttrDir,
    Xattr,
    Acl,
    CommitNames,
    FsStat,
}

/// The changes of a store against the one below it.
pub trait Layer: Send + Sync + 'static {
    /// Called before each operation, which fails if this does.
    fn before(&self, _call: Call<'_>) -> Result<()> {
        Ok(())
    }

    /// Replaces the open file of the store below.
    fn wrap(&self, file: Arc<dyn OpenFile>) -> Arc<dyn OpenFile> {
        file
    }

    fn capabilities(&self, below: Capabilities) -> Capabilities {
        below
    }

    fn layouts(&self) -> Option<&dyn Layouts> {
        None
    }

    fn quota(&self, below: Result<Quota>, _cred: &Cred) -> Result<Quota> {
        below
    }

    fn sweep(&self) {}
}

/// A store with a layer. It dereferences to the layer.
pub struct Layered<L> {
    below: Arc<dyn Store>,
    layer: L,
}

impl<L> Layered<L> {
    pub fn new(below: Arc<dyn Store>, layer: L) -> Self {
        Self { below, layer }
    }
}

impl<L> Deref for Layered<L> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.layer
    }
}

impl<L: Layer> Layered<L> {
    /// Returns the store below, if the layer permits the operation.
    fn go(&self, call: Call<'_>) -> Result<&dyn Store> {
        self.layer.before(call)?;
        Ok(&*self.below)
    }

    fn wrap_created(&self, created: Created) -> Created {
        Created { file: self.layer.wrap(created.file), ..created }
    }
}

impl<L: Layer> Store for Layered<L> {
    fn fs_id(&self) -> FsId {
        self.below.fs_id()
    }

    fn root(&self) -> FileId {
        self.below.root()
    }

    fn getattr(&self, id: &FileId) -> Result<Attr> {
        self.go(Call::GetAttr)?.getattr(id)
    }

    fn setattr(
        &self,
        cred: &Cred,
        id: &FileId,
        change: &SetAttr,
        file: Option<&dyn OpenFile>,
    ) -> Result<Attr> {
        self.go(Call::SetAttr(change))?.setattr(cred, id, change, file)
    }

    fn access(&self, cred: &Cred, id: &FileId, wanted: AccessMask) -> Result<AccessMask> {
        self.go(Call::Access)?.access(cred, id, wanted)
    }

    fn lookup(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<(FileId, Attr)> {
        self.go(Call::Lookup)?.lookup(cred, dir, name)
    }

    fn parent(&self, cred: &Cred, dir: &FileId) -> Result<FileId> {
        self.go(Call::Parent)?.parent(cred, dir)
    }

    fn open(&self, cred: &Cred, id: &FileId, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        self.go(Call::Open)?.open(cred, id, mode).map(|file| self.layer.wrap(file))
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
        let below = self.go(Call::Create(how, attr))?;
        below.create(cred, dir, name, how, attr, mode).map(|created| self.wrap_created(created))
    }

    fn create_unlinked(
        &self,
        cred: &Cred,
        dir: &FileId,
        attr: &SetAttr,
        mode: OpenMode,
    ) -> Result<Created> {
        let below = self.go(Call::CreateUnlinked)?;
        below.create_unlinked(cred, dir, attr, mode).map(|created| self.wrap_created(created))
    }

    fn make(
        &self,
        cred: &Cred,
        dir: &FileId,
        name: &[u8],
        object: NewObject<'_>,
        attr: &SetAttr,
    ) -> Result<Made> {
        self.go(Call::Make)?.make(cred, dir, name, object, attr)
    }

    fn link(&self, cred: &Cred, id: &FileId, dir: &FileId, name: &[u8]) -> Result<DirChange> {
        self.go(Call::Link)?.link(cred, id, dir, name)
    }

    fn remove(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<DirChange> {
        self.go(Call::Remove)?.remove(cred, dir, name)
    }

    fn rename(
        &self,
        cred: &Cred,
        from_dir: &FileId,
        from: &[u8],
        to_dir: &FileId,
        to: &[u8],
    ) -> Result<(DirChange, DirChange)> {
        self.go(Call::Rename)?.rename(cred, from_dir, from, to_dir, to)
    }

    fn readdir(
        &self,
        cred: &Cred,
        dir: &FileId,
        cookie: u64,
        attr: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        self.go(Call::ReadDir)?.readdir(cred, dir, cookie, attr, sink)
    }

    fn readlink(&self, cred: &Cred, id: &FileId) -> Result<Vec<u8>> {
        self.go(Call::ReadLink)?.readlink(cred, id)
    }

    fn attr_dir(&self, cred: &Cred, id: &FileId) -> Result<FileId> {
        self.go(Call::AttrDir)?.attr_dir(cred, id)
    }

    fn capabilities(&self) -> Capabilities {
        self.layer.capabilities(self.below.capabilities())
    }

    fn xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<Vec<u8>> {
        self.go(Call::Xattr)?.xattr(cred, id, name)
    }

    fn set_xattr(
        &self,
        cred: &Cred,
        id: &FileId,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<DirChange> {
        self.go(Call::Xattr)?.set_xattr(cred, id, name, value, how)
    }

    fn list_xattrs(&self, cred: &Cred, id: &FileId) -> Result<Vec<Vec<u8>>> {
        self.go(Call::Xattr)?.list_xattrs(cred, id)
    }

    fn remove_xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<DirChange> {
        self.go(Call::Xattr)?.remove_xattr(cred, id, name)
    }

    fn acl(&self, id: &FileId) -> Result<Acl> {
        self.go(Call::Acl)?.acl(id)
    }

    fn set_acl(&self, cred: &Cred, id: &FileId, acl: &Acl) -> Result<()> {
        self.go(Call::Acl)?.set_acl(cred, id, acl)
    }

    fn posix_acls(&self, id: &FileId) -> Result<PosixAcls> {
        self.go(Call::Acl)?.posix_acls(id)
    }

    fn set_posix_acls(&self, cred: &Cred, id: &FileId, lists: &PosixAcls) -> Result<()> {
        self.go(Call::Acl)?.set_posix_acls(cred, id, lists)
    }

    fn sweep(&self) {
        self.layer.sweep();
    }

    fn commit_names(&self, ids: &[FileId]) -> Result<()> {
        self.go(Call::CommitNames)?.commit_names(ids)
    }

    fn layouts(&self) -> Option<&dyn Layouts> {
        self.layer.layouts()
    }

    fn fs_stat(&self, cred: &Cred, id: &FileId) -> Result<FsStat> {
        self.go(Call::FsStat)?.fs_stat(cred, id)
    }

    fn quota(&self, cred: &Cred) -> Result<Quota> {
        self.layer.quota(self.go(Call::FsStat)?.quota(cred), cred)
    }
}

/// A read or write of an open file.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    pub offset: u64,
    pub bytes: usize,
    pub wait: Wait,
    pub writes: bool,
}

/// The number of bytes of a transfer that are done.
#[derive(Debug, Clone, Copy)]
pub enum Verdict {
    Pass(usize),
    /// A write is reported done and forgotten.
    Forget(usize),
}

/// The changes of an open file against the one below it.
pub trait FileLayer: Send + Sync + 'static {
    /// Called before each read and write, which fails if this does.
    fn judge(&self, transfer: Transfer) -> Result<Verdict>;

    /// Lends a descriptor for a read.
    fn read_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn attr(&self, below: Attr) -> Attr {
        below
    }

    fn check_written_back(&self, below: &dyn OpenFile) -> Result<()> {
        below.check_written_back()
    }

    /// Gives advice to the file below.
    fn advise(
        &self,
        below: &dyn OpenFile,
        (offset, len): (u64, u64),
        advice: CacheAdvice,
    ) -> Result<Advised> {
        below.advise(offset, len, advice)
    }
}

/// An open file with a layer.
pub struct LayeredFile<L> {
    below: Arc<dyn OpenFile>,
    layer: L,
}

impl<L: FileLayer> LayeredFile<L> {
    pub fn over(below: Arc<dyn OpenFile>, layer: L) -> Arc<dyn OpenFile> {
        Arc::new(Self { below, layer })
    }

    fn judge(
        &self,
        views: &[VolatileSlice<'_>],
        offset: u64,
        wait: Wait,
        writes: bool,
    ) -> Result<Verdict> {
        let bytes = views.iter().map(VolatileSlice::len).sum();
        self.layer.judge(Transfer { offset, bytes, wait, writes })
    }
}

impl<L: FileLayer> OpenFile for LayeredFile<L> {
    fn as_any(&self) -> &dyn Any {
        self.below.as_any()
    }

    fn id(&self) -> FileId {
        self.below.id()
    }

    fn read_at(&self, views: &[VolatileSlice<'_>], offset: u64, wait: Wait) -> Result<usize> {
        let (Verdict::Pass(bytes) | Verdict::Forget(bytes)) =
            self.judge(views, offset, wait, false)?;
        self.below.read_at(&before(views, bytes), offset, wait)
    }

    fn read_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.layer.read_descriptor()
    }

    fn write_at(
        &self,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
        wait: Wait,
    ) -> Result<usize> {
        match self.judge(views, offset, wait, true)? {
            Verdict::Pass(bytes) => {
                self.below.write_at(&before(views, bytes), offset, stability, wait)
            }
            Verdict::Forget(bytes) => Ok(bytes),
        }
    }

    fn commit(&self, offset: u64, len: u64) -> Result<()> {
        self.below.commit(offset, len)
    }

    fn sync(&self) -> Result<()> {
        self.below.sync()
    }

    fn check_written_back(&self) -> Result<()> {
        self.layer.check_written_back(&*self.below)
    }

    fn attr(&self) -> Result<Attr> {
        self.below.attr().map(|attr| self.layer.attr(attr))
    }
}

impl<L: FileLayer> WholeFile for LayeredFile<L> {
    fn advise(&self, offset: u64, len: u64, advice: CacheAdvice) -> Result<Advised> {
        self.layer.advise(&*self.below, (offset, len), advice)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.below.set_size(size)
    }

    fn seek(&self, offset: u64, what: SeekWhat) -> Result<Option<u64>> {
        self.below.seek(offset, what)
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.below.allocate(offset, len)
    }

    fn deallocate(&self, offset: u64, len: u64) -> Result<()> {
        self.below.deallocate(offset, len)
    }

    fn copy_from(&self, source: &dyn OpenFile, range: CopyRange) -> Result<u64> {
        self.below.copy_from(source, range)
    }

    fn clone_range_from(&self, source: &dyn OpenFile, range: CopyRange) -> Result<()> {
        self.below.clone_range_from(source, range)
    }
}
