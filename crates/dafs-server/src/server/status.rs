//! The state of the server as a whole, for administrators.

use super::administration::Administration;
use crate::admin::{ExportReport, LatencyReport, StatusReport};
use dafs_service::{ClientKind, Export};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;

/// The unit of the load in `sysinfo(2)`.
const LOAD_UNIT: u64 = 1 << 16;

impl Administration {
    /// Returns the state of the server.
    pub(super) fn status(&self) -> StatusReport {
        let now = dafs_dat::Instant::now();
        let clients = self.service.clients.info(now.0);
        let count = |kind| clients.iter().filter(|info| info.kind() == kind).count() as u64;
        let (held, namespace) = (self.service.counts(), self.service.namespace());
        let mut exports: Vec<_> = namespace.exports().map(report).collect();
        exports.sort_by(|one, other| one.name.cmp(&other.name));
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let cpu_milliseconds = cpu.tv_sec * 1000 + cpu.tv_nsec / 1_000_000;
        let [load, ..] = rustix::system::sysinfo().loads;
        StatusReport {
            version: crate::version().to_owned(),
            process: std::process::id(),
            addresses: self.addresses.clone(),
            uptime_seconds: now.since(self.started).as_secs(),
            exports,
            connections: self.connections.counts().connections as u64,
            dafs_clients: count(ClientKind::Dafs),
            nfs_clients: count(ClientKind::Nfs),
            open_files: held.open_files as u64,
            locks: held.locks as u64,
            lock_waiters: held.lock_waiters as u64,
            delegations: held.delegations as u64,
            host_load_milli: load * 1000 / LOAD_UNIT,
            cpu_milliseconds: u64::try_from(cpu_milliseconds).unwrap_or_default(),
        }
    }
}

fn report(export: &Arc<Export>) -> ExportReport {
    let usage = export.usage().now();
    ExportReport {
        name: export.name().to_owned(),
        read_only: export.options().read_only,
        operations: usage.operations(),
        errors: usage.errors,
        read_bytes: usage.read_bytes,
        written_bytes: usage.written_bytes,
        latency: LatencyReport::by_class(&usage),
    }
}
