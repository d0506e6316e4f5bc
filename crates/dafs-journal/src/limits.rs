//! Sizes and times.

use std::time::Duration;

/// The size of a segment, in bytes. One that must hold more grows.
pub const SEGMENT_BYTES: u64 = 16 << 20;

/// The longest record, in bytes.
pub const RECORD_BYTES_MAX: usize = 1 << 20;

/// The longest segment that is read, in bytes: a longer one was not written by this program.
pub(crate) const SEGMENT_READ_BYTES_MAX: u64 = 4 << 30;

/// The longest checkpoint, in bytes of [`record_bytes`](crate::record_bytes): the segment that it begins
/// can still be read when it is replaced, which is when it has grown to twice as much.
pub const CHECKPOINT_BYTES_MAX: u64 =
    (SEGMENT_READ_BYTES_MAX - SEGMENT_BYTES - RECORD_BYTES_MAX as u64) / 2 - SEGMENT_FRAME_BYTES;

/// What a segment has besides records that mean something, in bytes, and what rounding adds to a record.
const SEGMENT_FRAME_BYTES: u64 = 4096;

/// Bytes that a buffer for writes may keep allocated between two of them.
pub(crate) const BUFFER_SPARE_BYTES_MAX: usize = 1 << 20;

/// The longest wait for others that want a sync as well. Where syncs take longer than this, enough
/// of them come while the one before is under way.
pub(crate) const PATIENCE_MAX: Duration = Duration::from_micros(200);

/// Checksums that a search for later records may compute, in multiples of the segment's size.
pub(crate) const SEARCH_EFFORT: u64 = 16;

const _: () = assert!((RECORD_BYTES_MAX as u64) < SEGMENT_BYTES / 4);
