//! The rights that a mode gives.

use crate::{Attr, Cred, Kind};

/// The right to read, as in access(2).
pub const READ: u32 = 4;
/// The right to write.
pub const WRITE: u32 = 2;
/// The right to execute a file, or to search a directory.
pub const EXECUTE: u32 = 1;

/// True if a mode gives a caller these rights.
pub fn allows(cred: &Cred, attr: &Attr, want: u32) -> bool {
    if cred.uid == 0 {
        // If no class may execute a file, root may not either.
        return want & EXECUTE == 0 || attr.kind == Kind::Directory || attr.mode & 0o111 != 0;
    }
    let in_group = cred.gid == attr.gid || cred.groups.contains(&attr.gid);
    let shift = match () {
        () if cred.uid == attr.uid => 6,
        () if in_group => 3,
        () => 0,
    };
    (attr.mode >> shift) & want == want
}
