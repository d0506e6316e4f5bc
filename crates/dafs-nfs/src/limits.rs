//! Every bound of the NFS front ends, in one place.

use dafs_service::limits::{
    DURABLE_PROMISED_BYTES_MAX, DURABLE_RECORD_BYTES, DURABLE_SESSION_BYTES_MAX,
};

/// The largest file data of one READ or WRITE, in bytes.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// The largest NFSv4 request, RPC header included, in bytes.
pub const REQUEST_BYTES_MAX: u32 = TRANSFER_BYTES_MAX + 16 * 1024;

/// The largest NFSv4 reply, RPC header included, in bytes.
pub const RESPONSE_BYTES_MAX: u32 = TRANSFER_BYTES_MAX + 16 * 1024;

/// The largest reply that is cached for a retry, in bytes. It covers every reply to a modifying
/// compound that clients send. Larger replies are those to READ and READDIR, which need no
/// exactly-once semantics.
pub const RESPONSE_CACHED_BYTES_MAX: u32 = 8 * 1024;

/// Bytes of cached replies of all sessions together. Beyond it a session that holds more than its
/// share, by its weight, is asked to use fewer slots, and drops a reply for each new one.
pub const REPLY_CACHE_BYTES_MAX: usize = 256 << 20;

/// Bytes of cached replies that every session may hold.
pub const REPLY_CACHE_SHARE_BYTES: usize = 8 * 1024;

/// The reciprocal of the part of [`REPLY_CACHE_BYTES_MAX`] that is not shared out, so that it lasts
/// until clients have come down.
pub const REPLY_CACHE_SPARE_SHARE: usize = 8;

/// Time between two divisions of the cache while it is short, in nanoseconds.
pub const REPLY_CACHE_SHARED_NS: u64 = 100_000_000;

/// The smallest request size of a fore channel: RPC header with an AUTH_SYS credential without
/// groups, and a COMPOUND of SEQUENCE and one operation with a file handle.
pub const REQUEST_BYTES_MIN: u32 = 24 + 36 + 8 + 12 + 36 + 72;

/// The smallest reply size of a fore channel: RPC header, empty tag, SEQUENCE.
pub const RESPONSE_BYTES_MIN: u32 = 24 + 12 + 44;

/// The smallest request size of a back channel: RPC header with AUTH_SYS, and a CB_COMPOUND of
/// CB_SEQUENCE and CB_RECALL.
pub const BACK_REQUEST_BYTES_MIN: u32 = 24 + 36 + 8 + 16 + 48 + 96;

/// The smallest reply size of a back channel: RPC header, CB_SEQUENCE, CB_RECALL.
pub const BACK_RESPONSE_BYTES_MIN: u32 = 24 + 12 + 44 + 8;

/// Operations of one back channel request: CB_SEQUENCE and one callback operation.
pub const BACK_OPERATIONS_MIN: u32 = 2;

/// How long a connection takes the user of its last proven caller without a look into the table
/// that all connections share, in nanoseconds. A change of groups is seen so much later.
pub const PROVEN_REUSED_NS: u64 = 1_000_000_000;

/// The lane of the pool for users of certificates, which may wait for the machines of a database of users. A
/// server looks up users of principals there, too.
pub const USERS_LANE: u64 = u64::MAX;

/// The lane of the pool for calls to the hosts of NFSv3 clients, which may be gone.
pub const PEERS_LANE: u64 = u64::MAX - 1;

/// Owners of NFSv3 clients that wait for a lock. Further ones are refused.
pub const BLOCKED_MAX: usize = 8192;

/// Owners of one NFSv3 client that wait for a lock.
pub const BLOCKED_PER_CLIENT_MAX: usize = 1024;

/// How often the server calls the host of an owner to say that a lock is granted.
pub const GRANTED_TRIES_MAX: u32 = 3;

/// The time between two calls to a client that is to learn of the server's restart, in nanoseconds.
pub const NOTIFY_EVERY_NS: u64 = 5_000_000_000;

/// Names of owners that one job looks up. Further ones take a turn of their own.
pub const OWNER_LOOKUPS_MAX: usize = 256;

