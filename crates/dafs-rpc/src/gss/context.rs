//! An established context.
//!
//! Invariants
//! * A handle is not guessed: half of its bytes are random. Handles that were used up are not
//!   reused, not even by a later server.
//! * A context that is in use stays usable until its last call has been answered, also when the
//!   table has dropped it.

use super::keys::MessageKeys;
use super::window::Window;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The name of a context on the wire: a serial number, and random bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    serial: u64,
    secret: u64,
}

impl Handle {
    /// Bytes on the wire.
    pub const BYTES: usize = 16;

    /// A new handle.
    ///
    /// # Errors
    /// When the kernel has no random numbers.
    pub(super) fn new(serial: u64) -> io::Result<Self> {
        let mut secret = [0; 8];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        Ok(Self { serial, secret: u64::from_ne_bytes(secret) })
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (serial, rest) = bytes.split_first_chunk()?;
        let secret = rest.try_into().ok()?;
        Some(Self { serial: u64::from_be_bytes(*serial), secret: u64::from_be_bytes(secret) })
    }

    /// The bytes on the wire.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        (u128::from(self.serial) << 64 | u128::from(self.secret)).to_be_bytes()
    }

    /// The serial number, which is no secret.
    pub fn serial(self) -> u64 {
        self.serial
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({})", self.serial)
    }
}

/// The authenticated identity of the initiator.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal {
    /// The exported name (RFC 2743 section 3.2), which names the mechanism, too. Principals are the
    /// same if these bytes are.
    pub exported_name: Arc<[u8]>,
    /// The name for people and rules, such as `anna@EXAMPLE.ORG`.
    pub display_name: Box<str>,
}

/// The results of a mechanism that has established a context.
#[derive(Debug)]
pub struct Established {
    /// The initiator.
    pub principal: Principal,
    /// The time until the initiator's ticket ends. The server takes calls a minute longer, for
    /// clocks that differ.
    pub remaining: Duration,
    /// The keys of the acceptor's side.
    pub keys: Box<dyn MessageKeys>,
}

/// An established context, which all reactors share.
#[derive(Debug)]
pub struct Context {
    handle: Handle,
    principal: Principal,
    keys: Box<dyn MessageKeys>,
    window: Window,
    end_ns: u64,
    /// The time of the last verified call.
    used_ns: AtomicU64,
    /// True once it has carried a verified call.
    is_proven: AtomicBool,
}

/// A context is the same if its name is.
impl PartialEq for Context {
    fn eq(&self, other: &Self) -> bool {
        self.handle == other.handle
    }
}

impl Eq for Context {}

impl Context {
    pub(super) fn new(handle: Handle, established: Established, now_ns: u64, end_ns: u64) -> Self {
        let Established { principal, keys, .. } = established;
        Self {
            handle,
            principal,
            keys,
            window: Window::default(),
            end_ns,
            used_ns: AtomicU64::new(now_ns),
            is_proven: AtomicBool::new(false),
        }
    }

    /// The name of the context.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// The initiator.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Monotonic time after which the server takes no call in this context, in nanoseconds.
    pub fn end_ns(&self) -> u64 {
        self.end_ns
    }

    pub(super) fn keys(&self) -> &dyn MessageKeys {
        &*self.keys
    }

    pub(super) fn window(&self) -> &Window {
        &self.window
    }

    pub(super) fn used_ns(&self) -> u64 {
        self.used_ns.load(Ordering::Relaxed)
    }

    pub(super) fn is_proven(&self) -> bool {
        self.is_proven.load(Ordering::Relaxed)
    }

    /// Records a verified call. True if it is the first one.
    pub(super) fn use_now(&self, now_ns: u64) -> bool {
        self.used_ns.store(now_ns, Ordering::Relaxed);
        !self.is_proven() && !self.is_proven.swap(true, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_have_a_number_and_a_secret() {
        let [one, other] = [Handle::new(7).unwrap(), Handle::new(7).unwrap()];
        assert_ne!(one, other, "the kernel gave the same random bytes twice");
        let bytes = one.to_bytes();
        assert_eq!(bytes[..8], [0, 0, 0, 0, 0, 0, 0, 7]);
        assert_eq!(Handle::from_bytes(&bytes), Some(one));
        for len in [0, 7, 8, 15] {
            assert_eq!(Handle::from_bytes(&bytes[..len]), None);
        }
        assert_eq!(Handle::from_bytes(&[0; 17]), None);
        assert_eq!(format!("{one:?}"), "Handle(7)");
    }
}
