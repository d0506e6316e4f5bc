//! AES in CBC mode with ciphertext stealing, in place (RFC 3962 5, RFC 8009 5): the variant that always swaps
//! the last two blocks, with an initial vector of zero.
//!
//! Invariants
//! * A text has at least two blocks, the last of which may be shorter. So no single block needs a rule.
//! * Whole blocks are decrypted many at a time. Encryption is a chain.

use super::BLOCK_BYTES;
use aes::cipher::{
    Array, BlockCipherDecrypt, BlockCipherEncrypt, BlockModeDecrypt, BlockModeEncrypt, InnerIvInit,
    IvState, consts::U16,
};
use cbc::{Decryptor, Encryptor};

type Block = Array<u8, U16>;

/// Returns the bytes before the last two blocks of a text of `len` bytes, of at least two blocks.
pub(super) const fn bulk_len(len: usize) -> usize {
    (len.div_ceil(BLOCK_BYTES) - 2) * BLOCK_BYTES
}

fn blocks(bytes: &mut [u8]) -> &mut [Block] {
    let (blocks, rest) = Array::slice_as_chunks_mut(bytes);
    debug_assert!(rest.is_empty(), "whole blocks");
    blocks
}

/// Splits the last two blocks of a text: 17 to 32 bytes.
fn halves(pair: &[u8]) -> (Block, Block, usize) {
    let (first, second) = pair.split_at(BLOCK_BYTES);
    let (mut one, mut two) = (Block::default(), Block::default());
    one.copy_from_slice(first);
    two[..second.len()].copy_from_slice(second);
    (one, two, second.len())
}

fn xor(block: &mut Block, other: &Block) {
    block.iter_mut().zip(other).for_each(|(byte, other)| *byte ^= other);
}

/// A text that is being encrypted.
pub(super) struct Sealing<'a, C: BlockCipherEncrypt<BlockSize = U16>> {
    cipher: &'a C,
    chain: Encryptor<&'a C>,
}

impl<'a, C: BlockCipherEncrypt<BlockSize = U16>> Sealing<'a, C> {
    pub(super) fn new(cipher: &'a C) -> Self {
        Self { cipher, chain: Encryptor::inner_iv_init(cipher, &Block::default()) }
    }

    /// Encrypts whole blocks that are not among the last two.
    pub(super) fn blocks(&mut self, bytes: &mut [u8]) {
        self.chain.encrypt_blocks(blocks(bytes));
    }

    /// Encrypts the last two blocks.
    pub(super) fn pair(self, pair: &mut [u8]) {
        let (mut one, mut two, len) = halves(pair);
        xor(&mut one, &self.chain.iv_state());
        self.cipher.encrypt_block(&mut one);
        xor(&mut two, &one);
        self.cipher.encrypt_block(&mut two);
        pair[..BLOCK_BYTES].copy_from_slice(&two);
        pair[BLOCK_BYTES..].copy_from_slice(&one[..len]);
    }
}

/// A text that is being decrypted.
pub(super) struct Opening<'a, C: BlockCipherDecrypt<BlockSize = U16>> {
    cipher: &'a C,
    chain: Decryptor<&'a C>,
}

impl<'a, C: BlockCipherDecrypt<BlockSize = U16>> Opening<'a, C> {
    pub(super) fn new(cipher: &'a C) -> Self {
        Self { cipher, chain: Decryptor::inner_iv_init(cipher, &Block::default()) }
    }

    /// Decrypts whole blocks that are not among the last two.
    pub(super) fn blocks(&mut self, bytes: &mut [u8]) {
        self.chain.decrypt_blocks(blocks(bytes));
    }

    /// Decrypts the end of the text, of at least two blocks.
    pub(super) fn end(&mut self, bytes: &mut [u8]) {
        let (bulk, pair) = bytes.split_at_mut(bulk_len(bytes.len()));
        self.blocks(bulk);
        let (mut last, mut stolen, len) = halves(pair);
        self.cipher.decrypt_block(&mut last);
        // The last block was padded with zeros, so the cipher text of the block before shows through.
        stolen[len..].copy_from_slice(&last[len..]);
        xor(&mut last, &stolen);
        self.cipher.decrypt_block(&mut stolen);
        xor(&mut stolen, &self.chain.iv_state());
        pair[..BLOCK_BYTES].copy_from_slice(&stolen);
        pair[BLOCK_BYTES..].copy_from_slice(&last[..len]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::hex;
    use aes::cipher::KeyInit;
    use aes::{Aes128Dec, Aes128Enc};

    fn encrypted(key: &[u8], text: &[u8], step: usize) -> Vec<u8> {
        let cipher = Aes128Enc::new_from_slice(key).unwrap();
        let (mut out, mut sealing) = (text.to_vec(), Sealing::new(&cipher));
        let (bulk, pair) = out.split_at_mut(bulk_len(text.len()));
        bulk.chunks_mut(step).for_each(|piece| sealing.blocks(piece));
        sealing.pair(pair);
        out
    }

    fn decrypted(key: &[u8], text: &[u8], step: usize) -> Vec<u8> {
        let cipher = Aes128Dec::new_from_slice(key).unwrap();
        let (mut out, mut opening) = (text.to_vec(), Opening::new(&cipher));
        let cut = bulk_len(text.len()).min(step);
        let (bulk, end) = out.split_at_mut(cut);
        opening.blocks(bulk);
        opening.end(end);
        out
    }

    /// RFC 3962 Appendix B, the vectors of CBC with ciphertext stealing.
    #[test]
    fn ciphertext_stealing_is_that_of_rfc_3962() {
        let key = hex("636869636b656e207465726979616b69");
        let text = b"I would like the General Gau's Chicken, please, and wonton soup.";
        for (len, want) in [
            (17, "c6353568f2bf8cb4d8a580362da7ff7f97"),
            (31, "fc00783e0efdb2c1d445d4c8eff7ed2297687268d6ecccc0c07b25e25ecfe5"),
            (32, "39312523a78662d5be7fcbcc98ebf5a897687268d6ecccc0c07b25e25ecfe584"),
            (
                47,
                "97687268d6ecccc0c07b25e25ecfe584b3fffd940c16a18c1b5549d2f838029e39312523a78662d5be\
                 7fcbcc98ebf5",
            ),
            (
                48,
                "97687268d6ecccc0c07b25e25ecfe5849dad8bbb96c4cdc03bc103e1a194bbd839312523a78662d5be\
                 7fcbcc98ebf5a8",
            ),
            (
                64,
                "97687268d6ecccc0c07b25e25ecfe58439312523a78662d5be7fcbcc98ebf5a84807efe836ee89a526\
                 730dbc2f7bc8409dad8bbb96c4cdc03bc103e1a194bbd8",
            ),
        ] {
            assert_eq!(encrypted(&key, &text[..len], 16), hex(want), "{len}");
            assert_eq!(decrypted(&key, &hex(want), 16), text[..len], "{len}");
        }
    }

    #[test]
    fn pieces_change_nothing() {
        let key = [7; 16];
        for len in 17..=400 {
            let text: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
            let want = encrypted(&key, &text, 16);
            for step in [32, 48, 128, 4096] {
                assert_eq!(encrypted(&key, &text, step), want);
                assert_eq!(decrypted(&key, &want, step), text);
            }
        }
    }
}
