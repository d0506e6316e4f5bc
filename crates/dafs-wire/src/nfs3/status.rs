//! The status of a procedure.

use super::field::numbers;
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError, no_such};

numbers! {
    /// The status of a procedure (nfsstat3, RFC 1813 2.6).
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
}

impl<'a> Decode<'a> for Status {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let number = decoder.u32()?;
        Self::from_number(number).ok_or_else(|| no_such("nfsstat3", number))
    }
}

impl Encode for Status {
    #[inline]
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.u32(self.number());
    }
}
