//! The parts that stores in other crates share with the one here: common checks, and operations
//! made out of others.

pub use crate::advice::{advise_local, drop_cached, drop_now, read_through};
pub use crate::data::nameless;
pub use crate::leaving::Leaving;
pub use crate::limits::{
    COOKIE_FIRST, COPY_BYTES_MAX, DIRECTORY_MODE_DEFAULT, FILE_BYTES_MAX, FILE_MODE_DEFAULT,
    LEAVING_BYTES_MAX, MODE_BITS, SPECIAL_MODE_DEFAULT, STRIPE_BYTES_MAX, STRIPE_BYTES_MIN,
    XATTR_LIST_BYTES_MAX, XATTR_NAME_BYTES_MAX,
};
pub use crate::names::{
    XATTR_PREFIX, check_name, check_symlink_text, kernel_xattr_name, user_xattr_names,
};
pub use crate::ranges::{
    check_advice, check_range, check_ranges, check_size, check_write, copy_piece, copy_pieces,
    seek_dense,
};
pub use crate::uses::Uses;
pub use crate::vectors::{after, before, continued, continued_to_end};

use crate::{Acl, CreateHow, Kind, PosixAcls, Result, SetAttr, SetTime, StoreError, TimeSpec};

/// Returns the nine permission bits that are equivalent to an access control list.
///
/// # Errors
/// [`StoreError::NotSupported`] for a list that a mode cannot express, [`StoreError::Invalid`] for
/// a malformed one.
pub fn mode_of_acl(acl: &Acl, directory: bool) -> Result<u32> {
    PosixAcls::from_acl(acl, directory)?.as_mode().ok_or(StoreError::NotSupported)
}

/// Returns the error of an open of an object that is not a regular file.
///
/// # Errors
/// One for each other kind.
pub fn check_regular(kind: Kind) -> Result<()> {
    match kind {
        Kind::Regular => Ok(()),
        Kind::Directory => Err(StoreError::IsDirectory),
        Kind::Symlink => Err(StoreError::Symlink),
        _ => Err(StoreError::BadType),
    }
}

/// Returns the seconds of atime and mtime in which an exclusive create keeps its verifier, as in
/// other file servers. They stay below 2^31, because not every file system keeps more; the verifier
/// loses its two highest bits.
pub fn verifier_seconds(verifier: [u8; 8]) -> (i64, i64) {
    let bits = u64::from_be_bytes(verifier);
    let half = |bits: u64| (bits & 0x7fff_ffff).cast_signed();
    (half(bits >> 32), half(bits))
}

/// Returns the attributes of a new file, with the verifier of an exclusive create.
pub fn with_verifier(how: CreateHow, wish: &SetAttr) -> SetAttr {
    let CreateHow::Exclusive(verifier) = how else { return *wish };
    let (atime, mtime) = verifier_seconds(verifier);
    let at = |seconds| Some(SetTime::To(TimeSpec { seconds, nanoseconds: 0 }));
    SetAttr { atime: at(atime), mtime: at(mtime), ..*wish }
}
