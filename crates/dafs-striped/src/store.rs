//! The `Store` calls of the striped store. Names and attributes are those of the metadata
//! directory. Calls that change a size or remove a file also handle its components.

use super::file::StripedFile;
use super::pending::Entry;
use super::record::{Record, STRIPES_XATTR};
use super::state::FileState;
use super::{Shared, StripedStore, server, shown};
use dafs_store::node::ComponentId;
use dafs_store::{
    AccessMask, Acl, Attr, Capabilities, CreateHow, Created, Cred, DirChange, DirEntry, FileId,
    FsId, FsStat, Kind, LayoutForm, Layouts, Made, NewObject, OpenFile, OpenMode, PosixAcls,
    Result, SetAttr, SetXattr, Store, StoreError, Waits, Watch,
};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A striped file that may lose its last name.
struct Victim {
    state: Arc<FileState>,
    links: u32,
}

impl Shared {
    /// Returns the striped file of a name, if it is one.
    fn victim(self: &Arc<Self>, dir: &FileId, name: &[u8]) -> Option<Victim> {
        let (id, attr) = self.meta.lookup(&server(), dir, name).ok()?;
        if attr.kind != Kind::Regular {
            return None;
        }
        let state = self.state(&id);
        // A file with a truncation that cannot be finished now can be removed, too.
        state.look().ok().flatten().is_some().then_some(Victim { state, links: attr.links })
    }

    /// Removes the components of a file that has lost its last name.
    fn lost_name(&self, victim: Option<Victim>) {
        let Some(Victim { state, links }) = victim else { return };
        let gone = match self.meta.getattr(&state.id()) {
            Ok(attr) => attr.links == 0,
            // A server without privileges cannot find every object that exists.
            Err(StoreError::Stale) => links == 1 || self.meta.checks_callers(),
            Err(_) => false,
        };
        let Some(record) = gone.then(|| state.look().ok().flatten()).flatten() else { return };
        state.hold(record.component);
        self.enter_removed(state.id(), &record);
    }

    /// Removes the name of a new file that cannot be placed, if it still leads there: a caller who repeats a
    /// guarded create would find it. Another caller may have placed the file meanwhile, to write to it. Then
    /// it keeps its name.
    fn take_back(self: &Arc<Self>, dir: &FileId, name: &[u8], made: &FileId) {
        let _names = self.names.write();
        let leads_there =
            self.meta.peek(&server(), dir, name).is_ok_and(|(found, _)| found == *made);
        if leads_there && matches!(self.state(made).try_look(), Ok(None)) {
            // If this fails as well, the caller still gets the first error.
            let _removed = self.meta.remove(&server(), dir, name);
        }
    }

    /// Lists the components of a file for removal, when it cannot be found any more.
    pub(super) fn enter_removed(&self, file: FileId, record: &Record) {
        let (component, nodes) = (record.component, record.nodes.clone());
        let entry = Entry { component, file, nodes };
        let entered = self.as_server().and_then(|_server| self.removed.enter(&entry));
        if let Err(error) = entered {
            tracing::error!(component = %record.component, %error, "components stay for ever");
        }
    }

    /// Removes the components of a removed file. Leaves a file alone that has a name: a crash has
    /// brought the name back.
    fn remove_components(self: &Arc<Self>, entry: &Entry) -> Result<()> {
        if self.held.lock().contains(&entry.component) {
            return Err(StoreError::Busy);
        }
        match self.meta.getattr(&entry.file) {
            Ok(attr) if attr.links > 0 => {
                let record = self.state(&entry.file).look()?;
                if record.is_some_and(|record| record.component == entry.component) {
                    tracing::warn!(component = %entry.component, "a removed file is back");
                    return Ok(());
                }
            }
            Ok(_) | Err(StoreError::Stale | StoreError::NotFound) => {}
            Err(error) => return Err(error),
        }
        self.remove_from(&entry.nodes, &entry.component)
    }

