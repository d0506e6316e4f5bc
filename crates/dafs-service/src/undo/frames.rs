//! A file of messages that distinguishes damage from the effects of a crash.
//!
//! All numbers are little-endian. The first sector holds the identity of the file and the number of
//! confirmed frames. Each other sector is a frame: a checksum, and a piece of a message. A message
//! takes whole frames and begins with its length.
//!
//! A message is first made stable, then confirmed, and only then used. No caller waits for the
//! confirmation to become stable: it outlives the process, and the next message makes it stable. So
//! a crash can tear only the last message. After a loss of power, the one before it may also lack
//! its confirmation. A disk writes a sector wholly or not at all: a torn part is missing or zero.
//!
//! The first message is confirmed when the file is used. In place of the count, the first sector
//! can say that the file was discarded: its name may reappear after a loss of power.
//!
//! Invariants
//! * A confirmed message is read back as it was, or the file is refused.
//! * Behind the confirmed ones, a frame that is neither whole nor missing nor zero is damage.

use crc_fast::{CrcAlgorithm, Digest};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

pub(super) const MAGIC: [u8; 8] = *b"dafsundo";
/// Earlier versions had records that could not be distinguished from torn ones.
const VERSION: u32 = 3;
pub(super) const EARLIER_VERSIONS: [u32; 2] = [1, 2];
pub(super) const FRAME_BYTES: usize = 512;
const SUM_BYTES: usize = 4;
const PAYLOAD_BYTES: usize = FRAME_BYTES - SUM_BYTES;
const LENGTH_BYTES: usize = 4;
/// The longest message, in bytes.
pub(super) const MESSAGE_BYTES_MAX: usize = (1 << 20) + 8;

/// In place of the count of confirmed frames: the file is not needed any more.
const DISCARDED: u64 = u64::MAX;

/// The state of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is complete, but its use is not stable yet.
    Made,
    /// It is in use.
    Used,
    /// It is not needed any more.
    Discarded,
}

/// An error in a file.
#[derive(Debug)]
pub(super) enum FrameError {
    Io(io::Error),
    Damaged { at: u64 },
    Version(u32),
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The position of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message {
    /// The number of its first frame.
    first: u64,
    frames: u64,
}

#[derive(Debug)]
pub(super) struct Frames {
    file: File,
    instance: [u8; 16],
    /// The number of frames in whole messages.
    count: u64,
}

/// A checksum over the concatenation of `parts`, for this file and its neighbours.
pub(super) fn sum(parts: &[&[u8]]) -> [u8; SUM_BYTES] {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    // The algorithm has 32 bits, so the conversion loses none.
    (digest.finalize() as u32).to_le_bytes()
}

fn frames_of(message_bytes: usize) -> u64 {
    (LENGTH_BYTES + message_bytes).div_ceil(PAYLOAD_BYTES) as u64
}

/// Returns the position of a frame.
fn place(frame: u64) -> u64 {
    (1 + frame) * FRAME_BYTES as u64
}

pub(super) fn first_sector(instance: &[u8; 16], confirmed: u64) -> [u8; FRAME_BYTES] {
    let mut sector = [0; FRAME_BYTES];
    sector[..8].copy_from_slice(&MAGIC);
    sector[8..12].copy_from_slice(&VERSION.to_le_bytes());
    sector[16..32].copy_from_slice(instance);
    sector[32..40].copy_from_slice(&confirmed.to_le_bytes());
    let sum = sum(&[&sector[..PAYLOAD_BYTES]]);
    sector[PAYLOAD_BYTES..].copy_from_slice(&sum);
    sector
}

/// Returns the identity and the state of a file.
pub(super) fn standing(file: &File) -> Result<([u8; 16], Standing), FrameError> {
    let (instance, confirmed) = read_first(file)?;
    let standing = match confirmed {
        0 => Standing::Made,
        DISCARDED => Standing::Discarded,
        _ => Standing::Used,
    };
    Ok((instance, standing))
}

/// Reads the instance and the number of confirmed frames.
fn read_first(file: &File) -> Result<([u8; 16], u64), FrameError> {
    let mut sector = [0; FRAME_BYTES];
    // A shorter file may be of an earlier version. It cannot be of this one.
    let len = file.metadata()?.len().min(FRAME_BYTES as u64) as usize;
    file.read_exact_at(&mut sector[..len], 0)?;
    let version = u32::from_le_bytes([sector[8], sector[9], sector[10], sector[11]]);
    let (mut instance, mut confirmed) = ([0; 16], [0; 8]);
    instance.copy_from_slice(&sector[16..32]);
    confirmed.copy_from_slice(&sector[32..40]);
    let confirmed = u64::from_le_bytes(confirmed);
    if first_sector(&instance, confirmed) == sector {
        return Ok((instance, confirmed));
    }
    // Earlier versions have a length after the version, this one has zeros.
    let is_earlier = EARLIER_VERSIONS.contains(&version) && sector[12..16] != [0; 4];
    let is_known = is_earlier || version == VERSION + 1;
    match sector[..8] == MAGIC && is_known {
        true => Err(FrameError::Version(version)),
        false => Err(FrameError::Damaged { at: 0 }),
    }
}

impl Frames {
    /// Writes a message into an empty file. All is stable, except for the file's name.
    pub(super) fn create(file: File, instance: [u8; 16], message: &[&[u8]]) -> io::Result<Self> {
        let mut frames = Self { file, instance, count: 0 };
        let (Message { frames: count, .. }, bytes) = frames.encode(message);
        let bytes = [&first_sector(&frames.instance, 0)[..], &bytes].concat();
        frames.file.write_all_at(&bytes, 0)?;
        frames.file.sync_all()?;
        frames.count = count;
        Ok(frames)
    }

