//! Every bound of the service, in one place.
//!
//! Bounds of what all clients have together are shared among hosts: each gets more only while it has
//! less than is left, so that one alone gets half ([`crate::has_share`]).

use std::time::Duration;

/// Clients known at once that have used their key. A client that is not known cannot hold state.
pub const CLIENT_COUNT_MAX: usize = 61_440;

/// Addresses that are known of an NFS client.
pub const CLIENT_ADDRESSES_MAX: usize = 16;

/// Records of NFS clients that have not used their key yet; above its share of that, a host loses the one
/// of its own that waits longest.
pub const UNCONFIRMED_CLIENTS_MAX: usize = 4_096;

/// NFS clients whose lease is over and whose state is kept by courtesy; above that, those of hosts with
/// many that are away longest lose it.
pub const COURTESY_CLIENTS_MAX: usize = 16_384;

/// The part of all opens that is kept by courtesy, and of all delegations, but so many in any case; above
/// that, those of hosts with many that are away longest lose them.
pub(crate) const COURTESY_FILES_SHARE: usize = 8;
/// See [`COURTESY_FILES_SHARE`].
pub(crate) const COURTESY_FILES_MIN: usize = 64;

/// Clients whose lease is over that are ended at a time for room that somebody needs, and the part of a
/// bound that is enough then.
pub(crate) const ENDED_FOR_ROOM_MAX: usize = 16;
/// See [`ENDED_FOR_ROOM_MAX`].
pub(crate) const ROOM_MADE_FRACTION: usize = 1024;

/// How long state is kept by courtesy after a lease has ended, unless somebody needs it.
pub const COURTESY_TIME: Duration = Duration::from_secs(24 * 3600);

/// Bytes of a client's own name.
pub const CLIENT_NAME_BYTES_MAX: usize = 1024;

/// Bits of a state-id that count. Enough for a million opens per second for twelve days; 32 would
/// last for an hour.
pub(crate) const STATE_NUMBER_BITS: u32 = 40;

/// Opens of one client.
pub const OPENS_PER_CLIENT_MAX: usize = 65_536;

/// How often an open looks again when others make and remove its name meanwhile.
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

/// Byte ranges locked in one file; each change looks at all of them.
pub const LOCK_RANGES_PER_FILE_MAX: usize = 16_384;

/// Byte ranges that all clients have locked.
pub const LOCK_RANGES_MAX: usize = 1_000_000;

/// Locks of all clients that are kept on disk: persistent ones that are held, and what their holders
/// have left behind.
pub const KEPT_LOCKS_MAX: usize = 65_536;

/// Of these, the ones of a client of one name, with what its older instances have left behind.
pub const KEPT_LOCKS_PER_CLIENT_MAX: usize = KEPT_LOCKS_MAX / 4;

/// Memory for a database of state; an entry is a few hundred bytes and read once.
pub(crate) const DATABASE_CACHE_BYTES: usize = 1 << 20;

/// Files with locks left behind that one sweep looks at.
pub(crate) const LEFT_FILES_SWEPT_MAX: usize = 64;

/// Owners that wait for a lock on one file; others poll.
pub const WAITERS_PER_FILE_MAX: usize = 256;

/// Owners that wait for a lock on any file.
pub const WAITERS_MAX: usize = 65_536;

/// How long a DAFS client that waits for a lock keeps its turn after it has asked, in nanoseconds.
pub const LOCK_TURN_NS: u64 = 1_000_000_000;

/// Delegations of one client, with those that were revoked and not freed.
pub const DELEGATIONS_PER_CLIENT_MAX: usize = 32_768;

/// Delegations of all clients. Each may hold a descriptor of the process.
pub const DELEGATIONS_MAX: usize = 250_000;

/// Layouts of one client, with what was revoked and not freed.
pub const LAYOUTS_PER_CLIENT_MAX: usize = 65_536;

/// Layouts of all clients.
pub const LAYOUTS_MAX: usize = 500_000;

/// Layouts of one client and one file system that are recalled file by file at a time, even if they are
/// most of what it has.
pub const LAYOUT_RECALLS_ONE_BY_ONE_MAX: usize = 16;

/// Devices that one client is told of changes of.
pub const DEVICES_WATCHED_MAX: usize = 1024;

/// Files of one store whose ends are looked for at a time by callers that need them: each keeps a thread waiting
/// that others need.
pub(crate) const ENDS_ASKED_MAX: usize = 4;

/// Files that a store is asked about without another look at what is due.
pub(crate) const FENCED_AT_ONCE: usize = 256;

