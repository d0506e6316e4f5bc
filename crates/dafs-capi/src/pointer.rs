//! Pointers of the caller.
//!
//! Invariants
//! * All code that follows one is here or in `transfer`, with the reason why that is sound.

use crate::error::{DAP_E_FAULT, Failure, invalid};
use crate::limits::{MEMORY_BYTES_MAX, SEEN_PAGES_PER_SET, SEEN_SETS, TEXT_BYTES_MAX};
use std::cell::Cell;
use std::ffi::{c_char, c_void};

const PAGE_BYTES: usize = 4096;

/// No page has this number.
const NO_PAGE: usize = usize::MAX;

/// The numbers of some pages, newest first.
type Pages = [Cell<usize>; SEEN_PAGES_PER_SET];

thread_local! {
    /// Pages in which this thread has placed results, each in the set of its remainder. A check is a
    /// system call, which costs more than many a call. A loop of submissions uses the same pages
    /// again and again: those of its completions, of its operations' names, of its stack.
    static SEEN: [Pages; SEEN_SETS] =
        const { [const { [const { Cell::new(NO_PAGE) }; SEEN_PAGES_PER_SET] }; SEEN_SETS] };
}

/// A place for a result.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// # Safety
    /// `pointer` is null, unmapped, or good for writing one `T`.
    pub(crate) unsafe fn new(pointer: *mut T) -> Result<Self, Failure> {
        if pointer.is_null() {
            return Err(fault(true));
        }
        if !pointer.is_aligned() {
            return Err(invalid("the place for a result is not aligned"));
        }
        // Before any work whose result could not be returned.
        check_place(pointer.cast(), size_of::<T>())?;
        Ok(Self(pointer))
    }

    /// # Safety
    /// As [`new`](Self::new), where null says that the result is not wanted.
    pub(crate) unsafe fn optional(pointer: *mut T) -> Result<Option<Self>, Failure> {
        // SAFETY: as the caller promises.
        if pointer.is_null() { Ok(None) } else { unsafe { Self::new(pointer) }.map(Some) }
    }

    pub(crate) fn set(self, value: T) {
        // SAFETY: `new` found it aligned and writable, and the caller keeps it so.
        unsafe { self.0.write(value) }
    }
}

/// A text of the caller, without its end.
///
/// # Safety
/// `text` is null, unmapped, or ends with a zero that stays there while the result is used.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<&'a [u8], Failure> {
    let start = text as usize;
    let mut len = 0;
    loop {
        let left = PAGE_BYTES - (start + len) % PAGE_BYTES;
        check_read(text.wrapping_add(len).cast(), left)?;
        for _ in 0..left {
            // SAFETY: the page was found to be readable.
            if unsafe { *text.wrapping_add(len) } == 0 {
                // SAFETY: all pages up to here were found to be readable, and the caller keeps them.
                return Ok(unsafe { std::slice::from_raw_parts(text.cast(), len) });
            }
            len += 1;
            if len >= TEXT_BYTES_MAX {
                return Err(invalid("a text is over 8191 bytes long"));
            }
        }
    }
}

/// As [`text`], in UTF-8.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn utf8<'a>(pointer: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: as the caller promises.
    let bytes = unsafe { text(pointer) }?;
    std::str::from_utf8(bytes).map_err(|_| invalid("a text is not UTF-8"))
}

/// As [`utf8`]; null means `None`.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn optional_utf8<'a>(pointer: *const c_char) -> Result<Option<&'a str>, Failure> {
    // SAFETY: as the caller promises.
    if pointer.is_null() { Ok(None) } else { unsafe { utf8(pointer) }.map(Some) }
}

/// `count` values of the caller.
///
/// # Safety
/// `values` is null, unmapped, or good for reading `count` values while the result is used.
pub(crate) unsafe fn array<'a, T: Copy>(
    values: *const T,
    count: usize,
    max: usize,
) -> Result<&'a [T], Failure> {
    if count > max {
        return Err(invalid("there are too many elements in an array"));
    }
    if count == 0 {
        return Ok(&[]);
    }
    if !values.is_aligned() {
        return Err(invalid("an array is not aligned"));
    }
    check_read(values.cast(), count * size_of::<T>())?;
    // SAFETY: found aligned and readable; the caller keeps it, and a `T` of this crate's has no
    // bit patterns that are not allowed.
    Ok(unsafe { std::slice::from_raw_parts(values, count) })
}

