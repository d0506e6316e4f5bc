//! Memory that moves: owned buffers, views of memory that a peer may change at any time, vectored
//! file and socket I/O on such views, and the counters of every user-space copy of file data. Below
//! all other crates, it also has the locks without poison, tables that shrink, the memory of repeated
//! failures, and libraries that are loaded at run time; the module `sys` holds the identity with
//! which a thread uses files.
//!
//! Invariants
//! * Memory that a transport may write to is never handed out as `&mut [u8]` or `&[u8]`: a
//!   [`VolatileSlice`] is the only view of it.
//! * Every copy of payload between two user-space addresses goes through a method that names its
//!   [`Site`], so that the counters describe a data path completely.
//! * A [`Buffer`] stays mapped as long as any handle to it lives. The exception is memory that the
//!   application has lent: only [`CheckedSlice`] copies it, and missing memory is an error.

mod buffer;
mod cached;
mod checked;
mod copies;
mod failing;
mod guard;
mod io;
mod library;
mod sync;
pub mod sys;
mod table;
mod volatile;

pub use buffer::{Buffer, PAGE_BYTES};
pub use cached::cached_pages;
pub use checked::{CheckedSlice, Inaccessible};
pub use copies::{CopyCount, Site, copied_bytes, copies, count_copy};
pub use failing::Failing;
pub use guard::prepare_copies;
pub use io::{
    IOV_COUNT_MAX, preadv2, pwritev2, readv, recvmsg, sendmsg, unacknowledged_bytes, writev,
};
pub use library::{Library, Loaded, Unavailable};
pub use sync::{Condvar, Mutex, RwLock};
pub use table::Shrinking;
pub use volatile::VolatileSlice;
