//! Handing a mount over to another process, such as one of a newer version, while it is in use.
//!
//! The process that serves a mount listens on a socket that is named after the kernel's device of
//! the mount. Another one connects there, as the same client of the server ([`ClientIdentity`]),
//! and gets the device and all tables. Each request is answered exactly once: the first process
//! answers those received before, and later ones wait in the kernel for the second.
//!
//! | first | second |
//! |---|---|
//! | hello, with the protocol version | hello, as well |
//! | client identity, root | |
//! | | connected |
//! | stops; the tables, and the device | |
//! | | opens and locks the same; reports success or the error |
//! | go on; ends without closing anything | |
//! | | serves |
//!
//! Invariants
//! * Until the second reports that it has everything, the first can go on as before; after that it
//!   does nothing more. The second serves only after the first has told it to go on.
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
