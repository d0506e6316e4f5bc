//! The other end of a connection, as its certificate names it.

use crate::certificate::{Certificate, SubjectName};
use crate::protocol::{Protocol, TransportSecurity};
use crate::suite::Suite;
use crate::trust::Distrust;
use crate::user::UserName;
use rustls::pki_types::CertificateDer;

/// The verdict of the configured authorities on a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// They vouch for it.
    Verified,
    /// They do not. The peer has the key of the certificate, and no more is known.
    Unverified(Distrust),
}

/// A peer that has shown a certificate and the possession of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    certificate: Certificate,
    chain: Vec<CertificateDer<'static>>,
    standing: Standing,
    /// The generation of the rules for users that this end had, if it had any.
    rules: Option<u64>,
}

impl Peer {
    /// Takes the chain as the peer sent it.
    pub(crate) fn new(
        chain: &[CertificateDer<'_>],
        standing: Standing,
        rules: Option<u64>,
    ) -> Option<Self> {
        let (own, others) = chain.split_first()?;
        let certificate = Certificate::read(own).ok()?;
        let chain = others.iter().map(|other| other.clone().into_owned()).collect();
        Some(Self { certificate, chain, standing, rules })
    }

    /// The peer's own certificate. Its issuer and serial number name it.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// The names of the subject, for logs and rules.
    pub fn names(&self) -> &[SubjectName] {
        self.certificate.names()
    }

    /// The judgement at the time of the handshake.
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// True if the authorities vouched for the peer.
    pub fn is_verified(&self) -> bool {
        self.standing == Standing::Verified
    }

    /// The user for whom a verified peer acts, where this end has rules for such names.
    pub fn user(&self) -> Option<&str> {
        match self.certificate.user() {
            UserName::One(name) if self.is_verified() && self.rules.is_some() => Some(name),
            _ => None,
        }
    }

    /// The generation of the rules for users at the time of the handshake.
    pub(crate) fn rules(&self) -> Option<u64> {
        self.rules
    }

    /// Bytes of all certificates that the peer has sent.
    pub fn chain_bytes(&self) -> usize {
        self.certificate.der().len() + self.chain.iter().map(|other| other.len()).sum::<usize>()
    }

    /// The last second, since 1970, in which all certificates are valid that are so now, and the
    /// peer's own. The peer may have sent others than those of its chain.
    pub fn ends_seconds(&self, now_seconds: u64) -> u64 {
        let others = self.chain.iter().filter_map(|other| Certificate::read(other).ok());
        let ends = others.map(|other| other.not_after_seconds());
        let own = self.certificate.not_after_seconds();
        ends.filter(|end| *end >= now_seconds).fold(own, u64::min)
    }

    /// The certificates behind the peer's own.
    pub(crate) fn others(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }
}

/// The results of a handshake.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The protocol that both ends chose; none if the client named none.
    pub protocol: Option<Protocol>,
    /// The peer, if it has shown a certificate.
    pub peer: Option<Peer>,
    /// True on a client that has shown its certificate, because the server asked for it.
    pub has_shown_certificate: bool,
    /// The cipher suite.
    pub suite: Suite,
    /// The generation of the configuration. A later one may no longer trust the peer.
    pub generation: u64,
}

impl Facts {
    /// The protection of the connection as a server sees it.
    pub fn level(&self) -> TransportSecurity {
        match &self.peer {
            Some(peer) if peer.is_verified() => TransportSecurity::Mtls,
            _ => TransportSecurity::Tls,
        }
    }
}
