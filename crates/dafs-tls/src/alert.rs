//! Alerts (RFC 8446 6), and other records that are no data.
//!
//! Invariants
//! * A key update ends a connection. Kernels before Linux 6.14 cannot change keys.
//! * A client ignores a bounded number of session tickets, and a server accepts no handshake
//!   message.

use crate::keys::Side;
use crate::limits::TICKETS_MAX;
use std::fmt;
use thiserror::Error;

/// Content types of records (RFC 8446 5.1).
pub(crate) mod content {
    pub(crate) const CHANGE_CIPHER_SPEC: u8 = 20;
    pub(crate) const ALERT: u8 = 21;
    pub(crate) const HANDSHAKE: u8 = 22;
    pub(crate) const APPLICATION_DATA: u8 = 23;
}

/// Handshake messages that may come after the handshake (RFC 8446 4.6).
mod message {
    pub(super) const NEW_SESSION_TICKET: u8 = 4;
    pub(super) const KEY_UPDATE: u8 = 24;
}

/// An alert's description (RFC 8446 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Alert(pub u8);

impl Alert {
    /// The sender has sent everything (RFC 8446 6.1).
    pub const CLOSE_NOTIFY: Self = Self(0);
    /// A record came in the wrong place.
    pub const UNEXPECTED_MESSAGE: Self = Self(10);
    /// The protection of a record is wrong.
    pub const BAD_RECORD_MAC: Self = Self(20);
    /// A record is too long.
    pub const RECORD_OVERFLOW: Self = Self(22);
    /// The sender gave up for a reason of its own (RFC 8446 6.1).
    const USER_CANCELED: Self = Self(90);

    /// The name in RFC 8446 6, with a hint where the administrator can act.
    fn words(self) -> Option<&'static str> {
        Some(match self.0 {
            0 => "close_notify",
            10 => "unexpected_message",
            20 => "bad_record_mac",
            22 => "record_overflow",
            40 => "handshake_failure: no common cipher suite or group",
            42 => "bad_certificate: it refuses the certificate of this end",
            43 => "unsupported_certificate: it refuses the certificate of this end",
            44 => "certificate_revoked: the certificate of this end is revoked",
            45 => {
                "certificate_expired: the certificate of this end has ended, or the peer's clock is wrong"
            }
            46 => "certificate_unknown: it refuses the certificate of this end",
            47 => "illegal_parameter",
            48 => "unknown_ca: it does not trust the authority of this end's certificate",
            49 => "access_denied",
            50 => "decode_error",
            51 => "decrypt_error",
            70 => "protocol_version: it does not speak TLS 1.3",
            71 => "insufficient_security",
            80 => "internal_error",
            90 => "user_canceled",
            109 => "missing_extension",
            112 => "unrecognized_name",
            116 => "certificate_required: it demands a client certificate",
            120 => "no_application_protocol: it does not serve this protocol here",
            _ => return None,
        })
    }
}

impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words() {
            Some(words) => f.write_str(words),
            None => write!(f, "alert {}", self.0),
        }
    }
}

/// Why a record that is no data ends a connection.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ControlError {
    /// The peer gave up.
    #[error("the peer ended the connection with {0}")]
    PeerAlert(Alert),
    /// The peer wants other keys (RFC 8446 4.6.3).
    #[error(
        "the peer asked for new keys, which this end does not do; a new connection has new ones"
    )]
    KeyUpdate,
    /// More session tickets than a server has reason to send.
    #[error("the peer sent more than 16 session tickets")]
    Tickets,
    /// A record that TLS does not allow here.
    #[error("the peer sent a record of type {0} that is not allowed after the handshake")]
    Unexpected(u8),
}

impl ControlError {
    /// The alert that tells the peer, if there is one to send.
    pub fn alert(self) -> Option<Alert> {
        match self {
            Self::PeerAlert(_) => None,
            // The connection ends for a reason that is no fault of the peer.
            Self::KeyUpdate => Some(Alert::CLOSE_NOTIFY),
            Self::Tickets | Self::Unexpected(_) => Some(Alert::UNEXPECTED_MESSAGE),
        }
    }
}

