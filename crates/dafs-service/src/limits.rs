//! Every bound of the service, in one place.
//!
//! Bounds on the state of all clients together are shared among hosts. A host gets more only while
//! it has less than is left, so that one host alone gets half ([`crate::has_share`]).

use std::time::Duration;

/// The most opens of a client's file that a pattern of use without a state-id is for.
pub(crate) const ADVISED_OPENS_MAX: usize = 16;

/// Known clients that have used their key. An unknown client cannot hold state.
pub const CLIENT_COUNT_MAX: usize = 61_440;

/// Hosts, and likewise users, whose use is counted apart. The use of further ones is counted together.
pub const USAGES_MAX: usize = 64;

/// Shares of counters that several threads feed.
pub(crate) const USAGE_SHARDS: usize = 4;

/// Known addresses of an NFS client.
pub const CLIENT_ADDRESSES_MAX: usize = 16;

/// Records of NFS clients that have not used their key yet. Above its share, a host loses the
/// oldest of its own.
pub const UNCONFIRMED_CLIENTS_MAX: usize = 4_096;

/// Expired NFS clients whose state is kept by courtesy. Above that, those of hosts with many that
/// are absent longest lose it.
pub const COURTESY_CLIENTS_MAX: usize = 16_384;

/// The divisor of the part of all opens, and of all delegations, that is kept by courtesy, with a
/// minimum. Above that, those of hosts with many that are absent longest lose them.
pub(crate) const COURTESY_FILES_SHARE: usize = 8;
/// See [`COURTESY_FILES_SHARE`].
pub(crate) const COURTESY_FILES_MIN: usize = 64;

/// Expired clients that are ended at a time to make room. A fraction of the bound is enough room
/// then.
pub(crate) const ENDED_FOR_ROOM_MAX: usize = 16;
/// See [`ENDED_FOR_ROOM_MAX`].
pub(crate) const ROOM_MADE_FRACTION: usize = 1024;

/// How long state is kept by courtesy after a lease has ended, unless another client conflicts with
/// it.
pub const COURTESY_TIME: Duration = Duration::from_secs(24 * 3600);

/// Bytes of a client's own name.
pub const CLIENT_NAME_BYTES_MAX: usize = 1024;

/// Significant bits of a state-id. They are enough for a million opens per second for twelve days.
/// 32 bits would last for an hour.
pub(crate) const STATE_NUMBER_BITS: u32 = 40;

/// Opens of one client.
pub const OPENS_PER_CLIENT_MAX: usize = 65_536;

/// How often an open retries when others make and remove its name meanwhile.
pub(crate) const OPEN_TRIES_MAX: usize = 16;

/// Opens of all clients. Each holds a descriptor of the process.
pub const OPENS_MAX: usize = 500_000;

/// Bytes of the name of an open owner or a lock owner.
pub const OWNER_BYTES_MAX: usize = 1024;

/// Pairs of lock owner and file of one client.
pub const LOCK_STATES_PER_CLIENT_MAX: usize = 65_536;

/// Pairs of lock owner and file of all clients.
pub const LOCK_STATES_MAX: usize = 500_000;

/// Byte ranges that one client has locked.
pub const LOCK_RANGES_PER_CLIENT_MAX: usize = 65_536;

/// Byte ranges locked in one file. Each change looks at all of them.
pub const LOCK_RANGES_PER_FILE_MAX: usize = 16_384;

/// Byte ranges that all clients have locked.
pub const LOCK_RANGES_MAX: usize = 1_000_000;

/// Locks of all clients that are kept on disk: persistent ones, held or orphaned.
pub const KEPT_LOCKS_MAX: usize = 65_536;

/// Those of the clients of one name, with the orphans of its older instances.
pub const KEPT_LOCKS_PER_CLIENT_MAX: usize = KEPT_LOCKS_MAX / 4;

/// Memory for a database of state. An entry has a few hundred bytes and is read once.
pub(crate) const DATABASE_CACHE_BYTES: usize = 1 << 20;

/// Files with orphaned locks that one sweep looks at.
pub(crate) const LEFT_FILES_SWEPT_MAX: usize = 64;

/// Owners that wait for a lock on one file. Others poll.
pub const WAITERS_PER_FILE_MAX: usize = 256;

/// Owners that wait for a lock on any file.
pub const WAITERS_MAX: usize = 65_536;

