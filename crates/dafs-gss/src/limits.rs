//! All limits of this crate.

/// The longest token of context establishment, in bytes. Tickets with a PAC take up to 60 KiB.
pub const TOKEN_BYTES_MAX: usize = 64 * 1024;

/// The longest exported name of a principal, in bytes.
pub const NAME_BYTES_MAX: usize = 4096;

/// The longest channel bindings, in bytes (RFC 5056 has a prefix and a digest or an exporter value).
pub const BINDINGS_BYTES_MAX: usize = 1024;

/// The contexts that an acceptor establishes at once. Others wait for one of these.
pub(crate) const ACCEPTS_AT_ONCE: usize = 4;

/// The rounds after which a context that is still being established is given up.
pub const ROUNDS_MAX: u8 = 8;

/// The bytes of a message that are read, checked and decrypted before the next ones are read. They stay
/// in the processor's first cache.
pub(crate) const PIECE_BYTES: usize = 4096;
const _: () = assert!(PIECE_BYTES.is_multiple_of(crate::token::BLOCK_BYTES));

/// The bytes of a message that are encrypted and hashed before the next ones. Each step of a chain of
/// cipher blocks waits for the one before, and so does each step of a hash, but neither waits for the
/// other. With short pieces the processor works on both at once.
pub(crate) const SEAL_PIECE_BYTES: usize = 128;
const _: () = assert!(SEAL_PIECE_BYTES.is_multiple_of(crate::token::BLOCK_BYTES));

/// Messages up to this length use less stack.
pub(crate) const SMALL_PIECE_BYTES: usize = 512;

/// The longest text of the library in an error.
pub(crate) const TEXT_BYTES_MAX: usize = 512;

/// The status texts of one error code that are read. The library hands them out one by one.
pub(crate) const TEXTS_MAX: usize = 8;