    /// Removes a component from nodes. Each of them is asked, even if others fail.
    pub(super) fn remove_from(&self, nodes: &[u32], component: &ComponentId) -> Result<()> {
        let _server = self.as_server()?;
        let remove = |&number: &u32| {
            let node = self.slot(number)?.node.clone();
            // Waits for running writes, which would make the component again.
            node.drop_grants(component)?;
            node.remove(component)
        };
        nodes.iter().map(remove).fold(Ok(()), Result::and)
    }

    /// True if a name in a directory is the attribute of the record, which clients must not see.
    fn is_hidden(&self, dir: &FileId, name: &[u8]) -> bool {
        let is_attr_dir =
            || self.meta.getattr(dir).is_ok_and(|attr| attr.kind == Kind::AttrDirectory);
        name == STRIPES_XATTR && is_attr_dir()
    }

    /// Rejects a name that clients cannot see.
    fn visible(&self, dir: &FileId, name: &[u8]) -> Result<()> {
        if self.is_hidden(dir, name) { Err(StoreError::NotFound) } else { Ok(()) }
    }

    /// Rejects a name that clients cannot make.
    fn nameable(&self, dir: &FileId, name: &[u8]) -> Result<()> {
        if self.is_hidden(dir, name) { Err(StoreError::Access) } else { Ok(()) }
    }

    fn wrap(
        self: &Arc<Self>,
        id: &FileId,
        meta: Arc<dyn OpenFile>,
        mode: OpenMode,
    ) -> Arc<dyn OpenFile> {
        Arc::new(StripedFile::new(meta, self.state(id), mode))
    }

    fn wrap_created(self: &Arc<Self>, created: Created, mode: OpenMode) -> Created {
        let file = self.wrap(&created.id, created.file, mode);
        Created { file, attr: shown(created.attr), ..created }
    }
}

impl Store for StripedStore {
    fn fs_id(&self) -> FsId {
        self.shared.meta.fs_id()
    }

    fn root(&self) -> FileId {
        Store::root(&self.shared.meta)
    }

    fn getattr(&self, id: &FileId) -> Result<Attr> {
        self.shared.meta.getattr(id).map(shown)
    }

    fn setattr(
        &self,
        cred: &Cred,
        id: &FileId,
        change: &SetAttr,
        file: Option<&dyn OpenFile>,
    ) -> Result<Attr> {
        let meta = &self.shared.meta;
        // A change of the size goes through an open file, which truncates the components, too.
        let own;
        let file = match (change.size, file) {
            (Some(_), None) if meta.getattr(id)?.kind == Kind::Regular => {
                own = self.open(cred, id, OpenMode { read: false, write: true })?;
                Some(&*own)
            }
            _ => file,
        };
        meta.setattr(cred, id, change, file).map(shown)
    }

    fn access(&self, cred: &Cred, id: &FileId, wanted: AccessMask) -> Result<AccessMask> {
        self.shared.meta.access(cred, id, wanted)
    }

