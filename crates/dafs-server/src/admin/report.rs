//! Requests of administrators, and the answers, as they travel in JSON.

use super::scrub::{ScrubOrder, ScrubReport};
use dafs_service::{Class, ExposureCounts, LatencyCounts, UsageCounts};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;

/// A request of an administrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminRequest {
    /// List the clients and their state.
    Clients,
    /// Expire a client: all its state is released.
    Expire {
        /// Its key, from the answer to `Clients`.
        client: u64,
    },
    /// Reload the configuration file.
    Reload,
    /// Show the version, the exports and the load of the server.
    Status,
    /// List the users of the password file.
    Users,
    /// Add a user to the password file, or change one.
    SetUser(UserOrder),
    /// Remove a user of the password file, and end the sessions of that user.
    RemoveUser {
        /// The name.
        name: String,
    },
    /// List the sessions.
    Sessions,
    /// Count the blocks that clients of this host read without requests.
    Exposed,
    /// List locked and broken byte ranges.
    Locks,
    /// Show the layout of a file.
    Layout {
        /// The path of the file, as clients name it.
        path: String,
    },
    /// List the nodes of exports with data servers.
    Nodes,
    /// Drain a node: move all files off it. Or undo that.
    Drain {
        /// The export of the node. By default the only one that has nodes.
        export: Option<String>,
        /// Its number.
        node: u32,
        /// Keep files on the node after all.
        undo: bool,
    },
    /// Replace the lost directory of a node by an empty one, where files have copies.
    Replace {
        /// The export of the node. By default the only one that has nodes.
        export: Option<String>,
        /// Its number.
        node: u32,
    },
    /// Compare the copies of files on nodes, or see the last comparison. The answer is `Scrub`.
    Scrub {
        /// The export of the nodes. By default the only one that has nodes.
        export: Option<String>,
        /// The order.
        order: ScrubOrder,
    },
    /// Make all copies of a file like the one on a node.
    Repair {
        /// The path of the file, as clients name it.
        path: String,
        /// The number of the node.
        node: u32,
    },
    /// List the fences of file systems.
    Fences {
        /// The exports. None means all.
        exports: Vec<String>,
    },
    /// Change the fences of file systems. The answer is `Fences`, when the fenced clients have no
    /// request under way any more.
    Fence {
        /// The exports. None means all.
        exports: Vec<String>,
        /// The change of the names.
        change: FenceOrder,
        /// Fence ids, and names of NFS clients.
        names: Vec<String>,
    },
}

/// The kind of a change of a fence's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FenceOrder {
    /// Give access only to these.
    Set,
    /// Give access to these, too.
    Add,
    /// Remove access of these.
    Remove,
    /// Lift the fence.
    Clear,
}

/// The server's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminReply {
    /// The clients.
    Clients(Vec<ClientReport>),
    /// The sessions.
    Sessions(Vec<SessionReport>),
    /// The blocks that clients of this host read without requests.
    Exposed(ExposedReport),
    /// The locks. Locks that their holders have left behind come first.
    Locks(Vec<LockReport>),
    /// The layout of a file.
    Layout(LayoutReport),
    /// The nodes.
    Nodes(Vec<NodeReport>),
    /// The comparison of copies.
    Scrub(ScrubReport),
    /// The fences of file systems.
    Fences(Vec<FenceReport>),
    /// The changes of a reload.
    Reloaded(ReloadReport),
    /// The state of the server as a whole.
    Status(StatusReport),
    /// The users of the password file.
    Users(Vec<UserReport>),
    /// Success.
    Done(String),
    /// Failure, with the reason.
    Failed(String),
}

/// The wanted state of a user of the password file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserOrder {
    /// The name that clients give.
    pub name: String,
    /// The user must not exist yet. Otherwise the user must exist.
    #[serde(default)]
    pub is_new: bool,
    /// The user id that the files are used with. `None` for the present one.
    #[serde(default)]
    pub uid: Option<u32>,
    /// The group id that the files are used with. `None` for the present one.
    #[serde(default)]
    pub gid: Option<u32>,
    /// Further group ids. `None` for the present ones.
    #[serde(default)]
    pub groups: Option<Vec<u32>>,
    /// The Argon2 hash of the password, in PHC form. `None` for the present one. The password itself
    /// stays with the administrator.
    #[serde(default)]
    pub hash: Option<String>,
}

