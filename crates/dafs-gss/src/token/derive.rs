//! Keys that are derived from the key of a context (RFC 3961 5.1 and 5.3, RFC 8009 3 and 5).
//!
//! Invariants
//! * Derived keys are erased when they are dropped.

use aes::cipher::{Array, BlockCipherEncrypt, KeyInit, consts::U16};
use hmac::{EagerHash, Hmac, Mac};
use zeroize::Zeroizing;

/// The longest derived key, in bytes.
pub(super) const DERIVED_BYTES_MAX: usize = 32;

/// A derived key; only its first bytes count.
pub(super) type Derived = Zeroizing<[u8; DERIVED_BYTES_MAX]>;

/// The uses of a key for tokens (RFC 4121 2).
pub(super) mod usage {
    pub(in crate::token) const ACCEPTOR_SEAL: u32 = 22;
    pub(in crate::token) const ACCEPTOR_SIGN: u32 = 23;
    pub(in crate::token) const INITIATOR_SEAL: u32 = 24;
    pub(in crate::token) const INITIATOR_SIGN: u32 = 25;
}

/// The purpose of a derived key within its use (RFC 3961 5.3): the last byte of the constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Checksum = 0x99,
    Encrypt = 0xaa,
    Integrity = 0x55,
}

/// Returns the constant that a derivation begins with.
pub(super) fn constant(usage: u32, purpose: Purpose) -> [u8; 5] {
    let [a, b, c, d] = usage.to_be_bytes();
    [a, b, c, d, purpose as u8]
}

/// Derives a key of `key.len()` bytes by encryption (RFC 3961 5.1, RFC 3962 6).
pub(super) fn by_cipher<C>(key: &[u8], constant: &[u8]) -> Derived
where
    C: BlockCipherEncrypt<BlockSize = U16> + KeyInit,
{
    // INVARIANT: a `Key` has the length that its cipher needs.
    let cipher = C::new_from_slice(key).expect("a key of the cipher's length");
    let mut derived = Derived::default();
    let mut block = Array::from([0; 16]);
    n_fold(constant, &mut block);
    for part in derived[..key.len()].chunks_mut(16) {
        cipher.encrypt_block(&mut block);
        part.copy_from_slice(&block[..part.len()]);
    }
    zeroize::Zeroize::zeroize(block.as_mut_slice());
    derived
}

/// Derives a key of `len` bytes by HMAC in counter mode (RFC 8009 3). `len` is at most the length of the hash.
pub(super) fn by_hmac<D: EagerHash>(key: &[u8], label: &[u8], len: usize) -> Derived {
    let bits = (len as u32) * 8;
    let mut mac = keyed::<D>(key);
    for part in [&1_u32.to_be_bytes()[..], label, &[0], &bits.to_be_bytes()] {
        mac.update(part);
    }
    let mut output = mac.finalize().into_bytes();
    let mut derived = Derived::default();
    derived[..len].copy_from_slice(&output[..len]);
    zeroize::Zeroize::zeroize(output.as_mut_slice());
    derived
}

/// Returns an HMAC with its key set.
pub(super) fn keyed<D: EagerHash>(key: &[u8]) -> Hmac<D> {
    // INVARIANT: HMAC takes keys of any length (RFC 2104 2).
    <Hmac<D> as KeyInit>::new_from_slice(key).expect("any length")
}

/// Stretches or folds bytes to the length of `output` (RFC 3961 5.1): copies of the input, each rotated 13 bits
/// further to the right, are added in ones' complement.
pub(super) fn n_fold(input: &[u8], output: &mut [u8]) {
    let (from, to) = (input.len(), output.len());
    let total = from / gcd(from, to) * to;
    output.fill(0);
    let mut carry = 0;
    // From the last byte to the first, so that a carry goes to the next higher byte. It goes on from the first
    // byte of a summand to the last byte of the next one, which makes the sum one in ones' complement.
    for at in (0..total).rev() {
        let sum = carry + u32::from(rotated(input, at)) + u32::from(output[at % to]);
        (output[at % to], carry) = (sum as u8, sum >> 8);
    }
    let mut at = to;
    while carry > 0 {
        at = if at == 0 { to - 1 } else { at - 1 };
        let sum = carry + u32::from(output[at % to]);
        (output[at % to], carry) = (sum as u8, sum >> 8);
    }
}

/// Returns byte `at` of an endless sequence of copies of `input`, each rotated 13 bits further to the right.
fn rotated(input: &[u8], at: usize) -> u8 {
    let bits = input.len() * 8;
    let shift = (at / input.len() * 13) % bits;
    let start = (at % input.len() * 8 + bits - shift) % bits;
    let (first, second) = (input[start / 8], input[(start / 8 + 1) % input.len()]);
    (u16::from_be_bytes([first, second]) << (start % 8) >> 8) as u8
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::hex;

    /// RFC 3961 A.1.
    #[test]
    fn n_fold_is_that_of_rfc_3961() {
        let rows: [(&[u8], &str); 9] = [
            (b"012345", "be072631276b1955"),
            (b"password", "78a07b6caf85fa"),
            (b"Rough Consensus, and Running Code", "bb6ed30870b7f0e0"),
            (b"password", "59e4a8ca7c0385c3c37b3f6d2000247cb6e6bd5b3e"),
            (
                b"MASSACHVSETTS INSTITVTE OF TECHNOLOGY",
                "db3b0d8f0b061e603282b308a50841229ad798fab9540c1b",
            ),
            (b"Q", "518a54a215a8452a518a54a215a8452a518a54a215"),
            (b"ba", "fb25d531ae8974499f52fd92ea9857c4ba24cf297e"),
            (b"kerberos", "6b65726265726f73"),
            (b"kerberos", "6b65726265726f737b9b5b2b93132b93"),
        ];
        for (input, want) in rows {
            let mut output = vec![0; want.len() / 2];
            n_fold(input, &mut output);
            assert_eq!(output, hex(want), "{}", String::from_utf8_lossy(input));
        }
    }

    /// RFC 8009 Appendix A, "key derivation".
    #[test]
    fn derivation_by_hmac_is_that_of_rfc_8009() {
        let key = hex("3705d96080c17728a0e800eab6e0d23c");
        for (purpose, want) in [
            (Purpose::Checksum, "b31a018a48f54776f403e9a396325dc3"),
            (Purpose::Encrypt, "9b197dd1e8c5609d6e67c3e37c62c72e"),
            (Purpose::Integrity, "9fda0e56ab2d85e1569a688696c26a6c"),
        ] {
            let derived = by_hmac::<sha2::Sha256>(&key, &constant(2, purpose), 16);
            assert_eq!(derived[..16], hex(want));
        }
        let key = hex("6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52");
        for (purpose, want) in [
            (Purpose::Checksum, "ef5718be86cc84963d8bbb5031e9f5c4ba41f28faf69e73d"),
            (Purpose::Encrypt, "56ab22bee63d82d7bc5227f6773f8ea7a5eb1c825160c38312980c442e5c7e49"),
            (Purpose::Integrity, "69b16514e3cd8e56b82010d5c73012b622c4d00ffc23ed1f"),
        ] {
            let want = hex(want);
            let derived = by_hmac::<sha2::Sha384>(&key, &constant(2, purpose), want.len());
            assert_eq!(derived[..want.len()], want);
        }
    }
}
