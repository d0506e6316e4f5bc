//! The rights that a mode gives.

use crate::{Attr, Cred};

/// The right to read, as in access(2).
pub const READ: u32 = 4;
/// The right to write.
pub const WRITE: u32 = 2;
/// The right to execute a file, or to search a directory.
pub const EXECUTE: u32 = 1;

/// True if a mode gives a caller these rights.
pub fn allows(cred: &Cred, attr: &Attr, want: u32) -> bool {
    cred.rights(attr.kind, attr.mode, attr.uid, attr.gid) & want == want
}
