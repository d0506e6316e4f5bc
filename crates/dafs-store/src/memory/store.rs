//! The `Store` calls of the memory store.

use super::content::Reserved;
use super::file::MemoryFile;
use super::object::{Body, Directory, Object, R, State, W, X};
use super::tree::World;
use super::{Inner, MemoryStore, ROOT_INO};
use crate::limits::{
    DIRECTORY_MODE_DEFAULT, FILE_BYTES_MAX, FILE_MODE_DEFAULT, MEMORY_LINKS_MAX, MODE_BITS,
    SPECIAL_MODE_DEFAULT,
};
use crate::names::{check_name, check_symlink_text};
use crate::{
    AccessMask, Acl, AclSupport, Attr, Capabilities, CreateHow, Created, Cred, DirChange, DirEntry,
    FileId, FsId, FsStat, Kind, LocalChanges, Made, NAME_BYTES_MAX, NewObject, OpenFile, OpenMode,
    Result, SetAttr, SetTime, SetXattr, Store, StoreError, Waits,
};
use std::sync::Arc;

impl Inner {
    /// Adds a new object under a new name, with the caller as owner. A setgid bit of the parent
    /// passes its group on.
    fn make_in(
        &self,
        world: &mut World,
        cred: &Cred,
        dir: &Arc<Object>,
        name: &[u8],
        kind: Kind,
        mode: u32,
        attr: &SetAttr,
        fill: impl FnOnce(&mut State, u64),
    ) -> Result<(Arc<Object>, DirChange)> {
        let room = self.room_for(name)?;
        let object = self.make_object(world, cred, dir, kind, mode, attr, fill)?;
        match self.add_name(dir, name, &object, room) {
            Ok(change) => Ok((object, change)),
            Err(error) => {
                object.state_mut().links = 0;
                world.reap(&object);
                Err(error)
            }
        }
    }

    /// As `make_in`, without the name.
    fn make_object(
        &self,
        world: &mut World,
        cred: &Cred,
        dir: &Arc<Object>,
        kind: Kind,
        mode: u32,
        attr: &SetAttr,
        fill: impl FnOnce(&mut State, u64),
    ) -> Result<Arc<Object>> {
        dir.check(cred, W | X)?;
        if dir.state().links == 0 {
            return Err(StoreError::Stale);
        }
        let mut state = self.new_state(cred, mode);
        state.links = if kind == Kind::Directory { 2 } else { 1 };
        {
            let parent = dir.state();
            if parent.mode & 0o2000 != 0 {
                state.gid = parent.gid;
                if kind == Kind::Directory {
                    state.mode |= 0o2000;
                }
            }
        }
        let base = dir.base.clone();
        let object = world.add(|ino| {
            fill(&mut state, dir.ino);
            Object::new((self.id(ino), ino), kind, base, state)
        })?;
        let rest = SetAttr { mode: None, ..*attr };
        if rest == SetAttr::default() {
            return Ok(object);
        }
        // The state has the mode already, with an inherited setgid bit, and keeps it.
        let mode = object.state().mode;
        let applied = self.apply(cred, &object, &rest, true);
        object.state_mut().mode = mode;
        match applied {
            Ok(()) => Ok(object),
            Err(error) => {
                object.state_mut().links = 0;
                world.reap(&object);
                Err(error)
            }
        }
    }

