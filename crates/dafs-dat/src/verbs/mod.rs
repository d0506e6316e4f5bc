//! RDMA devices through libibverbs and librdmacm: InfiniBand, RoCE and iWARP adapters, and the
//! kernel's rxe and siw, behind [`Adapter`](crate::Adapter).
//!
//! Both libraries are loaded when the first adapter is opened, so programs build, start and run
//! without them.
//!
//! | module | purpose |
//! |---|---|
//! | `ffi`, `layout`, `library` | the binary interface, its checks, and the loader of its functions |
//! | `sys`, `cm`, `qp`, `window`, `address` | owners of the libraries' objects: nearly all unsafe code |
//! | `command_thread` | a thread for calls that the kernel allows only with unchanged credentials |
//! | `device` | the devices, the chosen one, its capabilities |
//! | `memory`, `cache`, `locked` | regions, cached registrations, the limit on locked memory |
//! | `grants` | memory that the peer of one connection reads |
//! | `plan`, `post` | posted work in, requests to the device out |
//! | `connection`, `queues` | one queue pair with its work; completion queues |
//! | `adapter`, `poller`, `setup`, `teardown` | the trait, the poll loop, set-up and end |
//!
//! Invariants
//! * An adapter uses one device.
//! * A key that was given to peers becomes invalid with its region.
//! * A send without a receive ends the connection: the device does not retry it.
//! * The device never uses memory that is not mapped: posted work holds registrations, and they
//!   hold buffers.
//!
//! Known problems of siw: it answers a read of any memory that is registered in the domain of the
//! connection, whatever its rights. Of a payload of at most 32 bytes that crosses a page boundary
//! it may send other bytes. So no server of this project listens at siw; the iwarp provider serves
//! its clients. Nothing is granted to peers of a siw device, nor to those of an iWARP adapter: such a peer
//! may be software, which does not know that a device answers its reads.
//!
//! Known problem of rxe: the peer of any queue pair of a domain can invalidate a memory window by a
//! message. Then the window's own peer loses its connection at its next read. It gives nobody access.
//!
//! Differences to other providers: a send or a write may complete before an earlier read (siw does
//! so), but a read that has completed has its data. Only the side that the device informs learns which side broke a
//! rule. On RoCE and InfiniBand only the sender learns of a message without a receive; on siw only
//! the side that refused a key learns of it. A peer should not invalidate local keys. Devices
//! support that for memory that a kernel has registered for itself; rxe ends the connection, and
//! siw invalidates the key but does not report it. So protocols must not offer remote invalidation
//! on connections of this provider. They may send it to peers that offer it, such as the kernel's
//! NFS client.

mod adapter;
mod address;
mod cache;
mod cm;
mod command_thread;
mod config;
mod connection;
mod device;
mod error;
mod ffi;
mod fork;
mod grants;
mod layout;
mod library;
pub mod limits;
mod listed;
mod locked;
mod memory;
mod plan;
mod poller;
mod post;
mod private;
mod qp;
mod queues;
mod setup;
mod sys;
mod teardown;
mod window;

pub use adapter::VerbsAdapter;
pub use config::{VerbsConfig, VerbsDevice};
pub use device::{DeviceInfo, DeviceKind, devices};
pub use error::VerbsError;
pub use listed::{has_devices, listed_devices};
pub use locked::locked_memory_limit;
