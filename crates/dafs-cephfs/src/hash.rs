//! The hash by which ceph maps objects to placement groups: Robert Jenkins' hash of 1996, which is
//! in the public domain, over three words of 32 bits.

/// The shifts of the three words in the three rounds of a mix. The second of each round is to the
/// left.
const SHIFTS: [[u32; 3]; 3] = [[13, 8, 13], [12, 16, 5], [3, 10, 15]];

const GOLDEN: u32 = 0x9e37_79b9;

fn mix(words: &mut [u32; 3]) {
    for shifts in SHIFTS {
        for (at, shift) in shifts.into_iter().enumerate() {
            let (next, last) = (words[(at + 1) % 3], words[(at + 2) % 3]);
            let shifted = if at == 1 { last << shift } else { last >> shift };
            words[at] = words[at].wrapping_sub(next).wrapping_sub(last) ^ shifted;
        }
    }
}

pub(crate) fn object_hash(name: &[u8]) -> u32 {
    let mut words = [GOLDEN, GOLDEN, 0];
    let mut chunks = name.chunks_exact(12);
    let word =
        |bytes: &[u8]| bytes.iter().rev().fold(0, |word: u32, &byte| word << 8 | u32::from(byte));
    for chunk in &mut chunks {
        for (at, bytes) in chunk.chunks_exact(4).enumerate() {
            words[at] = words[at].wrapping_add(word(bytes));
        }
        mix(&mut words);
    }
    let rest = chunks.remainder();
    let part = |from: usize| &rest[from.min(rest.len())..(from + 4).min(rest.len())];
    words[0] = words[0].wrapping_add(word(part(0)));
    words[1] = words[1].wrapping_add(word(part(4)));
    // The lowest byte of the last word holds the length.
    let len = u32::try_from(name.len()).unwrap_or(u32::MAX);
    words[2] = words[2].wrapping_add(len).wrapping_add(word(part(8)) << 8);
    mix(&mut words);
    words[2]
}

/// Returns the group, of `count`, of a hash. When the count grows, few hashes change their groups.
pub(crate) fn group(hash: u32, count: u32) -> u32 {
    let mask = count.next_power_of_two() - 1;
    if hash & mask < count { hash & mask } else { hash & (mask >> 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_hashes_that_monitors_tell() {
        for (name, hash) in [
            ("a", 0x29ee_c818),
            ("foo", 0x7fc1_f406),
            ("12345678", 0x3720_9781),
            ("abcdefghijk", 0xe52b_8e4c),
            ("abcdefghijkl", 0x0b1b_3ea5),
            ("abcdefghijklm", 0x3122_b031),
            ("100000001fe.00000004", 0xe487_da16),
            ("1fffffffffffffff.0000ffff", 0xc40f_7949),
        ] {
            assert_eq!(object_hash(name.as_bytes()), hash, "{name}");
        }
    }

    #[test]
    fn groups_are_split_as_their_number_grows() {
        for count in [1, 2, 3, 12, 31, 32, 33, 100] {
            for hash in 0..500 {
                let now = group(hash, count);
                assert!(now < count);
                let grown = group(hash, count + 1);
                assert!(grown == now || grown == count, "nothing moves but into the new one");
            }
        }
    }
}
