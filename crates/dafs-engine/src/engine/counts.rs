//! Counts of the state of engines.

use std::iter::Sum;

/// The state of an engine in numbers, for metrics and tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineCounts {
    /// Connections in any phase.
    pub connections: usize,
    /// Sessions in use.
    pub sessions: usize,
    /// Requests that wait for a device or for RDMA.
    pub pending: usize,
    /// Reply slots in use.
    pub replies: usize,
    /// Staging chunks in use.
    pub chunks: usize,
    /// Bytes of those chunks among them whose data was pulled from clients, and which no store has taken
    /// yet.
    pub pulled_bytes: usize,
    /// RDMA reads under way.
    pub fetches: usize,
    /// Credits granted.
    pub credits: usize,
    /// Transports of reactors whose sessions want more credits than there are.
    pub credits_short: usize,
    /// Credits above the shares of their sessions, which these are asked to give back.
    pub credits_owed: usize,
    /// Sessions with more than the default weight.
    pub important_sessions: usize,
    /// Credits of these sessions.
    pub important_credits: usize,
    /// Channels over which clients read exposed memory by RDMA.
    pub optimistic_channels: usize,
}

impl Sum for EngineCounts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, counts| Self {
            connections: sum.connections + counts.connections,
            sessions: sum.sessions + counts.sessions,
            pending: sum.pending + counts.pending,
            replies: sum.replies + counts.replies,
            chunks: sum.chunks + counts.chunks,
            pulled_bytes: sum.pulled_bytes + counts.pulled_bytes,
            fetches: sum.fetches + counts.fetches,
            credits: sum.credits + counts.credits,
            credits_short: sum.credits_short + counts.credits_short,
            credits_owed: sum.credits_owed + counts.credits_owed,
            important_sessions: sum.important_sessions + counts.important_sessions,
            important_credits: sum.important_credits + counts.important_credits,
            optimistic_channels: sum.optimistic_channels + counts.optimistic_channels,
        })
    }
}
