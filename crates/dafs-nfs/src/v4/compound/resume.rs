//! Retries of requests that an earlier run of the server has worked on (RFC 8881 2.10.6.5).
//!
//! A persistent session is dead after a restart: it answers retries of executed requests, and
//! executes no new one. For most requests the journal has the reply. For others it has the results
//! of modifying operations, or knows only that these have happened. Then the compound is executed
//! once more, with those results in their place.
//!
//! Invariants
//! * No operation here changes an object. A change that had not been reached is delayed, so the
//!   client sends it again, in its next session.
//! * If the operations before an executed change cannot be repeated, the client is told that the
//!   session is lost with its replies. It is never told that the change was not made.

use super::context::OpContext;
use crate::v4::attr::VERIFIER_KEPT_IN;
use crate::v4::attr::owner::Names;
use crate::v4::attr::set::{self, Purpose};
use crate::v4::class::Class;
use crate::v4::dispatch;
use crate::v4::journal::Known;
use crate::v4::status::{OpError, OpResult};
use dafs_service::Handle;
use dafs_service::durable::{self, Effect};
use dafs_wire::nfs4::{
    Attr, Bitmap, ChangeInfo, CreateResult, LinkResult, Op, OpNum, OpenArgs, OpenDelegation,
    OpenFlags, OpenHow, OpenResult, RemoveResult, RemovexattrResult, RenameResult, SetattrResult,
    SetxattrResult, Stateid, Status, WriteResult,
};

/// Runs an operation of such a request. Returns `None` when the retry cannot be answered.
pub(super) fn run<'a>(
    cx: &mut OpContext<'a>,
    number: OpNum,
    op: &Op<'a>,
    rest: &[u8],
) -> Option<OpResult> {
    let index = cx.frame.op_index;
    let resume = cx.frame.resume.as_ref()?;
    let before_last = resume.known.last().is_some_and(|(last, _)| index < *last);
    let known = resume.known.iter().find(|(at, _)| *at == index);
    let outcome = match known.map(|(_, known)| known.clone()) {
        Some(Known::Result { current, result }) => {
            cx.encoder().raw(&result);
            if let Some(handle) = current {
                cx.set_current(handle);
            }
            return Some(Ok(()));
        }
        Some(Known::Happened(effect)) => return tell(cx, op, &effect).ok().map(Ok),
        Some(Known::Failed) => return Some(Err(Status::Io.into())),
        None if Class::of(number).is_read_only() => dispatch::run(cx, op, rest),
        None => Err(Status::Delay.into()),
    };
    match outcome {
        // The compared attributes have changed since, perhaps by this request itself.
        Err(_) if before_last && matches!(number, OpNum::Verify | OpNum::Nverify) => Some(Ok(())),
        Err(OpError::Wait | OpError::Later) => Some(outcome),
        Err(_) if before_last => None,
        outcome => Some(outcome),
    }
}