/// How long a DAFS client that waits for a lock keeps its turn after it has asked, in nanoseconds.
pub const LOCK_TURN_NS: u64 = 1_000_000_000;

/// Delegations of one client, including revoked ones that are not freed.
pub const DELEGATIONS_PER_CLIENT_MAX: usize = 32_768;

/// Delegations of all clients. Each may hold a descriptor of the process.
pub const DELEGATIONS_MAX: usize = 250_000;

/// Layouts of one client, including revoked ones that are not freed.
pub const LAYOUTS_PER_CLIENT_MAX: usize = 65_536;

/// Layouts of all clients.
pub const LAYOUTS_MAX: usize = 500_000;

/// Layouts of one client and one file system that are recalled file by file at a time, even if they
/// are most of its layouts.
pub const LAYOUT_RECALLS_ONE_BY_ONE_MAX: usize = 16;

/// Devices whose changes one client is notified of.
pub const DEVICES_WATCHED_MAX: usize = 1024;

/// Files of one store whose ends are asked for at a time, by callers that need them. Each keeps a
/// thread waiting that others need. The clients of one host alone get half.
pub(crate) const ENDS_ASKED_MAX: usize = 4;

/// Callers of one store that wait for the searches of others for an end, with a thread each. The
/// clients of one host alone get half. More callers wait for [`END_TURN_TIME`].
pub(crate) const ENDS_AWAITED_MAX: usize = 8;

/// Files about which a store is asked before the due times are checked again.
pub(crate) const FENCED_AT_ONCE: usize = 256;

/// How long a return of many layouts looks for their writes before it is answered. The rest is done
/// after the answer.
pub(crate) const RETURN_SETTLE_TIME: Duration = Duration::from_secs(2);

/// Components for which a time is kept when one client has written to their files through this
/// server instead. Beyond that bound, the last of these times stands for all.
pub(crate) const LATE_COMPONENTS_MAX: usize = 1024;

/// How long a request for a layout is told to retry, while data servers may still honour a revoked
/// layout.
pub(crate) const LAYOUT_PATIENCE_NS: u64 = 1_000_000_000;

/// How long after the server's start a reclaim of an open is told to retry, while data servers do
/// not report the file's size. They may be starting as well, and are tried every two seconds. No
/// more than half of a grace period.
pub(crate) const RECLAIM_PATIENCE_NS: u64 = 5_000_000_000;

/// How long a caller waits for room for a search for the end of a file, which there is at once unless
/// data servers are slow.
pub(crate) const END_TURN_TIME: Duration = Duration::from_millis(20);

/// How long a thread that has searched for the end of a file waits for the next search.
pub(crate) const END_THREAD_IDLE_TIME: Duration = Duration::from_secs(10);

/// How long a search for the end of a file waits for the answer of data servers.
pub(crate) const END_ANSWER_TIME: Duration = Duration::from_secs(1);

/// Parts of a file that a layout may cover after other parts were returned.
pub(crate) const LAYOUT_SPANS_MAX: usize = 64;

/// How long a call waits for other clients before its client is told to retry.
pub const RECALL_WAIT: Duration = Duration::from_millis(100);

/// Delegations or layouts that are ended in one hold of the table's lock, when they were not
/// returned in time or are returned together.
pub(crate) const ENDED_AT_ONCE_MAX: usize = 256;

/// Calls that wait for other clients at a time. More are told to retry at once. They wait on
/// threads that others need for the disk.
pub(crate) const RECALL_WAITERS_MAX: usize = 8;

/// How often a call that has cleared conflicts retries at once: there may be conflicts of several
/// kinds. Then it sleeps in between.
pub(crate) const CLEARED_MAX: u32 = 4;

/// How long a waiting call sleeps before it retries by itself.
pub(crate) const RECALL_NAP: Duration = Duration::from_millis(10);

/// How long after a recall no new delegation is granted on a file, in nanoseconds.
pub const RECALL_QUIET_NS: u64 = 15_000_000_000;

/// Files whose last recall is remembered. Recalls of other files are forgotten at once.
pub const RECALLED_FILES_MAX: usize = 65_536;

/// How long after a write without an open no new delegation is granted on a file, in nanoseconds.
/// This is longer than such a write takes.
pub const WRITE_QUIET_NS: u64 = 10_000_000_000;

