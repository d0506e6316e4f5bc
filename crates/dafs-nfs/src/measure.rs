//! Durations of requests and of their stages, for the counters and for the log of requests.

use crate::shared::NfsShared;
use dafs_service::{Answered, Done, FrontEnd, Handle, Host, NO_USER, Usage};

/// The stages of one request. Times are in nanoseconds of the service's clock.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stages {
    /// The start of the request.
    began_ns: u64,
    /// The end of the operation before the present one.
    lap_ns: u64,
    /// The time at which it first began to wait: for the pool, or for the kernel.
    parked_ns: Option<u64>,
    /// The time at which it last went on: on a thread of the pool, or on its reactor.
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
    /// The user of the credential.
    pub(crate) user: u32,
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

    /// Notes that the request waits for the pool, or for the kernel.
    pub(crate) fn park(&mut self, shared: &NfsShared) {
        self.parked_ns.get_or_insert_with(|| shared.clock_ns());
    }

    /// Notes that it goes on, on a thread of the pool or on its reactor.
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

    /// Counts the request, and logs it if that is wanted.
    pub(crate) fn end(&self, shared: &NfsShared, about: &About<'_>) {
        let now_ns = shared.clock_ns();
        let duration_ns = now_ns.saturating_sub(self.began_ns);
        let parked_ns = self.parked_ns.unwrap_or(now_ns);
        let resumed_ns = self.resumed_ns.unwrap_or(now_ns);
        let namespace = shared.service.namespace();
        let export = about.handle.and_then(|handle| namespace.export(&handle).ok());
        shared.service.metrics().record_request(&Answered {
            front_end: about.front_end,
            operation: about.operation,
            host: Host::of(about.peer),
            user: (about.user != NO_USER).then_some(about.user),
            client: about.client,
            export: export.map(|export| export.usage()),
            done: Done {
                duration_ns,
                failed: about.failed,
                read_bytes: self.read_bytes,
                written_bytes: self.written_bytes,
            },
            stages_ns: [
                parked_ns.saturating_sub(self.began_ns),
                resumed_ns.saturating_sub(parked_ns),
                now_ns.saturating_sub(resumed_ns),
            ],
        });
    }
}
