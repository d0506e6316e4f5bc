//! Layouts: where the content of files lies, for clients that read and write at data servers by
//! themselves. An extension of ours, marked by names that begin with X_; the draft knows nothing of it.
//!
//! Invariants
//! * Whole files are told, and given back as a whole.
//! * A layout carries no address: those are a device's, and a device never becomes another one.

use super::codec::{WordBool, layout, word_enum};
use super::ids::{FileHandle, StateId};
use super::limits::{LAYOUT_COMPONENTS_MAX, LAYOUT_ERRORS_MAX, LAYOUT_SERVERS_MAX};
use super::seq::Seq;
use super::status::Status;

/// Names a set of data servers and the pattern in which they take turns. Opaque.
pub type DeviceId = [u8; 16];

word_enum! {
    /// For what a layout is wanted.
    pub enum LayoutMode {
        /// Reading.
        Read = 1,
        /// Reading and writing.
        ReadWrite = 2,
    }
}

word_enum! {
    /// How a file is spread over data servers.
    pub enum LayoutKind {
        /// Stripes that lie in turn on the servers of one device.
        Stripes = 1,
        /// The whole file on one server, or the same on each of several: read any, write all.
        Copies = 2,
    }
}

word_enum! {
    /// How a stripe's place in its component is found.
    pub enum LayoutPacking {
        /// The offset in the component is that in the file.
        Sparse = 1,
        /// A component holds its stripes one behind the other.
        Dense = 2,
    }
}

word_enum! {
    /// How much is recalled or given back.
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
        /// An open or a delegation of the file, or the layout of it that is held.
        state_id: StateId = 64,
        /// For what it is wanted.
        mode: LayoutMode = 72,
    }
}

layout! {
    /// What a file is called at a data server.
    pub struct LayoutComponent [80, array 8 max LAYOUT_COMPONENTS_MAX] {
        /// The device.
        device: DeviceId = 0,
        /// The handle there.
        fh: FileHandle = 16,
    }
}

layout! {
    /// Result of X_LAYOUT_GET.
    pub struct XLayoutGetReply<'a> [32] {
        /// Names the layout.
        state_id: StateId = 0,
        /// Which version of it; each change adds one.
        seqid: u32 = 8,
        /// How the file is spread.
        kind: LayoutKind = 12,
        /// How components are packed; SPARSE for copies.
        packing: LayoutPacking = 16,
        /// Bytes of a stripe; 0 for copies.
        unit_bytes: u32 = 20,
        /// The place of the pattern that holds the first stripe; 0 for copies.
        first_place: u32 = 24,
        /// Stripes: one for all servers of the device, or one for each server (sparse) or for each
        /// place of the pattern (dense). Copies: one for each copy, of a device with one server.
        components: Seq<'a, LayoutComponent> = 28,
    }
}

layout! {
    /// Arguments of X_LAYOUT_COMMIT.
    pub struct XLayoutCommit [88] {
        /// The file.
        fh: FileHandle = 0,
        /// The layout.
        state_id: StateId = 64,
        /// Its version, or an earlier one.
        seqid: u32 = 72,
        /// The layout is one of before the server's restart, and an open for writing was reclaimed.
        reclaim: bool as WordBool = 76,
        /// The file reaches so far at least; 0 says nothing about that.
        end: u64 = 80,
    }
}

layout! {
    /// Result of X_LAYOUT_COMMIT.
    pub struct XLayoutCommitReply [16] {
        /// How far the file reaches.
        size: u64 = 0,
        /// Its change attribute.
        change: u64 = 8,
    }
}

layout! {
    /// What a client met at a data server.
    pub struct LayoutError [24, array 8 max LAYOUT_ERRORS_MAX] {
        /// The device.
        device: DeviceId = 0,
        /// The status, or IO for a server that did not answer.
        status: Status = 16,
        /// True when something was to be written or committed.
        writing: bool as WordBool = 20,
    }
}

layout! {
    /// Arguments of X_LAYOUT_RETURN.
    pub struct XLayoutReturn<'a> [88] {
        /// The file; for FILE_SYSTEM any object of it.
        fh: FileHandle = 0,
        /// The layout; only for FILE.
        state_id: StateId = 64,
        /// Its version; not older than the last grant. Only for FILE.
        seqid: u32 = 72,
        /// How much is given back.
        scope: LayoutScope = 76,
        /// What was met at data servers by this layout; only for FILE.
        errors: Seq<'a, LayoutError> = 80,
    }
}

layout! {
    /// Arguments of X_NODE_INFO.
    pub struct XNodeInfo [16] {
        /// The device.
        device: DeviceId = 0,
    }
}

layout! {
    /// A data server.
    pub struct LayoutServer<'a> [4, array 4 max LAYOUT_SERVERS_MAX] {
        /// Where it serves DAFS, as "ADDRESS:PORT"; each leads to the same server.
        addresses: Seq<'a, &'a [u8]> = 0,
    }
}

layout! {
    /// Result of X_NODE_INFO.
    pub struct XNodeInfoReply<'a> [16] {
        /// For each place of the pattern the number of its server.
        pattern: Seq<'a, u32> = 0,
        /// The servers.
        servers: Seq<'a, LayoutServer<'a>> = 4,
        /// What shows to them who the client is: its password for authentication TEXT.
        ticket: &'a [u8] = 8,
    }
}

layout! {
    /// Arguments of X_BC_LAYOUT_RECALL.
    pub struct XBcLayoutRecall [80] {
        /// The file; for FILE_SYSTEM some object of it.
        fh: FileHandle = 0,
        /// The layout; only for FILE.
        state_id: StateId = 64,
        /// The version that it has by the recall; only for FILE.
        seqid: u32 = 72,
        /// How much is to be given back.
        scope: LayoutScope = 76,
    }
}
