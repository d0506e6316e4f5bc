//! Every limit and default of the client, in one place.

use std::time::Duration;

/// The port of a DAFS server when the URL names none. The number is not registered with IANA; it
/// lies beside the 20049 of NFS over RDMA.
pub const DEFAULT_PORT: u16 = 20490;

/// The most requests the client keeps outstanding, whatever the server grants. Bounds the memory
/// for messages: each outstanding request owns one send and one receive buffer.
pub const CREDITS_MAX: u16 = 256;

/// Credits proposed at connect.
pub const CREDITS_PROPOSED: u16 = 32;

/// Bytes of each of the two rings of a connection over shared memory: some twenty chains that make
/// a small file. Pages that are never used cost nothing.
pub const SHM_RING_BYTES: u32 = 64 << 10;

/// The request size proposed at connect, in bytes: a batch of 64 transfers of one piece each (DAFS
/// 13.2), which is more than an inline write of 8 KiB behind its padding.
pub const REQUEST_BYTES_PROPOSED: u32 = 64 * 144 + 512;

/// The response size proposed at connect, in bytes: an inline read of 8 KiB behind its header.
pub const RESPONSE_BYTES_PROPOSED: u32 = 8192 + 512;

/// The smallest message size a server may answer with: the first message must fit 4096 bytes
/// (DAFS 2), and so must everything that follows on this client.
pub const MESSAGE_BYTES_MIN: u32 = 4096;

/// The largest message size this client accepts, in bytes.
pub const MESSAGE_BYTES_MAX: u32 = 1 << 20;

/// Where padded inline write data starts, as proposed at connect (DAFS O23).
pub const INLINE_WRITE_HEADER_BYTES: u32 = 512;

/// Reads and writes up to this many bytes travel inline on transports that do not map memory.
pub const INLINE_BYTES_DEFAULT: u32 = 8192;

/// Requests that may wait for a credit before `submit` reports that the queue is full.
pub const QUEUED_REQUESTS_MAX: usize = 4096;

/// Operations of all kinds that one client keeps track of at a time.
pub const OPERATIONS_MAX: usize = 1 << 16;

/// Operations of one completion group that are in flight or whose results have not been fetched.
pub const GROUP_OPERATIONS_MAX: usize = OPERATIONS_MAX;

/// The longest read or write sent as one request unless the server allows less.
pub const TRANSFER_BYTES_MAX: u64 = 4 << 20;

/// The piece that large blocking transfers are cut into, in bytes.
pub const PIPELINE_BYTES: usize = 1 << 20;

/// How many pieces of one large blocking transfer are in flight.
pub const PIPELINE_DEPTH: usize = 4;

/// The size of a staging buffer, in bytes.
pub const STAGING_BYTES: usize = 256 << 10;

/// Staging buffers that a client keeps for callers whose memory is not registered.
pub const STAGING_BUFFERS_KEPT: usize = 8;

/// One page of a directory listing, in bytes.
pub const READDIR_PAGE_BYTES: u32 = 128 << 10;

/// The longest symlink text, in bytes.
pub const LINK_TEXT_BYTES_MAX: usize = 4096;

/// Symlinks followed in one path before giving up, as Linux does.
pub const SYMLINKS_FOLLOWED_MAX: u32 = 40;

/// The longest path sent, in bytes.
pub const PATH_BYTES_MAX: usize = 4096;

/// The longest name of one component, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Time for connecting and opening the session.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The pauses before further attempts to open a session with a server that has left in the first one. When
/// another process takes its place, it does not accept after a moment, and connections wait in its queue.
pub(crate) const CONNECT_PAUSES: [Duration; 2] =
    [Duration::from_millis(20), Duration::from_millis(200)];

/// The same for an RDMA device, at which the next process listens only when it has started.
pub(crate) const DEVICE_CONNECT_PAUSES: [Duration; 3] =
    [CONNECT_PAUSES[0], CONNECT_PAUSES[1], Duration::from_secs(2)];

/// Concurrent lookups of host names in a process; a resolver that does not answer keeps a thread
/// for each.
pub const LOOKUPS_MAX: usize = 64;

