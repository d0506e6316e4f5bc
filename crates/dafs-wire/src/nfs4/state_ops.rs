//! State-ids and delegations: DELEGPURGE, DELEGRETURN, FREE_STATEID, TEST_STATEID, WANT_DELEGATION,
//! GET_DIR_DELEGATION (RFC 8881 18.5, 18.6, 18.38, 18.39, 18.48, 18.49).

use super::bitmap::Bitmap;
use super::codec::xdr_struct;
use super::limits::STATEIDS_MAX;
use super::open_ops::{OpenDelegation, ShareAccess};
use super::status::Status;
use super::types::{DelegationType, Stateid, Time, Verifier};
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError, no_such};

xdr_struct! {
    /// Arguments of DELEGPURGE (RFC 8881 18.5).
    #[derive(Copy)]
    pub struct DelegpurgeArgs {
        /// Not used in 4.1.
        pub client_id: u64,
    }

    /// Arguments of DELEGRETURN (RFC 8881 18.6).
    #[derive(Copy)]
    pub struct DelegreturnArgs {
        /// The delegation.
        pub stateid: Stateid,
    }

    /// Arguments of FREE_STATEID (RFC 8881 18.38).
    #[derive(Copy)]
    pub struct FreeStateidArgs {
        /// The state-id to free.
        pub stateid: Stateid,
    }

    /// Arguments of TEST_STATEID (RFC 8881 18.48).
    pub struct TestStateidArgs {
        /// The state-ids to test.
        pub stateids: Vec<Stateid> [max STATEIDS_MAX],
    }

    /// Results of TEST_STATEID (RFC 8881 18.48).
    pub struct TestStateidResult {
        /// One status per state-id, in the same order.
        pub statuses: Vec<Status> [max STATEIDS_MAX],
    }
}

/// The claim of a WANT_DELEGATION (`deleg_claim4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DelegationClaim {
    /// The current file handle.
    Handle,
    /// A delegation from before the client's restart.
    DelegatePreviousHandle,
    /// A delegation from before the server's restart.
    Previous(DelegationType),
}

impl<'a> Decode<'a> for DelegationClaim {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.u32()? {
            1 => Ok(Self::Previous(DelegationType::decode(d)?)),
            4 => Ok(Self::Handle),
            6 => Ok(Self::DelegatePreviousHandle),
            claim => Err(no_such("open_claim_type4", claim)),
        }
    }
}

impl Encode for DelegationClaim {
    fn encode(&self, e: &mut Encoder<'_>) {
        match self {
            Self::Previous(kind) => {
                e.u32(1);
                kind.encode(e);
            }
            Self::Handle => e.u32(4),
            Self::DelegatePreviousHandle => e.u32(6),
        }
    }
}

xdr_struct! {
    /// Arguments of WANT_DELEGATION (RFC 8881 18.49).
    #[derive(Copy)]
    pub struct WantDelegationArgs {
        /// The wanted delegation; the access bits are zero.
        pub want: ShareAccess,
        /// The claim.
        pub claim: DelegationClaim,
    }

    /// Results of WANT_DELEGATION (RFC 8881 18.49).
    #[derive(Copy)]
    pub struct WantDelegationResult<'a> {
        /// The delegation.
        pub delegation: OpenDelegation<'a>,
    }

    /// Arguments of GET_DIR_DELEGATION (RFC 8881 18.39).
    #[derive(Copy)]
    pub struct GetDirDelegationArgs {
        /// True if the server shall signal when a delegation becomes available.
        pub signal_available: bool,
        /// The changes to notify.
        pub notifications: Bitmap,
        /// The longest delay of notifications about entries' attributes.
        pub child_delay: Time,
        /// The longest delay of notifications about the directory's attributes.
        pub directory_delay: Time,
        /// The attributes of entries to notify about.
        pub child_attributes: Bitmap,
        /// The attributes of the directory to notify about.
        pub directory_attributes: Bitmap,
    }

    /// A directory delegation (`GET_DIR_DELEGATION4resok`).
    #[derive(Copy)]
    pub struct DirectoryDelegation {
        /// The verifier for READDIR.
        pub cookie_verifier: Verifier,
        /// The state-id of the delegation.
        pub stateid: Stateid,
        /// The changes that the server will notify.
        pub notifications: Bitmap,
        /// The attributes of entries that cause notifications.
        pub child_attributes: Bitmap,
        /// The attributes of the directory that cause notifications.
        pub directory_attributes: Bitmap,
    }
}

/// Results of GET_DIR_DELEGATION (RFC 8881 18.39).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GetDirDelegationResult {
    /// A delegation.
    Granted(DirectoryDelegation),
    /// No delegation now.
    Unavailable {
        /// True if the server will signal when one is available.
        will_signal: bool,
    },
}

impl<'a> Decode<'a> for GetDirDelegationResult {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.u32()? {
            0 => Ok(Self::Granted(DirectoryDelegation::decode(d)?)),
            1 => Ok(Self::Unavailable { will_signal: d.bool()? }),
            status => Err(no_such("gddrnf4_status", status)),
        }
    }
}

impl Encode for GetDirDelegationResult {
    fn encode(&self, e: &mut Encoder<'_>) {
        match self {
            Self::Granted(delegation) => {
                e.u32(0);
                delegation.encode(e);
            }
            Self::Unavailable { will_signal } => {
                e.u32(1);
                e.bool(*will_signal);
            }
        }
    }
}
