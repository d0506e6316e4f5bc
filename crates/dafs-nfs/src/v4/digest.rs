//! The digest of a request, which distinguishes a retry from another request with the same sequence
//! id (RFC 8881 2.10.6.1.3.1).
//!
//! The tag and the arguments of SEQUENCE are left out, because a client may change them for a
//! retry.
//!
//! Invariants
//! * The digest tells only requests of one principal apart. The slot compares the principals
//!   themselves, so a user that finds a collision gets a reply of its own.

use crate::args::Args;
use crate::limits::DIGEST_WHOLE_BYTES_MAX;
use rustc_hash::FxHasher;
use std::hash::Hasher;

/// Distance and length of the samples in the middle of a large request.
const SAMPLE_EVERY_BYTES: usize = 4096;
const SAMPLE_BYTES: usize = 64;

/// Returns the digest of a request. It covers the minor version, the number of operations, those
/// behind SEQUENCE, and the ends of data that was moved out of them.
pub(super) fn of_request(minor: u32, op_count: u32, operations: &[u8], args: Args<'_>) -> u64 {
    let mut hasher = FxHasher::default();
    args.sample_apart(&mut hasher, SAMPLE_BYTES);
    hasher.write_u32(minor);
    hasher.write_u32(op_count);
    hasher.write_usize(operations.len());
    if operations.len() <= DIGEST_WHOLE_BYTES_MAX {
        hasher.write(operations);
        return hasher.finish();
    }
    let (head, rest) = operations.split_at(DIGEST_WHOLE_BYTES_MAX / 2);
    let (middle, tail) = rest.split_at(rest.len() - DIGEST_WHOLE_BYTES_MAX / 2);
    hasher.write(head);
    hasher.write(tail);
    for piece in middle.chunks(SAMPLE_EVERY_BYTES) {
        hasher.write(&piece[..piece.len().min(SAMPLE_BYTES)]);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_request(minor: u32, op_count: u32, operations: &[u8]) -> u64 {
        super::of_request(minor, op_count, operations, Args::plain(operations))
    }

    #[test]
    fn every_part_counts() {
        let digest = of_request(1, 2, b"some operations!");
        assert_eq!(digest, of_request(1, 2, b"some operations!"));
        assert_ne!(digest, of_request(1, 2, b"some operations?"));
        assert_ne!(digest, of_request(1, 3, b"some operations!"));
        assert_ne!(digest, of_request(2, 2, b"some operations!"));
        assert_ne!(digest, of_request(1, 2, b"some operations!\0"));
    }

    #[test]
    fn large_requests_differ_by_ends_length_and_samples() {
        let whole = vec![7u8; 1 << 20];
        let digest = |bytes: &[u8]| of_request(1, 3, bytes);
        for at in [0, 8191, DIGEST_WHOLE_BYTES_MAX / 2, (1 << 20) - 1] {
            let mut other = whole.clone();
            other[at] ^= 1;
            assert_ne!(digest(&whole), digest(&other), "byte {at}");
        }
        assert_ne!(digest(&whole), digest(&whole[1..]));
    }
}
