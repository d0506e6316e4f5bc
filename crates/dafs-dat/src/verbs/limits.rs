//! Every limit of the verbs provider.

/// The longest piece of one RDMA write or read, in bytes; longer work is split. Devices take up to
/// 2 GiB.
pub const PIECE_BYTES_MAX: usize = 1 << 30;

/// The least capacity of a completion queue. A further queue is made when the completions of a new
/// connection do not fit.
pub const COMPLETION_COUNT: u32 = 8192;

/// Completions taken from one queue before the next is polled.
pub const REAP_COUNT_PER_TURN: usize = 1024;

/// Events of the connection manager taken in one turn.
pub const CM_EVENT_COUNT_PER_TURN: usize = 64;

/// Polls between two checks of the connection manager while no set-up is in progress; each is a
/// system call.
pub const POLLS_PER_CM_POLL: u32 = 32;

/// The most sends, writes and reads queued on one endpoint.
pub const WORK_COUNT_MAX: usize = 64 * 1024;

/// The most reads that either side may have outstanding on a connection; the wire format has one
/// byte for it.
pub const READ_DEPTH_MAX: u8 = 128;

/// The backlog of a listener.
pub const LISTEN_BACKLOG: i32 = 1024;

/// Timeout of the connection manager for an address, and again for a route, in milliseconds.
pub const RESOLVE_TIMEOUT_MS: i32 = 2000;

/// Seconds to wait for the device to bind a memory window. Then the connection ends. A device needs
/// microseconds.
pub const BIND_SECONDS: u64 = 1;

/// Seconds to wait for the device to flush the work of a connection.
pub const DRAIN_SECONDS: u64 = 1;

/// Milliseconds to wait at the drop of an adapter for what the device has not sent.
pub const DROP_MILLISECONDS: u64 = 100;

/// The most idle registrations in the cache, besides their budget in bytes.
pub const IDLE_REGISTRATION_COUNT_MAX: usize = 256;

/// Staging blocks kept for later messages.
pub const STAGING_COUNT_MAX: usize = 16;

/// The smallest staging block, in bytes.
pub const STAGING_BYTES_MIN: usize = 16 * 1024;

/// The largest staging block that is kept, in bytes.
pub const STAGING_BYTES_MAX: usize = 1024 * 1024;

/// Private data in a request of InfiniBand's connection manager, in bytes, after the part that
/// librdmacm uses for IP addresses.
pub const CM_PRIVATE_DATA_BYTES: usize = 56;

const _: () = {
    assert!(crate::PRIVATE_DATA_BYTES_MAX + super::private::TRAILER_BYTES <= CM_PRIVATE_DATA_BYTES);
    assert!(STAGING_BYTES_MIN <= STAGING_BYTES_MAX);
    assert!(PIECE_BYTES_MAX <= u32::MAX as usize);
};
