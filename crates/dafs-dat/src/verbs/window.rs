//! Memory windows of type 2B: keys to registered memory that serve the peer of one queue pair.
//!
//! The registration has no rights for peers, so that its own key is of no use to them.
//!
//! Invariants
//! * A window is bound once. When its end returns, the device refuses its key.
//! * A window ends before the queue pair to which it is bound, and before its registration: rxe waits
//!   in vain for the one, and refuses to end the other.

use super::command_thread;
use super::ffi;
use super::fork;
use super::sys::{Domain, Registration};
use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;

/// A window, bound or not.
pub(super) struct Window {
    mw: NonNull<ffi::ibv_mw>,
}

// SAFETY: a handle of the library, which accepts it from any thread.
unsafe impl Send for Window {}
// SAFETY: one thread drives an adapter, so only one thread at a time uses a shared handle.
unsafe impl Sync for Window {}

impl Window {
    /// A window in a domain, which outlives it.
    pub(super) fn new(domain: &Domain) -> io::Result<Self> {
        fork::check()?;
        let (alloc, descriptor) = {
            // SAFETY: a live domain of an open context.
            let context = unsafe { &*(*domain.as_ptr()).context };
            (context.ops.alloc_mw, context.cmd_fd)
        };
        let alloc = alloc.ok_or(io::ErrorKind::Unsupported)?;
        command_thread::with_opener_credentials(descriptor, || {
            // SAFETY: the function of the domain's own device.
            let mw = unsafe { alloc(domain.as_ptr(), ffi::MW_TYPE_2) };
            let mw = NonNull::new(mw).ok_or_else(io::Error::last_os_error)?;
            Ok(Self { mw })
        })
    }

    /// The key for the peer, once the window is bound. A bind changes the last byte, which belongs to
    /// the program.
    pub(super) fn key(&self) -> u32 {
        // SAFETY: a live window. The library changes the field in calls that are not made here.
        next_key(unsafe { self.mw.as_ref().rkey })
    }

    /// The operands of a request that lets a peer read `bytes` bytes at `address`, of a registration
    /// that allows windows.
    pub(super) fn reading(
        &self,
        registration: &Registration,
        (address, bytes): (u64, u64),
    ) -> ffi::ibv_bind_mw {
        ffi::ibv_bind_mw {
            mw: self.mw.as_ptr(),
            rkey: self.key(),
            mr: registration.as_ptr(),
            addr: address,
            length: bytes,
            mw_access_flags: ffi::ACCESS_REMOTE_READ.unsigned_abs(),
        }
    }

    fn context(&self) -> &ffi::ibv_context {
        // SAFETY: a live window has an open context, which stays open.
        unsafe { &*self.mw.as_ref().context }
    }

    fn descriptor(&self) -> RawFd {
        self.context().cmd_fd
    }

    /// Called once, on drop.
    fn release(&self) -> libc::c_int {
        let Some(dealloc) = self.context().ops.dealloc_mw else { return libc::EOPNOTSUPP };
        // SAFETY: owned by this value and released once.
        unsafe { dealloc(self.mw.as_ptr()) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        let window: &Self = self;
        let failed =
            command_thread::with_opener_credentials(window.descriptor(), || window.release());
        if failed != 0 {
            tracing::warn!(failed, "cannot release a memory window");
        }
    }
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Window({:?})", self.mw)
    }
}

/// The key after this one.
fn next_key(key: u32) -> u32 {
    (key & !0xff) | (key.wrapping_add(1) & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bind_changes_the_last_byte_of_a_key() {
        assert_eq!(next_key(0x1234_5600), 0x1234_5601);
        assert_eq!(next_key(0x1234_56ff), 0x1234_5600);
        assert_eq!(next_key(u32::MAX), 0xffff_ff00);
    }
}
