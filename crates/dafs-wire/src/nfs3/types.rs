//! Types that several procedures share (RFC 1813 2.5 and 2.6).

use super::HANDLE_BYTES_MAX;
use super::field::{numbers, record};
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError, no_such};
use std::fmt;
use std::marker::PhantomData;

/// A file handle: up to [`HANDLE_BYTES_MAX`] bytes that only the server
/// interprets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileHandle<'a>(pub &'a [u8]);

impl<'a> Decode<'a> for FileHandle<'a> {
    #[inline]
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        decoder.opaque(HANDLE_BYTES_MAX).map(Self)
    }
}

impl Encode for FileHandle<'_> {
    #[inline]
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.opaque(self.0);
    }
}

numbers! {
    /// The type of an object (ftype3).
    pub enum FileType {
        Regular = 1,
        Directory = 2,
        BlockDevice = 3,
        CharDevice = 4,
        Symlink = 5,
        Socket = 6,
        Fifo = 7,
    }
}

record! {
    /// A time after 1970 UTC (nfstime3).
    #[derive(Default, PartialOrd, Ord, Hash)]
    pub struct Time {
        /// Seconds.
        pub seconds: u32,
        /// Nanoseconds, below 10^9.
        pub nanoseconds: u32,
    }
}

/// Length of [`Attributes`] on the wire, in bytes.
pub const ATTRIBUTES_BYTES: usize = 84;

/// The attributes of an object (fattr3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// The type of the object.
    pub file_type: FileType,
    /// Permission bits with setuid, setgid and sticky.
    pub mode: u32,
    /// Hard links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
    /// Bytes allocated.
    pub used: u64,
    /// Device numbers (major, minor) of a device file.
    pub device: (u32, u32),
    /// The file system.
    pub file_system: u64,
    /// The number of the object in the file system.
    pub file_id: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the attributes.
    pub ctime: Time,
}

impl Attributes {
    /// The bytes on the wire, built at once, because nearly every reply has attributes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; ATTRIBUTES_BYTES] {
        let mut bytes = [0; ATTRIBUTES_BYTES];
        let words = [
            self.file_type as u32,
            self.mode,
            self.links,
            self.uid,
            self.gid,
            high(self.size),
            low(self.size),
            high(self.used),
            low(self.used),
            self.device.0,
            self.device.1,
            high(self.file_system),
            low(self.file_system),
            high(self.file_id),
            low(self.file_id),
            self.atime.seconds,
            self.atime.nanoseconds,
            self.mtime.seconds,
            self.mtime.nanoseconds,
            self.ctime.seconds,
            self.ctime.nanoseconds,
        ];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }
}

const fn high(value: u64) -> u32 {
    (value >> 32) as u32
}

const fn low(value: u64) -> u32 {
    value as u32
}

impl<'a> Decode<'a> for Attributes {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let number = decoder.u32()?;
        Ok(Self {
            file_type: FileType::from_number(number).ok_or_else(|| no_such("ftype3", number))?,
            mode: decoder.u32()?,
            links: decoder.u32()?,
            uid: decoder.u32()?,
            gid: decoder.u32()?,
            size: decoder.u64()?,
            used: decoder.u64()?,
            device: (decoder.u32()?, decoder.u32()?),
            file_system: decoder.u64()?,
            file_id: decoder.u64()?,
            atime: Time::decode(decoder)?,
            mtime: Time::decode(decoder)?,
            ctime: Time::decode(decoder)?,
        })
    }
}

impl Encode for Attributes {
    #[inline]
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.raw(&self.to_bytes());
    }
}

record! {
    /// The attributes that a client compares to detect changes by others in the meantime
    /// (wcc_attr).
    pub struct WccAttributes {
        /// Length in bytes.
        pub size: u64,
        /// Last change of the content.
        pub mtime: Time,
        /// Last change of the attributes.
        pub ctime: Time,
    }

    /// Attributes before and after an operation (wcc_data).
    #[derive(Default)]
    pub struct WccData {
        /// Before.
        pub before: Option<WccAttributes>,
        /// After.
        pub after: Option<Attributes>,
    }
}

/// A new value for a time (set_atime, set_mtime).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetTime {
    /// Leave it unchanged.
    #[default]
    Keep,
    /// The server's clock.
    ToServer,
    /// The client's value.
    ToClient(Time),
}

impl<'a> Decode<'a> for SetTime {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match decoder.u32()? {
            0 => Ok(Self::Keep),
            1 => Ok(Self::ToServer),
            2 => Time::decode(decoder).map(Self::ToClient),
            other => Err(no_such("time_how", other)),
        }
    }
}

impl Encode for SetTime {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        match self {
            Self::Keep => encoder.u32(0),
            Self::ToServer => encoder.u32(1),
            Self::ToClient(time) => {
                encoder.u32(2);
                time.encode(encoder);
            }
        }
    }
}

record! {
    /// Attributes to change (sattr3); `None` leaves one unchanged.
    #[derive(Default)]
    #[allow(missing_docs, reason = "as in Attributes")]
    pub struct SetAttributes {
        pub mode: Option<u32>,
        pub uid: Option<u32>,
        pub gid: Option<u32>,
        pub size: Option<u64>,
        pub atime: SetTime,
        pub mtime: SetTime,
    }
}

numbers! {
    /// The data that must be on stable storage before the reply to a WRITE (stable_how).
    #[derive(PartialOrd, Ord)]
    pub enum Stability {
        /// None; a later COMMIT makes it stable.
        Unstable = 0,
        /// The data and the metadata that is needed to find it.
        DataSync = 1,
        /// Data and all attributes.
        FileSync = 2,
    }
}

impl<'a> Decode<'a> for Stability {
    #[inline]
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let number = decoder.u32()?;
        Self::from_number(number).ok_or_else(|| no_such("stable_how", number))
    }
}

impl Encode for Stability {
    #[inline]
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.u32(self.number());
    }
}

/// A linked list of XDR: each item after a true, a false at the end. It is validated when decoded,
/// and its items are read later.
pub struct List<'a, T> {
    bytes: &'a [u8],
    items: PhantomData<fn() -> T>,
}

impl<'a, T: Decode<'a>> List<'a, T> {
    /// The items in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let mut decoder = Decoder::new(self.bytes);
        std::iter::from_fn(move || {
            // The list was validated when it was decoded.
            decoder.bool().ok().filter(|more| *more)?;
            T::decode(&mut decoder).ok()
        })
    }
}

impl<T> Clone for List<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for List<'_, T> {}

impl<T> PartialEq for List<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl<T> Eq for List<'_, T> {}

impl<'a, T: Decode<'a> + fmt::Debug> fmt::Debug for List<'a, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for List<'a, T> {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let start = decoder.position();
        while decoder.bool()? {
            T::decode(decoder)?;
        }
        Ok(Self { bytes: decoder.since(start)?, items: PhantomData })
    }
}

impl<T> Encode for List<'_, T> {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.raw(self.bytes);
    }
}
