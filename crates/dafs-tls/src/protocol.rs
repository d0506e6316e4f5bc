//! The application protocols inside TLS, and how much protection an export demands.

use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// An application protocol, as ALPN names it (RFC 7301).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// The control connection of a cluster: `dafs-cluster/1`.
    Cluster,
    /// DAFS 1.0 over iWARP: `dafs/1`.
    Dafs,
    /// ONC RPC over TCP: `sunrpc` (RFC 9289 4.1).
    Rpc,
    /// RPC-over-RDMA on iWARP: `sunrpc-rdma/1`.
    RpcRdma,
    /// HTTP/1.1 (RFC 9112): `http/1.1`.
    Http,
}

impl Protocol {
    /// The identification sequence on the wire (RFC 7301 3.1).
    pub const fn alpn(self) -> &'static [u8] {
        match self {
            Self::Cluster => b"dafs-cluster/1",
            Self::Dafs => b"dafs/1",
            Self::Rpc => b"sunrpc",
            Self::RpcRdma => b"sunrpc-rdma/1",
            Self::Http => b"http/1.1",
        }
    }

    /// All of them.
    const ALL: [Self; 5] = [Self::Cluster, Self::Dafs, Self::Rpc, Self::RpcRdma, Self::Http];

    /// True if a peer must name the protocol. Linux's client of RPC names none (RFC 9289 demands
    /// it), and clients of HTTP need not.
    pub const fn is_required(self) -> bool {
        !matches!(self, Self::Rpc | Self::Http)
    }

    pub(crate) fn from_alpn(bytes: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.alpn() == bytes)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cluster => "dafs-cluster/1",
            Self::Dafs => "dafs/1",
            Self::Rpc => "sunrpc",
            Self::RpcRdma => "sunrpc-rdma/1",
            Self::Http => "http/1.1",
        })
    }
}

/// The protection of a connection, or the least that an export demands. More protection is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum TransportSecurity {
    /// Clear text is allowed.
    #[default]
    None,
    /// TLS, with any client.
    Tls,
    /// TLS, with a client whose certificate was verified.
    Mtls,
}

/// A word that names no protection.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("\"{0}\" is no transport security; write none, tls or mtls")]
pub struct NoTransportSecurity(String);

impl FromStr for TransportSecurity {
    type Err = NoTransportSecurity;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "none" => Ok(Self::None),
            "tls" => Ok(Self::Tls),
            "mtls" => Ok(Self::Mtls),
            other => Err(NoTransportSecurity(other.to_owned())),
        }
    }
}

impl fmt::Display for TransportSecurity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Tls => "tls",
            Self::Mtls => "mtls",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_found_by_their_names() {
        for protocol in Protocol::ALL {
            assert_eq!(Protocol::from_alpn(protocol.alpn()), Some(protocol));
            assert_eq!(protocol.to_string().as_bytes(), protocol.alpn());
        }
        assert_eq!(Protocol::from_alpn(b"h2"), None);
        assert_eq!(Protocol::from_alpn(b""), None);
    }

    #[test]
    fn words_of_the_configuration_are_read_back() {
        for level in [TransportSecurity::None, TransportSecurity::Tls, TransportSecurity::Mtls] {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        let wrong = "TLS".parse::<TransportSecurity>().unwrap_err();
        assert!(wrong.to_string().contains("write none, tls or mtls"));
        assert!(TransportSecurity::None < TransportSecurity::Tls);
        assert!(TransportSecurity::Tls < TransportSecurity::Mtls);
    }
}
