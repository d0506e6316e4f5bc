//! Trust in a peer's certificate: the authorities, their revocation lists, and the judgement.
//!
//! rustls' webpki verifies chains (RFC 5280 6). This module adds rules, and words for the reasons.
//!
//! Invariants
//! * Without authorities nobody is trusted.
//! * A client needs the extended key usage for clients. webpki alone would do without the
//!   extension.
//! * With revocation lists, a certificate whose issuer has no list is refused.

use crate::certificate::{Certificate, SubjectName};
use crate::limits::CHAIN_CERTIFICATES_MAX;
use crate::provider::{provider, unix_time};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, DistinguishedName, Error, RootCertStore};
use std::sync::Arc;
use thiserror::Error;

const CLIENTS: &str = "clients (clientAuth)";
const SERVERS: &str = "servers (serverAuth)";

/// Why a peer's certificate is not trusted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum Distrust {
    #[error("its chain has more than 16 certificates")]
    ChainTooLong,
    #[error("it has ended; renew it, and check the clock of this host")]
    Expired,
    #[error("it cannot be read, or uses what RFC 5280 does not allow")]
    Malformed,
    #[error("no authority is configured that could vouch for it")]
    NoAuthorities,
    #[error("it is for other names ({presented}), not for {wanted}")]
    Name { wanted: String, presented: String },
    #[error("it is not valid yet; check the clock of this host")]
    NotYetValid,
    #[error("its extended key usage does not allow {0}")]
    Purpose(&'static str),
    #[error("it has been revoked")]
    Revoked,
    #[error("there is no revocation list of its issuer, so it may have been revoked")]
    RevocationUnknown,
    #[error("its signature is wrong")]
    Signature,
    #[error("it comes from an authority that is not configured")]
    UnknownIssuer,
    #[error("it names several users, or one that is not of the form user@domain")]
    UnclearUser,
    #[error("it names a user, and the rules for users have changed; the client must connect again")]
    OtherRules,
    #[error("it is refused: {0}")]
    Other(String),
}

/// Why authorities or revocation lists cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TrustError {
    /// Certificate number `.0`, from 1.
    Authority(usize),
    Revocations(String),
}

/// The authorities that vouch for peers, with their revocation lists.
#[derive(Debug)]
pub(crate) struct Trust {
    verifiers: Option<Verifiers>,
    subjects: Vec<DistinguishedName>,
    authorities: Vec<CertificateDer<'static>>,
    revocations: Vec<CertificateRevocationListDer<'static>>,
}

#[derive(Debug)]
struct Verifiers {
    clients: Arc<dyn ClientCertVerifier>,
    servers: Arc<WebPkiServerVerifier>,
}

impl Trust {
    /// Trusts nobody.
    pub(crate) fn nobody() -> Self {
        let (authorities, revocations) = (Vec::new(), Vec::new());
        Self { verifiers: None, subjects: Vec::new(), authorities, revocations }
    }