/// Time for one operation to be answered.
pub const OPERATION_DEADLINE: Duration = Duration::from_secs(60);

/// How many times as long a COMMIT or a stable write may take as other operations while no probe
/// can be sent, because every credit is in use.
pub const UNPROBED_DEADLINE_FACTOR: u32 = 10;

/// The time for a connection by an RDMA device that the client tries by itself, before TCP. A device
/// sends its requests for many seconds to a host that has none.
pub const DEVICE_CONNECT_TIME: Duration = Duration::from_secs(3);

/// The absence of a server from which on a session that has two transports tries both in turn.
pub const ONE_TRANSPORT_TIME: Duration = Duration::from_secs(2);

/// The first pause before an operation is retried that the server answered with DELAY or GRACE.
pub const RETRY_PAUSE_MIN: Duration = Duration::from_millis(1);

/// The longest such pause; each is twice as long as the one before.
pub const RETRY_PAUSE_MAX: Duration = Duration::from_millis(100);

/// The interval at which an interruptible call asks whether it is to stop.
pub(crate) const STOP_PERIOD: Duration = Duration::from_millis(200);

/// The longest pause before a denied lock is retried; a server keeps a place in its queue for a
/// second.
pub(crate) const LOCK_PAUSE_MAX: Duration = Duration::from_millis(250);

/// Polls of a spinning leader while it watches whether threads that wanted the lock have got it.
/// About as long as one of them takes to wake up on another CPU.
pub const CONTENDER_SPINS: u32 = 100;

/// Bells of threads that wait for a leader, kept for others.
pub(crate) const BELLS_KEPT: usize = 32;

pub use dafs_dat::SPIN_POLLS;

/// The time between two waits from which on the second one sleeps after a few polls. About four
/// times as long as polling lasts.
pub const SPIN_GAP_MAX: Duration = Duration::from_micros(200);

/// The mean time of answers from which on such a wait sleeps. Sleeping and waking up take about as long.
pub(crate) const SPIN_ANSWER_MAX: Duration = Duration::from_micros(50);

/// Of so many waits that should sleep one polls, to learn the time of answers.
pub(crate) const SPIN_PROBE_WAITS: u32 = 16;

/// Polls before a waiter begins to yield the CPU, if a poll makes no system call.
pub const SPINS_BEFORE_YIELD: u32 = 8;

/// The same, if it makes one. No answer comes so soon, and the server may need this CPU to give it.
pub const SPINS_BEFORE_YIELD_BY_SYSTEM_CALL: u32 = 1;

/// The lease assumed until the server has reported its own.
pub const LEASE_ASSUMED: Duration = Duration::from_secs(30);

/// Idle time after which a client that must shrink its credits uses up its extra receives with
/// NULLs.
pub const SHRINK_DELAY: Duration = Duration::from_millis(10);

/// The interval at which the helper thread makes progress for operations without a waiter.
pub const HELPER_TICK: Duration = Duration::from_millis(2);

/// How long a client goes on trying to recover a session before its calls fail.
pub const RECOVERY_LIMIT: Duration = Duration::from_secs(120);

/// The first pause between two attempts to connect again.
pub const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(2);

/// The longest such pause.
pub const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// The pause between two attempts is this fraction of the time that the server has been away: a
/// server that comes back is found after that fraction at the latest.
pub const RECONNECT_PAUSE_FRACTION: u32 = 32;

/// Silence of the server after which an attempt to recover is given up and begun again.
pub const RECOVERY_ANSWER_TIME: Duration = Duration::from_secs(10);

/// The pause before a recovery request is retried that the server answered with DELAY.
pub const RECOVERY_RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The first pause before a request is retried that a restarted server has answered with GRACE.
pub const GRACE_PAUSE_MIN: Duration = Duration::from_millis(10);

/// The longest such pause.
pub const GRACE_PAUSE_MAX: Duration = Duration::from_millis(100);

/// The pause between two attempts is this fraction of the time that the server has answered GRACE.
pub const GRACE_PAUSE_FRACTION: u32 = 16;

