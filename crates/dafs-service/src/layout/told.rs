//! What clients say that they did at data servers, for administrators to read (RFC 7862 15.7, RFC 8435 9.2).
//!
//! Invariants
//! * Nothing here goes by it: a client may say what it likes.
//! * A client says what it has done since it has the layout, so what has been added counts. Where anything has
//!   become less, it has begun anew.
//! * Of a layout one such word is kept for each device that it names, and words about others do not count.

use super::Inner;
use crate::handle::Handle;
use crate::state::StateRef;
use crate::{Caller, Result, Service};
use dafs_store::{DeviceKey, Placement};

/// How much went one way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Operations that were answered.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What a client says that it did at one device since it has the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceUse {
    /// The device.
    pub device: DeviceKey,
    /// What it read.
    pub read: Moved,
    /// What it wrote.
    pub written: Moved,
}

impl Moved {
    fn since(self, before: Self) -> Option<Self> {
        let operations = self.operations.checked_sub(before.operations)?;
        let bytes = self.bytes.checked_sub(before.bytes)?;
        Some(Self { operations, bytes })
    }
}

impl DeviceUse {
    fn since(self, before: &Self) -> Option<Self> {
        let read = self.read.since(before.read)?;
        let written = self.written.since(before.written)?;
        Some(Self { read, written, ..self })
    }
}

impl Inner {
    /// Remembers what was said; what has been added, if the layout names the device.
    fn hear(&mut self, told: DeviceUse) -> Option<DeviceUse> {
        if !self.devices.contains(&told.device) {
            return None;
        }
        let Some(before) = self.told.iter_mut().find(|before| before.device == told.device) else {
            self.told.push(told);
            return Some(told);
        };
        let added = told.since(before).unwrap_or(told);
        *before = told;
        Some(added)
    }

    /// The devices are those of another placement.
    pub(super) fn name_devices(&mut self, placement: &Placement) {
        self.devices = placement.devices().collect();
        let devices = &self.devices;
        self.told.retain(|told| devices.contains(&told.device));
    }
}

impl Service {
    /// Counts what a client says that it did at data servers by a layout of a file.
    ///
    /// # Errors
    /// Those of the state-id, `BadHandle`.
    pub fn count_direct_use(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: StateRef,
        told: &[DeviceUse],
    ) -> Result<()> {
        let layout = self.layout(caller, handle, state)?;
        let namespace = self.namespace();
        let counters = namespace.export(handle)?.direct_use();
        let mut inner = layout.lock();
        for &told in told {
            match inner.hear(told) {
                Some(added) => counters.record(&added),
                None => tracing::debug!(?told, "a client tells of a device that it has not"),
            }
        }
        Ok(())
    }
}
