//! What a layout says, whatever its type: which byte of the file is where. Each type of layout has a
//! reader here; [`READERS`] is all that there are.
//!
//! Invariants
//! * A plan names a data server with at least one address for each component of its driver.
//! * No two components are one file at one data server, unless that is what sparse packing makes of it:
//!   then different bytes of the file lie at different offsets of it.
//! * How many devices a layout makes a client ask about is bounded.

use super::files::FilesReader;
use super::flexible::FlexibleReader;
use crate::files::Handle;
use crate::mount::error::MountError;
use dafs_layout::LayoutError;
use dafs_wire::nfs4::{DataServer, DeviceError, DeviceId, NetworkAddress, Stateid, Status};
use dafs_wire::xdr::XdrError;
use std::net::SocketAddr;
use std::sync::Arc;
use thiserror::Error;

/// The readers of layouts, the preferred one first.
pub(super) static READERS: [&dyn LayoutReader; 2] = [&FilesReader, &FlexibleReader];

/// Reads the layouts of one type.
pub(super) trait LayoutReader: std::fmt::Debug + Sync {
    /// The number of the type.
    fn layout_type(&self) -> u32;

    /// What a layout of `file` says. `device` gives the address of a device.
    fn plan(
        &self,
        body: &[u8],
        file: &Handle,
        device: &mut dyn FnMut(DeviceId) -> Result<Arc<[u8]>, Unusable>,
    ) -> Result<Plan, Unusable>;

    /// What goes with a LAYOUTRETURN after this error, if there was any.
    fn returned(&self, stateid: Stateid, errors: &[DeviceError]) -> Vec<u8>;
}

/// Where a file lies.
pub(super) type Plan = dafs_parallel::Plan<Place>;

/// A component at its data server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) device: DeviceId,
    pub(super) addresses: Vec<NodeAddress>,
    pub(super) handle: Handle,
    /// By what it is read and written; by the open if there is none.
    pub(super) stateid: Option<Stateid>,
}

/// A way to a data server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NodeAddress {
    pub(super) socket: SocketAddr,
    pub(super) rdma: bool,
}

/// Why a layout is of no use. The file is read and written through the server then.
#[derive(Debug, Clone, Error)]
pub(super) enum Unusable {
    #[error("a data server has no address of a network that is known here")]
    Address,
    #[error("the server could not be asked: {0}")]
    Asking(#[from] MountError),
    #[error("it says too little of a component's name at its data server")]
    Component,
    #[error("it names more devices than a client asks about for one file")]
    Devices,
    #[error("it cannot be decoded: {0}")]
    Malformed(#[from] XdrError),
    #[error("two of its components are one file at one data server")]
    Overlap,
    #[error("its pattern does not begin where the file does")]
    PatternOffset,
    #[error("it does not tell of the whole file")]
    Range,
    #[error("the server gives none: {}", .0.name())]
    Refused(Status),
    #[error("content cannot be spread as it says: {0}")]
    Spread(#[from] LayoutError),
    #[error("its stripes of {0} bytes are too short to be asked for one by one")]
    Unit(u64),
    #[error("a data server speaks no version of NFS that is known here")]
    Version,
}

/// The addresses of a data server that are known here.
pub(super) fn addresses(server: &DataServer<'_>) -> Result<Vec<NodeAddress>, Unusable> {
    let known = server.0.iter().filter_map(NetworkAddress::socket_address);
    let known: Vec<_> = known.map(|(socket, rdma)| NodeAddress { socket, rdma }).collect();
    if known.is_empty() { Err(Unusable::Address) } else { Ok(known) }
}

/// Refuses places that are one.
pub(super) fn check_apart(places: &[Place]) -> Result<(), Unusable> {
    let names = places.iter().map(|place| (&place.addresses, &place.handle.0));
    if dafs_parallel::are_apart(names) { Ok(()) } else { Err(Unusable::Overlap) }
}
