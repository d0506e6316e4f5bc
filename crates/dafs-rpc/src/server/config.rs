//! The settings of a server.

use dafs_dat::Wake;
use std::time::Duration;

/// Limits and settings of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The way in which reactors wait.
    pub wake: Wake,
    /// The longest record that the server accepts, in bytes, for calls and for answers to
    /// callbacks.
    pub record_bytes_max: usize,
    /// Connections of all reactors, unless they are counted together with others
    /// ([`Group::counting_in`]). Above it, a connection that is not established is closed to make
    /// room.
    ///
    /// [`Group::counting_in`]: super::Group::counting_in
    pub connections_max: usize,
    /// Connections from one network address.
    pub connections_per_address_max: usize,
    /// Timeout for the start of the first call of a connection.
    pub first_call_timeout: Duration,
    /// Deferred calls of one connection without an answer; above it, the server reads no more calls
    /// from it.
    pub calls_per_connection_max: usize,
    /// Bytes of such calls; above it, the server reads no more calls from the connection.
    pub pending_bytes_max: usize,
    /// Bytes of queued replies to one peer; above it, the server reads no more calls from it.
    pub output_bytes_max: usize,
    /// Bytes of queued replies, deferred calls and unserved calls in all connections of one
    /// reactor. Above it, the server reads no more calls from peers that hold some of them. Above
    /// twice as much, it drops those peers that leave replies unread.
    pub waiting_bytes_max: usize,
    /// Bytes of partial records in all connections of one reactor; above it, no large record begins
    /// until others are complete.
    pub assembly_bytes_max: usize,
    /// Timeout between two pieces of a record.
    pub stall_timeout: Duration,
    /// Timeout for a peer that leaves replies unread.
    pub output_timeout: Duration,
    /// Timeout for the answer to a callback.
    pub back_timeout: Duration,
    /// Outstanding callbacks to one peer.
    pub back_calls_max: usize,
    /// Timeout for sending replies when the server stops.
    pub stop_timeout: Duration,
    /// The longest message over RDMA to send or receive, in bytes; longer ones use chunks. Between
    /// 1024 and 262144, in steps of 1024 (RFC 8797 section 4).
    pub rdma_inline_bytes: usize,
    /// The most credits that a peer over RDMA gets on request. Each credit costs
    /// `rdma_inline_bytes`.
    pub rdma_credits_max: u32,
    /// Timeout for RDMA to read the next piece of a call from a peer. While memory is short, an
    /// eighth of it, and at most a second, is the timeout for the next complete call. Memory is
    /// short when half of `waiting_bytes_max`, or of one host's share while others wait, is taken.
    pub rdma_fetch_timeout: Duration,
    /// Records of TLS in one direction after which a connection takes no more calls, and ends when
    /// it has answered those that it has. The limit of AES-GCM is about 2^24.5 (RFC 8446 5.5).
    pub tls_records_max: u64,
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
            tls_records_max: dafs_tls::RECORDS_BEFORE_END,
        }
    }
}
