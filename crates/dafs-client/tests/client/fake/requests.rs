//! Requests of the tests, and helpers to inspect the answers.

use super::{ROOT, World};
use dafs_client::Status;
use dafs_client::core::{Done, SessionConfig};
use dafs_wire::dafs::*;
use std::time::Duration;

/// A session that outlives its connections.
pub fn recovering() -> SessionConfig {
    SessionConfig { recovery: Some(Duration::from_secs(120)), ..World::config() }
}

/// Makes a directory, which is not idempotent.
pub fn create(name: &[u8]) -> Request<'_> {
    let attributes = Attributes { mode: Some(0o644), ..Attributes::default() };
    let object = NewObject::Plain(ObjectType::Directory);
    Request::Create(Create { dir: ROOT, name, object, attributes })
}

/// Appends, which is not idempotent either.
pub fn append(data: &[u8]) -> Request<'_> {
    Request::AppendInline(AppendInline {
        fh: ROOT,
        state_id: StateId::ZERO,
        stable: Stability::Unstable,
        padded_to: None,
        cache_hint: HintWord::NONE,
        data,
    })
}

/// Opens the one file for reading and writing.
pub fn open(owner: &[u8], share_deny: ShareDeny) -> Request<'_> {
    const PATH: Path<'_> = Path::new(&[b"file"]);
    Request::Open(Open {
        claim: OpenClaim::Null { dir: ROOT, path: PATH },
        create: None,
        delete_disposition: DeleteDisposition::DontCare,
        owner,
        share_access: ShareAccess::Both,
        share_deny,
        share_key: ShareKey::None,
    })
}

/// Recalls a delegation.
pub fn recall(delegation: StateId) -> Request<'static> {
    Request::BcRecall(BcRecall { fh: ROOT, state_id: delegation, truncate: true })
}

/// Opens a file and returns the state-id of the delegation that came along.
pub fn granted(world: &mut World, owner: &[u8]) -> Option<StateId> {
    let tag = world.ask_and_wait(&Request::Open(Open {
        claim: OpenClaim::CreateUnlinked { dir: ROOT },
        create: None,
        delete_disposition: DeleteDisposition::DontCare,
        owner,
        share_access: ShareAccess::Both,
        share_deny: ShareDeny::None,
        share_key: ShareKey::None,
    }));
    let Done::Answered(reply) = &world.done[&tag] else { panic!() };
    let Outcome::Ok(Reply::Open(opened)) = reply.decode().unwrap() else { panic!() };
    match opened.delegation {
        Delegation::Write { state_id, .. } => Some(state_id),
        _ => None,
    }
}

/// Locks a range exclusively.
pub fn lock(state_id: StateId, offset: u64, length: u64) -> Request<'static> {
    let options = LockOptions::default();
    let lock_type = LockType::Write;
    Request::Lock(Lock { fh: ROOT, lock_type, options, state_id, offset, length })
}

/// The open that an answer reports.
pub fn opened(done: &Done) -> StateId {
    let Done::Answered(reply) = done else { panic!("{done:?}") };
    match reply.decode().unwrap() {
        Outcome::Ok(Reply::Open(reply)) => reply.state_id,
        other => panic!("{other:?}"),
    }
}

/// The status of a call that was answered.
pub fn status(done: &Done) -> Status {
    match done {
        Done::Answered(reply) => reply.status(),
        Done::Read { .. } | Done::Written { .. } => Status::Ok,
        Done::Refused { status, .. } => *status,
        other => panic!("{other:?}"),
    }
}

pub fn is_ok(done: &Done) -> bool {
    match done {
        Done::Answered(reply) => reply.status() == Status::Ok,
        done => matches!(done, Done::Read { .. } | Done::Written { .. }),
    }
}
