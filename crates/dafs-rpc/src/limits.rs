//! Every fixed limit of this crate, and the defaults of those that [`crate::server::Config`] and
//! [`crate::client::Options`] can change.

use std::time::Duration;

/// Bytes of a reply's head. The results of most calls fit, a read of one page among them.
pub(crate) const HEAD_BYTES: usize = 8 << 10;

/// The longest part of a record before its results: the header of a reply with the longest
/// verifier, the length of protected results and the sequence number (RFC 2203 section 5.3.2.2).
pub(crate) const FRONT_BYTES_MAX: usize =
    dafs_wire::rpc::limits::SUCCESS_HEADER_BYTES + GSS_MIC_BYTES_MAX + 2 * 4;

/// Heads that a thread caches for its next replies.
pub(crate) const HEADS_KEPT_MAX: usize = 128;

/// The most bulk data that lies inside a reply's head, if there is room; longer data gets memory of
/// its own.
pub(crate) const BULK_IN_HEAD_BYTES_MAX: usize = 4 << 10;

/// Sizes of pooled memory blocks. The odd sizes hold a round amount of data and its headers.
pub(crate) const BLOCK_BYTES: [usize; 6] =
    [4 << 10, 16 << 10, 68 << 10, 264 << 10, (1 << 20) + (16 << 10), (4 << 20) + (16 << 10)];

/// Bytes of free blocks of one size that a thread caches.
pub(crate) const BLOCKS_KEPT_BYTES_MAX: usize = 4 << 20;

/// Bytes of free blocks of one size that all threads share.
pub(crate) const BLOCKS_SHARED_BYTES_MAX: usize = 32 << 20;

/// Bytes that one read takes from a connection. A record that does not fit gets memory of its own.
pub(crate) const RECEIVE_BYTES: usize = 256 << 10;

/// Bytes of one read of a client.
pub(crate) const CLIENT_RECEIVE_BYTES: usize = 64 << 10;

/// Sizes of the staging memory in which servers read long calls and write long replies. The odd
/// sizes hold a round amount of results and the reply header.
pub(crate) const STAGING_BYTES: [usize; 4] = [8 << 10, 36 << 10, 260 << 10, (1 << 20) + (16 << 10)];

/// Bytes of free staging memory of one size that a port caches.
pub(crate) const STAGING_KEPT_BYTES_MAX: usize = 4 << 20;

/// Credits that a client on RDMA grants a server for callbacks.
pub(crate) const BACK_CREDITS: u32 = 4;

/// Answers to callbacks that wait for the server to take them. The limit exceeds the credits,
/// because the server may have taken an answer before the client knows.
pub(crate) const BACK_ANSWERS_MAX: u32 = 64;

/// The most credits that a client on RDMA uses.
pub(crate) const CREDITS_MAX: u32 = 1024;

/// Empty polls before a waiter begins to yield the CPU, if a poll makes no system call.
pub(crate) const SPINS_BEFORE_YIELD: u32 = 8;

/// The same, if it makes one. No answer comes so soon, and the server may need this CPU to give it.
pub(crate) const SPINS_BEFORE_YIELD_BY_SYSTEM_CALL: u32 = 1;

/// Times that a spinning leader checks whether the threads that want the lock have got it.
pub(crate) const CONTENDER_SPINS: u32 = 10_000;

/// Bytes of one read from a connection whose last record was large. It is short, so that little of
/// the next record must be copied into place.
pub(crate) const RECEIVE_BYTES_BEFORE_LARGE: usize = 1 << 10;

/// From this number of outstanding calls on, a client batches up to half of them, because the
/// server has enough to do meanwhile.
pub(crate) const GATHERING_CALLS_MIN: usize = 4;

/// Bytes of a record in which a client searches for data that belongs in a sink.
pub(crate) const HEAD_TO_SEARCH_BYTES_MAX: usize = 4 << 10;

/// A record of at least this length is large.
pub(crate) const LARGE_RECORD_BYTES: usize = 16 << 10;

/// Idle time of a connection before the kernel probes its peer.
pub(crate) const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// Time between two probes.
pub(crate) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Unanswered probes before the kernel ends the connection.
pub(crate) const KEEPALIVE_PROBES: u32 = 4;

/// Reactors of one group.
pub(crate) const REACTORS_MAX: usize = 256;

/// Reads from one connection before the reactor serves others.
pub(crate) const READS_PER_TURN: usize = 4;

/// Connections accepted before the reactor serves existing ones.
pub(crate) const ACCEPTS_PER_TURN: usize = 64;

/// Pause of accepting when there are no file descriptors.
pub(crate) const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Events taken from the kernel at once.
pub(crate) const EVENTS_PER_TURN: usize = 256;

