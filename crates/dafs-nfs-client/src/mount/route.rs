//! The route to a server: addresses, the choice of a transport, connecting.
//!
//! Invariants
//! * Once a transport has carried a connection the route keeps to it, because memory is registered
//!   with it.

use super::limits::{HEAD_BYTES, RECORD_BYTES_MIN};
use super::options::MountOptions;
use super::reserved;
use super::url::{NfsUrl, RdmaTransport};
use crate::back::BackChannels;
use crate::connection::answers;
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::shm::{ShmAdapter, ShmConfig};
use dafs_dat::verbs::{VerbsAdapter, VerbsConfig};
use dafs_dat::{Adapter, Address, is_local, shm_socket_candidates};
use dafs_rpc::client::{ClientTls, Memory, Options, Port, RpcClient};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

/// A transport.
#[derive(Debug, Clone)]
enum Carrier {
    Tcp,
    Rdma(RdmaTransport, Port),
}

/// The route to a server.
#[derive(Debug)]
pub(crate) struct Route {
    host: String,
    /// The host of the metadata server, for a data server.
    metadata_host: Option<String>,
    port: u16,
    server: Arc<str>,
    rdma: bool,
    wanted: Option<RdmaTransport>,
    /// None until a connection has been made.
    carrier: Option<Carrier>,
    /// The longest read or write that records must hold.
    data_bytes_max: usize,
    /// The demand of TLS on each connection.
    tls: Option<ClientTls>,
}

impl Route {
    pub(crate) fn new(url: &NfsUrl, data_bytes_max: usize) -> Self {
        let (host, port) = (url.host().to_owned(), url.port());
        let server = match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        let wanted = url.options().transport;
        let rdma = url.is_rdma();
        Self {
            host,
            metadata_host: None,
            port,
            server: server.into(),
            rdma,
            wanted,
            carrier: None,
            data_bytes_max,
            tls: None,
        }
    }

    /// The same route with TLS on each connection.
    pub(crate) fn with_tls(self, tls: Option<ClientTls>) -> Self {
        Self { tls, ..self }
    }

    pub(crate) fn server(&self) -> &Arc<str> {
        &self.server
    }

