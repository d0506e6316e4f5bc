//! The cryptography that rustls uses here: AWS-LC, TLS 1.3 alone, AES-GCM alone.
//!
//! Invariants
//! * Each cipher suite is one that the kernel can take over.
//! * The hybrid post-quantum group comes first. Each client's first message has a share for it.

use crate::suite::Suite;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, kx_group};
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use rustls::{SupportedProtocolVersion, version};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The versions that both sides offer.
pub(crate) static VERSIONS: &[&SupportedProtocolVersion] = &[&version::TLS13];

/// The provider, made once.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let made = PROVIDER.get_or_init(|| {
        Arc::new(CryptoProvider {
            cipher_suites: vec![Suite::Aes256.rustls(), Suite::Aes128.rustls()],
            kx_groups: vec![
                kx_group::X25519MLKEM768,
                kx_group::X25519,
                kx_group::SECP256R1,
                kx_group::SECP384R1,
            ],
            ..aws_lc_rs::default_provider()
        })
    });
    made.clone()
}

/// The time at which a handshake began. It is handed in, and a handshake lasts seconds.
#[derive(Debug)]
pub(crate) struct Now(pub(crate) u64);

impl TimeProvider for Now {
    fn current_time(&self) -> Option<UnixTime> {
        Some(unix_time(self.0))
    }
}

/// Seconds since 1970 as rustls has them.
pub(crate) fn unix_time(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}
