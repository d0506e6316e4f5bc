//! Operations on names: look up, make, link, remove, rename, list.

use crate::enter::Patience;
use crate::error::ServiceError;
use crate::export::{Export, Touch};
use crate::handle::Handle;
use crate::limits::{END_ANSWER_TIME, PATH_COMPONENTS_MAX};
use crate::open::RemoveMode;
use crate::{Caller, Resolved, Result, Service, Unresolved};
use dafs_store::{
    Attr, DirChange, DirEntry, Kind, Made, NewObject, RemoveKind, SetAttr, Store, StoreError, Wait,
};
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

/// The object of a directory entry with its attributes where known, or the reason why they cannot be
/// told now.
pub type EntryObject = Result<Option<(Handle, Attr)>>;

/// A sink for directory entries. Returns false when it wants no more.
pub type EntrySink<'s> = dyn FnMut(DirEntry<'_>, EntryObject) -> bool + 's;

/// The questions of one listing about what its caller may have written at data servers.
struct OwnWrites {
    begun: Instant,
    /// Data servers did not answer, so no more are asked.
    are_away: bool,
    /// The answers have taken long, so the listing ends.
    took_long: bool,
}

impl Service {
    /// Follows `path` from `dir`, crossing into exports, never following symlinks. On an error the
    /// second part says how far the lookup came.
    ///
    /// # Errors
    /// The store's for the component that failed. `Invalid` for a path that is too long.
    pub fn lookup<'p>(
        &self,
        caller: Caller<'_>,
        dir: &Handle,
        path: impl IntoIterator<Item = &'p [u8]>,
    ) -> std::result::Result<Resolved, Unresolved> {
        let mut at = Resolved { handle: *dir, components: 0, attr: None };
        for (index, name) in path.into_iter().enumerate() {
            let step = if index >= PATH_COMPONENTS_MAX {
                Err(StoreError::Invalid.into())
            } else {
                match at.attr {
                    // A symlink in the middle is not followed (DAFS 10.1).
                    Some(Attr { kind: Kind::Directory | Kind::AttrDirectory, .. }) | None => {
                        self.lookup_one(caller, &at.handle, name)
                    }
                    Some(_) => Err(StoreError::NotDirectory.into()),
                }
            };
            match step {
                Ok((handle, attr)) => {
                    at = Resolved { handle, components: index as u32 + 1, attr: Some(attr) };
                }
                Err(error) => {
                    let Resolved { handle, components, .. } = at;
                    return Err(Unresolved { error, handle, components });
                }
            }
        }
        Ok(at)
    }

    fn lookup_one(&self, caller: Caller<'_>, dir: &Handle, name: &[u8]) -> Result<(Handle, Attr)> {
        if let Some(root) = self.namespace().mounted(dir, name) {
            return Ok((root, self.getattr(&root)?));
        }
        let namespace = self.namespace();
        let export = namespace.export(dir)?;
        let cred = export.map_cred(caller.cred);
        let (file, attr) = export.store().lookup(&cred, &dir.file, name)?;
        Ok((Handle { fs: dir.fs, file }, attr))
    }

    /// Returns the directory above, or `NotFound` above the root.
    ///
    /// # Errors
    /// The store's.
    pub fn lookup_parent(&self, caller: Caller<'_>, dir: &Handle) -> Result<Handle> {
        if let Some(root) = self.namespace().above(dir) {
            return Ok(root);
        }
        let namespace = self.namespace();
        let export = namespace.export(dir)?;
        let cred = export.map_cred(caller.cred);
        let file = export.store().parent(&cred, &dir.file)?;
        Ok(Handle { fs: dir.fs, file })
    }

    /// Makes a directory, symlink or special file.
    ///
    /// # Errors
    /// The store's.
    pub fn make(
        &self,
        caller: Caller<'_>,
        dir: &Handle,
        name: &[u8],
        object: NewObject<'_>,
        attr: &SetAttr,
    ) -> Result<Made> {
        let namespace = self.namespace();
        let export = namespace.export(dir)?;
        export.writable()?;
        let cred = export.map_cred(caller.cred);
        Ok(export.store().make(&cred, &dir.file, name, object, attr)?)
    }

    /// Makes another name for a file, after other clients have returned their delegations on it.
    ///
    /// # Errors
    /// The store's. `CrossDevice` between exports. `WouldWait`, `Delay`.
    pub fn link(
        &self,
        caller: Caller<'_>,
        source: &Handle,
        dir: &Handle,
        name: &[u8],
    ) -> Result<DirChange> {
        let namespace = self.namespace();
        let export = namespace.export(dir)?;
        if source.fs != dir.fs {
            namespace.export(source)?;
            return Err(StoreError::CrossDevice.into());
        }
        export.writable()?;
        let cred = export.map_cred(caller.cred);
        let _change = self.conflicts.begin_change(caller, export.key(source), None)?;
        Ok(export.store().link(&cred, &source.file, &dir.file, name)?)
    }

    /// Removes a name. An open file stays usable through its opens.
    ///
    /// # Errors
    /// The store's, and `DeleteDenied`. `WouldWait` or `Delay` while other clients return
    /// delegations. `Grace`. `Fenced` from the object.
    pub fn remove(
        &self,
        caller: Caller<'_>,
        dir: &Handle,
        name: &[u8],
        mode: RemoveMode,
    ) -> Result<DirChange> {
        self.remove_of_kind(caller, dir, name, mode, RemoveKind::Any)
    }

    /// Does `remove`, for protocols that remove directories and others by different operations.
    ///
    /// # Errors
    /// Those of `remove`. `IsDirectory` and `NotDirectory` for an object of the other kind.
    pub fn remove_of_kind(
        &self,
        caller: Caller<'_>,
        dir: &Handle,
        name: &[u8],
        mode: RemoveMode,
        kind: RemoveKind,
    ) -> Result<DirChange> {
        let namespace = self.namespace();
        let export = namespace.export(dir)?;
        export.writable()?;
        export.check_wait(caller.wait, Touch::Data)?;
        self.clients.check_grace(caller.client)?;
        let cred = export.map_cred(caller.cred);
        let mut patience = Patience::default();
        loop {
            // Names in a directory change one at a time, so that the name still leads to the object
            // that was looked up.
            let names = self.lock_names(dir.shard());
            let file = export.store().peek_of_kind(&cred, &dir.file, name, kind)?;
            let handle = Handle { fs: dir.fs, file };
            self.fences.check(&caller.subject, &handle)?;
            match self.conflicts.try_removal(caller, None, Some((export.key(&handle), mode))) {
                Ok(_removal) => {
                    let removed = export.store().remove_known(&cred, &dir.file, name, &file, kind);
                    self.opens.stateless.forget(&handle);
                    let change = removed?;
                    self.state.writers.exposure.removed(&export.key(&handle));
                    return Ok(change);
                }
                Err(blocked) => {
                    // No thread waits with the names locked.
                    drop(names);
                    self.conflicts.make_way(caller, blocked, &mut patience)?;
                }
            }
        }
    }

    /// Renames. A replaced target is removed as by an unchecked remove (DAFS O42).
    ///
    /// # Errors
    /// The store's. `CrossDevice` between exports. `DeleteDenied` for the target. `WouldWait` or
    /// `Delay` while other clients return delegations. `Grace`. `Fenced` from an object.
    pub fn rename(
        &self,
        caller: Caller<'_>,
        from_dir: &Handle,
        from: &[u8],
        to_dir: &Handle,
        to: &[u8],
    ) -> Result<(DirChange, DirChange)> {
        let namespace = self.namespace();
        let export = namespace.export(from_dir)?;
        if from_dir.fs != to_dir.fs {
            namespace.export(to_dir)?;
            return Err(StoreError::CrossDevice.into());
        }
        export.writable()?;
        export.check_wait(caller.wait, Touch::Data)?;
        self.clients.check_grace(caller.client)?;
        let cred = export.map_cred(caller.cred);
        let store = export.store();
        let mut patience = Patience::default();
        loop {
            let names = self.lock_both_names(from_dir, to_dir);
            // For a name that is missing or cannot be reached, the rename itself returns the error.
            let find = |dir: &Handle, name: &[u8]| {
                let found = store.peek_of_kind(&cred, &dir.file, name, RemoveKind::Any).ok();
                found.map(|file| Handle { fs: dir.fs, file })
            };
            let (source, target) = (find(from_dir, from), find(to_dir, to));
            for handle in source.iter().chain(&target) {
                self.fences.check(&caller.subject, handle)?;
            }
            let changed = source.map(|handle| export.key(&handle));
            if source.is_some() && source == target {
                // A rename to another name of the same file does nothing (RFC 8881 18.26.3).
                return Ok((unchanged(store, from_dir)?, unchanged(store, to_dir)?));
            }
            let removed = target.map(|handle| (export.key(&handle), RemoveMode::Unchecked));
            match self.conflicts.try_removal(caller, changed, removed) {
                Ok(_guards) => {
                    let replaced = target.as_ref().map(|handle| &handle.file);
                    let (old, new) = ((&from_dir.file, from), (&to_dir.file, to));
                    let renamed = store.rename_known(&cred, old, new, replaced);
                    if let Some(handle) = target {
                        self.opens.stateless.forget(&handle);
                    }
                    let (mut from, mut to) = renamed?;
                    if let Some(handle) = target {
                        self.state.writers.exposure.removed(&export.key(&handle));
                    }
                    if source.is_some() && source == target {
                        (from.after, to.after) = (from.before, to.before);
                    }
                    return Ok((from, to));
                }
                Err(blocked) => {
                    drop(names);
                    self.conflicts.make_way(caller, blocked, &mut patience)?;
                }
            }
        }
    }

    /// Locks the names of two directories, always in the same order.
    fn lock_both_names(
        &self,
        one: &Handle,
        two: &Handle,
    ) -> (MutexGuard<'_, ()>, Option<MutexGuard<'_, ()>>) {
        let (low, high) = (one.shard().min(two.shard()), one.shard().max(two.shard()));
        let first = self.lock_names(low);
        (first, (low != high).then(|| self.lock_names(high)))
    }

    /// Feeds the entries after `cookie` to `sink` until that returns false. Returns true at the
    /// end. In the directory of exports, entries stand for the exports' roots.
    ///
    /// If `attr` is set and this caller may have written to files at data servers, these are asked.
    /// The sink gets `Delay` for the files about which they do not answer. If the answers take long,
    /// the listing ends early: the next one goes on.
    ///
    /// # Errors
    /// The store's. `WouldWait`.
    pub fn readdir(
        &self,
        caller: Caller<'_>,
        dir: &Handle,
        cookie: u64,
        attr: bool,
        sink: &mut EntrySink<'_>,
    ) -> Result<bool> {
        let namespace = self.namespace();
        let export = namespace.export(dir)?;
        let cred = export.map_cred(caller.cred);
        let mut would_wait = false;
        let mut own_writes = OwnWrites { begun: Instant::now(), are_away: false, took_long: false };
        let mut each = |entry: DirEntry<'_>| {
            if own_writes.took_long {
                return false;
            }
            let object = match namespace.mounted(dir, entry.name) {
                Some(root) if attr => self.getattr(&root).ok().map(|attr| (root, attr)),
                _ => entry.object.map(|(file, attr)| (Handle { fs: dir.fs, file }, attr)),
            };
            let own = |object| self.with_own_writes(caller, export, object, &mut own_writes);
            let object = object.map(own).transpose();
            would_wait = object == Err(ServiceError::WouldWait);
            !would_wait && sink(entry, object)
        };
        let end = export.store().readdir(&cred, &dir.file, cookie, attr, &mut each)?;
        if would_wait { Err(ServiceError::WouldWait) } else { Ok(end) }
    }

    /// Returns an object's attributes with what this caller may have written at data servers. If
    /// they do not answer, it asks no more, so that a listing waits for them once.
    fn with_own_writes(
        &self,
        caller: Caller<'_>,
        export: &Export,
        (handle, attr): (Handle, Attr),
        own: &mut OwnWrites,
    ) -> Result<(Handle, Attr)> {
        let wait = if own.are_away { Wait::Never } else { caller.wait };
        let asking = Caller { wait, ..caller };
        let extended = self.layouts.extend_to_own_writes(asking, export, &handle);
        own.are_away |= extended == Err(ServiceError::Delay);
        // To ask no more takes no time.
        let has_asked = extended != Ok(false) && !own.are_away;
        own.took_long = has_asked && own.begun.elapsed() >= END_ANSWER_TIME;
        match extended {
            // An object that has been removed since was there when it was listed.
            Ok(true) => Ok((handle, self.getattr(&handle).unwrap_or(attr))),
            Ok(false) => Ok((handle, attr)),
            Err(ServiceError::WouldWait) if own.are_away => Err(ServiceError::Delay),
            Err(error) => Err(error),
        }
    }
}

/// The change information of a directory that did not change.
fn unchanged(store: &Arc<dyn Store>, dir: &Handle) -> Result<DirChange> {
    let attr = store.getattr(&dir.file)?;
    Ok(DirChange { before: attr.change, after: attr.change, atomic: true, attr: Some(attr) })
}
