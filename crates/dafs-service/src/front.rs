//! What the service asks of a front door on its own account: calls to a client.

use crate::client::ClientKey;
use crate::handle::Handle;
use crate::state::StateRef;
use dafs_store::{DeviceKey, LayoutForm};

/// A way to a client, kept with its record. Calls must not block; they come from any thread, and
/// never with a lock of the service held.
pub trait Front: Send + Sync {
    /// The delegation is to be returned (CB_RECALL). The answer to the call is not told to the
    /// service, only its failure ([`Service::recall_failed`](crate::Service::recall_failed)); the
    /// return of the delegation is.
    fn recall(&self, client: ClientKey, handle: &Handle, state: StateRef, truncate: bool);

    /// A layout is to be given back (CB_LAYOUTRECALL). The answer to the call is not told to the
    /// service, only its failure
    /// ([`Service::layout_recall_failed`](crate::Service::layout_recall_failed)) and that the client
    /// knows no such layout ([`Service::layout_forgotten`](crate::Service::layout_forgotten)). Clients
    /// of a door that does not carry this are given none.
    fn recall_layout(&self, _: ClientKey, _: &Handle, _: StateRef, _: LayoutForm) {}

    /// All layouts in this form are to be given back that a client has of the file system of an object,
    /// or at all (CB_LAYOUTRECALL with FSID or ALL). The service is told of a failure
    /// ([`Service::layouts_recall_failed`](crate::Service::layouts_recall_failed)) and that the client
    /// has none ([`Service::layouts_forgotten`](crate::Service::layouts_forgotten)).
    fn recall_layouts(&self, _: ClientKey, _: Option<&Handle>, _: LayoutForm) {}

    /// A device that the client has asked about is no more, and no layout of its names it
    /// (CB_NOTIFY_DEVICEID). Whether that arrives nobody has to know.
    fn device_gone(&self, _: ClientKey, _: &DeviceKey, _: LayoutForm) {}

    /// Size and change attribute of a write-delegated file are wanted (CB_GETATTR). The answer, or
    /// the failure, goes to [`Service::attr_answer`](crate::Service::attr_answer) with `query`.
    fn get_attr(&self, client: ClientKey, handle: &Handle, query: u64);

    /// A lock that the client waits for may now be had (CB_NOTIFY_LOCK).
    fn lock_available(&self, client: ClientKey, handle: &Handle, owner: &[u8]);

    /// The record is gone with all its state; the client's sessions are to be dropped.
    fn client_gone(&self, client: ClientKey);
}
