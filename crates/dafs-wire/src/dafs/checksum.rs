//! The Fletcher-32 checksum of messages and data (DAFS 5.5).
//!
//! Invariants
//! * Words are summed in native order and stored natively; the bytes come out the same in both
//!   orders (DAFS O19).

use super::codec::{Field, Scope, Writer, opaque_bytes};
use super::error::{DecodeError, EncodeError};
use super::limits::CHECKSUM_AT;

opaque_bytes! {
    /// A checksum as its four bytes on the wire: S2, then S1. `ZERO` stands for a missing one.
    Checksum [4];
}

/// The sums of DAFS 5.5 over data that comes in pieces.
#[derive(Debug, Clone, Copy)]
pub struct Fletcher32 {
    sum1: u32,
    sum2: u32,
    /// The first byte of a word whose second byte has not arrived yet.
    odd: Option<u8>,
}

/// Words summed before a reduction. With both sums at most 65535 before, 64-bit accumulators
/// cannot overflow: words * (words + 1) / 2 * 65535 stays below 2^64 by far.
const BLOCK_WORDS: usize = 2048;

/// Lanes of the inner loop, chosen so that the compiler vectorizes it.
const LANES: usize = 16;

impl Default for Fletcher32 {
    fn default() -> Self {
        Self::new()
    }
}

impl Fletcher32 {
    const MODULUS: u64 = 65_535;

    /// The state before the first byte.
    pub const fn new() -> Self {
        Self { sum1: 0x0101, sum2: 0, odd: None }
    }

    /// Adds bytes; pieces may have any length.
    pub fn update(&mut self, mut bytes: &[u8]) {
        if let Some(first) = self.odd.take() {
            match bytes.split_first() {
                Some((second, rest)) => {
                    self.words(&[first, *second]);
                    bytes = rest;
                }
                None => self.odd = Some(first),
            }
        }
        let (even, odd) = bytes.split_at(bytes.len() & !1);
        for block in even.chunks(BLOCK_WORDS * 2) {
            self.words(block);
        }
        if let [last] = odd {
            self.odd = Some(*last);
        }
    }

    /// The checksum of everything added so far; a missing last byte counts as zero.
    pub fn finish(mut self) -> Checksum {
        if let Some(first) = self.odd.take() {
            self.words(&[first, 0]);
        }
        let mut bytes = [0; 4];
        bytes[..2].copy_from_slice(&narrow(self.sum2).to_ne_bytes());
        bytes[2..].copy_from_slice(&narrow(self.sum1).to_ne_bytes());
        Checksum(bytes)
    }

    /// Adds at most [`BLOCK_WORDS`] whole words.
    ///
    /// S2 grows by every prefix sum of the words. Each word counts as often as there are words from
    /// it to the end. The lanes keep plain sums and sums of those sums, so that the loop has no
    /// multiplication by position; the weights are applied once per block.
    fn words(&mut self, block: &[u8]) {
        let mut sums = [0u32; LANES];
        let mut sums_of_sums = [0u32; LANES];
        let (groups, tail) = block.as_chunks::<{ LANES * 2 }>();
        let group_count = groups.len() as u64;
        add_groups(groups, &mut sums, &mut sums_of_sums);
        let words = group_count * LANES as u64;
        let mut sum1 = u64::from(self.sum1);
        let mut sum2 = u64::from(self.sum2) + words * sum1;
        for lane in 0..LANES {
            let sum = u64::from(sums[lane]);
            // A word in group g of n is followed by n - 1 - g whole groups, which sums_of_sums
            // counts, and by the later words of its own group.
            sum2 += u64::from(sums_of_sums[lane]) * LANES as u64 + sum * (LANES - lane) as u64;
            sum1 += sum;
        }
        for word in tail.chunks_exact(2) {
            sum1 += u64::from(u16::from_ne_bytes([word[0], word[1]]));
            sum2 += sum1;
        }
        self.sum1 = reduce(sum1);
        self.sum2 = reduce(sum2);
    }
}

/// The inner loop. It is a separate function that stores its results in memory, because the
/// compiler vectorizes it only then.
#[inline(never)]
fn add_groups(
    groups: &[[u8; LANES * 2]],
    sums: &mut [u32; LANES],
    sums_of_sums: &mut [u32; LANES],
) {
    let (mut first, mut second) = (*sums, *sums_of_sums);
    for group in groups {
        for lane in 0..LANES {
            second[lane] += first[lane];
        }
        for lane in 0..LANES {
            first[lane] += u32::from(u16::from_ne_bytes([group[2 * lane], group[2 * lane + 1]]));
        }
    }
    (*sums, *sums_of_sums) = (first, second);
}

/// Reduces a sum by subtracting the modulus while the sum is above it: a non-zero multiple of 65535
/// becomes 65535, not 0.
fn reduce(sum: u64) -> u32 {
    if sum == 0 {
        return 0;
    }
    let rest = (sum - 1) % Fletcher32::MODULUS + 1;
    // INVARIANT: rest is between 1 and 65535.
    rest as u32
}

