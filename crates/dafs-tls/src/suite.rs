//! The two cipher suites (RFC 8446 B.4).

use rustls::crypto::aws_lc_rs::cipher_suite;
use rustls::{CipherSuite, SupportedCipherSuite, Tls13CipherSuite};
use std::fmt;

/// A cipher suite of TLS 1.3 with AES-GCM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// `TLS_AES_128_GCM_SHA256`.
    Aes128,
    /// `TLS_AES_256_GCM_SHA384`.
    Aes256,
}

impl Suite {
    /// Bytes of a key.
    pub const fn key_bytes(self) -> usize {
        match self {
            Self::Aes128 => 16,
            Self::Aes256 => 32,
        }
    }

    pub(crate) fn rustls(self) -> SupportedCipherSuite {
        match self {
            Self::Aes128 => cipher_suite::TLS13_AES_128_GCM_SHA256,
            Self::Aes256 => cipher_suite::TLS13_AES_256_GCM_SHA384,
        }
    }

    pub(crate) fn from_rustls(suite: SupportedCipherSuite) -> Option<Self> {
        match suite.suite() {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => Some(Self::Aes128),
            CipherSuite::TLS13_AES_256_GCM_SHA384 => Some(Self::Aes256),
            _ => None,
        }
    }

    /// The functions of rustls for the suite's hash.
    pub(crate) fn functions(self) -> &'static Tls13CipherSuite {
        // INVARIANT: both suites are of TLS 1.3.
        self.rustls().tls13().expect("a suite of TLS 1.3")
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aes128 => "AES-128-GCM",
            Self::Aes256 => "AES-256-GCM",
        })
    }
}
