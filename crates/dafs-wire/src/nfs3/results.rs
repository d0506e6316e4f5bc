//! Results of the procedures, without the status that precedes them (RFC 1813 3.3).

use super::VERIFIER_BYTES;
use super::field::record;
use super::status::Status;
use super::types::{ATTRIBUTES_BYTES, Attributes, FileHandle, List, Stability, Time, WccData};
use crate::xdr::{Decode, Decoder, Encode, Encoder, Payload, XdrError};

/// The failure of a procedure: the status and the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure<F> {
    /// The status; never [`Status::Ok`].
    pub status: Status,
    /// The body after the status.
    pub body: F,
}

/// Writes a success.
#[inline]
pub fn encode_ok<T: Encode>(encoder: &mut Encoder<'_>, body: &T) {
    encoder.u32(Status::Ok.number());
    body.encode(encoder);
}

/// Writes a failure.
#[inline]
pub fn encode_failure<F: Encode>(encoder: &mut Encoder<'_>, status: Status, body: &F) {
    debug_assert!(status != Status::Ok, "a failure without a reason");
    encoder.u32(status.number());
    body.encode(encoder);
}

/// Reads a complete result.
///
/// # Errors
/// When the bytes are not a result, or more bytes follow.
pub fn decode_results<'a, T: Decode<'a>, F: Decode<'a>>(
    bytes: &'a [u8],
) -> Result<Result<T, Failure<F>>, XdrError> {
    read_results(Decoder::new(bytes))
}

/// As [`decode_results`], for results whose data a transport may have moved outside of the message.
///
/// # Errors
/// When the bytes are not a result, or more bytes follow.
pub fn read_results<'a, T: Decode<'a>, F: Decode<'a>>(
    mut decoder: Decoder<'a>,
) -> Result<Result<T, Failure<F>>, XdrError> {
    let result = match Status::decode(&mut decoder)? {
        Status::Ok => Ok(T::decode(&mut decoder)?),
        status => Err(Failure { status, body: F::decode(&mut decoder)? }),
    };
    decoder.finish()?;
    Ok(result)
}

/// A failed GETATTR: no body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NoFailureBody;

impl Decode<'_> for NoFailureBody {
    fn decode(_: &mut Decoder<'_>) -> Result<Self, XdrError> {
        Ok(Self)
    }
}

impl Encode for NoFailureBody {
    fn encode(&self, _: &mut Encoder<'_>) {}
}

record! {
    /// A failure of a procedure that changes no object. These are LOOKUP (of the directory),
    /// ACCESS, READLINK, READ, READDIR, READDIRPLUS, FSSTAT, FSINFO and PATHCONF.
    #[derive(Default)]
    pub struct ObjectFailure {
        /// Attributes of the object.
        pub attributes: Option<Attributes>,
    }

    /// A failure of a procedure that changes one object. These are SETATTR, WRITE, CREATE, MKDIR,
    /// SYMLINK, MKNOD, REMOVE, RMDIR and COMMIT.
    #[derive(Default)]
    pub struct ChangeFailure {
        /// The object, or the directory.
        pub wcc: WccData,
    }
}

/// SETATTR, REMOVE and RMDIR.
pub type WccResult = ChangeFailure;

record! {
    /// GETATTR.
    pub struct GetattrOk {
        /// Attributes of the object.
        pub attributes: Attributes,
    }

    /// LOOKUP.
    pub struct LookupOk<'a> {
        /// The object that has the name.
        pub object: FileHandle<'a>,
        /// Attributes of the object.
        pub attributes: Option<Attributes>,
        /// Attributes of the directory.
        pub dir_attributes: Option<Attributes>,
    }

    /// ACCESS.
    pub struct AccessOk {
        /// Attributes of the object.
        pub attributes: Option<Attributes>,
        /// Bits of [`access`](super::access).
        pub granted: u32,
    }

    /// READLINK.
    pub struct ReadlinkOk<'a> {
        /// Attributes of the symbolic link.
        pub attributes: Option<Attributes>,
        /// The text of the link.
        pub target: Payload<'a>,
    }

    /// READ.
    pub struct ReadOk<'a> {
        /// Attributes of the file.
        pub attributes: Option<Attributes>,
        /// Bytes read, which repeats the length of the data.
        pub count: u32,
        /// True if the last byte read is the last of the file.
        pub eof: bool,
        /// The data.
        pub data: Payload<'a>,
    }
}

/// Length of a successful READ with attributes before its data, including the status.
pub const READ_HEAD_BYTES: usize = 4 + 4 + ATTRIBUTES_BYTES + 4 + 4 + 4;

/// The part of a successful READ with attributes before its data, including the status. Its length
/// is known before its content, so that the data can be read into its place first.
pub fn read_head(attributes: &Attributes, count: u32, eof: bool) -> [u8; READ_HEAD_BYTES] {
    const ATTRIBUTES_AT: usize = 8;
    const COUNT_AT: usize = ATTRIBUTES_AT + ATTRIBUTES_BYTES;
    let mut head = [0; READ_HEAD_BYTES];
    head[4..8].copy_from_slice(&1u32.to_be_bytes());
    head[ATTRIBUTES_AT..COUNT_AT].copy_from_slice(&attributes.to_bytes());
    head[COUNT_AT..COUNT_AT + 4].copy_from_slice(&count.to_be_bytes());
    head[COUNT_AT + 4..COUNT_AT + 8].copy_from_slice(&u32::from(eof).to_be_bytes());
    head[COUNT_AT + 8..].copy_from_slice(&count.to_be_bytes());
    head
}

