//! Owned, page-aligned memory for transfers.

use crate::checked::{CheckedSlice, FailedAccess, Losses};
use crate::volatile::VolatileSlice;
use std::any::Any;
use std::io;
use std::ops::Range;

/// The page size that buffers are aligned to, in bytes.
pub const PAGE_BYTES: usize = 4096;

/// Memory for transfers, page aligned, zeroed, shared with `Arc` among its users.
///
/// It may lie in private memory or in memory that another process maps too (the shared-memory
/// transport allocates such buffers), so its content is only seen through [`VolatileSlice`].
pub struct Buffer {
    ptr: *mut u8,
    len: usize,
    /// Keeps the memory mapped. Its drop releases the memory.
    owner: Box<dyn Any + Send + Sync>,
    /// Set for memory of the application, which may unmap it.
    losses: Option<Box<Losses>>,
}

// SAFETY: the buffer is an address that its owner keeps mapped; all access goes through
// `VolatileSlice`, which tolerates concurrency.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `len` zeroed bytes, rounded up to whole pages.
    ///
    /// # Errors
    /// The error of `mmap`, usually `ENOMEM`.
    pub fn zeroed(len: usize) -> io::Result<Self> {
        let mapping = Mapping::anonymous(len.max(1))?;
        Ok(Self { ptr: mapping.ptr, len, owner: Box::new(mapping), losses: None })
    }

    /// Makes a buffer of memory that `owner` keeps mapped.
    ///
    /// # Safety
    /// `len` bytes at `ptr` must stay mapped, readable and writable until `owner` is dropped. There
    /// must be no Rust reference into them while the buffer lives.
    pub unsafe fn from_owner(ptr: *mut u8, len: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self { ptr, len, owner, losses: None }
    }

    /// Makes a buffer of the caller's memory, which is used in place. The memory should stay
    /// mapped, readable and writable as long as the buffer lives. Copies through
    /// [`Buffer::checked`] and system calls tolerate memory that is missing, and report it.
    /// [`Buffer::view`] is only for memory that is mapped.
    ///
    /// # Safety
    /// Any memory that is mapped there belongs to the caller, and there is no Rust reference into
    /// it while the buffer lives. A transport may write to it as long as it is registered or a
    /// transfer is posted.
    pub unsafe fn borrowed(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len, owner: Box::new(()), losses: Some(Box::default()) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when the buffer holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// The owner of the mapping, for a transport that recognises its own allocations.
    pub fn owner(&self) -> &(dyn Any + Send + Sync) {
        &*self.owner
    }

    /// A view of the whole buffer.
    pub fn view(&self) -> VolatileSlice<'_> {
        // SAFETY: the constructors promise that the range is mapped while `self` lives.
        unsafe { VolatileSlice::new(self.ptr, self.len) }
    }

    /// A view of `len` bytes from `offset`, if they lie inside.
    pub fn slice(&self, offset: usize, len: usize) -> Option<VolatileSlice<'_>> {
        self.view().slice(offset, len)
    }

    /// Does [`Buffer::slice`], for copies that tolerate missing memory.
    pub fn checked(&self, offset: usize, len: usize) -> Option<CheckedSlice<'_>> {
        let view = self.slice(offset, len)?;
        Some(match self.losses {
            None => CheckedSlice::ours(view),
            Some(_) => CheckedSlice::registered(view, self),
        })
    }

    /// True if the memory belongs to the application, which may unmap it.
    pub fn may_be_unmapped(&self) -> bool {
        self.losses.is_some()
    }

    /// The number of times that memory was found missing so far, for [`Buffer::is_lost`].
    pub fn losses(&self) -> u64 {
        self.losses.as_ref().map_or(0, |losses| losses.count())
    }

    /// True if any of `range` was found missing after there were `before`
    /// [`losses`](Buffer::losses).
    pub fn is_lost(&self, range: Range<usize>, before: u64) -> bool {
        self.losses.as_ref().is_some_and(|losses| losses.has(&range, before))
    }

    /// Does [`is_lost`](Buffer::is_lost) for memory that could not even be read.
    pub fn is_unreadable(&self, range: Range<usize>, before: u64) -> bool {
        self.losses.as_ref().is_some_and(|losses| losses.has_unreadable(&range, before))
    }

    pub(crate) fn lost(&self, range: Range<usize>, access: FailedAccess) {
        if let Some(losses) = &self.losses {
            losses.add(range, access);
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

/// An anonymous private mapping.
struct Mapping {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: an address that stays mapped until drop.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn anonymous(len: usize) -> io::Result<Self> {
        let len = len.next_multiple_of(PAGE_BYTES);
        // SAFETY: a new anonymous mapping touches no existing memory.
        let ptr = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if ptr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { ptr: ptr.cast(), len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `anonymous` and is unmapped once.
        unsafe { libc::munmap(self.ptr.cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Site;

    #[test]
    fn a_buffer_is_zeroed_and_aligned() {
        let buffer = Buffer::zeroed(5000).unwrap();
        assert_eq!(buffer.len(), 5000);
        assert_eq!(buffer.as_ptr() as usize % PAGE_BYTES, 0);
        assert_eq!(buffer.view().to_vec(Site::Inspect), vec![0; 5000]);
        assert!(buffer.slice(4999, 2).is_none());
    }

    #[test]
    fn an_empty_buffer_is_allowed() {
        assert!(Buffer::zeroed(0).unwrap().is_empty());
    }
}
