//! The demand of a client: TLS on all connections, with a server of this name.

use super::host::now_seconds;
use super::trusted::Trusted;
use dafs_tls::{Facts, Handshake, HandshakeError, Protocol, ReloadingClient, TransportSecurity};
use std::fmt;
use std::sync::Arc;

/// The demand of TLS on all connections of an adapter. It opens none without.
#[derive(Clone)]
pub struct ClientTls {
    files: Arc<ReloadingClient>,
    name: String,
    least: TransportSecurity,
    protocol: Protocol,
}

impl ClientTls {
    /// Demands TLS. The certificate of the server must be for `name`, a host name or an address.
    /// With `Mtls` the server must also ask for the certificate of this client.
    pub fn new(
        files: Arc<ReloadingClient>,
        name: &str,
        least: TransportSecurity,
        protocol: Protocol,
    ) -> Self {
        // A zone is of this host alone, and no certificate has one (RFC 4007 11.2).
        let host = name.split_once('%').filter(|_| name.contains(':'));
        Self { files, name: host.map_or(name, |(host, _)| host).to_owned(), least, protocol }
    }

    /// Begins a handshake, after a look at the files.
    pub(crate) fn begin(&self) -> Result<Handshake, HandshakeError> {
        let now_seconds = now_seconds();
        if let Err(error) = self.files.follow(now_seconds) {
            tracing::warn!(%error, "changed files of TLS are not used");
        }
        Handshake::client(&self.files.current(), &self.name, self.protocol, now_seconds)
    }

    /// Checks the results of a handshake against the demand. Returns the server, which must stay
    /// trusted.
    pub(crate) fn check(&self, facts: Facts) -> Result<Option<Trusted>, &'static str> {
        match self.least == TransportSecurity::Mtls && !facts.has_shown_certificate {
            true => {
                Err("the server asked for no certificate of this client, so it does not verify \
                         its clients; with mtls this client does not use it")
            }
            false => Ok(Trusted::new(&self.files, &self.name, facts)),
        }
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientTls({} as {} for {})", self.least, self.name, self.protocol)
    }
}

impl PartialEq for ClientTls {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.files, &other.files)
            && (&self.name, self.least, self.protocol) == (&other.name, other.least, other.protocol)
    }
}

impl Eq for ClientTls {}
