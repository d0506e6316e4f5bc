//! RPCSEC_GSS version 1 on the server's side (RFC 2203), without I/O and without cryptography.
//!
//! [`accept`] decides about a call. A served call is [`Verified`], which finds its arguments and
//! protects its results. [`Contexts`] holds the contexts of all reactors and transports. The
//! mechanism is behind two traits: [`PartialContext`] establishes a context, and [`MessageKeys`]
//! makes and checks its tokens.
//!
//! Invariants
//! * No input causes a panic or unbounded memory.
//! * A call is served at most once in each context, on whatever connections it arrives.

mod accept;
mod acceptor;
mod context;
mod contexts;
#[cfg(test)]
pub(crate) mod contexts_tests;
mod establish;
mod keys;
mod proven;
mod queue;
mod rate;
mod shares;
mod verified;
mod window;

pub use accept::{Accepted, GssCall, accept};
pub use acceptor::{Acceptor, Job};
pub use context::{Context, Established, Handle, Principal};
pub use contexts::{ContextCounts, ContextLimits, Contexts};
pub use dafs_dat::connections::Origin;
pub use establish::{Establishing, Failure, InitAnswer, PartialContext, Step, Verifier};
pub use keys::{BadToken, MessageKeys};
pub use verified::{Body, Garbage, IntegritySuffix, Verified, WrongLength};

/// The longest MIC of any mechanism, in bytes.
pub const MIC_BYTES_MAX: usize = crate::limits::GSS_MIC_BYTES_MAX;

/// The window of sequence numbers, which the server tells its clients.
pub const WINDOW: u32 = crate::limits::GSS_WINDOW;
