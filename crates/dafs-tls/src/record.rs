//! The protection of records in user space (RFC 8446 5).
//!
//! rustls' unbuffered connections make a new vector for each record, in both directions. So after
//! the handshake the keys move to this module, as they would move to the kernel. AWS-LC then
//! encrypts into the caller's send block and decrypts in the caller's receive block.
//!
//! Invariants
//! * A record number is used once: it grows before the next record, and a failed direction stays
//!   failed.
//! * Plain bytes leave [`Opener::open`] only when the tag of their record was right.
//! * No more than [`RECORDS_MAX`] records are protected under one key.

use crate::alert::{Alert, Control, ControlError, Judge, content};
use crate::keys::{DirectionKey, IV_BYTES, TrafficKeys};
use crate::limits::{
    BODY_BYTES_MAX, EMPTY_RECORDS_MAX, HEADER_BYTES, OVERHEAD_BYTES, PLAIN_BYTES_MAX, RECORDS_MAX,
    TAG_BYTES,
};
use crate::suite::Suite;
use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use std::fmt;
use thiserror::Error;

/// Both directions of a connection whose records are protected in user space.
#[derive(Debug)]
pub struct Channel {
    /// Protects the records that this end sends.
    pub sealer: Sealer,
    /// Opens the records that come to this end.
    pub opener: Opener,
}

impl Channel {
    /// Takes the keys of a finished handshake.
    pub fn new(keys: TrafficKeys) -> Self {
        let (sealer, opener) = (Sealer::new(&keys.send), Opener::new(&keys));
        Self { sealer, opener }
    }
}

/// Why nothing was sealed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SealError {
    /// The close_notify has been made, and nothing may follow it.
    #[error("the connection is closed for sending")]
    Closed,
    /// AWS-LC failed. This should not happen.
    #[error("the encryption failed")]
    Failed,
    /// The records do not fit the block.
    #[error("the records need {needed_bytes} bytes")]
    NoRoom {
        /// Bytes that the block must have.
        needed_bytes: usize,
    },
    /// As many records as one key may protect have been made.
    #[error("the connection has sent as many records as its key may protect; open a new one")]
    Spent,
}

/// Why a record was not opened. The connection must end.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum OpenError {
    /// The tag is wrong: the record was changed, lost or repeated.
    #[error("a record was changed on its way")]
    Damaged,
    /// Too many records without data came.
    #[error("the peer sent more than 32 records without data")]
    Empty,
    /// An earlier record ended the connection.
    #[error("the connection has ended")]
    Ended,
    /// The header is of no protected record.
    #[error("the peer sent what is no protected record of TLS 1.3")]
    NotTls,
    /// The record is longer than RFC 8446 5.2 allows, or shorter than its own header says.
    #[error("the peer sent a record of a wrong length")]
    Length,
    /// As many records as one key may protect have come.
    #[error("the peer has sent as many records as its key may protect")]
    Spent,
    /// A record that is no data ends the connection.
    #[error(transparent)]
    Control(#[from] ControlError),
}

impl OpenError {
    /// The alert that tells the peer, if there is one to send.
    pub fn alert(self) -> Option<Alert> {
        match self {
            Self::Damaged => Some(Alert::BAD_RECORD_MAC),
            Self::Length => Some(Alert::RECORD_OVERFLOW),
            Self::Empty | Self::NotTls => Some(Alert::UNEXPECTED_MESSAGE),
            Self::Spent => Some(Alert::CLOSE_NOTIFY),
            Self::Control(error) => error.alert(),
            Self::Ended => None,
        }
    }
}

/// The content of a record.
#[derive(Debug, PartialEq, Eq)]
pub enum Opened<'a> {
    /// Data, in the receive block. It is never empty.
    Data(&'a mut [u8]),
    /// Nothing for the caller: a record without data, or a session ticket.
    Nothing,
    /// The peer's close_notify: all that it sent has come.
    Closed,
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With close_notify: complete.
    Closed,
    /// Without close_notify, between records. Data may be missing.
    Cut,
    /// Inside a record.
    CutInRecord,
}

/// The key of one direction as AWS-LC has it, with the counter of its records.
struct Cipher {
    key: LessSafeKey,
    iv: [u8; IV_BYTES],
    sequence: u64,
}

impl Cipher {
    fn new(key: &DirectionKey) -> Self {
        let algorithm = match key.suite() {
            Suite::Aes128 => &AES_128_GCM,
            Suite::Aes256 => &AES_256_GCM,
        };
        // INVARIANT: a suite's key has the length that its algorithm wants.
        let unbound = UnboundKey::new(algorithm, key.key()).expect("a key of the suite's length");
        Self { key: LessSafeKey::new(unbound), iv: key.iv, sequence: key.sequence }
    }

