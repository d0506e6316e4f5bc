//! Aggregation drivers: the arithmetic that maps the bytes of a file to components and back.
//!
//! A driver maps each byte of a file to a byte of a component, and back. It knows neither names nor
//! places of components. A client that knows a driver can read and write the files of every system
//! with that mapping.
//!
//! | driver | mapping |
//! |---|---|
//! | [`Striped`] | NFSv4.1 files layouts (RFC 8881 13.4): any repeated pattern, sparse or dense |
//! | [`Variable`] | strips of different lengths in turn |
//! | [`Nested`] | groups of components in turn, each with a mapping of its own |
//! | [`Replicated`] | several copies of the same bytes, each with a mapping of its own |
//!
//! Invariants
//! * [`Aggregation::origin`] undoes [`Aggregation::locate`], for every offset and copy.
//! * Any two bytes of a file have different places.
//! * Offsets are below 2^63, as in files; no sum here overflows then.

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

/// The largest stripe unit, in bytes.
pub const UNIT_BYTES_MAX: u64 = 1 << 32;

/// Most components of a file.
pub const COMPONENTS_MAX: usize = 65_536;

/// The place of a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The number of the component.
    pub component: usize,
    /// The offset in the component, in bytes.
    pub offset: u64,
    /// Number of bytes that are contiguous both here and in the file, this one included.
    pub run_bytes: u64,
}

/// A mapping of file content to components.
pub trait Aggregation: fmt::Debug + Send + Sync {
    /// The number of components.
    fn components(&self) -> usize;

    /// The number of copies of each byte.
    fn copies(&self) -> usize {
        1
    }

    /// The place of a copy (below [`copies`](Self::copies)) of the byte at `offset` (at most
    /// [`OFFSET_MAX`]).
    fn locate(&self, offset: u64, copy: usize) -> Place;

    /// The byte of the file at `offset` of a component. `None` if there is none, as in the holes of
    /// sparse components, or none below [`OFFSET_MAX`].
    fn origin(&self, component: usize, offset: u64) -> Option<u64>;

    /// The end in the file of the last byte within the first `bytes` of a component: the least file
    /// size that a component of this length implies.
    fn implied_size(&self, component: usize, bytes: u64) -> u64 {
        // A driver whose components have holes overrides this.
        bytes
            .checked_sub(1)
            .and_then(|last| self.origin(component, last))
            .map_or(0, |last| last + 1)
    }
}

/// The reason why a mapping is impossible.
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