/// A user of the password file, for administrators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserReport {
    /// The name that clients give.
    pub name: String,
    /// The user id that the files are used with.
    pub uid: u32,
    /// The group id that the files are used with.
    pub gid: u32,
    /// Further group ids.
    pub groups: Vec<u32>,
}

/// The changes of a reload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// Exports that are served now.
    pub exports: u64,
    /// Changed keys of the configuration file that are in force now.
    pub applied: Vec<String>,
    /// Changed keys that need a restart.
    pub refused: Vec<RefusedKey>,
}

/// A changed key of the configuration file that is not in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedKey {
    /// The key, with the names of its tables.
    pub key: String,
    /// The reason why a restart is needed.
    pub reason: String,
}

impl fmt::Display for ReloadReport {
    /// Writes a line for each key, and one for the exports.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for key in &self.applied {
            writeln!(f, "applied: {key}")?;
        }
        for RefusedKey { key, reason } in &self.refused {
            writeln!(f, "refused: {key}: {reason}, restart needed")?;
        }
        write!(f, "{} exports are served", self.exports)
    }
}

/// The state of a server as a whole. Counts that are not said to be since the start are of now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The version of the server.
    pub version: String,
    /// The process id of the server on its host.
    pub process: u32,
    /// The addresses for DAFS clients.
    pub addresses: Vec<SocketAddr>,
    /// Seconds since the start.
    pub uptime_seconds: u64,
    /// The exports.
    pub exports: Vec<ExportReport>,
    /// Connections at all front ends.
    pub connections: u64,
    /// Clients of DAFS.
    pub dafs_clients: u64,
    /// Clients of NFSv4.
    pub nfs_clients: u64,
    /// Open files.
    pub open_files: u64,
    /// Owners that have locked parts of a file.
    pub locks: u64,
    /// Owners that wait for a lock.
    pub lock_waiters: u64,
    /// Delegations.
    pub delegations: u64,
    /// The load of the host over the last minute: runnable threads, times 1000.
    pub host_load_milli: u64,
    /// CPU time of the server since its start, in milliseconds.
    pub cpu_milliseconds: u64,
}

/// An export, for administrators. The counts are since the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportReport {
    /// Its name below the root.
    pub name: String,
    /// Every change is refused.
    pub read_only: bool,
    /// Requests.
    pub operations: u64,
    /// Requests that were refused.
    pub errors: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// The times of its requests, by class. Empty in answers of servers before there was this member.
    #[serde(default)]
    pub latency: Vec<LatencyReport>,
}

/// The times of requests of one class from their arrival to the answer, since counting began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyReport {
    /// `read` for requests that returned file data, `write` for those that took some, `other` for all others.
    pub class: String,
    /// The sum of the times.
    pub total_microseconds: u64,
    /// Requests of up to 1, 2, 4, ... 2^20 microseconds, and of more. Each counts in one bucket.
    pub buckets: Vec<u64>,
}

impl LatencyReport {
    /// Returns the times of all classes.
    pub(crate) fn by_class(usage: &UsageCounts) -> Vec<Self> {
        let of = |(class, counts): (Class, &LatencyCounts)| Self {
            class: class.label().to_owned(),
            total_microseconds: counts.sum_ns / 1000,
            buckets: counts.buckets.to_vec(),
        };
        Class::ALL.into_iter().zip(&usage.latency).map(of).collect()
    }
}

/// A node, for administrators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The export of the node.
    pub export: String,
    /// Its number.
    pub number: u32,
    /// Its directory, or the address where its data server waits for the metadata server.
    pub place: String,
    /// Its addresses for clients.
    pub addresses: Vec<SocketAddr>,
    /// It can be used now.
    pub connected: bool,
    /// It does not answer, so it cannot be used: its disk hangs, or its host is overloaded.
    #[serde(default)]
    pub silent: bool,
    /// The reason why it cannot.
    pub trouble: String,
    /// The size of its file system.
    pub total_bytes: u64,
    /// The free space of its file system.
    pub available_bytes: u64,
    /// All files are being moved off it.
    pub leaving: bool,
    /// No file is left on it, so it can be removed from the configuration.
    pub empty: bool,
    /// Files that were moved off nodes of the export since the server started.
    pub moved_files: u64,
    /// The bytes of these files.
    pub moved_bytes: u64,
    /// Files that are still to be moved off nodes of the export. `null` before they are counted, and
    /// when none is drained.
    #[serde(default)]
    pub left_files: Option<u64>,
    /// The bytes of these files on such nodes, about.
    #[serde(default)]
    pub left_bytes: Option<u64>,
    /// Files whose copies on it are incomplete. `null` while their list cannot be read.
    pub files_to_mend: Option<u64>,
    /// Bytes that clients have read at its data server since that started.
    pub read_bytes: u64,
    /// Bytes that clients have written there.
    pub written_bytes: u64,
    /// The part of these bytes that lies on other nodes.
    pub indirect_bytes: u64,
}