    /// The nonce of the next record (RFC 8446 5.3), counted at once.
    fn next_nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= number;
        }
        self.sequence += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// The header of a protected record with this many bytes behind it (RFC 8446 5.2).
fn header(body_bytes: usize) -> [u8; HEADER_BYTES] {
    debug_assert!(body_bytes <= BODY_BYTES_MAX);
    let [high, low] = (body_bytes as u16).to_be_bytes();
    [content::APPLICATION_DATA, 3, 3, high, low]
}

/// The bytes of the records that carry this much data.
pub const fn sealed_bytes(plain_bytes: usize) -> usize {
    plain_bytes + plain_bytes.div_ceil(PLAIN_BYTES_MAX) * OVERHEAD_BYTES
}

/// Protects the records of one direction.
pub struct Sealer {
    cipher: Cipher,
    state: Sending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Open,
    Closed,
    Failed,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealer({} records, {:?})", self.cipher.sequence, self.state)
    }
}

impl Sealer {
    fn new(key: &DirectionKey) -> Self {
        Self { cipher: Cipher::new(key), state: Sending::Open }
    }

    /// Seals data into records of 16 KiB, the last one shorter, at the start of `out`. The data is
    /// given as chunks that follow each other. Returns the bytes of the records: [`sealed_bytes`].
    ///
    /// A record whose data is in one chunk is encrypted straight into `out`. For any other the
    /// chunks are gathered in `out` first.
    ///
    /// # Errors
    /// [`SealError`]; then nothing was sealed.
    pub fn seal(&mut self, chunks: &[&[u8]], out: &mut [u8]) -> Result<usize, SealError> {
        let plain_bytes = chunks
            .iter()
            .try_fold(0usize, |sum, chunk| sum.checked_add(chunk.len()))
            .filter(|sum| *sum <= isize::MAX as usize / 2)
            .ok_or(SealError::NoRoom { needed_bytes: usize::MAX })?;
        let needed_bytes = sealed_bytes(plain_bytes);
        let records = plain_bytes.div_ceil(PLAIN_BYTES_MAX) as u64;
        self.check(records)?;
        let out = out.get_mut(..needed_bytes).ok_or(SealError::NoRoom { needed_bytes })?;
        let mut chunks = Chunks::new(chunks);
        let (mut rest, mut left) = (out, plain_bytes);
        while left > 0 {
            let here = left.min(PLAIN_BYTES_MAX);
            let (record, behind) = rest.split_at_mut(here + OVERHEAD_BYTES);
            match chunks.whole(here) {
                Some(plain) => self.seal_apart(plain, record)?,
                None => {
                    chunks.gather(&mut record[HEADER_BYTES..HEADER_BYTES + here]);
                    self.seal_record(content::APPLICATION_DATA, record)?;
                }
            }
            (rest, left) = (behind, left - here);
        }
        Ok(needed_bytes)
    }

    /// Seals one record whose data the caller has put into `record` already, behind the place of
    /// the header: a file's data is read there. `record` has [`OVERHEAD_BYTES`] more than the data,
    /// of which there may be up to [`PLAIN_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// [`SealError`]; then nothing was sealed.
    pub fn seal_in_place(&mut self, record: &mut [u8]) -> Result<(), SealError> {
        self.check(1)?;
        let plain_bytes = record.len().checked_sub(OVERHEAD_BYTES);
        if plain_bytes.is_none_or(|bytes| bytes > PLAIN_BYTES_MAX) {
            return Err(SealError::NoRoom { needed_bytes: OVERHEAD_BYTES });
        }
        self.seal_record(content::APPLICATION_DATA, record)
    }

    /// Makes the last record of this direction: close_notify, or the alert for an error (RFC 8446
    /// 6).
    ///
    /// # Errors
    /// [`SealError`].
    pub fn close(&mut self, alert: Alert) -> Result<[u8; OVERHEAD_BYTES + 2], SealError> {
        self.check(1)?;
        let fatal = alert != Alert::CLOSE_NOTIFY;
        let mut record = [0; OVERHEAD_BYTES + 2];
        record[HEADER_BYTES] = 1 + u8::from(fatal);
        record[HEADER_BYTES + 1] = alert.0;
        self.seal_record(content::ALERT, &mut record)?;
        self.state = Sending::Closed;
        Ok(record)
    }