    /// The transport by name.
    pub(crate) fn transport(&self) -> &'static str {
        match &self.carrier {
            Some(Carrier::Rdma(transport, _)) => transport.name(),
            Some(Carrier::Tcp) | None => "tcp",
        }
    }

    pub(crate) fn is_rdma(&self) -> bool {
        self.rdma
    }

    pub(crate) fn allocate(&self, bytes: usize) -> io::Result<Memory> {
        match &self.carrier {
            Some(Carrier::Rdma(_, port)) => port.allocate(bytes),
            Some(Carrier::Tcp) | None => Memory::plain(bytes),
        }
    }

    /// Detects a lost connection before memory is offered over it. Memory that a server of shared
    /// memory has been offered cannot be used again when the connection is lost.
    pub(crate) fn look(&self) {
        if let Some(Carrier::Rdma(RdmaTransport::Shm, port)) = &self.carrier {
            port.poll(dafs_dat::Instant::now());
        }
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The host as its Kerberos service names it. A data server is known by its address alone: on
    /// the metadata server's host it has that host's name. Otherwise the library of Kerberos looks
    /// the name up, if its configuration permits that (rdns in krb5.conf).
    pub(crate) fn service_host(&self) -> &str {
        let is_here = |name: &&String| {
            let own: Result<IpAddr, _> = self.host.parse();
            own.is_ok_and(|own| is_at(name, self.port, own))
        };
        // The zone of an address means something to this host alone.
        let host = self.metadata_host.as_ref().filter(is_here).unwrap_or(&self.host);
        host.split('%').next().unwrap_or_default()
    }

    pub(crate) fn rpc_options(&self, options: &MountOptions) -> Options {
        Options {
            connect_timeout: options.connect_timeout,
            call_timeout: options.answer_timeout,
            record_bytes_max: self.data_bytes_max.max(RECORD_BYTES_MIN) + 2 * HEAD_BYTES as usize,
            identity: options.identity.clone(),
            tls: self.tls.clone(),
            ..Options::default()
        }
    }

    fn resolve(&self) -> Result<Vec<SocketAddr>, String> {
        resolve(&self.host, self.port)
    }

    /// The route to a data server of this server. With `rdma` it uses the adapter of this route, so
    /// that registered memory serves both; `None` where the data server cannot be reached so. Over
    /// shared memory there is no such route: memory that was offered to a data server that ends is
    /// unsafe, so a failed read could not be repeated into it.
    pub(crate) fn to_data_server(&self, address: SocketAddr, rdma: bool) -> Option<Self> {
        let carrier = match (rdma, &self.carrier) {
            (false, _) => Carrier::Tcp,
            (true, None | Some(Carrier::Tcp | Carrier::Rdma(RdmaTransport::Shm, _))) => {
                return None;
            }
            (true, Some(Carrier::Rdma(transport, port))) => Carrier::Rdma(*transport, port.clone()),
        };
        Some(Self {
            host: address.ip().to_string(),
            metadata_host: Some(self.host.clone()),
            port: address.port(),
            server: address.to_string().into(),
            rdma,
            wanted: self.wanted,
            carrier: Some(carrier),
            data_bytes_max: self.data_bytes_max,
            tls: self.tls.as_ref().map(|tls| tls.for_name(&self.name_of(address))),
        })
    }

    /// The name of a data server in its certificate. On the metadata server's host it has that
    /// host's name.
    fn name_of(&self, address: SocketAddr) -> String {
        match is_at(&self.host, self.port, address.ip()) {
            true => self.host.clone(),
            false => address.ip().to_string(),
        }
    }

    /// Connects, and keeps the transport that worked.
    pub(crate) fn choose(&mut self, options: &MountOptions) -> Result<RpcClient, String> {
        if self.carrier.is_some() {
            return self.connect(options, None);
        }
        let mut reasons: Vec<String> = Vec::new();
        for address in self.resolve()? {
            for carrier in self.carriers(address)? {
                match self.attempt(&carrier, address, options, None) {
                    Ok(rpc) => {
                        self.carrier = Some(carrier);
                        return Ok(rpc);
                    }
                    Err(reason) => reasons.push(reason),
                }
            }
        }
        reasons.dedup();
        Err(reasons.join("; "))
    }

    /// Connects again over the transport that worked before.
    pub(crate) fn connect(
        &self,
        options: &MountOptions,
        back: Option<&Arc<BackChannels>>,
    ) -> Result<RpcClient, String> {
        let Some(carrier) = &self.carrier else {
            return Err("it was never reached".to_owned());
        };
        let addresses = self.resolve()?.into_iter();
        first_of(addresses.map(|address| self.attempt(carrier, address, options, back)))
    }

    /// The transports to try with an address, best first.
    fn carriers(&self, address: SocketAddr) -> Result<Vec<Carrier>, String> {
        if !self.rdma {
            return Ok(vec![Carrier::Tcp]);
        }
        let transports = match self.wanted {
            Some(transport) => vec![transport],
            None if self.tls.is_some() => vec![RdmaTransport::Iwarp],
            None if is_local(address) => vec![RdmaTransport::Shm, RdmaTransport::Iwarp],
            None => vec![RdmaTransport::Iwarp],
        };
        let carriers = transports.into_iter().map(|transport| {
            let port = adapter(transport, address, self.tls.as_ref()).and_then(Port::new);
            Ok(Carrier::Rdma(transport, port.map_err(|error| error.to_string())?))
        });
        carriers.collect()
    }

    fn attempt(
        &self,
        carrier: &Carrier,
        address: SocketAddr,
        options: &MountOptions,
        back: Option<&Arc<BackChannels>>,
    ) -> Result<RpcClient, String> {
        // Below iWARP the adapter demands TLS. Other carriers refuse the demand.
        let is_below = matches!(carrier, Carrier::Rdma(RdmaTransport::Iwarp, _));
        let tls = self.tls.clone().filter(|_| !is_below);
        let rpc = Options { tls, ..self.rpc_options(options) };
        let back = || back.map(answers);
        let hint = "check that the server runs and serves NFS there";
        match carrier {
            Carrier::Tcp => reserved::connect(address, options)
                .and_then(|stream| RpcClient::from_stream(stream, rpc, back()))
                .map_err(|error| format!("{address}: {error}; {hint}")),
            Carrier::Rdma(RdmaTransport::Shm, port) => {
                let connected = shm_socket_candidates(address).into_iter().map(|name| {
                    RpcClient::connect_rdma(port, &Address::Shm(name), rpc.clone(), back())
                        .map_err(|error| error.to_string())
                });
                first_of(connected).map_err(|reasons| {
                    format!(
                        "no server on this host offers NFS over shared memory for {address} \
                         ({reasons})"
                    )
                })
            }
            Carrier::Rdma(transport, port) => {
                let target = match transport {
                    RdmaTransport::Verbs => Address::Verbs(address),
                    _ => Address::Tcp(address),
                };
                RpcClient::connect_rdma(port, &target, rpc, back())
                    .map_err(|error| format!("{address} by {}: {error}; {hint}", transport.name()))
            }
        }
    }
}

/// The first success, or all reasons why there is none.
fn first_of<T>(attempts: impl Iterator<Item = Result<T, String>>) -> Result<T, String> {
    let mut reasons: Vec<String> = Vec::new();
    for attempt in attempts {
        match attempt {
            Ok(done) => return Ok(done),
            Err(reason) => reasons.push(reason),
        }
    }
    reasons.dedup();
    Err(reasons.join("; "))
}

/// True if a host has this address.
fn is_at(host: &str, port: u16, address: IpAddr) -> bool {
    let found = resolve(host, port).unwrap_or_default();
    found.iter().any(|found| found.ip() == address)
}

/// The addresses of a host.
pub(crate) fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let found =
        (host, port).to_socket_addrs().map_err(|error| format!("{error}; check the host name"))?;
    let addresses: Vec<SocketAddr> = found.collect();
    match addresses.is_empty() {
        true => Err("the host name has no address".to_owned()),
        false => Ok(addresses),
    }
}

/// Makes an adapter. One of iWARP demands TLS below MPA, of the server of this name, if it shall.
fn adapter(
    transport: RdmaTransport,
    address: SocketAddr,
    tls: Option<&ClientTls>,
) -> io::Result<Box<dyn Adapter>> {
    Ok(match transport {
        RdmaTransport::Shm => Box::new(ShmAdapter::new(ShmConfig::default())?),
        RdmaTransport::Iwarp => {
            let tls = tls.map(ClientTls::below_iwarp);
            Box::new(IwarpAdapter::new(IwarpConfig { tls, ..IwarpConfig::default() })?)
        }
        RdmaTransport::Verbs => {
            Box::new(VerbsAdapter::open(VerbsConfig::towards(address)).map_err(io::Error::other)?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_server_on_the_metadata_servers_host_has_its_name() {
        let route = Route::new(&NfsUrl::parse("nfs://localhost/").unwrap(), 1 << 20);
        let name = |address: &str| route.name_of(address.parse().unwrap());
        assert_eq!(name("127.0.0.1:4000"), "localhost");
        assert_eq!(name("192.0.2.1:2049"), "192.0.2.1");
    }
}