/// Authentication steps before the client gives up on a server that keeps asking for another.
pub const AUTH_STEPS_MAX: u32 = 16;

/// The longest first message of a connection, in bytes (DAFS 4.3).
pub(crate) const FIRST_MESSAGE_BYTES: usize = 4096;

/// The request size proposed at connect by clients that prove themselves by GSS, in bytes. Tickets with a PAC may
/// be longer than all other requests.
pub(crate) const GSS_REQUEST_BYTES: u32 = 16 << 10;

/// The longest time before the end of a proof at which the client renews it.
pub(crate) const RENEWAL_MARGIN_MAX: Duration = Duration::from_secs(600);

/// The time between two renewals of a proof, also when the first has failed.
pub(crate) const RENEWAL_PAUSE: Duration = Duration::from_secs(30);

/// Supplementary groups sent with a credential.
pub const GROUPS_MAX: usize = 1024;

/// Users registered at a server at a time, if it allows so many. Further ones take the place of
/// those unused for longest.
pub const USERS_MAX: usize = 1024;

/// Chains in flight of one call that reads parts of many files. Each holds one answer, of a message at
/// most.
pub(crate) const PART_CHAINS_MAX: usize = 64;

/// Ranges of a file, and pieces of memory, of one transfer of a batch.
pub const BATCH_PIECES_MAX: usize = 64;

/// Calls that the server may have outstanding on the back-control channel.
pub(crate) const BACK_CREDITS: u16 = 8;

/// The intervals at which the helper thread looks for calls of the server: while delegations are
/// held; while other threads poll, which receives the calls, too; and while no delegation is held.
pub(crate) const BACK_TICK: Duration = Duration::from_millis(4);
pub(crate) const BACK_TICK_DRIVEN: Duration = Duration::from_millis(40);
pub(crate) const BACK_IDLE_TICK: Duration = Duration::from_secs(1);

/// The time that an open waits for the back-control channel before it goes on without a delegation.
pub(crate) const BACK_WAIT: Duration = Duration::from_secs(2);

/// A back-control channel that lasts this long ends a row of losses.
pub(crate) const BACK_STABLE_TIME: Duration = Duration::from_secs(1);

/// Transfers of asynchronous batches at the server at a time, of a session.
pub(crate) const BATCH_OUTSTANDING_MAX: usize = 1024;

/// Items of one X_CANCEL.
pub(crate) const CANCEL_ITEMS_MAX: usize = 512;

/// Transfers of asynchronous batches that wait for room among those at the server.
pub(crate) const BATCH_WAITING_MAX: usize = OPERATIONS_MAX;

/// The unit in which a cache keeps file data, in bytes.
pub(crate) const CACHE_BLOCK_BYTES: u32 = 64 << 10;

/// Blocks of one registration of a cache's memory.
pub(crate) const CACHE_SLAB_BLOCKS: u32 = 16;

/// The size of a registration of a cache's memory, in bytes; no request of a cache is longer.
pub(crate) const CACHE_SLAB_BYTES: usize = (CACHE_BLOCK_BYTES * CACHE_SLAB_BLOCKS) as usize;

/// The smallest cache, in bytes.
pub const CACHE_BYTES_MIN: usize = 4 * CACHE_SLAB_BYTES;

/// The size of a cache unless the caller says otherwise, in bytes.
pub const CACHE_BYTES_DEFAULT: usize = 64 << 20;

/// Fetches of a cache are rounded to this, in bytes.
pub(crate) const CACHE_PAGE_BYTES: u64 = 4096;

/// The number of known, or of dirty, ranges of a block above which the block is made simpler.
pub(crate) const CACHE_RANGES_MAX: usize = 32;

/// The size of the pieces that one read or write through a cache is cut into, in bytes.
pub(crate) const CACHE_PIECE_BYTES: usize = 256 << 10;

/// Dirty bytes of one file from which on they are written back without waiting for more.
pub(crate) const WRITE_BACK_BYTES: u64 = 1 << 20;

/// The initial read-ahead of a sequential reader, in bytes.
pub(crate) const READ_AHEAD_BYTES_MIN: u64 = 128 << 10;

