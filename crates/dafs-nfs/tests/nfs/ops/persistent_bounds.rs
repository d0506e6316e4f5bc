//! The share of the journal that persistent sessions may use, and its distribution among clients.

use super::helper::*;
use super::persistent::{Kept, ROOT};
use crate::common::*;
use dafs_nfs::limits::{
    DURABLE_OPERATIONS_MAX, DURABLE_SESSION_BYTES, DURABLE_SESSIONS_PER_CLIENT_MAX,
    DURABLE_SLOTS_MAX,
};
use dafs_service::durable::Durability;
use dafs_wire::nfs4::*;

/// Every slot is used for a request with the largest number of changes.
#[test]
fn the_replies_of_a_session_are_bounded() {
    let mut kept = Kept::new(Durability::Crash);
    let mut world = kept.start();
    let exchanged = world.exchange(0, b"client", 1);
    let mut args = create_session(exchanged.client_id, exchanged.sequence_id);
    args.flags = CreateSessionFlags::PERSIST;
    (args.fore.requests_max, args.fore.operations_max) = (1000, 1000);
    let mut session = world.session(1, args);
    assert!(session.created.flags.contains(CreateSessionFlags::PERSIST));
    let fore = session.created.fore;
    assert_eq!(
        (fore.requests_max, fore.operations_max),
        (DURABLE_SLOTS_MAX, DURABLE_OPERATIONS_MAX)
    );
    world.complete(&mut session);
    for round in 1..4 {
        for slot_id in 0..fore.requests_max {
            let names: Vec<_> = (0..7).map(|n| format!("{slot_id}-{n}")).collect();
            let access = ShareAccess::BOTH | Want::None.number();
            let mut ops = Vec::new();
            for name in &names {
                ops.extend([ROOT, open(name.as_bytes(), access, unchecked(NOTHING))]);
            }
            ops.push(getfh());
            let sequence_id = if slot_id == 0 { round + 1 } else { round };
            let sequence = SequenceArgs {
                sequence_id,
                slot_id,
                highest_slot_id: slot_id,
                ..session.sequence_args()
            };
            let answer = world.send(1, 0, &with_sequence(sequence, &ops));
            assert_eq!(answer.status(), Status::Ok, "{:?}", answer.results());
        }
        let statistics = world.shared.service.durable.journal_statistics().unwrap();
        assert_eq!(statistics.changes as u32, 7 * fore.requests_max);
        assert!(statistics.kept_bytes <= DURABLE_SESSION_BYTES, "{}", statistics.kept_bytes);
    }
}

/// A client that requests more sessions gets them, but their replies are not durable.
#[test]
fn a_client_gets_only_so_many_sessions_that_persist() {
    let mut kept = Kept::new(Durability::Crash);
    let mut world = kept.start();
    let exchanged = world.exchange(0, b"greedy", 1);
    let mut sessions = Vec::new();
    let mut more = |world: &mut World, client_id, sequence| {
        let mut args = create_session(client_id, sequence);
        args.flags = CreateSessionFlags::PERSIST;
        let session = world.session(1, args);
        let persists = session.created.flags.contains(CreateSessionFlags::PERSIST);
        sessions.push(session);
        (persists, sessions[0].id)
    };
    let each = DURABLE_SESSIONS_PER_CLIENT_MAX as u32;
    let mut first = None;
    for n in 0..each + 4 {
        let (persists, id) = more(&mut world, exchanged.client_id, exchanged.sequence_id + n);
        assert_eq!(persists, n < each);
        first = Some(id);
    }
    let other = world.exchange(0, b"other", 1);
    assert!(more(&mut world, other.client_id, other.sequence_id).0);
    let destroy = Op::DestroySession(DestroySessionArgs { session_id: first.unwrap() });
    assert_eq!(world.send(1, 0, &[destroy]).status(), Status::Ok);
    assert!(more(&mut world, exchanged.client_id, exchanged.sequence_id + each + 4).0);
}
