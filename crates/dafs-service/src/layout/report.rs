//! What clients met at data servers: where they cannot write, the store goes on without.

use crate::error::ServiceError;
use crate::handle::Handle;
use crate::state::StateRef;
use crate::{Caller, Result, Service};
use dafs_store::{DeviceKey, DeviceTrouble, StoreError};
use std::sync::atomic::Ordering;

impl Service {
    /// A client says that it could not write at some devices by its layout. When this has returned, what
    /// lies there is used no more where something else has all of the file, unless there is only no room; and
    /// when it has given the layout back, nothing that it sent by it is carried out any more. May wait for data
    /// servers and the disk.
    ///
    /// # Errors
    /// `Delay` when that is not sure yet, those of the state-id.
    pub fn report_layout(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: StateRef,
        devices: &[(DeviceKey, DeviceTrouble)],
    ) -> Result<()> {
        let namespace = self.namespace();
        let layout = self.layout(caller, handle, state)?;
        let store = namespace.export(handle)?.store();
        // Who may not write has nothing to say about writing.
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
