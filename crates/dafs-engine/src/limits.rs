//! Every bound of the server, in one place. Bounds that an administrator may change are defaults of
//! [`SessionLimits`]. The others are fixed.

use dafs_dat::connections::ConnectionLimits;
use std::time::Duration;

/// Bounds of sessions that the configuration can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLimits {
    /// Connections of one server, in all stages and at all of its front ends.
    pub connections_max: usize,
    /// Connections from one network address.
    pub connections_per_address_max: usize,
    /// Initial credits of a session, unless the client asks for fewer.
    pub credits_initial: u16,
    /// The most credits of one session.
    pub credits_per_session_max: u16,
    /// Credits of all sessions of one transport of a reactor. When the last eighth is in use, sessions
    /// share the others by their weights.
    pub credits_total_max: usize,
    /// Longest request, in bytes.
    pub request_bytes_max: u32,
    /// Longest response, in bytes.
    pub response_bytes_max: u32,
    /// Longest read or write, in bytes.
    pub transfer_bytes_max: u32,
    /// Credentials registered by one client.
    pub credentials_max: u32,
    /// Seconds from connecting to the end of authentication.
    pub handshake_seconds: u64,
}

impl SessionLimits {
    /// Returns the limits of connections.
    pub fn connections(&self) -> ConnectionLimits {
        let (total, per_address) = (self.connections_max, self.connections_per_address_max);
        ConnectionLimits { total, per_address }
    }
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            connections_max: 16_384,
            connections_per_address_max: 1024,
            credits_initial: 8,
            credits_per_session_max: 256,
            credits_total_max: 16_384,
            request_bytes_max: 16_384,
            response_bytes_max: 16_384,
            transfer_bytes_max: 4 << 20,
            credentials_max: 256,
            handshake_seconds: 10,
        }
    }
}

/// The reciprocal of the part of a transport's credits that is left to sessions that grow while
/// others have not given theirs back yet.
pub(crate) const CREDITS_RESERVED_SHARE: usize = 8;

/// The time after which the shares of scarce credits are computed again, because wishes change.
pub(crate) const CREDITS_SHARED_TIME: Duration = Duration::from_millis(50);

/// Bytes of the first message of a connection (DAFS 4.3).
pub(crate) const FIRST_MESSAGE_BYTES: u32 = 4096;

/// Smallest message sizes that a session may negotiate: all messages but inline data and listings
/// must fit.
pub(crate) const MESSAGE_BYTES_MIN: u32 = 1024;

/// The time that a proof by GSS outlasts its ticket, for clocks that differ.
pub(crate) const GSS_CLOCK_SKEW: Duration = Duration::from_secs(60);

/// The lane of the pool for tokens of GSS and for users of principals, which may wait for the machines of a
/// database of users. A server takes those of its other front ends there, too.
pub(crate) const GSS_LANE: u64 = u64::MAX;

/// The offset of padded inline data from the start of the message (DAFS O23), for a client without a
/// usable wish.
pub(crate) const INLINE_WRITE_HEADER_BYTES: u32 = 512;

/// The alignment of padded inline data in memory: a cache line. The kernel and the store in memory
/// copy from aligned data faster; no store takes it without a copy.
pub(crate) const INLINE_WRITE_ALIGNMENT_BYTES: u32 = 64;

/// Bytes of a small reply slot. Most replies fit.
pub(crate) const SMALL_REPLY_BYTES: usize = 1024;

/// The most authentication attempts of a connection. A failed one costs time, and also memory when
/// it begins a session. With GSS all tokens of a context are one attempt, and a success ends the count.
pub(crate) const PROOFS_MAX: u32 = 8;

/// Bytes of one staging chunk. Data passes through it where the transport cannot access the
/// client's memory directly. It is about the size that stays in a core's cache.
pub(crate) const STAGING_CHUNK_BYTES: usize = 256 << 10;

/// Bytes of directory entries with attributes that a reactor lists itself: in one listing, and in
/// all of one turn except the last. Each entry may need a disk access.
pub(crate) const LISTING_TURN_BYTES: usize = 32 << 10;

/// A listing without attributes may be so many times as long.
pub(crate) const LISTING_PLAIN_SHARE: usize = 16;

/// Staging chunks of one reactor and transport.
pub(crate) const STAGING_CHUNKS_MAX: usize = 80;

/// Those of one direction: 16 MiB. The others are left to the other direction: to reads, whatever the
/// disks do, and to writes, whatever readers take.
pub(crate) const FLOW_CHUNKS_MAX: usize = 64;

/// The most of one direction for one session: enough for the longest transfer by default.
pub(crate) const FLOW_CHUNKS_PER_SESSION_MAX: usize = 16;