/// How long it is looked for what was written by layouts that were given back together, before that is
/// answered; the rest is done after.
pub(crate) const RETURN_SETTLE_TIME: Duration = Duration::from_secs(2);

/// Components of which is remembered when one client has written to their files through this server
/// instead; more, and the last of these times stands for all.
pub(crate) const LATE_COMPONENTS_MAX: usize = 1024;

/// How long whoever asks for a layout is to ask again while data servers let go of one that was taken away.
pub(crate) const LAYOUT_PATIENCE_NS: u64 = 1_000_000_000;

/// How long after its start who takes back an open is to try again while data servers do not say how far the
/// file reaches: they may be just starting as well, and are tried every two seconds. No more than half of a grace
/// period.
pub(crate) const RECLAIM_PATIENCE_NS: u64 = 5_000_000_000;

/// How long who looks for the end of a file waits for its turn, which comes at once unless data servers are slow.
pub(crate) const END_TURN_TIME: Duration = Duration::from_millis(20);

/// How long it waits for their answer.
pub(crate) const END_ANSWER_TIME: Duration = Duration::from_secs(1);

/// Parts of a file that a layout may be held of after others were given back.
pub(crate) const LAYOUT_SPANS_MAX: usize = 64;

/// How long a call waits for other clients before its client is told to ask again.
pub const RECALL_WAIT: Duration = Duration::from_millis(100);

/// Delegations or layouts that are taken away because they were not given back in time, or are given back
/// together, in one hold of the table's lock.
pub(crate) const ENDED_AT_ONCE_MAX: usize = 256;

/// Calls that wait for other clients at a time; more are told to ask again at once. They wait on
/// threads that others need for the disk.
pub(crate) const RECALL_WAITERS_MAX: usize = 8;

/// How often a call that has got others out of its way is attempted again at once: they may be of several
/// kinds. Then it sleeps in between.
pub(crate) const CLEARED_MAX: u32 = 4;

/// How long a waiting call sleeps before it looks again by itself.
pub(crate) const RECALL_NAP: Duration = Duration::from_millis(10);

/// How long after a recall no new delegation is granted on a file, in nanoseconds.
pub const RECALL_QUIET_NS: u64 = 15_000_000_000;

/// Files whose last recall is remembered; recalls of others are forgotten at once.
pub const RECALLED_FILES_MAX: usize = 65_536;

/// How long after a write without an open no new delegation is granted on a file, in nanoseconds.
/// Longer than such a write takes.
pub const WRITE_QUIET_NS: u64 = 10_000_000_000;

/// How long the answer of a delegation's holder is good for everybody who asks, in nanoseconds.
pub(crate) const ATTR_ANSWER_FRESH_NS: u64 = 100_000_000;

/// How long a delegation's holder may take to answer before it loses the delegation, and how long
/// its answer is kept for the one who asked, in nanoseconds.
pub(crate) const ATTR_ANSWER_WAIT_NS: u64 = 3_000_000_000;

/// Files kept open for callers without opens.
pub const STATELESS_FILES_MAX: usize = 8_192;

/// How long a file may be kept open for callers without opens after its last use, in nanoseconds.
pub(crate) const STATELESS_IDLE_NS: u64 = 10_000_000_000;

/// How long the rights of a caller without an open are believed while times, but neither mode nor
/// owner of the file have changed, in nanoseconds. An access list may have changed with them.
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

/// Length of a name on a fence list, in bytes: that of a client's name, with what says whose it is.
pub const FENCE_NAME_BYTES_MAX: usize = CLIENT_NAME_BYTES_MAX + 8;

/// Files and file systems with a fence list.
pub const FENCE_LISTS_MAX: usize = 16_384;

/// Fence lists that one sweep looks at to see whether their files are still there.
pub(crate) const FENCE_LISTS_SWEPT_MAX: usize = 64;

/// Files under locks whose changes may have to be undone. Each has a log of its own in the state
/// directory.
pub const UNDO_LOCKS_MAX: u64 = 1_024;

/// Of these, the ones of a client of one name, with what its older instances have left behind.
pub const UNDO_LOCKS_PER_CLIENT_MAX: u64 = UNDO_LOCKS_MAX / 4;

/// Bytes saved for one such lock; a write that needs more saved is refused for want of space, and
/// nothing of it happens. A write saves what it overwrites, in blocks of 16 KiB, once; one behind the
/// end of the file saves nothing.
pub const UNDO_BYTES_PER_LOCK_MAX: u64 = 256 << 20;

/// Bytes saved for all such locks.
pub const UNDO_BYTES_MAX: u64 = 1 << 30;