    fn lookup(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<(FileId, Attr)> {
        self.shared.visible(dir, name)?;
        self.shared.meta.lookup(cred, dir, name).map(|(id, attr)| (id, shown(attr)))
    }

    fn peek(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<(FileId, Kind)> {
        self.shared.visible(dir, name)?;
        self.shared.meta.peek(cred, dir, name)
    }

    fn parent(&self, cred: &Cred, dir: &FileId) -> Result<FileId> {
        self.shared.meta.parent(cred, dir)
    }

    fn open(&self, cred: &Cred, id: &FileId, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        let file = self.shared.meta.open(cred, id, mode)?;
        if file.attr()?.kind != Kind::Regular {
            return Ok(file);
        }
        Ok(self.shared.wrap(id, file, mode))
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
        self.shared.nameable(dir, name)?;
        let meta = &self.shared.meta;
        let sized = attr.size.is_some() && meta.getattr(dir)?.kind == Kind::AttrDirectory;
        // An existing file is truncated below, together with its components.
        let cuts = attr.size == Some(0) && !sized;
        let wish = if cuts { SetAttr { size: None, ..*attr } } else { *attr };
        let created = meta.create(cred, dir, name, how, &wish, mode)?;
        if created.attr.kind != Kind::Regular {
            return Ok(created);
        }
        let mut created = self.shared.wrap_created(created, mode);
        if created.created {
            if attr.size.is_some_and(|size| size > 0) {
                let placed = self.shared.state(&created.id).place_new();
                let placed = placed.and_then(|()| created.file.attr());
                created.attr =
                    placed.inspect_err(|_| self.shared.take_back(dir, name, &created.id))?;
            }
        } else if cuts && how == CreateHow::Unchecked {
            let cut = SetAttr { size: Some(0), ..SetAttr::default() };
            let file = mode.write.then_some(&*created.file);
            created.attr = self.setattr(cred, &created.id, &cut, file)?;
        }
        Ok(created)
    }

    fn create_unlinked(
        &self,
        cred: &Cred,
        dir: &FileId,
        attr: &SetAttr,
        mode: OpenMode,
    ) -> Result<Created> {
        let created = self.shared.meta.create_unlinked(cred, dir, attr, mode)?;
        let mut created = self.shared.wrap_created(created, mode);
        self.shared.state(&created.id).set_unnamed(true);
        if attr.size.is_some_and(|size| size > 0) {
            self.shared.state(&created.id).place_new()?;
            created.attr = created.file.attr()?;
        }
        Ok(created)
    }

    fn owner_of_new(&self, cred: &Cred) -> u32 {
        self.shared.meta.owner_of_new(cred)
    }

    fn make(
        &self,
        cred: &Cred,
        dir: &FileId,
        name: &[u8],
        object: NewObject<'_>,
        attr: &SetAttr,
    ) -> Result<Made> {
        self.shared.meta.make(cred, dir, name, object, attr)
    }

    fn link(&self, cred: &Cred, id: &FileId, dir: &FileId, name: &[u8]) -> Result<DirChange> {
        self.shared.note_wandering(id);
        let change = self.shared.meta.link(cred, id, dir, name)?;
        self.shared.state(id).set_unnamed(false);
        Ok(change)
    }

    fn remove(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<DirChange> {
        self.shared.visible(dir, name)?;
        let victim = self.shared.victim(dir, name);
        let names = self.shared.names.read();
        let change = self.shared.meta.remove(cred, dir, name)?;
        drop(names);
        self.shared.lost_name(victim);
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
        let victim = self.shared.victim(to_dir, to);
        if from_dir != to_dir
            && let Ok((id, _)) = self.shared.meta.peek(&server(), from_dir, from)
        {
            self.shared.note_wandering(&id);
        }
        let names = self.shared.names.read();
        let change = self.shared.meta.rename(cred, from_dir, from, to_dir, to)?;
        drop(names);
        self.shared.lost_name(victim);
        Ok(change)
    }

    fn readdir(
        &self,
        cred: &Cred,
        dir: &FileId,
        cookie: u64,
        attr: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        self.shared.meta.readdir(cred, dir, cookie, attr, &mut |entry| {
            if self.shared.is_hidden(dir, entry.name) {
                return true;
            }
            let object = entry.object.map(|(id, attr)| (id, shown(attr)));
            sink(DirEntry { object, ..entry })
        })
    }

    fn readlink(&self, cred: &Cred, id: &FileId) -> Result<Vec<u8>> {
        self.shared.meta.readlink(cred, id)
    }

    fn attr_dir(&self, cred: &Cred, id: &FileId) -> Result<FileId> {
        self.shared.meta.attr_dir(cred, id)
    }

    fn capabilities(&self) -> Capabilities {
        let form = match self.shared.options.copies {
            1 => LayoutForm::Stripes,
            _ => LayoutForm::Copies,
        };
        let layouts = self.shared.is_open_to_clients().then_some(form);
        Capabilities {
            clone: false,
            clone_block_bytes: 0,
            allocate: false,
            deallocate: false,
            holes: false,
            // Content is charged on the nodes, each of which has quotas of its own.
            quotas: false,
            layouts,
            layout_unit_bytes: layouts.map_or(0, |_| self.shared.options.unit_bytes.get()),
            waits: Waits::Data,
            ..self.shared.meta.capabilities()
        }
    }

    fn xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<Vec<u8>> {
        if name == STRIPES_XATTR {
            return Err(StoreError::NoXattr);
        }
        self.shared.meta.xattr(cred, id, name)
    }

    fn set_xattr(
        &self,
        cred: &Cred,
        id: &FileId,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<DirChange> {
        if name == STRIPES_XATTR {
            return Err(StoreError::Access);
        }
        self.shared.meta.set_xattr(cred, id, name, value, how)
    }

    fn list_xattrs(&self, cred: &Cred, id: &FileId) -> Result<Vec<Vec<u8>>> {
        let mut names = self.shared.meta.list_xattrs(cred, id)?;
        names.retain(|name| name != STRIPES_XATTR);
        Ok(names)
    }

    fn remove_xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<DirChange> {
        if name == STRIPES_XATTR {
            return Err(StoreError::NoXattr);
        }
        self.shared.meta.remove_xattr(cred, id, name)
    }

    fn acl(&self, id: &FileId) -> Result<Acl> {
        self.shared.meta.acl(id)
    }

    fn set_acl(&self, cred: &Cred, id: &FileId, acl: &Acl) -> Result<()> {
        self.shared.meta.set_acl(cred, id, acl)
    }

    fn posix_acls(&self, id: &FileId) -> Result<PosixAcls> {
        self.shared.meta.posix_acls(id)
    }

    fn set_posix_acls(&self, cred: &Cred, id: &FileId, lists: &PosixAcls) -> Result<()> {
        self.shared.meta.set_posix_acls(cred, id, lists)
    }

    fn watch(&self, id: &FileId, what: Watch) -> Result<()> {
        self.shared.meta.watch(id, what)
    }

    fn unwatch(&self, id: &FileId) {
        self.shared.meta.unwatch(id);
    }

    fn take_local_changes(&self, sink: &mut dyn FnMut(FileId)) {
        self.shared.meta.take_local_changes(sink);
    }

    fn local_changes_fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.meta.local_changes_fd()
    }

    fn sweep(&self) {
        self.shared.meta.sweep();
        let shared = &self.shared;
        shared.finish_all_pending();
        match shared.failing.left.news(&shared.sweep_moved()) {
            Some(Err(error)) => {
                tracing::warn!(%error, "components that files have left wait to be removed");
            }
            Some(Ok(_)) => tracing::info!("components that files have left can be removed again"),
            None => {}
        }
        let settle = || shared.meta.sync_file_system();
        let remove = |entry: &Entry| shared.remove_components(entry);
        let swept = shared.removed.work_off(|| shared.as_server(), settle, remove);
        match shared.failing.removed.news(&swept) {
            Some(Err(error)) => {
                tracing::warn!(%error, "components of removed files wait to be removed");
            }
            Some(Ok(_)) => tracing::info!("components of removed files can be removed again"),
            None => {}
        }
    }

    fn commit_names(&self, ids: &[FileId]) -> Result<()> {
        self.shared.meta.commit_names(ids)
    }

    fn layouts(&self) -> Option<&dyn Layouts> {
        self.shared.is_open_to_clients().then_some(self as &dyn Layouts)
    }

    fn fs_stat(&self, cred: &Cred, id: &FileId) -> Result<FsStat> {
        let stat = self.shared.meta.fs_stat(cred, id)?;
        let _server = self.shared.as_server()?;
        let mut least = (u64::MAX, u64::MAX, u64::MAX);
        let slots = self.shared.slots.staying();
        for slot in &slots {
            // A node that cannot be asked now counts as one like the others.
            let Ok(space) = slot.node.space() else { continue };
            least.0 = least.0.min(space.total);
            least.1 = least.1.min(space.free);
            least.2 = least.2.min(space.available);
        }
        // Files are spread evenly, so the fullest node limits all.
        let nodes = slots.len() as u64;
        let copies = self.shared.options.copies as u64;
        let all = |bytes: u64, else_bytes| match bytes {
            u64::MAX => else_bytes,
            bytes => bytes.saturating_mul(nodes) / copies,
        };
        Ok(FsStat {
            space_total: all(least.0, stat.space_total),
            space_free: all(least.1, stat.space_free),
            space_available: all(least.2, stat.space_available),
            ..stat
        })
    }
}
