//! What the files and names of a world must look like, whatever has broken on the way.

pub mod content;
pub mod names;
