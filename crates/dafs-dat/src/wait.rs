//! How a thread waits for completions of an adapter.

/// Polls before an adaptive waiter sleeps. A poll that finds nothing, and the yield of the CPU
/// after it, take a few tenths of a microsecond to one microsecond.
pub const SPIN_POLLS: u32 = 100;

/// The way a thread waits for an answer or, at RDMA transports, for a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WaitPolicy {
    /// Polls until it is there. Lowest latency, burns the CPU.
    Poll,
    /// Sleeps on the transport's descriptor at once. Least CPU.
    Sleep,
    /// Polls up to `spin` times, then sleeps. DAFS clients poll less while that does not help.
    Adaptive {
        /// The most polls before sleeping.
        spin: u32,
    },
}

impl Default for WaitPolicy {
    fn default() -> Self {
        Self::Adaptive { spin: SPIN_POLLS }
    }
}
