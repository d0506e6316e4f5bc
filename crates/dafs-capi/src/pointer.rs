//! Pointers of the caller.
//!
//! Invariants
//! * All code that follows one is here or in `transfer`, with the reason why that is sound.

use crate::error::{DAP_E_FAULT, Failure, invalid};
use crate::limits::{MEMORY_BYTES_MAX, PAGES_SEEN_MAX, TEXT_BYTES_MAX};
use std::cell::Cell;
use std::ffi::{c_char, c_void};

const PAGE_BYTES: usize = 4096;

/// No page has this number.
const NO_PAGE: usize = usize::MAX;

thread_local! {
    /// The numbers of pages in which this thread has placed results, each at its remainder. A check
    /// is a system call, which costs more than many a call. A loop of submissions uses the same
    /// pages again and again: those of its completions, of its operations' names, of its stack.
    static SEEN: [Cell<usize>; PAGES_SEEN_MAX] =
        const { [const { Cell::new(NO_PAGE) }; PAGES_SEEN_MAX] };
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
/// and has been unmapped since.
pub(crate) fn check_place(memory: *const c_void, len: usize) -> Result<(), Failure> {
    let start = memory as usize;
    let Some(last) = len.checked_sub(1).map(|last| start.saturating_add(last)) else {
        return Ok(());
    };
    let pages = start / PAGE_BYTES..=last / PAGE_BYTES;
    let is_seen =
        SEEN.try_with(|seen| pages.clone().all(|page| seen[page % PAGES_SEEN_MAX].get() == page));
    if is_seen.unwrap_or(false) {
        return Ok(());
    }
    check_write(memory, len)?;
    // More pages would only replace those of the same place.
    let _ = SEEN.try_with(|seen| {
        pages.take(PAGES_SEEN_MAX).for_each(|page| seen[page % PAGES_SEEN_MAX].set(page));
    });
    Ok(())
}

fn fault(is_null: bool) -> Failure {
    match is_null {
        true => invalid("a pointer is null"),
        false => Failure::new(DAP_E_FAULT, "memory is not mapped, or may not be used like that"),
    }
}
