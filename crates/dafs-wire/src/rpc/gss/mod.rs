//! RPCSEC_GSS version 1 (RFC 2203): the credential, context creation, and protected bodies.
//!
//! Invariants
//! * A decoded value is one of the valid combinations of its fields. The error for any other input
//!   has the status to answer.
//! * This module has no keys: it finds the bytes that a token covers, and checks no token.

mod bodies;
mod credential;
mod init;

pub use bodies::{IntegrityBody, PrivacyBody, ProtectedData};
pub use credential::{Credential, CredentialError, Protected};
pub use init::{InitArgs, InitResults};

use super::auth::AuthFlavor;
use super::limits::AUTH_BODY_BYTES_MAX;
use crate::xdr::{Decode, Decoder, XdrError, no_such};

/// The version of RPCSEC_GSS (RFC 2203 section 5.1). Versions 2 (RFC 5403) and 3 (RFC 7861) are
/// refused.
pub const VERSION: u32 = 1;

/// The highest sequence number (`MAXSEQ`, RFC 2203 section 5.3.1). A context is used up with it.
pub const SEQUENCE_MAX: u32 = 0x8000_0000;

/// The longest context handle, in bytes: a credential of the largest size with five words before
/// the bytes of the handle.
pub const HANDLE_BYTES_MAX: usize = AUTH_BODY_BYTES_MAX - 5 * 4;

/// The longest token of context creation, in bytes. A Kerberos ticket that lists the groups of a
/// user has up to 60 KiB.
pub const TOKEN_BYTES_MAX: usize = 64 << 10;

/// The longest message integrity code (MIC) of a body, in bytes. One in a verifier has the same
/// limit.
pub const MIC_BYTES_MAX: usize = AUTH_BODY_BYTES_MAX;

/// The object identifier of Kerberos V5, 1.2.840.113554.1.2.2, in the form of SECINFO: the content
/// octets of the DER encoding, without tag and length (RFC 4121 section 4.1, RFC 8881 18.29).
pub const KERBEROS_OID: [u8; 9] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02];

/// The protection of the bodies of a call and its reply (RFC 2203 section 5.2, `rpc_gss_service_t`).
/// The header is protected by each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Service {
    /// The bodies are sent as they are (for Kerberos: krb5).
    None,
    /// A MIC follows the bodies (krb5i).
    Integrity,
    /// The bodies are encrypted (krb5p).
    Privacy,
}

impl Service {
    /// The number on the wire.
    pub const fn to_u32(self) -> u32 {
        match self {
            Self::None => 1,
            Self::Integrity => 2,
            Self::Privacy => 3,
        }
    }

    /// The service with a number on the wire.
    pub const fn from_u32(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::None),
            2 => Some(Self::Integrity),
            3 => Some(Self::Privacy),
            _ => None,
        }
    }

    /// The pseudo-flavor of Kerberos V5 with this service, by which NFSv3's MOUNT lists it
    /// (RFC 2623 section 2.2.3).
    pub const fn kerberos_flavor(self) -> AuthFlavor {
        match self {
            Self::None => AuthFlavor::KRB5,
            Self::Integrity => AuthFlavor::KRB5I,
            Self::Privacy => AuthFlavor::KRB5P,
        }
    }

    /// The service of a pseudo-flavor of Kerberos V5.
    pub const fn from_kerberos_flavor(flavor: AuthFlavor) -> Option<Self> {
        match flavor {
            AuthFlavor::KRB5 => Some(Self::None),
            AuthFlavor::KRB5I => Some(Self::Integrity),
            AuthFlavor::KRB5P => Some(Self::Privacy),
            _ => None,
        }
    }
}

impl Decode<'_> for Service {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, XdrError> {
        let number = decoder.u32()?;
        Self::from_u32(number).ok_or(no_such("rpc_gss_service_t", number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_pseudo_flavors_name_services() {
        for (number, flavor) in [(1, 390_003), (2, 390_004), (3, 390_005)] {
            let service = Service::from_u32(number).unwrap();
            assert_eq!(service.to_u32(), number);
            assert_eq!(Decoder::new(&number.to_be_bytes()).value(), Ok(service));
            assert_eq!(service.kerberos_flavor(), AuthFlavor(flavor));
            assert_eq!(Service::from_kerberos_flavor(AuthFlavor(flavor)), Some(service));
        }
        for number in [0, 4, 390_003] {
            assert_eq!(Service::from_u32(number), None);
            assert!(Decoder::new(&number.to_be_bytes()).value::<Service>().is_err());
        }
        assert_eq!(Service::from_kerberos_flavor(AuthFlavor::RPCSEC_GSS), None);
        assert!(Service::None < Service::Integrity && Service::Integrity < Service::Privacy);
    }

    /// The base-128 digits of each arc (X.690 section 8.19).
    #[test]
    fn the_object_identifier_is_that_of_kerberos() {
        let mut bytes = vec![40 + 2];
        for arc in [840u32, 113_554, 1, 2, 2] {
            let digits: Vec<u32> = (0..5).rev().map(|digit| arc >> (7 * digit) & 0x7f).collect();
            let first = digits.iter().position(|&digit| digit != 0).unwrap();
            bytes.extend(digits[first..4].iter().map(|&digit| 0x80 | digit as u8));
            bytes.push(digits[4] as u8);
        }
        assert_eq!(bytes, KERBEROS_OID);
    }
}
