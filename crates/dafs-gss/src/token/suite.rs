//! The ciphers and checksums of the four encryption types, behind one trait.
//!
//! Invariants
//! * A checksum is compared in constant time.
//! * Types 19 and 20 decrypt nothing before the checksum is found good. After an error no byte of the plain
//!   text is left in the output.
//! * Data is read once, and written once to the output, where it is encrypted or decrypted in place, a piece at
//!   a time that stays in the first cache. A checksum alone copies nothing.

use super::cts::{Opening, Sealing, bulk_len};
use super::derive::{self, Purpose, usage};
use super::header::Wrap;
use super::source::Source;
use super::{BLOCK_BYTES, TokenError};
use crate::enctype::{CONFOUNDER_BYTES, Enctype, HEADER_BYTES, Key};
use crate::limits::{PIECE_BYTES, SEAL_PIECE_BYTES};
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit, consts::U16};
use aes::{Aes128Dec, Aes128Enc, Aes256Dec, Aes256Enc};
use hmac::{EagerHash, Hmac, Mac};
use std::marker::PhantomData;
use zeroize::ZeroizeOnDrop;

/// The longest checksum, in bytes.
pub(super) const CHECKSUM_BYTES_MAX: usize = 24;

/// A message between its confounder and the copy of its header.
pub(super) struct Plain<'a> {
    pub(super) confounder: [u8; CONFOUNDER_BYTES],
    pub(super) data: &'a mut dyn Source,
    pub(super) header: [u8; HEADER_BYTES],
}

/// The cryptography of one context, for one side.
pub(super) trait Messages: Send + Sync {
    /// Writes the checksum of `len` bytes of data and a header, for a message that this side sends.
    fn sign(&self, data: &mut dyn Source, header: &[u8; HEADER_BYTES], out: &mut [u8]);

    /// Checks the checksum of data and a header that the other side has sent.
    fn verify(
        &self,
        data: &mut dyn Source,
        header: &[u8; HEADER_BYTES],
        checksum: &[u8],
    ) -> Result<(), TokenError>;

    /// Encrypts a message into `out`, which has the exact length, with the checksum at its end.
    fn seal(&self, plain: Plain<'_>, out: &mut [u8]);

    /// Decrypts what follows a header into `out`, which has the length of the data.
    fn open(&self, body: &mut dyn Source, wrap: &Wrap, out: &mut [u8]) -> Result<(), TokenError>;

    /// The same from private memory, with the `len` bytes of data passed to `write` in pieces.
    fn open_to(
        &self,
        body: &[u8],
        wrap: &Wrap,
        len: usize,
        write: &mut dyn FnMut(&[u8]),
    ) -> Result<(), TokenError>;
}

/// The uses of a key in one direction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Uses {
    pub(super) seal: u32,
    pub(super) sign: u32,
}

const ACCEPTOR: Uses = Uses { seal: usage::ACCEPTOR_SEAL, sign: usage::ACCEPTOR_SIGN };
const INITIATOR: Uses = Uses { seal: usage::INITIATOR_SEAL, sign: usage::INITIATOR_SIGN };

/// Derives the keys of a context, for the initiator or for the acceptor.
pub(super) fn messages(key: &Key, is_acceptor: bool) -> Box<dyn Messages> {
    if is_acceptor {
        with_uses(key, ACCEPTOR, INITIATOR)
    } else {
        with_uses(key, INITIATOR, ACCEPTOR)
    }
}

/// Derives keys for a side that sends and receives with these uses.
pub(super) fn with_uses(key: &Key, send: Uses, receive: Uses) -> Box<dyn Messages> {
    use sha1::Sha1;
    use sha2::{Sha256, Sha384};
    type By1<E, D> = Suite<BySha1<E, D>, Sha1>;
    type By2<E, D, H> = Suite<BySha2<E, D, H>, H>;
    match key.enctype() {
        Enctype::Aes128Sha1 => Box::new(By1::<Aes128Enc, Aes128Dec>::new(key, send, receive)),
        Enctype::Aes256Sha1 => Box::new(By1::<Aes256Enc, Aes256Dec>::new(key, send, receive)),
        Enctype::Aes128Sha256 => {
            Box::new(By2::<Aes128Enc, Aes128Dec, Sha256>::new(key, send, receive))
        }
        Enctype::Aes256Sha384 => {
            Box::new(By2::<Aes256Enc, Aes256Dec, Sha384>::new(key, send, receive))
        }
    }
}

