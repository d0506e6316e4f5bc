//! Operations on objects: attributes, rights, symlink text, named attributes, space.

use crate::enter::State;
use crate::export::{Export, Touch};
use crate::handle::Handle;
use crate::state::StateRef;
use crate::{Caller, Result, Service, ServiceError};
use dafs_store::{
    AccessMask, Attr, FsStat, OpenFile, OpenMode, Quota, SetAttr, SetTime, StoreError,
};
use std::sync::Arc;

/// The result of a lookup of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resolved {
    /// The last object reached.
    pub handle: Handle,
    /// Components followed.
    pub components: u32,
    /// Its attributes, when at least one component was followed.
    pub attr: Option<Attr>,
}

/// Where and why a lookup of a path failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unresolved {
    /// The reason.
    pub error: ServiceError,
    /// The last object reached.
    pub handle: Handle,
    /// Components followed.
    pub components: u32,
}

/// Space and limits of an export, and its read-only state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsLimits {
    /// The store's limits.
    pub stat: FsStat,
    /// True by the export's rule or the file system's state.
    pub read_only: bool,
}

impl Service {
    /// The handle where clients start.
    pub fn root(&self) -> Handle {
        self.namespace().root()
    }

    /// Returns attributes, also of a file without a name while a client has it open.
    ///
    /// # Errors
    /// The store's.
    pub fn getattr(&self, handle: &Handle) -> Result<Attr> {
        self.state.getattr_in(self.namespace().export(handle)?, handle)
    }
}

impl State {
    /// Does `getattr` in the object's export.
    pub(crate) fn getattr_in(&self, export: &Export, handle: &Handle) -> Result<Attr> {
        match export.store().getattr(&handle.file) {
            Err(StoreError::Stale) => {
                let file = self.lock().any_file(&export.key(handle));
                Ok(file.ok_or(StoreError::Stale)?.attr()?)
            }
            attr => Ok(attr?),
        }
    }
}

impl Service {
    /// Changes attributes, after other clients have returned their delegations. A change of size
    /// uses an open, or none if no open denies writing.
    ///
    /// # Errors
    /// The store's, and those of the state-id. `WouldWait`, `Delay`, `Grace`.
    pub fn setattr(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: impl Into<StateRef>,
        change: &SetAttr,
    ) -> Result<Attr> {
        let namespace = self.namespace();
        let export = namespace.export(handle)?;
        export.writable()?;
        if change.size.is_some() {
            export.check_wait(caller.wait, Touch::Data)?;
        }
        let cred = export.map_cred(caller.cred);
        let given = change.mtime.filter(|_| export.store().layouts().is_some());
        if given.is_some() {
            self.layouts.begin_giving_mtime(caller, &export.key(handle))?;
        }
        let _change = self.conflicts.begin_change(caller, export.key(handle), change.size)?;
        let file: Option<Arc<dyn OpenFile>> = match change.size {
            Some(size) => {
                self.locks.check_span(handle, size, u64::MAX)?;
                let need = OpenMode { read: false, write: true };
                if self.state.writers.must_wait_to_cut(&export.key(handle), size, caller.wait) {
                    return Err(ServiceError::WouldWait);
                }
                Some(self.opens.io_file(caller, handle, state, need)?)
            }
            None => None,
        };
        let attr = export.store().setattr(&cred, &handle.file, change, file.as_deref())?;
        if matches!(given, Some(SetTime::To(_))) {
            self.layouts.note_mtime(caller, &export.key(handle), attr.mtime);
        }
        Ok(attr)
    }

    /// Returns the rights that the caller has, among the wanted ones.
    ///
    /// # Errors
    /// The store's.
    pub fn access(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        wanted: AccessMask,
    ) -> Result<AccessMask> {
        let namespace = self.namespace();
        let export = namespace.export(handle)?;
        let cred = export.map_cred(caller.cred);
        let mut granted = export.store().access(&cred, &handle.file, wanted)?;
        if export.options().read_only {
            granted &= !(AccessMask::MODIFY | AccessMask::EXTEND | AccessMask::DELETE);
        }
        Ok(granted)
    }

    /// The text of a symlink.
    ///
    /// # Errors
    /// The store's.
    pub fn readlink(&self, caller: Caller<'_>, handle: &Handle) -> Result<Vec<u8>> {
        let namespace = self.namespace();
        let export = namespace.export(handle)?;
        let cred = export.map_cred(caller.cred);
        Ok(export.store().readlink(&cred, &handle.file)?)
    }

    /// The directory of an object's named attributes.
    ///
    /// # Errors
    /// The store's.
    pub fn attr_dir(&self, caller: Caller<'_>, handle: &Handle) -> Result<Handle> {
        let namespace = self.namespace();
        let export = namespace.export(handle)?;
        let cred = export.map_cred(caller.cred);
        let file = export.store().attr_dir(&cred, &handle.file)?;
        Ok(Handle { fs: handle.fs, file })
    }

    /// Returns space and limits.
    ///
    /// # Errors
    /// The store's, and `WouldWait`.
    pub fn fs_limits(&self, caller: Caller<'_>, handle: &Handle) -> Result<FsLimits> {
        let namespace = self.namespace();
        let export = namespace.export(handle)?;
        export.check_wait(caller.wait, Touch::Data)?;
        let cred = export.map_cred(caller.cred);
        let stat = export.store().fs_stat(&cred, &handle.file)?;
        Ok(FsLimits { stat, read_only: export.options().read_only || stat.read_only })
    }

    /// Returns the quota of the caller, if the export has quotas that the server may read.
    ///
    /// # Errors
    /// The store's.
    pub fn quota(&self, caller: Caller<'_>, handle: &Handle) -> Result<Option<Quota>> {
        let namespace = self.namespace();
        let export = namespace.export(handle)?;
        if !export.store().capabilities().quotas {
            return Ok(None);
        }
        let cred = export.map_cred(caller.cred);
        Ok(Some(export.store().quota(&cred)?))
    }

    /// Returns a file for commit: any open of it, else a new one with the rights that the
    /// caller has.
    ///
    /// # Errors
    /// The store's.
    pub fn file_for_sync(&self, caller: Caller<'_>, handle: &Handle) -> Result<Arc<dyn OpenFile>> {
        let namespace = self.namespace();
        let export = namespace.export(handle)?;
        if let Some(file) = self.state.lock().any_file(&export.key(handle)) {
            return Ok(file);
        }
        let cred = export.map_cred(caller.cred);
        let store = export.store();
        for mode in [OpenMode { read: true, write: false }, OpenMode { read: false, write: true }] {
            match store.open(&cred, &handle.file, mode) {
                Err(StoreError::Access) => {}
                file => return Ok(file?),
            }
        }
        Err(ServiceError::Store(StoreError::Access))
    }

    /// True if the system has lost data of a file that is open here, and has not told so at a commit. The
    /// server asks at an orderly end, because the next one may not hear of it.
    pub fn has_lost_data(&self) -> bool {
        let mut files = self.state.lock().all_files();
        files.extend(self.opens.stateless.files());
        files.iter().any(|file| file.check_written_back().is_err())
    }
}
