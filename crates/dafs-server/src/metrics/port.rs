//! The port for Prometheus, with as much HTTP/1.1 (RFC 9112) as a scraper needs.
//!
//! The answer to any request for `/metrics` is the whole text. A scraper can change no state. In
//! the clear, and inside TLS without a demand for certificates, everyone who reaches the port may
//! read.
//!
//! Invariants
//! * Several scrapers are served at a time, each for a bounded time, so silent ones and those that
//!   stop in a handshake block no other.
//! * Where a certificate of the scraper is demanded, nothing but the refusal leaves without one.

use super::ServerCollector;
use crate::config::Config;
use crate::http::{Line, Port, Secured, Timed, finish};
use crate::limits::{METRICS_PEERS, METRICS_REQUEST_BYTES_MAX, METRICS_TIMEOUT};
use crate::server::StartError;
use dafs_dat::connections::{Admitted, Origin};
use dafs_rpc::tls::ServerTls;
use dafs_service::TransportSecurity;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

/// The demand of TLS on scrapers.
pub(crate) struct MetricsTls {
    /// The certificates, which follow their files.
    pub(crate) tls: Arc<ServerTls>,
    /// The least protection, `Tls` or `Mtls`.
    pub(crate) least: TransportSecurity,
}

impl MetricsTls {
    /// Returns the demand of the configuration.
    ///
    /// # Errors
    /// It demands TLS of a server without a certificate, or certificates of scrapers without
    /// authorities for them.
    pub(crate) fn demanded(
        config: &Config,
        tls: Option<Arc<ServerTls>>,
    ) -> Result<Option<Self>, StartError> {
        let least = config.metrics_transport_security;
        if least == TransportSecurity::None {
            return Ok(None);
        }
        let tls = tls.ok_or(StartError::MetricsWithoutTls { least })?;
        let files = config.tls.as_ref();
        let has_authorities = files.is_some_and(|files| files.authorities.is_some());
        if least == TransportSecurity::Mtls && !has_authorities {
            return Err(StartError::MetricsWithoutAuthorities);
        }
        Ok(Some(Self { tls, least }))
    }
}

/// The thread that answers scrapers. It ends when this is dropped.
pub(crate) struct MetricsPort {
    pub(crate) address: SocketAddr,
    is_secure: bool,
    _port: Port,
}

impl MetricsPort {
    /// Binds the address. Scrapers wait until [`Self::start`].
    ///
    /// # Errors
    /// The address is not available.
    pub(crate) fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
        TcpListener::bind(address).map_err(|error| StartError::Metrics { address, error })
    }

    /// Starts to answer, inside TLS if that is demanded.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn start(
        listener: TcpListener,
        collector: ServerCollector,
        tls: Option<MetricsTls>,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let is_secure = tls.is_some();
        if !is_secure && !address.ip().is_loopback() {
            tracing::warn!(
                %address,
                "everyone who reaches this address, or the network between, reads the metrics; \
                 metrics_transport_security = \"mtls\" admits clients with a certificate alone"
            );
        }
        let mut registry = Registry::default();
        registry.register_collector(Box::new(collector));
        let answer = move |stream: &TcpStream, admitted: &Admitted, _: Origin| {
            serve(stream, admitted, tls.as_ref(), &registry)
        };
        let port = Port::start("dafs-metrics", listener, METRICS_PEERS, answer)?;
        Ok(Self { address, is_secure, _port: port })
    }

    /// Returns the URL of the metrics.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.is_secure { "https" } else { "http" };
        format!("{scheme}://{}/metrics", self.address)
    }
}

/// Answers one request.
fn serve(
    stream: &TcpStream,
    admitted: &Admitted,
    tls: Option<&MetricsTls>,
    registry: &Registry,
) -> io::Result<()> {
    let mut socket = Timed::within(stream, METRICS_TIMEOUT);
    let (mut line, is_admitted) = match tls {
        None => (Line::Clear, true),
        Some(MetricsTls { tls, least }) => {
            let (secured, level) = Secured::accept(&mut socket, &tls.side())?;
            (Line::Secured(Box::new(secured)), level >= *least)
        }
    };
    let Some(head) = request(&mut line, &mut socket)? else { return Ok(()) };
    if is_admitted {
        admitted.establish();
    }
    finish(stream, &mut line, METRICS_TIMEOUT, &answer(&head, is_admitted, registry)?)
}

/// Reads the head of a request, if it comes in time.
fn request(line: &mut Line, socket: &mut Timed<'_>) -> io::Result<Option<Vec<u8>>> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = line.read(socket, &mut request)?;
        if read == 0 || request.len() > METRICS_REQUEST_BYTES_MAX {
            return Ok(None);
        }
    }
    Ok(Some(request))
}

/// The answer to a request with this head.
fn answer(request: &[u8], is_admitted: bool, registry: &Registry) -> io::Result<Vec<u8>> {
    let is_metrics = request.starts_with(b"GET /metrics ") || request.starts_with(b"GET / ");
    let (status, body) = if !is_admitted {
        ("403 Forbidden", "show a certificate that this server trusts\n".to_owned())
    } else if is_metrics {
        let mut text = String::new();
        encode(&mut text, registry).map_err(io::Error::other)?;
        ("200 OK", text)
    } else {
        ("404 Not Found", "only /metrics is here\n".to_owned())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/openmetrics-text; version=1.0.0; \
         charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    Ok((head + &body).into_bytes())
}