/// How long the answer of a delegation's holder is valid for every caller, in nanoseconds.
pub(crate) const ATTR_ANSWER_FRESH_NS: u64 = 100_000_000;

/// How long a delegation's holder may take to answer before its delegation is revoked, and how long
/// its answer is kept for the caller that asked, in nanoseconds.
pub(crate) const ATTR_ANSWER_WAIT_NS: u64 = 3_000_000_000;

/// Files kept open for callers without opens.
pub const STATELESS_FILES_MAX: usize = 8_192;

/// How long a file may be kept open for callers without opens after its last use, in nanoseconds.
pub(crate) const STATELESS_IDLE_NS: u64 = 10_000_000_000;

/// How long cached rights of a caller without an open are used while the file's times change but
/// neither its mode nor its owner, in nanoseconds. An access list may have changed with them.
pub(crate) const STATELESS_RIGHTS_NS: u64 = 1_000_000_000;

/// Ended sessions whose replies are kept, of one client and of all.
pub const REPLY_SESSIONS_PER_CLIENT_MAX: usize = 1_024;
/// See [`REPLY_SESSIONS_PER_CLIENT_MAX`].
pub const REPLY_SESSIONS_MAX: usize = 16_384;

/// Bytes of the replies kept of ended sessions, of one client (DAFS O50) and of all.
pub const REPLY_BYTES_PER_CLIENT_MAX: usize = 16 << 20;
/// See [`REPLY_BYTES_PER_CLIENT_MAX`].
pub const REPLY_BYTES_MAX: usize = 128 << 20;

/// How long replies of an ended session are kept, unless three leases take longer, in nanoseconds
/// (DAFS O50).
pub const REPLY_RETENTION_NS: u64 = 3_600_000_000_000;

/// Names on one fence list.
pub const FENCE_NAMES_MAX: usize = 256;

/// Length of a name on a fence list, in bytes: that of a client's name, with its prefix.
pub const FENCE_NAME_BYTES_MAX: usize = CLIENT_NAME_BYTES_MAX + 8;

/// Files and file systems with a fence list.
pub const FENCE_LISTS_MAX: usize = 16_384;

/// Fence lists that one sweep checks for removed files.
pub(crate) const FENCE_LISTS_SWEPT_MAX: usize = 64;

/// Locks whose changes may have to be undone. Each has a log of its own in the state directory.
pub const UNDO_LOCKS_MAX: u64 = 1_024;

/// Those of the clients of one name, with the orphans of its older instances.
pub const UNDO_LOCKS_PER_CLIENT_MAX: u64 = UNDO_LOCKS_MAX / 4;

/// Bytes saved for one such lock. A write that needs more is refused for lack of space, and has no
/// effect. A write saves the blocks of 16 KiB that it overwrites, each once. A write behind the end
/// of the file saves none.
pub const UNDO_BYTES_PER_LOCK_MAX: u64 = 256 << 20;

/// Bytes saved for all such locks.
pub const UNDO_BYTES_MAX: u64 = 1 << 30;

/// Bytes saved for locks of the clients of one name.
pub const UNDO_BYTES_PER_CLIENT_MAX: u64 = UNDO_BYTES_MAX / 2;

/// The least and the longest time between two attempts to restore a file after one has failed, in
/// nanoseconds.
pub(crate) const UNDO_PAUSE_MIN_NS: u64 = 1_000_000_000;
/// See [`UNDO_PAUSE_MIN_NS`].
pub(crate) const UNDO_PAUSE_MAX_NS: u64 = 60_000_000_000;

/// Changes with durable replies that are under way at once.
pub const DURABLE_CHANGES_MAX: usize = 65_536;

/// Changes under way of which no record is kept, on exports that keep records of other changes. All
/// may be of one name, and each is compared with those before it.
pub const GUARDED_CHANGES_MAX: usize = 8_192;

/// Those of one host, or of one client where hosts are not known.
pub const GUARDED_CHANGES_SHARE_MAX: usize = GUARDED_CHANGES_MAX / 8;

/// How long such a change waits for others, in nanoseconds, before its client is told to retry.
pub const GUARD_WAIT_NS: u64 = 5_000_000_000;

/// How often a change that empties a file retries when its name leads to another file meanwhile.
pub(crate) const DURABLE_PRE_IMAGES_MAX: usize = 16;

