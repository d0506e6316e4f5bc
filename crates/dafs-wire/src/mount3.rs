//! MOUNT version 3 (RFC 1813 appendix I): the protocol by which a client gets its first file
//! handle.

use crate::nfs3::field::{numbers, record};
use crate::nfs3::{FileHandle, List};
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError, no_such};

/// The RPC program.
pub const PROGRAM: u32 = 100_005;

/// The version of the program.
pub const VERSION: u32 = 3;

/// The longest path, in bytes (MNTPATHLEN).
pub const PATH_BYTES_MAX: usize = 1024;

/// The longest name of a host, in bytes (MNTNAMLEN).
pub const NAME_BYTES_MAX: usize = 255;

/// The most flavors in one MNT result.
const FLAVORS_MAX: usize = 64;

numbers! {
    /// Procedure numbers.
    pub enum Procedure {
        Null = 0, "MOUNT_NULL";
        Mnt = 1, "MOUNT_MNT";
        Dump = 2, "MOUNT_DUMP";
        Umnt = 3, "MOUNT_UMNT";
        UmntAll = 4, "MOUNT_UMNTALL";
        Export = 5, "MOUNT_EXPORT";
    }
}

numbers! {
    /// The status of MNT (mountstat3).
    pub enum Status {
        Ok = 0,
        Perm = 1,
        NoEnt = 2,
        Io = 5,
        Acces = 13,
        NotDir = 20,
        Inval = 22,
        NameTooLong = 63,
        NotSupp = 10004,
        ServerFault = 10006,
    }
}

/// A path for MNT and UMNT, of at most [`PATH_BYTES_MAX`] bytes (dirpath).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path<'a>(pub &'a [u8]);

impl<'a> Decode<'a> for Path<'a> {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        decoder.opaque(PATH_BYTES_MAX).map(Self)
    }
}

impl Encode for Path<'_> {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.opaque(self.0);
    }
}

/// The name of a host or of a group of hosts, of at most [`NAME_BYTES_MAX`] bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostName<'a>(pub &'a [u8]);

impl<'a> Decode<'a> for HostName<'a> {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        decoder.opaque(NAME_BYTES_MAX).map(Self)
    }
}

impl Encode for HostName<'_> {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.opaque(self.0);
    }
}

record! {
    /// An entry of DUMP (mountbody).
    pub struct Mounted<'a> {
        /// The client host.
        pub host: HostName<'a>,
        /// The mounted path.
        pub path: Path<'a>,
    }

    /// An entry of EXPORT (exportnode).
    pub struct Exported<'a> {
        /// The exported path.
        pub path: Path<'a>,
        /// The groups that may mount it; every host if empty.
        pub groups: List<'a, HostName<'a>>,
    }
}

/// Writes the result of a successful MNT.
pub fn encode_mounted(encoder: &mut Encoder<'_>, handle: FileHandle<'_>, flavors: &[u32]) {
    encoder.u32(Status::Ok.number());
    handle.encode(encoder);
    encoder.count(flavors.len());
    flavors.iter().for_each(|&flavor| encoder.u32(flavor));
}

/// Reads the result of MNT: the handle and the flavors that may be used with it.
///
/// # Errors
/// When the bytes are not a result, or more bytes follow.
pub fn decode_mounted(
    bytes: &[u8],
) -> Result<Result<(FileHandle<'_>, Vec<u32>), Status>, XdrError> {
    let mut decoder = Decoder::new(bytes);
    let number = decoder.u32()?;
    let status = Status::from_number(number);
    let result = match status.ok_or_else(|| no_such("mountstat3", number))? {
        Status::Ok => {
            let handle = FileHandle::decode(&mut decoder)?;
            let count = decoder.array_len(FLAVORS_MAX, 4)?;
            let flavors = (0..count).map(|_| decoder.u32()).collect::<Result<_, _>>()?;
            Ok((handle, flavors))
        }
        status => Err(status),
    };
    decoder.finish()?;
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_result_has_a_handle_and_flavours() {
        let mut bytes = Vec::new();
        encode_mounted(&mut Encoder::new(&mut bytes), FileHandle(b"hand"), &[1, 0]);
        assert_eq!(bytes, b"\0\0\0\0\0\0\0\x04hand\0\0\0\x02\0\0\0\x01\0\0\0\0");
        assert_eq!(decode_mounted(&bytes), Ok(Ok((FileHandle(b"hand"), vec![1, 0]))));
        assert_eq!(decode_mounted(&[0, 0, 0, 13]), Ok(Err(Status::Acces)));
        for len in 0..bytes.len() {
            assert!(decode_mounted(&bytes[..len]).is_err(), "{len}");
        }
        assert!(decode_mounted(&[0, 0, 0, 3]).is_err());
        // A list that claims to be longer than the message.
        let mut many = bytes.clone();
        many[12..16].copy_from_slice(&[0xff; 4]);
        assert!(decode_mounted(&many).is_err());
    }

    #[test]
    fn exports_are_lists_of_lists() {
        let bytes = b"\0\0\0\x01\0\0\0\x02/a\0\0\0\0\0\x01\0\0\0\x01g\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\x01/\0\0\0\
            \0\0\0\0\0\0\0\0";
        let mut decoder = Decoder::new(bytes);
        let list = List::<Exported<'_>>::decode(&mut decoder).unwrap();
        assert_eq!(decoder.remaining(), 0);
        let seen: Vec<_> = list
            .iter()
            .map(|e| (e.path.0, e.groups.iter().map(|group| group.0).collect::<Vec<_>>()))
            .collect();
        assert_eq!(seen, [(&b"/a"[..], vec![&b"g"[..]]), (b"/", vec![])]);
    }

    #[test]
    fn paths_and_names_are_bounded() {
        let mut path = 1024u32.to_be_bytes().to_vec();
        path.extend([b'a'; 1028]);
        assert_eq!(Path::decode(&mut Decoder::new(&path)).map(|path| path.0.len()), Ok(1024));
        path[..4].copy_from_slice(&1025u32.to_be_bytes());
        assert!(Path::decode(&mut Decoder::new(&path)).is_err());
        assert!(HostName::decode(&mut Decoder::new(&path)).is_err());
    }

    #[test]
    fn procedures_have_their_numbers() {
        for (number, procedure) in (0..).zip(Procedure::ALL) {
            assert_eq!(Procedure::from_number(number), Some(procedure));
            assert_eq!(procedure.number(), number);
        }
        assert_eq!(Procedure::from_number(6), None);
    }
}
