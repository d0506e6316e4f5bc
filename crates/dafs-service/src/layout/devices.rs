//! Notifications about devices (GETDEVICEINFO, CB_NOTIFY_DEVICEID; RFC 8881 18.40, 20.12).
//!
//! Invariants
//! * A device never changes, so the only notification is its deletion.
//! * A client is notified when none of its layouts names the device. A client that is not reached
//!   keeps a device that no layout will name again.

use super::Layouts;
use crate::client::{Client, ClientKey};
use crate::index::Held;
use crate::limits::DEVICES_WATCHED_MAX;
use dafs_mem::Mutex;
use dafs_store::{DeviceKey, LayoutForm};
use rustc_hash::FxHashMap;
use std::sync::{Arc, MutexGuard, Weak};

/// The devices that one client is to be notified of.
#[derive(Default)]
pub(crate) struct Watching(Mutex<FxHashMap<DeviceKey, LayoutForm>>);

impl Watching {
    fn devices(&self) -> MutexGuard<'_, FxHashMap<DeviceKey, LayoutForm>> {
        self.0.lock()
    }
}

/// The clients to be notified of devices, and the deleted devices.
#[derive(Default)]
pub(crate) struct WatchedDevices(Mutex<Watched>);

#[derive(Default)]
struct Watched {
    gone: Vec<DeviceKey>,
    clients: FxHashMap<DeviceKey, FxHashMap<ClientKey, Weak<Client>>>,
}

impl Watched {
    fn forget(&mut self, key: &DeviceKey, client: ClientKey) {
        let Some(clients) = self.clients.get_mut(key) else { return };
        clients.remove(&client);
        if clients.is_empty() {
            self.clients.remove(key);
            self.gone.retain(|gone| gone != key);
        }
    }
}

impl Layouts {
    /// Registers a client for notifications about a device, or cancels that. True if it will get
    /// them.
    pub fn watch_device(
        &self,
        client: &Arc<Client>,
        key: DeviceKey,
        form: LayoutForm,
        wanted: bool,
    ) -> bool {
        let mut devices = client.devices.devices();
        if !wanted || !client.back_channel() {
            if devices.remove(&key).is_some() {
                self.watched_devices.0.lock().forget(&key, client.key());
            }
            return false;
        }
        let room = devices.len() < DEVICES_WATCHED_MAX || devices.contains_key(&key);
        if room && devices.insert(key, form).is_none() {
            let mut watched = self.watched_devices.0.lock();
            let clients = watched.clients.entry(key).or_default();
            clients.retain(|_, known| known.strong_count() > 0);
            clients.insert(client.key(), Arc::downgrade(client));
        }
        room
    }

    pub(super) fn device_is_gone(&self, key: DeviceKey) {
        let mut watched = self.watched_devices.0.lock();
        if watched.clients.contains_key(&key) && !watched.gone.contains(&key) {
            watched.gone.push(key);
        }
    }

    /// Notifies clients of deleted devices, once they hold no layout that names them.
    pub(super) fn tell_of_devices(&self) {
        let gone = self.watched_devices.0.lock().gone.clone();
        let mut notices = Vec::new();
        for key in gone {
            let clients = self.watched_devices.0.lock().clients.remove(&key).unwrap_or_default();
            let mut later = FxHashMap::default();
            for client in clients.values().filter_map(Weak::upgrade) {
                if self.names_device(&client, &key) {
                    later.insert(client.key(), Arc::downgrade(&client));
                    continue;
                }
                let watched = client.devices.devices().remove(&key);
                notices.extend(watched.map(|form| (client, form, key)));
            }
            let mut watched = self.watched_devices.0.lock();
            if later.is_empty() && !watched.clients.contains_key(&key) {
                watched.gone.retain(|other| *other != key);
            } else {
                watched.clients.entry(key).or_default().extend(later);
            }
        }
        for (client, form, key) in notices {
            if let Some(front) = client.front() {
                front.device_gone(client.key(), &key, form);
            }
        }
    }

    /// True if a layout of the client names a device.
    fn names_device(&self, client: &Client, key: &DeviceKey) -> bool {
        let table = self.state.lock();
        let held = table.by_client.get(&client.key());
        held.into_iter().flat_map(|held| &held.layouts).any(|id| match table.index.find(*id) {
            Ok(Held::Layout(layout)) => layout.lock().devices.contains(key),
            _ => false,
        })
    }
}