/// The differences between the two families of types.
pub(super) trait Family {
    type Enc: BlockCipherEncrypt<BlockSize = U16> + KeyInit + Send + Sync;
    type Dec: BlockCipherDecrypt<BlockSize = U16> + KeyInit + Send + Sync;
    /// The checksum covers the cipher text (RFC 8009 5), not the plain text (RFC 3961 5.3).
    const OVER_CIPHER_TEXT: bool;

    fn derive(key: &Key, usage: u32, purpose: Purpose) -> derive::Derived;

    /// Returns the length of derived keys of checksums, in bytes.
    fn checksum_key_len(enctype: Enctype) -> usize;

    /// Encrypts a part of a message, and has its checksum cover the right text of it.
    fn sealed(mac: &mut impl Mac, part: &mut [u8], encrypt: impl FnOnce(&mut [u8])) {
        if !Self::OVER_CIPHER_TEXT {
            mac.update(part);
        }
        encrypt(part);
        if Self::OVER_CIPHER_TEXT {
            mac.update(part);
        }
    }

    /// Decrypts a part of a message, if that comes before the checksum, which covers it.
    fn opened(mac: &mut impl Mac, part: &mut [u8], decrypt: impl FnOnce(&mut [u8])) {
        if !Self::OVER_CIPHER_TEXT {
            decrypt(part);
        }
        mac.update(part);
    }
}

/// Types 17 and 18.
pub(super) struct BySha1<E, D>(PhantomData<(E, D)>);

/// Types 19 and 20.
pub(super) struct BySha2<E, D, H>(PhantomData<(E, D, H)>);

impl<E, D> Family for BySha1<E, D>
where
    E: BlockCipherEncrypt<BlockSize = U16> + KeyInit + Send + Sync,
    D: BlockCipherDecrypt<BlockSize = U16> + KeyInit + Send + Sync,
{
    type Enc = E;
    type Dec = D;
    const OVER_CIPHER_TEXT: bool = false;

    fn derive(key: &Key, usage: u32, purpose: Purpose) -> derive::Derived {
        derive::by_cipher::<E>(key.bytes(), &derive::constant(usage, purpose))
    }

    fn checksum_key_len(enctype: Enctype) -> usize {
        enctype.key_len()
    }
}

impl<E, D, H> Family for BySha2<E, D, H>
where
    E: BlockCipherEncrypt<BlockSize = U16> + KeyInit + Send + Sync,
    D: BlockCipherDecrypt<BlockSize = U16> + KeyInit + Send + Sync,
    H: EagerHash,
{
    type Enc = E;
    type Dec = D;
    const OVER_CIPHER_TEXT: bool = true;

    fn derive(key: &Key, usage: u32, purpose: Purpose) -> derive::Derived {
        let len = match purpose {
            Purpose::Encrypt => key.enctype().key_len(),
            Purpose::Checksum | Purpose::Integrity => Self::checksum_key_len(key.enctype()),
        };
        derive::by_hmac::<H>(key.bytes(), &derive::constant(usage, purpose), len)
    }

    fn checksum_key_len(enctype: Enctype) -> usize {
        enctype.checksum_len()
    }
}

/// Without the features `zeroize` of these crates, keys would stay in freed memory. An HMAC keeps its key as two
/// states of its hash.
const _: fn() = || {
    fn is_erased<T: ZeroizeOnDrop>() {}
    is_erased::<Aes128Enc>();
    is_erased::<Aes128Dec>();
    is_erased::<Aes256Enc>();
    is_erased::<Aes256Dec>();
    is_erased::<sha1::Sha1>();
    is_erased::<sha2::Sha256>();
    is_erased::<sha2::Sha384>();
};

/// The keys for one direction.
struct Way<C, H: EagerHash> {
    sign: Hmac<H>,
    integrity: Hmac<H>,
    cipher: C,
}

