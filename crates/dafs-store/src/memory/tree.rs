//! The table of objects and the changes to the tree of names.

use super::content::Reserved;
use super::object::{Object, State, W, X};
use super::{Inner, ROOT_INO};
use crate::limits::MEMORY_LINKS_MAX;
use crate::{Attr, Cred, DirChange, FileId, Kind, Result, StoreError};
use dafs_mem::Shrinking as _;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Every object that has a name or an open file.
#[derive(Debug)]
pub(super) struct World {
    objects: FxHashMap<u64, Arc<Object>>,
    next_ino: u64,
    files_max: u64,
}

impl World {
    pub(super) fn new(files_max: u64) -> Self {
        Self { objects: FxHashMap::default(), next_ino: ROOT_INO + 1, files_max }
    }

    /// Removes all objects. Their inode numbers stay used.
    pub(super) fn clear(&mut self) {
        self.objects.clear();
    }

    /// Puts an object under its number.
    pub(super) fn put(&mut self, object: Object) {
        self.objects.insert(object.ino, Arc::new(object));
    }

    /// Returns all objects, in no order.
    pub(super) fn objects(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.objects.values()
    }

    pub(super) fn object(&self, ino: u64) -> Result<Arc<Object>> {
        self.objects.get(&ino).cloned().ok_or(StoreError::Stale)
    }

    /// Returns id and attributes of an object, if it is still there.
    pub(super) fn known(&self, ino: u64) -> Option<(FileId, Attr)> {
        self.objects.get(&ino).map(|object| (object.id, object.attr()))
    }

    pub(super) fn directory(&self, ino: u64) -> Result<Arc<Object>> {
        let object = self.object(ino)?;
        if object.is_directory() { Ok(object) } else { Err(StoreError::NotDirectory) }
    }

    pub(super) fn files_used(&self) -> u64 {
        self.objects.len() as u64
    }

    /// Adds an object; `make` gets its inode number.
    pub(super) fn add(&mut self, make: impl FnOnce(u64) -> Object) -> Result<Arc<Object>> {
        if self.files_used() >= self.files_max {
            return Err(StoreError::NoSpace);
        }
        let ino = self.next_ino;
        self.next_ino += 1;
        let object = Arc::new(make(ino));
        self.objects.insert(ino, object.clone());
        Ok(object)
    }

    /// Removes an object, and its named attributes, once it has no name and no open.
    pub(super) fn reap(&mut self, object: &Object) {
        let state = object.state();
        if state.links > 0 || object.opens.load(Ordering::Acquire) > 0 {
            return;
        }
        // After a restoration another object may have this inode number.
        let here = self.objects.get(&object.ino);
        if !here.is_some_and(|here| std::ptr::eq(here.as_ref(), object)) {
            return;
        }
        self.objects.remove_and_shrink(&object.ino);
        let Some(attr_dir) = state.attr_dir.and_then(|ino| self.objects.remove_and_shrink(&ino))
        else {
            return;
        };
        let mut attr_dir = attr_dir.state_mut();
        attr_dir.links = 0;
        for ino in attr_dir.directory().into_iter().flat_map(|names| names.inodes()) {
            if let Some(attr) = self.objects.remove_and_shrink(&ino) {
                attr.state_mut().links = 0;
            }
        }
    }

    fn parent_of(&self, directory: &Object) -> Result<Arc<Object>> {
        let parent = directory.state().directory()?.parent;
        self.object(parent)
    }

    /// True if `ancestor` is `directory` or above it.
    fn is_above(&self, ancestor: &Object, directory: &Arc<Object>) -> Result<bool> {
        let mut at = directory.clone();
        while at.ino != ancestor.ino {
            if at.ino == ROOT_INO || at.kind != Kind::Directory {
                return Ok(false);
            }
            at = self.parent_of(&at)?;
        }
        Ok(true)
    }
}

impl Inner {
    /// Fails unless the caller may remove the entry for `object` from `dir`.
    fn check_remove(&self, cred: &Cred, dir: &Object, object: &Object) -> Result<()> {
        dir.check(cred, W | X)?;
        let (sticky, dir_uid) = {
            let state = dir.state();
            (state.mode & 0o1000 != 0, state.uid)
        };
        let owner = object.state().uid;
        if sticky && cred.uid != 0 && cred.uid != dir_uid && cred.uid != owner {
            return Err(StoreError::NotOwner);
        }
        Ok(())
    }

    /// Reserves the space of a name, with as much for its places by name and by cookie.
    pub(super) fn room_for(&self, name: &[u8]) -> Result<Reserved> {
        Reserved::take(&self.space, 2 * name.len())
    }

    /// Adds a name for `object` to `dir`, which must not have that name.
    pub(super) fn add_name(
        &self,
        dir: &Object,
        name: &[u8],
        object: &Object,
        room: Reserved,
    ) -> Result<DirChange> {
        let mut state = dir.state_mut();
        let before = state.change;
        if object.kind == Kind::Directory && state.links >= MEMORY_LINKS_MAX {
            return Err(StoreError::TooManyLinks);
        }
        state.directory_mut()?.insert(name, object.ino, room);
        if object.kind == Kind::Directory {
            state.links += 1;
        }
        self.touch(&mut state, true);
        Ok(changed(dir, before, &state))
    }

