//! Views of memory that the application may unmap while it is used.
//!
//! Invariants
//! * Copies here are only between such memory and the library's own, so that a copy needs to guard
//!   one side only.
//! * A copy that meets missing memory reports that. If the memory belongs to a [`Buffer`], the
//!   buffer records the loss, and if the memory could be read.

use crate::buffer::Buffer;
use crate::copies::{Site, record};
use crate::guard::{self, Ours};
use crate::sync::Mutex;
use crate::volatile::VolatileSlice;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The memory is missing, or does not allow the access: an application has unmapped it, made it
/// read-only, or cut the file behind it while it was in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inaccessible;

impl std::fmt::Display for Inaccessible {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("memory of the application was unmapped or made read-only while it was in use")
    }
}

impl std::error::Error for Inaccessible {}

/// A view of memory with a known owner.
#[derive(Debug, Clone, Copy)]
pub struct CheckedSlice<'a> {
    view: VolatileSlice<'a>,
    whose: Whose<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Whose<'a> {
    /// The library's memory, or that of a Rust value: it is mapped.
    Ours,
    /// The application's memory, for a call.
    Callers,
    /// The application's memory, in a buffer that records losses.
    Registered(&'a Buffer),
}

impl<'a> CheckedSlice<'a> {
    /// Makes a view of memory that is mapped as long as the view lives.
    pub fn ours(view: VolatileSlice<'a>) -> Self {
        Self { view, whose: Whose::Ours }
    }

    /// Makes a view of a Rust value's memory.
    pub fn from_mut(bytes: &'a mut [u8]) -> Self {
        Self::ours(VolatileSlice::from_mut(bytes))
    }

    /// Makes a view of a Rust value's memory that is only copied from.
    ///
    /// # Safety
    /// No bytes are copied to the view.
    pub unsafe fn from_ref(bytes: &'a [u8]) -> Self {
        // SAFETY: mapped and readable for `'a`, and as the caller promises.
        Self::ours(unsafe { VolatileSlice::new(bytes.as_ptr().cast_mut(), bytes.len()) })
    }

    /// Makes a view of `len` bytes at `ptr` of the application's memory, mapped or not.
    ///
    /// # Safety
    /// For any memory that is mapped there, no Rust reference into it exists while the view is
    /// used. The application may read it, and may write it if the view is written to.
    pub unsafe fn callers(ptr: *mut u8, len: usize) -> Self {
        // SAFETY: all operations on the view here tolerate missing memory.
        Self { view: unsafe { VolatileSlice::new(ptr, len) }, whose: Whose::Callers }
    }

    pub(crate) fn registered(view: VolatileSlice<'a>, buffer: &'a Buffer) -> Self {
        Self { view, whose: Whose::Registered(buffer) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.view.len()
    }

    /// True when the view is empty.
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    /// The view for a system call, which checks the memory itself.
    pub fn view(&self) -> VolatileSlice<'a> {
        self.view
    }

    /// The part of `len` bytes that starts at `offset`, if it lies inside.
    pub fn slice(&self, offset: usize, len: usize) -> Option<Self> {
        Some(Self { view: self.view.slice(offset, len)?, whose: self.whose })
    }

    /// Copies to memory of the library's own, up to the shorter length. Returns the bytes copied.
    ///
    /// # Errors
    /// [`Inaccessible`]. Then any part of the target has changed.
    pub fn copy_to(&self, target: VolatileSlice<'_>, site: Site) -> Result<usize, Inaccessible> {
        let len = self.len().min(target.len());
        match self.whose {
            Whose::Ours => return Ok(target.copy_from_volatile(self.view, site)),
            Whose::Callers | Whose::Registered(_) => {
                // SAFETY: both are `len` bytes long. The target is mapped, and the other side
                // belongs to the application or is missing.
                let done =
                    unsafe { guard::copy(target.as_ptr(), self.view.as_ptr(), len, Ours::Target) };
                self.check_read(done)?;
            }
        }
        record(site, len);
        Ok(len)
    }

