//! The principal that a client's record belongs to.

use crate::admission::CallerIdentity;
use dafs_service::{Flavour, Identity};
use std::sync::Arc;

/// The owner of a credential, as far as it decides who may use a client's record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Principal {
    /// AUTH_NONE: no user.
    #[default]
    Nobody,
    /// AUTH_SYS: the user. Groups may change while a client runs.
    User(u32),
    /// RPCSEC_GSS: the exported name (RFC 2743 3.2). The service of a call is no part of it.
    Gss(Arc<[u8]>),
    /// The user whom the certificate of the connection names, whatever AUTH_NONE and AUTH_SYS claim.
    Certificate(Arc<[u8]>),
}

impl Principal {
    /// Returns the principal of a caller.
    pub(crate) fn of(who: &CallerIdentity) -> Self {
        match (who.flavour, &who.principal) {
            (Flavour::Sys | Flavour::None, Some(user)) => Self::Certificate(user.clone()),
            (Flavour::Sys, None) => Self::User(who.cred.uid),
            (Flavour::Krb5 | Flavour::Krb5i | Flavour::Krb5p, Some(name)) => {
                Self::Gss(name.clone())
            }
            _ => Self::Nobody,
        }
    }

    /// Returns the form that the service keeps with a client's record.
    pub(crate) fn identity(&self) -> Identity {
        match self {
            Self::Nobody => Identity { mechanism: "none", principal: Vec::new() },
            Self::User(uid) => Identity { mechanism: "sys", principal: uid.to_be_bytes().to_vec() },
            Self::Gss(name) => Identity { mechanism: "gss", principal: name.to_vec() },
            Self::Certificate(user) => Identity::of_certificate(user),
        }
    }
}