/// The most bytes that are read ahead at a time, unless the caller says otherwise.
pub const READ_AHEAD_BYTES_DEFAULT: u64 = 1 << 20;

/// Bytes read in sequence before the cache asks for a file's delegation, where it does not do so at
/// the open. Many more than programs read that only look at the beginning of a file.
pub const READ_AHEAD_RUN_BYTES: u64 = 4 << 20;

/// The longest wait of a reader for the answer to that request, in all, while the server answers
/// DELAY.
pub(crate) const READ_AHEAD_ASK_TIME: Duration = Duration::from_millis(250);

/// Attempts of a read or write to use the cache before it bypasses it.
pub(crate) const CACHE_ATTEMPTS: u32 = 16;

/// Threads that call holders of delegations, each one holder at a time.
pub(crate) const CALLERS_MAX: usize = 32;

/// Write verifiers under which unstable data of one open file is told apart.
pub(crate) const VERIFIERS_MAX: usize = 8;

/// The bound of cached registrations of lent memory, in bytes.
pub const LENT_BYTES_MAX: usize = 1 << 30;

/// The bound of cached registrations of lent memory, in number.
pub const LENT_REGISTRATIONS_MAX: usize = 512;

const _: () = assert!(MESSAGE_BYTES_MIN <= REQUEST_BYTES_PROPOSED);
const _: () = assert!(REQUEST_BYTES_PROPOSED <= MESSAGE_BYTES_MAX);
const _: () = assert!(1 <= SPINS_BEFORE_YIELD_BY_SYSTEM_CALL);
const _: () = assert!(SPINS_BEFORE_YIELD_BY_SYSTEM_CALL <= SPINS_BEFORE_YIELD);
const _: () = assert!(RESPONSE_BYTES_PROPOSED <= MESSAGE_BYTES_MAX);
const _: () = assert!(INLINE_BYTES_DEFAULT + INLINE_WRITE_HEADER_BYTES <= REQUEST_BYTES_PROPOSED);
const _: () = assert!(INLINE_WRITE_HEADER_BYTES.is_multiple_of(8));
const _: () = assert!(INLINE_WRITE_HEADER_BYTES >= 136);
const _: () = assert!(READDIR_PAGE_BYTES as usize <= STAGING_BYTES);
const _: () = assert!(CACHE_PIECE_BYTES * 8 <= CACHE_BYTES_MIN);
const _: () = assert!(CACHE_PIECE_BYTES.is_multiple_of(CACHE_BLOCK_BYTES as usize));
const _: () = assert!((CACHE_BLOCK_BYTES as u64).is_multiple_of(CACHE_PAGE_BYTES));

/// Devices that a client remembers; for more it asks the server again.
pub(crate) const LAYOUT_DEVICES_MAX: usize = 256;

/// The time after the first refusal of a layout in which the client retries at short intervals.
pub(crate) const LAYOUT_CHANNEL_TIME: Duration = Duration::from_secs(2);

/// Retries of a client that has never had a layout, and the pause before the first, which doubles each
/// time: a quarter of a second in all. The server may refuse at first, because it learns on another
/// connection that it can call the client.
pub(crate) const LAYOUT_CHANNEL_TRIES: u32 = 7;
pub(crate) const LAYOUT_CHANNEL_PAUSE_MIN: Duration = Duration::from_millis(2);

/// Retries of a write at a data server that found its session too old. Writes of the same client
/// through the server may make it too old each time, so in the end this write goes through the
/// server, too.
pub(crate) const OUTGROWN_TRIES: u32 = 2;

/// The longest read that may be optimistic, in bytes. Longer ones gain little.
pub(crate) const OPTIMISTIC_BYTES_MAX: usize = 64 << 10;

/// Reads of an open file that miss before the client asks where its blocks are.
pub(crate) const OPTIMISTIC_MISSES_BEFORE: u32 = 1;

