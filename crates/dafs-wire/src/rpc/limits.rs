//! Sizes that RFC 5531 fixes.

/// The one version of RPC (RFC 5531 section 8).
pub const RPC_VERSION: u32 = 2;

/// The longest body of a credential or verifier, in bytes (RFC 5531 section 8.2).
pub const AUTH_BODY_BYTES_MAX: usize = 400;

/// The most supplementary groups of AUTH_SYS (RFC 5531 appendix A).
pub const AUTH_SYS_GROUPS_MAX: usize = 16;

/// The longest machine name of AUTH_SYS, in bytes (RFC 5531 appendix A).
pub const AUTH_SYS_MACHINE_BYTES_MAX: usize = 255;

/// The length of a call header with empty credential and verifier, in bytes; the shortest call.
pub const CALL_HEADER_BYTES_MIN: usize = 40;

/// The length of the header of a successful reply with an empty verifier, in bytes.
pub const SUCCESS_HEADER_BYTES: usize = 24;

/// The length of a record mark, in bytes (RFC 5531 section 11).
pub const FRAGMENT_MARK_BYTES: usize = 4;

/// The longest fragment that a mark can announce, in bytes.
pub const FRAGMENT_BYTES_MAX: usize = 0x7fff_ffff;

const _: () = assert!(CALL_HEADER_BYTES_MIN == 10 * 4 && SUCCESS_HEADER_BYTES == 6 * 4);
