//! Durations of requests and of their stages, for the counters and for the log of slow operations.

use crate::shared::NfsShared;
use dafs_service::{Done, FrontEnd, Handle, Usage};

/// The stages of one request. Times are in nanoseconds of the service's clock.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stages {
    /// The start of the request.
    began_ns: u64,
    /// The end of the operation before the present one.
    lap_ns: u64,
    /// The time at which it went to the pool.
    parked_ns: Option<u64>,
    /// The time at which a thread of the pool took it.
    resumed_ns: Option<u64>,
    /// Bytes of file data read.
    pub(crate) read_bytes: u64,
    /// Bytes of file data written.
    pub(crate) written_bytes: u64,
}

/// The counters that a request belongs to, and its description in the log.
pub(crate) struct About<'a> {
    pub(crate) front_end: FrontEnd,
    pub(crate) operation: &'static str,
    pub(crate) client: Option<&'a Usage>,
    pub(crate) handle: Option<Handle>,
    pub(crate) peer: std::net::IpAddr,
    pub(crate) failed: bool,
}

impl Stages {
    /// Starts the stages of a request that began at `began_ns`.
    pub(crate) fn begin(began_ns: u64) -> Self {
        Self { began_ns, lap_ns: began_ns, ..Self::default() }
    }

    /// Notes that the request goes to the pool.
    pub(crate) fn park(&mut self, shared: &NfsShared) {
        self.parked_ns = Some(shared.clock_ns());
    }

    /// Notes that a thread of the pool goes on with it.
    pub(crate) fn resume(&mut self, shared: &NfsShared) {
        self.resumed_ns = Some(shared.clock_ns());
    }

    /// Counts one finished operation.
    pub(crate) fn lap(&mut self, shared: &NfsShared, by: FrontEnd, number: u32, failed: bool) {
        let now_ns = shared.clock_ns();
        let duration_ns = now_ns.saturating_sub(self.lap_ns);
        self.lap_ns = now_ns;
        shared.service.metrics().record(by, number, duration_ns, failed);
    }

    /// Counts the request, and logs it if it was slow.
    pub(crate) fn end(&self, shared: &NfsShared, about: &About<'_>) {
        let now_ns = shared.clock_ns();
        let duration_ns = now_ns.saturating_sub(self.began_ns);
        let done = Done {
            duration_ns,
            failed: about.failed,
            read_bytes: self.read_bytes,
            written_bytes: self.written_bytes,
        };
        if let Some(client) = about.client {
            client.record(&done);
        }
        let namespace = shared.service.namespace();
        let export = about.handle.and_then(|handle| namespace.export(&handle).ok());
        if let Some(export) = export {
            export.usage().record(&done);
        }
        if shared.options().slow_operation_ns.is_some_and(|limit_ns| duration_ns > limit_ns) {
            let millis = |from_ns: u64, to_ns: u64| to_ns.saturating_sub(from_ns) / 1_000_000;
            let parked_ns = self.parked_ns.unwrap_or(now_ns);
            let resumed_ns = self.resumed_ns.unwrap_or(now_ns);
            tracing::warn!(
                door = about.front_end.label(),
                operation = about.operation,
                export = export.map_or("", |export| export.name()),
                peer = %about.peer,
                total_ms = millis(self.began_ns, now_ns),
                reactor_ms = millis(self.began_ns, parked_ns),
                queue_ms = millis(parked_ns, resumed_ns),
                pool_ms = millis(resumed_ns, now_ns),
                read_bytes = self.read_bytes,
                written_bytes = self.written_bytes,
                "slow operation"
            );
        }
    }
}
