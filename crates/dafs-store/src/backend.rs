//! What stores outside this crate share with those inside: checks that every store makes alike, and
//! operations made out of others.

pub use crate::acl::{PosixAcl, PosixAcls};
pub use crate::data::nameless;
pub use crate::limits::{
    COOKIE_FIRST, COPY_BYTES_MAX, DIRECTORY_MODE_DEFAULT, FILE_BYTES_MAX, FILE_MODE_DEFAULT,
    MODE_BITS, SPECIAL_MODE_DEFAULT, STRIPE_BYTES_MAX, STRIPE_BYTES_MIN, XATTR_LIST_BYTES_MAX,
    XATTR_NAME_BYTES_MAX,
};
pub use crate::names::{XATTR_PREFIX, check_name, check_symlink_text, check_xattr_name};
pub use crate::ranges::{check_range, check_ranges, copy_piece, seek_dense};
pub use crate::uses::Uses;
pub use crate::vectors::{after, before, continued, continued_to_end};

use crate::{Acl, Result, StoreError};

/// The nine permission bits that say what an access control list says.
///
/// # Errors
/// [`StoreError::NotSupported`] for one that says more, [`StoreError::Invalid`] for one that says
/// nonsense.
pub fn mode_of_acl(acl: &Acl, directory: bool) -> Result<u32> {
    PosixAcls::from_acl(acl, directory)?.as_mode().ok_or(StoreError::NotSupported)
}
