//! TLS as all connections of a server share it: certificates, and a bounded number of handshakes.
//!
//! Invariants
//! * Hosts share the handshakes: one host has at most its number under way, and fewer than are
//!   left for others.
//! * A handshake is counted until it ends, wherever it is.

use super::limits::{HANDSHAKES_MAX, HANDSHAKES_PER_HOST_MAX};
use super::shaking::{Step, Stepped};
use crate::connections::Origin;
use dafs_mem::{Mutex, Shrinking as _};
use dafs_tls::ktls::{self, NoKernelTls};
use dafs_tls::{Handshake, HandshakeError, Protocol, ReloadingServer, ServerSide};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Work for another thread.
pub type Job = Box<dyn FnOnce() + Send>;

/// Runs the arithmetic of a handshake for a host on a thread that reactors do not wait for.
pub type RunJob = Box<dyn Fn(Origin, Job) + Send + Sync>;

/// Has a job done for a host once the user whom a client's certificate names was looked up, so that no call has
/// to wait for it. It never waits itself.
pub type LookUp = Box<dyn Fn(Origin, String, Job) + Send + Sync>;

/// TLS for the TCP connections of a server: RPC (RFC 9289), and iWARP with TLS below MPA.
pub struct ServerTls {
    files: Arc<ReloadingServer>,
    run: RunJob,
    look_up: Option<LookUp>,
    shares: Arc<Mutex<Shares>>,
    kernel: Result<(), NoKernelTls>,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").field("files", &self.files).finish_non_exhaustive()
    }
}

/// Handshakes under way.
#[derive(Debug, Default)]
struct Shares {
    all: usize,
    by_host: FxHashMap<Origin, usize>,
}

/// The right to a handshake.
#[derive(Debug)]
pub struct Ticket {
    shares: Arc<Mutex<Shares>>,
    host: Origin,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut shares = self.shares.lock();
        shares.all = shares.all.saturating_sub(1);
        if let Some(own) = shares.by_host.get_mut(&self.host) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                shares.by_host.remove_and_shrink(&self.host);
            }
        }
    }
}

impl ServerTls {
    /// TLS with these certificates. `run` takes the steps of handshakes, 0.1 to 1 ms of arithmetic
    /// each.
    pub fn new(files: Arc<ReloadingServer>, run: RunJob) -> Arc<Self> {
        Self::with_users(files, run, None)
    }

    /// The same with users of certificates, whom `look_up` looks up after the last step.
    pub fn with_users(
        files: Arc<ReloadingServer>,
        run: RunJob,
        look_up: Option<LookUp>,
    ) -> Arc<Self> {
        let kernel = ktls::available();
        Arc::new(Self { files, run, look_up, shares: Arc::default(), kernel })
    }

    /// The certificates and authorities for the next connection.
    pub fn side(&self) -> Arc<ServerSide> {
        self.files.current()
    }

    /// The files of certificates, for their reload.
    pub fn files(&self) -> &Arc<ReloadingServer> {
        &self.files
    }

    /// Says whether the kernel protects the records of connections. Otherwise this process does.
    ///
    /// # Errors
    /// The reason why it does not.
    pub fn kernel(&self) -> Result<(), &NoKernelTls> {
        self.kernel.as_ref().copied()
    }

    /// Begins a handshake for a listener that serves these protocols, unless too many are under way.
    pub fn begin(
        &self,
        host: Origin,
        protocols: &[Protocol],
    ) -> Option<Result<(Handshake, Ticket), HandshakeError>> {
        let ticket = self.admit(host)?;
        let handshake = Handshake::server(&self.side(), protocols, now_seconds());
        Some(handshake.map(|handshake| (handshake, ticket)))
    }

    fn admit(&self, host: Origin) -> Option<Ticket> {
        let mut shares = self.shares.lock();
        let left = HANDSHAKES_MAX.saturating_sub(shares.all);
        let own = shares.by_host.entry(host).or_default();
        if *own >= HANDSHAKES_PER_HOST_MAX.min(left) {
            if *own == 0 {
                shares.by_host.remove(&host);
            }
            return None;
        }
        *own += 1;
        shares.all += 1;
        Some(Ticket { shares: self.shares.clone(), host })
    }

    /// Has a step of a handshake made for a host, and after the last one the client's user looked up. `give`
    /// takes the handshake back.
    pub fn run(
        self: &Arc<Self>,
        host: Origin,
        step: Step,
        give: impl FnOnce(Stepped) + Send + 'static,
    ) {
        let own = self.clone();
        let job = move || {
            let stepped = Stepped::make(step);
            match own.look_up.as_ref().zip(stepped.user()) {
                Some((look_up, user)) => look_up(host, user, Box::new(move || give(stepped))),
                None => give(stepped),
            }
        };
        (self.run)(host, Box::new(job));
    }
}

/// The time of certificates: seconds since 1970.
pub fn now_seconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    u64::try_from(now.tv_sec).unwrap_or(0)
}
