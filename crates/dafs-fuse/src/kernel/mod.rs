//! The kernel's side: its requests out of bytes, and our answers into bytes. No I/O but that of
//! `device`.
//!
//! Written after the protocol that Linux describes in its header `linux/fuse.h`, version 7.36; what
//! later versions add is not asked for. Numbers are in the order of this machine.
//!
//! Invariants
//! * What the kernel sends is believed only as far as it is there: a short or strange request is refused,
//!   and costs nothing else.

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

/// Where the data of a write begins in its request, in bytes.
pub(crate) const WRITE_DATA_AT: usize = REQUEST_HEAD_BYTES + 40;