/// The most of one direction for all sessions of one host, or of one user of this host.
pub(crate) const FLOW_CHUNKS_PER_ORIGIN_MAX: usize = 32;

/// Staging chunks with data that was pulled for one file system and that it has not taken, so that its
/// disk holds up no writes to others.
pub(crate) const PULLED_CHUNKS_PER_STORE_MAX: usize = 48;

/// Staging chunks that one transfer may hold.
pub(crate) const STAGING_CHUNKS_PER_TRANSFER_MAX: usize = 4;

/// Longest append, in bytes. All of its data is fetched before it begins. The protocol requires at
/// least 64 KiB (DAFS 13.3).
pub(crate) const APPEND_BYTES_MAX: usize = STAGING_CHUNKS_PER_TRANSFER_MAX * STAGING_CHUNK_BYTES;

/// Staging chunks that are kept when idle.
pub(crate) const STAGING_CHUNKS_IDLE: usize = 2;

/// Client buffers named by one request.
pub(crate) const BUFFERS_PER_REQUEST_MAX: usize = 64;

/// Sends and RDMA of one connection that are posted and not completed. A client that reads its
/// replies stays far below.
pub(crate) const WORK_POSTED_MAX: u32 = 1024;

/// Calls to one client that may be unanswered, and the default for a client that states no limit.
pub(crate) const BACK_CREDITS_MAX: u16 = 16;
pub(crate) const BACK_CREDITS_DEFAULT: u16 = 4;

/// Calls to one client that wait for a credit.
pub(crate) const BACK_WAITING_MAX: usize = 4096;

/// The timeout of a call to a client, after which its back-control channel is dropped.
pub(crate) const BACK_ANSWER_SECONDS: u64 = 15;

/// The least number of calls to a client during a lease while it holds delegations. A client drops
/// a channel that has been silent for two of these intervals, and then honours no delegation.
pub(crate) const BACK_CALLS_PER_LEASE: u32 = 6;

/// Cache hints of one connection, for the stores of one lane, that wait to be followed.
pub(crate) const HINTS_WAITING_MAX: usize = 64;

/// The most hints that a job follows before other jobs get their turn.
pub(crate) const HINTS_PER_JOB: usize = 16;

/// Requests of asynchronous batches that one session may have outstanding or unreported.
pub(crate) const BATCH_OWED_MAX: usize = 2048;

/// Ended requests of batches of a client that X_CANCEL can still be told of: 16 bytes each.
pub(crate) const BATCH_ENDED_MAX: usize = 1024;

/// Items of one X_CANCEL.
pub(crate) const CANCEL_ITEMS_MAX: usize = 512;

/// The longest time that a request of a batch is delayed to gather others.
pub(crate) const BATCH_WINDOW_MAX: Duration = Duration::from_secs(10);

/// The amount of work that ends the window of a batch early: bytes, and requests.
pub(crate) const BATCH_GATHER_BYTES: usize = 1 << 20;
pub(crate) const BATCH_GATHER_COUNT: usize = 256;

/// Transfers of batches that are executed together, and their RDMA operations.
pub(crate) const LOAD_TRANSFERS_MAX: usize = 128;
pub(crate) const LOAD_MOVES_MAX: usize = 256;

/// Loads of one connection under way, and the most that begin in one turn.
pub(crate) const LOADS_ACTIVE_MAX: usize = 4;
pub(crate) const LOADS_PER_TURN: usize = 8;

/// Reads from disks that a reactor leaves to the kernel at a time, a power of two. The pool carries out
/// others.
pub(crate) const DISK_READS_MAX: usize = 256;

/// Those of one host, or of one user of this host. The disk has them before reads of others that come
/// later.
pub(crate) const DISK_READS_PER_ORIGIN_MAX: usize = 64;

/// The longest range that a front end without an engine has read into the page cache by a ring, in
/// bytes. All such reads of a reactor fill the same memory of this size.
pub(crate) const PAGE_READ_BYTES_MAX: usize = 64 << 10;

/// The time after which a reactor without other work asks the kernel again to begin reads that it
/// could not begin, and the time after which the reactor gives its ring up.
pub(crate) const DISK_RETRY_TIME: Duration = Duration::from_millis(1);
/// See [`DISK_RETRY_TIME`].
pub(crate) const DISK_STALL_TIME: Duration = Duration::from_secs(1);

/// Threads for calls that may wait for a device. Each export whose store waits for other machines
/// has as many. A single client gets 16 of them.
pub(crate) const POOL_THREADS_MAX: usize = 20;

