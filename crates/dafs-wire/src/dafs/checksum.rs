//! The Fletcher-32 checksum of messages and data (DAFS 5.5).
//!
//! Invariants
//! * Words are summed in native order and stored natively; the bytes come out the same in both
//!   orders (DAFS O19).

use super::codec::{Field, Scope, Writer};
use super::error::{DecodeError, EncodeError};
use std::fmt;

/// A checksum as its four bytes on the wire: S2, then S1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Checksum(pub [u8; 4]);

impl Checksum {
    /// What stands where there is no checksum.
    pub const ZERO: Self = Self([0; 4]);
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checksum({:08x})", u32::from_be_bytes(self.0))
    }
}

impl<'a> Field<'a> for Checksum {
    const TRIVIAL: bool = true;

    #[inline(always)]
    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        Ok(Self(scope.array(at)?))
    }

    #[inline(always)]
    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        writer.put(at, self.0)
    }
}
