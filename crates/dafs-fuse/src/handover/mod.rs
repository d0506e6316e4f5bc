//! Handing a mount over to another process, such as one of a newer version, while it is in use.
//!
//! The process that serves a mount listens on a socket that is called after the kernel's name of the
//! mount. Another one connects there, as the same client of the server ([`ClientIdentity`]), and gets the
//! device and all tables. No request is answered by both or by none: what was received before is
//! answered by the first, and what comes later waits in the kernel for the second.
//!
//! | first | second |
//! |---|---|
//! | hello, with the version of this | hello, as well |
//! | which client, which root | |
//! | | connected |
//! | stops; the tables, and the device | |
//! | | opens and locks the same: has it, or why not |
//! | go on; ends without closing anything | |
//! | | serves |
//!
//! Invariants
//! * Until it is told that the second has everything, the first can go on as if nothing had been; after
//!   that it does nothing more. The second serves only when it is told to go on.
//! * Both belong to the same user, or to root.
//!
//! [`ClientIdentity`]: dafs_client::ClientIdentity

mod give;
mod socket;
mod state;
mod take;

pub(crate) use give::{Listener, give, resume};
pub(crate) use state::ListingState;
pub use take::TakeOverError;
pub(crate) use take::{Taken, take};