/// Threads of a pool end after they had no job for so long, but for as many as are reserved for a
/// host without running jobs, and one.
pub(crate) const POOL_IDLE_TIME: Duration = Duration::from_secs(10);

/// The reciprocal of the share of threads that is reserved for clients without running jobs. An
/// equal share is reserved for hosts without running jobs.
pub(crate) const POOL_KEPT_SHARE: usize = 8;

/// Failed proofs for one user name from one host before the next one has to wait.
pub(crate) const AUTH_FAILURES_FREE: u32 = 5;

/// Failed proofs from one host, for any names, before the next one has to wait.
pub(crate) const AUTH_FAILURES_HOST_FREE: u32 = 30;

/// The delay after the first failure. Each further failure doubles it, up to the two maxima.
pub(crate) const AUTH_DELAY_FIRST: Duration = Duration::from_secs(1);
pub(crate) const AUTH_DELAY_MAX: Duration = Duration::from_secs(60);
pub(crate) const AUTH_HOST_DELAY_MAX: Duration = Duration::from_secs(8);

/// Failures are forgotten this long after the last one.
pub(crate) const AUTH_FAILURES_MEMORY: Duration = Duration::from_secs(600);

/// The number of hosts with failed proofs that are remembered, and of user names of each host.
pub(crate) const AUTH_FAILURES_HOSTS_MAX: usize = 4096;
pub(crate) const AUTH_FAILURES_NAMES_MAX: usize = 64;

/// Bytes of a user name that are logged.
pub(crate) const LOGGED_NAME_BYTES_MAX: usize = 64;

/// Bytes of one line in the password file.
pub(crate) const PASSWORD_LINE_BYTES_MAX: usize = 1024;

/// Files of which a reactor fills more blocks while it has no other work.
pub(crate) const REMAINDERS_MAX: usize = 64;

/// The most segments of exposed memory that one peer is shown.
pub(crate) const SHOWN_SEGMENTS_MAX: usize = 4096;

/// The most segments that are shown for one question where a device pins their pages: some 0.1 ms each
/// that other clients wait. The client asks for the others.
pub(crate) const PINNED_SEGMENTS_MAX: usize = 16;

/// The most segments that a device pins for one peer between two ticks. A peer that opens and closes files
/// without pause would have others wait all the time.
pub(crate) const PINNED_SEGMENTS_PER_TICK_MAX: usize = 128;

/// The age of the last look for local changes beyond which no exposed memory is read by RDMA: the
/// server is held up, and a local program may have changed a file. Clients that map memory have the same limit.
pub(crate) const EXPOSED_LOOK_AGE_MAX: Duration = Duration::from_secs(1);

/// The timeout for reactors to report their sessions.
pub(crate) const SURVEY_TIME: Duration = Duration::from_secs(2);

/// The time for a fenced session to finish its requests under way. Then it is ended.
pub const FENCE_DRAIN_TIME: Duration = Duration::from_secs(5);

const _: () = assert!(INLINE_WRITE_ALIGNMENT_BYTES.is_power_of_two());
const _: () = assert!(INLINE_WRITE_HEADER_BYTES.is_multiple_of(INLINE_WRITE_ALIGNMENT_BYTES));
const _: () = assert!(MESSAGE_BYTES_MIN.is_multiple_of(INLINE_WRITE_ALIGNMENT_BYTES));
const _: () = assert!(FIRST_MESSAGE_BYTES.is_multiple_of(INLINE_WRITE_ALIGNMENT_BYTES));
const _: () = assert!(INLINE_WRITE_HEADER_BYTES < MESSAGE_BYTES_MIN);
const _: () = assert!(APPEND_BYTES_MAX >= 65_536);
const _: () = assert!(DISK_READS_MAX.is_power_of_two());
const _: () = assert!(DISK_READS_PER_ORIGIN_MAX < DISK_READS_MAX);
const _: () = assert!(FLOW_CHUNKS_MAX < STAGING_CHUNKS_MAX);
const _: () = assert!(FLOW_CHUNKS_PER_ORIGIN_MAX < FLOW_CHUNKS_MAX);
const _: () = assert!(PULLED_CHUNKS_PER_STORE_MAX < FLOW_CHUNKS_MAX);
const _: () = assert!(SMALL_REPLY_BYTES >= MESSAGE_BYTES_MIN as usize);

/// The most memory that the check of a password may take, in KiB.
pub(crate) const CHECK_MEMORY_KIB_MAX: u32 = 1 << 20;

/// The time after which memory that checks of passwords did not need is freed.
pub(crate) const CHECK_MEMORY_IDLE: Duration = Duration::from_secs(10);
