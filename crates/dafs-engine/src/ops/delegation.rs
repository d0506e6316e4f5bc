//! Delegations of DAFS clients: granted with OPEN, recalled over the back-control channel (`back`),
//! returned here.

use crate::engine::convert;
use crate::engine::request::{Call, Context, Done};
use dafs_service::{DelegationKind, NoDelegation, OpenClaim, StateRef};
use dafs_wire::dafs::{self, Ace, AceType, DelegReturn, Delegation, Reply, SpaceLimit};

/// The entry allows no local open: the server checks rights.
const NOBODY: Ace<'static> = Ace { ace_type: AceType::Allow, flag: 0, access_mask: 0, who: b"" };

/// The modified data that the holder of a write delegation may keep when a program closes the file:
/// none, because this server reserves no space for it (RFC 8881 10.4.1, whose rules DAFS shares).
const UNFLUSHED_AT_CLOSE: SpaceLimit = SpaceLimit::Size(0);

/// Returns the delegation for the reply to OPEN.
pub(crate) fn granted(
    outcome: &Result<dafs_service::Delegation, NoDelegation>,
) -> Delegation<'static> {
    let Ok(delegation) = outcome else { return Delegation::None };
    let state_id = convert::wire_state_id(delegation.state.id);
    let (recall, permissions) = (delegation.recall, NOBODY);
    match delegation.kind {
        DelegationKind::Read => Delegation::Read { state_id, recall, permissions },
        DelegationKind::Write => {
            let space_limit = UNFLUSHED_AT_CLOSE;
            Delegation::Write { state_id, recall, space_limit, permissions }
        }
    }
}

/// Converts the claim of an OPEN: a delegation of the client, its open from before the server's
/// restart, or none.
pub(crate) fn claim(claim: &dafs::OpenClaim<'_>) -> OpenClaim {
    match claim {
        dafs::OpenClaim::DelegateCur { state_id, .. } => {
            OpenClaim::DelegateCurrent(StateRef::from(convert::state_id(*state_id)))
        }
        dafs::OpenClaim::Previous { delegate_type, .. } => {
            OpenClaim::Previous(match delegate_type {
                dafs::DelegationType::None => None,
                dafs::DelegationType::Read => Some(DelegationKind::Read),
                dafs::DelegationType::Write => Some(DelegationKind::Write),
            })
        }
        _ => OpenClaim::New,
    }
}

pub(crate) fn return_delegation(cx: &mut Context<'_>, call: &Call, args: &DelegReturn) -> Done {
    let state = convert::state_id(args.state_id);
    // Other clients then use the file's size, for which data servers may have to be asked.
    let handle = cx.service().delegations.handle(state);
    let lane = handle.map_or(0, |handle| cx.lane(&handle));
    cx.call_or_wait(
        (call, lane),
        move |service, caller| service.delegations.take_back(caller, None, state.into()),
        |cx, call, returned| {
            returned.map_err(convert::status)?;
            cx.reply(call, &Reply::DelegReturn)
        },
    )
}
