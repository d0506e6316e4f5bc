//! The protocol: a table of large values under short keys. In XDR (RFC 4506):
//!
//! ```text
//! typedef opaque key<256>;
//! typedef opaque value<8388608>;      /* may be moved by itself over RDMA */
//! union found switch (bool) { case TRUE: value; case FALSE: void; };
//! program VALUES {
//!     version ONE {
//!         void  NULL(void)       = 0;
//!         bool  PUT(key, value)  = 1;  /* was there one before? */
//!         found GET(key)         = 2;
//!         key   LIST<>(void)     = 3;
//!     } = 1;
//! } = 0x20000c0e;
//! ```
//!
//! The protocol says which data is DDP-eligible (RFC 8166 section 6): here the value of PUT and the
//! value of GET. Keys always travel in the message.

use dafs_rpc::client::Procedure;

pub(crate) const PROGRAM: u32 = 0x2000_0c0e;
pub(crate) const VERSION: u32 = 1;
pub(crate) const NULL: u32 = 0;
pub(crate) const PUT: u32 = 1;
pub(crate) const GET: u32 = 2;
pub(crate) const LIST: u32 = 3;

pub(crate) const KEY_BYTES_MAX: usize = 256;
pub(crate) const VALUE_BYTES_MAX: usize = 8 << 20;

/// Bytes of the longest list that a client accepts.
pub(crate) const LIST_BYTES_MAX: usize = 256 << 10;

pub(crate) fn procedure(procedure: u32) -> Procedure {
    Procedure { program: PROGRAM, version: VERSION, procedure }
}
