//! Errors in the form of the C library: a number in `errno` and a return value.

use crate::interrupt;
use dafs_client::{Error, LockError, posix};
use libc::c_int;
use std::ffi::c_void;

/// An error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) type Result<T> = std::result::Result<T, Errno>;

impl Errno {
    /// The error of this thread's last call.
    pub(crate) fn last() -> Self {
        // SAFETY: the C library's own variable of this thread.
        Self(unsafe { *libc::__errno_location() })
    }

    pub(crate) fn set(self) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = self.0 }
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        // Programs that know no servers understand EIO, but not a lost connection.
        match posix::errno(&error) {
            _ if matches!(error, Error::NotSent { .. }) && interrupt::has_given_up() => {
                Self(libc::EINTR)
            }
            libc::ECONNRESET | libc::EPROTO | libc::ECONNREFUSED => Self(libc::EIO),
            number => Self(number),
        }
    }
}

impl From<LockError> for Errno {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Held(_) => Self(libc::EAGAIN),
            LockError::Broken(_) => Self(libc::ENOLCK),
            LockError::Other(error) => error.into(),
            _ => Self(libc::EIO),
        }
    }
}

/// The return value with which a function of the C library reports failure.
pub(crate) trait Failed {
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: Self = -1;
}

/// `umask`, which does not fail.
impl Failed for u32 {
    const FAILED: Self = 0;
}

/// `signal`, which fails with `SIG_ERR`.
impl Failed for usize {
    const FAILED: Self = Self::MAX;
}

impl Failed for isize {
    const FAILED: Self = -1;
}

impl Failed for i64 {
    const FAILED: Self = -1;
}

impl<T> Failed for *mut T {
    const FAILED: Self = std::ptr::null_mut();
}

impl Failed for () {
    const FAILED: Self = ();
}

/// The result of `mmap`, whose failure is not null.
#[repr(transparent)]
pub(crate) struct Mapping(pub(crate) *mut c_void);

impl Failed for Mapping {
    const FAILED: Self = Self(libc::MAP_FAILED);
}
