//! Bounds of arguments.

/// Most open handles of one kind.
pub(crate) const HANDLES_MAX: usize = 1 << 20;

/// The longest string of a caller, with its end.
pub(crate) const TEXT_BYTES_MAX: usize = 8192;

/// The longest buffer that can be made or registered, and the longest single transfer, in bytes.
pub(crate) const MEMORY_BYTES_MAX: usize = 1 << 40;

/// A transfer of a mount goes through memory of at most so many bytes.
pub(crate) const MOUNT_PIECE_BYTES: usize = 1 << 20;

/// Most completions that one call returns.
pub(crate) const COMPLETIONS_MAX: usize = 4096;

/// Most transfers in a batch.
pub(crate) const BATCH_TRANSFERS_MAX: usize = 1 << 16;

/// Most ranges, or pieces of memory, in one transfer of a batch.
pub(crate) const BATCH_PIECES_MAX: usize = 1024;

/// Most requests in a chain; a session has credits for fewer.
pub(crate) const CHAIN_STEPS_MAX: usize = 1 << 12;

/// Most names in one change of a fence.
pub(crate) const FENCE_NAMES_MAX: usize = 1024;

/// Most bytes of a file that is read without an open.
pub(crate) const WHOLE_FILE_BYTES_MAX: usize = 64 << 20;

/// Sets of pages for results that a thread remembers as good. Neighbours are in different sets.
pub(crate) const SEEN_SETS: usize = 8;

/// Pages in each of them: enough in all for the names and completions of some hundred operations.
pub(crate) const SEEN_PAGES_PER_SET: usize = 4;
