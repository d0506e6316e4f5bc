//! Every bound of the verbs provider, in one place.

/// The longest piece of one RDMA write or read, in bytes; longer work is divided. Devices take up
/// to 2 GiB.
pub const PIECE_BYTES_MAX: usize = 1 << 30;

/// Completions that one completion queue holds at least; a further queue is made when those that
/// connections may need do not fit.
pub const COMPLETION_COUNT: u32 = 8192;

/// Completions taken from one queue before the next has its turn.
pub const REAP_COUNT_PER_TURN: usize = 1024;

/// Events of the connection manager taken in one turn.
pub const CM_EVENT_COUNT_PER_TURN: usize = 64;

/// Polls between two questions to the connection manager while nothing is being set up; each is a
/// system call.
pub const POLLS_PER_CM_POLL: u32 = 32;

/// The most sends, writes and reads queued on one endpoint.
pub const WORK_COUNT_MAX: usize = 64 * 1024;

/// The most reads that either side may have outstanding on a connection; a byte carries it.
pub const READ_DEPTH_MAX: u8 = 128;

/// The backlog of a listener.
pub const LISTEN_BACKLOG: i32 = 1024;

/// Milliseconds that the connection manager may take to resolve an address, and again for a route.
pub const RESOLVE_TIMEOUT_MS: i32 = 2000;

/// Seconds for which a connection whose work is being flushed by the device is waited for.
pub const DRAIN_SECONDS: u64 = 1;

/// Registrations that nobody uses at the moment but that are kept, besides their budget in bytes.
pub const IDLE_REGISTRATION_COUNT_MAX: usize = 256;

/// Staging blocks that are kept for the next message that needs one.
pub const STAGING_COUNT_MAX: usize = 16;

/// The smallest staging block, in bytes.
pub const STAGING_BYTES_MIN: usize = 16 * 1024;

/// The largest staging block that is kept, in bytes.
pub const STAGING_BYTES_MAX: usize = 1024 * 1024;

/// Private data that InfiniBand's connection manager carries in a request, in bytes, after the
/// part that librdmacm keeps for IP addresses.
pub const CM_PRIVATE_DATA_BYTES: usize = 56;

const _: () = {
    assert!(crate::PRIVATE_DATA_BYTES_MAX + super::private::TRAILER_BYTES <= CM_PRIVATE_DATA_BYTES);
    assert!(STAGING_BYTES_MIN <= STAGING_BYTES_MAX);
    assert!(PIECE_BYTES_MAX <= u32::MAX as usize);
};
