//! Advice about files of a local file system.

use crate::leaving::Leaving;
use crate::limits::{
    COPY_BUFFER_BYTES, FILE_BYTES_MAX, READ_THROUGH_MAX, WILL_NEED_BYTES_MAX, WILL_NEED_STEP_BYTES,
};
use crate::ranges::check_advice;
use crate::{Advised, CacheAdvice, OpenFile, Result, Wait};
use dafs_mem::{Mutex, VolatileSlice, cached_pages};
use rustix::fs::Advice;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// Follows advice about `len` bytes from `offset` (0: to the end of the file) of an open file, whose
/// key in `leaving` is `key`. When a range of another file leaves the cache, `drop_other` drops it.
/// May wait for a device.
///
/// # Errors
/// [`StoreError::Invalid`](crate::StoreError::Invalid) for a range that no file can have, and those
/// of the file system.
pub fn advise_local<K: Copy + Eq>(
    file: BorrowedFd<'_>,
    (offset, len): (u64, u64),
    advice: CacheAdvice,
    (leaving, key): (&Leaving<K>, K),
    drop_other: impl Fn(K, &Range<u64>),
) -> Result<Advised> {
    check_advice(offset, len)?;
    // Linux applies a pattern to the whole descriptor.
    let pattern = |advice| rustix::fs::fadvise(file, 0, None, advice);
    let range = offset..end(offset, len);
    match advice {
        CacheAdvice::Normal => pattern(Advice::Normal)?,
        CacheAdvice::Random => pattern(Advice::Random)?,
        CacheAdvice::Sequential => pattern(Advice::Sequential)?,
        CacheAdvice::Keep => leaving.stays(key, range),
        CacheAdvice::WillNeed => {
            leaving.stays(key, range.clone());
            read_ahead(file, &within(file, range)?)?;
        }
        CacheAdvice::LeaveFirst => {
            let range = within(file, range)?;
            // Data that comes into the cache later is not on the list.
            if cached_pages(file, range.clone()).is_ok_and(|pages| pages == 0) {
                return Ok(Advised::Ignored);
            }
            let mut dropped = Ok(());
            for (other, range) in leaving.leaves_first(key, range) {
                match other == key {
                    true => dropped = dropped.and(drop_cached(file, &range)),
                    false => drop_other(other, &range),
                }
            }
            dropped?;
        }
        CacheAdvice::DontNeed => {
            let whole = leaving.leaves_now(key, within(file, range)?);
            drop_cached(file, &whole)?;
            if cached_pages(file, whole.clone()).is_ok_and(|pages| pages == 0) {
                leaving.has_left(key, &whole);
            }
        }
    }
    Ok(Advised::Followed)
}

/// Returns the end of a range of advice. A length of 0 reaches to the end of any file.
fn end(offset: u64, len: u64) -> u64 {
    let end = if len == 0 { FILE_BYTES_MAX } else { offset.saturating_add(len) };
    end.min(FILE_BYTES_MAX)
}

/// Returns the part of a range that a file has.
fn within(file: BorrowedFd<'_>, range: Range<u64>) -> Result<Range<u64>> {
    let size = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
    let end = range.end.min(size);
    Ok(range.start.min(end)..end)
}

/// Drops a range from the kernel's cache. Data that is not stable yet stays, and the kernel begins to
/// write it.
///
/// # Errors
/// Those of the file system.
pub fn drop_cached(file: BorrowedFd<'_>, range: &Range<u64>) -> Result<()> {
    // For the kernel a length of 0 reaches to the end of the file.
    if let Some(len) = NonZeroU64::new(range.end - range.start) {
        rustix::fs::fadvise(file, range.start, Some(len), Advice::DontNeed)?;
    }
    Ok(())
}

/// Starts to read the beginning of a range ahead.
fn read_ahead(file: BorrowedFd<'_>, range: &Range<u64>) -> Result<()> {
    let end = range.end.min(range.start.saturating_add(WILL_NEED_BYTES_MAX));
    let mut at = range.start;
    while let Some(step) = NonZeroU64::new((end - at).min(WILL_NEED_STEP_BYTES)) {
        rustix::fs::fadvise(file, at, Some(step), Advice::WillNeed)?;
        at += step.get();
    }
    Ok(())
}

/// Reads the beginning of a range and drops the data, so that the machines that keep it have it in
/// memory afterwards: for engines without a call for advice. Waits for those machines, and ignores
/// advice while others wait.
///
/// # Errors
/// The file's.
pub fn read_through(file: &dyn OpenFile, offset: u64, len: u64) -> Result<Advised> {
    static READING: Mutex<usize> = Mutex::new(0);
    struct Turn;
    impl Drop for Turn {
        fn drop(&mut self) {
            *READING.lock() -= 1;
        }
    }
    let turn = {
        let mut reading = READING.lock();
        let is_free = *reading < READ_THROUGH_MAX;
        *reading += usize::from(is_free);
        is_free.then_some(Turn)
    };
    let Some(_turn) = turn else { return Ok(Advised::Ignored) };
    let range = offset..end(offset, len).min(offset.saturating_add(WILL_NEED_BYTES_MAX));
    let mut buffer = vec![0; COPY_BUFFER_BYTES];
    let view = VolatileSlice::from_mut(&mut buffer);
    let mut at = range.start;
    while at < range.end {
        let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
        let Some(part) = view.slice(0, left.min(view.len())) else { break };
        match file.read_at(&[part], at, Wait::Allowed)? {
            0 => break,
            count => at += count as u64,
        }
    }
    Ok(Advised::Followed)
}