    /// Copies from memory of the library's own, up to the shorter length. Returns the bytes copied.
    ///
    /// # Errors
    /// [`Inaccessible`]. Then any part of the memory has changed.
    pub fn copy_from(&self, source: VolatileSlice<'_>, site: Site) -> Result<usize, Inaccessible> {
        let len = self.len().min(source.len());
        match self.whose {
            Whose::Ours => return Ok(self.view.copy_from_volatile(source, site)),
            Whose::Callers | Whose::Registered(_) => {
                // SAFETY: as in `copy_to`, in the other direction.
                let done =
                    unsafe { guard::copy(self.view.as_ptr(), source.as_ptr(), len, Ours::Source) };
                if !done {
                    self.note_inaccessible();
                    return Err(Inaccessible);
                }
            }
        }
        record(site, len);
        Ok(len)
    }

    /// Does [`VolatileSlice::scan`].
    ///
    /// # Errors
    /// [`Inaccessible`]. Then `look` has seen the bytes before the missing ones.
    pub fn scan(&self, mut look: impl FnMut(&[u8])) -> Result<(), Inaccessible> {
        const PIECE_BYTES: usize = 4096;
        if let Whose::Ours = self.whose {
            self.view.scan(look);
            return Ok(());
        }
        let mut piece = MaybeUninit::<[u8; PIECE_BYTES]>::uninit();
        let own = piece.as_mut_ptr().cast::<u8>();
        for at in (0..self.len()).step_by(PIECE_BYTES) {
            let len = PIECE_BYTES.min(self.len() - at);
            let from = self.view.as_ptr().wrapping_add(at);
            // SAFETY: `piece` is as long; the other side is as in `copy_to`.
            self.check_read(unsafe { guard::copy(own, from, len, Ours::Target) })?;
            // SAFETY: `piece` is ours alone, and the copy was made to its end.
            look(unsafe { std::slice::from_raw_parts(own, len) });
        }
        Ok(())
    }

    /// Returns a private copy of the bytes.
    ///
    /// # Errors
    /// [`Inaccessible`]
    pub fn to_vec(&self, site: Site) -> Result<Vec<u8>, Inaccessible> {
        let mut bytes = vec![0; self.len()];
        self.copy_to(VolatileSlice::from_mut(&mut bytes), site)?;
        Ok(bytes)
    }

    /// Checks that the memory can be read. If not, its buffer records the loss. For memory of the
    /// application that a system call did not find.
    ///
    /// # Errors
    /// [`Inaccessible`]
    pub fn look(&self) -> Result<(), Inaccessible> {
        match self.whose {
            Whose::Ours => Ok(()),
            Whose::Callers | Whose::Registered(_) => self.scan(|_| {}),
        }
    }

    /// Records that the memory could not be written to, and checks if it can be read.
    pub fn note_inaccessible(&self) {
        // It can be read and not written, or is mapped again.
        if self.look().is_ok() {
            self.lose(FailedAccess::Writing);
        }
    }

    /// True if it belongs to the application, which may unmap it.
    pub fn may_be_unmapped(&self) -> bool {
        !matches!(self.whose, Whose::Ours)
    }

    fn check_read(&self, is_there: bool) -> Result<(), Inaccessible> {
        if is_there {
            return Ok(());
        }
        self.lose(FailedAccess::Reading);
        Err(Inaccessible)
    }

    fn lose(&self, access: FailedAccess) {
        if let Whose::Registered(buffer) = self.whose {
            let start = self.view.as_ptr() as usize - buffer.as_ptr() as usize;
            buffer.lost(start..start + self.len(), access);
        }
    }
}

/// The access that missing memory did not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailedAccess {
    /// A read, and so a write neither.
    Reading,
    /// A write. It can be read.
    Writing,
}

/// The most losses of each kind that a buffer keeps apart.
const LOSSES_MAX: usize = 256;

/// The losses of a buffer, with increasing numbers.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    count: AtomicU64,
    lists: Mutex<Lists>,
}

#[derive(Debug, Default)]
struct Lists {
    unreadable: Lost,
    unwritable: Lost,
}