    /// Removes a name from `dir` and a link from its object.
    fn drop_name(&self, dir: &Object, name: &[u8], object: &Object) -> Result<DirChange> {
        let mut state = dir.state_mut();
        let before = state.change;
        state.directory_mut()?.remove(name);
        if object.kind == Kind::Directory {
            state.links -= 1;
        }
        self.touch(&mut state, true);
        let change = changed(dir, before, &state);
        drop(state);
        let mut state = object.state_mut();
        state.links = if object.kind == Kind::Directory { 0 } else { state.links - 1 };
        self.touch(&mut state, false);
        Ok(change)
    }

    pub(super) fn remove_in(
        &self,
        world: &mut World,
        cred: &Cred,
        dir: &Object,
        name: &[u8],
    ) -> Result<DirChange> {
        dir.check(cred, X)?;
        let object = world.object(found(dir, name)?)?;
        self.check_remove(cred, dir, &object)?;
        check_empty(&object)?;
        let change = self.drop_name(dir, name, &object)?;
        world.reap(&object);
        Ok(change)
    }

    pub(super) fn link_in(
        &self,
        cred: &Cred,
        object: &Object,
        dir: &Object,
        name: &[u8],
    ) -> Result<DirChange> {
        if object.is_directory() {
            return Err(StoreError::IsDirectory);
        }
        if object.kind == Kind::NamedAttr || dir.kind == Kind::AttrDirectory {
            return Err(StoreError::NotSupported);
        }
        dir.check(cred, X)?;
        if dir.state().directory()?.find(name).is_some() {
            return Err(StoreError::Exists);
        }
        dir.check(cred, W)?;
        let room = self.room_for(name)?;
        {
            let mut state = object.state_mut();
            if state.links == 0 && !state.linkable {
                return Err(StoreError::Stale);
            }
            if state.links >= MEMORY_LINKS_MAX {
                return Err(StoreError::TooManyLinks);
            }
            state.links += 1;
            state.linkable = false;
            self.touch(&mut state, false);
        }
        self.add_name(dir, name, object, room)
    }

    pub(super) fn rename_in(
        &self,
        world: &mut World,
        cred: &Cred,
        (from_dir, from): (&Arc<Object>, &[u8]),
        (to_dir, to): (&Arc<Object>, &[u8]),
    ) -> Result<(DirChange, DirChange)> {
        from_dir.check(cred, X)?;
        to_dir.check(cred, X)?;
        let source = world.object(found(from_dir, from)?)?;
        let target = match to_dir.state().directory()?.find(to) {
            Some(ino) => Some(world.object(ino)?),
            None => None,
        };
        if source.kind == Kind::Directory && world.is_above(&source, to_dir)? {
            return Err(StoreError::Invalid);
        }
        if let Some(target) = &target {
            if target.kind == Kind::Directory && world.is_above(target, from_dir)? {
                return Err(StoreError::NotEmpty);
            }
            if target.ino == source.ino {
                return Ok((unchanged(from_dir), unchanged(to_dir)));
            }
        }
        self.check_remove(cred, from_dir, &source)?;
        match &target {
            Some(target) => {
                self.check_remove(cred, to_dir, target)?;
                match (source.kind == Kind::Directory, target.kind == Kind::Directory) {
                    (true, false) => return Err(StoreError::NotDirectory),
                    (false, true) => return Err(StoreError::IsDirectory),
                    _ => {}
                }
            }
            None => to_dir.check(cred, W)?,
        }
        let moves_directory = source.kind == Kind::Directory && from_dir.ino != to_dir.ino;
        if moves_directory {
            // Its ".." changes.
            source.check(cred, W)?;
        }
        let room = self.room_for(to)?;
        // One guard at a time: the directories may be one, and a writer may wait for it.
        let from_before = from_dir.state().change;
        let to_before = to_dir.state().change;
        if let Some(target) = &target {
            check_empty(target)?;
            self.drop_name(to_dir, to, target)?;
            world.reap(target);
        }
        self.add_name(to_dir, to, &source, room)?;
        {
            let mut state = from_dir.state_mut();
            state.directory_mut()?.remove(from);
            if source.kind == Kind::Directory {
                state.links -= 1;
            }
            self.touch(&mut state, true);
        }
        {
            let mut state = source.state_mut();
            if moves_directory {
                state.directory_mut()?.parent = to_dir.ino;
            }
            self.touch(&mut state, false);
        }
        Ok((change_of(from_dir, from_before), change_of(to_dir, to_before)))
    }
}

fn found(dir: &Object, name: &[u8]) -> Result<u64> {
    dir.state().directory()?.find(name).ok_or(StoreError::NotFound)
}

fn check_empty(object: &Object) -> Result<()> {
    match object.state().directory() {
        Ok(names) if names.len() > 0 => Err(StoreError::NotEmpty),
        _ => Ok(()),
    }
}

/// The answer for an object that an operation leaves as it is.
fn unchanged(object: &Object) -> DirChange {
    let state = object.state();
    changed(object, state.change, &state)
}

/// Does the same as `changed`, with a guard of its own.
fn change_of(object: &Object, before: u64) -> DirChange {
    changed(object, before, &object.state())
}

/// A change of an object whose counter was `before`.
fn changed(object: &Object, before: u64, now: &State) -> DirChange {
    DirChange { before, after: now.change, atomic: true, attr: Some(now.attr(object)) }
}
