//! The protection of a connection, and what TLS says about its peer.

use dafs_tls::{
    CHANNEL_BINDING_BYTES, CHANNEL_BINDING_LABEL, Exporter, Facts, Suite, TransportSecurity,
};
use std::fmt;
use std::sync::Arc;

/// The results of a handshake that layers above need.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsPeer {
    /// `Mtls` if the peer showed a certificate that the authorities vouch for.
    pub level: TransportSecurity,
    /// The cipher suite.
    pub suite: Suite,
    /// The subject of that certificate.
    pub subject: Option<String>,
    /// The user for whom the peer acts, by that certificate and the rules of this end.
    pub user: Option<Arc<str>>,
    /// The channel binding `tls-exporter` (RFC 9266). Both ends have the same value, and no other
    /// connection has it.
    pub binding: [u8; CHANNEL_BINDING_BYTES],
}

impl TlsPeer {
    /// Takes the results of a handshake.
    pub(crate) fn new(facts: &Facts, exporter: &Exporter) -> Self {
        let mut binding = [0; CHANNEL_BINDING_BYTES];
        let exported = exporter.export(CHANNEL_BINDING_LABEL, b"", &mut binding);
        // INVARIANT: the label is short, and so is the value.
        exported.expect("RFC 9266 has a label and a length within the limits");
        let verified = facts.peer.as_ref().filter(|peer| peer.is_verified());
        let subject = verified.map(|peer| peer.certificate().subject().to_owned());
        let user = facts.peer.as_ref().and_then(|peer| peer.user()).map(Arc::from);
        Self { level: facts.level(), suite: facts.suite, subject, user, binding }
    }
}

impl fmt::Debug for TlsPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsPeer({} {} {:?})", self.level, self.suite, self.subject)
    }
}