    /// Records that have been made under this key.
    pub fn records(&self) -> u64 {
        self.cipher.sequence
    }

    fn check(&self, records: u64) -> Result<(), SealError> {
        match self.state {
            Sending::Open if records <= RECORDS_MAX.saturating_sub(self.cipher.sequence) => Ok(()),
            Sending::Open => Err(SealError::Spent),
            Sending::Closed => Err(SealError::Closed),
            Sending::Failed => Err(SealError::Failed),
        }
    }

    /// Seals a record in its place. `record` is as in `seal_in_place`.
    fn seal_record(&mut self, kind: u8, record: &mut [u8]) -> Result<(), SealError> {
        let (head, body) = record.split_at_mut(HEADER_BYTES);
        let made = header(body.len());
        head.copy_from_slice(&made);
        let (plain, tail) = body.split_at_mut(body.len() - 1 - TAG_BYTES);
        let nonce = self.cipher.next_nonce();
        let sealed =
            self.cipher.key.seal_in_place_scatter(nonce, Aad::from(made), plain, &[kind], tail);
        self.judge(sealed.is_ok())
    }

    /// Seals data that lies elsewhere.
    fn seal_apart(&mut self, plain: &[u8], record: &mut [u8]) -> Result<(), SealError> {
        let (head, body) = record.split_at_mut(HEADER_BYTES);
        let made = header(body.len());
        head.copy_from_slice(&made);
        let (sealed, tail) = body.split_at_mut(plain.len());
        let nonce = self.cipher.next_nonce();
        let kind = [content::APPLICATION_DATA];
        let key = &self.cipher.key;
        let done =
            key.seal_out_of_place_scatter(nonce, Aad::from(made), plain, sealed, &kind, tail);
        self.judge(done.is_ok())
    }

    fn judge(&mut self, is_sealed: bool) -> Result<(), SealError> {
        if is_sealed {
            return Ok(());
        }
        self.state = Sending::Failed;
        Err(SealError::Failed)
    }
}

/// Takes data from chunks, from front to back.
struct Chunks<'a, 'b> {
    list: &'a [&'b [u8]],
    /// Bytes of the first chunk that are taken already.
    taken: usize,
}

impl<'a, 'b> Chunks<'a, 'b> {
    fn new(list: &'a [&'b [u8]]) -> Self {
        Self { list, taken: 0 }
    }

    /// Skips chunks that are used up.
    fn front(&mut self) -> &'b [u8] {
        while let [first, rest @ ..] = self.list {
            if self.taken < first.len() {
                return &first[self.taken..];
            }
            (self.list, self.taken) = (rest, 0);
        }
        &[]
    }

    /// The next bytes if they are in one chunk.
    fn whole(&mut self, bytes: usize) -> Option<&'b [u8]> {
        let found = self.front().get(..bytes)?;
        self.taken += bytes;
        Some(found)
    }

    /// Copies the next bytes.
    fn gather(&mut self, mut out: &mut [u8]) {
        while !out.is_empty() {
            let front = self.front();
            let bytes = front.len().min(out.len());
            debug_assert!(bytes > 0, "the chunks are as long as their sum");
            let (now, later) = out.split_at_mut(bytes);
            now.copy_from_slice(&front[..bytes]);
            self.taken += bytes;
            out = later;
        }
    }
}

/// Opens the records of one direction.
pub struct Opener {
    cipher: Cipher,
    judge: Judge,
    state: Receiving,
    empty_records: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiving {
    Open,
    Closed,
    Failed,
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opener({} records, {:?})", self.cipher.sequence, self.state)
    }
}

impl Opener {
    fn new(keys: &TrafficKeys) -> Self {
        let (cipher, judge) = (Cipher::new(&keys.receive), Judge::new(keys.side));
        Self { cipher, judge, state: Receiving::Open, empty_records: 0 }
    }

    /// The bytes of the record that begins here, with its header, or none while the header is not
    /// whole. At most [`crate::RECORD_BYTES_MAX`].
    ///
    /// # Errors
    /// [`OpenError::NotTls`], [`OpenError::Length`]: the header cannot be right.
    pub fn record_bytes(received: &[u8]) -> Result<Option<usize>, OpenError> {
        let Some((head, _)) = received.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let [kind, major, minor, high, low] = *head;
        if kind != content::APPLICATION_DATA || (major, minor) != (3, 3) {
            return Err(OpenError::NotTls);
        }
        let body_bytes = usize::from(high) << 8 | usize::from(low);
        match (TAG_BYTES + 1..=BODY_BYTES_MAX).contains(&body_bytes) {
            true => Ok(Some(HEADER_BYTES + body_bytes)),
            false => Err(OpenError::Length),
        }
    }

