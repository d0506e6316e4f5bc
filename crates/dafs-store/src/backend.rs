//! What stores outside this crate share with those inside: checks that every store makes alike, and
//! operations made out of others.

pub use crate::data::nameless;
pub use crate::names::{XATTR_PREFIX, check_name, check_xattr_name};
pub use crate::ranges::{check_ranges, copy_piece, seek_dense};
pub use crate::uses::Uses;
pub use crate::vectors::{continued, continued_to_end};

use crate::acl::PosixAcls;
use crate::{Acl, Result, StoreError};

/// The nine permission bits that say what an access control list says.
///
/// # Errors
/// [`StoreError::NotSupported`] for one that says more, [`StoreError::Invalid`] for one that says
/// nonsense.
pub fn mode_of_acl(acl: &Acl, directory: bool) -> Result<u32> {
    PosixAcls::from_acl(acl, directory)?.as_mode().ok_or(StoreError::NotSupported)
}
