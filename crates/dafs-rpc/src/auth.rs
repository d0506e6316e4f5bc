//! Authentication: the one place that accepts or refuses a credential.
//!
//! Invariants
//! * A flavor that is not named here is refused.

use crate::call::Credential;
use dafs_wire::rpc::{AuthFlavor, AuthStatus, AuthSys, OpaqueAuth};

/// Returns the caller's credential, or the reason to refuse it.
///
/// The verifiers of AUTH_NONE and AUTH_SYS prove nothing, so the server ignores them.
#[inline]
pub(crate) fn authenticate(credential: OpaqueAuth<'_>) -> Result<Credential<'_>, AuthStatus> {
    match credential.flavor {
        AuthFlavor::NONE => Ok(Credential::None),
        AuthFlavor::SYS => match AuthSys::from_body(credential.body) {
            Ok(sys) => Ok(Credential::Sys(sys)),
            Err(_) => Err(AuthStatus::BadCredential),
        },
        // This server issues no short-hand credentials (AUTH_SHORT), so none can be valid.
        AuthFlavor::SHORT => Err(AuthStatus::RejectedCredential),
        // A server without TLS answers the AUTH_TLS probe like this (RFC 9289 section 4.1). So does
        // one with TLS inside a connection of TLS, and where the flavor is no probe.
        AuthFlavor::TLS => Err(AuthStatus::BadCredential),
        _ => Err(AuthStatus::TooWeak),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_none_and_sys_are_let_in() {
        let check = |flavor, body| authenticate(OpaqueAuth { flavor, body });
        assert_eq!(check(AuthFlavor::NONE, &[]), Ok(Credential::None));
        assert!(matches!(check(AuthFlavor::SYS, &[0; 20]), Ok(Credential::Sys(_))));
        assert_eq!(check(AuthFlavor::SYS, &[0; 24]), Err(AuthStatus::BadCredential));
        assert_eq!(check(AuthFlavor::SYS, &[]), Err(AuthStatus::BadCredential));
        assert_eq!(check(AuthFlavor::SHORT, &[]), Err(AuthStatus::RejectedCredential));
        assert_eq!(check(AuthFlavor::TLS, &[]), Err(AuthStatus::BadCredential));
        assert_eq!(check(AuthFlavor::RPCSEC_GSS, &[]), Err(AuthStatus::TooWeak));
        assert_eq!(check(AuthFlavor(99), &[]), Err(AuthStatus::TooWeak));
    }
}
