//! State-ids: how the service names opens, byte-range locks and delegations.
//!
//! Invariants
//! * A number is used once in a run of the server and never for two kinds of state.
//! * A sequence number grows with every change of its state and skips zero, which means "the
//!   current one" (RFC 8881 8.2.2).

use crate::Result;
use crate::error::ServiceError;

/// A state-id as the service counts them: 24 bits of the server's instance in the upper part, a
/// number in the lower. Zero is the anonymous state-id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub u64);

impl StateId {
    /// I/O without an open (DAFS O37, RFC 8881 8.2.3).
    pub const ANONYMOUS: StateId = StateId(0);
    /// Never valid by itself (DAFS O37).
    pub(crate) const ONES: StateId = StateId(u64::MAX);
}

/// A state-id with the sequence number that the client believes current (RFC 8881 8.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StateRef {
    /// The state-id.
    pub id: StateId,
    /// The version of the state. 0 stands for the current one.
    pub seqid: u32,
}

impl StateRef {
    /// I/O without an open: the state-id of all zeros.
    pub const ANONYMOUS: StateRef = StateRef { id: StateId::ANONYMOUS, seqid: 0 };

    /// The state-id of all ones: a READ with it ignores share reservations. Every other operation
    /// treats it as anonymous (RFC 8881 8.2.3).
    pub const READ_BYPASS: StateRef = StateRef { id: StateId::ONES, seqid: u32::MAX };

    /// True for the two state-ids that name no state.
    pub fn is_special(self) -> bool {
        self == Self::ANONYMOUS || self == Self::READ_BYPASS
    }
}

impl From<StateId> for StateRef {
    fn from(id: StateId) -> Self {
        Self { id, seqid: 0 }
    }
}

/// The kind of state that a state-id names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum StateKind {
    Open,
    Lock,
    Delegation,
    Layout,
}

/// Returns the number after `seqid`, which is never zero.
pub(crate) fn next_seqid(seqid: u32) -> u32 {
    seqid.wrapping_add(1).max(1)
}

/// Compares the sequence number that a client sent with the current one, which may have wrapped.
///
/// # Errors
/// `OldStateId` for an earlier one, `BadStateId` for one that the server has not issued yet.
pub(crate) fn check_seqid(current: u32, given: u32) -> Result<()> {
    match given {
        0 => Ok(()),
        given if given == current => Ok(()),
        given if current.wrapping_sub(given) < 1 << 31 => Err(ServiceError::OldStateId),
        _ => Err(ServiceError::BadStateId),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_wrap_past_zero() {
        assert_eq!(next_seqid(1), 2);
        assert_eq!(next_seqid(u32::MAX), 1);
    }

    #[test]
    fn only_the_current_number_or_zero_passes() {
        for current in [1, 7, u32::MAX] {
            assert_eq!(check_seqid(current, 0), Ok(()));
            assert_eq!(check_seqid(current, current), Ok(()));
            let old = if current == 1 { u32::MAX } else { current - 1 };
            assert_eq!(check_seqid(current, old), Err(ServiceError::OldStateId));
            let future = next_seqid(current);
            assert_eq!(check_seqid(current, future), Err(ServiceError::BadStateId));
        }
    }
}
