//! Tokens of a context's messages (RFC 4121) for the encryption types with AES: MICs, and sealed messages.
//!
//! Invariants
//! * A side takes only tokens of the other side: a token that is sent back is refused.
//! * A sealed message is exactly the data that was sealed. The authenticated copy of the header inside, not the
//!   header that a stranger can change, says where the data ends.
//! * The number of a token is neither checked nor remembered: RPCSEC_GSS wants no detection of replays from its
//!   mechanism (RFC 2203 5.2.2), because it has a window of its own.
//! * Nothing is allocated in proportion to a message.
//! * Keys are erased when they are dropped, are never printed, and cannot be cloned.

mod cts;
mod derive;
mod header;
mod source;
mod suite;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;

pub use crate::enctype::{Enctype, Key, KeyLengthError};
pub use source::{Contiguous, Parts, Source};

use crate::enctype::{CONFOUNDER_BYTES, HEADER_BYTES};
use aes::Aes128Enc;
use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
use header::Direction;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use suite::{CHECKSUM_BYTES_MAX, Messages, Plain};
use zeroize::Zeroizing;

/// The bytes of a block of AES.
pub(crate) const BLOCK_BYTES: usize = 16;

/// The reason why a token is refused, or why none can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The checksum does not fit the message: another key, or a changed token or message.
    #[error("the checksum of the token does not fit the message")]
    Checksum,
    /// The token was sent by this side.
    #[error("the token was made by this side of the context, not by the other")]
    Direction,
    /// The authenticated header inside differs from the header outside.
    #[error("the header of the sealed message was changed on the way")]
    Header,
    /// The bytes are no token of the expected kind.
    #[error("these bytes are no such token of RFC 4121")]
    Malformed,
    /// The output is too short.
    #[error("the output needs room for {needed} bytes")]
    NoRoom {
        /// The bytes that are needed.
        needed: usize,
    },
    /// The data is only signed, where it must be sealed.
    #[error("the message is not sealed")]
    NotSealed,
    /// The token claims another key: the acceptor's subkey, or not that one.
    #[error("the token was made with another key of the context")]
    Subkey,
}

/// The side of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The side that began: a client.
    Initiator,
    /// The side that was asked: a server.
    Acceptor,
}

/// The secret from which the confounders of a context are made, so that each is random for others.
pub struct Seed(Zeroizing<[u8; BLOCK_BYTES]>);

impl Seed {
    /// Takes 16 random bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Asks the system for random bytes.
    ///
    /// # Errors
    /// The system has none.
    pub fn random() -> std::io::Result<Self> {
        let mut seed = Self::from_bytes([0; 16]);
        getrandom::fill(&mut *seed.0).map_err(std::io::Error::other)?;
        Ok(seed)
    }

    /// Returns the confounder of a message, by its number, which is used once.
    fn confounder(&self, sequence: u64) -> [u8; CONFOUNDER_BYTES] {
        let mut block = Array::from(u128::from(sequence).to_be_bytes());
        Aes128Enc::new(&Array::from(*self.0)).encrypt_block(&mut block);
        block.into()
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed")
    }
}

/// The agreement of the two sides of a context, as far as messages depend on it.
#[derive(Debug)]
pub struct Agreed {
    /// The key: the acceptor's subkey if there is one, else the initiator's, else that of the session.
    pub key: Key,
    /// The key is a subkey that the acceptor chose (RFC 4121 4.2.2, bit 2).
    pub acceptor_subkey: bool,
    /// The side that these keys are for.
    pub role: Role,
    /// The number of the first token that this side sends.
    pub sequence: u64,
}

/// The keys of a context: all that its messages need. One `Keys` serves many threads without a lock.
pub struct Keys {
    messages: Box<dyn Messages>,
    enctype: Enctype,
    send: Direction,
    receive: Direction,
    seed: Seed,
    /// The number of the next token.
    sequence: AtomicU64,
}

impl Keys {
    /// Derives the keys of a context (RFC 4121 2).
    pub fn new(agreed: &Agreed, seed: Seed) -> Self {
        let is_acceptor = agreed.role == Role::Acceptor;
        let direction =
            |from_acceptor| Direction { from_acceptor, acceptor_subkey: agreed.acceptor_subkey };
        Self {
            messages: suite::messages(&agreed.key, is_acceptor),
            enctype: agreed.key.enctype(),
            send: direction(is_acceptor),
            receive: direction(!is_acceptor),
            seed,
            sequence: AtomicU64::new(agreed.sequence),
        }
    }

    /// Returns the encryption type, which knows the sizes of tokens.
    pub fn enctype(&self) -> Enctype {
        self.enctype
    }

