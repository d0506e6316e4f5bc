//! Credentials and verifiers (RFC 5531 section 8.2, appendix A).

use super::limits::{AUTH_BODY_BYTES_MAX, AUTH_SYS_GROUPS_MAX, AUTH_SYS_MACHINE_BYTES_MAX};
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError};
use std::ops::Deref;

/// An authentication flavor, by its IANA number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AuthFlavor(
    /// The number.
    pub u32,
);

impl AuthFlavor {
    /// No identity.
    pub const NONE: Self = Self(0);
    /// Unix ids without proof (RFC 5531 appendix A).
    pub const SYS: Self = Self(1);
    /// A short-hand credential for AUTH_SYS that the server issued (RFC 5531 appendix A).
    pub const SHORT: Self = Self(2);
    /// Generic security services (RFC 2203, RFC 5403, RFC 7861).
    pub const RPCSEC_GSS: Self = Self(6);
    /// The probe for transport layer security (RFC 9289).
    pub const TLS: Self = Self(7);
    /// RPCSEC_GSS with Kerberos V5: a number for lists of flavors, which no credential has (RFC 2623
    /// section 2.2.3).
    pub const KRB5: Self = Self(390_003);
    /// The same with integrity.
    pub const KRB5I: Self = Self(390_004);
    /// The same with privacy.
    pub const KRB5P: Self = Self(390_005);
}

/// A credential or a verifier whose body is not decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpaqueAuth<'a> {
    /// The flavor.
    pub flavor: AuthFlavor,
    /// The body, as the flavor defines it; at most [`AUTH_BODY_BYTES_MAX`] bytes.
    pub body: &'a [u8],
}

impl OpaqueAuth<'static> {
    /// The empty credential or verifier.
    pub const NONE: Self = Self { flavor: AuthFlavor::NONE, body: &[] };
}

impl<'a> Decode<'a> for OpaqueAuth<'a> {
    #[inline]
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let flavor = AuthFlavor(decoder.u32()?);
        Ok(Self { flavor, body: decoder.opaque(AUTH_BODY_BYTES_MAX)? })
    }
}

impl Encode for OpaqueAuth<'_> {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        debug_assert!(self.body.len() <= AUTH_BODY_BYTES_MAX, "an over-long credential");
        encoder.u32(self.flavor.0);
        encoder.opaque(self.body);
    }
}

/// Supplementary groups of AUTH_SYS: at most [`AUTH_SYS_GROUPS_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Groups {
    count: u8,
    ids: [u32; AUTH_SYS_GROUPS_MAX],
}

impl Groups {
    /// The list of `ids`; `None` when there are too many for AUTH_SYS.
    pub fn new(ids: &[u32]) -> Option<Self> {
        let mut groups = Self::default();
        groups.ids.get_mut(..ids.len())?.copy_from_slice(ids);
        groups.count = u8::try_from(ids.len()).ok()?;
        Some(groups)
    }
}

impl Deref for Groups {
    type Target = [u32];

    #[inline]
    fn deref(&self) -> &[u32] {
        &self.ids[..usize::from(self.count)]
    }
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The body of an AUTH_SYS credential (RFC 5531 appendix A).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuthSys<'a> {
    /// An arbitrary number that the caller chose.
    pub stamp: u32,
    /// The name of the caller's machine, any bytes.
    pub machine: &'a [u8],
    /// The user.
    pub uid: u32,
    /// The primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Groups,
}

impl<'a> AuthSys<'a> {
    /// Decodes the whole body of a credential of flavor [`AuthFlavor::SYS`].
    ///
    /// # Errors
    /// When the body is malformed or exceeds the limits. The server answers `AUTH_BADCRED`.
    pub fn from_body(body: &'a [u8]) -> Result<Self, XdrError> {
        let mut decoder = Decoder::new(body);
        let sys = Self::decode(&mut decoder)?;
        decoder.finish()?;
        Ok(sys)
    }
}

impl<'a> Decode<'a> for AuthSys<'a> {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let stamp = decoder.u32()?;
        let machine = decoder.opaque(AUTH_SYS_MACHINE_BYTES_MAX)?;
        let uid = decoder.u32()?;
        let gid = decoder.u32()?;
        let count = decoder.array_len(AUTH_SYS_GROUPS_MAX, 4)?;
        let mut groups = Groups { count: count as u8, ids: [0; AUTH_SYS_GROUPS_MAX] };
        for id in &mut groups.ids[..count] {
            *id = decoder.u32()?;
        }
        Ok(Self { stamp, machine, uid, gid, groups })
    }
}

impl Encode for AuthSys<'_> {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        debug_assert!(self.machine.len() <= AUTH_SYS_MACHINE_BYTES_MAX, "an over-long name");
        encoder.u32(self.stamp);
        encoder.opaque(self.machine);
        encoder.u32(self.uid);
        encoder.u32(self.gid);
        encoder.count(self.groups.len());
        self.groups.iter().for_each(|&id| encoder.u32(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_longest_credential_fits() {
        let groups = Groups::new(&[7; AUTH_SYS_GROUPS_MAX]).unwrap();
        let machine = [b'm'; AUTH_SYS_MACHINE_BYTES_MAX];
        let sys = AuthSys { stamp: 1, machine: &machine, uid: 2, gid: 3, groups };
        let bytes = sys.encoded();
        assert!(bytes.len() <= AUTH_BODY_BYTES_MAX);
        assert_eq!(AuthSys::from_body(&bytes), Ok(sys));
        assert_eq!(Groups::new(&[0; AUTH_SYS_GROUPS_MAX + 1]), None);
    }

    #[test]
    fn seventeen_groups_and_trailing_bytes_are_refused() {
        let groups = Groups::new(&[7; AUTH_SYS_GROUPS_MAX]).unwrap();
        let mut bytes = AuthSys { stamp: 0, machine: b"", uid: 0, gid: 0, groups }.encoded();
        bytes.extend_from_slice(&[0; 4]);
        assert_eq!(AuthSys::from_body(&bytes), Err(XdrError::Trailing(4)));
        bytes[19] = 17;
        assert_eq!(AuthSys::from_body(&bytes), Err(XdrError::TooLong { len: 17, max: 16 }));
    }

    proptest! {
        #[test]
        fn any_credential_survives(
            (stamp, uid, gid) in any::<(u32, u32, u32)>(),
            machine in proptest::collection::vec(any::<u8>(), 0..=AUTH_SYS_MACHINE_BYTES_MAX),
            ids in proptest::collection::vec(any::<u32>(), 0..=AUTH_SYS_GROUPS_MAX),
        ) {
            let groups = Groups::new(&ids).unwrap();
            let sys = AuthSys { stamp, machine: &machine, uid, gid, groups };
            let bytes = sys.encoded();
            prop_assert_eq!(AuthSys::from_body(&bytes), Ok(sys));
            // No truncated body is valid.
            for end in 0..bytes.len() {
                prop_assert!(AuthSys::from_body(&bytes[..end]).is_err());
            }
        }
    }
}
