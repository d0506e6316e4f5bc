//! The client: one session with one server.

use crate::attributes::FileHandle;
use crate::cache::{Cache, Effect};
use crate::core::{ReplyMessage, SessionInfo, SessionStats};
use crate::driver::Shared;
use crate::error::{Error, Result};
use crate::fork::ForkMutex;
use crate::layouts::Layouts;
use crate::lend::Registrations;
use crate::optimistic::OptimisticStats;
use crate::options::{ConnectOptions, RdmaDevices, Transport, TransportKind};
use crate::successor::ClientIdentity;
use crate::url::DafsUrl;
use dafs_dat::tls::TlsPeer;
use dafs_wire::dafs::{Outcome, Reply, Request};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A session with a server, shared by all clones and threads. Dropping the last clone ends it.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
    cache: Option<Arc<Cache>>,
    layouts: Option<Arc<Layouts>>,
    lent: Arc<ForkMutex<Registrations>>,
}

impl Client {
    /// Connects to the server that `url` names and opens a session. The path of the URL is
    /// ignored.
    ///
    /// # Errors
    /// The cause, with the remedy.
    pub fn connect(url: &DafsUrl, options: &ConnectOptions) -> Result<Self> {
        let cache = options.cache.map(|options| Arc::new(Cache::new(options)));
        let options = crate::connect::options_of(url, options);
        let shared = crate::connect::open(url, &options)?;
        let layouts = options.data_servers.then(|| {
            // A device that does not lead to the server leads to none of its data servers.
            let is_elsewhere = shared.transport().kind == TransportKind::Iwarp;
            let rdma_devices = if is_elsewhere { RdmaDevices::None } else { options.rdma_devices };
            Arc::new(Layouts::new(ConnectOptions { rdma_devices, ..options.clone() }))
        });
        if options.optimistic && shared.transport().kind == TransportKind::Shm {
            shared.optimistic().start();
        }
        let client = Self { shared, cache, layouts, lent: Arc::default() };
        // Files that are open before are asked for no layout.
        let caches = client.cache.as_ref().is_some_and(|cache| cache.wants_at_open());
        if caches || client.layouts.is_some() {
            client.listen()?;
        }
        Ok(client)
    }

    /// The transport in use, and the reason for it.
    pub fn transport(&self) -> &Transport {
        self.shared.transport()
    }

    /// The server as the user named it: host and port.
    pub fn server(&self) -> &str {
        self.shared.server()
    }

    /// The parameters that the session negotiated.
    pub fn session(&self) -> &SessionInfo {
        self.shared.info()
    }

    /// The root of the server's name space.
    pub fn root(&self) -> FileHandle {
        self.shared.info().root
    }

    /// The longest single read, in bytes.
    pub fn read_bytes_max(&self) -> usize {
        usize::try_from(self.shared.info().read_bytes_max).unwrap_or(usize::MAX)
    }

    /// The longest single write, in bytes.
    pub fn write_bytes_max(&self) -> usize {
        usize::try_from(self.shared.info().write_bytes_max).unwrap_or(usize::MAX)
    }

    /// Sends a NULL to the server; returns the round-trip time.
    ///
    /// # Errors
    /// The end of the session.
    pub fn ping(&self) -> Result<Duration> {
        let start = Instant::now();
        self.ask(&Request::Null, |response| matches!(response, Reply::Null).then_some(()))?;
        Ok(start.elapsed())
    }

    /// Sends requests that were submitted and not sent yet.
    ///
    /// # Errors
    /// The end of the session.
    pub fn flush(&self) -> Result<()> {
        self.shared.flush()
    }

    /// The protection of the connection by TLS, if it has it now.
    pub fn tls(&self) -> Option<Arc<TlsPeer>> {
        self.shared.tls()
    }

    /// Credits, operations and bytes so far; nothing in a fork of the process that connected.
    pub fn stats(&self) -> SessionStats {
        self.shared.stats()
    }

    /// The reads so far that could have been optimistic, by their outcome.
    pub fn optimistic_stats(&self) -> OptimisticStats {
        let mapped = self.shared.optimistic().stats();
        mapped.plus(&self.shared.remote_read_stats())
    }

    /// True when there is a connection to the server now, as far as is known; false while a lost
    /// one is being replaced, and for good when the session is over.
    pub fn is_connected(&self) -> bool {
        self.shared.is_connected()
    }

    /// True when the session is over for good, and in a fork of the process that connected: only a
    /// new client will do.
    pub fn is_over(&self) -> bool {
        self.shared.is_over()
    }

    /// Ends the session in order. Operations in flight are waited for. Later calls fail.
    ///
    /// # Errors
    /// When the session was over already or the server did not answer.
    pub fn disconnect(&self) -> Result<()> {
        self.shared.disconnect()
    }

    /// True for clones of one client.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn cache(&self) -> Option<&Arc<Cache>> {
        self.cache.as_ref()
    }

    pub(crate) fn layouts(&self) -> Option<&Arc<Layouts>> {
        self.layouts.as_ref()
    }

    pub(crate) fn lent(&self) -> &ForkMutex<Registrations> {
        &self.lent
    }

    /// Sends one request, waits, and extracts a value from a successful answer with `take`: for
    /// procedures that have no method of their own.
    ///
    /// # Errors
    /// The server's answer; [`Error::Protocol`] when `take` finds nothing in it.
    pub fn ask<T>(
        &self,
        request: &Request<'_>,
        take: impl FnOnce(&Reply<'_>) -> Option<T>,
    ) -> Result<T> {
        let _used = self.before(|| Effect::of(request, false));
        self.shared.ask(request, take)
    }
}

impl Shared {
    /// As [`Client::ask`], for requests that neither the cache nor layouts need to see.
    pub(crate) fn ask<T>(
        &self,
        request: &Request<'_>,
        take: impl FnOnce(&Reply<'_>) -> Option<T>,
    ) -> Result<T> {
        self.taken(&self.call(request)?, take)
    }

    /// As [`ask`](Self::ask), without retries: DELAY is returned as an error.
    pub(crate) fn ask_once<T>(
        &self,
        request: &Request<'_>,
        take: impl FnOnce(&Reply<'_>) -> Option<T>,
    ) -> Result<T> {
        let slot = self.submit(|driver, tag| driver.submit(tag, request, None))?;
        self.taken(&self.wait_reply(&slot, None)?, take)
    }

    /// Extracts a value from an answer.
    pub(crate) fn taken<T>(
        &self,
        reply: &ReplyMessage,
        take: impl FnOnce(&Reply<'_>) -> Option<T>,
    ) -> Result<T> {
        let procedure = reply.procedure();
        match reply.decode() {
            Ok(Outcome::Ok(found)) => {
                take(&found).ok_or_else(|| self.broken(&"an answer of another procedure"))
            }
            Ok(Outcome::Error { status, .. }) => Err(Error::Status { procedure, status }),
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// The identity of this client at the server.
    pub(crate) fn identity(&self) -> Result<ClientIdentity> {
        let driver = self.lock()?;
        let config = &driver.core().link.config;
        Ok(ClientIdentity {
            name: config.client_id_string.clone(),
            verifier: config.client_verifier.0,
            next_owner: crate::successor::next_owner(),
        })
    }
}
