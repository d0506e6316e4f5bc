//! What an administrator may set.

use dafs_dat::Wake;
use std::time::Duration;

/// Bounds and habits of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// How reactors wait.
    pub wake: Wake,
    /// The longest record that is accepted, in bytes; of calls and of answers to calls back.
    pub record_bytes_max: usize,
    /// Connections of all reactors, if they are not counted with others ([`Group::counting_in`]).
    /// Above it, one that has not been of use yet makes room.
    ///
    /// [`Group::counting_in`]: super::Group::counting_in
    pub connections_max: usize,
    /// Connections from one network address.
    pub connections_per_address_max: usize,
    /// How long a peer may take to begin its first call.
    pub first_call_timeout: Duration,
    /// Calls of one connection that were put off and not answered; above it, no more are read.
    pub calls_per_connection_max: usize,
    /// Bytes of such calls; above it, no more are read.
    pub pending_bytes_max: usize,
    /// Bytes of replies that wait for one peer; above it, no more calls are read from it.
    pub output_bytes_max: usize,
    /// Bytes of replies, of calls that were put off and of unserved ones that wait in all connections
    /// of one reactor; above it, no more calls are read from peers that have some of them, and above
    /// twice as much those are dropped that leave replies unread.
    pub waiting_bytes_max: usize,
    /// Bytes of half records in all connections of one reactor; above it, no more large records
    /// are begun until others are complete.
    pub assembly_bytes_max: usize,
    /// How long a peer may take from one piece of a record to the next.
    pub stall_timeout: Duration,
    /// How long a peer may leave replies unread.
    pub output_timeout: Duration,
    /// How long a peer may take to answer a call back.
    pub back_timeout: Duration,
    /// Calls back to one peer that are unanswered.
    pub back_calls_max: usize,
    /// How long replies may take to leave when the server stops.
    pub stop_timeout: Duration,
    /// The longest message over RDMA that is sent or received, in bytes; whatever is longer goes as
    /// chunks. Between 1024 and 262144, in steps of 1024 (RFC 8797 section 4).
    pub rdma_inline_bytes: usize,
    /// Calls that a peer over RDMA may have in flight, if it asks for so many. Each costs
    /// `rdma_inline_bytes`.
    pub rdma_credits_max: u32,
    /// How long a peer may take to let the next piece of a call be read by RDMA. An eighth of it for
    /// the next whole call, while half of `waiting_bytes_max` is taken.
    pub rdma_fetch_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            wake: Wake::Adaptive,
            record_bytes_max: (1 << 20) + (16 << 10),
            connections_max: 16_384,
            connections_per_address_max: 4096,
            first_call_timeout: Duration::from_secs(10),
            calls_per_connection_max: 1024,
            pending_bytes_max: 32 << 20,
            output_bytes_max: 4 << 20,
            waiting_bytes_max: 512 << 20,
            assembly_bytes_max: 256 << 20,
            stall_timeout: Duration::from_secs(30),
            output_timeout: Duration::from_secs(60),
            back_timeout: Duration::from_secs(10),
            back_calls_max: 256,
            stop_timeout: Duration::from_secs(2),
            rdma_inline_bytes: 4096,
            rdma_credits_max: 64,
            rdma_fetch_timeout: Duration::from_secs(30),
        }
    }
}
