//! Appends, concurrent with writers without intents: NFS clients, and DAFS clients without a
//! response cache.

use super::*;

const AFTER: &[u8] = b"after";
const MODES: [Durability; 2] = [Durability::Crash, Durability::Power];

fn change(file: &Handle) -> Change<'_> {
    Change::Append { file, len: 5, digest: digest(0, AFTER) }
}

fn announced(world: &World) -> LoggedChange {
    world.op(0, &change(&world.at("grown").unwrap()))
}

/// Writes as a client without intents.
fn write_behind(world: &World, bytes: &[u8]) -> Result<usize, StoreError> {
    let (file, mut bytes) = (world.open("grown"), bytes.to_vec());
    let end = file.attr()?.size;
    let view = VolatileSlice::from_mut(&mut bytes);
    file.write_at(&[view], end, Stability::Data, Wait::Allowed)
}

fn content(world: &World) -> Vec<u8> {
    let (id, mode) = (world.at("grown").unwrap().file, OpenMode { read: true, write: false });
    let file = world.store.open(&world.cred, &id, mode).unwrap();
    let mut bytes = vec![0; file.attr().unwrap().size as usize];
    let read = file.read_at(&[VolatileSlice::from_mut(&mut bytes)], 0, Wait::Allowed).unwrap();
    assert_eq!(read, bytes.len());
    bytes
}

/// Crashes the server. The store keeps its content.
fn die(world: World, op: LoggedChange, power: bool) -> (World, Option<Answer>) {
    std::mem::forget(op);
    let world = world.crash(power);
    let answer = world.kept_answer(0);
    (world, answer)
}

#[test]
fn another_write_is_not_taken_for_an_append_that_never_began() {
    for mode in MODES {
        for (others, left) in [(&b"nfs"[..], &b"beforenfs"[..]), (b"other", b"beforeother")] {
            let world = World::new(mode);
            let op = announced(&world);
            write_behind(&world, others).unwrap();
            let (world, answer) = die(world, op, mode == Durability::Power);
            assert_eq!((content(&world), answer), (left.to_vec(), None));
        }
    }
}

#[test]
fn neither_is_what_they_wrote_after_they_had_emptied_the_file() {
    for mode in MODES {
        let world = World::new(mode);
        let op = announced(&world);
        world.open("grown").set_size(0).unwrap();
        write_behind(&world, b"whatever").unwrap();
        let (world, answer) = die(world, op, mode == Durability::Power);
        assert_eq!((content(&world), answer), (b"whatever".to_vec(), None));
    }
}

#[test]
fn an_append_goes_behind_what_others_wrote_since_it_was_announced() {
    for mode in MODES {
        let world = World::new(mode);
        let op = announced(&world);
        write_behind(&world, b"nfs").unwrap();
        assert_eq!(world.append(&op, AFTER), Ok(9));
        // No later write raises doubt about it.
        write_behind(&world, b"more").unwrap();
        world.open("grown").set_size(7).unwrap();
        let (world, answer) = die(world, op, mode == Durability::Power);
        let file = world.at("grown").unwrap();
        let effect = Effect::Appended { file, offset: 9, len: 5 };
        assert_eq!(
            (content(&world), answer),
            (b"beforen".to_vec(), Some(Answer::Happened(effect)))
        );
    }
}

/// The process ends in the middle of the write, or the power fails and leaves zeros or a part of
/// the data.
#[test]
fn an_append_that_was_half_done_is_taken_back() {
    for mode in MODES {
        for torn in [&b"a"[..], b"aft", b"\0\0\0\0\0", b"aft\0r", b"\0\0ter"] {
            let world = World::new(mode);
            let op = announced(&world);
            op.witness().unwrap().placed(6).unwrap();
            write(&*world.open("grown"), 6, torn);
            let (world, answer) = die(world, op, mode == Durability::Power);
            assert_eq!((content(&world), answer), (b"before".to_vec(), None));
        }
    }
}

#[test]
fn an_append_that_is_whole_stays() {
    for mode in MODES {
        let world = World::new(mode);
        let op = announced(&world);
        op.witness().unwrap().placed(6).unwrap();
        write(&*world.open("grown"), 6, AFTER);
        let (world, answer) = die(world, op, mode == Durability::Power);
        assert!(matches!(answer, Some(Answer::Happened(_))));
        assert_eq!(content(&world), b"beforeafter");
    }
}

/// Data behind it was written by a process that bypasses the server.
#[test]
fn a_file_that_has_grown_behind_the_servers_back_is_left_alone() {
    let world = World::new(Durability::Power);
    let op = announced(&world);
    op.witness().unwrap().placed(6).unwrap();
    write(&*world.open("grown"), 6, b"somebody else");
    let (world, answer) = die(world, op, false);
    let failed = Some(Answer::Failed);
    assert_eq!((content(&world), answer), (b"beforesomebody else".to_vec(), failed));
}