/// Parts of output that are gathered without allocating.
pub(crate) const PARTS_INLINE: usize = 128;

/// Calls of one connection before the reactor serves others. Their replies are sent together.
pub(crate) const CALLS_PER_TURN: u32 = 64;

/// Bytes of memory in queued records that make the reactor send them.
pub(crate) const FLUSH_BYTES: usize = 1 << 20;

/// Fragments of one record. Some senders cut a record of a mebibyte into pieces of 4 KiB or less; a
/// sender of more fragments attacks the server.
pub(crate) const FRAGMENTS_PER_RECORD_MAX: u32 = 4096;

/// Divisor of stall timeouts while memory for records is short. Over RDMA it applies to reading a
/// call and to delivering its replies.
pub(crate) const STALL_TIMEOUT_DIVISOR: u64 = 8;

/// The longest timeout for reading a whole call of a peer over RDMA while others wait for memory.
pub(crate) const RDMA_FETCH_SHORT_TIMEOUT: Duration = Duration::from_secs(1);

/// Divisor of the memory limit of all connections; the quotient is the limit of the connections of
/// one host.
pub(crate) const RDMA_HOST_SHARE: usize = 4;

/// The longest time between two checks of the timeouts, in milliseconds.
pub(crate) const TICK_MILLISECONDS: u64 = 1000;

/// Calls that a new peer over RDMA may have in flight.
pub(crate) const RDMA_CREDITS_INITIAL: u32 = 4;

/// The most outstanding callbacks to one peer over RDMA, even if it grants more credits.
pub(crate) const RDMA_BACK_CREDITS: u32 = 8;

/// Incomplete sends to a peer over RDMA per granted credit. A peer beyond that sends calls and does
/// not take the replies.
pub(crate) const RDMA_SENDS_PER_CREDIT: u32 = 4;

/// Bytes of receive slots of all connections of one reactor. Above it, the reactor raises no peer's
/// credits.
pub(crate) const RDMA_RECEIVE_BYTES_MAX: usize = 256 << 20;

/// Approximate memory of one posted work request in a transport, in bytes.
pub(crate) const RDMA_WORK_BYTES: usize = 128;

/// Turns without an event after which the reactor polls an adapter less often, as long as another
/// one has work. A poll costs a system call on some transports.
pub(crate) const QUIET_TURNS: u32 = 512;

/// Turns of the reactor from one poll of a quiet adapter to the next.
pub(crate) const QUIET_STRIDE: u32 = 16;

/// Connections that waited for memory and are resumed in one turn.
pub(crate) const STARVED_PER_TURN: usize = 64;

/// Exchanges (the chunks of one call) that a reactor caches.
pub(crate) const RDMA_CALL_CHUNKS_KEPT_MAX: usize = 256;

/// Sequence numbers of a GSS context that a server takes out of order. The Linux client sends as
/// many calls on each of its connections before it encodes one again.
pub(crate) const GSS_WINDOW: u32 = 1024;

/// GSS contexts of a server.
pub(crate) const GSS_CONTEXTS_MAX: usize = 65_536;

/// Divisor of the limit of contexts; the quotient is the limit of those that have carried no
/// verified call.
pub(crate) const GSS_UNPROVEN_DIVISOR: usize = 8;

/// Contexts in one part of the table; a large table has several parts with a lock each.
pub(crate) const GSS_CONTEXTS_PER_SHARD: usize = 1024;

/// Parts of the table of contexts.
pub(crate) const GSS_SHARDS_MAX: usize = 64;

/// Requests for contexts that wait for a thread, or have one. Later legs of a context may exceed
/// this limit, and the three below, by an eighth.
pub(crate) const GSS_QUEUED_MAX: usize = 8192;

/// The same for one host: all users of a host that was started again come at once.
pub(crate) const GSS_QUEUED_PER_HOST_MAX: usize = 1024;

/// The tokens of those requests together, in bytes. Each may have 64 KiB.
pub(crate) const GSS_QUEUED_BYTES_MAX: usize = 64 << 20;

/// The same for one host.
pub(crate) const GSS_QUEUED_BYTES_PER_HOST_MAX: usize = 4 << 20;

/// Contexts that wait for another token of their client.
pub(crate) const GSS_HALF_OPEN_MAX: usize = 1024;

/// The same for one host.
pub(crate) const GSS_HALF_OPEN_PER_HOST_MAX: usize = 64;

/// Contexts that one host may begin in a second. Each costs about a tenth of a millisecond of a
/// core and reads files.
pub(crate) const GSS_BEGINS_PER_SECOND: u32 = 256;

