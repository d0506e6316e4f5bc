//! The kernel's protocol: decoding of requests, and encoding of answers. No I/O but in `device`.
//!
//! Written after the protocol that Linux describes in its header `linux/fuse.h`, version 7.36;
//! features of later versions are not requested. Numbers are in the byte order of this machine.
//!
//! Invariants
//! * Requests of the kernel are validated: a short or invalid request is refused, and has no other
//!   effect.

mod answer;
mod bytes;
mod device;
mod errno;
mod negotiate;
mod page;
mod request;

pub(crate) use answer::{
    Entry, Listing, LockFound, NodeAttributes, OpenHow, attributes, created, entry, lock, offset,
    opened, size, space, written,
};
pub(crate) use bytes::{Malformed, Reader};
pub(crate) use device::{Device, Received, Room};
pub(crate) use errno::Errno;
pub(crate) use negotiate::{Agreed, Offer, accept, refuse_version};
pub(crate) use request::{
    Caller, Change, LockWanted, NodeId, Operation, Request, Time, TimeChange,
};

/// Length of the head of a request, in bytes.
pub(crate) const REQUEST_HEAD_BYTES: usize = 40;

/// The offset of a write's data in its request, in bytes.
pub(crate) const WRITE_DATA_AT: usize = REQUEST_HEAD_BYTES + 40;
