//! What counts as a name of one component.

use crate::{NAME_BYTES_MAX, Result, StoreError};

/// Refuses what is not one component: empty, ".", "..", or with '/' or 0 inside.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
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