/// A client, for administrators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientReport {
    /// Its key in requests.
    #[serde(with = "hex_key")]
    pub client: u64,
    /// The protocol of its front end.
    pub front_end: String,
    /// The client's own name, with bytes that are no text escaped.
    pub name: String,
    /// Its transport, where that is known.
    pub transport: String,
    /// The principal that it has authenticated as.
    pub principal: String,
    /// The address of its last request, if it came over a network.
    pub address: String,
    /// Seconds since its last request.
    pub silent_seconds: u64,
    /// Its lease has ended. Its state is revoked as soon as another client's request conflicts.
    pub courtesy: bool,
    /// Its sessions of DAFS or NFSv4.1, also those that a busy server cannot describe at the moment.
    pub sessions: u64,
    /// Its open files.
    pub opens: u64,
    /// Its locked byte ranges.
    pub locks: u64,
    /// Its delegations.
    pub delegations: u64,
    /// Requests since its registration.
    pub operations: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// The times of its requests, by class. Empty in answers of servers before there was this member.
    #[serde(default)]
    pub latency: Vec<LatencyReport>,
    /// The files on which it has state, each with a description of the state.
    pub holds: Vec<String>,
}

/// A session of a client of DAFS or NFSv4.1, for administrators.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionReport {
    /// The protocol of its front end: `dafs` or `nfs4`.
    pub front_end: String,
    /// Its id.
    pub session: String,
    /// The key of its client, as in [`ClientReport`].
    #[serde(with = "hex_key")]
    pub client: u64,
    /// The client's own name, with bytes that are no text escaped.
    pub name: String,
    /// Its id for fences. `null` if it has given none.
    pub fence_id: Option<String>,
    /// The address of the peer.
    pub peer: String,
    /// Its transport. Empty for NFS, whose sessions use any number of connections.
    pub transport: String,
    /// The server trusts the client's choice of users.
    pub trusted: bool,
    /// Messages and data carry checksums.
    pub checksums: bool,
    /// Seconds since it connected.
    pub age_seconds: u64,
    /// Requests that it may have outstanding: credits, or slots.
    pub credits: u16,
    /// Its weight by the rules of `[[importance]]`, 1 to 10,000.
    pub weight: u32,
    /// Credits by its weight while all sessions want more than there are, or the slots that its client
    /// is asked to come down to. `null` if it may have all that it wants.
    pub share: Option<u16>,
    /// Requests that have arrived and are not answered.
    pub in_flight: u16,
    /// Cached replies for the case that the connection is lost. `null` if the session has no reply
    /// cache.
    pub replies: Option<u64>,
    /// Their bytes.
    pub replies_bytes: Option<u64>,
    /// Open files of its client.
    pub opens: u64,
    /// Owners of its client that have locked parts of a file.
    pub locks: u64,
    /// Delegations of its client.
    pub delegations: u64,
}

/// The memory from which clients of this host read files without requests, for administrators. What
/// is not said to be now is counted since the server started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExposedReport {
    /// Files in it now. Small files that share segments are one.
    pub files: u64,
    /// Small files that share segments now.
    pub small_files: u64,
    /// Blocks in it now, of 4096 bytes.
    pub frames_published: u64,
    /// Frames that wait for reuse now.
    pub frames_waiting: u64,
    /// Frames without a block now.
    pub frames_free: u64,
    /// Requests that have read these files. Reads from the memory are no requests.
    pub missed: u64,
    /// Blocks that were put there.
    pub published: u64,
    /// Blocks that were not put there: they changed meanwhile, or were not in the system's cache.
    pub wasted: u64,
    /// Blocks that changes have taken away.
    pub changed: u64,
    /// Blocks that made room for others.
    pub evicted: u64,
    /// Those of them that requests have brought back soon.
    pub restored: u64,
    /// Segments of frames that files have given to others, or for window pages of their own.
    pub given: u64,
}