record! {
    /// WRITE.
    pub struct WriteOk {
        /// The file.
        pub wcc: WccData,
        /// Bytes written.
        pub count: u32,
        /// The stability of the written bytes.
        pub committed: Stability,
        /// The write verifier; it changes when unstable data may have been lost.
        pub verifier: [u8; VERIFIER_BYTES],
    }

    /// CREATE, MKDIR, SYMLINK and MKNOD.
    pub struct CreateOk<'a> {
        /// The object.
        pub object: Option<FileHandle<'a>>,
        /// Attributes of the object.
        pub attributes: Option<Attributes>,
        /// The directory.
        pub dir: WccData,
    }

    /// RENAME, for success and failure.
    #[derive(Default)]
    pub struct RenameResult {
        /// The directory of the old name.
        pub from_dir: WccData,
        /// The directory of the new name.
        pub to_dir: WccData,
    }

    /// LINK, for success and failure.
    #[derive(Default)]
    pub struct LinkResult {
        /// Attributes of the file.
        pub attributes: Option<Attributes>,
        /// The directory.
        pub dir: WccData,
    }

    /// An entry of READDIR (entry3).
    pub struct Entry<'a> {
        /// The number of the object in its file system.
        pub file_id: u64,
        /// The name of the entry.
        pub name: &'a [u8],
        /// The cookie from which the listing continues after this entry.
        pub cookie: u64,
    }

    /// An entry of READDIRPLUS (entryplus3).
    pub struct EntryPlus<'a> {
        /// The number of the object in its file system.
        pub file_id: u64,
        /// The name of the entry.
        pub name: &'a [u8],
        /// The cookie from which the listing continues after this entry.
        pub cookie: u64,
        /// Attributes of the object.
        pub attributes: Option<Attributes>,
        /// The object.
        pub object: Option<FileHandle<'a>>,
    }

    /// READDIR.
    pub struct ReaddirOk<'a> {
        /// Attributes of the directory.
        pub attributes: Option<Attributes>,
        /// The verifier to send with the cookies.
        pub verifier: [u8; VERIFIER_BYTES],
        /// The entries.
        pub entries: List<'a, Entry<'a>>,
        /// True if the last of these entries is the last of the directory.
        pub eof: bool,
    }

    /// READDIRPLUS.
    pub struct ReaddirplusOk<'a> {
        /// Attributes of the directory.
        pub attributes: Option<Attributes>,
        /// The verifier to send with the cookies.
        pub verifier: [u8; VERIFIER_BYTES],
        /// The entries.
        pub entries: List<'a, EntryPlus<'a>>,
        /// True if the last of these entries is the last of the directory.
        pub eof: bool,
    }

    /// FSSTAT.
    pub struct FsStatOk {
        /// Attributes of the object.
        pub attributes: Option<Attributes>,
        /// Total bytes.
        pub bytes_total: u64,
        /// Bytes free.
        pub bytes_free: u64,
        /// Bytes free for this user.
        pub bytes_available: u64,
        /// Total number of files.
        pub files_total: u64,
        /// Files that can still be created.
        pub files_free: u64,
        /// Files that this user can still create.
        pub files_available: u64,
        /// Seconds for which these values are not expected to change.
        pub invariant_seconds: u32,
    }

    /// FSINFO; sizes in bytes.
    pub struct FsInfoOk {
        /// Attributes of the object.
        pub attributes: Option<Attributes>,
        /// Longest READ.
        pub read_max: u32,
        /// Preferred length of a READ.
        pub read_preferred: u32,
        /// Lengths of READs should be multiples of this.
        pub read_multiple: u32,
        /// Longest WRITE.
        pub write_max: u32,
        /// Preferred length of a WRITE.
        pub write_preferred: u32,
        /// Lengths of WRITEs should be multiples of this.
        pub write_multiple: u32,
        /// Preferred length of a READDIR.
        pub readdir_preferred: u32,
        /// Longest file.
        pub file_bytes_max: u64,
        /// The precision of times.
        pub time_delta: Time,
        /// FSF bits, such as [`FSF_LINK`](super::FSF_LINK).
        pub properties: u32,
    }

    /// PATHCONF.
    pub struct PathConfOk {
        /// Attributes of the object.
        pub attributes: Option<Attributes>,
        /// Most hard links.
        pub links_max: u32,
        /// Longest name, in bytes.
        pub name_bytes_max: u32,
        /// Names that are too long are refused, not truncated.
        pub no_truncation: bool,
        /// Only root changes the owner.
        pub chown_restricted: bool,
        /// Upper and lower case are the same.
        pub case_insensitive: bool,
        /// The case of names is kept.
        pub case_preserving: bool,
    }

    /// COMMIT.
    pub struct CommitOk {
        /// The file.
        pub wcc: WccData,
        /// The write verifier; it changes when unstable data may have been lost.
        pub verifier: [u8; VERIFIER_BYTES],
    }
}
