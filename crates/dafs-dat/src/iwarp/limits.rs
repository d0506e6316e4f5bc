//! Every bound of the iWARP provider, in one place.

/// Bytes of the staging area that small arrivals of all connections pass.
pub const STAGING_BYTES: usize = 64 * 1024;

/// From this size on, in bytes, a request announces data that is received straight into place. What
/// does not fit a message is moved by RDMA for not being copied; what does is cheaper to copy than
/// to receive by itself.
pub const LARGE_DATA_BYTES: u64 = 4 * 1024 + 1;

/// A rest of payload at least this long, in bytes, is received straight into place even when
/// nothing was announced.
pub const DIRECT_BYTES_MIN: usize = 4 * 1024;

/// The payload of a tagged FPDU between our own peers: whole pages, and with all framing below the
/// 64 KiB that the length field and a segmentation offload can take.
pub const OWN_PAYLOAD_BYTES: usize = 60 * 1024;

/// The largest FPDU to our own peers, in bytes, that carries [`OWN_PAYLOAD_BYTES`].
pub const OWN_FPDU_BYTES: usize = OWN_PAYLOAD_BYTES + 20;

/// The smallest FPDU size that may be configured, in bytes: a read request must fit in one.
pub const FPDU_BYTES_MIN: usize = 128;

/// The largest FPDU size that may be configured, in bytes.
pub const FPDU_BYTES_MAX: usize = 65_540;

/// Up to this size, in bytes, what goes out in one call is put together first: copying a few words
/// is cheaper than having the kernel walk a list of them.
pub const COALESCE_BYTES_MAX: usize = 256;

/// The most pieces of one `sendmsg`: those of some 80 FPDUs of an Ethernet.
pub const SEND_CHUNK_COUNT_MAX: usize = 256;

/// The most pieces of one `sendmsg` of large FPDUs, where more gain nothing and keep the receiver
/// waiting.
pub const LARGE_SEND_CHUNK_COUNT_MAX: usize = 64;

/// While headers of this many bytes wait for the kernel no more are built, so that the area they
/// lie in is used up and starts anew even on a connection that is always congested.
pub const HEADER_AREA_BYTES_MAX: usize = 16 * 1024;

/// About the most bytes handed over in one `sendmsg`.
pub const SEND_BATCH_BYTES: usize = 1024 * 1024;

/// About the most bytes sent, and as many received, for one connection before the next has its
/// turn.
pub const TURN_BYTES: usize = 4 * 1024 * 1024;

/// Turns for which a connection that can no longer send is still received from.
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

/// Events taken from the kernel in one turn.
pub const POLL_EVENT_COUNT: usize = 64;

/// Connections that are tried without asking the kernel first.
pub const ACTIVE_COUNT_MAX: usize = 8;

/// Connections tried so that may wait for long: trying them costs no more than asking the kernel.
pub const ACTIVE_COUNT_FEW: usize = 2;

/// Empty tries after which one of few connections is no longer tried so.
pub const ACTIVE_MISS_COUNT_MAX: u32 = 1024;

/// Empty tries after which one of more connections is no longer tried so: each try of each is a call
/// of the kernel, which one question answers for all.
pub const ACTIVE_MISS_COUNT_MAX_OF_MANY: u32 = 2;

/// Polls between two questions to the kernel while all connections are tried directly.
pub const POLLS_PER_KERNEL_POLL: u32 = 32;

/// The same, while there are others.
pub const POLLS_PER_KERNEL_POLL_FOR_OTHERS: u32 = 8;

/// Turns of a stranger's connection between two looks at the TCP segment size.
pub const TURNS_PER_SEGMENT_SIZE: u32 = 256;

/// Milliseconds for which an initiator waits before it says its first word to a stranger.
pub const FIRST_WORD_DELAY_MS: u64 = 10;

/// Milliseconds after which a stranger that says nothing is nudged; each time twice as many.
pub const NUDGE_AFTER_MS: u64 = 200;

/// How often.
pub const NUDGE_COUNT_MAX: u32 = 4;

/// Connections at a time that are too many, and are told so when they have said what they want
/// and then closed; more are closed at once.
pub const TURNED_AWAY_COUNT_MAX: usize = 32;

/// Seconds between two lines in the log about the same client that speaks no iWARP.
pub const COMPLAINT_INTERVAL_SECONDS: u64 = 60;

/// Such clients remembered at a time; more are not written about.
pub const COMPLAINT_COUNT_MAX: usize = 32;

/// Milliseconds for which a listener rests when the process is out of descriptors.
pub const LISTENER_REST_MS: u64 = 100;

/// Seconds without traffic after which TCP asks whether the peer still lives.
pub const KEEPALIVE_SECONDS: u64 = 60;

/// Seconds between such questions; the system's number of them go unanswered before the end.
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
