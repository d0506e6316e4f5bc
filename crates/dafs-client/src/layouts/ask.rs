//! Requests for layouts and devices.
//!
//! Invariants
//! * A granted layout is kept, or was given back when the call returns.

use super::Layouts;
use super::file::{FileLayout, Grant, Granted, Name};
use super::nodes::Node;
use super::plan::{Device, DeviceId, LayoutReply, Place, Unusable};
use crate::attributes::FileHandle;
use crate::backoff::is_passing;
use crate::driver::Shared;
use crate::error::Result;
use crate::limits::{
    LAYOUT_CHANNEL_PAUSE_MIN, LAYOUT_CHANNEL_TIME, LAYOUT_CHANNEL_TRIES, LAYOUT_DEVICES_MAX,
};
use crate::opened::Opened;
use dafs_wire::dafs::{
    FsAttrMask, GetFsAttr, LayoutMode, Reply, Request, StateId, Status, XLayoutGet, XNodeInfo,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Layouts {
    /// True if files of this file system have layouts; `None` as long as the server has not said.
    pub(super) fn has_layouts(&self, shared: &Arc<Shared>, handle: &FileHandle) -> Option<bool> {
        if let Some(&known) = self.systems.lock_here().get(&handle.fs) {
            return Some(known);
        }
        let request = GetFsAttr { fh: *handle, attributes: FsAttrMask::X_LAYOUTS };
        let told = shared.ask(&Request::GetFsAttr(request), |reply| {
            Some(reply.get_fs_attr()?.attributes.x_layouts == Some(true))
        });
        let has = match told {
            Ok(has) => has,
            Err(error) => {
                tracing::debug!(%error, "the server does not say whether there are layouts");
                // A server of another make may refuse the attribute as an error.
                error.status().filter(|status| !is_passing(*status)).map(|_| false)?
            }
        };
        self.systems.lock_here().insert(handle.fs, has);
        Some(has)
    }

    /// Asks for the layout of an open file for a transfer: one layout for all that the open allows.
    pub(super) fn ask_for(
        self: &Arc<Self>,
        file: &Opened,
        layout: &FileLayout,
    ) -> Result<Granted, Unusable> {
        let write = file.may_write();
        let shared = file.client.shared();
        self.listen(shared)?;
        shared.await_back()?;
        let mut asked = self.ask(shared, layout, file.state_id, write);
        // The server may not know yet that it can call back, because that message takes another
        // way.
        for attempt in 0..LAYOUT_CHANNEL_TRIES {
            let is_refused = matches!(&asked, Err(Unusable::Refused(Status::XNoLayout)));
            if !is_refused || self.is_channel_known.load(Ordering::Relaxed) {
                break;
            }
            std::thread::sleep(LAYOUT_CHANNEL_PAUSE_MIN * (1 << attempt));
            asked = self.ask(shared, layout, file.state_id, write);
        }
        self.is_channel_known.store(true, Ordering::Relaxed);
        asked
    }

    /// Asks for a layout of the whole file, by the state-id of an open.
    pub(super) fn ask(
        &self,
        shared: &Arc<Shared>,
        layout: &FileLayout,
        state_id: StateId,
        write: bool,
    ) -> Result<Granted, Unusable> {
        let mode = if write { LayoutMode::ReadWrite } else { LayoutMode::Read };
        let restarts = shared.restarts_heard();
        let args = XLayoutGet { fh: layout.handle, state_id, mode };
        let told = shared.ask_once(&Request::XLayoutGet(args), |reply| {
            Some(LayoutReply::new(reply.x_layout_get()?))
        })?;
        let name = Name { state_id: told.state_id, seqid: told.seqid };
        match self.understand(shared, &told, write, restarts) {
            Ok(grant) => Ok(Granted { grant, name, size: None }),
            Err(why) => {
                // The outcome does not matter, because no transfer uses this layout.
                let _ = super::give_back::return_layout(shared, layout.handle, name, &[]);
                Err(why)
            }
        }
    }

    fn understand(
        &self,
        shared: &Arc<Shared>,
        told: &LayoutReply,
        write: bool,
        restarts: u64,
    ) -> Result<Arc<Grant>, Unusable> {
        let most = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let info = shared.info();
        let sizes = (most(info.read_bytes_max), most(info.write_bytes_max));
        let plan = told.plan(&mut |device| self.device(shared, device), sizes)?;
        let nodes = plan.places.iter().map(|place| self.node(place));
        let nodes = nodes.collect::<Option<Vec<_>>>().ok_or(Unusable::Nodes)?;
        Ok(Grant::new(plan, nodes, write, restarts))
    }

    fn node(&self, place: &Place) -> Option<Arc<Node>> {
        self.nodes.node(&place.addresses, |_| Node::new(self.options.clone()))
    }

    /// Returns a device, from the cache or from the server. A device id never comes to name another
    /// device.
    fn device(&self, shared: &Arc<Shared>, device: DeviceId) -> Result<Arc<Device>, Unusable> {
        if let Some(known) = self.devices.lock_here().get(&device) {
            return Ok(known.clone());
        }
        let told = shared.ask_once(&Request::XNodeInfo(XNodeInfo { device }), |reply| {
            if let Reply::XNodeInfo(reply) = reply { Some(Device::read(reply)) } else { None }
        })?;
        let told = Arc::new(told?);
        let mut devices = self.devices.lock_here();
        if devices.len() >= LAYOUT_DEVICES_MAX {
            devices.clear();
        }
        devices.insert(device, told.clone());
        Ok(told)
    }

    /// True if the refusal is transient. At first the server may not know yet that it can call
    /// back.
    pub(super) fn passes(&self, status: Status) -> bool {
        let now = Instant::now();
        let first = *self.asked_first.get_or_init(|| now);
        match status {
            Status::XLayoutRecalled => true,
            Status::XNoLayout => now.duration_since(first) < LAYOUT_CHANNEL_TIME,
            status => is_passing(status),
        }
    }

    /// Drops a device whose ticket may have expired; the client asks for it again at the next use.
    pub(super) fn forget_device(&self, device: DeviceId) {
        self.devices.lock_here().remove(&device);
    }
}

/// True if the server does not know the layout any more.
pub(super) fn is_layout_lost(status: Status) -> bool {
    matches!(
        status,
        Status::BadStateId | Status::OldStateId | Status::StaleStateId | Status::XNoLayout
    )
}
