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

/// Requests that may wait for a credit before `submit` says that it is full.
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

/// Host names that a process looks up at a time; a resolver that does not answer keeps a thread for each.
pub const LOOKUPS_MAX: usize = 64;

/// Time for one operation to be answered.
pub const OPERATION_DEADLINE: Duration = Duration::from_secs(60);

/// How many times as long a COMMIT or a stable write may take as other operations while no probe
/// can be sent, because every credit is in use.
pub const UNPROBED_DEADLINE_FACTOR: u32 = 10;

/// The first pause before an operation is tried again that the server put off.
pub const RETRY_PAUSE_MIN: Duration = Duration::from_millis(1);

/// The longest such pause; each is twice as long as the one before.
pub const RETRY_PAUSE_MAX: Duration = Duration::from_millis(100);

/// How often a call that can be stopped looks whether it is to stop.
pub(crate) const STOP_PERIOD: Duration = Duration::from_millis(200);

/// The longest pause before a lock is asked for again; a server keeps a turn for a second.
pub(crate) const LOCK_PAUSE_MAX: Duration = Duration::from_millis(250);

/// Times that a spinning leader looks whether those who wanted the lock have got it. About as long as it
/// takes one to wake up on another CPU.
pub const CONTENDER_SPINS: u32 = 100;

/// Bells of threads that wait for a leader, kept for others.
pub(crate) const BELLS_KEPT: usize = 32;

/// Polls before an adaptive waiter goes to sleep. A poll with nothing to find, and the offer of the
/// CPU to others after it, take a few tenths of a microsecond to one microsecond.
pub const SPIN_POLLS: u32 = 100;

/// Polls before an adaptive waiter goes to sleep at least, however little polling has helped.
pub const SPIN_POLLS_MIN: u32 = 4;

/// A sleep shorter than this would have been better spent polling: going to sleep and waking up take
/// about as long.
pub const SPIN_WORTH: Duration = Duration::from_micros(50);

/// Time between two waits from which on the second one is slept through, but for a few polls. About four
/// times as long as polling lasts.
pub const SPIN_GAP_MAX: Duration = Duration::from_micros(200);

/// Polls before a waiter begins to offer the CPU to others.
pub const SPINS_BEFORE_YIELD: u32 = 8;

/// The lease assumed until the server has told its own.
pub const LEASE_ASSUMED: Duration = Duration::from_secs(30);

/// Idle time after which a client that was told to shrink burns its extra receives with NULLs.
pub const SHRINK_DELAY: Duration = Duration::from_millis(10);

/// How often the helper thread looks after operations that nobody waits for.
pub const HELPER_TICK: Duration = Duration::from_millis(2);

/// How long a client goes on trying to recover a session before its calls fail.
pub const RECOVERY_LIMIT: Duration = Duration::from_secs(120);

/// The first pause between two attempts to connect again.
pub const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(2);

/// The longest such pause.
pub const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Which part of the time that the server has been away is waited for between two attempts: a
/// server that comes back is found after that part at the latest.
pub const RECONNECT_PAUSE_FRACTION: u32 = 32;

/// Silence of the server after which an attempt to recover is given up and begun again.
pub const RECOVERY_ANSWER_TIME: Duration = Duration::from_secs(10);

/// The pause before a server that puts a question of recovery off is asked again.
pub const RECOVERY_RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The first pause before a request is asked again that a restarted server has put off.
pub const GRACE_PAUSE_MIN: Duration = Duration::from_millis(10);

/// The longest such pause.
pub const GRACE_PAUSE_MAX: Duration = Duration::from_millis(100);

/// Which part of the time that the server has put requests off is waited for between two attempts.
pub const GRACE_PAUSE_FRACTION: u32 = 16;

/// Authentication steps before the client gives up on a server that always asks for another.
pub const AUTH_STEPS_MAX: u32 = 16;

/// Supplementary groups sent with the credential of the process.
pub const GROUPS_MAX: usize = 1024;

/// Ranges of a file, and pieces of memory, of one transfer of a batch.
pub const BATCH_PIECES_MAX: usize = 64;

/// Calls that the server may have outstanding on the back-control channel.
pub(crate) const BACK_CREDITS: u16 = 8;

/// How often the helper thread looks for calls of the server while delegations are held, and when
/// nothing hangs on them; and where others poll all the time, which does the same.
pub(crate) const BACK_TICK: Duration = Duration::from_millis(4);
pub(crate) const BACK_TICK_DRIVEN: Duration = Duration::from_millis(40);
pub(crate) const BACK_IDLE_TICK: Duration = Duration::from_secs(1);

