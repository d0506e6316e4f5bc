//! Layouts: the location of file data, for clients that read and write at data servers directly.
//! This is an extension, marked by names that begin with X_; the draft has no layouts.
//!
//! Invariants
//! * A layout covers a whole file, and a client returns it as a whole.
//! * A layout carries no address. Addresses belong to a device, and a device identifier is never
//!   reused.

use super::codec::{WordBool, layout, word_enum};
use super::ids::{FileHandle, StateId};
use super::limits::{LAYOUT_COMPONENTS_MAX, LAYOUT_ERRORS_MAX, LAYOUT_SERVERS_MAX};
use super::seq::Seq;
use super::status::Status;

/// Identifies a set of data servers and its stripe pattern. Opaque.
pub type DeviceId = [u8; 16];

word_enum! {
    /// The access of a layout.
    pub enum LayoutMode {
        /// Reading.
        Read = 1,
        /// Reading and writing.
        ReadWrite = 2,
    }

    /// The distribution of a file over data servers.
    pub enum LayoutKind {
        /// Stripes in turn on the servers of one device.
        Stripes = 1,
        /// The whole file on one server, or a mirror of it on each of several: read any, write all.
        Copies = 2,
    }

    /// The packing of stripes in a component.
    pub enum LayoutPacking {
        /// The offset in the component equals that in the file.
        Sparse = 1,
        /// A component holds its stripes one after the other.
        Dense = 2,
    }

    /// The scope of a recall or return.
    pub enum LayoutScope {
        /// One layout.
        File = 1,
        /// All layouts of files of a file system.
        FileSystem = 2,
        /// All layouts of the client.
        All = 3,
    }
}

layout! {
    /// Arguments of X_LAYOUT_GET.
    pub struct XLayoutGet [80] {
        /// The file.
        fh: FileHandle = 0,
        /// An open or a delegation of the file, or the layout that the client holds.
        state_id: StateId = 64,
        /// The requested access.
        mode: LayoutMode = 72,
    }

    /// The handle of a file at a data server.
    pub struct LayoutComponent [80, array 8 max LAYOUT_COMPONENTS_MAX] {
        /// The device.
        device: DeviceId = 0,
        /// The handle at the data server.
        fh: FileHandle = 16,
    }

    /// Result of X_LAYOUT_GET.
    pub struct XLayoutGetReply<'a> [32] {
        /// Identifies the layout.
        state_id: StateId = 0,
        /// The version of the layout; each change adds one.
        seqid: u32 = 8,
        /// The distribution of the file.
        kind: LayoutKind = 12,
        /// The packing of components; SPARSE for copies.
        packing: LayoutPacking = 16,
        /// Bytes of a stripe; 0 for copies.
        unit_bytes: u32 = 20,
        /// The pattern index of the first stripe; 0 for copies.
        first_place: u32 = 24,
        /// For stripes: one component for all servers of the device, or one for each server
        /// (sparse) or for each pattern index (dense). For copies: one component for each copy, of
        /// a device with one server.
        components: Seq<'a, LayoutComponent> = 28,
    }

    /// Arguments of X_LAYOUT_COMMIT.
    pub struct XLayoutCommit [88] {
        /// The file.
        fh: FileHandle = 0,
        /// The layout.
        state_id: StateId = 64,
        /// The version of the layout, or an earlier one.
        seqid: u32 = 72,
        /// True if the layout is from before the server's restart, and an open for writing was
        /// reclaimed.
        reclaim: bool as WordBool = 76,
        /// The least size of the file; 0 makes no statement.
        end: u64 = 80,
    }

    /// Result of X_LAYOUT_COMMIT.
    pub struct XLayoutCommitReply [16] {
        /// The size of the file.
        size: u64 = 0,
        /// The change attribute of the file.
        change: u64 = 8,
    }

    /// An error that a client met at a data server.
    pub struct LayoutError [24, array 8 max LAYOUT_ERRORS_MAX] {
        /// The device.
        device: DeviceId = 0,
        /// The status, or IO for a server that did not answer.
        status: Status = 16,
        /// True when the operation was a write or a commit.
        writing: bool as WordBool = 20,
    }

    /// Arguments of X_LAYOUT_RETURN.
    pub struct XLayoutReturn<'a> [88] {
        /// The file; for FILE_SYSTEM any object of it.
        fh: FileHandle = 0,
        /// The layout; only for FILE.
        state_id: StateId = 64,
        /// The version of the layout; not older than the last grant. Only for FILE.
        seqid: u32 = 72,
        /// The scope of the return.
        scope: LayoutScope = 76,
        /// Errors at data servers under this layout; only for FILE.
        errors: Seq<'a, LayoutError> = 80,
    }

    /// Arguments of X_NODE_INFO.
    pub struct XNodeInfo [16] {
        /// The device.
        device: DeviceId = 0,
    }

    /// A data server.
    pub struct LayoutServer<'a> [4, array 4 max LAYOUT_SERVERS_MAX] {
        /// Its DAFS addresses, as "ADDRESS:PORT"; each reaches the same server.
        addresses: Seq<'a, &'a [u8]> = 0,
    }

    /// Result of X_NODE_INFO.
    pub struct XNodeInfoReply<'a> [16] {
        /// For each pattern index the number of its server.
        pattern: Seq<'a, u32> = 0,
        /// The servers.
        servers: Seq<'a, LayoutServer<'a>> = 4,
        /// The client's proof of identity to these servers: its password for authentication TEXT.
        ticket: &'a [u8] = 8,
    }

    /// Arguments of X_BC_LAYOUT_RECALL.
    pub struct XBcLayoutRecall [80] {
        /// The file; for FILE_SYSTEM any object of it.
        fh: FileHandle = 0,
        /// The layout; only for FILE.
        state_id: StateId = 64,
        /// The version of the layout after the recall; only for FILE.
        seqid: u32 = 72,
        /// The scope of the recall.
        scope: LayoutScope = 76,
    }
}
