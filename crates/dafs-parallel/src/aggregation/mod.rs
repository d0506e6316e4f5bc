//! How the content of a file is spread over components, as arithmetic: aggregation drivers.
//!
//! A driver says which byte of a file is which byte of which component, and the way back. What a
//! component is called and where it lies is for others to know. A client that knows a driver reads and
//! writes files of every system that spreads them like that.
//!
//! | driver | who spreads files so |
//! |---|---|
//! | [`Striped`] | NFSv4.1 files layouts (RFC 8881 13.4): round robin or any pattern that repeats, sparse or dense |
//! | [`Variable`] | strips of different lengths that take turns |
//! | [`Nested`] | groups of components that take turns, each spread in a way of its own |
//! | [`Replicated`] | the same bytes several times, each time in a way of its own |
//!
//! Invariants
//! * [`Aggregation::origin`] undoes [`Aggregation::locate`], for every offset and copy.
//! * No two bytes of a file are at one place.
//! * Offsets are below 2^63, as files are; then no sum here overflows.

mod nested;
mod parts;
mod replicated;
mod striped;
mod variable;

pub use nested::Nested;
pub use parts::{Part, Parts, parts, size};
pub use replicated::Replicated;
pub use striped::{Packing, Striped};
pub use variable::Variable;

use std::fmt;
use thiserror::Error;

/// The largest offset in a file, in bytes.
pub const OFFSET_MAX: u64 = i64::MAX as u64;

/// The largest unit of stripes, in bytes.
pub const UNIT_BYTES_MAX: u64 = 1 << 32;

/// The most components of a file.
pub const COMPONENTS_MAX: usize = 65_536;

/// Where a byte lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The number of the component.
    pub component: usize,
    /// The offset in the component, in bytes.
    pub offset: u64,
    /// How many bytes follow one another here as they do in the file, this one included.
    pub run_bytes: u64,
}

/// A way to spread content over components.
pub trait Aggregation: fmt::Debug + Send + Sync {
    /// How many components there are.
    fn components(&self) -> usize;

    /// How often each byte is kept.
    fn copies(&self) -> usize {
        1
    }

    /// Where a copy (below [`copies`](Self::copies)) of the byte at `offset` (at most [`OFFSET_MAX`])
    /// lies.
    fn locate(&self, offset: u64, copy: usize) -> Place;

    /// Which byte of the file lies at `offset` of a component; `None` where none does, as in the holes
    /// of sparse components, or none below [`OFFSET_MAX`].
    fn origin(&self, component: usize, offset: u64) -> Option<u64>;

    /// How far the last byte of the file that is within the first `bytes` of a component is from the
    /// file's start, with that byte: what a component of this length says about the size.
    fn reach(&self, component: usize, bytes: u64) -> u64 {
        // Where components have holes a driver knows better.
        bytes
            .checked_sub(1)
            .and_then(|last| self.origin(component, last))
            .map_or(0, |last| last + 1)
    }
}

/// Why content cannot be spread so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum LayoutError {
    #[error("a unit has from 1 byte to 4 GiB")]
    Unit,
    #[error("there are from 1 to 65536 components")]
    Components,
    #[error("the pattern names a component that there is not, or starts behind its end")]
    Pattern,
    #[error("copies are of one length and there is at least one")]
    Copies,
}