/// Of these, the ones for locks of a client of one name.
pub const UNDO_BYTES_PER_CLIENT_MAX: u64 = UNDO_BYTES_MAX / 2;

/// The least and the longest time between two attempts to put a file back after one has failed, in
/// nanoseconds.
pub(crate) const UNDO_PAUSE_MIN_NS: u64 = 1_000_000_000;
/// See [`UNDO_PAUSE_MIN_NS`].
pub(crate) const UNDO_PAUSE_MAX_NS: u64 = 60_000_000_000;

/// Changes with durable replies that are under way at once.
pub const DURABLE_CHANGES_MAX: usize = 65_536;

/// The same of changes that nothing is kept of, on exports whose other changes are kept. All may be of
/// one name, and each looks at those before it.
pub const GUARDED_CHANGES_MAX: usize = 8_192;

/// The same of one host, or of one client where hosts are not known.
pub const GUARDED_CHANGES_SHARE_MAX: usize = GUARDED_CHANGES_MAX / 8;

/// How long such a change waits for others, in nanoseconds, before its client is asked to come again.
pub const GUARD_WAIT_NS: u64 = 5_000_000_000;

/// How often a change that empties a file looks again when its name leads to another one meanwhile.
pub(crate) const DURABLE_PICTURES_MAX: usize = 16;

/// The longest reply that the journal keeps, in bytes. Who asks after a restart for a longer one gets an
/// error instead.
pub const DURABLE_REPLY_BYTES_MAX: usize = 64 << 10;

/// Sessions of earlier runs that the journal keeps the replies of. Above that, the client that has most
/// loses its oldest first, of the host that has most.
pub const DURABLE_SESSIONS_MAX: usize = 4_096;

/// Bytes of records that the journal keeps, in memory and in each checkpoint.
pub const DURABLE_BYTES_MAX: usize = 512 << 20;

/// Of these, what is left to replies when no more changes are taken, so that those which were taken are
/// told as they were answered.
pub const DURABLE_RESERVE_BYTES: usize = DURABLE_BYTES_MAX / 8;

/// The same of the sessions of earlier runs, together.
pub const DURABLE_RECOVERED_BYTES_MAX: usize = DURABLE_BYTES_MAX / 8;

/// What a record takes besides the reply in it, in bytes, at most.
pub const DURABLE_RECORD_BYTES: usize = 72;

/// The same as [`DURABLE_BYTES_MAX`] of the sessions to which front doors have promised that replies to all their changes are
/// kept: so much is there for them whatever others do.
pub const DURABLE_PROMISED_BYTES_MAX: usize = DURABLE_BYTES_MAX / 4;

/// The same of one session. A change that might make it more is refused.
pub const DURABLE_SESSION_BYTES_MAX: usize = 1 << 20;

/// The same of a change that is under way, until it is known what came of it: a rename has two names
/// of 255 bytes and two handles, and a session may have to be told with it.
pub(crate) const DURABLE_CHANGE_BYTES: usize = 1_024;

/// The same of a session, without its replies: its client's name and principal.
const DURABLE_SESSION_RECORD_BYTES: usize = CLIENT_NAME_BYTES_MAX + 512;

const _: () = assert!(DURABLE_BYTES_MAX as u64 <= dafs_journal::CHECKPOINT_BYTES_MAX);
const _: () = assert!(DURABLE_REPLY_BYTES_MAX < dafs_journal::RECORD_BYTES_MAX);
// What earlier runs and ended sessions have left, and changes under way, leave room for the others.
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

/// Time between two sweeps of the stores, in nanoseconds.
pub const SWEEP_EVERY_NS: u64 = 10_000_000_000;

/// Time between two looks at leases, in nanoseconds.
pub const LEASES_EVERY_NS: u64 = 500_000_000;

/// Time between two looks at grace, recalls and local changes, in nanoseconds.
pub const RECALLS_EVERY_NS: u64 = 100_000_000;

/// How often a start asks a busy store what became of a change: ten minutes of pauses, in which a store
/// searches an export of many million files.
pub(crate) const BUSY_STORE_TRIES_MAX: u32 = 120_000;
/// The pause between two of these calls.
pub(crate) const BUSY_STORE_PAUSE: Duration = Duration::from_millis(5);

const _: () = assert!(UNDO_BYTES_PER_CLIENT_MAX >= UNDO_BYTES_PER_LOCK_MAX);
const _: () = assert!(CLIENT_NAME_BYTES_MAX >= OWNER_BYTES_MAX);
const _: () = assert!(FENCE_NAME_BYTES_MAX <= u16::MAX as usize);
const _: () = assert!(COURTESY_CLIENTS_MAX < CLIENT_COUNT_MAX);
