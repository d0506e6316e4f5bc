//! Sizes and times.

use std::time::Duration;

/// The size of a segment, in bytes. A segment grows if its content needs more.
pub const SEGMENT_BYTES: u64 = 16 << 20;

/// The longest record, in bytes.
pub const RECORD_BYTES_MAX: usize = 1 << 20;

/// The longest segment that is read, in bytes. A longer one was not written by this program.
pub(crate) const SEGMENT_READ_BYTES_MAX: u64 = 4 << 30;

/// The longest checkpoint, in bytes of [`record_bytes`](crate::record_bytes). Its segment is
/// replaced when it has grown to twice as much, and can still be read then.
pub const CHECKPOINT_BYTES_MAX: u64 =
    (SEGMENT_READ_BYTES_MAX - SEGMENT_BYTES - RECORD_BYTES_MAX as u64) / 2 - SEGMENT_FRAME_BYTES;

/// The overhead of a segment besides its records, in bytes, and that of rounding in the limit
/// above.
const SEGMENT_FRAME_BYTES: u64 = 4096;

/// Bytes that a buffer for writes may keep allocated between two of them.
pub(crate) const BUFFER_SPARE_BYTES_MAX: usize = 1 << 20;

/// The longest wait for other requests for a sync. Where a sync takes longer than this, enough of
/// them come during the one before.
pub(crate) const PATIENCE_MAX: Duration = Duration::from_micros(200);

/// Checksums that a search for later records may compute, in multiples of the segment's size.
pub(crate) const SEARCH_EFFORT: u64 = 16;

const _: () = assert!((RECORD_BYTES_MAX as u64) < SEGMENT_BYTES / 4);