/// The longest reply that the journal keeps, in bytes. A client that asks after a restart for a
/// longer one gets an error instead.
pub const DURABLE_REPLY_BYTES_MAX: usize = 64 << 10;

/// Sessions of earlier runs whose replies the journal keeps. Above that, the host with most
/// sessions loses one: the oldest of its client that has most.
pub const DURABLE_SESSIONS_MAX: usize = 4_096;

/// Bytes of records that the journal keeps, in memory and in each checkpoint.
pub const DURABLE_BYTES_MAX: usize = 512 << 20;

/// The part that is left to replies when no more changes are accepted, so that the accepted changes
/// keep their replies.
pub const DURABLE_RESERVE_BYTES: usize = DURABLE_BYTES_MAX / 8;

/// Bytes of records of the sessions of earlier runs, together.
pub const DURABLE_RECOVERED_BYTES_MAX: usize = DURABLE_BYTES_MAX / 8;

/// The most that a record takes besides the reply in it, in bytes.
pub const DURABLE_RECORD_BYTES: usize = 88;

/// Bytes of records of the sessions to which front ends have promised to keep the replies to all
/// changes. This part is reserved for them.
pub const DURABLE_PROMISED_BYTES_MAX: usize = DURABLE_BYTES_MAX / 4;

/// Bytes of records of one session. A change that might exceed it is refused.
pub const DURABLE_SESSION_BYTES_MAX: usize = 1 << 20;

/// Bytes of a change under way, until its result is known: a rename has two names of 255 bytes and
/// two handles, and may have to be recorded together with its session.
pub(crate) const DURABLE_CHANGE_BYTES: usize = 1_024;

/// Bytes of a session's record without its replies: its client's name and principal.
const DURABLE_SESSION_RECORD_BYTES: usize = CLIENT_NAME_BYTES_MAX + 512;

const _: () = assert!(DURABLE_BYTES_MAX as u64 <= dafs_journal::CHECKPOINT_BYTES_MAX);
const _: () = assert!(DURABLE_REPLY_BYTES_MAX < dafs_journal::RECORD_BYTES_MAX);
// Earlier runs, ended sessions and changes under way leave room for the others.
const _: () = assert!(
    DURABLE_RECOVERED_BYTES_MAX
        + DURABLE_PROMISED_BYTES_MAX
        + REPLY_BYTES_MAX
        + REPLY_SESSIONS_MAX * DURABLE_SESSION_RECORD_BYTES
        + DURABLE_CHANGES_MAX * DURABLE_CHANGE_BYTES
        <= DURABLE_BYTES_MAX - DURABLE_RESERVE_BYTES - DURABLE_BYTES_MAX / 16
);

/// Components of a path in one lookup.
pub const PATH_COMPONENTS_MAX: usize = 256;

/// Opens, locks and delegations of all clients by which the next server knows that they are back. Each has
/// a digest at most, of 21 bytes in a message to that server.
pub const STATE_DIGESTED_MAX: usize = 2500;

/// Time between two sweeps of the stores, in nanoseconds.
pub const SWEEP_EVERY_NS: u64 = 10_000_000_000;

/// Time between two checks of leases, in nanoseconds.
pub const LEASES_EVERY_NS: u64 = 500_000_000;

/// Clients whose state is looked at in one go of a check for records without state.
pub const RECORDS_CHECKED_AT_ONCE: usize = 256;

/// Time between two checks of grace, recalls and local changes, in nanoseconds.
pub const RECALLS_EVERY_NS: u64 = 100_000_000;

/// Time for which the groups of a principal are used without another lookup, in nanoseconds.
pub const IDENTITY_FRESH_NS: u64 = 600_000_000_000;

/// Principals whose users are kept: as many as there are contexts.
pub const IDENTITIES_MAX: usize = 65_536;

/// Names of owners whose numbers are kept, and numbers whose names are kept.
pub const OWNERS_MAX: usize = 65_536;

/// Time after which a name or number that the database of users does not have is asked again, in
/// nanoseconds.
pub const OWNER_ABSENT_NS: u64 = 60_000_000_000;

/// The same for one about which the database could not be asked.
pub const OWNER_FAILED_NS: u64 = 5_000_000_000;