/// The time of the database of users for one job, in nanoseconds. Then it counts as failed.
pub const OWNER_LOOKUPS_NS: u64 = 5_000_000_000;

/// Operations of one COMPOUND.
pub const OPERATIONS_MAX: u32 = 128;

/// The first minor version of NFSv4 that the server supports.
pub const MINOR_VERSION_MIN: u32 = 1;
/// The last minor version. See [`MINOR_VERSION_MIN`].
pub const MINOR_VERSION_MAX: u32 = 2;

/// WRITE data that the reactor itself hands to the file, in bytes. A longer write goes to the pool.
pub const WRITE_INLINE_BYTES_MAX: usize = 256 << 10;

/// The interval at which clients are asked to report their I/O at data servers, in seconds. No
/// request waits for a report.
pub const LAYOUT_STATS_SECONDS: u32 = 60;

/// The longest text of a symbolic link, in bytes.
pub const LINK_TEXT_BYTES_MAX: usize = 4095;

/// Initial limit of slots of a new session.
pub const SLOTS_INITIAL_MAX: u32 = 128;

/// Slots that a busy session can grow to.
pub const SLOTS_MAX: u32 = 1024;

/// Slots that a session keeps when memory is short.
pub const SLOTS_MIN: u32 = 4;

/// Sessions of one client.
pub const SESSIONS_PER_CLIENT_MAX: usize = 64;

/// Sessions of all clients.
pub const SESSIONS_MAX: usize = 131_072;

/// The number of client records at which dead ones are removed.
pub const CLIENTS_PRUNE_MIN: usize = 1024;

/// Connections of one session that can carry callbacks.
pub const BACK_CONNECTIONS_MAX: usize = 16;

/// Slots of a back channel that are used at once.
pub const BACK_SLOTS_MAX: u32 = 16;

/// Callbacks that wait for a slot or a connection, per client.
pub const BACK_WAITING_MAX: usize = 16_384;

/// The silence after which callbacks leave a connection, in nanoseconds. Requests must meanwhile
/// come over another connection that cannot carry callbacks. A client that was cut off reconnects
/// long before TCP reports that the old connection is dead.
pub const BACK_SILENCE_NS: u64 = 1_000_000_000;

/// The number of retries of a callback that the client delayed or did not understand yet.
pub const BACK_TRIES_MAX: u32 = 5;

/// Time before the retry of a delayed callback, in nanoseconds.
pub const BACK_RETRY_NS: u64 = 100_000_000;

/// The longest request that is hashed whole to distinguish retries from new requests, in bytes. Of
/// a longer one (WRITE data) the digest covers both ends and a sample of the middle.
pub const DIGEST_WHOLE_BYTES_MAX: usize = 16 * 1024;

/// Time between two rounds of cleanup, in nanoseconds.
pub const TIDY_EVERY_NS: u64 = 1_000_000_000;

/// Bytes of directory entries with attributes that a reactor lists itself: in one listing, and in
/// all of one turn except the last. Each entry may need a disk access.
pub const READDIR_INLINE_BYTES_MAX: usize = 32 * 1024;

/// A listing without attributes may be so many times as long.
pub const READDIR_PLAIN_SHARE: usize = 16;

/// The longest listing with attributes, in bytes, even if the client asks for more. It bounds the
/// time that other requests wait for the same thread.
pub const READDIR_LOOK_BYTES_MAX: usize = 256 * 1024;

/// Pieces of one READ_PLUS, except for a last data piece that takes all the rest.
pub const READ_PLUS_PIECES_MAX: u32 = 64;

/// The longest COPY that is executed before its reply, in bytes. A longer one is shortened, or
/// becomes asynchronous.
pub const COPY_SYNCHRONOUS_BYTES_MAX: u64 = 64 << 20;

/// Bytes that a COPY copies before other jobs may use its thread.
pub const COPY_SLICE_BYTES: u64 = 4 << 20;

/// Asynchronous copies under way, of one client.
pub const COPIES_PER_CLIENT_MAX: usize = 16;