    /// The identity of the file.
    pub(super) fn instance(&self) -> [u8; 16] {
        self.instance
    }

    /// Reads a file and cuts off the torn part. Passes each message to `sink`.
    pub(super) fn open(
        file: File,
        sink: &mut dyn FnMut(Message, &[u8]) -> Option<()>,
    ) -> Result<Self, FrameError> {
        let (instance, confirmed) = read_first(&file)?;
        let total = file.metadata()?.len().saturating_sub(FRAME_BYTES as u64);
        let total = total.div_ceil(FRAME_BYTES as u64);
        let mut frames = Self { file, instance, count: 0 };
        while let Some((message, bytes)) = frames.message_at(frames.count)? {
            sink(message, &bytes).ok_or(FrameError::Damaged { at: place(message.first) })?;
            frames.count += message.frames;
        }
        if frames.count < confirmed {
            return Err(FrameError::Damaged { at: place(frames.count) });
        }
        if frames.count < total {
            frames.check_tail(total)?;
            // The next message follows the last whole one.
            frames.file.set_len(place(frames.count))?;
        }
        if frames.count > confirmed {
            frames.confirm()?;
        }
        Ok(frames)
    }

    /// Returns the message at a frame, if it is complete.
    fn message_at(&self, first: u64) -> Result<Option<(Message, Vec<u8>)>, FrameError> {
        let Some(start) = self.payload(Message { first, frames: 1 })? else { return Ok(None) };
        let len = length(&start);
        if len > MESSAGE_BYTES_MAX {
            return Err(FrameError::Damaged { at: place(first) });
        }
        let message = Message { first, frames: frames_of(len) };
        let whole = self.payload(message)?;
        Ok(whole.map(|payload| (message, content(payload))))
    }