    /// Takes the number of a token.
    fn next_sequence(&self) -> u64 {
        // Relaxed: each number is taken once, and nothing else depends on the order.
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// Writes a MIC of a message (RFC 4121 4.2.6.1) to the start of `out`, and returns its length:
    /// [`Enctype::mic_len`].
    ///
    /// # Errors
    /// [`TokenError::NoRoom`].
    pub fn mic(&self, mut message: impl Source, out: &mut [u8]) -> Result<usize, TokenError> {
        let len = self.enctype.mic_len();
        let out = out.get_mut(..len).ok_or(TokenError::NoRoom { needed: len })?;
        let header = self.send.mic_header(self.next_sequence());
        let (start, checksum) = out.split_at_mut(HEADER_BYTES);
        start.copy_from_slice(&header);
        self.messages.sign(&mut message, &header, checksum);
        Ok(len)
    }

    /// Checks a MIC that the other side has made of a message.
    ///
    /// # Errors
    /// [`TokenError`]: the message must not be believed.
    pub fn verify_mic(&self, mut message: impl Source, mic: &[u8]) -> Result<(), TokenError> {
        let (header, checksum) = mic.split_first_chunk().ok_or(TokenError::Malformed)?;
        if checksum.len() != self.enctype.checksum_len() {
            return Err(TokenError::Malformed);
        }
        self.receive.check_mic(header)?;
        self.messages.verify(&mut message, header, checksum)
    }

    /// Seals a message (RFC 4121 4.2.6.2) into the start of `out`, and returns the length of the token:
    /// [`Enctype::sealed_len`].
    ///
    /// # Errors
    /// [`TokenError::NoRoom`].
    pub fn seal(&self, mut message: impl Source, out: &mut [u8]) -> Result<usize, TokenError> {
        let len = self.enctype.sealed_len(message.len());
        let out = out.get_mut(..len).ok_or(TokenError::NoRoom { needed: len })?;
        let sequence = self.next_sequence();
        let header = self.send.wrap_header(0, sequence);
        let (start, text) = out.split_at_mut(HEADER_BYTES);
        start.copy_from_slice(&header);
        let confounder = self.seed.confounder(sequence);
        self.messages.seal(Plain { confounder, data: &mut message, header }, text);
        Ok(len)
    }

    /// Opens a message that the other side has sealed. The data is written to the start of `out`, and its length
    /// is returned: at most [`Enctype::opened_len_max`], and exactly that in tokens of all known peers. After an
    /// error `out` holds nothing of the message.
    ///
    /// # Errors
    /// [`TokenError`]: there is no message.
    pub fn open(&self, mut token: impl Contiguous, out: &mut [u8]) -> Result<usize, TokenError> {
        let room = self.enctype.opened_len_max(token.len()).ok_or(TokenError::Malformed)?;
        let mut header = [0; HEADER_BYTES];
        token.read(&mut header);
        let wrap = self.receive.check_wrap(&header)?;
        let len = room.checked_sub(wrap.extra_count).ok_or(TokenError::Malformed)?;
        let out = out.get_mut(..len).ok_or(TokenError::NoRoom { needed: len })?;
        let rotation = wrap.rotation % token.len();
        let (end, start) = token.split(rotation);
        self.messages.open(&mut (start, end), &wrap, out)?;
        Ok(len)
    }

    /// Opens a message in private memory as [`open`](Self::open) does, and passes its data to `write`, in order, in
    /// pieces of a few kilobytes. Returns the length of the data.
    ///
    /// # Errors
    /// [`TokenError`]: there is no message, and what was passed to `write` means nothing. With types 17 and 18
    /// (RFC 3961 5.3) that is known only after the last piece.
    pub fn open_to(&self, token: &[u8], write: &mut dyn FnMut(&[u8])) -> Result<usize, TokenError> {
        let room = self.enctype.opened_len_max(token.len()).ok_or(TokenError::Malformed)?;
        let (header, body) = token.split_first_chunk().ok_or(TokenError::Malformed)?;
        let wrap = self.receive.check_wrap(header)?;
        let len = room.checked_sub(wrap.extra_count).ok_or(TokenError::Malformed)?;
        if wrap.rotation.is_multiple_of(body.len()) {
            self.messages.open_to(body, &wrap, len, write)?;
        } else {
            let mut opened = vec![0; len];
            self.open(token, &mut opened)?;
            write(&opened);
        }
        Ok(len)
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.send.from_acceptor { "acceptor" } else { "initiator" };
        write!(f, "Keys({} of the {side})", self.enctype)
    }
}

/// Reads hexadecimal digits.
#[cfg(test)]
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap() as u8;
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

const _: () = {
    let mut at = 0;
    while at < Enctype::ALL.len() {
        assert!(Enctype::ALL[at].checksum_len() <= CHECKSUM_BYTES_MAX);
        at += 1;
    }
};
