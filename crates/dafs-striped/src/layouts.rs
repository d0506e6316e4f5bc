//! Layouts of a striped store: the placement of files, for clients that access the nodes
//! themselves.

use super::record::Record;
use super::slots::Slot;
use super::state::{FileState, Place};
use super::{KnownDevice, Shared, StripedStore, server, shown};
use crate::limits::DEVICES_MAX;
use dafs_store::node::{ComponentHandle, mac};
use dafs_store::{
    CopyState, Device, DeviceKey, DeviceTrouble, FileId, Layouts, Packing, Placement, Result,
    SetAttr, SetTime, Spread, Store, StoreError, Stripes,
};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

impl Shared {
    /// True if clients can reach every node, or any node where files have copies. A node that was
    /// not reachable since the start counts as reachable by clients, because they may have written
    /// to it in an earlier run.
    pub(super) fn is_open_to_clients(&self) -> bool {
        let all = self.slots.all();
        let mut slots = all.iter();
        let is_open = |slot: &Arc<Slot>| slot.node.serves_clients();
        if self.options.copies > 1 { slots.any(is_open) } else { slots.all(is_open) }
    }

    /// Makes the devices of new files known, so that clients can ask about them.
    pub(super) fn note_devices(&self) {
        let all = self.slots.all();
        for slots in all.chunks(if self.options.copies > 1 { 1 } else { all.len() }) {
            self.note_device(slots);
        }
    }

    /// Returns the device of these nodes, `None` if clients cannot reach them.
    pub(super) fn note_device(&self, slots: &[Arc<Slot>]) -> Option<DeviceKey> {
        let servers: Vec<_> = slots.iter().map(|slot| slot.node.nfs_addresses()).collect();
        if servers.iter().any(|server| server.tcp.is_empty()) {
            return None;
        }
        let mut hasher = SipHasher24::new_with_key(&self.options.secret);
        for (slot, addresses) in slots.iter().zip(&servers) {
            hasher.write_u32(slot.node.number());
            hasher.write_u64(slot.node.run());
            addresses.write_to(&mut hasher);
        }
        let dafs: Vec<_> = slots.iter().map(|slot| slot.node.dafs_addresses()).collect();
        for (slot, addresses) in slots.iter().zip(&dafs) {
            hasher.write_u32(slot.node.number());
            addresses.iter().for_each(|address| hasher.write(address.to_string().as_bytes()));
        }
        // A client that learns a device gets a ticket with it, and another one for another key.
        hasher.write(&self.options.component_keys.own());
        let hash = hasher.finish128();
        let mut key = [0; 16];
        key[..8].copy_from_slice(&hash.h1.to_le_bytes());
        key[8..].copy_from_slice(&hash.h2.to_le_bytes());
        let key = DeviceKey(key);
        let devices = &mut *self.devices.lock();
        if devices.known.contains_key(&key) {
            return Some(key);
        }
        if devices.known.len() >= DEVICES_MAX {
            // They are made again when they are used.
            devices.known.clear();
        }
        let pattern = (0..servers.len()).filter_map(|at| u32::try_from(at).ok()).collect();
        let nodes: Vec<_> = slots.iter().map(|slot| slot.node.number()).collect();
        // The same nodes in an earlier run, or at other addresses. The old device stays known to
        // the holders of layouts.
        let before = devices.known.iter().filter(|(_, known)| known.nodes == nodes);
        devices.gone.extend(before.map(|(key, _)| *key));
        let device = Device { pattern, servers };
        devices.known.insert(key, KnownDevice { device, nodes, dafs });
        Some(key)
    }

    /// Deletes the devices of a node that was removed.
    pub(super) fn drop_devices(&self, number: u32) {
        let devices = &mut *self.devices.lock();
        let with_it = devices.known.extract_if(|_, known| known.nodes.contains(&number));
        devices.gone.extend(with_it.map(|(key, _)| key));
        let excess = devices.gone.len().saturating_sub(DEVICES_MAX);
        devices.gone.drain(..excess);
    }