    /// Applies changes after checking all of them. `may_write` is true if the caller has proved
    /// write permission.
    fn apply(&self, cred: &Cred, object: &Object, change: &SetAttr, may_write: bool) -> Result<()> {
        self.check_change(cred, object, change, may_write)?;
        let now = self.now();
        let mut state = object.state_mut();
        if let Some(size) = change.size {
            self.change_content(cred, &mut state, |content| content.set_size(size))?;
        }
        if change.uid.is_some() || change.gid.is_some() {
            state.uid = change.uid.unwrap_or(state.uid);
            state.gid = change.gid.unwrap_or(state.gid);
            if !object.is_directory() {
                state.clear_set_ids();
            }
        }
        if let Some(mode) = change.mode.filter(|_| object.kind != Kind::Symlink) {
            state.mode = mode & MODE_BITS;
            if cred.uid != 0 && !cred.is_in(state.gid) {
                state.mode &= !0o2000;
            }
        }
        let time = |set: SetTime| match set {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        state.atime = change.atime.map_or(state.atime, time);
        state.mtime = change.mtime.map_or(state.mtime, time);
        if change.atime.is_some() || change.mtime.is_some() {
            state.verifier = None;
        }
        if *change != SetAttr::default() {
            self.touch(&mut state, false);
        }
        Ok(())
    }

    fn check_change(
        &self,
        cred: &Cred,
        object: &Object,
        change: &SetAttr,
        may_write: bool,
    ) -> Result<()> {
        if let Some(size) = change.size {
            match object.kind {
                Kind::Regular | Kind::NamedAttr => {}
                Kind::Directory | Kind::AttrDirectory => return Err(StoreError::IsDirectory),
                _ => return Err(StoreError::Invalid),
            }
            if !may_write {
                object.check(cred, W)?;
            }
            if size > FILE_BYTES_MAX {
                return Err(StoreError::FileTooBig);
            }
        }
        let (uid, gid) = {
            let state = object.state();
            (state.uid, state.gid)
        };
        if change.mode.is_some() || change.uid.is_some() || change.gid.is_some() {
            object.check_owner(cred)?;
        }
        let gives_away = change.uid.is_some_and(|new| new != uid);
        let foreign_group = change.gid.is_some_and(|new| new != gid && !cred.is_in(new));
        if cred.uid != 0 && (gives_away || foreign_group) {
            return Err(StoreError::NotOwner);
        }
        for time in [change.atime, change.mtime].into_iter().flatten() {
            if let SetTime::To(time) = time {
                object.check_owner(cred)?;
                if time.nanoseconds >= 1_000_000_000 {
                    return Err(StoreError::Invalid);
                }
            } else if object.check_owner(cred).is_err() && !may_write {
                object.check(cred, W)?;
            }
        }
        Ok(())
    }

    fn check_open(&self, cred: &Cred, object: &Object, mode: OpenMode) -> Result<()> {
        match object.kind {
            Kind::Regular | Kind::NamedAttr => {}
            Kind::Directory | Kind::AttrDirectory => return Err(StoreError::IsDirectory),
            Kind::Symlink => return Err(StoreError::Symlink),
            _ => return Err(StoreError::BadType),
        }
        if !mode.read && !mode.write {
            return Err(StoreError::Invalid);
        }
        if mode.write {
            self.writable()?;
        }
        object.check(cred, if mode.read { R } else { 0 } | if mode.write { W } else { 0 })
    }

    /// Opens the existing file of a create, if `how` allows it.
    fn create_existing(
        self: &Arc<Self>,
        cred: &Cred,
        object: Arc<Object>,
        how: CreateHow,
        attr: &SetAttr,
        mode: OpenMode,
    ) -> Result<Arc<dyn OpenFile>> {
        match how {
            CreateHow::Guarded => return Err(StoreError::Exists),
            CreateHow::Exclusive(verifier) => {
                if object.kind != Kind::Regular || object.state().verifier != Some(verifier) {
                    return Err(StoreError::Exists);
                }
            }
            CreateHow::Unchecked => {}
        }
        self.check_open(cred, &object, mode)?;
        if how == CreateHow::Unchecked && attr.size == Some(0) {
            let cut = SetAttr { size: Some(0), ..SetAttr::default() };
            self.apply(cred, &object, &cut, false)?;
        }
        Ok(MemoryFile::open(self, object, cred, mode))
    }

    /// Returns the directory of named attributes of `object`. The first use makes it, unless the
    /// export is read-only.
    fn attr_dir_of(&self, object: &Arc<Object>) -> Result<u64> {
        if let Some(ino) = object.state().attr_dir {
            return Ok(ino);
        }
        self.writable()?;
        let mut world = self.world_mut();
        // In a race, the object may have been removed since its lookup.
        world.object(object.ino)?;
        if let Some(ino) = object.state().attr_dir {
            return Ok(ino);
        }
        let (uid, gid) = {
            let state = object.state();
            (state.uid, state.gid)
        };
        let mut state = self.new_state(&Cred::new(uid, gid), 0o755);
        state.links = 2;
        state.body = Body::Directory(Directory::new(object.ino));
        let base = Some(object.clone());
        let kind = Kind::AttrDirectory;
        let made = world.add(|ino| Object::new((self.id(ino), ino), kind, base, state))?;
        object.state_mut().attr_dir = Some(made.ino);
        Ok(made.ino)
    }
}

impl Store for MemoryStore {
    fn fs_id(&self) -> FsId {
        self.inner.options.fs_id
    }