/// Asynchronous copies under way, of all clients.
pub const COPIES_RUNNING_MAX: usize = 256;

/// Finished asynchronous copies whose result is kept.
pub const COPIES_ENDED_MAX: usize = 1024;

/// The preferred multiple of READ and WRITE lengths (NFSv3 FSINFO), in bytes.
pub const TRANSFER_BYTES_MULTIPLE: u32 = 4096;

/// The preferred length of a NFSv3 READDIR, in bytes.
pub const READDIR_BYTES_PREFERRED: u32 = 64 * 1024;

/// Parts of the cache of NFSv3 replies, each under a lock of its own.
pub const DUPLICATE_SHARDS: usize = 16;

/// Replies that each part keeps.
pub const DUPLICATES_PER_SHARD_MAX: usize = 4096;

/// The largest NFSv3 reply that is cached, in bytes. Replies to non-idempotent requests are
/// shorter.
pub const DUPLICATE_REPLY_BYTES_MAX: usize = 1024;

/// How long a NFSv3 reply is cached, in nanoseconds. Clients retry after a minute.
pub const DUPLICATE_AGE_NS_MAX: u64 = 120_000_000_000;

/// Bytes at each end of long arguments that are compared to distinguish NFSv3 requests. The first
/// part covers all but the data of a WRITE.
pub const DUPLICATE_SAMPLE_BYTES: usize = 256;

/// Symbolic links that the resolution of a path to mount may follow.
pub const MOUNT_LINKS_MAX: u32 = 40;

/// Components that a path to mount may have, with those of its links.
pub const MOUNT_STEPS_MAX: u32 = 256;

/// Entries of the list of mounts that MOUNT DUMP returns.
pub const MOUNTS_MAX: usize = 1024;

/// Sessions at once whose replies are durable. Further sessions have no durable replies.
pub const DURABLE_SESSIONS_MAX: usize = 512;

/// Sessions of one client whose replies are durable.
pub const DURABLE_SESSIONS_PER_CLIENT_MAX: usize = 16;

/// Slots of such a session.
pub const DURABLE_SLOTS_MAX: u32 = 32;

/// The most operations of a request in such a session.
pub const DURABLE_OPERATIONS_MAX: u32 = 16;

/// The longest reply that the journal keeps as a whole, in bytes. Of a longer one it keeps the
/// results of the operations that have changed an object.
pub const DURABLE_REPLY_BYTES_MAX: usize = 1024;

/// The longest result of an operation that has changed an object, in bytes, with the file handle
/// that it leaves.
pub const DURABLE_RESULT_BYTES_MAX: usize = 256;

/// The most that the journal keeps for such a session, in bytes: one request for each slot, each
/// operation of which may have changed an object.
pub const DURABLE_SESSION_BYTES: usize = DURABLE_SLOTS_MAX as usize
    * (DURABLE_REPLY_BYTES_MAX
        + DURABLE_RECORD_BYTES
        + (DURABLE_OPERATIONS_MAX as usize - 1)
            * (DURABLE_RESULT_BYTES_MAX + DURABLE_RECORD_BYTES));

const _: () = assert!(DURABLE_SESSION_BYTES <= DURABLE_SESSION_BYTES_MAX / 2);
const _: () = assert!(DURABLE_SESSIONS_MAX * DURABLE_SESSION_BYTES <= DURABLE_PROMISED_BYTES_MAX);
const _: () = assert!(DURABLE_SLOTS_MAX <= SLOTS_INITIAL_MAX);

const _: () = assert!(DURABLE_SLOTS_MAX * DURABLE_OPERATIONS_MAX <= 1 << 16);
const _: () = assert!(DURABLE_OPERATIONS_MAX <= u64::BITS);
const _: () = assert!(RESPONSE_CACHED_BYTES_MAX < RESPONSE_BYTES_MAX);
const _: () = assert!(RESPONSE_CACHED_BYTES_MAX as usize <= REPLY_CACHE_SHARE_BYTES);
const _: () = assert!(SLOTS_MIN <= SLOTS_INITIAL_MAX && SLOTS_INITIAL_MAX <= SLOTS_MAX);
