//! The rules for names of one component.

use crate::limits::{SYMLINK_BYTES_MAX, XATTR_NAME_BYTES_MAX};
use crate::{NAME_BYTES_MAX, Result, StoreError};

/// The prefix that Linux gives to the names of users' extended attributes.
pub const XATTR_PREFIX: &[u8] = b"user.";

/// Rejects a name that is not one component: empty, ".", "..", or with '/' or 0 inside.
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

/// Rejects a name that no extended attribute can have. Dots and slashes have no meaning in it.
pub(crate) fn check_xattr_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.contains(&0) {
        return Err(StoreError::Invalid);
    }
    if name.len() > XATTR_NAME_BYTES_MAX { Err(StoreError::NameTooLong) } else { Ok(()) }
}

/// Returns the kernel's name of an extended attribute.
pub fn kernel_xattr_name(name: &[u8]) -> Result<Vec<u8>> {
    check_xattr_name(name)?;
    Ok([XATTR_PREFIX, name].concat())
}

/// Returns the names of users' extended attributes, in order, from the kernel's list of all.
pub fn user_xattr_names(list: &[u8]) -> Vec<Vec<u8>> {
    let names = list.split(|&byte| byte == 0).filter_map(|name| name.strip_prefix(XATTR_PREFIX));
    let mut names: Vec<_> = names.filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect();
    names.sort_unstable();
    names
}

/// Rejects a symlink text that no file system can keep.
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
