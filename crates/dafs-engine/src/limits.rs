//! Every bound of the DAFS front end, in one place. Those that an administrator may change are defaults of
//! [`SessionLimits`]; the others are fixed.

use dafs_dat::connections::ConnectionLimits;

/// Bounds of sessions that the configuration can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLimits {
    /// Connections of one server, in all stages and at all of its front ends.
    pub connections_max: usize,
    /// Connections from one network address.
    pub connections_per_address_max: usize,
    /// Credits that a session starts with, if the client asks for no fewer.
    pub credits_initial: u16,
    /// Credits that one session may come to have.
    pub credits_per_session_max: u16,
    /// Credits of all sessions of one reactor; above it none are raised and idle ones withdrawn.
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
    /// Those of connections.
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
            credentials_max: 64,
            handshake_seconds: 10,
        }
    }
}

/// Bytes of the first message of a connection (DAFS 4.3).
pub(crate) const FIRST_MESSAGE_BYTES: u32 = 4096;

/// Smallest message sizes that a session may negotiate: everything but inline data and listings
/// must fit.
pub(crate) const MESSAGE_BYTES_MIN: u32 = 1024;

/// Where padded inline data begins, from the start of the message (DAFS O23).
pub(crate) const INLINE_WRITE_HEADER_BYTES: u32 = 512;

/// Bytes of a small reply slot; most replies fit.
pub(crate) const SMALL_REPLY_BYTES: usize = 1024;

/// Proofs of identity that a connection may try. Each failed one costs time, and memory when it
/// begins a session too.
pub(crate) const PROOFS_MAX: u32 = 8;

/// Bytes of one staging chunk, through which data passes where the transport cannot reach the
/// client's memory directly. About the size that stays in a core's cache.
pub(crate) const STAGING_CHUNK_BYTES: usize = 256 << 10;

/// Bytes of entries with attributes that a reactor lists itself; in one listing, and in one turn but for the
/// last listing. Each may be a look at an object on the disk.
pub(crate) const LISTING_TURN_BYTES: usize = 32 << 10;

/// So many times as much is listed without attributes.
pub(crate) const LISTING_PLAIN_SHARE: usize = 16;

/// Staging chunks of one reactor and transport.
pub(crate) const STAGING_CHUNKS_MAX: usize = 64;

/// Staging chunks that one session may hold: as many as the longest transfer needs by default.
pub(crate) const STAGING_CHUNKS_PER_SESSION_MAX: usize = 16;

/// Staging chunks that all sessions of one host, or of one user of this host, may hold.
pub(crate) const STAGING_CHUNKS_PER_ORIGIN_MAX: usize = 32;

/// Staging chunks that one transfer may hold.
pub(crate) const STAGING_CHUNKS_PER_TRANSFER_MAX: usize = 4;

/// Longest append, in bytes. All of it is fetched before it begins. The protocol asks for at least
/// 64 KiB (DAFS 13.3).
pub(crate) const APPEND_BYTES_MAX: usize = STAGING_CHUNKS_PER_TRANSFER_MAX * STAGING_CHUNK_BYTES;

/// Staging chunks kept when nothing is going on.
pub(crate) const STAGING_CHUNKS_IDLE: usize = 2;

/// Client buffers named by one request.
pub(crate) const BUFFERS_PER_REQUEST_MAX: usize = 64;

/// Sends and RDMA of one connection that are posted and not completed; a client that reads its
/// replies stays far below.
pub(crate) const WORK_POSTED_MAX: u32 = 1024;

/// Calls to one client that may be without an answer, and how many a client takes that does not say.
pub(crate) const BACK_CREDITS_MAX: u16 = 16;
pub(crate) const BACK_CREDITS_DEFAULT: u16 = 4;

/// Calls to one client that wait for a credit.
pub(crate) const BACK_WAITING_MAX: usize = 4096;

/// How long a client may take to answer a call before its back-control channel is given up.
pub(crate) const BACK_ANSWER_SECONDS: u64 = 15;

/// How many calls at least a client hears during a lease while it holds delegations. It gives a channel
/// up that has been silent for twice as long, and goes by no delegation then.
pub(crate) const BACK_CALLS_PER_LEASE: u32 = 6;

/// Requests of asynchronous batches that one session may have outstanding or unreported.
pub(crate) const BATCH_OWED_MAX: usize = 2048;

/// The longest time that a request of a batch is held back for others to gather.
pub(crate) const BATCH_WINDOW_MAX: std::time::Duration = std::time::Duration::from_secs(10);

/// What is worth carrying out before a window ends: bytes, and requests.
pub(crate) const BATCH_GATHER_BYTES: usize = 1 << 20;
pub(crate) const BATCH_GATHER_COUNT: usize = 256;

/// Transfers of batches that are carried out together, and the RDMA they may take.
pub(crate) const LOAD_TRANSFERS_MAX: usize = 128;
pub(crate) const LOAD_MOVES_MAX: usize = 256;

/// Loads of one connection under way, and how many are begun before others have their turn.
pub(crate) const LOADS_ACTIVE_MAX: usize = 4;
pub(crate) const LOADS_PER_TURN: usize = 8;

/// Threads for calls that may wait for a device, and for each export whose store waits for other machines.
/// A single client gets 16 of them.
pub(crate) const POOL_THREADS_MAX: usize = 20;

/// One of so many of these is kept for clients that have nothing done by another one, and as many for
/// hosts that have not.
pub(crate) const POOL_KEPT_SHARE: usize = 8;

/// Failed proofs for one user name from one host before the next one has to wait.
pub(crate) const GUESSES_FREE: u32 = 5;

/// Failed proofs from one host, for whatever names.
pub(crate) const GUESSES_HOST_FREE: u32 = 30;

/// How long the next one waits, at first; twice as long after each further failure, up to the other two.
pub(crate) const GUESS_DELAY_FIRST: std::time::Duration = std::time::Duration::from_secs(1);
pub(crate) const GUESS_DELAY_MAX: std::time::Duration = std::time::Duration::from_secs(60);
pub(crate) const GUESS_HOST_DELAY_MAX: std::time::Duration = std::time::Duration::from_secs(8);

/// How long after the last one failures are forgotten.
pub(crate) const GUESS_MEMORY: std::time::Duration = std::time::Duration::from_secs(600);

/// Hosts with failed proofs that are remembered, and user names of each.
pub(crate) const GUESSES_HOSTS_MAX: usize = 4096;
pub(crate) const GUESSES_NAMES_MAX: usize = 64;

/// Bytes of a user name that are logged.
pub(crate) const LOGGED_NAME_BYTES_MAX: usize = 64;

/// Bytes of one line in the password file.
pub(crate) const PASSWORD_LINE_BYTES_MAX: usize = 1024;

/// How long reactors may take to tell of their sessions.
pub(crate) const SURVEY_TIME: std::time::Duration = std::time::Duration::from_secs(2);

/// How long a session may take to finish what it has under way when a fence shuts it out; then it is
/// ended.
pub const FENCE_DRAIN_TIME: std::time::Duration = std::time::Duration::from_secs(5);

const _: () = assert!(INLINE_WRITE_HEADER_BYTES.is_multiple_of(8));
const _: () = assert!(INLINE_WRITE_HEADER_BYTES < MESSAGE_BYTES_MIN);
const _: () = assert!(APPEND_BYTES_MAX >= 65_536);
const _: () = assert!(SMALL_REPLY_BYTES >= MESSAGE_BYTES_MIN as usize);
