//! Clients' reports of errors at data servers: the store goes on without a device that they cannot
//! write to.

use super::Layouts;
use crate::error::ServiceError;
use crate::handle::Handle;
use crate::state::StateRef;
use crate::{Caller, Result};
use dafs_store::{DeviceKey, DeviceTrouble, StoreError};
use std::sync::atomic::Ordering;

impl Layouts {
    /// Takes a client's report that it could not write at some devices of its layout. When this has
    /// returned, a device is not used any more for the file if another copy has all of it, unless
    /// it only lacks space. After the client has returned the layout, none of its writes by it is
    /// executed any more. May wait for data servers and the disk.
    ///
    /// # Errors
    /// `Delay` when that is not certain yet, those of the state-id.
    pub fn report(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: StateRef,
        devices: &[(DeviceKey, DeviceTrouble)],
    ) -> Result<()> {
        let namespace = self.exports.namespace();
        let layout = self.layout(caller, handle, state)?;
        let store = namespace.export(handle)?.store();
        // A report on writes counts only from a client that may write.
        let Some(layouts) = store.layouts().filter(|_| layout.covers(true)) else { return Ok(()) };
        layout.failing.store(true, Ordering::SeqCst);
        layout.written.store(true, Ordering::SeqCst);
        for (device, trouble) in devices {
            match layouts.report(&handle.file, device, *trouble) {
                Err(StoreError::Busy) => return Err(ServiceError::Delay),
                Err(error) => tracing::warn!(%error, "a client's error at a data server"),
                Ok(()) => {}
            }
        }
        Ok(())
    }
}
