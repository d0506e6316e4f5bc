//! Layouts of types and ways of spreading that this crate does not know (RFC 8881 12): a program hands
//! a mount [readers](LayoutReader) of its own, which say by which driver of `dafs-parallel` the bytes of
//! a file are found, and where its components are.
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
//!             components.push(Component { device: id, addresses, handle: file.clone(), stateid: None });
//!         }
//!         Ok(Spread::new(Arc::new(Variable::new(&turn)?), components))
//!     }
//! }
//!
//! let options = MountOptions { layout_readers: vec![Arc::new(Strips)], ..MountOptions::default() };
//! # // The device tells of two data servers, the layout of strips of 8 KiB and of 64 KiB.
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
//! * What a reader says is checked before it is gone by: the numbers of components, copies and devices,
//!   the lengths of strips and transfers, and that no component is named twice. A file whose layout is
//!   of no use is read and written through the server, and so is what its driver cuts into crumbs.
//! * A reader and its driver answer by themselves: they do not use the mount, and do not panic, as others wait
//!   for the answer.

use super::error::MountError;
use crate::files::Handle;
use dafs_parallel::aggregation::{Aggregation, LayoutError};
use dafs_wire::nfs4::{DataServer, DeviceError, DeviceId, NetworkAddress, Stateid, Status};
use dafs_wire::xdr::XdrError;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use thiserror::Error;

/// Asks the server for the address of a device (GETDEVICEINFO): the opaque body of `device_addr4`. What
/// is known already is not asked for again; only so many devices are asked about for one layout.
pub type AskDevice<'a> = dyn FnMut(DeviceId) -> Result<Arc<[u8]>, UnusableLayout> + 'a;

/// Reads the layouts of one type. Of several readers of a type the first one does it.
pub trait LayoutReader: fmt::Debug + Send + Sync {
    /// The number of the type (`layouttype4`). It is asked for only where the server says that the file
    /// system has it, or has not been asked yet.
    fn layout_type(&self) -> u32;

    /// What a layout of `file` says: `body` is `loc_body`. The file is read and written at data servers
    /// by that until the layout is given back.
    ///
    /// # Errors
    /// Why the layout is of no use. The file is used through the server then.
    fn read(
        &self,
        body: &[u8],
        file: &Handle,
        device: &mut AskDevice<'_>,
    ) -> Result<Spread, UnusableLayout>;

    /// What goes with a LAYOUTRETURN (`lrf_body`) after these errors at data servers, if there were any;
    /// by default nothing.
    fn returned(&self, _stateid: Stateid, _errors: &[DeviceError]) -> Vec<u8> {
        Vec::new()
    }
}

/// Where a file lies.
#[derive(Debug, Clone)]
pub struct Spread {
    /// Which byte of the file is which byte of which component. It has to keep the invariants of
    /// `dafs_parallel::aggregation`.
    pub driver: Arc<dyn Aggregation>,
    /// One for each component of the driver; no two are one file at one data server.
    pub components: Vec<Component>,
    /// The copies that are best to read from, which take turns.
    pub preferred_copies: Vec<usize>,
    /// Whether data is committed at the metadata server, not where it was written.
    pub commits_at_server: bool,
    /// Whether the metadata server has to be told of writes (LAYOUTCOMMIT).
    pub is_told: bool,
    /// The longest read of one data server, in bytes. Longer reads are divided.
    pub read_bytes_max: u32,
    /// The longest write to one data server, in bytes. Longer writes are divided.
    pub write_bytes_max: u32,
}

impl Spread {
    /// The usual: all copies are read in turn, data is committed where it is, the metadata server is told
    /// of writes, and transfers are as long as those of the mount.
    pub fn new(driver: Arc<dyn Aggregation>, components: Vec<Component>) -> Self {
        Self {
            preferred_copies: (0..driver.copies()).collect(),
            driver,
            components,
            commits_at_server: false,
            is_told: true,
            read_bytes_max: u32::MAX,
            write_bytes_max: u32::MAX,
        }
    }
}

/// A component at its data server, which speaks NFSv4.1 or 4.2 and goes by state-ids of the metadata
/// server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Component {
    /// The device that told of the data server. Errors are told by its name, and the layout is given back when
    /// it is gone.
    pub device: DeviceId,
    /// The ways to it; at least one.
    pub addresses: Vec<NodeAddress>,
    /// What the file is called there.
    pub handle: Handle,
    /// By what it is read and written there; by the open if there is none.
    pub stateid: Option<Stateid>,
}

/// A way to a data server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeAddress {
    /// Where it listens.
    pub socket: SocketAddr,
    /// Whether it is reached by RDMA there, or by TCP.
    pub rdma: bool,
}

impl NodeAddress {
    /// The addresses of a data server (`multipath_list4`) that are of a network that is known here.
    pub fn all(server: &DataServer<'_>) -> Vec<Self> {
        let known = server.0.iter().filter_map(NetworkAddress::socket_address);
        known.map(|(socket, rdma)| Self { socket, rdma }).collect()
    }
}

/// Why a layout is of no use.
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
