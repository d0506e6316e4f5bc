//! Every bound of the iWARP provider, in one place.

/// Size of the staging area for small arrivals of all connections.
pub const STAGING_BYTES: usize = 64 * 1024;

/// Requests of at least this size, in bytes, announce data that the receiver reads straight into
/// place. Data that does not fit a message moves by RDMA to avoid a copy. Smaller data is cheaper
/// to copy than to receive separately.
pub const LARGE_DATA_BYTES: u64 = 4 * 1024 + 1;

/// The shortest rest of a payload, in bytes, that the receiver reads straight into place without an
/// announcement.
pub const DIRECT_BYTES_MIN: usize = 4 * 1024;

/// The payload of a tagged FPDU between peers of this implementation: whole pages, and with all
/// framing below the 64 KiB that the length field and segmentation offload support.
pub const OWN_PAYLOAD_BYTES: usize = 60 * 1024;

/// The largest FPDU to peers of this implementation, in bytes; it carries [`OWN_PAYLOAD_BYTES`].
pub const OWN_FPDU_BYTES: usize = OWN_PAYLOAD_BYTES + 20;

/// The smallest FPDU size that may be configured, in bytes: a read request must fit in one.
pub const FPDU_BYTES_MIN: usize = 128;

/// The largest FPDU size that may be configured, in bytes.
pub const FPDU_BYTES_MAX: usize = 65_540;

/// Up to this size, in bytes, the output of one call is copied together first: that is cheaper than
/// a list of pieces for the kernel.
pub const COALESCE_BYTES_MAX: usize = 256;

/// The longest answer to a read out of granted memory that is copied where a CRC was agreed, in
/// bytes: such memory may change between the sum and the send.
pub const COPIED_ANSWER_BYTES_MAX: usize = 4096;

/// The most pieces of one `sendmsg`: those of some 80 FPDUs on Ethernet.
pub const SEND_CHUNK_COUNT_MAX: usize = 256;

/// The most pieces of one `sendmsg` of large FPDUs. More gain nothing and delay the receiver.
pub const LARGE_SEND_CHUNK_COUNT_MAX: usize = 64;

/// While headers of this many bytes wait for the kernel, no more are built. So the header area
/// drains and restarts, even on a connection that is always congested.
pub const HEADER_AREA_BYTES_MAX: usize = 16 * 1024;

/// About the most bytes of one `sendmsg`.
pub const SEND_BATCH_BYTES: usize = 1024 * 1024;

/// About the most bytes sent, and as many received, for one connection before the next is served.
pub const TURN_BYTES: usize = 4 * 1024 * 1024;

/// Bytes of a turn that a record of TLS takes at least: opening it costs as much as those.
pub const TURN_BYTES_PER_RECORD: usize = 512;

/// Turns in which the adapter still receives from a connection that can no longer send.
pub const DRAIN_TURN_COUNT_MAX: usize = 16;

/// The most sends, writes and reads queued on one endpoint.
pub const WORK_COUNT_MAX: usize = 64 * 1024;

/// The most receives posted on one endpoint.
pub const RECEIVE_COUNT_MAX: usize = 64 * 1024;

/// The most reads that either side may have outstanding on a connection (RFC 6581 carries 14
/// bits; Linux siw takes 128).
pub const READ_DEPTH_MAX: u16 = 128;

/// Connections accepted from one listener in one turn.
pub const ACCEPT_COUNT_PER_TURN: usize = 16;

/// The backlog of a listening socket.
pub const LISTEN_BACKLOG: i32 = 1024;

/// Epoll events taken in one turn.
pub const POLL_EVENT_COUNT: usize = 64;

/// The most connections that are read directly, without an epoll call before.
pub const ACTIVE_COUNT_MAX: usize = 8;

/// With at most this many such connections, each may stay idle for long: reading them costs no more
/// than an epoll call.
pub const ACTIVE_COUNT_FEW: usize = 2;

/// Consecutive empty reads after which one of few connections leaves the direct list.
pub const ACTIVE_MISS_COUNT_MAX: u32 = 1024;

/// The same with more connections: each empty read is a system call, and one epoll call answers for
/// all of them.
pub const ACTIVE_MISS_COUNT_MAX_OF_MANY: u32 = 2;

/// Polls between two epoll calls while the adapter reads all connections directly.
pub const POLLS_PER_KERNEL_POLL: u32 = 32;

/// The same, while there are other connections.
pub const POLLS_PER_KERNEL_POLL_FOR_OTHERS: u32 = 8;

/// Turns between two checks of the TCP segment size, for peers of another implementation.
pub const TURNS_PER_SEGMENT_SIZE: u32 = 256;

/// Milliseconds for which an initiator delays its first FPDU to a peer of another implementation.
pub const FIRST_WORD_DELAY_MS: u64 = 10;

/// Milliseconds of silence after which such a peer gets a zero-length write (a nudge); doubled each
/// time.
pub const NUDGE_AFTER_MS: u64 = 200;

/// The most nudges.
pub const NUDGE_COUNT_MAX: u32 = 4;

/// Connections above the limit that are rejected after their request has arrived; further ones are
/// closed at once.
pub const TURNED_AWAY_COUNT_MAX: usize = 32;

/// Seconds between two log lines about one client that does not speak iWARP.
pub const COMPLAINT_INTERVAL_SECONDS: u64 = 60;

/// Such clients remembered at a time; further ones are not logged.
pub const COMPLAINT_COUNT_MAX: usize = 32;

/// Certificates of clients that a turn judges again, each with two or three checks of signatures.
pub const JUDGED_COUNT_PER_TURN: usize = 4;

/// Milliseconds between two looks for certificates that must be judged again.
pub const JUDGE_INTERVAL_MS: u64 = 1000;

/// The same while more of them wait.
pub const JUDGE_AGAIN_MS: u64 = 10;

/// Milliseconds for which a listener pauses when the process has no file descriptors.
pub const LISTENER_REST_MS: u64 = 100;

/// Seconds without traffic before the first TCP keepalive probe.
pub const KEEPALIVE_SECONDS: u64 = 60;

/// Seconds between keepalive probes; the system's limit of unanswered probes ends the connection.
pub const KEEPALIVE_INTERVAL_SECONDS: u64 = 10;

/// Queue capacity, in entries, that an idle connection may keep.
pub const IDLE_QUEUE_CAPACITY: usize = 32;

/// Bytes that the header area of an idle connection may keep after a burst.
pub const IDLE_HEADER_BYTES: usize = 1024;

const _: () = {
    assert!(OWN_FPDU_BYTES <= FPDU_BYTES_MAX);
    assert!(OWN_PAYLOAD_BYTES.is_multiple_of(4096));
    assert!(LARGE_SEND_CHUNK_COUNT_MAX >= 2 * crate::GATHER_SEGMENTS_MAX);
    assert!(SEND_CHUNK_COUNT_MAX >= LARGE_SEND_CHUNK_COUNT_MAX);
    assert!(STAGING_BYTES >= 4096);
};