impl<C: KeyInit, H: EagerHash> Way<C, H> {
    fn new<F: Family>(key: &Key, uses: Uses) -> Self {
        let mac = |usage, purpose| {
            let derived = F::derive(key, usage, purpose);
            derive::keyed::<H>(&derived[..F::checksum_key_len(key.enctype())])
        };
        let encrypt = F::derive(key, uses.seal, Purpose::Encrypt);
        // INVARIANT: the slice has the length of the cipher's keys.
        let cipher = C::new_from_slice(&encrypt[..C::key_size()]).expect("a key of its length");
        Self {
            sign: mac(uses.sign, Purpose::Checksum),
            integrity: mac(uses.seal, Purpose::Integrity),
            cipher,
        }
    }
}

struct Suite<F: Family, H: EagerHash> {
    checksum_len: usize,
    send: Way<F::Enc, H>,
    receive: Way<F::Dec, H>,
}

impl<F: Family, H: EagerHash> Suite<F, H> {
    fn new(key: &Key, send: Uses, receive: Uses) -> Self {
        Self {
            checksum_len: key.enctype().checksum_len(),
            send: Way::new::<F>(key, send),
            receive: Way::new::<F>(key, receive),
        }
    }

    /// Returns an HMAC that is ready for the text which the checksum of a sealed message covers.
    fn integrity<C>(way: &Way<C, H>) -> Hmac<H> {
        let mut mac = way.integrity.clone();
        if F::OVER_CIPHER_TEXT {
            // The initial vector belongs to the text (RFC 8009 5).
            mac.update(&[0; BLOCK_BYTES]);
        }
        mac
    }
}

impl<F: Family, H: EagerHash> Suite<F, H> {
    fn open_into(
        &self,
        body: &mut dyn Source,
        wrap: &Wrap,
        out: &mut [u8],
    ) -> Result<(), TokenError> {
        // The text is the confounder, the data, filler and a header. Its first block and all whole blocks of
        // data are decrypted in their place, all others in `rest`: 17 to 32 bytes and the filler.
        let text_len = body.len() - self.checksum_len;
        let bulk = bulk_len(text_len);
        let mut first = [0; CONFOUNDER_BYTES];
        let first = &mut first[..bulk.min(CONFOUNDER_BYTES)];
        let placed = (bulk - first.len()).min(out.len() / BLOCK_BYTES * BLOCK_BYTES);
        let (mut stack, mut heap) = ([0; 2 * BLOCK_BYTES], Vec::new());
        let rest_len = text_len - first.len() - placed;
        let rest = match stack.get_mut(..rest_len) {
            Some(rest) => rest,
            None => {
                heap.resize(rest_len, 0);
                &mut heap[..]
            }
        };

        let mut mac = Self::integrity(&self.receive);
        let mut opening = Opening::new(&self.receive.cipher);
        for region in [&mut *first, &mut out[..placed]] {
            for piece in region.chunks_mut(PIECE_BYTES) {
                body.read(piece);
                F::opened(&mut mac, piece, |piece| opening.blocks(piece));
            }
        }
        body.read(rest);
        F::opened(&mut mac, rest, |rest| opening.end(rest));
        let mut checksum = [0; CHECKSUM_BYTES_MAX];
        body.read(&mut checksum[..self.checksum_len]);
        mac.verify_truncated_left(&checksum[..self.checksum_len])
            .map_err(|_| TokenError::Checksum)?;
        if F::OVER_CIPHER_TEXT {
            opening.blocks(first);
            opening.blocks(&mut out[..placed]);
            opening.end(rest);
        }
        let (data, header) = rest.split_at(rest_len - HEADER_BYTES);
        if header != wrap.inner {
            return Err(TokenError::Header);
        }
        let others = &mut out[placed..];
        others.copy_from_slice(&data[..others.len()]);
        Ok(())
    }
}

