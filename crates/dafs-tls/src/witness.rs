//! One connection's view of its configuration. rustls asks it for keys and trust, and it remembers
//! the answers, because rustls' unbuffered connections do not tell them.
//!
//! Invariants
//! * The exporter secret is taken out once. No other secret is kept.
//! * A client refuses a server without trust, unless its own side is anonymous.
//! * Under `mtls` a client without trust is refused in the handshake. Under `tls` it is let in and
//!   marked, so that an export which demands `mtls` stays closed to it.

use crate::config::{ClientSide, ServerSide};
use crate::peer::Standing;
use crate::protocol::{Protocol, TransportSecurity};
use crate::provider::provider;
use crate::trust::Distrust;
use dafs_mem::Mutex;
use rustls::client::ResolvesClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::tls13::OkmBlock;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, KeyLog, SignatureScheme,
};
use std::fmt;
use std::sync::{Arc, MutexGuard};

/// The label under which rustls hands out the exporter secret.
const EXPORTER_LABEL: &str = "EXPORTER_SECRET";

/// The things that rustls told one connection.
#[derive(Default)]
pub(crate) struct Seen(Mutex<Findings>);

/// See [`Seen`].
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) exporter: Option<OkmBlock>,
    pub(crate) standing: Option<Standing>,
    /// The generation of the rules for users; on a server alone.
    pub(crate) rules: Option<u64>,
    /// The client named no protocol though it must.
    pub(crate) lacks_protocol: bool,
    /// The server asked for the certificate of this client, and got it.
    pub(crate) has_shown_certificate: bool,
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seen")
    }
}

impl Seen {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Findings> {
        self.0.lock()
    }

    /// Remembers a judgement, and answers rustls.
    fn judged(&self, judgement: Result<(), Distrust>, is_demanded: bool) -> Result<(), Error> {
        let standing = match judgement {
            Ok(()) => Standing::Verified,
            Err(distrust) => Standing::Unverified(distrust),
        };
        let answer = match &standing {
            Standing::Unverified(distrust) if is_demanded => Err(certificate_error(distrust)),
            _ => Ok(()),
        };
        self.lock().standing = Some(standing);
        answer
    }
}

impl KeyLog for Seen {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        if label == EXPORTER_LABEL && secret.len() <= OkmBlock::MAX_LEN {
            self.lock().exporter = Some(OkmBlock::new(secret));
        }
    }

    fn will_log(&self, label: &str) -> bool {
        label == EXPORTER_LABEL
    }
}

/// The error from which rustls makes the alert.
fn certificate_error(distrust: &Distrust) -> Error {
    let error = match distrust {
        Distrust::Expired => CertificateError::Expired,
        Distrust::NotYetValid => CertificateError::NotValidYet,
        Distrust::Malformed => CertificateError::BadEncoding,
        Distrust::Purpose(_) => CertificateError::InvalidPurpose,
        Distrust::Revoked => CertificateError::Revoked,
        Distrust::Signature => CertificateError::BadSignature,
        Distrust::UnknownIssuer | Distrust::NoAuthorities => CertificateError::UnknownIssuer,
        Distrust::Name { .. } => CertificateError::NotValidForName,
        _ => CertificateError::ApplicationVerificationFailure,
    };
    Error::InvalidCertificate(error)
}

/// The half of a verifier that is the same at both ends: the signatures of the peer.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &provider().signature_verification_algorithms;
            verify_tls12_signature(message, certificate, signature, algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &provider().signature_verification_algorithms;
            verify_tls13_signature(message, certificate, signature, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            provider().signature_verification_algorithms.supported_schemes()
        }
    };
}

/// The server's end.
#[derive(Debug)]
pub(crate) struct ServerWitness {
    pub(crate) side: Arc<ServerSide>,
    pub(crate) protocols: Vec<Protocol>,
    pub(crate) now_seconds: u64,
    pub(crate) seen: Arc<Seen>,
}

impl ResolvesServerCert for ServerWitness {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let must_name =
            !self.protocols.is_empty() && self.protocols.iter().all(|known| known.is_required());
        let lacks_protocol = must_name && hello.alpn().is_none();
        self.seen.lock().lacks_protocol = lacks_protocol;
        // Without a key rustls ends the handshake, before anything costly is done.
        (!lacks_protocol).then(|| self.side.identity().key().clone())
    }
}

impl ClientCertVerifier for ServerWitness {
    fn client_auth_mandatory(&self) -> bool {
        self.side.policy() == TransportSecurity::Mtls
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.side.trust().subjects()
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let judgement = self.side.judge_client(own, others, self.now_seconds);
        self.seen.lock().rules = self.side.rules();
        self.seen.judged(judgement, self.client_auth_mandatory())?;
        Ok(ClientCertVerified::assertion())
    }

    signatures!();
}

/// The client's end.
#[derive(Debug)]
pub(crate) struct ClientWitness {
    pub(crate) side: Arc<ClientSide>,
    pub(crate) now_seconds: u64,
    pub(crate) seen: Arc<Seen>,
}

impl ResolvesClientCert for ClientWitness {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        // rustls asks only when the server does.
        let key = self.side.identity().map(|identity| identity.key().clone());
        self.seen.lock().has_shown_certificate = key.is_some();
        key
    }

    fn has_certs(&self) -> bool {
        self.side.identity().is_some()
    }
}

impl ServerCertVerifier for ClientWitness {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let judgement = self.side.trust().judge_server(own, others, name, self.now_seconds);
        self.seen.judged(judgement, self.side.verifies_servers())?;
        Ok(ServerCertVerified::assertion())
    }

    signatures!();
}
