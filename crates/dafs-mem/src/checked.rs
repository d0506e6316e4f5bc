//! Views of memory that the application may take away while it is used.
//!
//! Invariants
//! * Bytes are copied here between such memory and the library's own alone, so that a copy needs to look at
//!   one side only.
//! * A copy that has met memory that is not there says so, and if the memory is that of a [`Buffer`], the
//!   buffer remembers.

use crate::buffer::Buffer;
use crate::copies::{Site, record};
use crate::guard::{self, Ours};
use crate::volatile::VolatileSlice;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Memory is not there, or not for what was to be done with it: an application has unmapped it, made it
/// read-only or cut the file behind it while it was in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone;

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("memory of the application was unmapped or made read-only while it was in use")
    }
}

impl std::error::Error for Gone {}

/// A view of memory of which it is known whose it is.
#[derive(Debug, Clone, Copy)]
pub struct CheckedSlice<'a> {
    view: VolatileSlice<'a>,
    whose: Whose<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Whose<'a> {
    /// The library's, or a Rust value's: it is there.
    Ours,
    /// The application's, for a call.
    Callers,
    /// The application's, in a buffer that has to know of losses.
    Registered(&'a Buffer),
}

impl<'a> CheckedSlice<'a> {
    /// Memory that is there as long as the view.
    pub fn ours(view: VolatileSlice<'a>) -> Self {
        Self { view, whose: Whose::Ours }
    }

    /// Memory of a Rust value's.
    pub fn from_mut(bytes: &'a mut [u8]) -> Self {
        Self::ours(VolatileSlice::from_mut(bytes))
    }

    /// Memory of a Rust value's that is only copied from.
    ///
    /// # Safety
    /// Nothing is copied to the view.
    pub unsafe fn from_ref(bytes: &'a [u8]) -> Self {
        // SAFETY: mapped and readable for `'a`, and as the caller promises.
        Self::ours(unsafe { VolatileSlice::new(bytes.as_ptr().cast_mut(), bytes.len()) })
    }

    /// `len` bytes at `ptr` that the application has named: mapped or not.
    ///
    /// # Safety
    /// Wherever memory is mapped there, nobody holds a Rust reference into it while the view is used, and
    /// it is the application's to be read, and to be written if the view is written to.
    pub unsafe fn callers(ptr: *mut u8, len: usize) -> Self {
        // SAFETY: all that is done with the view here bears memory that is not there.
        Self { view: unsafe { VolatileSlice::new(ptr, len) }, whose: Whose::Callers }
    }

    pub(crate) fn registered(view: VolatileSlice<'a>, buffer: &'a Buffer) -> Self {
        Self { view, whose: Whose::Registered(buffer) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.view.len()
    }

    /// True when there is nothing to see.
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    /// The view for a system call, which looks at the memory itself.
    pub fn view(&self) -> VolatileSlice<'a> {
        self.view
    }

    /// The part of `len` bytes that starts at `offset`, if it lies inside.
    pub fn slice(&self, offset: usize, len: usize) -> Option<Self> {
        Some(Self { view: self.view.slice(offset, len)?, whose: self.whose })
    }

    /// Copies to memory of the library's own, up to the shorter length; returns the bytes copied.
    ///
    /// # Errors
    /// [`Gone`], and then any part of the target has changed.
    pub fn copy_to(&self, target: VolatileSlice<'_>, site: Site) -> Result<usize, Gone> {
        let len = self.len().min(target.len());
        match self.whose {
            Whose::Ours => return Ok(target.copy_from_volatile(self.view, site)),
            Whose::Callers | Whose::Registered(_) => {
                // SAFETY: both are `len` bytes long; the target is there, and the other side is the
                // application's, or not there.
                let done =
                    unsafe { guard::copy(target.as_ptr(), self.view.as_ptr(), len, Ours::Target) };
                self.judge(done)?;
            }
        }
        record(site, len);
        Ok(len)
    }

    /// Copies from memory of the library's own, up to the shorter length; returns the bytes copied.
    ///
    /// # Errors
    /// [`Gone`], and then any part of the memory has changed.
    pub fn copy_from(&self, source: VolatileSlice<'_>, site: Site) -> Result<usize, Gone> {
        let len = self.len().min(source.len());
        match self.whose {
            Whose::Ours => return Ok(self.view.copy_from_volatile(source, site)),
            Whose::Callers | Whose::Registered(_) => {
                // SAFETY: as in `copy_to`, the other way round.
                let done =
                    unsafe { guard::copy(self.view.as_ptr(), source.as_ptr(), len, Ours::Source) };
                self.judge(done)?;
            }
        }
        record(site, len);
        Ok(len)
    }

    /// As [`VolatileSlice::scan`].
    ///
    /// # Errors
    /// [`Gone`], and then `look` has seen what is before that.
    pub fn scan(&self, mut look: impl FnMut(&[u8])) -> Result<(), Gone> {
        const PIECE_BYTES: usize = 4096;
        if let Whose::Ours = self.whose {
            self.view.scan(look);
            return Ok(());
        }
        let mut piece = [0; PIECE_BYTES];
        for at in (0..self.len()).step_by(PIECE_BYTES) {
            let len = PIECE_BYTES.min(self.len() - at);
            let from = self.view.as_ptr().wrapping_add(at);
            // SAFETY: `piece` is as long; the other side is as in `copy_to`.
            self.judge(unsafe { guard::copy(piece.as_mut_ptr(), from, len, Ours::Target) })?;
            look(&piece[..len]);
        }
        Ok(())
    }

