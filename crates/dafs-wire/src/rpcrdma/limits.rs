//! Sizes that RFC 8166 and RFC 8797 define, and the limit of lists.

/// The one version of the header (RFC 8166 section 4.1).
pub const VERSION: u32 = 1;

/// The longest message, in bytes, for a peer that announced no receive size (RFC 8166 section
/// 3.3.2).
pub const INLINE_BYTES_DEFAULT: usize = 1024;

/// The longest message, in bytes, that private data can announce (RFC 8797 section 4).
pub const INLINE_BYTES_MAX: usize = 256 * INLINE_UNIT_BYTES;

/// The unit of sizes in private data, in bytes.
pub(super) const INLINE_UNIT_BYTES: usize = 1024;

/// The most segments that one header may name, over all its lists. A chunk counts as one too, so
/// that chunks without segments are bounded as well. The protocol has no limit of its own; peers
/// that register memory page by page need 256 for a MiB.
pub const SEGMENTS_MAX: usize = 1024;

/// The length of a segment, in bytes.
pub const SEGMENT_BYTES: usize = 16;

/// The length of a header without chunks, in bytes; no header of a call is shorter.
pub const HEADER_BYTES_MIN: usize = 28;

const _: () = assert!(HEADER_BYTES_MIN == 7 * 4 && SEGMENT_BYTES == 4 + 4 + 8);
const _: () = assert!(INLINE_BYTES_DEFAULT <= INLINE_BYTES_MAX);
