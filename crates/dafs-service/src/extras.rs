//! Extended attributes and access control lists, with the rules of exports and delegations.

use crate::handle::Handle;
use crate::{Caller, Result, Service};
use dafs_store::{Acl, Capabilities, Cred, DirChange, PosixAcls, SetXattr, Store};

impl Service {
    /// The optional features of an object's store.
    ///
    /// # Errors
    /// `BadHandle`.
    pub fn capabilities(&self, handle: &Handle) -> Result<Capabilities> {
        Ok(self.namespace().export(handle)?.store().capabilities())
    }

    /// The value of an extended attribute (RFC 8276 8.4.1).
    ///
    /// # Errors
    /// The store's, among them `NoXattr`.
    pub fn xattr(&self, caller: Caller<'_>, handle: &Handle, name: &[u8]) -> Result<Vec<u8>> {
        let namespace = self.namespace();
        let export = namespace.export(handle)?;
        let cred = export.map_cred(caller.cred);
        Ok(export.store().xattr(&cred, &handle.file, name)?)
    }

    /// Sets an extended attribute (RFC 8276 8.4.2).
    ///
    /// # Errors
    /// The store's; `WouldWait`, `Delay`.
    pub fn set_xattr(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<DirChange> {
        let namespace = self.namespace();
        let export = namespace.export(handle)?;
        export.writable()?;
        let cred = export.map_cred(caller.cred);
        let _change = self.conflicts.begin_change(caller, export.key(handle), None)?;
        Ok(export.store().set_xattr(&cred, &handle.file, name, value, how)?)
    }

    /// The names of all extended attributes, in order (RFC 8276 8.4.3).
    ///
    /// # Errors
    /// The store's.
    pub fn list_xattrs(&self, caller: Caller<'_>, handle: &Handle) -> Result<Vec<Vec<u8>>> {
        let namespace = self.namespace();
        let export = namespace.export(handle)?;
        let cred = export.map_cred(caller.cred);
        Ok(export.store().list_xattrs(&cred, &handle.file)?)
    }

    /// Removes an extended attribute (RFC 8276 8.4.4).
    ///
    /// # Errors
    /// The store's; `WouldWait`, `Delay`.
    pub fn remove_xattr(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        name: &[u8],
    ) -> Result<DirChange> {
        let namespace = self.namespace();
        let export = namespace.export(handle)?;
        export.writable()?;
        let cred = export.map_cred(caller.cred);
        let _change = self.conflicts.begin_change(caller, export.key(handle), None)?;
        Ok(export.store().remove_xattr(&cred, &handle.file, name)?)
    }

    /// The access control list.
    ///
    /// # Errors
    /// The store's.
    pub fn acl(&self, handle: &Handle) -> Result<Acl> {
        Ok(self.namespace().export(handle)?.store().acl(&handle.file)?)
    }

    /// Sets the access control list, and the mode with it.
    ///
    /// # Errors
    /// The store's; `WouldWait`, `Delay`.
    pub fn set_acl(&self, caller: Caller<'_>, handle: &Handle, acl: &Acl) -> Result<()> {
        self.change_acl(caller, handle, |store, cred| store.set_acl(cred, &handle.file, acl))
    }

    /// The access control lists as POSIX has them, with their masks.
    ///
    /// # Errors
    /// The store's.
    pub fn posix_acls(&self, handle: &Handle) -> Result<PosixAcls> {
        Ok(self.namespace().export(handle)?.store().posix_acls(&handle.file)?)
    }

    /// Sets the access control lists, and the mode with them.
    ///
    /// # Errors
    /// The store's; `WouldWait`, `Delay`.
    pub fn set_posix_acls(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        lists: &PosixAcls,
    ) -> Result<()> {
        self.change_acl(caller, handle, |store, cred| {
            store.set_posix_acls(cred, &handle.file, lists)
        })
    }

    fn change_acl(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        set: impl FnOnce(&dyn Store, &Cred) -> dafs_store::Result<()>,
    ) -> Result<()> {
        let namespace = self.namespace();
        let export = namespace.export(handle)?;
        export.writable()?;
        let cred = export.map_cred(caller.cred);
        let _change = self.conflicts.begin_change(caller, export.key(handle), None)?;
        let set = set(&**export.store(), &cred);
        // Rights that were removed just now must not be used from the cache.
        self.opens.stateless.forget(handle);
        Ok(set?)
    }
}
