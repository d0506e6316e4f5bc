//! The keys of a connection after its handshake: for [`crate::Channel`] or for the kernel.
//!
//! Invariants
//! * Keys leave memory with their owner, and no Debug shows them.
//! * The owner is moved to one user, so that no record number is used twice under one key.

use crate::suite::Suite;
use rustls::{ConnectionTrafficSecrets, ExtractedSecrets};
use std::fmt;
use zeroize::Zeroize;

/// Bytes of a per-record nonce (RFC 8446 5.3).
pub(crate) const IV_BYTES: usize = 12;

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The end that connected.
    Client,
    /// The end that listened.
    Server,
}

/// The key of one direction, and the number of its next record.
pub(crate) struct DirectionKey {
    key: [u8; 32],
    pub(crate) iv: [u8; IV_BYTES],
    pub(crate) sequence: u64,
    suite: Suite,
}

impl DirectionKey {
    pub(crate) fn key(&self) -> &[u8] {
        &self.key[..self.suite.key_bytes()]
    }

    pub(crate) fn suite(&self) -> Suite {
        self.suite
    }

    /// Takes the secrets of a suite that this crate offers.
    fn new((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Option<Self> {
        let (suite, given_key, given_iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Suite::Aes128, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Suite::Aes256, key, iv),
            _ => return None,
        };
        let mut key = [0; 32];
        key.get_mut(..suite.key_bytes())?
            .copy_from_slice(given_key.as_ref().get(..suite.key_bytes())?);
        let iv = given_iv.as_ref().try_into().ok()?;
        Some(Self { key, iv, sequence, suite })
    }

    #[cfg(test)]
    pub(crate) fn of_test(suite: Suite, sequence: u64) -> Self {
        let key = std::array::from_fn(|at| at as u8 + 1);
        Self { key, iv: std::array::from_fn(|at| 0xa0 + at as u8), sequence, suite }
    }
}

impl Drop for DirectionKey {
    fn drop(&mut self) {
        self.key.zeroize();
        self.iv.zeroize();
    }
}

/// The keys of both directions.
pub struct TrafficKeys {
    pub(crate) side: Side,
    pub(crate) send: DirectionKey,
    pub(crate) receive: DirectionKey,
}

impl fmt::Debug for TrafficKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TrafficKeys({:?}, {})", self.side, self.send.suite)
    }
}

impl TrafficKeys {
    /// The cipher suite of both directions.
    pub(crate) fn suite(&self) -> Suite {
        self.send.suite
    }

    pub(crate) fn new(side: Side, secrets: ExtractedSecrets) -> Option<Self> {
        let (send, receive) = (DirectionKey::new(secrets.tx)?, DirectionKey::new(secrets.rx)?);
        Some(Self { side, send, receive })
    }

    #[cfg(test)]
    pub(crate) fn of_test(side: Side, suite: Suite, sequence: u64) -> Self {
        let (send, receive) =
            (DirectionKey::of_test(suite, sequence), DirectionKey::of_test(suite, sequence));
        Self { side, send, receive }
    }
}