    /// A private copy of the bytes.
    ///
    /// # Errors
    /// [`Gone`]
    pub fn to_vec(&self, site: Site) -> Result<Vec<u8>, Gone> {
        let mut bytes = vec![0; self.len()];
        self.copy_to(VolatileSlice::from_mut(&mut bytes), site)?;
        Ok(bytes)
    }

    /// Looks whether the memory can be read, and has its buffer remember if not. For memory of the
    /// application's that a system call did not find.
    ///
    /// # Errors
    /// [`Gone`]
    pub fn look(&self) -> Result<(), Gone> {
        match self.whose {
            Whose::Ours => Ok(()),
            Whose::Callers | Whose::Registered(_) => self.scan(|_| {}),
        }
    }

    /// Notes that a system call did not find the memory.
    pub fn note_gone(&self) {
        let _ = self.judge(false);
    }

    /// Whether it is the application's and so may go.
    pub fn may_go(&self) -> bool {
        !matches!(self.whose, Whose::Ours)
    }

    fn judge(&self, is_there: bool) -> Result<(), Gone> {
        if is_there {
            return Ok(());
        }
        if let Whose::Registered(buffer) = self.whose {
            let start = self.view.as_ptr() as usize - buffer.as_ptr() as usize;
            buffer.lost(start..start + self.len());
        }
        Err(Gone)
    }
}

/// The most losses that a buffer tells apart.
const LOSSES_MAX: usize = 64;

/// What of a buffer was found missing, by numbers that grow.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    count: AtomicU64,
    list: Mutex<Vec<(u64, Range<usize>)>>,
}

impl Losses {
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    pub(crate) fn add(&self, range: Range<usize>) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.count() + 1;
        if list.len() >= LOSSES_MAX {
            // The two oldest as one that covers both: it may be too large, and says nothing good of what
            // is not there.
            let (_, first) = list.remove(0);
            let second = &mut list[0].1;
            *second = first.start.min(second.start)..first.end.max(second.end);
        }
        list.push((number, range));
        self.count.store(number, Ordering::Release);
    }

    /// Whether any of `range` was lost after the first `before` losses.
    pub(crate) fn has(&self, range: &Range<usize>, before: u64) -> bool {
        if self.count() <= before {
            return false;
        }
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.iter().any(|(number, lost)| {
            *number > before && lost.start < range.end && range.start < lost.end
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_told_apart_and_never_forgotten() {
        let losses = Losses::default();
        losses.add(10..20);
        let then = losses.count();
        losses.add(30..40);
        assert!(losses.has(&(0..11), 0) && !losses.has(&(0..11), then));
        assert!(losses.has(&(39..50), then) && !losses.has(&(20..30), 0));
        for at in 100..100 + 2 * LOSSES_MAX {
            losses.add(at..at + 1);
        }
        assert!(losses.has(&(10..11), 0) && losses.has(&(35..36), 0));
        let all = losses.count();
        assert!(!losses.has(&(0..1000), all));
        assert!(losses.list.lock().unwrap().len() <= LOSSES_MAX);
    }

    #[test]
    fn a_buffer_remembers_what_went_and_the_rest_goes_on() {
        let memory = Buffer::zeroed(4 * 4096).unwrap();
        // SAFETY: the memory outlives the buffer, and its last page is only made unreadable.
        let borrowed = unsafe { Buffer::borrowed(memory.as_ptr(), memory.len()) };
        let last = memory.as_ptr().wrapping_add(3 * 4096).cast();
        // SAFETY: a page of the test's own.
        assert_eq!(unsafe { libc::mprotect(last, 4096, libc::PROT_NONE) }, 0);
        let mut own = vec![7; 4 * 4096];
        let own = VolatileSlice::from_mut(&mut own);
        let part = |at, len| borrowed.checked(at, len).unwrap();
        assert_eq!(part(0, 3 * 4096).copy_from(own, Site::Inspect), Ok(3 * 4096));
        assert_eq!(borrowed.losses(), 0);
        assert_eq!(part(2 * 4096, 8192).copy_to(own, Site::Inspect), Err(Gone));
        assert_eq!(part(3 * 4096, 1).scan(|_| {}), Err(Gone));
        assert!(borrowed.is_lost(0..2 * 4096 + 1, 0) && !borrowed.is_lost(0..2 * 4096, 0));
        assert!(borrowed.is_lost(3 * 4096..4 * 4096, 1));
        assert!(!borrowed.is_lost(0..4 * 4096, borrowed.losses()));
        // SAFETY: as above.
        assert_eq!(unsafe { libc::mprotect(last, 4096, libc::PROT_READ) }, 0);
        assert_eq!(part(3 * 4096, 4096).to_vec(Site::Inspect), Ok(vec![0; 4096]));
        assert_eq!(part(3 * 4096, 1).copy_from(own, Site::Inspect), Err(Gone));
    }
}
