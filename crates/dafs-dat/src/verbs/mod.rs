//! RDMA devices by libibverbs and librdmacm: InfiniBand, RoCE and iWARP adapters, and the kernel's
//! rxe and siw, behind [`Adapter`](crate::Adapter).
//!
//! Both libraries are opened when the first adapter is, so programs build, start and run without
//! them.
//!
//! | file | what |
//! |---|---|
//! | `ffi`, `library` | the binary interface and where its functions are |
//! | `sys`, `cm`, `qp`, `address` | owners of the libraries' objects: nearly all that is unsafe |
//! | `keeper` | a thread for calls that the kernel allows to unchanged credentials only |
//! | `device` | which devices there are, which one is used, what it can do |
//! | `memory`, `cache`, `locked` | regions, registrations that are kept, the limit on locked memory |
//! | `plan`, `post` | posted work in, requests to the device out |
//! | `connection`, `queues` | one queue pair with its work; completion queues |
//! | `adapter`, `poller`, `setup`, `teardown` | the trait, the poll loop, how connections come and go |
//!
//! Invariants
//! * An adapter uses one device.
//! * A key that was given to peers dies with its region.
//! * A send that finds no receive ends the connection: nothing is tried again by the device.
//! * The device never has memory that is not mapped: posted work holds registrations, and they
//!   hold buffers.
//!
//! Known trouble: on siw, large transfers with the kernel's NFS client at the other end came out
//! wrong in places (see `lab/README.md`). The iwarp provider is the one to use there.
//!
//! What is different from other providers: which side broke a rule is known to the side that the
//! device tells. On RoCE and InfiniBand a message without a receive is known to its sender alone;
//! on siw a refused key is known to the side that refused it. And a peer should not invalidate keys
//! of ours: devices mean that for memory that a kernel has registered for its own use, so rxe ends
//! the connection, and siw does it but does not tell. Protocols must not offer it on connections of
//! this provider; to peers that offer theirs, as the kernel's NFS client does, it is sent.

mod adapter;
mod address;
mod cache;
mod cm;
mod config;
mod connection;
mod device;
mod error;
mod ffi;
mod fork;
mod keeper;
mod library;
pub mod limits;
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

pub use adapter::VerbsAdapter;
pub use config::{VerbsConfig, VerbsDevice};
pub use device::{DeviceInfo, DeviceKind, devices};
pub use error::VerbsError;