/// The least time between two reports of such failures in the log, in nanoseconds.
pub const OWNER_NEWS_NS: u64 = 60_000_000_000;

/// How often a start asks a busy store what became of a change: ten minutes of pauses, in which a store
/// searches an export of many million files.
pub(crate) const BUSY_STORE_TRIES_MAX: u32 = 120_000;
/// The pause between two of these calls.
pub(crate) const BUSY_STORE_PAUSE: Duration = Duration::from_millis(5);

/// Time after which a frame that no entry names any more is written again, if a reader of another host
/// may be reading it. Memory for a reader's entries is read behind that for its frames, but a CPU may
/// load early, and a long answer with a CRC is sent some time after its sum. An RDMA device may read a
/// frame again for an answer that was lost, but its client takes no read that has lasted for more than a
/// second. The time of a change may be as old as the interval of the clock thread: so the delay is 3
/// seconds at least.
pub(crate) const EXPOSED_REUSE_DELAY_NS: u64 = 4_000_000_000;

/// Frames of one file that are filled at a time.
pub(crate) const EXPOSED_FILLS_MAX: usize = 64;

/// Blocks of a file that are filled together, if they are in memory: 64 KiB, aligned.
pub(crate) const EXPOSED_GROUP_BLOCKS: u64 = 16;

/// Groups of a window for which requests have asked in [`EXPOSED_PERIOD_NS`], from which on the other groups of
/// the window are filled, too: a quarter. Requests for a window are 8 then in place of 32, and the window takes
/// four times the frames of these groups at most.
pub(crate) const EXPOSED_REMAINDER_GROUPS: usize = 8;

/// Windows of a file that wait for that.
pub(crate) const EXPOSED_REMAINDERS_MAX: usize = 1024;

/// Files of 64 KiB at most that share an exposure. Each is watched for local changes, which keeps a
/// descriptor. When so many have a part, the exposure ends and another one begins, but not before this
/// time is over.
pub(crate) const EXPOSED_SMALL_FILES_MAX: usize = 4096;
/// See [`EXPOSED_SMALL_FILES_MAX`].
pub(crate) const EXPOSED_SMALL_FILES_TIME_NS: u64 = 60_000_000_000;

/// Time without a request that reads an exposed file after which its exposure ends. The server sees no hits,
/// so readers may be there: they ask again.
pub(crate) const EXPOSED_IDLE_NS: u64 = 600_000_000_000;

/// Segments that an exposure may lose to other files. Then it ends, and another one begins: readers
/// keep the mappings of all segments as long as it lasts.
pub(crate) const EXPOSED_GONE_MAX: usize = 512;

/// Segments in a row that a file with more than its share keeps because requests ask for their
/// blocks.
pub(crate) const EXPOSED_SPARED_MAX: u32 = 8;

/// The least time between two searches for memory that a file can give to another one: for one with
/// less than its share, and for others.
pub(crate) const EXPOSED_SEARCH_NS: u64 = 10_000_000;
/// See [`EXPOSED_SEARCH_NS`].
pub(crate) const EXPOSED_WISH_NS: u64 = 100_000_000;

/// The least time between two such searches for each exposed file. A search takes less than a tenth of
/// it for each.
pub(crate) const EXPOSED_SEARCH_FILE_NS: u64 = 10_000;

/// Time in which a block must be asked for twice to be exposed.
pub(crate) const EXPOSED_PERIOD_NS: u64 = 10_000_000_000;

/// Blocks of a window that are published in that time. So an entry repeats after 7 days at the
/// earliest.
pub(crate) const EXPOSED_PUBLICATIONS_MAX: u32 = 2000;

/// Changes of an exposed block in that time after which it rests, and for how long.
pub(crate) const EXPOSED_CHANGES_MAX: u8 = 3;
/// See [`EXPOSED_CHANGES_MAX`].
pub(crate) const EXPOSED_REST_NS: u64 = 30_000_000_000;

const _: () = assert!(UNDO_BYTES_PER_CLIENT_MAX >= UNDO_BYTES_PER_LOCK_MAX);
const _: () = assert!(CLIENT_NAME_BYTES_MAX >= OWNER_BYTES_MAX);
const _: () = assert!(FENCE_NAME_BYTES_MAX <= u16::MAX as usize);
const _: () = assert!(COURTESY_CLIENTS_MAX < CLIENT_COUNT_MAX);