/// The pause between two of these questions about one open file: after an answer with something new,
/// and at most, as it doubles with each answer without. A program reads thousands of blocks in a tenth of a
/// second, all by requests until their windows and segments are known. So the least pause is short: a
/// question beside a hundred reads.
pub(crate) const OPTIMISTIC_ASK_PAUSE_MIN: Duration = Duration::from_millis(5);
pub(crate) const OPTIMISTIC_ASK_PAUSE_MAX: Duration = Duration::from_secs(2);

/// The same pause where an answer certainly has something new: a read has found a block at an unknown place, and
/// no such question was in vain before. The reads of this time miss what the server has shown since. A question
/// takes a few microseconds.
pub(crate) const OPTIMISTIC_NEWS_PAUSE: Duration = Duration::from_micros(500);

/// Small files whose places a client keeps for reads of mapped memory, files that reads have missed, and
/// exposures that small files share, of which a server has one for each file system. Also questions of opens
/// that have ended before their answer came: the oldest one is dropped.
pub(crate) const OPTIMISTIC_SMALL_FILES_MAX: usize = 8192;
/// See [`OPTIMISTIC_SMALL_FILES_MAX`].
pub(crate) const OPTIMISTIC_MISSED_FILES_MAX: usize = 8192;
/// See [`OPTIMISTIC_SMALL_FILES_MAX`].
pub(crate) const OPTIMISTIC_SHARED_EXPOSURES_MAX: usize = 16;
/// See [`OPTIMISTIC_SMALL_FILES_MAX`].
pub(crate) const OPTIMISTIC_LEFT_QUESTIONS_MAX: usize = 64;

/// Reads by RDMA of one optimistic read: of runs of frames, and of entries behind them. The blocks of the
/// longest one lie in two windows at most.
pub(crate) const OPTIMISTIC_RUNS_MAX: usize = 4;
pub(crate) const OPTIMISTIC_CHECKS_MAX: usize = 2;

/// Optimistic reads by RDMA of one session under way; further ones are requests.
pub(crate) const OPTIMISTIC_READS_MAX: usize = 64;

/// The time for one of them. Then the channel is given up, and its reads become requests.
pub(crate) const OPTIMISTIC_ANSWER_TIME: Duration = Duration::from_secs(1);

/// The age of the latest request that was answered beyond which a read is a request, where a device
/// answers reads by RDMA. As for clients that map memory, it bounds the time for which a server that is held
/// up shows what a local program has changed.
pub(crate) const OPTIMISTIC_HEARD_TIME: Duration = Duration::from_secs(1);

/// Open files whose places a session keeps for reads by RDMA, and windows whose entries it keeps, of 4 KiB
/// each.
pub(crate) const OPTIMISTIC_FILES_MAX: usize = 1024;
pub(crate) const OPTIMISTIC_WINDOWS_MAX: usize = 4096;

/// Windows of one open file whose places it keeps, some hundred bytes each.
pub(crate) const OPTIMISTIC_PLACES_MAX: usize = 2 * OPTIMISTIC_WINDOWS_MAX;

/// The longest time for which a client keeps entries.
pub(crate) const OPTIMISTIC_ENTRIES_TIME: Duration = Duration::from_secs(3600);

/// Pages of windows that a session fetches at a time. The pause between two fetches of one page: after one
/// with something new, and at most, as it doubles with each fetch without.
pub(crate) const OPTIMISTIC_FETCHES_MAX: usize = 4;
pub(crate) const OPTIMISTIC_FETCH_PAUSE_MIN: Duration = Duration::from_millis(1);
pub(crate) const OPTIMISTIC_FETCH_PAUSE_MAX: Duration = Duration::from_millis(100);

/// The pause after an optimistic channel that was refused, or whose server broke a rule.
pub(crate) const OPTIMISTIC_REFUSED_PAUSE: Duration = Duration::from_secs(60);

/// The pause after one that did not answer in time, so that reads by RDMA delay an application for a tenth
/// of its time at most.
pub(crate) const OPTIMISTIC_SLOW_PAUSE: Duration = Duration::from_secs(10);

/// Most levels of scripts interpreted by scripts, as Linux counts them.
pub(crate) const INTERPRETERS_MAX: usize = 5;
