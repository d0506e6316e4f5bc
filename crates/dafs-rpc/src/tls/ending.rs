//! The reasons why TLS ends a connection.

use crate::connection::Ending;
use dafs_dat::tls::ShakeError;
use dafs_tls::ktls::{InstallError, ReceiveError};
use dafs_tls::{Alert, ControlError, Distrust, HandshakeError, OpenError};
use thiserror::Error;

/// The reason why TLS ends a connection.
#[derive(Debug, Error)]
pub(crate) enum TlsEnding {
    #[error("the peer closed it")]
    Closed,
    #[error("the peer ended it without close_notify")]
    Cut,
    #[error("the peer ended it inside a record of TLS")]
    CutInRecord,
    #[error("the peer ended it in the handshake of TLS")]
    CutInHandshake,
    #[error("the peer sent something between its request for TLS and the handshake")]
    Early,
    #[error("the handshake of TLS took more than 10 s")]
    Slow,
    #[error("too many handshakes of TLS are under way, most of them for hosts like this one")]
    Crowded,
    #[error("{0}")]
    Handshake(#[from] HandshakeError),
    #[error("{0}")]
    Kernel(#[from] InstallError),
    #[error("{0}")]
    Open(#[from] OpenError),
    #[error("{0}")]
    Control(#[from] ControlError),
    #[error("the certificate of the client is not trusted any more: {0}")]
    Distrusted(Distrust),
    #[error("its keys have protected as many records as they may; the client connects again")]
    Spent,
}

impl TlsEnding {
    /// True for the usual ends of a connection.
    pub(crate) fn is_quiet(&self) -> bool {
        matches!(self, Self::Closed | Self::Cut | Self::Spent)
    }

    /// True if the peer may still send, and must get what was sent to it: replies, or an alert.
    pub(crate) fn lingers(&self) -> bool {
        matches!(
            self,
            Self::Handshake(_)
                | Self::Open(_)
                | Self::Control(_)
                | Self::Distrusted(_)
                | Self::Spent
        )
    }

    /// The alert for the peer.
    pub(crate) fn alert(&self) -> Option<Alert> {
        match self {
            Self::Open(error) => error.alert(),
            Self::Control(error) => error.alert(),
            Self::Handshake(_) | Self::Kernel(_) => None,
            _ => Some(Alert::CLOSE_NOTIFY),
        }
    }
}

impl From<ShakeError> for Ending {
    fn from(error: ShakeError) -> Self {
        match error {
            ShakeError::Crowded => TlsEnding::Crowded.into(),
            ShakeError::Cut => TlsEnding::CutInHandshake.into(),
            ShakeError::Handshake(error) => TlsEnding::from(error).into(),
            ShakeError::Io(error) => error.into(),
        }
    }
}

/// Tells the kernel's error of a read from a record that ends the connection.
pub(crate) fn of_kernel(error: ReceiveError) -> Result<TlsEnding, std::io::Error> {
    match error {
        ReceiveError::Control(error) => Ok(error.into()),
        ReceiveError::Io(error) => Err(error),
    }
}
