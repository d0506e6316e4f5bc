//! Every fixed limit of this crate.

/// The most plain bytes of a record (RFC 8446 5.1).
pub const PLAIN_BYTES_MAX: usize = 1 << 14;

/// Bytes of a record's header: content type, version, length (RFC 8446 5.1).
pub const HEADER_BYTES: usize = 5;

/// Bytes of the authentication tag of AES-GCM (RFC 5116 5.1).
pub(crate) const TAG_BYTES: usize = 16;

/// Bytes that protection adds to plain data: header, inner content type, tag (RFC 8446 5.2).
pub const OVERHEAD_BYTES: usize = HEADER_BYTES + 1 + TAG_BYTES;

/// The most bytes behind the header of a protected record (RFC 8446 5.2).
pub(crate) const BODY_BYTES_MAX: usize = PLAIN_BYTES_MAX + 256;

/// Bytes of a receive buffer that holds any record.
pub const RECORD_BYTES_MAX: usize = HEADER_BYTES + BODY_BYTES_MAX;

/// Bytes of the peer's whole handshake. A chain of ten large certificates takes a quarter of it.
pub(crate) const HANDSHAKE_BYTES_MAX: usize = 128 << 10;

/// Records of the peer's whole handshake, so that a peer cannot send it byte by byte.
pub(crate) const HANDSHAKE_RECORDS_MAX: u32 = 128;

/// Messages that rustls has made before an error, with the alert.
pub(crate) const LAST_MESSAGES_MAX: usize = 16;

/// Certificates of a peer's chain.
pub(crate) const CHAIN_CERTIFICATES_MAX: usize = 16;

/// Records in one direction after which the owner of a connection should end it, at a quiet moment.
/// The limit of AES-GCM is about 2^24.5 (RFC 8446 5.5).
pub const RECORDS_BEFORE_END: u64 = 1 << 23;

/// Records in one direction that are ever protected under one key.
pub const RECORDS_MAX: u64 = 1 << 24;

/// Records without data that may follow each other.
pub(crate) const EMPTY_RECORDS_MAX: u32 = 32;

/// Session tickets that a client ignores on one connection. Servers send two or four.
pub(crate) const TICKETS_MAX: u32 = 16;

/// Bytes of a file with certificates, a key or revocation lists. A system's bundle of authorities
/// has a quarter of it.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 20;

/// Subject names of one certificate. An X.509 certificate of a large site has a hundred.
pub(crate) const NAMES_MAX: usize = 1024;

/// Letters of a distinguished name as text. RFC 5280 A.1 bounds each of its parts by 64 or 128.
pub(crate) const NAME_LETTERS_MAX: usize = 256;

/// Bytes of a user's name in a certificate. A path of mail, which has the same form, has as many (RFC 5321
/// 4.5.3.1.3).
pub(crate) const USER_BYTES_MAX: usize = 256;

/// Days that a certificate of [`crate::pki`] is valid, as public authorities have it.
pub(crate) const CERTIFICATE_DAYS: u64 = 397;

/// Days that an authority of [`crate::pki`] is valid: ten years.
pub(crate) const AUTHORITY_DAYS: u64 = 3653;

/// Seconds by which a new certificate is valid before it is made, because clocks differ.
pub(crate) const CLOCK_SKEW_SECONDS: u64 = 3600;

/// Seconds of a day.
pub(crate) const DAY_SECONDS: u64 = 86_400;

const _: () = {
    assert!(RECORDS_BEFORE_END < RECORDS_MAX);
    assert!(OVERHEAD_BYTES == 22);
    assert!(HANDSHAKE_BYTES_MAX > 2 * RECORD_BYTES_MAX);
};