    /// Returns the numbers of the nodes that a device names, or named when it was handed out.
    pub(super) fn nodes_of_device(&self, key: &DeviceKey) -> Vec<u32> {
        let devices = self.devices.lock();
        devices.known.get(key).map(|known| known.nodes.clone()).unwrap_or_default()
    }

    /// Extends the size to the end of the components: of stripes here, of copies by a function.
    fn adopt(
        self: &Arc<Self>,
        file: &FileId,
        of_copies: impl FnOnce(&FileState) -> Result<()>,
    ) -> Result<()> {
        let state = self.state(file);
        let place = state.enter()?;
        match &*place {
            Place::Striped(record) if record.whole.is_some() => {
                drop(place);
                of_copies(&state)
            }
            Place::Striped(record) => state.adopt(record),
            _ => Ok(()),
        }
    }

    /// Returns the handle by which clients name the component on a node: the part at `place` of
    /// `count`.
    pub(super) fn seal(&self, record: &Record, node: u32, (place, count): (u16, u16)) -> Box<[u8]> {
        let handle = ComponentHandle {
            component: record.component,
            node,
            place,
            count,
            first: record.first,
            unit_bytes: record.unit_bytes,
        };
        let fs = &self.options.component_fs;
        let file = handle.seal(fs, &self.options.component_keys.own());
        [&fs.0[..], &file.0[..]].concat().into_boxed_slice()
    }

    fn placement(&self, record: &Record) -> Option<Placement> {
        // A component keeps its id when it moves to other nodes, so the epoch covers the nodes. It
        // covers the key of device and handles, too, and before these are made.
        let mut epoch = SipHasher24::new_with_key(&record.component.0);
        epoch.write(&self.options.component_keys.own());
        record.nodes.iter().for_each(|number| epoch.write_u32(*number));
        let slots: Option<Vec<_>> =
            record.nodes.iter().map(|&number| self.slots.find(number)).collect();
        let device = self.note_device(&slots?)?;
        let count = u16::try_from(record.nodes.len()).ok()?;
        let handles = (0..count).zip(&record.nodes);
        let handles = handles.map(|(place, &node)| self.seal(record, node, (place, count)));
        Some(Placement {
            epoch: epoch.finish128().h1,
            spread: Spread::Stripes(Stripes {
                device,
                first_place: record.first.into(),
                unit_bytes: record.unit_bytes,
                packing: Packing::Sparse,
                handles: handles.collect(),
            }),
        })
    }
}

impl Layouts for StripedStore {
    fn placement(&self, file: &FileId, write: bool) -> Result<Option<Placement>> {
        let state = self.shared.state(file);
        // Readers of copies cannot ask again when the file gets its content.
        if write || self.shared.options.copies > 1 && *state.enter()? == Place::Nowhere {
            state.place()?;
        }
        let place = state.enter()?;
        match &*place {
            Place::Striped(record) if record.whole.is_some() => {
                drop(place);
                state.place_copies(write)
            }
            // Clients would meet a component that is not truncated yet.
            Place::Striped(record) if !record.truncations.is_empty() => Ok(None),
            // Clients would meet a component that the file is about to leave.
            Place::Striped(_) if state.is_moving() => Ok(None),
            Place::Striped(record) => {
                let placement = self.shared.placement(record);
                if write && placement.is_some() {
                    state.open_to_writers(record)?;
                }
                state.announce(record);
                Ok(placement)
            }
            _ => Ok(None),
        }
    }

    fn device(&self, key: &DeviceKey) -> Option<Device> {
        self.shared.devices.lock().known.get(key).map(|known| known.device.clone())
    }

    fn dafs_servers(&self, key: &DeviceKey) -> Option<Vec<Vec<SocketAddr>>> {
        let devices = self.shared.devices.lock();
        // The addresses at the time when the device was made: a device never changes.
        let dafs = &devices.known.get(key)?.dafs;
        dafs.iter().all(|addresses| !addresses.is_empty()).then(|| dafs.clone())
    }