impl From<ExposureCounts> for ExposedReport {
    fn from(counts: ExposureCounts) -> Self {
        Self {
            files: counts.files,
            small_files: counts.small_files,
            frames_published: counts.frames_published,
            frames_waiting: counts.frames_waiting,
            frames_free: counts.frames_free,
            missed: counts.missed,
            published: counts.published,
            wasted: counts.wasted,
            changed: counts.changed,
            evicted: counts.evicted,
            restored: counts.restored,
            given: counts.given,
        }
    }
}

/// A lock of a byte range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockReport {
    /// One of these: `held`. `breakable` when its holder is gone and may come back. `broken`.
    /// `undone` when it was lost, and the file is to be restored to its state before the lock.
    pub state: String,
    /// Its file, by export and inode number.
    pub file: String,
    /// First byte.
    pub offset: u64,
    /// Bytes. `null` for all from there on.
    pub length: Option<u64>,
    /// It conflicts with all other locks.
    pub exclusive: bool,
    /// It outlives its holder.
    pub persist: bool,
    /// It is held to repair a file with a broken lock.
    pub repair: bool,
    /// Writes under it are undone when its holder fails.
    pub auto_recover: bool,
    /// The reason why the file could not be restored yet. `null` if no attempt has failed.
    pub trouble: Option<String>,
    /// The key of the client that holds it or held it.
    #[serde(with = "hex_key")]
    pub client: u64,
    /// The client's own name, with bytes that are no text escaped.
    pub name: String,
    /// The owner at that client, likewise.
    pub owner: String,
}

/// Keys of clients in the usual form: 16 hexadecimal digits. Programs that read JSON would round
/// larger numbers.
mod hex_key {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
    pub(super) fn serialize<S: Serializer>(key: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{key:016x}"))
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<u64, D::Error> {
        let digits = String::deserialize(from)?;
        u64::from_str_radix(&digits, 16).map_err(D::Error::custom)
    }
}

/// The layout of a file on data servers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LayoutReport {
    /// Bytes of the file.
    pub size_bytes: u64,
    /// `stripes`, `copies`, or empty for a file at the server itself.
    pub form: String,
    /// Bytes of a stripe.
    pub unit_bytes: u32,
    /// The index in the pattern of the first stripe.
    pub first_place: u32,
    /// For each place of the pattern the number of its server in `servers`.
    pub pattern: Vec<u32>,
    /// The data servers, each with its addresses.
    pub servers: Vec<Vec<String>>,
    /// The components have no holes.
    pub dense: bool,
    /// The numbers in `servers` of the data servers with incomplete copies.
    pub stale: Vec<u32>,
    /// The numbers of the nodes with content of the file; empty where the file system does not say it.
    #[serde(default)]
    pub nodes: Vec<u32>,
    /// Those of them that cannot be used now, each in words: number, place and reason.
    #[serde(default)]
    pub missing: Vec<String>,
}

/// The fence of a file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceReport {
    /// The export of the file system.
    pub export: String,
    /// There is a list. Without one every client has access.
    pub fenced: bool,
    /// The clients with access if there is a list.
    pub names: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_service::{Done, Usage};

    #[test]
    fn each_class_has_its_times() {
        let usage = Usage::default();
        usage.record(&Done { read_bytes: 1, duration_ns: 3000, ..Done::default() });
        usage.record(&Done { read_bytes: 1, duration_ns: 4000, ..Done::default() });
        usage.record(&Done { written_bytes: 1, duration_ns: 900, ..Done::default() });
        let reports = LatencyReport::by_class(&usage.now());
        let of = |report: &LatencyReport| {
            let bucket = report.buckets.iter().position(|&count| count > 0);
            (report.class.clone(), report.total_microseconds, bucket)
        };
        let found: Vec<_> = reports.iter().map(of).collect();
        let expected = [("read", 7, Some(2)), ("write", 0, Some(0)), ("other", 0, None)];
        assert_eq!(found, expected.map(|(class, total, at)| (class.to_owned(), total, at)));
    }

    #[test]
    fn reports_of_servers_without_latencies_are_read() {
        let export = r#"{"name":"a","read_only":false,"operations":1,"errors":0,"read_bytes":2,"written_bytes":3}"#;
        let report: ExportReport = serde_json::from_str(export).unwrap();
        assert!(report.latency.is_empty());
    }
}
