//! The parts that stores in other crates share with the one here: common checks, and operations
//! made out of others.

pub use crate::acl::{PosixAcl, PosixAcls};
pub use crate::data::nameless;
pub use crate::limits::{
    COOKIE_FIRST, COPY_BYTES_MAX, DIRECTORY_MODE_DEFAULT, FILE_BYTES_MAX, FILE_MODE_DEFAULT,
    MODE_BITS, SPECIAL_MODE_DEFAULT, STRIPE_BYTES_MAX, STRIPE_BYTES_MIN, XATTR_LIST_BYTES_MAX,
    XATTR_NAME_BYTES_MAX,
};
pub use crate::names::{XATTR_PREFIX, check_name, check_symlink_text, check_xattr_name};
pub use crate::ranges::{
    check_advice, check_range, check_ranges, check_size, check_write, copy_piece, copy_pieces,
    seek_dense,
};
pub use crate::uses::Uses;
pub use crate::vectors::{after, before, continued, continued_to_end};

use crate::{Acl, Result, StoreError};

/// Returns the nine permission bits that are equivalent to an access control list.
///
/// # Errors
/// [`StoreError::NotSupported`] for a list that a mode cannot express, [`StoreError::Invalid`] for
/// a malformed one.
pub fn mode_of_acl(acl: &Acl, directory: bool) -> Result<u32> {
    PosixAcls::from_acl(acl, directory)?.as_mode().ok_or(StoreError::NotSupported)
}
