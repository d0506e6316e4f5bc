//! Error numbers, as the kernel takes them.

use std::fmt;

/// An error number of this system; never zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(i32);

macro_rules! numbers {
    ($($name:ident)*) => {
        #[allow(missing_docs)]
        impl Errno {
            $(pub(crate) const $name: Self = Self(libc::$name);)*
        }
    };
}

numbers! {
    E2BIG EACCES EAGAIN EBADF ECONNRESET EEXIST EINTR EINVAL EIO EISDIR ENAMETOOLONG ENODATA ENOLCK ENOMEM
    ENOSYS ENOTDIR ENXIO EOPNOTSUPP EPERM EPROTO ERANGE ESTALE ETIMEDOUT
}

impl Errno {
    /// Converts an error number; one that the kernel would not take becomes EIO.
    pub(crate) fn from_i32(number: i32) -> Self {
        // The kernel refuses answers beyond this.
        if (1..512).contains(&number) { Self(number) } else { Self::EIO }
    }

    pub(crate) fn number(self) -> i32 {
        self.0
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", rustix::io::Errno::from_raw_os_error(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_the_kernel_refuses_becomes_eio() {
        assert_eq!(Errno::from_i32(libc::ENODATA), Errno::ENODATA);
        for strange in [0, -1, 512, i32::MAX, i32::MIN] {
            assert_eq!(Errno::from_i32(strange), Errno::EIO);
        }
    }
}
