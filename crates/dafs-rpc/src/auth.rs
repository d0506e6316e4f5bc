//! The one place that decides which credentials are let in.
//!
//! Invariants
//! * A flavour that is not named here is refused.

use crate::call::Credential;
use dafs_wire::rpc::{AuthFlavor, AuthStatus, AuthSys, OpaqueAuth};

/// Who the caller is, or what is wrong with its credential.
///
/// The verifiers of AUTH_NONE and AUTH_SYS prove nothing, so nobody looks at them.
#[inline]
pub(crate) fn authenticate(credential: OpaqueAuth<'_>) -> Result<Credential<'_>, AuthStatus> {
    match credential.flavor {
        AuthFlavor::NONE => Ok(Credential::None),
        AuthFlavor::SYS => match AuthSys::from_body(credential.body) {
            Ok(sys) => Ok(Credential::Sys(sys)),
            Err(_) => Err(AuthStatus::BadCredential),
        },
        // No short hand has been given out, so none can be good any more.
        AuthFlavor::SHORT => Err(AuthStatus::RejectedCredential),
        // What a server without TLS answers to the probe (RFC 9289 section 4.1).
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
