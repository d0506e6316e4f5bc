//! Clients without durable replies, whose changes conflict with logged changes of others.

use super::helper::*;
use super::persistent::{MODES, ROOT, prepared, remove};
use crate::common::*;
use dafs_rpc::{Handled, LocalEvent};
use dafs_service::durable::Durability;
use dafs_wire::nfs3::{self, ChangeFailure, DirOpArgs, FileHandle, WccResult, decode_results};
use dafs_wire::nfs4::*;

/// Sends a REMOVE of NFSv3 below the root.
fn remove_v3(world: &mut World, root: &[u8], name: &[u8]) -> Handled {
    let procedure = (nfs3::PROGRAM, nfs3::VERSION, nfs3::Procedure::Remove.number());
    world.call(procedure, 1, 0, &bytes(&DirOpArgs { dir: FileHandle(root), name }))
}

/// True if a REMOVE of NFSv3 has removed an object.
fn is_removed_v3(results: &[u8]) -> bool {
    match decode_results::<WccResult, ChangeFailure>(results).unwrap() {
        Ok(_) => true,
        Err(failure) => {
            assert_eq!(failure.status, nfs3::Status::NoEnt);
            false
        }
    }
}

fn is_removed_v4(results: &[u8]) -> bool {
    let status = Answer(results.to_vec()).status();
    assert!([Status::Ok, Status::NoEnt].contains(&status), "{status:?}");
    status == Status::Ok
}

/// One of two clients removes a name, and only that one gets success, wherever the server crashes
/// meanwhile.
#[test]
fn a_change_is_not_taken_for_that_of_another_client() {
    for mode in MODES {
        for by_v3 in [false, true] {
            let (mut waited, mut told) = (0, [0; 2]);
            for steps in 0..8 {
                for more in [0, 99] {
                    let what = format!("{mode:?}, NFSv3 {by_v3}, {steps} steps and {more}");
                    let (mut kept, mut world, mut session) = prepared(mode);
                    let mut other = world.client(b"other");
                    world.complete(&mut other);
                    let root = handle(&world.next(&mut other, &[ROOT, getfh()]), 2);
                    session.sequence += 1;
                    let ops = [ROOT, remove(b"victim")];
                    let args = world.encode(&with_sequence(session.sequence_args(), &ops));
                    assert!(matches!(world.start(1, 0, &args), Handled::Later));
                    for _ in 0..steps {
                        world.pool.step();
                    }
                    let handled = if by_v3 {
                        remove_v3(&mut world, &root, b"victim")
                    } else {
                        other.sequence += 1;
                        let args = world.encode(&with_sequence(other.sequence_args(), &ops));
                        world.start(1, 0, &args)
                    };
                    let xid = world.xid;
                    waited += u32::from(matches!(handled, Handled::Later));
                    for _ in 0..more {
                        world.pool.step();
                    }
                    let mut results = match handled {
                        Handled::Reply(reply) => Some(reply.to_bytes()),
                        _ => None,
                    };
                    for event in world.reactor.take_events() {
                        match event {
                            LocalEvent::Answer { xid: of, answer, .. } if of == xid => {
                                results = Some(answer.unwrap().to_bytes());
                            }
                            _ => {}
                        }
                    }
                    let theirs = results.as_ref().is_some_and(|results| match by_v3 {
                        true => is_removed_v3(results),
                        false => is_removed_v4(results),
                    });
                    assert!(more == 0 || results.is_some(), "{what}");
                    // The log gets no further record, because no drop runs.
                    std::mem::forget(world);
                    let mut world = kept.start();
                    let again = world.again(&session, &ops);
                    let ours = again.status() == Status::Ok;
                    assert!(!(ours && theirs), "{what}: both have removed it");
                    assert_eq!(kept.has(b"victim"), !ours && !theirs, "{what}");
                    assert!(more == 0 || ours || theirs, "{what}");
                    told[0] += u32::from(ours);
                    told[1] += u32::from(theirs);
                }
            }
            assert_eq!(waited > 0, mode == Durability::Power, "{mode:?} {by_v3}");
            assert!(told[0] > 0 && told[1] > 0, "{mode:?} {by_v3}: {told:?}");
        }
    }
}
