//! Ends without authorities: TLS gives them a secret channel, and no knowledge of each other.
//!
//! Invariants
//! * No peer of such an end counts as verified. The owner of the connection authenticates the peer
//!   by a proof that covers the exporter's channel binding (RFC 9266). A man in the middle has two
//!   connections, and so two values.

use crate::certificate::Certificate;
use crate::config::{ClientSide, Identity, ServerSide};
use crate::pki::{Pair, PkiError};
use crate::protocol::TransportSecurity;
use crate::provider::provider;
use crate::trust::Trust;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::sign::CertifiedKey;
use std::sync::Arc;

impl ServerSide {
    /// A server with a new key and a certificate that nobody can verify.
    ///
    /// # Errors
    /// [`PkiError::Failed`].
    pub fn dangerous_anonymous() -> Result<Self, PkiError> {
        let pair = Pair::self_signed()?;
        let own = pair.certificate_der();
        let failed = |error: &dyn std::fmt::Display| PkiError::Failed(error.to_string());
        let certificate = Certificate::read(&own).map_err(|error| failed(&error))?;
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes());
        let key = key.map_err(|error| failed(&error))?;
        let key = CertifiedKey::from_der(vec![own], key, &provider());
        let identity =
            Identity { key: Arc::new(key.map_err(|error| failed(&error))?), certificate };
        let (trust, policy) = (Trust::nobody(), TransportSecurity::Tls);
        let (identity, trust) = (Arc::new(identity), Arc::new(trust));
        Ok(Self { identity, trust, policy, generation: 1, trust_generation: 1, rules: None })
    }
}

impl ClientSide {
    /// A client without a certificate, that connects to any server.
    pub fn dangerous_anonymous() -> Self {
        Self { identity: None, trust: Trust::nobody(), verifies_servers: false, generation: 1 }
    }
}