fn narrow(sum: u32) -> u16 {
    // INVARIANT: reduced sums are at most 65535.
    sum as u16
}

/// The checksum of data in one piece.
pub fn checksum(bytes: &[u8]) -> Checksum {
    let mut sums = Fletcher32::new();
    sums.update(bytes);
    sums.finish()
}

/// The checksum of a whole message, in which the checksum field counts as zero (DAFS O20). A
/// message shorter than a header is summed as a whole.
pub fn message_checksum(message: &[u8]) -> Checksum {
    message_checksum_of(message, &[])
}

/// The checksum of a message whose inline data lies outside of `head` and is gathered after it.
pub fn message_checksum_of(head: &[u8], data: &[u8]) -> Checksum {
    let mut sums = Fletcher32::new();
    match (head.get(..CHECKSUM_AT), head.get(CHECKSUM_AT + 4..)) {
        (Some(before), Some(behind)) => {
            sums.update(before);
            sums.update(&[0; 4]);
            sums.update(behind);
        }
        _ => sums.update(head),
    }
    sums.update(data);
    sums.finish()
}

/// Fills in the checksum of a finished message. A message without a whole header stays unchanged.
pub fn seal(message: &mut [u8]) {
    seal_gathered(message, &[]);
}

/// Fills in the checksum of a finished message whose inline data is gathered after `head`.
pub fn seal_gathered(head: &mut [u8], data: &[u8]) {
    let checksum = message_checksum_of(head, data);
    if let Some(field) = head.get_mut(CHECKSUM_AT..CHECKSUM_AT + 4) {
        field.copy_from_slice(&checksum.0);
    }
}

/// True when the message carries the right checksum.
pub fn verify(message: &[u8]) -> bool {
    match message.get(CHECKSUM_AT..CHECKSUM_AT + 4) {
        Some(field) => field == message_checksum(message).0,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DAFS 5.5 word by word, for comparison.
    fn reference(bytes: &[u8]) -> Checksum {
        let (mut sum1, mut sum2) = (0x0101u32, 0u32);
        for word in bytes.chunks(2) {
            sum1 += u32::from(word[0]) << 8 | word.get(1).copied().map_or(0, u32::from);
            if sum1 > 65_535 {
                sum1 -= 65_535;
            }
            sum2 += sum1;
            if sum2 > 65_535 {
                sum2 -= 65_535;
            }
        }
        let mut stored = [0; 4];
        stored[..2].copy_from_slice(&narrow(sum2).to_be_bytes());
        stored[2..].copy_from_slice(&narrow(sum1).to_be_bytes());
        Checksum(stored)
    }

    #[test]
    fn vectors_of_dafs_5_5() {
        let counting: Vec<u8> = (0..=255).collect();
        for (data, expected) in [
            (&b""[..], 0x0000_0101u32),
            (b"a", 0x6201_6201),
            (b"abcde", 0x52f3_2ac8),
            (b"DAFS", 0xd0d7_8b95),
            (&counting[..16], 0xb0d4_3941),
            (&counting, 0xd5f5_c140),
            (&[0; 4096], 0x0808_0101),
            (&[0xff; 4096], 0x0808_0101),
        ] {
            assert_eq!(checksum(data), Checksum(expected.to_be_bytes()), "{} bytes", data.len());
        }
    }

    #[test]
    fn agrees_with_the_definition_at_every_length_and_split() {
        let data: Vec<u8> = (0..9000u32).map(|at| (at * at / 7 + at) as u8).collect();
        for length in (0..200).chain([4095, 4096, 4097, 8191, 8192, 9000]) {
            let expected = reference(&data[..length]);
            assert_eq!(checksum(&data[..length]), expected, "{length} bytes");
            for split in [0, 1, 2, 31, 33, length / 2, length] {
                let split = split.min(length);
                let mut sums = Fletcher32::new();
                sums.update(&data[..split]);
                sums.update(&[]);
                sums.update(&data[split..length]);
                assert_eq!(sums.finish(), expected, "{length} bytes split at {split}");
            }
        }
        assert_eq!(checksum(&[0xff; 70_001]), reference(&[0xff; 70_001]));
    }

    #[test]
    fn a_sealed_message_verifies_and_a_changed_one_does_not() {
        let mut message: Vec<u8> = (0..100).collect();
        seal(&mut message);
        assert!(verify(&message));
        let (head, data) = message.split_at(64);
        let mut head = head.to_vec();
        head[24..28].fill(0xee);
        seal_gathered(&mut head, data);
        assert_eq!(head[..], message[..64]);
        for at in 0..message.len() {
            message[at] ^= 0x10;
            assert!(!verify(&message), "byte {at}");
            message[at] ^= 0x10;
        }
        assert!(!verify(&message[..20]));
    }
}
