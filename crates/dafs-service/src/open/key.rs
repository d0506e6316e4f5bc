//! Share keys of opens (DAFS 10.2), and what they exclude.
//!
//! Invariants
//! * All opens of a file that have a key have the same one.
//! * While one of them is strict, every other open of the file has the key, too, and no caller
//!   begins to read or write the file without an open. A front end asks again before each piece of a
//!   transfer that it had admitted before.
//! * The rule is symmetric: a strict open is refused while an open without the key exists.

use super::OpenState;
use super::enter::{Clock, expired_among};
use crate::error::ServiceError;
use crate::table::{Blocked, FileState, StateTable};
use std::str::FromStr;
use std::sync::Arc;

/// The key of an open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareKey {
    /// The key. Zero is a key like any other.
    pub key: u64,
    /// It excludes callers without the key, of all protocols. Otherwise it excludes only opens
    /// under another key, as the draft says.
    pub strict: bool,
}

impl ShareKey {
    /// Joins the keys of two opens by one owner, which have the same key if both have one.
    pub(super) fn join(own: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (own, other) {
            (Some(own), Some(other)) => Some(Self { strict: own.strict || other.strict, ..own }),
            (own, other) => own.or(other),
        }
    }
}

/// The callers that the share keys of an export exclude.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SharedKeys {
    /// Opens under another key; callers without a key only if an opener asks for it (DAFS 10.2).
    #[default]
    Advisory,
    /// All callers without the key.
    Strict,
}

impl SharedKeys {
    /// Returns the key as this export takes it.
    pub(crate) fn apply(self, key: ShareKey) -> ShareKey {
        ShareKey { strict: key.strict || self == Self::Strict, ..key }
    }
}

impl FromStr for SharedKeys {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "advisory" => Ok(Self::Advisory),
            "strict" => Ok(Self::Strict),
            _ => Err("use advisory or strict".to_owned()),
        }
    }
}

/// Refuses an open whose key, or whose lack of one, conflicts with other opens. `own` is the open
/// that its owner has already. Opens of expired clients give way.
pub(super) fn check_key(
    file: &FileState,
    own: Option<&Arc<OpenState>>,
    wanted: Option<ShareKey>,
    clock: Clock,
) -> Result<(), Blocked> {
    let conflicts = |open: &&Arc<OpenState>| match wanted {
        // The common case takes no lock of each open.
        None => open.has_strict_key(),
        Some(wanted) => match open.lock().share_key {
            Some(key) => key.key != wanted.key,
            // The owner's open gets the key.
            None => wanted.strict && !own.is_some_and(|own| Arc::ptr_eq(own, open)),
        },
    };
    let conflicting: Vec<_> = file.opens.iter().filter(conflicts).collect();
    if conflicting.is_empty() {
        return Ok(());
    }
    Err(expired_among(&conflicting, clock, ServiceError::KeyMismatch))
}

/// True if `wanted` makes the key of the file strict, which no open has done so far.
pub(super) fn begins_to_exclude(file: Option<&FileState>, wanted: Option<ShareKey>) -> bool {
    let mut opens = file.into_iter().flat_map(|file| &file.opens);
    wanted.is_some_and(|key| key.strict) && !opens.any(|open| open.has_strict_key())
}

impl StateTable {
    /// True if the open may not give up its key, because another open of the file is strict.
    pub(super) fn is_excluded_without_key(&self, open: &Arc<OpenState>) -> bool {
        let others = |other: &&Arc<OpenState>| !Arc::ptr_eq(other, open);
        self.files
            .get(&open.key)
            .is_some_and(|file| file.opens.iter().filter(others).any(|open| open.has_strict_key()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strict_export_makes_every_key_strict() {
        let key = |strict| ShareKey { key: 1, strict };
        assert_eq!(SharedKeys::Advisory.apply(key(false)), key(false));
        assert_eq!(SharedKeys::Advisory.apply(key(true)), key(true));
        assert_eq!(SharedKeys::Strict.apply(key(false)), key(true));
    }

    #[test]
    fn the_opens_of_an_owner_join_to_the_stricter_key() {
        let key = |strict| Some(ShareKey { key: 1, strict });
        assert_eq!(ShareKey::join(key(false), key(true)), key(true));
        assert_eq!(ShareKey::join(key(true), key(false)), key(true));
        assert_eq!(ShareKey::join(key(false), None), key(false));
        assert_eq!(ShareKey::join(None, key(true)), key(true));
        assert_eq!(ShareKey::join(None, None), None);
    }
}
