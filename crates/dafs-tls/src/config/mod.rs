//! The configuration of either end: who it is, whom it trusts, how much it demands.
//!
//! Invariants
//! * A configuration that exists is whole: key and certificate belong together, and the certificate
//!   is valid now.
//! * A configuration never changes. A new one takes its place, with a greater generation.

mod anonymous;
mod error;
mod files;
mod key;
mod reload;

pub use error::ConfigError;
pub(crate) use files::Loading;
pub use files::{ClientFiles, ServerFiles};
pub use reload::{Files, Reload, Reloading, ReloadingClient, ReloadingServer};

use crate::certificate::{Certificate, SubjectName};
use crate::peer::Peer;
use crate::protocol::TransportSecurity;
use crate::trust::{Distrust, Trust};
use crate::user::UserName;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::CertifiedKey;
use std::sync::Arc;

/// A certificate chain with its key.
#[derive(Debug)]
pub struct Identity {
    key: Arc<CertifiedKey>,
    certificate: Certificate,
}

impl Identity {
    /// The end's own certificate: its names, its end, its issuer.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// The names and addresses for which clients accept a server. Without any, no client does.
    pub fn names(&self) -> &[SubjectName] {
        self.certificate.names()
    }

    /// Whole days until the certificate ends; negative after that.
    pub fn days_left(&self, now_seconds: u64) -> i64 {
        self.certificate.days_left(now_seconds)
    }

    pub(crate) fn key(&self) -> &Arc<CertifiedKey> {
        &self.key
    }

    fn is_same(&self, other: &Self) -> bool {
        self.key.cert == other.key.cert
    }
}

/// The configuration of a server's listeners.
#[derive(Debug)]
pub struct ServerSide {
    identity: Arc<Identity>,
    trust: Arc<Trust>,
    policy: TransportSecurity,
    generation: u64,
    trust_generation: u64,
    /// The generation that changed the rules for users last, if there are any.
    rules: Option<u64>,
}

impl ServerSide {
    /// The server's certificate.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The least that every connection has: under `mtls` clients without trust do not get in.
    pub fn policy(&self) -> TransportSecurity {
        self.policy
    }

    /// The generation, which grows with each change of the files.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The generation that changed the authorities, their revocation lists or the rules for users last. Clients
    /// that an older one has judged are judged again.
    pub fn trust_generation(&self) -> u64 {
        self.trust_generation
    }

    /// Judges the certificate of a connected client again, after a reload or as time passes. A
    /// connection whose client was verified must end when this fails.
    ///
    /// # Errors
    /// [`Distrust`].
    pub fn still_trusts(&self, peer: &Peer, now_seconds: u64) -> Result<(), Distrust> {
        // A connection does not change its user, and gets none later.
        let has_other_rules = peer.rules() != self.rules || !peer.is_verified();
        let has_rules = peer.rules().or(self.rules).is_some();
        if has_rules && has_other_rules && *peer.certificate().user() != UserName::Absent {
            return Err(Distrust::OtherRules);
        }
        self.judge_client(peer.certificate().der(), peer.others(), now_seconds)
    }

    /// Judges the chain of a client, its own certificate first.
    pub(crate) fn judge_client(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now_seconds: u64,
    ) -> Result<(), Distrust> {
        let certificate = self.trust.judge_client(own, others, now_seconds)?;
        match certificate.user() {
            UserName::Unclear if self.rules.is_some() => Err(Distrust::UnclearUser),
            _ => Ok(()),
        }
    }

    pub(crate) fn trust(&self) -> &Trust {
        &self.trust
    }

    /// The generation of the rules for users.
    pub(crate) fn rules(&self) -> Option<u64> {
        self.rules
    }

    /// The same files, with rules for users or without.
    fn with_rules(&self, has_rules: bool) -> Self {
        let generation = self.generation + 1;
        Self {
            identity: self.identity.clone(),
            trust: self.trust.clone(),
            policy: self.policy,
            generation,
            trust_generation: generation,
            rules: has_rules.then_some(generation),
        }
    }

    fn has_same_files(&self, other: &Self) -> bool {
        self.identity.is_same(&other.identity)
            && self.trust.has_same_files(&other.trust)
            && self.policy == other.policy
    }
}

/// The configuration of a client's connections.
#[derive(Debug)]
pub struct ClientSide {
    identity: Option<Identity>,
    trust: Trust,
    /// False where the owner of the connection authenticates the server.
    verifies_servers: bool,
    generation: u64,
}

impl ClientSide {
    /// The client's certificate, if it has one.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// The generation, which grows with each change of the files.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Judges the certificate of a connected server again.
    ///
    /// # Errors
    /// [`Distrust`]; also for a name that is none.
    pub fn still_trusts(&self, peer: &Peer, name: &str, now_seconds: u64) -> Result<(), Distrust> {
        let own = peer.certificate();
        let wanted = ServerName::try_from(name).map_err(|_| Distrust::Name {
            wanted: name.to_owned(),
            presented: own.subject().to_owned(),
        })?;
        self.trust.judge_server(own.der(), peer.others(), &wanted, now_seconds)
    }

    pub(crate) fn trust(&self) -> &Trust {
        &self.trust
    }

    pub(crate) fn verifies_servers(&self) -> bool {
        self.verifies_servers
    }

    fn has_same_files(&self, other: &Self) -> bool {
        let is_same_identity = match (&self.identity, &other.identity) {
            (Some(own), Some(other)) => own.is_same(other),
            (None, None) => true,
            _ => false,
        };
        is_same_identity && self.trust.has_same_files(&other.trust)
    }
}