    fn mac(&self, bytes: &[u8]) -> Option<[u8; 16]> {
        Some(mac(&self.shared.options.component_keys.own(), bytes))
    }

    fn devices(&self) -> Vec<DeviceKey> {
        self.shared.devices.lock().known.keys().copied().collect()
    }

    fn take_gone(&self, sink: &mut dyn FnMut(DeviceKey)) {
        let gone = std::mem::take(&mut self.shared.devices.lock().gone);
        gone.into_iter().for_each(sink);
    }

    fn commit(&self, file: &FileId, end: Option<u64>) -> Result<u64> {
        let state = self.shared.state(file);
        let place = state.enter()?;
        let Place::Striped(record) = &*place else { return Err(StoreError::Invalid) };
        let meta = state.writer()?;
        if let Some(end) = end.filter(|&end| end > 0) {
            if end > meta.attr()?.size {
                match state.reach_at(record, end) {
                    Ok(reach) if end > reach => return Err(StoreError::Invalid),
                    // The caller could set this size as well, and missing data reads as zeros.
                    Ok(_) | Err(StoreError::Busy) => {}
                    Err(error) => return Err(error),
                }
            }
            state.extend(&*meta, end)?;
        }
        let change = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        let attr = self.shared.meta.setattr(&server(), file, &change, None)?;
        state.sync_meta(&*meta)?;
        Ok(shown(attr).size)
    }

    fn recover_size(&self, file: &FileId) -> Result<()> {
        self.shared.adopt(file, FileState::settle_copies)
    }

    fn refresh_size(&self, file: &FileId) -> Result<()> {
        self.shared.adopt(file, FileState::reach_copies)
    }

    fn drop_grants(&self, file: &FileId) -> Result<()> {
        let state = self.shared.state(file);
        let place = state.enter()?;
        let Place::Striped(record) = &*place else { return Ok(()) };
        let _server = self.shared.as_server()?;
        // Reachable nodes are told, even if others fail.
        let slots = self.shared.slots.all();
        let told = slots.iter().map(|slot| slot.node.drop_grants(&record.component));
        told.fold(Ok(()), Result::and)
    }

    fn grant_ttl(&self) -> Duration {
        let slots = self.shared.slots.all();
        slots.iter().map(|slot| slot.node.grant_ttl()).max().unwrap_or_default()
    }

    fn old_grants_expired(&self) -> Result<()> {
        self.shared.slots.all().iter().try_for_each(|slot| slot.node.old_grants_expired())
    }

    /// Stripes stay where they are. For copies, the placement that clients know can change.
    fn take_moved(&self, sink: &mut dyn FnMut(FileId)) {
        let moved = std::mem::take(&mut *self.shared.moved.lock());
        moved.into_iter().for_each(sink);
    }

    fn take_write_recalls(&self, sink: &mut dyn FnMut(FileId, bool) -> bool) {
        self.ask_of_lent(sink);
    }

    fn report(&self, file: &FileId, device: &DeviceKey, trouble: DeviceTrouble) -> Result<()> {
        let state = self.shared.state(file);
        let whole = matches!(&*state.enter()?, Place::Striped(record) if record.whole.is_some());
        match trouble {
            DeviceTrouble::Failed if whole => state.report_copy(device),
            DeviceTrouble::Full if whole => state.report_full_copy(device),
            _ => Ok(()),
        }
    }

    fn copies(&self, file: &FileId) -> Result<Vec<CopyState>> {
        self.shared.state(file).list_copies()
    }

    /// Does not wait for nodes, unless the file is in use: a file whose nodes are missing has nodes, too.
    fn nodes(&self, file: &FileId) -> Result<Vec<u32>> {
        let state = self.shared.state(file);
        match state.try_look() {
            Ok(record) => return Ok(record.map(|record| record.nodes).unwrap_or_default()),
            Err(StoreError::WouldBlock) => {}
            Err(error) => return Err(error),
        }
        let place = state.enter()?;
        match &*place {
            Place::Striped(record) => Ok(record.nodes.clone()),
            _ => Ok(Vec::new()),
        }
    }
}
