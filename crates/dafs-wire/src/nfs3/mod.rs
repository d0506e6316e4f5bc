//! NFS version 3 (RFC 1813): arguments and results of its 22 procedures, both directions.
//!
//! Arguments borrow from the call. Results are records without the status: one for success and one
//! for failure, written by [`encode_ok`] and [`encode_failure`]. The record that carries names,
//! paths and data limits their length. The server decides whether a name is too long for a file
//! system, because the protocol has an error for it.
//!
//! Invariants
//! * Decoding allocates nothing.
//! * A decoded value encodes to bytes that decode to the same value.

mod args;
pub(crate) mod field;
mod results;
mod status;
mod types;

pub use args::{
    AccessArgs, CommitArgs, CreateArgs, CreateHow, DirOpArgs, GetattrArgs, LinkArgs, MkdirArgs,
    MknodArgs, MknodObject, ReadArgs, ReaddirArgs, ReaddirplusArgs, RenameArgs, SetattrArgs,
    SymlinkArgs, WriteArgs,
};
pub use results::{
    AccessOk, ChangeFailure, CommitOk, CreateOk, Entry, EntryPlus, Failure, FsInfoOk, FsStatOk,
    GetattrOk, LinkResult, LookupOk, NoFailureBody, ObjectFailure, PathConfOk, READ_HEAD_BYTES,
    ReadOk, ReaddirOk, ReaddirplusOk, ReadlinkOk, RenameResult, WccResult, WriteOk, decode_results,
    encode_failure, encode_ok, read_head, read_results,
};
pub use status::Status;
pub use types::{
    ATTRIBUTES_BYTES, Attributes, FileHandle, FileType, List, SetAttributes, SetTime, Stability,
    Time, WccAttributes, WccData,
};

use field::numbers;

/// The RPC program.
pub const PROGRAM: u32 = 100_003;

/// The version of the program.
pub const VERSION: u32 = 3;

/// The longest file handle, in bytes (NFS3_FHSIZE).
pub const HANDLE_BYTES_MAX: usize = 64;

/// The length of the verifiers of READDIR, exclusive CREATE and WRITE, in bytes.
pub const VERIFIER_BYTES: usize = 8;

/// FSINFO: hard links exist (FSF3_LINK).
pub const FSF_LINK: u32 = 0x01;
/// FSINFO: symbolic links exist (FSF3_SYMLINK).
pub const FSF_SYMLINK: u32 = 0x02;
/// FSINFO: PATHCONF is the same for all files (FSF3_HOMOGENEOUS).
pub const FSF_HOMOGENEOUS: u32 = 0x08;
/// FSINFO: SETATTR sets times with the precision of `time_delta` (FSF3_CANSETTIME).
pub const FSF_CAN_SET_TIME: u32 = 0x10;

/// Rights of ACCESS (RFC 1813 3.3.4).
pub mod access {
    /// Read data or list a directory.
    pub const READ: u32 = 0x01;
    /// Look up a name in a directory.
    pub const LOOKUP: u32 = 0x02;
    /// Rewrite data, or change entries of a directory.
    pub const MODIFY: u32 = 0x04;
    /// Write new data, or add entries.
    pub const EXTEND: u32 = 0x08;
    /// Delete an entry of a directory.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
}

numbers! {
    /// Procedure numbers (RFC 1813 3).
    pub enum Procedure {
        Null = 0, "NULL";
        Getattr = 1, "GETATTR";
        Setattr = 2, "SETATTR";
        Lookup = 3, "LOOKUP";
        Access = 4, "ACCESS";
        Readlink = 5, "READLINK";
        Read = 6, "READ";
        Write = 7, "WRITE";
        Create = 8, "CREATE";
        Mkdir = 9, "MKDIR";
        Symlink = 10, "SYMLINK";
        Mknod = 11, "MKNOD";
        Remove = 12, "REMOVE";
        Rmdir = 13, "RMDIR";
        Rename = 14, "RENAME";
        Link = 15, "LINK";
        Readdir = 16, "READDIR";
        Readdirplus = 17, "READDIRPLUS";
        FsStat = 18, "FSSTAT";
        FsInfo = 19, "FSINFO";
        PathConf = 20, "PATHCONF";
        Commit = 21, "COMMIT";
    }
}

#[cfg(test)]
mod tests;
