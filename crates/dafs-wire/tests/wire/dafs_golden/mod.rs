//! DAFS messages laid out by hand from the tables of DAFS 5 and 6, and the extensions, byte by
//! byte, in both orders.
//!
//! Positions count from the start of the message, so a field at n of a fixed section is at 40 + n.

mod files;
mod layout;
mod layouts;
mod session;
