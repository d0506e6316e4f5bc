//! Data servers: one client at each, made at its first use.
//!
//! Invariants
//! * A data server knows this client by the same owner as the metadata server does. By that name a
//!   data server asks the metadata server about the client's state-ids (RFC 8881 13.1).
//! * The client avoids an unreachable data server for a while, longer each time, and no thread
//!   waits for it meanwhile.

use super::Layouts;
use super::io::Failure;
use crate::mount::layout::NodeAddress;
use crate::mount::link::Link;
use crate::mount::options::MountOptions;
use crate::mount::url::NfsVersion;
use crate::mount::v4::client::{Client, Role};
use dafs_mem::Mutex;
use dafs_parallel::limits::{NODE_ANSWER_TIMEOUT, NODE_CONNECT_TIMEOUT};
use dafs_parallel::{Fault, Nodes, ServerBackoff};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A data server.
#[derive(Debug)]
pub(crate) struct Node {
    addresses: Arc<[NodeAddress]>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    client: Option<Arc<Client>>,
    backoff: ServerBackoff,
}

/// Renews the leases of this client at the data servers of held layouts, where it was idle for so
/// long. The next transfer finds out about a data server that does not answer.
pub(super) fn renew(nodes: &Nodes<Layouts>, idle_max: Duration) {
    // A client that is just connecting needs no renewal.
    let client = |node: Arc<Node>| node.state.try_lock()?.client.clone();
    let clients = nodes.used().into_iter().filter_map(client);
    for client in clients.filter(|client| client.idle() >= idle_max) {
        if let Err(error) = client.ask_once(&|_| {}) {
            tracing::debug!(%error, "the lease at a data server could not be renewed");
        }
    }
}

/// Ends all sessions with data servers.
pub(super) fn end(nodes: &Nodes<Layouts>) {
    nodes.all().iter().for_each(|node| node.end());
}

/// Ends the sessions with data servers that no layout names any more. One that is gone does not
/// answer, so no caller waits for them; without a thread their leases expire.
pub(super) fn retire(nodes: Vec<Arc<Node>>) {
    let thread = std::thread::Builder::new().name("dafs-nfs-retire".to_owned());
    if let Err(error) = thread.spawn(move || nodes.iter().for_each(|node| node.end())) {
        tracing::debug!(%error, "sessions with data servers could not be ended");
    }
}

impl Node {
    pub(super) fn new(addresses: Arc<[NodeAddress]>) -> Self {
        Self { addresses, state: Mutex::default() }
    }

    /// Returns the client at this data server, and connects it if need be. `of` is the client at
    /// the metadata server.
    pub(super) fn client(&self, of: &Client) -> Result<Arc<Client>, Failure> {
        let mut state = self.state.lock();
        if state.backoff.is_avoided(Instant::now()) {
            return Err(Fault::Unavailable);
        }
        let client = match &state.client {
            Some(client) => client.link.revive().map(|()| client.clone()),
            None => self.connect(of),
        };
        match client {
            Ok(client) => {
                state.client = Some(client.clone());
                state.backoff.reached();
                Ok(client)
            }
            Err(reason) => {
                tracing::warn!(%reason, "a data server cannot be reached");
                state.backoff.failed(Instant::now());
                Err(Fault::Unreachable)
            }
        }
    }

    fn end(&self) {
        let client = self.state.lock().client.take();
        if let Some(client) = client {
            client.end();
            client.link.farewell(NfsVersion::V41);
            client.link.close();
        }
    }

    /// Notes that the data server did not answer.
    pub(super) fn failed(&self) {
        self.state.lock().backoff.failed(Instant::now());
    }

    fn connect(&self, of: &Client) -> Result<Arc<Client>, String> {
        let mount = of.link.options();
        let options = MountOptions {
            connect_timeout: mount.connect_timeout.min(NODE_CONNECT_TIMEOUT),
            answer_timeout: mount.answer_timeout.min(NODE_ANSWER_TIMEOUT),
            // A transfer that fails here goes through the server, so nothing is retried.
            retry_timeout: Duration::ZERO,
            ..mount.clone()
        };
        let mut addresses = self.addresses.to_vec();
        // The transport to the metadata server is preferred.
        addresses.sort_by_key(|address| address.rdma != of.link.route().is_rdma());
        let mut reasons = Vec::new();
        for address in addresses {
            let Some(route) = of.link.route().to_data_server(address.socket, address.rdma) else {
                reasons.push(format!("{} by RDMA, which this mount cannot use", address.socket));
                continue;
            };
            let client = Link::new(route, &options, of.link.login().clone())
                .and_then(|link| Client::connect(Arc::new(link), Role::of_data_server(of)));
            match client {
                Ok(client) => return Ok(client),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(reasons.join("; "))
    }
}