    fn root(&self) -> FileId {
        self.inner.id(ROOT_INO)
    }

    fn getattr(&self, id: &FileId) -> Result<Attr> {
        Ok(self.inner.object(id)?.attr())
    }

    fn setattr(
        &self,
        cred: &Cred,
        id: &FileId,
        change: &SetAttr,
        file: Option<&dyn OpenFile>,
    ) -> Result<Attr> {
        self.inner.writable()?;
        let object = self.inner.object(id)?;
        let mut rest = *change;
        if let Some(file) = file.filter(|_| change.size.is_some()) {
            if file.id() != *id {
                return Err(StoreError::Invalid);
            }
            rest.size = None;
            self.inner.check_change(cred, &object, &rest, true)?;
            file.set_size(change.size.unwrap_or_default())?;
        }
        // Only a change of the size through the open has proved write permission.
        let may_write = file.is_some() && change.size.is_some();
        self.inner.apply(cred, &object, &rest, may_write)?;
        Ok(object.attr())
    }

    fn access(&self, cred: &Cred, id: &FileId, wanted: AccessMask) -> Result<AccessMask> {
        let object = self.inner.object(id)?;
        let directory = object.is_directory();
        let write = if self.inner.options.read_only { None } else { Some(W) };
        let rights = [
            (AccessMask::READ, Some(R)),
            (AccessMask::LOOKUP, directory.then_some(X)),
            (AccessMask::MODIFY, write),
            (AccessMask::EXTEND, write),
            (AccessMask::DELETE, write.filter(|_| directory)),
            (AccessMask::EXECUTE, (!directory).then_some(X)),
        ];
        let granted = |&(right, want): &(AccessMask, Option<u32>)| {
            wanted.contains(right) && want.is_some_and(|want| object.check(cred, want).is_ok())
        };
        let granted = rights.iter().filter(|right| granted(right));
        Ok(granted.fold(AccessMask::empty(), |all, (right, _)| all | *right))
    }

