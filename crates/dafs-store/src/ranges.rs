//! Ranges of files: checks, and simple versions of copying and seeking.

use crate::limits::{COPY_BUFFER_BYTES, COPY_BYTES_MAX, FILE_BYTES_MAX};
use crate::{OpenFile, OpenMode, Result, SeekWhat, Stability, StoreError, Wait};
use dafs_mem::VolatileSlice;

/// Returns the end of a range that is to be allocated or deallocated.
pub fn check_range(offset: u64, len: u64) -> Result<u64> {
    let end = offset.checked_add(len).ok_or(StoreError::Invalid)?;
    match len {
        0 => Err(StoreError::Invalid),
        _ if end > FILE_BYTES_MAX => Err(StoreError::FileTooBig),
        _ => Ok(end),
    }
}

/// Checks a write, and returns the number of its bytes.
pub fn check_write(mode: OpenMode, views: &[VolatileSlice<'_>], offset: u64) -> Result<usize> {
    let wanted: usize = views.iter().map(VolatileSlice::len).sum();
    match offset.checked_add(wanted as u64) {
        _ if !mode.write => Err(StoreError::Access),
        Some(..=FILE_BYTES_MAX) => Ok(wanted),
        _ => Err(StoreError::FileTooBig),
    }
}

/// Checks a change of the size.
pub fn check_size(mode: OpenMode, size: u64) -> Result<()> {
    match size {
        _ if !mode.write => Err(StoreError::Access),
        ..=FILE_BYTES_MAX => Ok(()),
        _ => Err(StoreError::FileTooBig),
    }
}

/// Checks the range of an advice.
pub fn check_advice(offset: u64, len: u64) -> Result<()> {
    if offset.max(len) <= FILE_BYTES_MAX { Ok(()) } else { Err(StoreError::Invalid) }
}

/// Seeks in a file of this size without holes.
pub fn seek_dense(size: u64, offset: u64, what: SeekWhat) -> Result<Option<u64>> {
    match what {
        _ if offset >= size => Err(StoreError::PastEnd),
        SeekWhat::Data => Ok(Some(offset)),
        SeekWhat::Hole => Ok(Some(size)),
    }
}

/// The ranges of a copy from one file to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyRange {
    /// The beginning in the source.
    pub source_offset: u64,
    /// The beginning in the target.
    pub offset: u64,
    /// The number of bytes.
    pub len: u64,
}

impl CopyRange {
    /// Returns the ranges of `len` bytes from an offset of the source to one of the target.
    pub const fn new(source_offset: u64, offset: u64, len: u64) -> Self {
        Self { source_offset, offset, len }
    }

    /// Returns the ranges without their first bytes.
    #[must_use]
    pub const fn after(self, done: u64) -> Self {
        Self::new(self.source_offset + done, self.offset + done, self.len - done)
    }
}

/// Rejects ranges of a copy that no file can have, and those that overlap in one file.
pub fn check_ranges(same_file: bool, range: CopyRange) -> Result<()> {
    let CopyRange { source_offset, offset, len } = range;
    let ends = (source_offset.checked_add(len), offset.checked_add(len));
    let (Some(source_end), Some(end)) = ends else { return Err(StoreError::Invalid) };
    if end > FILE_BYTES_MAX {
        return Err(StoreError::FileTooBig);
    }
    if same_file && source_offset < end && offset < source_end {
        return Err(StoreError::Invalid);
    }
    Ok(())
}

/// Copies the beginning of a range, at most a buffer. 0 at the end of `source`.
pub fn copy_piece(target: &dyn OpenFile, source: &dyn OpenFile, range: CopyRange) -> Result<u64> {
    let CopyRange { source_offset, offset, len } = range;
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(COPY_BUFFER_BYTES);
    let mut buffer = vec![0; len];
    let whole = VolatileSlice::from_mut(&mut buffer);
    let read = source.read_at(&[whole], source_offset, Wait::Allowed)?;
    let Some(part) = whole.slice(0, read).filter(|part| !part.is_empty()) else { return Ok(0) };
    let written = target.write_at(&[part], offset, Stability::Unstable, Wait::Allowed)?;
    Ok(written as u64)
}

/// Copies a range, at most [`COPY_BYTES_MAX`], piece by piece. An error after some progress
/// is left for the next call.
pub fn copy_pieces(target: &dyn OpenFile, source: &dyn OpenFile, range: CopyRange) -> Result<u64> {
    check_ranges(source.id() == target.id(), range)?;
    let len = range.len.min(COPY_BYTES_MAX);
    let mut done = 0;
    while done < len {
        match copy_piece(target, source, CopyRange { len, ..range }.after(done)) {
            Ok(0) => break,
            Ok(copied) => done += copied,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ranges_that_a_file_can_have_are_copied() {
        assert_eq!(check_ranges(false, CopyRange::new(0, 0, 10)), Ok(()));
        assert_eq!(check_ranges(true, CopyRange::new(0, 10, 10)), Ok(()));
        assert_eq!(check_ranges(true, CopyRange::new(10, 0, 10)), Ok(()));
        assert_eq!(check_ranges(true, CopyRange::new(0, 9, 10)), Err(StoreError::Invalid));
        assert_eq!(check_ranges(true, CopyRange::new(9, 0, 10)), Err(StoreError::Invalid));
        assert_eq!(check_ranges(true, CopyRange::new(5, 5, 0)), Ok(()));
        assert_eq!(check_ranges(false, CopyRange::new(u64::MAX, 0, 1)), Err(StoreError::Invalid));
        assert_eq!(
            check_ranges(false, CopyRange::new(0, u64::MAX - 5, 5)),
            Err(StoreError::FileTooBig)
        );
    }
}