pub(crate) fn check_len(len: usize) -> Result<(), Failure> {
    match len {
        0..=MEMORY_BYTES_MAX => Ok(()),
        _ => Err(invalid("a length is over 2^40 bytes")),
    }
}

pub(crate) fn check_read(memory: *const c_void, len: usize) -> Result<(), Failure> {
    check_len(len)?;
    match len == 0 || !memory.is_null() && dafs_client::is_readable(memory.cast(), len) {
        true => Ok(()),
        false => Err(fault(memory.is_null())),
    }
}

pub(crate) fn check_write(memory: *const c_void, len: usize) -> Result<(), Failure> {
    check_len(len)?;
    match len == 0 || !memory.is_null() && dafs_client::is_writable(memory.cast(), len) {
        true => Ok(()),
        false => Err(fault(memory.is_null())),
    }
}

/// As [`check_write`] for small results, whose pages are checked when they are new to the thread.
/// So a wrong pointer is found, but not always one to memory that was good for an earlier result
/// and has been unmapped or made read-only since: such a result ends the program.
pub(crate) fn check_place(memory: *const c_void, len: usize) -> Result<(), Failure> {
    let start = memory as usize;
    let Some(last) = len.checked_sub(1).map(|last| start.saturating_add(last)) else {
        return Ok(());
    };
    let pages = start / PAGE_BYTES..=last / PAGE_BYTES;
    if SEEN.try_with(|seen| pages.clone().all(|page| is_among(seen, page))).unwrap_or(false) {
        return Ok(());
    }
    check_write(memory, len)?;
    // More pages would only replace those of the same place.
    let new = pages.take(SEEN_SETS * SEEN_PAGES_PER_SET);
    let _ = SEEN.try_with(|seen| new.for_each(|page| remember(seen, page)));
    Ok(())
}

fn is_among(seen: &[Pages; SEEN_SETS], page: usize) -> bool {
    seen[page % SEEN_SETS].iter().any(|known| known.get() == page)
}

/// Adds a page in place of the oldest one of its set.
fn remember(seen: &[Pages; SEEN_SETS], page: usize) {
    if !is_among(seen, page) {
        let _oldest = seen[page % SEEN_SETS].iter().fold(page, |new, place| place.replace(new));
    }
}

fn fault(is_null: bool) -> Failure {
    match is_null {
        true => invalid("a pointer is null"),
        false => Failure::new(DAP_E_FAULT, "memory is not mapped, or may not be used like that"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knows(page: usize) -> bool {
        SEEN.with(|seen| is_among(seen, page))
    }

    #[test]
    fn pages_are_remembered_until_newer_ones_of_their_set_take_their_place() {
        let set = |number: usize| 5 + number * SEEN_SETS;
        SEEN.with(|seen| (0..=SEEN_PAGES_PER_SET).for_each(|number| remember(seen, set(number))));
        assert!(!knows(set(0)) && (1..=SEEN_PAGES_PER_SET).all(|number| knows(set(number))));
        // A known page takes no other one's place.
        SEEN.with(|seen| remember(seen, set(1)));
        assert!(knows(set(1)) && knows(set(2)));
        // Nor does a page of another set.
        SEEN.with(|seen| remember(seen, 6));
        assert!(knows(6) && knows(set(2)));
    }

    #[test]
    fn a_place_is_good_when_all_of_its_pages_are() {
        // Two pages, and one that cannot be written.
        let length = 3 * PAGE_BYTES;
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping replaces nothing.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let at = |offset: usize| start.wrapping_byte_add(offset).cast_const();
        // SAFETY: the page is one of the mapping, in which nothing is.
        let done = unsafe { libc::mprotect(at(2 * PAGE_BYTES).cast_mut(), 1, libc::PROT_READ) };
        assert_eq!(done, 0);
        for _ in 0..2 {
            assert!(check_place(at(PAGE_BYTES - 4), 8).is_ok());
            assert!(check_place(at(2 * PAGE_BYTES - 4), 8).is_err());
            assert!(check_place(at(2 * PAGE_BYTES), 1).is_err());
        }
        assert!(check_place(at(0), 0).is_ok() && check_place(at(0), length).is_err());
        assert!(check_place(std::ptr::without_provenance(8), 8).is_err());
        // SAFETY: all of the mapping, which is not used afterwards.
        assert_eq!(unsafe { libc::munmap(start, length) }, 0);
    }
}