/// The meaning of a record that is no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// It means nothing here.
    Ignore,
    /// The peer has sent everything.
    Close,
}

/// Judges records that are no data.
#[derive(Debug)]
pub(crate) struct Judge {
    side: Side,
    tickets: u32,
}

impl Judge {
    /// A judge for the records that come to this end.
    pub(crate) fn new(side: Side) -> Self {
        Self { side, tickets: 0 }
    }

    /// Judges a whole record, given its content type and its plain bytes.
    pub(crate) fn judge(&mut self, kind: u8, plain: &[u8]) -> Result<Control, ControlError> {
        match (kind, plain) {
            (content::ALERT, [_, description]) => match Alert(*description) {
                Alert::CLOSE_NOTIFY => Ok(Control::Close),
                Alert::USER_CANCELED => Ok(Control::Ignore),
                alert => Err(ControlError::PeerAlert(alert)),
            },
            (content::HANDSHAKE, messages) => self.judge_handshake(messages),
            (kind, _) => Err(ControlError::Unexpected(kind)),
        }
    }

    fn judge_handshake(&mut self, mut rest: &[u8]) -> Result<Control, ControlError> {
        let unexpected = ControlError::Unexpected(content::HANDSHAKE);
        if rest.is_empty() {
            return Err(unexpected);
        }
        while let [kind, high, middle, low, behind @ ..] = rest {
            match *kind {
                message::KEY_UPDATE => return Err(ControlError::KeyUpdate),
                message::NEW_SESSION_TICKET if self.side == Side::Client => {}
                _ => return Err(unexpected),
            }
            self.tickets += 1;
            if self.tickets > TICKETS_MAX {
                return Err(ControlError::Tickets);
            }
            let length = usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low);
            // A ticket in several records would need a buffer. No server has tickets of 16 KiB.
            rest = behind.get(length..).ok_or(unexpected)?;
        }
        if rest.is_empty() { Ok(Control::Ignore) } else { Err(unexpected) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_and_key_updates_end_a_connection() {
        for side in [Side::Client, Side::Server] {
            let mut judge = Judge::new(side);
            assert_eq!(judge.judge(content::ALERT, &[1, 0]), Ok(Control::Close));
            assert_eq!(judge.judge(content::ALERT, &[1, 90]), Ok(Control::Ignore));
            let refused = ControlError::PeerAlert(Alert(48));
            assert_eq!(judge.judge(content::ALERT, &[2, 48]), Err(refused));
            for bad in [&[][..], &[1], &[1, 0, 0]] {
                assert_eq!(judge.judge(content::ALERT, bad), Err(ControlError::Unexpected(21)));
            }
            let update = [24, 0, 0, 1, 0];
            assert_eq!(judge.judge(content::HANDSHAKE, &update), Err(ControlError::KeyUpdate));
            assert_eq!(judge.judge(20, &[1]), Err(ControlError::Unexpected(20)));
        }
    }

    #[test]
    fn a_client_ignores_some_tickets_and_a_server_none() {
        let ticket = [4, 0, 0, 2, 7, 7];
        let mut two = ticket.to_vec();
        two.extend(ticket);
        let mut client = Judge::new(Side::Client);
        for _ in 0..TICKETS_MAX / 2 {
            assert_eq!(client.judge(content::HANDSHAKE, &two), Ok(Control::Ignore));
        }
        assert_eq!(client.judge(content::HANDSHAKE, &ticket), Err(ControlError::Tickets));
        let unexpected = Err(ControlError::Unexpected(22));
        let mut client = Judge::new(Side::Client);
        for bad in [&[][..], &[4, 0, 0], &ticket[..5], &[4, 0, 0, 0, 4], &[1, 0, 0, 0]] {
            assert_eq!(client.judge(content::HANDSHAKE, bad), unexpected, "{bad:?}");
        }
        assert_eq!(Judge::new(Side::Server).judge(content::HANDSHAKE, &ticket), unexpected);
    }

    #[test]
    fn an_alert_says_who_must_act() {
        let text = ControlError::PeerAlert(Alert(116)).to_string();
        assert!(text.contains("demands a client certificate"), "{text}");
        assert_eq!(Alert(200).to_string(), "alert 200");
    }
}
