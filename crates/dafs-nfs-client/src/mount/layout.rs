//! Layout types and striping patterns that this crate does not know (RFC 8881 12). A program passes
//! [readers](LayoutReader) of its own to a mount, which parse a layout into a driver of
//! `dafs-layout` and the components of the file.
//!
//! ```
//! use dafs_parallel::aggregation::Variable;
//! use dafs_nfs_client::Handle;
//! use dafs_nfs_client::mount::MountOptions;
//! use dafs_nfs_client::mount::layout::{
//!     AskDevice, Component, LayoutReader, NodeAddress, Spread, UnusableLayout,
//! };
//! use dafs_wire::nfs4::{DataServer, DeviceId};
//! use dafs_wire::xdr::{Decode, Decoder};
//! use std::sync::Arc;
//!
//! /// Layouts that are a device and the length of a strip on each of its data servers, in turn.
//! #[derive(Debug)]
//! struct Strips;
//!
//! impl LayoutReader for Strips {
//!     fn layout_type(&self) -> u32 {
//!         0x8000_0001
//!     }
//!
//!     fn read(
//!         &self,
//!         body: &[u8],
//!         file: &Handle,
//!         device: &mut AskDevice<'_>,
//!     ) -> Result<Spread, UnusableLayout> {
//!         let mut body = Decoder::new(body);
//!         let id = DeviceId::decode(&mut body)?;
//!         let told = device(id)?;
//!         let mut told = Decoder::new(&told);
//!         let (mut turn, mut components) = (Vec::new(), Vec::new());
//!         for number in 0..body.u32()?.min(64) as usize {
//!             turn.push((number, body.u64()?));
//!             let addresses = NodeAddress::all(&DataServer::decode(&mut told)?);
//!             let handle = file.clone();
//!             components.push(Component { device: id, addresses, handle, stateid: None });
//!         }
//!         Ok(Spread::new(Arc::new(Variable::new(&turn)?), components))
//!     }
//! }
//!
//! let layout_readers: Vec<Arc<dyn LayoutReader>> = vec![Arc::new(Strips)];
//! let options = MountOptions { layout_readers, ..MountOptions::default() };
//! # // The device has two data servers, the layout strips of 8 KiB and of 64 KiB.
//! # use dafs_wire::nfs4::NetworkAddress;
//! # use dafs_wire::xdr::{Encode, Encoder};
//! # let (mut layout, mut told) = (Vec::new(), Vec::new());
//! # for address in [b"10.0.0.1.8.1", b"10.0.0.2.8.1"] {
//! #     let server = DataServer(vec![NetworkAddress { network: b"tcp", address }]);
//! #     server.encode(&mut Encoder::new(&mut told));
//! # }
//! # let mut e = Encoder::new(&mut layout);
//! # DeviceId([7; 16]).encode(&mut e);
//! # e.u32(2);
//! # e.u64(8 << 10);
//! # e.u64(64 << 10);
//! # let told: Arc<[u8]> = told.into();
//! # let reader = &options.layout_readers[0];
//! # let file = Handle(b"file".to_vec());
//! # let spread = reader.read(&layout, &file, &mut |_| Ok(told.clone()))?;
//! # let place = spread.driver.locate(73 << 10, 0);
//! # assert_eq!((place.component, place.offset), (0, 9 << 10));
//! # assert_eq!(spread.components[1].addresses[0].socket.to_string(), "10.0.0.2:2049");
//! # Ok::<(), UnusableLayout>(())
//! ```
//!
//! Invariants
//! * The result of a reader is validated before it is used: the numbers of components, copies and
//!   devices, the lengths of strips and transfers, and that no component is named twice. A file
//!   with an unusable layout is read and written through the server, and so is one that its driver
//!   cuts into very short pieces.
//! * A reader and its driver answer by themselves: they do not use the mount, and do not panic, as
//!   others wait for the answer.

use super::error::MountError;
use crate::files::Handle;
use dafs_parallel::aggregation::{Aggregation, LayoutError};
use dafs_wire::nfs4::{DataServer, DeviceError, DeviceId, NetworkAddress, Stateid, Status};
use dafs_wire::xdr::XdrError;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use thiserror::Error;

/// Asks the server for the address of a device (GETDEVICEINFO): the opaque body of `device_addr4`.
/// Known devices are not asked for again; the number of requests for one layout is bounded.
pub type AskDevice<'a> = dyn FnMut(DeviceId) -> Result<Arc<[u8]>, UnusableLayout> + 'a;

