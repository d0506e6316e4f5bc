//! State protection by the machine credential (SP4_MACH_CRED, RFC 8881 2.10.8.3, 18.35.3).
//!
//! A client's host asks for it with the credential of its machine. From then on users of that host
//! cannot end or take over its client id, and the machine may end state of users whose tickets are
//! over.
//!
//! Invariants
//! * The machine is the principal that made the record, in a call that no one else has changed:
//!   service integrity or privacy. A mapped user counts for nothing here.
//! * The enforced operations are all of [`ENFORCED`] or none.
//! * An allowed operation lets the machine past the flavours of an export, and past the rights of
//!   its own user. Each is about state that the client has. The other operations of the compound are
//!   judged as those of any caller.
//! * No allowed operation moves data. Linux sends all writes as the machine where it may, so they
//!   would have the machine's protection instead of the mount's.

use super::session::NfsClient;
use crate::admission::CallerIdentity;
use crate::principal::Principal;
use dafs_service::{Client, Flavour};
use dafs_wire::nfs4::{
    Bitmap, LayoutReturn, LayoutreturnArgs, Op, OpNum, ProtectedOps, Stateid, Status,
};

/// The operations that only the machine may send, where the client demands it.
pub(super) const ENFORCED: Bitmap = Bitmap::of(&[
    OpNum::BindConnToSession as u32,
    OpNum::ExchangeId as u32,
    OpNum::CreateSession as u32,
    OpNum::DestroySession as u32,
    OpNum::DestroyClientid as u32,
]);

/// The operations that the machine may send for all users of the client, where it wants that.
const ALLOWED: Bitmap = Bitmap::of(&[
    OpNum::Close as u32,
    OpNum::Delegreturn as u32,
    OpNum::FreeStateid as u32,
    OpNum::Layoutreturn as u32,
    OpNum::Locku as u32,
    OpNum::OpenDowngrade as u32,
    OpNum::Secinfo as u32,
    OpNum::SecinfoNoName as u32,
    OpNum::TestStateid as u32,
]);

/// Returns the state-id of an operation by which a client gives up state of an object.
pub(super) fn state_given_up<'o>(op: &'o Op<'_>) -> Option<&'o Stateid> {
    match op {
        Op::Close(args) => Some(&args.stateid),
        Op::Delegreturn(args) => Some(&args.stateid),
        Op::Layoutreturn(LayoutreturnArgs {
            reclaim: false,
            returned: LayoutReturn::File(returned),
            ..
        }) => Some(&returned.stateid),
        Op::Locku(args) => Some(&args.stateid),
        Op::OpenDowngrade(args) => Some(&args.stateid),
        _ => None,
    }
}

/// Returns the protection for a client that asks for this one.
pub(super) fn grant(asked: &ProtectedOps) -> ProtectedOps {
    let asks_for_any = !asked.must_enforce.and(ENFORCED).is_empty();
    let must_enforce = if asks_for_any { ENFORCED } else { Bitmap::EMPTY };
    ProtectedOps { must_enforce, must_allow: asked.must_allow.and(ALLOWED) }
}

/// True if no one else can have changed the call of a proven caller.
pub(super) fn is_integral(who: &CallerIdentity) -> bool {
    matches!(who.flavour, Flavour::Krb5i | Flavour::Krb5p) && who.principal.is_some()
}

/// Checks that a caller may send an enforced operation on a client's record.
///
/// # Errors
/// `WrongCred`.
pub(super) fn check(record: &Client, who: &CallerIdentity) -> Result<(), Status> {
    let is_machine = || is_integral(who) && *record.identity() == Principal::of(who).identity();
    if !record.is_protected() || is_machine() { Ok(()) } else { Err(Status::WrongCred) }
}

/// True if a session may come on a connection whose certificate names this user, or none. A client of a certificate's
/// user comes with that certificate alone. A client that only claims its user comes without any such certificate: it
/// may hold state that the user must not have. Clients with proven names come on all connections.
pub(super) fn may_come(record: &Client, user: Option<&str>) -> bool {
    match record.identity().certificate_user() {
        Some(owner) => user.map(str::as_bytes) == Some(owner),
        None => user.is_none() || record.identity().mechanism == "gss",
    }
}

/// True if the caller is the machine of a client that wants to send this operation for its users.
pub(super) fn allows(client: &NfsClient, who: &CallerIdentity, number: OpNum) -> bool {
    client.machine_may(number as u32)
        && is_integral(who)
        && *client.principal() == Principal::of(who)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_store::Cred;

    fn ops(enforce: &[OpNum], allow: &[OpNum]) -> ProtectedOps {
        let set = |ops: &[OpNum]| ops.iter().fold(Bitmap::EMPTY, |set, op| set.with(*op as u32));
        ProtectedOps { must_enforce: set(enforce), must_allow: set(allow) }
    }

    #[test]
    fn no_more_is_granted_than_is_kept() {
        use OpNum::*;
        assert_eq!(grant(&ops(&[], &[])), ops(&[], &[]));
        // All five, or none.
        for asked in [&[DestroySession][..], &[ExchangeId, CreateSession, Read]] {
            assert_eq!(grant(&ops(asked, &[])).must_enforce, ENFORCED);
        }
        assert_eq!(grant(&ops(&[Read, Open], &[])), ops(&[], &[]));
        let asked = ops(&[BindConnToSession], &[Close, Read, Open, Write, Commit, Setattr]);
        assert_eq!(grant(&asked).must_allow, ops(&[], &[Close]).must_allow);
        let all = Bitmap::of(&(0..90).collect::<Vec<_>>());
        let granted = grant(&ProtectedOps { must_enforce: all, must_allow: all });
        assert_eq!((granted.must_enforce, granted.must_allow), (ENFORCED, ALLOWED));
        // Numbers that no version of the protocol has.
        let beyond = Bitmap::EMPTY.with(96);
        assert_eq!(
            grant(&ProtectedOps { must_enforce: beyond, must_allow: beyond }),
            ops(&[], &[])
        );
    }

    #[test]
    fn only_a_proven_caller_with_integrity_is_the_machine() {
        let who = |flavour, principal: Option<&[u8]>| CallerIdentity {
            cred: Cred::new(0, 0),
            flavour,
            principal: principal.map(Into::into),
        };
        assert!(is_integral(&who(Flavour::Krb5i, Some(b"m"))));
        assert!(is_integral(&who(Flavour::Krb5p, Some(b"m"))));
        assert!(!is_integral(&who(Flavour::Krb5, Some(b"m"))));
        assert!(!is_integral(&who(Flavour::Sys, None)));
        assert!(!is_integral(&who(Flavour::None, None)));
        assert!(!is_integral(&who(Flavour::Krb5p, None)));
    }
}