impl<F: Family, H: EagerHash> Suite<F, H> {
    /// Decrypts a text piece by piece. The checksum of types 17 and 18 is known only at its end.
    fn stream(
        &self,
        body: &[u8],
        wrap: &Wrap,
        len: usize,
        write: &mut dyn FnMut(&[u8]),
    ) -> Result<(), TokenError> {
        let (text, checksum) = body.split_at(body.len() - self.checksum_len);
        let verified =
            |mac: Hmac<H>| mac.verify_truncated_left(checksum).map_err(|_| TokenError::Checksum);
        let mut mac = Self::integrity(&self.receive);
        if F::OVER_CIPHER_TEXT {
            mac.update(text);
            verified(mac.clone())?;
        }
        let mut opening = Opening::new(&self.receive.cipher);
        let (bulk, pair) = text.split_at(bulk_len(text.len()));
        // The text is the confounder, the data, filler and a header.
        let (mut skip, mut left) = (CONFOUNDER_BYTES, len);
        let mut pass = |plain: &[u8]| {
            let start = skip.min(plain.len());
            let data = &plain[start..plain.len().min(start + left)];
            (skip, left) = (skip - start, left - data.len());
            if !data.is_empty() {
                write(data);
            }
        };
        let mut piece = [0; PIECE_BYTES];
        for part in bulk.chunks(PIECE_BYTES) {
            let piece = &mut piece[..part.len()];
            piece.copy_from_slice(part);
            opening.blocks(piece);
            if !F::OVER_CIPHER_TEXT {
                mac.update(piece);
            }
            pass(piece);
        }
        let mut end = [0; 2 * BLOCK_BYTES];
        let end = &mut end[..pair.len()];
        end.copy_from_slice(pair);
        opening.end(end);
        if !F::OVER_CIPHER_TEXT {
            mac.update(end);
            verified(mac)?;
        }
        let (data, header) = end.split_at(end.len() - HEADER_BYTES);
        if header != wrap.inner {
            return Err(TokenError::Header);
        }
        pass(data);
        Ok(())
    }
}

fn covered<H: EagerHash>(
    mac: &Hmac<H>,
    data: &mut dyn Source,
    header: &[u8; HEADER_BYTES],
) -> Hmac<H> {
    let mut mac = mac.clone();
    let len = data.len();
    data.show(len, &mut |piece| mac.update(piece));
    mac.update(header);
    mac
}

impl<F, H> Messages for Suite<F, H>
where
    F: Family,
    H: EagerHash,
    Hmac<H>: Send + Sync,
{
    fn sign(&self, data: &mut dyn Source, header: &[u8; HEADER_BYTES], out: &mut [u8]) {
        let sum = covered(&self.send.sign, data, header).finalize().into_bytes();
        out.copy_from_slice(&sum[..self.checksum_len]);
    }

    fn verify(
        &self,
        data: &mut dyn Source,
        header: &[u8; HEADER_BYTES],
        checksum: &[u8],
    ) -> Result<(), TokenError> {
        let mac = covered(&self.receive.sign, data, header);
        mac.verify_truncated_left(checksum).map_err(|_| TokenError::Checksum)
    }

    fn seal(&self, plain: Plain<'_>, out: &mut [u8]) {
        let mut mac = Self::integrity(&self.send);
        let (text, checksum) = out.split_at_mut(out.len() - self.checksum_len);
        let (confounder, header) = (plain.confounder, plain.header);
        let mut source = (&confounder[..], (plain.data, &header[..]));
        let mut sealing = Sealing::new(&self.send.cipher);
        let (bulk, pair) = text.split_at_mut(bulk_len(text.len()));
        for piece in bulk.chunks_mut(SEAL_PIECE_BYTES) {
            source.read(piece);
            F::sealed(&mut mac, piece, |piece| sealing.blocks(piece));
        }
        source.read(pair);
        F::sealed(&mut mac, pair, |pair| sealing.pair(pair));
        checksum.copy_from_slice(&mac.finalize().into_bytes()[..self.checksum_len]);
    }

    fn open(&self, body: &mut dyn Source, wrap: &Wrap, out: &mut [u8]) -> Result<(), TokenError> {
        let result = self.open_into(body, wrap, out);
        if result.is_err() {
            out.fill(0);
        }
        result
    }

    fn open_to(
        &self,
        body: &[u8],
        wrap: &Wrap,
        len: usize,
        write: &mut dyn FnMut(&[u8]),
    ) -> Result<(), TokenError> {
        self.stream(body, wrap, len, write)
    }
}
