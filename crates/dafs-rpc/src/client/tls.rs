//! TLS of a client (RFC 9289): the demand, and the errors of connecting.

use crate::tls::{TransportSecurity, now_seconds};
use dafs_dat::tls::Trusted;
use dafs_tls::{ClientSide, Facts, HandshakeError, Protocol, ReloadingClient};
use std::sync::Arc;
use thiserror::Error;

/// The demand of TLS on all connections of a client. A connection without it is never used.
#[derive(Clone)]
pub struct ClientTls {
    files: Arc<ReloadingClient>,
    name: String,
    least: TransportSecurity,
    program: (u32, u32),
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClientTls({} as {})", self.least, self.name)
    }
}

impl PartialEq for ClientTls {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.files, &other.files)
            && (&self.name, self.least, self.program) == (&other.name, other.least, other.program)
    }
}

impl Eq for ClientTls {}

impl ClientTls {
    /// Demands TLS. The certificate of the server must be for `name`, a host name or an address.
    /// With `Mtls` the server must also ask for the certificate of this client. `program` is one
    /// that the server serves, with its version.
    pub fn new(
        files: Arc<ReloadingClient>,
        name: &str,
        least: TransportSecurity,
        program: (u32, u32),
    ) -> Self {
        Self { files, name: name.to_owned(), least, program }
    }

    /// The same demand on a server of another name.
    #[must_use]
    pub fn for_name(&self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self.clone() }
    }

    /// The same demand on a server of another program.
    #[must_use]
    pub fn for_program(&self, program: u32, version: u32) -> Self {
        Self { program: (program, version), ..self.clone() }
    }

    /// The same demand below iWARP.
    pub fn below_iwarp(&self) -> dafs_dat::tls::ClientTls {
        let files = self.files.clone();
        dafs_dat::tls::ClientTls::new(files, &self.name, self.least, Protocol::RpcRdma)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_mutual(&self) -> bool {
        self.least == TransportSecurity::Mtls
    }

    pub(super) fn program(&self) -> (u32, u32) {
        self.program
    }

    /// The server of a handshake, which must stay trusted.
    pub(super) fn trusted(&self, facts: Facts) -> Option<Trusted> {
        Trusted::new(&self.files, &self.name, facts)
    }

    /// The certificates for a new connection, after a look at their files.
    pub(super) fn side(&self) -> Arc<ClientSide> {
        if let Err(error) = self.files.follow(now_seconds()) {
            tracing::warn!(%error, "changed files of TLS are not used");
        }
        self.files.current()
    }
}

/// The reason why a server cannot be used with TLS.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum TlsError {
    #[error(
        "the server offers no TLS, or something on the way took its offer out; this client uses no \
         connection without TLS"
    )]
    NotOffered,
    #[error("the server sent no answer to the request for TLS")]
    NoAnswer,
    #[error("{0}")]
    Handshake(#[from] HandshakeError),
    #[error("the server ended the connection in the handshake of TLS")]
    Cut,
    #[error(
        "the server asked for no certificate of this client, so it does not verify its clients; \
         with mtls this client does not use it"
    )]
    NotAsked,
    #[error("over RDMA the adapter has TLS or not, and this demand is one of TCP")]
    Rdma,
}

impl From<TlsError> for std::io::Error {
    fn from(error: TlsError) -> Self {
        Self::other(error)
    }
}
