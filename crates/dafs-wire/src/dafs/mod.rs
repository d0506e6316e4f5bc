//! DAFS 1.0 messages: all 57 procedures and the extensions, both byte orders, both headers,
//! checksums, attributes.
//!
//! A message is a header, a fixed section and a heap (DAFS 5). The codec reads received messages in
//! place: strings, lists and data borrow from them. Names, paths, owners and ids are any bytes. The
//! draft requires UTF-8, but names that are not UTF-8 must survive (a decision of dafs).
//!
//! Invariants
//! * No input panics, and none makes a decoder allocate.
//! * Offsets, counts and lengths are checked before use; an error names the fault.
//! * Encoders zero every pad byte (DAFS O7).

mod attr_args;
mod attributes;
mod batch_args;
mod chain_place;
mod checksum;
mod codec;
mod entries;
mod error;
mod expose_args;
mod fs_attributes;
mod header;
mod hint;
mod ids;
mod io_args;
mod layout_args;
pub mod limits;
mod lock_args;
mod name_args;
mod open_args;
mod order;
mod procedure;
mod reply;
mod request;
mod seq;
mod session_args;
mod status;

pub use attr_args::*;
pub use attributes::*;
pub use batch_args::*;
pub use chain_place::*;
pub use checksum::*;
pub use entries::*;
pub use error::*;
pub use expose_args::*;
pub use fs_attributes::*;
pub use header::*;
pub use hint::*;
pub use ids::*;
pub use io_args::*;
pub use layout_args::*;
pub use limits::*;
pub use lock_args::*;
pub use name_args::*;
pub use open_args::*;
pub use order::*;
pub use procedure::*;
pub use reply::*;
pub use request::*;
pub use seq::*;
pub use session_args::*;
pub use status::*;
