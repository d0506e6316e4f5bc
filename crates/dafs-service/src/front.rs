//! The calls that the service makes to a front end, to reach a client.

use crate::client::ClientKey;
use crate::handle::Handle;
use crate::state::StateRef;
use dafs_store::{DeviceKey, LayoutForm};

/// The path to a client, kept with its record. Calls must not block. They come from any thread, and
/// never with a lock of the service held.
pub trait Front: Send + Sync {
    /// Recalls a delegation (CB_RECALL). The front end reports a failed call
    /// ([`Delegations::recall_failed`](crate::Delegations::recall_failed)) and the return of the
    /// delegation, but not a successful answer.
    fn recall(&self, client: ClientKey, handle: &Handle, state: StateRef, truncate: bool);

    /// Recalls a layout (CB_LAYOUTRECALL). The front end reports a failed call
    /// ([`Layouts::recall_failed`](crate::Layouts::recall_failed)) and an answer that
    /// the client knows no such layout
    /// ([`Layouts::forgotten`](crate::Layouts::forgotten)), but no other answer.
    /// Clients of a front end without this call get no layouts.
    fn recall_layout(&self, _: ClientKey, _: &Handle, _: StateRef, _: LayoutForm) {}

    /// Recalls all layouts of this form that a client has of the file system of an object, or of
    /// all file systems (CB_LAYOUTRECALL with FSID or ALL). The front end reports a failure
    /// ([`Layouts::wide_recall_failed`](crate::Layouts::wide_recall_failed)) and an answer
    /// that the client has none
    /// ([`Layouts::wide_forgotten`](crate::Layouts::wide_forgotten)).
    fn recall_layouts(&self, _: ClientKey, _: Option<&Handle>, _: LayoutForm) {}

    /// Notifies a client that a device which it has asked about is deleted (CB_NOTIFY_DEVICEID). No
    /// layout of the client names the device. The service does not wait for the answer.
    fn device_gone(&self, _: ClientKey, _: &DeviceKey, _: LayoutForm) {}

    /// Asks for size and change attribute of a write-delegated file (CB_GETATTR). The answer, or
    /// the failure, goes to
    /// [`Delegations::attr_answer`](crate::Delegations::attr_answer) with `query`.
    fn get_attr(&self, client: ClientKey, handle: &Handle, query: u64);

    /// Notifies a client that a lock which it waits for may be free (CB_NOTIFY_LOCK).
    fn lock_available(&self, client: ClientKey, handle: &Handle, owner: &[u8]);

    /// The record is gone with all its state. The front end is to drop the client's sessions.
    fn client_gone(&self, client: ClientKey);
}
