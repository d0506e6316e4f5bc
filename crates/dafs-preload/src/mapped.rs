//! Whether a program's memory is there: the kernel says `EFAULT` where it is not, and so does this library.
//!
//! Invariants
//! * Memory that a thread has not used for calls before is looked at before it is used. Looking is a system
//!   call, so what was found good is remembered, and one that is unmapped after that is not noticed: using
//!   it ends the program.

use crate::failure::{Errno, Result};
use crate::limits::{LOOKED_AT_BYTES_MAX, PAGE_BYTES};
use std::cell::Cell;
use std::ffi::c_void;

/// Ranges remembered by each thread, for reading and for writing.
const RANGES: usize = 4;

/// Addresses from the first to before the last.
type Range = (usize, usize);

#[derive(Clone, Copy)]
struct Seen {
    ranges: [Range; RANGES],
    next: usize,
}

const NOTHING: Seen = Seen { ranges: [(0, 0); RANGES], next: 0 };

thread_local! {
    static READABLE: Cell<Seen> = const { Cell::new(NOTHING) };
    static WRITABLE: Cell<Seen> = const { Cell::new(NOTHING) };
}

impl Seen {
    fn covers(&self, (first, last): Range) -> bool {
        self.ranges.iter().any(|(from, to)| *from <= first && last <= *to)
    }

    fn note(&mut self, (first, last): Range) {
        let pages = (first - first % PAGE_BYTES, last.next_multiple_of(PAGE_BYTES));
        self.ranges[self.next] = pages;
        self.next = (self.next + 1) % RANGES;
    }
}

/// Looks at the first of `bytes` bytes at `at`, up to [`LOOKED_AT_BYTES_MAX`], as `look` does.
fn check(
    seen: &'static std::thread::LocalKey<Cell<Seen>>,
    at: *const c_void,
    bytes: usize,
    look: fn(*const u8, usize) -> bool,
) -> Result<()> {
    // Looking makes pages out of memory that was only reserved: not more of it than most calls fill.
    let bytes = bytes.min(LOOKED_AT_BYTES_MAX);
    let range = (at as usize, (at as usize).saturating_add(bytes));
    let mut known = seen.try_with(Cell::get).unwrap_or(NOTHING);
    if known.covers(range) {
        return Ok(());
    }
    if at.is_null() || !look(at.cast(), bytes) {
        return Err(Errno(libc::EFAULT));
    }
    known.note(range);
    // A thread that is about to end remembers nothing.
    let _ = seen.try_with(|seen| seen.set(known));
    Ok(())
}

/// Memory that is written from.
///
/// # Errors
/// `EFAULT`
pub(crate) fn check_read(at: *const c_void, bytes: usize) -> Result<()> {
    check(&READABLE, at, bytes, dafs_client::is_readable)
}

/// Memory that is read into.
///
/// # Errors
/// `EFAULT`
pub(crate) fn check_write(at: *const c_void, bytes: usize) -> Result<()> {
    check(&WRITABLE, at, bytes, dafs_client::is_writable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_mapped_is_a_fault() {
        let bad = |at: usize| std::ptr::without_provenance::<c_void>(at);
        for (at, bytes) in [(0, 1), (8, 10), (1 << 46, 4096), (usize::MAX, 2), (usize::MAX - 1, 1)]
        {
            assert_eq!(check_write(bad(at), bytes).unwrap_err().0, libc::EFAULT);
            assert_eq!(check_read(bad(at), bytes).unwrap_err().0, libc::EFAULT);
        }
        let constant = "not to be written";
        let at = constant.as_ptr().cast();
        check_read(at, constant.len()).unwrap();
        assert_eq!(check_write(at, constant.len()).unwrap_err().0, libc::EFAULT);
        let own = [0u8; 3 * PAGE_BYTES];
        for _ in 0..2 * RANGES {
            check_write(own.as_ptr().cast(), own.len()).unwrap();
            check_read(own.as_ptr().cast(), own.len()).unwrap();
        }
        assert_eq!(check_write(at, constant.len()).unwrap_err().0, libc::EFAULT);
    }

    #[test]
    fn a_reserve_is_not_filled() {
        let bytes = 1 << 40;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping touches no memory that there is.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        check_write(at, bytes).unwrap();
        // SAFETY: it is this test's alone.
        unsafe { libc::munmap(at, bytes) };
    }
}
