//! Whom a client's record belongs to.

use crate::admission::Who;
use dafs_service::{Flavour, Identity};

/// The owner of a credential, as far as it counts for who may do what with a client's record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Principal {
    /// AUTH_NONE: nobody in particular.
    Nobody,
    /// AUTH_SYS: the user. Groups may change while a client runs.
    User(u32),
}

impl Principal {
    /// The principal of a caller.
    pub(crate) fn of(who: &Who) -> Self {
        match who.flavour {
            Flavour::None => Self::Nobody,
            Flavour::Sys => Self::User(who.cred.uid),
        }
    }

    /// As the service keeps it with a client's record.
    pub(crate) fn identity(&self) -> Identity {
        match self {
            Self::Nobody => Identity { mechanism: "none", principal: Vec::new() },
            Self::User(uid) => Identity { mechanism: "sys", principal: uid.to_be_bytes().to_vec() },
        }
    }
}
