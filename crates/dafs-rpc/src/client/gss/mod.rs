//! RPCSEC_GSS version 1 on the client's side (RFC 2203), without cryptography.
//!
//! | module | what |
//! |---|---|
//! | `mechanism` | the traits of a mechanism: establishing a context, and its tokens |
//! | `initiator` | the contexts of one user at one server, which all connections share |
//! | `establish` | the exchange that creates a context |
//! | `context` | an established context: its handle, its window, its next sequence number |
//! | `protection` | one call in a context: its header, its arguments, and its reply |
//! | `placing` | the plain bytes of sealed results, and data in the caller's memory |
//! | `outgoing` | a call as a transport sends it |
//!
//! Invariants
//! * No results reach a caller before the server's verifier and the protection of the results were
//!   found good.
//! * A call leaves with a sequence number in the upper half of the server's window.
//! * Each transmission of a call has a sequence number of its own. A retransmission keeps the XID.
//! * Only threads that may block wait for a mechanism: those that submit or wait for calls, and one
//!   thread of its own for the renewal of a context.

mod context;
mod establish;
mod initiator;
mod mechanism;
mod outgoing;
mod placing;
mod protection;

pub use initiator::Initiator;
pub use mechanism::{Established, InitiatorKeys, Mechanism, PartialContext, Step};
pub use protection::Protection;

pub(super) use outgoing::{Head, Kept, Outgoing};
