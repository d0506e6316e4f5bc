//! Advice about files of a local file system.

use crate::leaving::Leaving;
use crate::limits::{
    COPY_BUFFER_BYTES, FILE_BYTES_MAX, LEAVING_RANGES_MAX, LEAVING_STEP_BYTES, READ_THROUGH_MAX,
    WILL_NEED_BYTES_MAX, WILL_NEED_STEP_BYTES,
};
use crate::ranges::check_advice;
use crate::{Advised, CacheAdvice, OpenFile, Result, Wait};
use dafs_mem::{VolatileSlice, cached_pages};
use rustix::fs::Advice;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

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
            let there = cached_parts(file, within(file, range)?);
            // Data that comes into the cache later is not on the list.
            if there.is_empty() {
                return Ok(Advised::Ignored);
            }
            let mut dropped = Ok(());
            for (other, range) in leaving.leaves_first(key, there) {
                match other == key {
                    true => dropped = dropped.and(drop_now(file, (leaving, key), range)),
                    false => drop_other(other, &range),
                }
            }
            dropped?;
        }
        CacheAdvice::DontNeed => drop_now(file, (leaving, key), within(file, range)?)?,
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

/// Drops a range from the kernel's cache, and lists what is left of it there. Data that is not stable
/// yet stays, and the kernel begins to write it.
///
/// # Errors
/// Those of the file system.
pub fn drop_now<K: Copy + Eq>(
    file: BorrowedFd<'_>,
    (leaving, key): (&Leaving<K>, K),
    range: Range<u64>,
) -> Result<()> {
    let whole = leaving.leaves_now(key, range);
    drop_cached(file, &whole)?;
    leaving.remains(key, &whole, cached_parts(file, whole.clone()));
    Ok(())
}

/// Drops a range from the kernel's cache, as far as it is stable.
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

/// Returns the parts of a range that have pages in the kernel's cache, by the size of large pages;
/// all of the range where the kernel does not tell.
fn cached_parts(file: BorrowedFd<'_>, range: Range<u64>) -> Vec<Range<u64>> {
    /// The number of the file system whose files have their pages in files of another one.
    const OVERLAY: i64 = 0x794c_7630;
    let is_overlay = rustix::fs::fstatfs(file).is_ok_and(|stat| stat.f_type == OVERLAY);
    let is_cached = |range: &Range<u64>| {
        is_overlay || cached_pages(file, range.clone()).map_or(true, |pages| pages > 0)
    };
    let (mut parts, mut halves) = (Vec::new(), vec![range]);
    while let Some(range) = halves.pop() {
        if range.is_empty() || !is_cached(&range) {
            continue;
        }
        let middle =
            (range.start + (range.end - range.start) / 2).next_multiple_of(LEAVING_STEP_BYTES);
        let is_split = range.start < middle && middle < range.end;
        if is_split && parts.len() + halves.len() < LEAVING_RANGES_MAX {
            halves.extend([middle..range.end, range.start..middle]);
        } else {
            parts.push(range);
        }
    }
    parts
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

/// The threads that read through files now.
struct Readers(AtomicUsize);

/// A thread that reads through a file, until this is dropped.
struct Reader<'a>(&'a Readers);

impl Readers {
    /// Admits a reader, unless there are too many.
    fn enter(&self) -> Option<Reader<'_>> {
        let more = |readers| (readers < READ_THROUGH_MAX).then_some(readers + 1);
        let entered = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        entered.is_ok().then(|| Reader(self))
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reads the beginning of a range and drops the data, so that the machines that keep it have it in
/// memory afterwards: for engines without a call for advice. Waits for those machines, and ignores
/// advice while others wait.
///
/// # Errors
/// The file's.
pub fn read_through(file: &dyn OpenFile, offset: u64, len: u64) -> Result<Advised> {
    static READERS: Readers = Readers(AtomicUsize::new(0));
    let Some(_reader) = READERS.enter() else { return Ok(Advised::Ignored) };
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::FileExt as _;

    #[test]
    fn few_read_through_at_a_time() {
        let readers = Readers(AtomicUsize::new(0));
        let mut inside: Vec<_> = (0..READ_THROUGH_MAX).map(|_| readers.enter().unwrap()).collect();
        assert!(readers.enter().is_none());
        assert!(readers.enter().is_none());
        inside.pop();
        assert!(readers.enter().is_some());
    }

    #[test]
    fn only_parts_in_the_cache_are_found() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let long = 1 << 40;
        file.set_len(long).unwrap();
        file.write_all_at(b"here", 5 * LEAVING_STEP_BYTES + 7).unwrap();
        let parts = cached_parts(file.as_fd(), 0..long);
        let at = 5 * LEAVING_STEP_BYTES;
        if cached_pages(file.as_fd(), 0..long).is_ok_and(|pages| pages > 0) {
            assert_eq!(parts.len(), 1);
            assert_eq!(parts[0], at..at + LEAVING_STEP_BYTES);
            assert_eq!(cached_parts(file.as_fd(), at..at + 1)[0], at..at + 1);
        } else {
            println!("SKIPPED: the kernel does not tell");
        }
        assert_eq!(cached_parts(file.as_fd(), 9..9), []);
    }
}
