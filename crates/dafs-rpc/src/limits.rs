//! Every bound of this crate that no configuration changes, and the defaults of those that
//! [`crate::server::Config`] and [`crate::client::Options`] can change.

use std::time::Duration;

/// Bytes of a reply's head. The results of most calls fit, a read of one page among them.
pub(crate) const HEAD_BYTES: usize = 8 << 10;

/// Heads that a thread keeps for its next replies.
pub(crate) const HEADS_KEPT_MAX: usize = 128;

/// The most bulk data that lies inside a reply's head, if there is room; more gets memory of its
/// own.
pub(crate) const BULK_IN_HEAD_BYTES_MAX: usize = 4 << 10;

/// Sizes of pooled memory blocks. The odd ones hold a round amount of data and what surrounds it.
pub(crate) const BLOCK_BYTES: [usize; 6] =
    [4 << 10, 16 << 10, 68 << 10, 264 << 10, (1 << 20) + (16 << 10), (4 << 20) + (16 << 10)];

/// Bytes of free blocks of one size that a thread keeps to itself.
pub(crate) const BLOCKS_KEPT_BYTES_MAX: usize = 4 << 20;

/// Bytes of free blocks of one size that all threads share.
pub(crate) const BLOCKS_SHARED_BYTES_MAX: usize = 32 << 20;

/// Bytes that one read takes from a connection. A record that does not fit gets memory of its own.
pub(crate) const RECEIVE_BYTES: usize = 256 << 10;

/// Bytes that one read of a client takes.
pub(crate) const CLIENT_RECEIVE_BYTES: usize = 64 << 10;

/// Sizes of the memory that a client on RDMA lends to servers for long calls and replies. The odd
/// ones hold a round amount of results and the reply header before them.
pub(crate) const STAGING_BYTES: [usize; 4] = [8 << 10, 36 << 10, 260 << 10, (1 << 20) + (16 << 10)];

/// Bytes of such memory of one size that a port keeps while no call uses it.
pub(crate) const STAGING_KEPT_BYTES_MAX: usize = 4 << 20;

/// Credits that a client on RDMA gives a server for calls in the other direction.
pub(crate) const BACK_CREDITS: u32 = 4;

/// Answers to such calls that wait for the server to take them. More than its credits, because it
/// may have taken one before that is known here.
pub(crate) const BACK_ANSWERS_MAX: u32 = 64;

/// The most credits that a client on RDMA makes use of.
pub(crate) const CREDITS_MAX: u32 = 1024;

/// Empty polls before an adaptive waiter goes to sleep. A poll with nothing to find, and the offer
/// of the CPU to others after it, take a few tenths of a microsecond to one microsecond.
pub(crate) const SPIN_POLLS: u32 = 100;

/// Empty polls before a waiter begins to offer the CPU to others.
pub(crate) const SPINS_BEFORE_YIELD: u32 = 8;

/// Times that a spinning leader looks whether those who wanted the lock have got it.
pub(crate) const CONTENDER_SPINS: u32 = 10_000;

/// Bytes that one read takes from a connection whose last record was large, so that little of the
/// next one has to be copied into place.
pub(crate) const RECEIVE_BYTES_BEFORE_LARGE: usize = 1 << 10;

/// From so many unanswered calls on, a client lets up to half of them leave together, because the
/// server has enough to do meanwhile.
pub(crate) const GATHERING_CALLS_MIN: usize = 4;

/// Bytes of a record in which a client looks for data that goes elsewhere.
pub(crate) const HEAD_TO_SEARCH_BYTES_MAX: usize = 4 << 10;

/// From this length on a record is large.
pub(crate) const LARGE_RECORD_BYTES: usize = 16 << 10;

/// How long a connection is silent before the system asks whether its peer is still there.
pub(crate) const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// How long the system waits before it asks again.
pub(crate) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// How often it asks before it gives the connection up.
pub(crate) const KEEPALIVE_PROBES: u32 = 4;

/// Reactors of one group.
pub(crate) const REACTORS_MAX: usize = 256;

/// Reads from one connection before others have their turn.
pub(crate) const READS_PER_TURN: usize = 4;

/// Connections accepted before those that are there have their turn.
pub(crate) const ACCEPTS_PER_TURN: usize = 64;

/// How long nothing is accepted when there are no descriptors for that.
pub(crate) const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Events taken from the system at once.
pub(crate) const EVENTS_PER_TURN: usize = 256;

/// Parts of output that are gathered without allocating.
pub(crate) const PARTS_INLINE: usize = 128;

/// Calls of one connection before others have their turn. Their replies are sent together.
pub(crate) const CALLS_PER_TURN: u32 = 64;

/// Bytes of memory in records that are gathered before they are sent.
pub(crate) const FLUSH_BYTES: usize = 1 << 20;

/// Fragments of one record. Some senders cut a record of a mebibyte into pieces of 4 KiB or less;
/// whoever sends more wants to keep us busy.
pub(crate) const FRAGMENTS_PER_RECORD_MAX: u32 = 4096;

/// A peer gets so many times less for the rest of a record, or over RDMA for a call to be read and its
/// replies to be taken, while memory for them is short.
pub(crate) const STALL_HURRY: u64 = 8;

/// The most time that a peer over RDMA has to let the next whole call be read while others wait for memory.
pub(crate) const RDMA_FETCH_HURRY: Duration = Duration::from_secs(1);

/// Connections from one host have at most one of so many parts of the memory that all may hold together.
pub(crate) const RDMA_HOST_SHARE: usize = 4;

/// Longest time between two looks at time-outs, in milliseconds.
pub(crate) const TICK_MILLISECONDS: u64 = 1000;

/// Calls that a new peer over RDMA may have in flight.
pub(crate) const RDMA_CREDITS_INITIAL: u32 = 4;

/// Calls to one peer over RDMA that are under way at a time, if it takes so many.
pub(crate) const RDMA_BACK_CREDITS: u32 = 8;

/// Messages that are on their way to a peer over RDMA for each call that it may have in flight. One
/// that has more of them sends calls and does not take the replies.
pub(crate) const RDMA_SENDS_PER_CREDIT: u32 = 4;

/// Bytes of receive slots of all connections of one reactor from which on none is granted more calls
/// in flight than it has.
pub(crate) const RDMA_RECEIVE_BYTES_MAX: usize = 256 << 20;

/// What a piece of posted work costs a transport, about, in bytes.
pub(crate) const RDMA_WORK_BYTES: usize = 128;

/// Turns without an event after which an adapter is looked at less often, as long as another one has
/// work: looking costs a system call on some.
pub(crate) const QUIET_TURNS: u32 = 512;

/// How much less often: every so many turns.
pub(crate) const QUIET_STRIDE: u32 = 16;

/// Connections that waited for memory and are looked at again in one turn.
pub(crate) const STARVED_PER_TURN: usize = 64;

/// Memory of the chunks of calls that is kept for the next ones, in calls.
pub(crate) const RDMA_EXCHANGES_KEPT_MAX: usize = 256;

const _: () = assert!(BULK_IN_HEAD_BYTES_MAX < HEAD_BYTES / 2 + 1);
const _: () = assert!(RECEIVE_BYTES_BEFORE_LARGE < LARGE_RECORD_BYTES);