/// Also when no client will ask for it any more, and its record was copied to another segment.
#[test]
fn a_half_done_append_of_a_forgotten_session_is_taken_back() {
    for (mode, forget_first) in MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let world = World::new(mode);
        let op = announced(&world);
        if forget_first {
            world.service.durable.forget_session(&SESSION);
        }
        op.witness().unwrap().placed(6).unwrap();
        write(&*world.open("grown"), 6, b"aft");
        world.service.durable.forget_session(&SESSION);
        world.introduce(SESSION);
        for _ in 0..500 {
            let op = world.op(4, &Change::Remove { dir: &world.root, name: b"nothing" });
            world.settle(op, &[7; 100]);
            world.run();
        }
        assert!(world.statistics().log.segments > 2);
        let (world, answer) = die(world, op, mode == Durability::Power);
        assert_eq!((content(&world), answer), (b"before".to_vec(), None));
    }
}

#[test]
fn an_append_without_room_is_known_not_to_have_happened_and_others_go_on() {
    for mode in MODES {
        let world = World::with(mode, new_store_of(64 << 10));
        let file = world.at("grown").unwrap();
        let big = vec![1; 128 << 10];
        let change = Change::Append { file: &file, len: big.len() as u64, digest: digest(0, &big) };
        let op = world.op(0, &change);
        assert_eq!(world.append(&op, &big), Err(StoreError::NoSpace));
        assert_eq!(content(&world), b"before");
        write_behind(&world, b"nfs").unwrap();
        let (world, answer) = die(world, op, mode == Durability::Power);
        assert_eq!((content(&world), answer), (b"beforenfs".to_vec(), None));
        // If it is answered, the answer stays.
        let op = world.op(1, &change);
        assert_eq!(world.append(&op, &big), Err(StoreError::NoSpace));
        world.settle(op, b"no room");
        let world = world.crash(false);
        let reply = Answer::Reply { bytes: b"no room".to_vec(), order_le: true };
        assert_eq!(world.kept_answer(1), Some(reply));
    }
}

/// Later writes of others could be taken for a part of the append after a restart.
#[test]
fn a_file_whose_append_the_journal_cannot_note_takes_no_writes_until_the_restart() {
    for mode in MODES {
        for calls in 0..8 {
            let world = World::new(mode);
            let op = announced(&world);
            world.disk.fail_after(Some(calls));
            let appended = world.append(&op, AFTER);
            world.disk.fail_after(None);
            if appended.is_ok() {
                assert!(calls >= 2);
                break;
            }
            assert_eq!(appended, Err(StoreError::Io));
            assert_eq!(write_behind(&world, b"nfs"), Err(StoreError::Io));
            assert_eq!(world.open("grown").set_size(0), Err(StoreError::Io));
            let mut other = *b"x";
            let view = VolatileSlice::from_mut(&mut other);
            assert_eq!(world.open("grown").append(&[view], Stability::Data), Err(StoreError::Io));
            let old = world.open("old");
            old.set_size(1).unwrap();
            let _ = world.service.durable.settle(op, b"error", true, world.notify("sent"));
            world.run();
            let power = mode == Durability::Power;
            let world = world.crash(power);
            let there = match world.kept_answer(0) {
                None => &b"before"[..],
                Some(Answer::Happened(_)) => b"beforeafter",
                answer => panic!("{answer:?}"),
            };
            assert_eq!(content(&world), there, "{mode:?} after {calls} calls");
            write_behind(&world, b"nfs").unwrap();
        }
    }
}

/// Later writes could be taken for a part of it after a restart.
#[test]
fn a_file_whose_append_ended_in_a_panic_takes_no_writes_until_the_restart() {
    struct Panics(Arc<dyn AppendWitness>);
    impl AppendWitness for Panics {
        fn placed(&self, offset: u64) -> Result<(), StoreError> {
            self.0.placed(offset)
        }
        fn ended(&self, _: bool) -> Result<(), StoreError> {
            panic!("a mistake")
        }
    }
    for mode in MODES {
        let world = World::new(mode);
        let op = announced(&world);
        let (file, witness) = (world.open("grown"), Panics(op.witness().unwrap()));
        let append = std::panic::AssertUnwindSafe(|| {
            let mut bytes = *b"aft";
            let view = VolatileSlice::from_mut(&mut bytes);
            file.append_witnessed(&[view], Stability::Data, &witness)
        });
        std::panic::catch_unwind(append).unwrap_err();
        assert_eq!(write_behind(&world, b"x"), Err(StoreError::Io));
        let (world, answer) = die(world, op, mode == Durability::Power);
        assert_eq!((content(&world), answer), (b"before".to_vec(), None));
    }
}
