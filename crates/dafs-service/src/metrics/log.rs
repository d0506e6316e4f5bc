//! Answered requests on their way to a log.
//!
//! Invariants
//! * A thread that answers requests never waits for the log. The queue is bounded, and a request that
//!   finds it full is counted as lost.

use super::{Done, ExportUse, FrontEnd};
use crate::hosts::Host;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

/// A request for the log.
#[derive(Debug, Clone)]
pub struct LoggedRequest {
    /// The front end by which it came.
    pub front_end: FrontEnd,
    /// The name of the operation.
    pub operation: &'static str,
    /// The host of the client.
    pub host: Host,
    /// The user, if the request has one.
    pub user: Option<u32>,
    /// The export, if the request used one.
    pub export: Option<Arc<ExportUse>>,
    /// Its outcome.
    pub done: Done,
    /// Nanoseconds in the thread that received it, of waiting for the pool or for a disk (io_uring),
    /// and from then on. All zeros if the front end does not measure them.
    pub stages_ns: [u64; 3],
    /// It took longer than the limit.
    pub is_slow: bool,
}

/// The receiver of requests for the log.
#[derive(Debug, Clone)]
pub struct LogSink {
    /// Requests that take longer, in nanoseconds, are slow.
    pub slow_ns: Option<u64>,
    /// Requests that are not slow are logged, too.
    pub logs_all: bool,
    /// The bounded queue. Its owner sends `None` to end the reader.
    pub queue: SyncSender<Option<LoggedRequest>>,
}

/// The way to the log, if there is one.
#[derive(Debug, Default)]
pub(super) struct RequestLog {
    sink: OnceLock<LogSink>,
    lost: AtomicU64,
}

impl RequestLog {
    /// Sets the receiver. Only the first one counts.
    pub(super) fn set(&self, sink: LogSink) {
        let _ = self.sink.set(sink);
    }

    /// Requests that found the queue full.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Logs a request that took so long, if it is to be logged. The argument of `request` is true
    /// for a slow one.
    pub(super) fn put(&self, duration_ns: u64, request: impl FnOnce(bool) -> LoggedRequest) {
        let Some(sink) = self.sink.get() else { return };
        let is_slow = sink.slow_ns.is_some_and(|limit_ns| duration_ns > limit_ns);
        if (is_slow || sink.logs_all) && sink.queue.try_send(Some(request(is_slow))).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    fn request(is_slow: bool) -> LoggedRequest {
        LoggedRequest {
            front_end: FrontEnd::Dafs,
            operation: "NULL",
            host: Host::Unknown,
            user: None,
            export: None,
            done: Done::default(),
            stages_ns: [0; 3],
            is_slow,
        }
    }

    #[test]
    fn a_full_queue_loses_requests_and_blocks_nobody() {
        let log = RequestLog::default();
        log.put(u64::MAX, request);
        let (queue, received) = sync_channel(1);
        log.set(LogSink { slow_ns: Some(10), logs_all: false, queue });
        log.put(10, request);
        assert!(received.try_recv().is_err(), "a fast request is in the log of slow ones");
        log.put(11, request);
        log.put(12, request);
        assert!(received.try_recv().unwrap().unwrap().is_slow);
        assert_eq!(log.lost(), 1);
    }
}
