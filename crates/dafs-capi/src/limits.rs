//! Bounds of what a caller can ask for.

/// Handles of one kind that may be open at a time.
pub(crate) const HANDLES_MAX: usize = 1 << 20;

/// The longest string that is taken from a caller, with its end.
pub(crate) const TEXT_BYTES_MAX: usize = 8192;

/// The longest buffer that is made or registered, and the longest single transfer, in bytes.
pub(crate) const MEMORY_BYTES_MAX: usize = 1 << 40;

/// The most completions that one call hands out.
pub(crate) const COMPLETIONS_MAX: usize = 4096;

/// The most transfers in a batch.
pub(crate) const BATCH_TRANSFERS_MAX: usize = 1 << 16;

/// The most ranges, or pieces of memory, in one transfer of a batch.
pub(crate) const BATCH_PIECES_MAX: usize = 1024;

/// The most requests in a chain; a session has credits for fewer.
pub(crate) const CHAIN_STEPS_MAX: usize = 1 << 12;

/// The most names in one change of a fence.
pub(crate) const FENCE_NAMES_MAX: usize = 1024;

/// The most of a file that is read without opening it, in bytes.
pub(crate) const WHOLE_FILE_BYTES_MAX: usize = 64 << 20;