impl Losses {
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    pub(crate) fn add(&self, range: Range<usize>, access: FailedAccess) {
        let mut lists = self.lists.lock();
        let number = self.count() + 1;
        match access {
            FailedAccess::Reading => lists.unreadable.add(range, number),
            FailedAccess::Writing => lists.unwritable.add(range, number),
        }
        self.count.store(number, Ordering::Release);
    }

    /// True if any of `range` was lost after the first `before` losses.
    pub(crate) fn has(&self, range: &Range<usize>, before: u64) -> bool {
        if self.count() <= before {
            return false;
        }
        let lists = self.lists.lock();
        lists.unreadable.has(range, before) || lists.unwritable.has(range, before)
    }

    /// Does [`has`](Self::has) for memory that could not be read.
    pub(crate) fn has_unreadable(&self, range: &Range<usize>, before: u64) -> bool {
        self.count() > before && self.lists.lock().unreadable.has(range, before)
    }
}

/// Ranges with the number of the last loss in each, in order. They may touch but do not overlap.
#[derive(Debug, Default)]
struct Lost(Vec<(u64, Range<usize>)>);

impl Lost {
    fn add(&mut self, range: Range<usize>, number: u64) {
        if range.is_empty() {
            return;
        }
        let first = self.first_behind(range.start);
        let after = self.0.partition_point(|(_, lost)| lost.start < range.end);
        let of = |old: Option<&(u64, Range<usize>)>, part: Range<usize>| {
            old.filter(|_| !part.is_empty()).map(|(number, _)| (*number, part))
        };
        // Parts of earlier ranges outside of it keep their numbers.
        let over = &self.0[first..after];
        let (head, tail) = (over.first(), over.last());
        let head = of(head, head.map_or(0..0, |(_, lost)| lost.start..range.start));
        let tail = of(tail, tail.map_or(0..0, |(_, lost)| range.end..lost.end));
        let parts = [head, Some((number, range)), tail].into_iter().flatten();
        self.0.splice(first..after, parts);
        while self.0.len() > LOSSES_MAX {
            self.join();
        }
    }

    fn has(&self, range: &Range<usize>, before: u64) -> bool {
        let behind = &self.0[self.first_behind(range.start)..];
        let mut inside = behind.iter().take_while(|(_, lost)| lost.start < range.end);
        inside.any(|(number, _)| *number > before)
    }

    /// The index of the first range that ends behind `at`.
    fn first_behind(&self, at: usize) -> usize {
        self.0.partition_point(|(_, lost)| lost.end <= at)
    }