    fn lookup(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<(FileId, Attr)> {
        check_name(name)?;
        let ino = self.inner.ino(dir)?;
        let world = self.inner.world();
        let dir = world.directory(ino)?;
        dir.check(cred, X)?;
        let ino = dir.state().directory()?.find(name).ok_or(StoreError::NotFound)?;
        world.known(ino).ok_or(StoreError::Stale)
    }

    fn parent(&self, cred: &Cred, dir: &FileId) -> Result<FileId> {
        let object = self.inner.object(dir)?;
        let parent = object.state().directory()?.parent;
        if object.ino == ROOT_INO {
            return Err(StoreError::NotFound);
        }
        object.check(cred, X)?;
        Ok(self.inner.id(parent))
    }

    fn open(&self, cred: &Cred, id: &FileId, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        let ino = self.inner.ino(id)?;
        let world = self.inner.world();
        let object = world.object(ino)?;
        self.inner.check_open(cred, &object, mode)?;
        Ok(MemoryFile::open(&self.inner, object, cred, mode))
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
        self.inner.writable()?;
        let ino = self.inner.ino(dir)?;
        let mut world = self.inner.world_mut();
        let dir = world.directory(ino)?;
        let existing = dir.state().directory()?.find(name);
        dir.check(cred, X)?;
        if let Some(ino) = existing {
            let object = world.object(ino)?;
            let file = self.inner.create_existing(cred, object.clone(), how, attr, mode)?;
            let change = dir.state().change;
            let dir = DirChange { before: change, after: change, atomic: true, attr: None };
            let (id, attr) = (object.id, object.attr());
            return Ok(Created { id, attr, dir, file, created: false });
        }
        if !mode.read && !mode.write {
            return Err(StoreError::Invalid);
        }
        let kind = if dir.kind == Kind::AttrDirectory { Kind::NamedAttr } else { Kind::Regular };
        let bits = attr.mode.map_or(FILE_MODE_DEFAULT, |mode| mode & MODE_BITS);
        let (object, change) =
            self.inner.make_in(&mut world, cred, &dir, name, kind, bits, attr, |state, _| {
                state.body = self.inner.new_content();
                if let CreateHow::Exclusive(verifier) = how {
                    state.verifier = Some(verifier);
                }
            })?;
        let file = MemoryFile::open(&self.inner, object.clone(), cred, mode);
        let (id, attr) = (object.id, object.attr());
        Ok(Created { id, attr, dir: change, file, created: true })
    }

    fn create_unlinked(
        &self,
        cred: &Cred,
        dir: &FileId,
        attr: &SetAttr,
        mode: OpenMode,
    ) -> Result<Created> {
        self.inner.writable()?;
        let ino = self.inner.ino(dir)?;
        let mut world = self.inner.world_mut();
        let dir = world.directory(ino)?;
        if dir.kind == Kind::AttrDirectory {
            return Err(StoreError::NotSupported);
        }
        if !mode.read && !mode.write {
            return Err(StoreError::Invalid);
        }
        let bits = attr.mode.map_or(FILE_MODE_DEFAULT, |mode| mode & MODE_BITS);
        let kind = Kind::Regular;
        let object =
            self.inner.make_object(&mut world, cred, &dir, kind, bits, attr, |state, _| {
                state.body = self.inner.new_content();
                (state.links, state.linkable) = (0, true);
            })?;
        let file = MemoryFile::open(&self.inner, object.clone(), cred, mode);
        let at = dir.state().change;
        let change = DirChange { before: at, after: at, atomic: true, attr: None };
        let (id, attr) = (object.id, object.attr());
        Ok(Created { id, attr, dir: change, file, created: true })
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
        self.inner.writable()?;
        let kind = object.kind();
        let default_mode = match kind {
            Kind::Directory => DIRECTORY_MODE_DEFAULT,
            Kind::Symlink => 0o777,
            _ => SPECIAL_MODE_DEFAULT,
        };
        let mut text_room = None;
        if let NewObject::Symlink(text) = object {
            check_symlink_text(text)?;
            text_room = Some(Reserved::take(&self.inner.space, text.len())?);
        }
        let ino = self.inner.ino(dir)?;
        let mut world = self.inner.world_mut();
        let dir = world.directory(ino)?;
        let existing = dir.state().directory()?.find(name);
        if dir.kind == Kind::AttrDirectory {
            return Err(StoreError::NotSupported);
        }
        dir.check(cred, X)?;
        if existing.is_some() {
            return Err(StoreError::Exists);
        }
        let is_device = matches!(kind, Kind::BlockDevice | Kind::CharDevice);
        if is_device && cred.uid != 0 {
            return Err(StoreError::NotOwner);
        }
        let mode = attr.mode.filter(|_| kind != Kind::Symlink).unwrap_or(default_mode) & MODE_BITS;
        let (made, change) = self.inner.make_in(
            &mut world,
            cred,
            &dir,
            name,
            kind,
            mode,
            attr,
            |state, parent| match object {
                NewObject::Directory => state.body = Body::Directory(Directory::new(parent)),
                NewObject::Symlink(text) => {
                    if let Some(room) = text_room {
                        state.body = Body::Symlink(text.to_vec(), room);
                    }
                }
                NewObject::BlockDevice { major, minor }
                | NewObject::CharDevice { major, minor } => state.raw_device = (major, minor),
                NewObject::Socket | NewObject::Fifo => {}
            },
        )?;
        Ok(Made { id: made.id, attr: made.attr(), dir: change })
    }

    fn link(&self, cred: &Cred, id: &FileId, dir: &FileId, name: &[u8]) -> Result<DirChange> {
        check_name(name)?;
        self.inner.writable()?;
        let (ino, dir) = (self.inner.ino(id)?, self.inner.ino(dir)?);
        let world = self.inner.world_mut();
        let (object, dir) = (world.object(ino)?, world.directory(dir)?);
        self.inner.link_in(cred, &object, &dir, name)
    }

    fn remove(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<DirChange> {
        check_name(name)?;
        self.inner.writable()?;
        let ino = self.inner.ino(dir)?;
        let mut world = self.inner.world_mut();
        let dir = world.directory(ino)?;
        self.inner.remove_in(&mut world, cred, &dir, name)
    }

    fn rename(
        &self,
        cred: &Cred,
        from_dir: &FileId,
        from: &[u8],
        to_dir: &FileId,
        to: &[u8],
    ) -> Result<(DirChange, DirChange)> {
        check_name(from)?;
        check_name(to)?;
        self.inner.writable()?;
        let (from_ino, to_ino) = (self.inner.ino(from_dir)?, self.inner.ino(to_dir)?);
        let mut world = self.inner.world_mut();
        let (from_dir, to_dir) = (world.directory(from_ino)?, world.directory(to_ino)?);
        if from_dir.kind != to_dir.kind || (from_dir.base.is_some() && from_ino != to_ino) {
            return Err(StoreError::CrossDevice);
        }
        self.inner.rename_in(&mut world, cred, (&from_dir, from), (&to_dir, to))
    }

    fn readdir(
        &self,
        cred: &Cred,
        dir: &FileId,
        cookie: u64,
        attr: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        self.inner.list(cred, dir, cookie, attr, sink)
    }

    fn readlink(&self, _cred: &Cred, id: &FileId) -> Result<Vec<u8>> {
        match &self.inner.object(id)?.state().body {
            Body::Symlink(text, _) => Ok(text.clone()),
            _ => Err(StoreError::Invalid),
        }
    }

    fn attr_dir(&self, _cred: &Cred, id: &FileId) -> Result<FileId> {
        let object = self.inner.object(id)?;
        match object.kind {
            Kind::Regular | Kind::Directory => {}
            _ => return Err(StoreError::NotSupported),
        }
        Ok(self.inner.id(self.inner.attr_dir_of(&object)?))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            xattrs: true,
            acls: AclSupport::Mode,
            clone: true,
            clone_block_bytes: 1,
            allocate: true,
            deallocate: true,
            holes: true,
            quotas: false,
            local_changes: LocalChanges::Impossible,
            layouts: None,
            layout_unit_bytes: 0,
            waits: Waits::Never,
        }
    }

    fn xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<Vec<u8>> {
        self.inner.xattr(cred, id, name)
    }

    fn set_xattr(
        &self,
        cred: &Cred,
        id: &FileId,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<DirChange> {
        self.inner.set_xattr(cred, id, name, value, how)
    }

    fn list_xattrs(&self, cred: &Cred, id: &FileId) -> Result<Vec<Vec<u8>>> {
        self.inner.list_xattrs(cred, id)
    }

    fn remove_xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<DirChange> {
        self.inner.remove_xattr(cred, id, name)
    }

    fn acl(&self, id: &FileId) -> Result<Acl> {
        self.inner.acl(id)
    }

    fn set_acl(&self, cred: &Cred, id: &FileId, acl: &Acl) -> Result<()> {
        self.set_mode_by_acl(cred, id, acl)
    }

    fn commit_names(&self, ids: &[FileId]) -> Result<()> {
        // Only an id of another store is an error; removed objects are skipped.
        ids.iter().try_for_each(|id| self.inner.ino(id).map(drop))
    }

    fn fs_stat(&self, _cred: &Cred, id: &FileId) -> Result<FsStat> {
        self.inner.object(id)?;
        let options = &self.inner.options;
        let space_free = self.inner.space.bytes_max.saturating_sub(self.inner.space.used_bytes());
        let files_free = options.files_max.saturating_sub(self.inner.world().files_used());
        Ok(FsStat {
            space_total: self.inner.space.bytes_max,
            space_free,
            space_available: space_free,
            files_total: options.files_max,
            files_free,
            files_available: files_free,
            name_bytes_max: NAME_BYTES_MAX as u32,
            links_max: MEMORY_LINKS_MAX,
            file_bytes_max: FILE_BYTES_MAX,
            read_only: options.read_only,
        })
    }
}