    /// Returns the payload of a message's frames. `None` if they are not whole.
    fn payload(&self, message: Message) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; message.frames as usize * FRAME_BYTES];
        match self.file.read_exact_at(&mut bytes, place(message.first)) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let mut payload = Vec::with_capacity(bytes.len());
        for (number, frame) in (message.first..).zip(bytes.chunks_exact(FRAME_BYTES)) {
            let (sum, piece) = frame.split_at(SUM_BYTES);
            if *sum != self.sum(number, piece) {
                return Ok(None);
            }
            payload.extend_from_slice(piece);
        }
        Ok(Some(payload))
    }

    fn sum(&self, number: u64, payload: &[u8]) -> [u8; SUM_BYTES] {
        sum(&[&self.instance, &number.to_le_bytes(), payload])
    }

    /// Checks that the part behind the whole messages can result from a crash.
    fn check_tail(&self, total: u64) -> Result<(), FrameError> {
        if total - self.count > 2 * frames_of(MESSAGE_BYTES_MAX) {
            return Err(FrameError::Damaged { at: place(self.count) });
        }
        for number in self.count..total {
            let mut frame = [0; FRAME_BYTES];
            match self.file.read_exact_at(&mut frame, place(number)) {
                // The file ends within this frame.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => continue,
                read => read?,
            }
            let blank = frame.iter().all(|&byte| byte == 0);
            if !blank && frame[..SUM_BYTES] != self.sum(number, &frame[SUM_BYTES..]) {
                return Err(FrameError::Damaged { at: place(number) });
            }
        }
        Ok(())
    }

    /// The number of frames.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Marks the file as discarded. This is stable on return.
    pub(super) fn discard(&self) -> io::Result<()> {
        self.file.write_all_at(&first_sector(&self.instance, DISCARDED), 0)?;
        self.file.sync_data()
    }

    /// Marks the file as needed again, even after a failed discard.
    pub(super) fn take_back(&self) -> io::Result<()> {
        self.confirm()?;
        self.file.sync_data()
    }

    /// Confirms all whole messages, which are stable.
    pub(super) fn confirm(&self) -> io::Result<()> {
        self.file.write_all_at(&first_sector(&self.instance, self.count), 0)
    }

    /// Adds a message. It is stable on return.
    pub(super) fn append(&mut self, parts: &[&[u8]]) -> io::Result<Message> {
        let (message, bytes) = self.encode(parts);
        self.file.write_all_at(&bytes, place(self.count))?;
        self.file.sync_data()?;
        self.count += message.frames;
        self.confirm()?;
        Ok(message)
    }

    /// Encodes the next message in frames.
    fn encode(&self, parts: &[&[u8]]) -> (Message, Vec<u8>) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        debug_assert!(len <= MESSAGE_BYTES_MAX, "a message of {len} bytes");
        let mut bytes = Vec::with_capacity(LENGTH_BYTES + len);
        bytes.extend((len as u32).to_le_bytes());
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        let message = Message { first: self.count, frames: frames_of(len) };
        let mut frames = Vec::with_capacity(message.frames as usize * FRAME_BYTES);
        for (number, piece) in (self.count..).zip(bytes.chunks(PAYLOAD_BYTES)) {
            let mut payload = [0; PAYLOAD_BYTES];
            payload[..piece.len()].copy_from_slice(piece);
            frames.extend(self.sum(number, &payload));
            frames.extend(payload);
        }
        (message, frames)
    }

    /// Reads a message.
    ///
    /// # Errors
    /// Those of the disk. `InvalidData` when it has changed since.
    pub(super) fn read(&self, message: Message) -> io::Result<Vec<u8>> {
        let payload = self.payload(message)?.ok_or(io::ErrorKind::InvalidData)?;
        Ok(content(payload))
    }
}

/// Returns the length of the message that begins with this payload.
fn length(payload: &[u8]) -> usize {
    payload.first_chunk().map_or(0, |len| u32::from_le_bytes(*len) as usize)
}

/// Returns the message in its payload.
fn content(mut payload: Vec<u8>) -> Vec<u8> {
    let len = length(&payload);
    payload.drain(..LENGTH_BYTES);
    payload.truncate(len);
    payload
}