    /// Joins two neighbours, under the later number. It prefers those that touch, because that
    /// marks no mapped memory as lost, and of these the oldest. Where none touch, it joins the
    /// nearest.
    fn join(&mut self) {
        let gap = |pair: &[(u64, Range<usize>)]| {
            (pair[1].1.start - pair[0].1.end, pair[0].0.max(pair[1].0))
        };
        let pairs = self.0.windows(2).enumerate().map(|(at, pair)| (gap(pair), at));
        if let Some(((_, number), at)) = pairs.min() {
            let (_, second) = self.0.remove(at + 1);
            self.0[at] = (number, self.0[at].1.start..second.end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_told_apart_and_never_forgotten() {
        let losses = Losses::default();
        let lose = |range| losses.add(range, FailedAccess::Reading);
        lose(10..20);
        let then = losses.count();
        lose(30..40);
        assert!(losses.has(&(0..11), 0) && !losses.has(&(0..11), then));
        assert!(losses.has(&(39..50), then) && !losses.has(&(20..30), 0));
        for at in 100..100 + 2 * LOSSES_MAX {
            lose(2 * at..2 * at + 1);
        }
        assert!(losses.has(&(10..11), 0) && losses.has(&(35..36), 0));
        let all = losses.count();
        assert!(!losses.has(&(0..10_000), all));
        assert!(losses.lists.lock().unreadable.0.len() <= LOSSES_MAX);
    }

    #[test]
    fn many_losses_say_nothing_bad_of_what_lies_between_them() {
        const FAR: usize = 1 << 30;
        let losses = Losses::default();
        for at in (0..4 * LOSSES_MAX).map(|number| number * 16) {
            losses.add(at..at + 16, FailedAccess::Reading);
            losses.add(FAR + at..FAR + at + 16, FailedAccess::Writing);
        }
        assert!(losses.has(&(0..1), 0) && losses.has(&(FAR..FAR + 1), 0));
        let end = 4 * LOSSES_MAX * 16;
        assert!(losses.has(&(end - 1..end), 0) && !losses.has(&(end..FAR), 0));
        assert!(!losses.has(&(FAR + end..2 * FAR), 0));
    }

    #[test]
    fn a_second_loss_counts_anew_for_its_range_only() {
        let losses = Losses::default();
        losses.add(10..20, FailedAccess::Reading);
        losses.add(14..16, FailedAccess::Writing);
        assert!(!losses.has_unreadable(&(0..100), 1), "it can be read");
        losses.add(14..16, FailedAccess::Reading);
        assert!(losses.has(&(15..16), 2) && !losses.has(&(10..14), 2) && losses.has(&(10..14), 0));
        assert!(!losses.has(&(16..20), 2) && losses.has(&(16..17), 0) && !losses.has(&(20..30), 0));
        losses.add(12..30, FailedAccess::Reading);
        assert!(losses.has_unreadable(&(19..20), 3) && !losses.has(&(10..12), 3));
        assert!(losses.has(&(10..12), 0) && losses.has(&(29..30), 3));
        assert_eq!(losses.lists.lock().unreadable.0, [(1, 10..12), (4, 12..30)]);
    }

    #[test]
    fn a_buffer_remembers_what_went_and_the_rest_goes_on() {
        crate::prepare_copies();
        let memory = Buffer::zeroed(4 * 4096).unwrap();
        // SAFETY: the memory outlives the buffer, and its last page is only made unreadable.
        let borrowed = unsafe { Buffer::borrowed(memory.as_ptr(), memory.len()) };
        let last = memory.as_ptr().wrapping_add(3 * 4096).cast();
        // SAFETY: a page that belongs to the test.
        assert_eq!(unsafe { libc::mprotect(last, 4096, libc::PROT_NONE) }, 0);
        let mut own = vec![7; 4 * 4096];
        let own = VolatileSlice::from_mut(&mut own);
        let part = |at, len| borrowed.checked(at, len).unwrap();
        assert_eq!(part(0, 3 * 4096).copy_from(own, Site::Inspect), Ok(3 * 4096));
        assert_eq!(borrowed.losses(), 0);
        assert_eq!(part(2 * 4096, 8192).copy_to(own, Site::Inspect), Err(Inaccessible));
        assert_eq!(part(3 * 4096, 1).scan(|_| {}), Err(Inaccessible));
        assert!(borrowed.is_lost(0..2 * 4096 + 1, 0) && !borrowed.is_lost(0..2 * 4096, 0));
        assert!(borrowed.is_lost(3 * 4096..4 * 4096, 1));
        assert!(!borrowed.is_lost(0..4 * 4096, borrowed.losses()));
        let then = borrowed.losses();
        assert_eq!(part(3 * 4096, 1).copy_from(own, Site::Inspect), Err(Inaccessible));
        assert!(borrowed.is_unreadable(3 * 4096..4 * 4096, then));
        // SAFETY: as above.
        assert_eq!(unsafe { libc::mprotect(last, 4096, libc::PROT_READ) }, 0);
        assert_eq!(part(3 * 4096, 4096).to_vec(Site::Inspect), Ok(vec![0; 4096]));
        let then = borrowed.losses();
        assert_eq!(part(3 * 4096, 1).copy_from(own, Site::Inspect), Err(Inaccessible));
        assert!(borrowed.is_lost(3 * 4096..4 * 4096, then));
        assert!(!borrowed.is_unreadable(3 * 4096..4 * 4096, then));
    }
}
