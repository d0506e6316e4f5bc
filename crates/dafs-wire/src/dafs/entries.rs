//! Directory entries (DAFS 5.4, 6, O12).
//!
//! Invariants
//! * An entry's attribute block and name are counted from the start of the array.

use super::attributes::Attributes;
use super::codec::layout;
use super::limits::UNLIMITED;

layout! {
    /// One entry of a directory.
    pub struct DirEntry<'a> [16, array 8 max UNLIMITED] {
        /// Where to go on after this entry; never 0, 1 or 2.
        cookie: u64 = 0,
        /// The attributes; empty when they cannot be had (DAFS O59).
        attributes: Attributes<'a> = 8,
        /// Any bytes (ours: names that are not UTF-8 have to survive).
        name: &'a [u8] = 12,
    }
}