/// Writes the result of an operation from its effect.
fn tell(cx: &mut OpContext<'_>, op: &Op<'_>, effect: &Effect) -> OpResult {
    // Only the kinds of the attributes are told, and the owner was known when they were set.
    let names = Names::ignored();
    match (op, *effect) {
        (Op::Create(args), Effect::Made { dir, object, dir_before, .. }) => {
            let capabilities = cx.service().capabilities(&dir)?;
            let change =
                set::parse(&args.attributes, cx.minor, &capabilities, Purpose::New, &names)?;
            // It is not known if the list was set, too.
            let attributes_set = change.mask.without(Attr::Acl.number());
            let change = changed(cx, &dir, dir_before);
            cx.set_current(object);
            cx.answer(&CreateResult { change, attributes_set })
        }
        (Op::Open(args), Effect::Made { dir, object, created, dir_before }) => {
            let attributes_set = set_by_open(cx, args, &dir, created)?;
            let change = changed(cx, &dir, dir_before);
            let result = OpenResult {
                stateid: lost_stateid(&object),
                change,
                flags: OpenFlags::LOCKTYPE_POSIX,
                attributes_set,
                delegation: OpenDelegation::None,
            };
            cx.set_current(object);
            cx.answer(&result)
        }
        (Op::Remove(_), Effect::Removed { dir, dir_before }) => {
            cx.answer(&RemoveResult { change: changed(cx, &dir, dir_before) })
        }
        (Op::Link(_), Effect::Linked { dir, dir_before, .. }) => {
            cx.answer(&LinkResult { change: changed(cx, &dir, dir_before) })
        }
        (Op::Rename(_), Effect::Renamed { from_dir, from_before, to_dir, to_before }) => {
            let source = changed(cx, &from_dir, from_before);
            let target = changed(cx, &to_dir, to_before);
            cx.answer(&RenameResult { source, target })
        }
        (Op::Setattr(args), Effect::AttrSet { file }) => {
            let capabilities = cx.service().capabilities(&file)?;
            let change =
                set::parse(&args.attributes, cx.minor, &capabilities, Purpose::Existing, &names)?;
            cx.answer(&SetattrResult { attributes_set: change.mask })
        }
        (Op::Setxattr(_), Effect::AttrSet { file }) => {
            cx.answer(&SetxattrResult { change: changed(cx, &file, 0) })
        }
        (Op::Removexattr(_), Effect::AttrSet { file }) => {
            cx.answer(&RemovexattrResult { change: changed(cx, &file, 0) })
        }
        (Op::Write(args), Effect::Written { len, .. }) => {
            let verifier = cx.write_verifier();
            let result = WriteResult { count: len as u32, committed: args.stable, verifier };
            cx.answer(&result)
        }
        _ => Err(Status::DeadSession.into()),
    }
}

/// Returns the change of an object. Other clients may have changed it, too.
fn changed(cx: &OpContext<'_>, object: &Handle, before: u64) -> ChangeInfo {
    let after = cx.service().getattr(object).map_or(before, |attr| attr.change);
    ChangeInfo { atomic: false, before, after }
}

/// Returns the state-id of an open that ended with the server. It is never assigned to an open, and
/// differs between files. The client reclaims the open before it uses it.
fn lost_stateid(file: &Handle) -> Stateid {
    let mut other = [0; 12];
    other[..4].copy_from_slice(&durable::digest(0, &file.file.0).to_be_bytes());
    other[4..8].copy_from_slice(&durable::digest(1, &file.file.0).to_be_bytes());
    other[11] = 1;
    Stateid { seqid: 1, other }
}

/// Returns the attributes that an open has set when it made or emptied a file.
fn set_by_open(
    cx: &OpContext<'_>,
    args: &OpenArgs<'_>,
    dir: &Handle,
    created: bool,
) -> Result<Bitmap, OpError> {
    let capabilities = cx.service().capabilities(dir)?;
    let mask = |fattr, purpose| {
        let change = set::parse(fattr, cx.minor, &capabilities, purpose, &Names::ignored())?;
        Ok::<_, OpError>(change.mask.without(Attr::Acl.number()))
    };
    Ok(match &args.how {
        OpenHow::NoCreate => Bitmap::EMPTY,
        OpenHow::Exclusive(_) => VERIFIER_KEPT_IN,
        OpenHow::Exclusive41(_, fattr) => mask(fattr, Purpose::NewExclusive)?.or(VERIFIER_KEPT_IN),
        OpenHow::Unchecked(fattr) | OpenHow::Guarded(fattr) if created => {
            mask(fattr, Purpose::New)?
        }
        OpenHow::Unchecked(_) | OpenHow::Guarded(_) => Attr::set(&[Attr::Size]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v4::stateid;
    use dafs_store::{FileId, FsId};

    #[test]
    fn a_lost_open_has_a_state_id_that_was_never_given_out() {
        let file = |id| Handle { fs: FsId([0; 16]), file: FileId([id; 48]) };
        let one = lost_stateid(&file(1));
        assert_eq!(stateid::reference(&one), Err(Status::BadStateId));
        assert_ne!(one, lost_stateid(&file(2)));
    }
}
