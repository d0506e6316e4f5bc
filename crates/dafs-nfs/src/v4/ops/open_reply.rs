//! The result of an OPEN: its state-id, the directory's change, and the delegation or the reason
//! why there is none.

use super::change_info;
use crate::v4::compound::context::OpContext;
use crate::v4::stateid;
use crate::v4::status::OpResult;
use dafs_service::{Delegation, DelegationKind, NoDelegation, Opened, StateRef, WantKind};
use dafs_wire::nfs4::{
    Ace, Bitmap, ChangeInfo, OpenDelegation, OpenFlags, OpenResult, ReadDelegation, SpaceLimit,
    Stateid, WhyNone, WriteDelegation,
};

/// The modified data that the holder of a write delegation may keep when a program closes the file
/// (RFC 8881 10.4.1): none. A server must have the space for any that it permits, and this one
/// reserves no space. So a close tells the program that a disk or a quota is full.
///
/// Linux returns a recalled delegation without writing its data first. So another client could miss
/// the data of a closed file, if the holder had kept it.
const UNFLUSHED_AT_CLOSE: SpaceLimit = SpaceLimit::Size(0);

/// Writes the result. File and state-id become the current ones.
pub(super) fn write(
    cx: &mut OpContext<'_>,
    opened: &Opened,
    by_name: bool,
    want: WantKind,
    attributes_set: Bitmap,
) -> OpResult {
    let mut flags = OpenFlags::LOCKTYPE_POSIX;
    flags.set(OpenFlags::MAY_NOTIFY_LOCK, cx.client()?.back_channel());
    flags.set(OpenFlags::NO_OPEN_STATEID, opened.delegation_only);
    let delegation = opened.delegation.as_ref();
    let (stateid, current) = match delegation {
        // There is no open, so later operations use the delegation.
        Ok(delegation) if opened.delegation_only => {
            (Stateid::ANONYMOUS, stateid::wire(delegation.state))
        }
        _ => {
            let state = StateRef { id: opened.state.id(), seqid: opened.seqid };
            (stateid::wire(state), stateid::wire(state))
        }
    };
    let result = OpenResult {
        stateid,
        change: if by_name { change_info(opened.dir) } else { ChangeInfo::default() },
        flags,
        attributes_set,
        delegation: match delegation {
            Ok(delegation) => granted(delegation),
            Err(why) => refused(*why, want),
        },
    };
    cx.set_current(*opened.state.handle());
    cx.set_current_stateid(current);
    cx.answer(&result)
}

fn granted(delegation: &Delegation) -> OpenDelegation<'static> {
    let (stateid, recall) = (stateid::wire(delegation.state), delegation.recall);
    // The client sends ACCESS to learn if another of its users may open the file.
    let permissions = Ace::NOBODY;
    match delegation.kind {
        DelegationKind::Read => {
            OpenDelegation::Read(ReadDelegation { stateid, recall, permissions })
        }
        DelegationKind::Write => {
            let space_limit = UNFLUSHED_AT_CLOSE;
            let given = WriteDelegation { stateid, recall, space_limit, permissions };
            OpenDelegation::Write(given)
        }
    }
}

/// Returns the answer without a delegation. Only clients that have sent a want get a reason (RFC
/// 8881 18.16.3).
fn refused(why: NoDelegation, want: WantKind) -> OpenDelegation<'static> {
    if want == WantKind::NoPreference {
        return OpenDelegation::None;
    }
    match why {
        NoDelegation::Contention => OpenDelegation::Contention { will_push: false },
        NoDelegation::Resource | NoDelegation::Policy => {
            OpenDelegation::Resource { will_signal: false }
        }
        NoDelegation::NotWanted => OpenDelegation::Why(WhyNone::NotWanted),
        NoDelegation::FileType => OpenDelegation::Why(WhyNone::UnsupportedType),
        NoDelegation::Upgrade => OpenDelegation::Why(WhyNone::UnsupportedUpgrade),
        NoDelegation::Downgrade => OpenDelegation::Why(WhyNone::UnsupportedDowngrade),
        NoDelegation::Cancelled => OpenDelegation::Why(WhyNone::Cancelled),
    }
}
