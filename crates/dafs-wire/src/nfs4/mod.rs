//! NFSv4.1 and 4.2 messages: arguments and results of every operation and callback, attributes
//! (RFC 8881, RFC 5662, RFC 7862, RFC 7863), extended attributes (RFC 8276), `mode_umask`
//! (RFC 8275), delegated timestamps (RFC 9754).
//!
//! Server and client share the types: arguments and results are both encoded and decoded here. A
//! server decodes a compound with [`CompoundArgs`] and one [`Op`] after the other. It encodes the
//! types of the results, or large results piece by piece.
//!
//! Invariants
//! * No input panics, and none makes a decoder allocate more than a small multiple of the input.
//! * Names, values and data borrow from the message.
//! * Values that a server must refuse with an error of their own are decoded; only undefined
//!   encodings cause BADXDR.

mod acl;
mod attr;
mod attr_types;
mod bitmap;
mod callback;
pub(crate) mod codec;
mod compound;
mod extent_ops;
mod fattr;
mod files_layout;
mod flex_layout;
mod io_ops;
mod layout_ops;
pub mod limits;
mod name_ops;
mod op;
mod open_ops;
mod session_ops;
mod state_ops;
mod status;
mod types;
mod xattr_ops;

pub use acl::*;
pub use attr::*;
pub use attr_types::*;
pub use bitmap::*;
pub use callback::*;
pub use compound::*;
pub use extent_ops::*;
pub use fattr::*;
pub use files_layout::*;
pub use flex_layout::*;
pub use io_ops::*;
pub use layout_ops::*;
pub use name_ops::*;
pub use op::*;
pub use open_ops::*;
pub use session_ops::*;
pub use state_ops::*;
pub use status::*;
pub use types::*;
pub use xattr_ops::*;