    /// Trusts those for whom these authorities vouch.
    pub(crate) fn new(
        authorities: Vec<CertificateDer<'static>>,
        revocations: Vec<CertificateRevocationListDer<'static>>,
    ) -> Result<Self, TrustError> {
        if authorities.is_empty() {
            return Ok(Self { revocations, ..Self::nobody() });
        }
        let mut roots = RootCertStore::empty();
        for (index, authority) in authorities.iter().enumerate() {
            roots.add(authority.clone()).map_err(|_| TrustError::Authority(index + 1))?;
        }
        let subjects = roots.subjects();
        let roots = Arc::new(roots);
        let words = |error: rustls::server::VerifierBuilderError| {
            TrustError::Revocations(format!("{error:?}"))
        };
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider())
            .with_crls(revocations.iter().cloned())
            .build()
            .map_err(words)?;
        let servers = WebPkiServerVerifier::builder_with_provider(roots, provider())
            .with_crls(revocations.iter().cloned())
            .build()
            .map_err(words)?;
        let verifiers = Some(Verifiers { clients, servers });
        Ok(Self { verifiers, subjects, authorities, revocations })
    }

    /// The names of the authorities, for the request of a client's certificate.
    pub(crate) fn subjects(&self) -> &[DistinguishedName] {
        &self.subjects
    }

    pub(crate) fn has_same_files(&self, other: &Self) -> bool {
        self.authorities == other.authorities && self.revocations == other.revocations
    }

    /// Judges the chain of a client, its own certificate first, at a time in seconds since 1970. Returns that
    /// certificate.
    pub(crate) fn judge_client(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now_seconds: u64,
    ) -> Result<Certificate, Distrust> {
        let verifiers = self.verifiers_for(others)?;
        let read = Certificate::read(own).map_err(|_| Distrust::Malformed)?;
        verifiers
            .clients
            .verify_client_cert(own, others, unix_time(now_seconds))
            .map_err(|error| words(&read, error, CLIENTS, None))?;
        match read.purposes() {
            Some(purposes) if purposes.client => Ok(read),
            _ => Err(Distrust::Purpose(CLIENTS)),
        }
    }

    /// Judges the chain of a server for the name that the client connects to.
    pub(crate) fn judge_server(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now_seconds: u64,
    ) -> Result<(), Distrust> {
        let verifiers = self.verifiers_for(others)?;
        let read = Certificate::read(own).map_err(|_| Distrust::Malformed)?;
        verifiers
            .servers
            .verify_server_cert(own, others, name, &[], unix_time(now_seconds))
            .map(|_| ())
            .map_err(|error| words(&read, error, SERVERS, Some(name)))
    }

    fn verifiers_for(&self, others: &[CertificateDer<'_>]) -> Result<&Verifiers, Distrust> {
        if others.len() >= CHAIN_CERTIFICATES_MAX {
            return Err(Distrust::ChainTooLong);
        }
        self.verifiers.as_ref().ok_or(Distrust::NoAuthorities)
    }
}

/// The reason in the words of this crate.
fn words(
    read: &Certificate,
    error: Error,
    purpose: &'static str,
    name: Option<&ServerName<'_>>,
) -> Distrust {
    use CertificateError as E;
    let error = match error {
        Error::InvalidCertificate(error) => error,
        other => return Distrust::Other(other.to_string()),
    };
    match error {
        E::Expired | E::ExpiredContext { .. } => Distrust::Expired,
        E::NotValidYet | E::NotValidYetContext { .. } => Distrust::NotYetValid,
        E::BadEncoding | E::UnhandledCriticalExtension => Distrust::Malformed,
        E::Revoked => Distrust::Revoked,
        E::UnknownRevocationStatus => Distrust::RevocationUnknown,
        E::UnknownIssuer => Distrust::UnknownIssuer,
        E::BadSignature => Distrust::Signature,
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => Distrust::Purpose(purpose),
        E::NotValidForName | E::NotValidForNameContext { .. } => Distrust::Name {
            wanted: name.map_or_else(String::new, |name| name.to_str().into_owned()),
            presented: presented(read.names()),
        },
        other => Distrust::Other(other.to_string()),
    }
}

/// The first names of a certificate, for a message.
fn presented(names: &[SubjectName]) -> String {
    const SHOWN: usize = 8;
    if names.is_empty() {
        return "it has no subject alternative name".to_owned();
    }
    let mut text: Vec<String> = names.iter().take(SHOWN).map(SubjectName::to_string).collect();
    if names.len() > SHOWN {
        text.push(format!("and {} more", names.len() - SHOWN));
    }
    text.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::Authority;

    const NOW: u64 = 1_800_000_000;

    #[test]
    fn chains_are_bounded_and_nobody_is_trusted_without_authorities() {
        let authority = Authority::create("CA", NOW).unwrap();
        let own = authority.client(&["host".to_owned()], NOW).unwrap().certificate_der();
        let trust = Trust::new(vec![authority.certificate_der()], Vec::new()).unwrap();
        let others = |count| vec![authority.certificate_der(); count];
        assert!(trust.judge_client(&own, &others(CHAIN_CERTIFICATES_MAX - 1), NOW).is_ok());
        let long = others(CHAIN_CERTIFICATES_MAX);
        assert_eq!(trust.judge_client(&own, &long, NOW), Err(Distrust::ChainTooLong));
        let junk = CertificateDer::from(vec![0x30, 0]);
        assert_eq!(trust.judge_client(&junk, &[], NOW), Err(Distrust::Malformed));
        for nobody in [Trust::nobody(), Trust::new(Vec::new(), Vec::new()).unwrap()] {
            assert_eq!(nobody.judge_client(&own, &[], NOW), Err(Distrust::NoAuthorities));
        }
    }
}