    /// Opens one whole record in its place. After an error the place has no meaning.
    ///
    /// # Errors
    /// [`OpenError`]; the connection must end, and every later call fails.
    pub fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<Opened<'a>, OpenError> {
        let opened = self.try_open(record);
        self.noted(opened)
    }

    /// The same for a record whose data goes elsewhere: `out` has room for all bytes behind the
    /// header but the tag. Behind the data that this returns, `out` has no meaning; after an error
    /// none of it has.
    ///
    /// # Errors
    /// As [`Self::open`]. [`OpenError::Length`] for an `out` of another length, too.
    pub fn open_apart<'a>(
        &mut self,
        record: &[u8],
        out: &'a mut [u8],
    ) -> Result<Opened<'a>, OpenError> {
        let opened = self.try_open_apart(record, out);
        self.noted(opened)
    }

    fn noted<'a>(
        &mut self,
        opened: Result<Opened<'a>, OpenError>,
    ) -> Result<Opened<'a>, OpenError> {
        match &opened {
            Ok(Opened::Closed) => self.state = Receiving::Closed,
            Ok(_) | Err(OpenError::Ended) => {}
            Err(_) => self.state = Receiving::Failed,
        }
        opened
    }

    /// Checks that one more record may be opened, and that this is a whole one.
    fn check(&self, record: &[u8]) -> Result<(), OpenError> {
        if self.state != Receiving::Open {
            return Err(OpenError::Ended);
        }
        if Self::record_bytes(record)? != Some(record.len()) {
            return Err(OpenError::Length);
        }
        if self.cipher.sequence >= RECORDS_MAX { Err(OpenError::Spent) } else { Ok(()) }
    }

    fn try_open<'a>(&mut self, record: &'a mut [u8]) -> Result<Opened<'a>, OpenError> {
        self.check(record)?;
        let (head, body) = record.split_at_mut(HEADER_BYTES);
        let nonce = self.cipher.next_nonce();
        let inner = self
            .cipher
            .key
            .open_in_place(nonce, Aad::from(&*head), body)
            .map_err(|_| OpenError::Damaged)?;
        self.judged(inner)
    }

    fn try_open_apart<'a>(
        &mut self,
        record: &[u8],
        out: &'a mut [u8],
    ) -> Result<Opened<'a>, OpenError> {
        self.check(record)?;
        let (head, body) = record.split_at(HEADER_BYTES);
        let (sealed, tag) = body.split_at(body.len() - TAG_BYTES);
        if out.len() != sealed.len() {
            return Err(OpenError::Length);
        }
        let nonce = self.cipher.next_nonce();
        self.cipher
            .key
            .open_separate_gather(nonce, Aad::from(head), sealed, tag, out)
            .map_err(|_| OpenError::Damaged)?;
        self.judged(out)
    }

    /// Judges the plain bytes of a record, with its content type.
    fn judged<'a>(&mut self, inner: &'a mut [u8]) -> Result<Opened<'a>, OpenError> {
        // Zeros may stand behind the content type, as padding (RFC 8446 5.4).
        let end = inner.iter().rposition(|byte| *byte != 0).ok_or(OpenError::NotTls)?;
        if end > PLAIN_BYTES_MAX {
            return Err(OpenError::Length);
        }
        let (plain, tail) = inner.split_at_mut(end);
        if tail[0] == content::APPLICATION_DATA && !plain.is_empty() {
            self.empty_records = 0;
            return Ok(Opened::Data(plain));
        }
        self.empty_records += 1;
        if self.empty_records > EMPTY_RECORDS_MAX {
            return Err(OpenError::Empty);
        }
        if tail[0] == content::APPLICATION_DATA {
            return Ok(Opened::Nothing);
        }
        match self.judge.judge(tail[0], plain)? {
            Control::Ignore => Ok(Opened::Nothing),
            Control::Close => Ok(Opened::Closed),
        }
    }

    /// Records that have been opened under this key.
    pub fn records(&self) -> u64 {
        self.cipher.sequence
    }

    /// Judges the end of the stream, with this many bytes of an unfinished record left over. Only
    /// [`End::Closed`] shows that nothing is missing (RFC 8446 6.1).
    pub fn end(&self, bytes_left: usize) -> End {
        match (self.state, bytes_left) {
            (Receiving::Closed, _) => End::Closed,
            (_, 0) => End::Cut,
            _ => End::CutInRecord,
        }
    }
}

#[cfg(test)]
mod tests;
