//! The service's calls to DAFS clients.

use super::super::registry::Registry;
use super::{Callback, Mail};
use dafs_service::{ClientKey, Front, Handle, Service, StateRef};
use dafs_store::LayoutForm;
use std::sync::Arc;

/// The way from the service to the back-control channels of all reactors.
pub(in crate::engine) struct BackFront {
    pub(in crate::engine) service: Arc<Service>,
    pub(in crate::engine) registry: Arc<Registry>,
}

impl BackFront {
    /// Hands a call to the client's first channel. Returns false when the client has no session.
    fn call(
        &self,
        client: ClientKey,
        make: impl FnOnce(Arc<dafs_service::Client>) -> Callback,
    ) -> bool {
        match self.registry.back_channel(client) {
            Some((record, Some(address))) => address.post(Mail::Call(make(record))),
            Some((record, None)) => make(record).lost(&self.service, &self.registry),
            None => return false,
        }
        true
    }
}

impl Front for BackFront {
    fn recall(&self, client: ClientKey, handle: &Handle, state: StateRef, truncate: bool) {
        let handle = *handle;
        let make = |client| Callback::Recall { client, handle, state, truncate };
        if !self.call(client, make) {
            // The client may be back within its lease, and would never get this recall.
            self.service.delegations.recall_failed(client, state);
        }
    }

    fn recall_layout(&self, client: ClientKey, handle: &Handle, state: StateRef, _: LayoutForm) {
        let handle = *handle;
        if !self.call(client, |client| Callback::RecallLayout { client, handle, state }) {
            self.service.layouts.recall_failed(client, state);
        }
    }

    fn recall_layouts(&self, client: ClientKey, of: Option<&Handle>, form: LayoutForm) {
        let copy = of.copied();
        if !self.call(client, |client| Callback::RecallLayouts { client, of: copy, form }) {
            self.service.layouts.wide_recall_failed(client, of, form);
        }
    }

    fn get_attr(&self, client: ClientKey, handle: &Handle, query: u64) {
        let handle = *handle;
        // A client without a session does not answer, and its lease will end.
        let _ = self.call(client, |client| Callback::GetAttr { client, handle, query });
    }

    /// DAFS clients poll for locks (DAFS 9.2).
    fn lock_available(&self, _: ClientKey, _: &Handle, _: &[u8]) {}

    /// Its sessions learn of it with their next request.
    fn client_gone(&self, _: ClientKey) {}
}
