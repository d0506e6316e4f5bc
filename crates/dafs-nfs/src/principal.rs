//! The principal that a client's record belongs to.

use crate::admission::CallerIdentity;
use dafs_service::{Flavour, Identity};

/// The owner of a credential, as far as it decides who may use a client's record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Principal {
    /// AUTH_NONE: no user.
    Nobody,
    /// AUTH_SYS: the user. Groups may change while a client runs.
    User(u32),
}

impl Principal {
    /// Returns the principal of a caller.
    pub(crate) fn of(who: &CallerIdentity) -> Self {
        match who.flavour {
            Flavour::None => Self::Nobody,
            Flavour::Sys => Self::User(who.cred.uid),
        }
    }

    /// Returns the form that the service keeps with a client's record.
    pub(crate) fn identity(&self) -> Identity {
        match self {
            Self::Nobody => Identity { mechanism: "none", principal: Vec::new() },
            Self::User(uid) => Identity { mechanism: "sys", principal: uid.to_be_bytes().to_vec() },
        }
    }
}
