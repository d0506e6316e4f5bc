//! What counts as a name of one component.

use crate::limits::{SYMLINK_BYTES_MAX, XATTR_NAME_BYTES_MAX};
use crate::{NAME_BYTES_MAX, Result, StoreError};

/// What Linux puts before the names of those extended attributes that belong to users.
pub const XATTR_PREFIX: &[u8] = b"user.";

/// Refuses what is not one component: empty, ".", "..", or with '/' or 0 inside.
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name == b"." || name == b".." {
        return Err(StoreError::Invalid);
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(StoreError::NameTooLong);
    }
    if name.iter().any(|&byte| byte == b'/' || byte == 0) {
        return Err(StoreError::Invalid);
    }
    Ok(())
}

/// Refuses what cannot be the name of an extended attribute. Dots and slashes mean nothing in it.
pub fn check_xattr_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.contains(&0) {
        return Err(StoreError::Invalid);
    }
    if name.len() > XATTR_NAME_BYTES_MAX { Err(StoreError::NameTooLong) } else { Ok(()) }
}

/// Refuses what no file system keeps as the text of a symlink.
pub fn check_symlink_text(text: &[u8]) -> Result<()> {
    if text.is_empty() || text.contains(&0) {
        return Err(StoreError::Invalid);
    }
    if text.len() > SYMLINK_BYTES_MAX { Err(StoreError::NameTooLong) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_single_components_are_names() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b"] {
            assert_eq!(check_name(bad), Err(StoreError::Invalid), "{bad:?}");
        }
        assert_eq!(check_name(&[b'x'; 256]), Err(StoreError::NameTooLong));
        for good in [&b"..."[..], b"a", b"\xff\xfe", &[b'x'; 255]] {
            assert_eq!(check_name(good), Ok(()), "{good:?}");
        }
    }
}
