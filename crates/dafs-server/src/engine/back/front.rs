//! How the service reaches DAFS clients.

use super::super::registry::Registry;
use super::{Callback, Mail};
use dafs_service::{ClientKey, Front, Handle, Service, StateRef};
use std::sync::Arc;

/// The way from the service to the back-control channels of all reactors.
pub(in crate::engine) struct BackFront {
    pub(in crate::engine) service: Arc<Service>,
    pub(in crate::engine) registry: Arc<Registry>,
}

impl BackFront {
    /// Hands a call to the first channel of the client's.
    fn call(&self, client: ClientKey, make: impl FnOnce(Arc<dafs_service::Client>) -> Callback) {
        match self.registry.back_channel(client) {
            Some((record, Some(address))) => address.post(Mail::Call(make(record))),
            Some((record, None)) => make(record).failed(&self.service),
            // Without a session nobody asks; the lease will tell.
            None => {}
        }
    }
}

impl Front for BackFront {
    fn recall(&self, client: ClientKey, handle: &Handle, state: StateRef, truncate: bool) {
        let handle = *handle;
        self.call(client, |client| Callback::Recall { client, handle, state, truncate });
    }

    fn get_attr(&self, client: ClientKey, handle: &Handle, query: u64) {
        let handle = *handle;
        self.call(client, |client| Callback::GetAttr { client, handle, query });
    }

    /// DAFS clients poll for locks (DAFS 9.2).
    fn lock_available(&self, _: ClientKey, _: &Handle, _: &[u8]) {}

    /// Its sessions notice with their next request.
    fn client_gone(&self, _: ClientKey) {}
}
