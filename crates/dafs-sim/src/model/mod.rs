//! The required state of the files and names of a world, after any faults.

pub mod content;
pub mod names;