/// The time for whose contexts a host that was quiet may begin at once.
pub(crate) const GSS_BURST: Duration = Duration::from_secs(4);

/// Hosts with a bucket of their own for that rate.
pub(crate) const GSS_RATED_HOSTS_MAX: usize = 4096;

/// Timeout for the tokens of one context together.
pub(crate) const GSS_HALF_OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for which a context outlives its ticket, because the clocks of hosts differ.
pub(crate) const GSS_GRACE: Duration = Duration::from_secs(60);

/// Timeout for a peer to end its direction of a connection that the server has ended.
pub(crate) const LINGER_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections of one reactor that wait for that.
pub(crate) const LINGERING_MAX: usize = 1024;

/// The same for one host.
pub(crate) const LINGERING_PER_HOST_MAX: usize = 64;

/// Bytes of the certificates of a client that is not trusted, up to which they are kept for the case
/// that it will be.
pub(crate) const TLS_KEPT_CHAIN_BYTES_MAX: usize = 8 << 10;

/// Bytes of data that are sealed at once in user space.
pub(crate) const TLS_SEND_BYTES: usize = 64 << 10;

/// Bytes that one read takes from a connection whose records are opened in user space.
pub(crate) const TLS_RECEIVE_BYTES: usize = 68 << 10;

/// The longest MIC of any mechanism, in bytes. Those of Kerberos have 28 to 40 bytes (RFC 4121,
/// RFC 8009).
pub(crate) const GSS_MIC_BYTES_MAX: usize = 64;

/// The time for which the same thing is not logged again.
pub(crate) const NEWS_SILENCE: Duration = Duration::from_secs(60);

/// Logged things that are remembered for that.
pub(crate) const NEWS_KEPT_MAX: usize = 256;

/// Contexts that a client makes for one call, beyond that with which it was first sent, when the
/// server does not know them.
pub(crate) const GSS_CONTEXTS_PER_CALL_MAX: u32 = 2;

/// Tokens of a client for one context. Kerberos needs one or two.
pub(crate) const GSS_ROUNDS_MAX: u32 = 8;

/// Requests of a client for one context while the server has no room for more of them.
pub(crate) const GSS_BUSY_TRIES_MAX: u32 = 5;

/// The first pause between two of them; each further one is twice as long.
pub(crate) const GSS_BUSY_PAUSE: Duration = Duration::from_millis(100);

/// Plain bytes of sealed results in which a client searches for data that belongs in a sink.
pub(crate) const GSS_HEAD_TO_SEARCH_BYTES: usize = 512;

/// Timeout for a server's answer to the end of a context.
pub(crate) const GSS_FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest handle and token together in a reply to a client's request for a context, in bytes.
/// With its headers such a reply fits a message over RDMA.
pub(crate) const GSS_INIT_RESULTS_BYTES: usize = 3 << 10;

/// The longest time for which a client relies on a ticket.
pub(crate) const GSS_CONTEXT_TIME_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// The shortest time for which a client uses a new context.
pub(crate) const GSS_CONTEXT_TIME_MIN: Duration = Duration::from_secs(60);

/// The part of a context's time that is left when a client makes the next context.
pub(crate) const GSS_RENEWAL_DIVISOR: u32 = 4;

/// The longest such time.
pub(crate) const GSS_RENEWAL_TIME_MAX: Duration = Duration::from_secs(300);

/// The shortest time between two attempts of a client to renew a context.
pub(crate) const GSS_RENEWAL_PAUSE_MIN: Duration = Duration::from_secs(1);

const _: () = assert!(GSS_WINDOW.is_power_of_two() && GSS_WINDOW >= u64::BITS);
const _: () = assert!(GSS_MIC_BYTES_MAX <= dafs_wire::rpc::gss::MIC_BYTES_MAX);
const _: () = assert!(TLS_RECEIVE_BYTES > 2 * dafs_tls::RECORD_BYTES_MAX);
const _: () = assert!(TLS_RECEIVE_BYTES <= RECEIVE_BYTES && TLS_RECEIVE_BYTES <= BLOCK_BYTES[2]);
const _: () = assert!(dafs_tls::sealed_bytes(TLS_SEND_BYTES) <= BLOCK_BYTES[2]);
const _: () = assert!(BULK_IN_HEAD_BYTES_MAX < HEAD_BYTES / 2 + 1);
const _: () = assert!(BULK_IN_HEAD_BYTES_MAX + FRONT_BYTES_MAX < HEAD_BYTES / 4 * 3);
const _: () = assert!(RECEIVE_BYTES_BEFORE_LARGE < LARGE_RECORD_BYTES);