/// Reads the layouts of one type. The first of several readers of a type is used.
pub trait LayoutReader: fmt::Debug + Send + Sync {
    /// The number of the type (`layouttype4`). The client asks for it only if the server has listed
    /// it for the file system, or has not been asked yet.
    fn layout_type(&self) -> u32;

    /// Parses a layout of `file`: `body` is `loc_body`. The client uses the result for reads and
    /// writes at data servers until the layout is returned.
    ///
    /// # Errors
    /// The reason why the layout is unusable. The file is used through the server then.
    fn read(
        &self,
        body: &[u8],
        file: &Handle,
        device: &mut AskDevice<'_>,
    ) -> Result<Spread, UnusableLayout>;

    /// The body of a LAYOUTRETURN (`lrf_body`) after these errors at data servers, if there were
    /// any; empty by default.
    fn returned(&self, _stateid: Stateid, _errors: &[DeviceError]) -> Vec<u8> {
        Vec::new()
    }
}

/// The distribution of a file over data servers.
#[derive(Debug, Clone)]
pub struct Spread {
    /// The map from bytes of the file to bytes of the components. It must keep the invariants of
    /// `dafs-layout`.
    pub driver: Arc<dyn Aggregation>,
    /// One for each component of the driver; no two are one file at one data server.
    pub components: Vec<Component>,
    /// The copies to read from, in turn.
    pub preferred_copies: Vec<usize>,
    /// True when COMMIT goes to the metadata server, and not to the data servers.
    pub commits_at_server: bool,
    /// True when writes are reported to the metadata server (LAYOUTCOMMIT).
    pub needs_layout_commit: bool,
    /// The longest read of one data server, in bytes. Longer reads are divided.
    pub read_bytes_max: u32,
    /// The longest write to one data server, in bytes. Longer writes are divided.
    pub write_bytes_max: u32,
}

impl Spread {
    /// The default: all copies are read in turn, COMMIT goes to the data servers, writes are
    /// reported to the metadata server, and transfers are as long as those of the mount.
    pub fn new(driver: Arc<dyn Aggregation>, components: Vec<Component>) -> Self {
        Self {
            preferred_copies: (0..driver.copies()).collect(),
            driver,
            components,
            commits_at_server: false,
            needs_layout_commit: true,
            read_bytes_max: u32::MAX,
            write_bytes_max: u32::MAX,
        }
    }
}

/// A component at its data server, which speaks NFSv4.1 or 4.2 and accepts state-ids of the
/// metadata server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Component {
    /// The device of the data server. Errors are reported under its id, and the layout is returned
    /// when the device is gone.
    pub device: DeviceId,
    /// The addresses of the data server; at least one.
    pub addresses: Vec<NodeAddress>,
    /// The file handle at the data server.
    pub handle: Handle,
    /// The state-id of reads and writes there; that of the open if there is none.
    pub stateid: Option<Stateid>,
}

/// An address of a data server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeAddress {
    /// The socket address.
    pub socket: SocketAddr,
    /// True for RDMA, false for TCP.
    pub rdma: bool,
}

impl NodeAddress {
    /// The addresses of a data server (`multipath_list4`) on networks that this client supports.
    pub fn all(server: &DataServer<'_>) -> Vec<Self> {
        let known = server.0.iter().filter_map(NetworkAddress::socket_address);
        known.map(|(socket, rdma)| Self { socket, rdma }).collect()
    }
}

/// The reason why a layout is unusable.
#[derive(Debug, Clone, Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum UnusableLayout {
    #[error("a data server has no address of a network that is known here")]
    Address,
    #[error("the server could not be asked: {0}")]
    Asking(#[from] MountError),
    #[error("it says too little of a component's name at its data server, or too much")]
    Component,
    #[error("it has no copies, or prefers others than it has")]
    Copies,
    #[error("it names more devices than a client asks about for one file")]
    Devices,
    #[error("its driver does not find its own bytes again")]
    Driver,
    #[error("it cannot be decoded: {0}")]
    Malformed(#[from] XdrError),
    #[error("it is not understood: {0}")]
    Other(Box<str>),
    #[error("two of its components are one file at one data server")]
    Overlap,
    #[error("its pattern does not begin where the file does")]
    PatternOffset,
    #[error("it tells of nothing that was asked for")]
    Range,
    #[error("the server gives none: {}", .0.name())]
    Refused(Status),
    #[error("content cannot be spread as it says: {0}")]
    Spread(#[from] LayoutError),
    #[error("a data server takes no more than {0} bytes at a time")]
    Transfers(u32),
    #[error("its stripes of {0} bytes are too short to be asked for one by one")]
    Unit(u64),
    #[error("a data server speaks no version of NFS that is known here")]
    Version,
}
