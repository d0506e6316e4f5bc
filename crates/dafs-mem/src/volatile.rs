//! A view of memory that others may read or write at the same time.

use crate::copies::{Site, record};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A bounds-checked view of bytes that a peer, a kernel or another thread may change at any time.
///
/// It never yields a reference to the bytes. It only copies them in and out, or passes their
/// address to the kernel. Readers must expect torn values. Its layout is that of the kernel's
/// `iovec`, so a list of views is a vector for a system call.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct VolatileSlice<'a> {
    ptr: *mut u8,
    len: usize,
    life: PhantomData<&'a ()>,
}

// SAFETY: the view is an address and a length; every access is a raw copy that tolerates
// concurrent change, and the lifetime keeps the mapping alive on whatever thread uses it.
unsafe impl Send for VolatileSlice<'_> {}
// SAFETY: as above; `&VolatileSlice` offers nothing beyond what a copy of it offers.
unsafe impl Sync for VolatileSlice<'_> {}

impl<'a> VolatileSlice<'a> {
    /// A view of `len` bytes at `ptr`.
    ///
    /// # Safety
    /// The bytes must stay mapped, readable and writable for `'a`, and no Rust reference to them
    /// may be alive while the view is used.
    pub unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len, life: PhantomData }
    }

    /// A view of memory that this thread owns.
    pub fn from_mut(bytes: &'a mut [u8]) -> Self {
        Self { ptr: bytes.as_mut_ptr(), len: bytes.len(), life: PhantomData }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when the view is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// The part of `len` bytes that starts at `offset`, if it lies inside.
    pub fn slice(&self, offset: usize, len: usize) -> Option<VolatileSlice<'a>> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: offset + len <= self.len was checked just above.
        Some(Self { ptr: unsafe { self.ptr.add(offset) }, len, life: PhantomData })
    }

    /// Copies to `target`, up to the shorter length. Returns the bytes copied.
    pub fn copy_to(&self, target: &mut [u8], site: Site) -> usize {
        let len = self.len.min(target.len());
        // SAFETY: both ranges are valid for `len`; `target` is exclusively borrowed, so they do
        // not overlap; a torn read is within the contract of this type.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr, target.as_mut_ptr(), len) };
        record(site, len);
        len
    }

    /// Copies from `source`, up to the shorter length. Returns the bytes copied.
    pub fn copy_from(&self, source: &[u8], site: Site) -> usize {
        let len = self.len.min(source.len());
        // SAFETY: both ranges are valid for `len`; `copy` allows them to overlap.
        unsafe { std::ptr::copy(source.as_ptr(), self.ptr, len) };
        record(site, len);
        len
    }

    /// Copies from another view, up to the shorter length. Returns the bytes copied.
    pub fn copy_from_volatile(&self, source: VolatileSlice<'_>, site: Site) -> usize {
        let len = self.len.min(source.len);
        // SAFETY: both ranges are valid for `len`; `copy` allows them to overlap.
        unsafe { std::ptr::copy(source.ptr, self.ptr, len) };
        record(site, len);
        len
    }

    /// Sets every byte to `value`. This is no payload, so it is not counted.
    pub fn fill(&self, value: u8) {
        // SAFETY: the range is valid for writes.
        unsafe { std::ptr::write_bytes(self.ptr, value, self.len) };
    }

    /// Shows the bytes to `look` in order, in pieces that are snapshots in a small cache-resident
    /// buffer. For checksums: no byte is kept, so it does not count as a copy of payload.
    pub fn scan(&self, mut look: impl FnMut(&[u8])) {
        const PIECE_BYTES: usize = 4096;
        let mut piece = std::mem::MaybeUninit::<[u8; PIECE_BYTES]>::uninit();
        let mut at = 0;
        while at < self.len {
            let len = (self.len - at).min(PIECE_BYTES);
            let target = piece.as_mut_ptr().cast::<u8>();
            // SAFETY: at + len <= self.len, `piece` holds PIECE_BYTES >= len and is ours alone; its
            // first `len` bytes are initialised by the copy before the reference is made.
            let seen = unsafe {
                std::ptr::copy_nonoverlapping(self.ptr.add(at), target, len);
                std::slice::from_raw_parts(target, len)
            };
            look(seen);
            at += len;
        }
    }

    /// The aligned word at `offset`, if it lies inside. For memory in which two processes exchange
    /// words. Between correct processes no other access to its bytes runs at the same time. Where the
    /// memory is mapped for reading alone, only relaxed loads are allowed; fences order them.
    pub fn word64(&self, offset: usize) -> Option<&'a AtomicU64> {
        let word = self.slice(offset, size_of::<u64>())?;
        if !word.ptr.addr().is_multiple_of(align_of::<AtomicU64>()) {
            return None;
        }
        // SAFETY: the bytes are mapped for `'a` and aligned, both checked above. Every bit pattern is
        // valid for an atomic. A peer that writes them otherwise tears values, which are not trusted.
        Some(unsafe { AtomicU64::from_ptr(word.ptr.cast()) })
    }

    /// The aligned word of 32 bits at `offset`, as [`word64`](Self::word64).
    pub fn word32(&self, offset: usize) -> Option<&'a AtomicU32> {
        let word = self.slice(offset, size_of::<u32>())?;
        if !word.ptr.addr().is_multiple_of(align_of::<AtomicU32>()) {
            return None;
        }
        // SAFETY: as in `word64`.
        Some(unsafe { AtomicU32::from_ptr(word.ptr.cast()) })
    }

    /// A private copy of the bytes.
    pub fn to_vec(&self, site: Site) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_to(&mut bytes, site);
        bytes
    }
}

impl std::fmt::Debug for VolatileSlice<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VolatileSlice({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copied_bytes;

    #[test]
    fn slices_stay_inside() {
        let mut bytes = [0u8; 16];
        let view = VolatileSlice::from_mut(&mut bytes);
        assert_eq!(view.slice(4, 12).unwrap().len(), 12);
        assert!(view.slice(4, 13).is_none());
        assert!(view.slice(usize::MAX, 2).is_none());
        assert!(view.slice(16, 0).unwrap().is_empty());
    }

    #[test]
    fn a_scan_sees_every_byte_once() {
        let mut bytes: Vec<u8> = (0..10_000u32).map(|i| i as u8).collect();
        let want = bytes.clone();
        let mut seen = Vec::new();
        VolatileSlice::from_mut(&mut bytes).scan(|piece| seen.extend_from_slice(piece));
        assert_eq!(seen, want);
    }

    #[test]
    fn copies_are_counted_at_their_site() {
        let mut bytes = [1u8; 8];
        let view = VolatileSlice::from_mut(&mut bytes);
        let before = copied_bytes(Site::Inspect);
        assert_eq!(view.to_vec(Site::Inspect), [1; 8]);
        assert_eq!(view.copy_from(&[2, 3], Site::Inspect), 2);
        assert!(copied_bytes(Site::Inspect) >= before + 10);
        assert_eq!(bytes, [2, 3, 1, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn a_word_is_aligned_and_inside() {
        let buffer = crate::Buffer::zeroed(64).unwrap();
        let view = buffer.view();
        view.word64(56).unwrap().store(7, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(view.slice(56, 8).unwrap().to_vec(Site::Inspect), 7_u64.to_ne_bytes());
        assert!(view.word64(57).is_none() && view.word64(60).is_none());
        assert!(view.word64(64).is_none() && view.word64(usize::MAX).is_none());
        assert!(view.word32(60).is_some() && view.word32(62).is_none());
    }
}
