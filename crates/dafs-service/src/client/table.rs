//! All client records, found by name and by key.

use super::{Client, ClientKey, ClientKind};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The records of one NFSv4 client owner (RFC 8881 18.35.5).
#[derive(Debug, Default)]
pub(super) struct Owner {
    pub(super) confirmed: Option<Arc<Client>>,
    pub(super) unconfirmed: Option<Arc<Client>>,
}

impl Owner {
    pub(super) fn is_empty(&self) -> bool {
        self.confirmed.is_none() && self.unconfirmed.is_none()
    }
}

#[derive(Debug)]
pub(crate) struct ClientTable {
    pub(super) instance: u32,
    /// The number of the last NFSv4 record.
    pub(super) last: u32,
    pub(super) dafs: FxHashMap<Vec<u8>, Arc<Client>>,
    pub(super) nfs: FxHashMap<Vec<u8>, Owner>,
    pub(crate) by_key: FxHashMap<ClientKey, Arc<Client>>,
    pub(super) unconfirmed: usize,
}

impl ClientTable {
    pub(crate) fn new(instance: u32) -> Self {
        Self {
            instance,
            last: 0,
            dafs: FxHashMap::default(),
            nfs: FxHashMap::default(),
            by_key: FxHashMap::default(),
            unconfirmed: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn unconfirmed(&self) -> usize {
        self.unconfirmed
    }

    /// A key for a new NFSv4 record: the instance tells runs of the server apart.
    pub(super) fn next_key(&mut self) -> ClientKey {
        loop {
            self.last = self.last.wrapping_add(1);
            let key = ClientKey(u64::from(self.instance) << 32 | u64::from(self.last));
            if key.0 != 0 && !self.by_key.contains_key(&key) {
                return key;
            }
        }
    }

    /// Takes a record out of all maps.
    pub(super) fn remove(&mut self, client: &Arc<Client>) {
        let same = |other: &Option<Arc<Client>>| {
            other.as_ref().is_some_and(|other| Arc::ptr_eq(other, client))
        };
        match client.kind {
            ClientKind::Dafs => {
                if self.dafs.get(&client.name).is_some_and(|other| Arc::ptr_eq(other, client)) {
                    self.dafs.remove(&client.name);
                }
            }
            ClientKind::Nfs => {
                if let Some(owner) = self.nfs.get_mut(&client.name) {
                    if same(&owner.confirmed) {
                        owner.confirmed = None;
                    }
                    if same(&owner.unconfirmed) {
                        owner.unconfirmed = None;
                        self.unconfirmed -= 1;
                    }
                    if owner.is_empty() {
                        self.nfs.remove(&client.name);
                    }
                }
            }
            ClientKind::Stateless => {}
        }
        if self.by_key.get(&client.key).is_some_and(|other| Arc::ptr_eq(other, client)) {
            self.by_key.remove(&client.key);
        }
    }
}