/// How long an open waits for the back-control channel before it goes without a delegation.
pub(crate) const BACK_WAIT: Duration = Duration::from_secs(2);

/// How long a back-control channel has to last for its loss not to count as one more in a row.
pub(crate) const BACK_STABLE_TIME: Duration = Duration::from_secs(1);

/// Transfers of asynchronous batches at the server at a time, of a session.
pub(crate) const BATCH_OUTSTANDING_MAX: usize = 1024;

/// Transfers of asynchronous batches that wait for that.
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

/// What a cache fetches is rounded to this, in bytes.
pub(crate) const CACHE_PAGE_BYTES: u64 = 4096;

/// How many parts of a block may be known, or changed, before the block is made simpler.
pub(crate) const CACHE_RANGES_MAX: usize = 32;

/// What one read or write through a cache moves at a time, in bytes. Longer ones are cut.
pub(crate) const CACHE_PIECE_BYTES: usize = 256 << 10;

/// Changed bytes of one file from which on they are written back without waiting for more.
pub(crate) const WRITE_BACK_BYTES: u64 = 1 << 20;

/// What is read ahead for a sequential reader at first, in bytes.
pub(crate) const READ_AHEAD_BYTES_MIN: u64 = 128 << 10;

/// The most that is read ahead at a time, unless the caller says otherwise, in bytes.
pub const READ_AHEAD_BYTES_DEFAULT: u64 = 1 << 20;

/// What is read of a file in sequence before its delegation is asked for, where that is not done at its
/// opening, in bytes. Much more than programs read that look at the beginning of a file alone.
pub const READ_AHEAD_RUN_BYTES: u64 = 4 << 20;

/// How long a reader waits for the server's answer to that question at most, as while the server has it
/// asked again and again.
pub(crate) const READ_AHEAD_ASK_TIME: Duration = Duration::from_millis(250);

/// How often a read or write looks into the cache before it goes to the server by itself.
pub(crate) const CACHE_ATTEMPTS: u32 = 16;

/// Threads that tell holders of delegations what the server wants, each one at a time.
pub(crate) const CALLERS_MAX: usize = 32;

/// Verifiers that what is written to one open file and not committed may come under, one after the other, and
/// be told apart.
pub(crate) const VERIFIERS_MAX: usize = 8;

/// Bytes of lent memory whose registrations are kept.
pub const LENT_BYTES_MAX: usize = 1 << 30;

/// Registrations of lent memory that are kept.
pub const LENT_REGISTRATIONS_MAX: usize = 512;

const _: () = assert!(MESSAGE_BYTES_MIN <= REQUEST_BYTES_PROPOSED);
const _: () = assert!(REQUEST_BYTES_PROPOSED <= MESSAGE_BYTES_MAX);
const _: () = assert!(RESPONSE_BYTES_PROPOSED <= MESSAGE_BYTES_MAX);
const _: () = assert!(INLINE_BYTES_DEFAULT + INLINE_WRITE_HEADER_BYTES <= REQUEST_BYTES_PROPOSED);
const _: () = assert!(INLINE_WRITE_HEADER_BYTES.is_multiple_of(8));
const _: () = assert!(INLINE_WRITE_HEADER_BYTES >= 136);
const _: () = assert!(READDIR_PAGE_BYTES as usize <= STAGING_BYTES);
const _: () = assert!(CACHE_PIECE_BYTES * 8 <= CACHE_BYTES_MIN);
const _: () = assert!(CACHE_PIECE_BYTES.is_multiple_of(CACHE_BLOCK_BYTES as usize));
const _: () = assert!((CACHE_BLOCK_BYTES as u64).is_multiple_of(CACHE_PAGE_BYTES));

/// Devices that a client remembers; more, and it asks again.
pub(crate) const LAYOUT_DEVICES_MAX: usize = 256;

/// In this time after a client was first refused a layout, it is asked for again soon.
pub(crate) const LAYOUT_CHANNEL_TIME: Duration = Duration::from_secs(2);

/// How often a client that has never had a layout asks again for the first one, after this time each: the
/// server answers by another connection than it learns by that it can call.
pub(crate) const LAYOUT_CHANNEL_TRIES: u32 = 10;
pub(crate) const LAYOUT_CHANNEL_PAUSE: Duration = Duration::from_millis(2);

/// How often a write is sent again to a data server that found its session too old: the same client may write
/// through the server at the same time, and there is that way for this one, too.
pub(crate) const OUTGROWN_TRIES: u32 = 2;
