//! The status of a procedure.

use super::field::Field;
use super::unknown;
use crate::xdr::{Decoder, Encoder, XdrError};

/// The status of a procedure (nfsstat3, RFC 1813 2.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are those of the RFC")]
pub enum Status {
    Ok = 0,
    Perm = 1,
    NoEnt = 2,
    Io = 5,
    NxIo = 6,
    Acces = 13,
    Exist = 17,
    XDev = 18,
    NoDev = 19,
    NotDir = 20,
    IsDir = 21,
    Inval = 22,
    FBig = 27,
    NoSpc = 28,
    RoFs = 30,
    MLink = 31,
    NameTooLong = 63,
    NotEmpty = 66,
    DQuot = 69,
    Stale = 70,
    Remote = 71,
    BadHandle = 10001,
    NotSync = 10002,
    BadCookie = 10003,
    NotSupp = 10004,
    TooSmall = 10005,
    ServerFault = 10006,
    BadType = 10007,
    Jukebox = 10008,
}

impl Status {
    /// Every status.
    pub const ALL: [Self; 29] = [
        Self::Ok,
        Self::Perm,
        Self::NoEnt,
        Self::Io,
        Self::NxIo,
        Self::Acces,
        Self::Exist,
        Self::XDev,
        Self::NoDev,
        Self::NotDir,
        Self::IsDir,
        Self::Inval,
        Self::FBig,
        Self::NoSpc,
        Self::RoFs,
        Self::MLink,
        Self::NameTooLong,
        Self::NotEmpty,
        Self::DQuot,
        Self::Stale,
        Self::Remote,
        Self::BadHandle,
        Self::NotSync,
        Self::BadCookie,
        Self::NotSupp,
        Self::TooSmall,
        Self::ServerFault,
        Self::BadType,
        Self::Jukebox,
    ];

    /// The number of the status.
    pub const fn number(self) -> u32 {
        self as u32
    }
}

impl<'a> Field<'a> for Status {
    fn read(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let number = decoder.u32()?;
        let found = Self::ALL.into_iter().find(|status| status.number() == number);
        found.ok_or(unknown("nfsstat3", number))
    }

    #[inline]
    fn write(&self, encoder: &mut Encoder<'_>) {
        encoder.u32(self.number());
    }
}
