//! Clients' statistics of their I/O at data servers, for administrators (RFC 7862 15.7, RFC 8435
//! 9.2).
//!
//! Invariants
//! * No decision depends on them: a client may report any numbers.
//! * A client reports totals since it has the layout, so the difference to its last report counts.
//!   If any total has decreased, it has started again from zero.
//! * A layout keeps one report for each of its devices. Reports for other devices do not count.

use super::{Inner, Layouts};
use crate::handle::Handle;
use crate::state::StateRef;
use crate::{Caller, Result};
use dafs_store::{DeviceKey, Placement};

/// Operations and bytes in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IoCount {
    /// Operations that were answered.
    pub operations: u64,
    /// Bytes of these operations.
    pub bytes: u64,
}

/// A client's report for one device, since it has the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceUse {
    /// The device.
    pub device: DeviceKey,
    /// Reads.
    pub read: IoCount,
    /// Writes.
    pub written: IoCount,
}

impl IoCount {
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
    /// Stores a report. Returns the difference to the last one, if the layout names the device.
    fn note_use(&mut self, report: DeviceUse) -> Option<DeviceUse> {
        if !self.devices.contains(&report.device) {
            return None;
        }
        let Some(before) =
            self.use_reports.iter_mut().find(|before| before.device == report.device)
        else {
            self.use_reports.push(report);
            return Some(report);
        };
        let added = report.since(before).unwrap_or(report);
        *before = report;
        Some(added)
    }

    /// Takes the devices of another placement.
    pub(super) fn name_devices(&mut self, placement: &Placement) {
        self.devices = placement.devices().collect();
        let devices = &self.devices;
        self.use_reports.retain(|report| devices.contains(&report.device));
    }
}

impl Layouts {
    /// Counts a client's report of its I/O at data servers by a layout of a file.
    ///
    /// # Errors
    /// Those of the state-id, `BadHandle`.
    pub fn count_direct_use(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: StateRef,
        reports: &[DeviceUse],
    ) -> Result<()> {
        let layout = self.layout(caller, handle, state)?;
        let namespace = self.exports.namespace();
        let counters = namespace.export(handle)?.direct_use();
        let mut inner = layout.lock();
        for &report in reports {
            match inner.note_use(report) {
                Some(added) => counters.record(&added),
                None => tracing::debug!(
                    ?report,
                    "a client reports a device that its layout does not name"
                ),
            }
        }
        Ok(())
    }
}
