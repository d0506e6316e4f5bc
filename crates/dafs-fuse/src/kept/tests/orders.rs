//! Races: events between an operation and the next one.

use super::*;
use crate::limits::EARLY_COMMIT_BYTES_FIRST;
use std::sync::mpsc;
use std::time::Duration;

/// A timeout that is reached only by a deadlock.
const LONG: Duration = Duration::from_secs(20);

/// Fills the memory for all files.
fn fill(mount: &Mount) -> Vec<super::super::memory::Charge<Buffer>> {
    std::iter::from_fn(|| mount.memory.charge(KEPT_PIECE_COST)).collect()
}

#[test]
fn nothing_is_written_between_the_last_commit_and_the_end_of_a_lock() {
    let (_mount, server, file) = opened();
    Room::new().write(&file, 0, b"first").unwrap();
    let writing = file.clone();
    server.lock().in_commit = Some(Meanwhile(Box::new(move || {
        Room::new().write(&writing, 5, b" second").unwrap();
    })));
    let (ask, asked) = mpsc::channel();
    std::thread::scope(|scope| {
        let (settled, ()) = file.unlock(|| {
            let writing = file.clone();
            scope.spawn(move || {
                ask.send(()).unwrap();
                Room::new().write(&writing, 12, b" third").unwrap();
            });
            asked.recv().unwrap();
            assert!(file.order.try_read().is_none(), "others may write");
            let inner = server.lock();
            assert_eq!((&inner.stable[..], inner.writes), (&b"first second"[..], 2));
        });
        assert_eq!(settled, Ok(()));
    });
    assert_eq!(server.lock().content, b"first second third");
}

#[test]
fn a_lock_that_is_lost_while_something_is_written_again_ends_that() {
    let (_mount, server, file) = opened();
    let mut seen = file.seen();
    for offset in [0, 100, 200] {
        Room::new().write(&file, offset, b"mine").unwrap();
    }
    server.lock().crash();
    server.lock().locks_out_after = Some(4);
    file.settle().unwrap();
    assert_eq!(file.told(&mut seen), Err(Errno::EIO));
    assert_eq!(server.lock().writes, 4, "the first was written again, the others were not");
}

#[test]
fn a_truncation_before_the_loss_is_no_loss() {
    let (_mount, server, file) = opened();
    let mut seen = file.seen();
    Room::new().write(&file, 0, b"data").unwrap();
    let (cutting, other) = (file.clone(), server.clone());
    server.lock().in_commit = Some(Meanwhile(Box::new(move || {
        let cut = || {
            other.lock().cut(0);
            Ok(())
        };
        cutting.resize(0, cut).unwrap();
    })));
    server.lock().fails_after = Some((0, Some(Failure::Final(Errno::ENOSYS))));
    file.settle().unwrap();
    assert_eq!(file.told(&mut seen), Ok(()));
}

#[test]
fn truncated_data_in_doubt_does_not_come_back() {
    for (is_carried_out, wanted) in [(true, &b"da"[..]), (false, b"data")] {
        let (mount, server, file) = opened();
        Room::new().write(&file, 0, b"data").unwrap();
        let cut = || {
            let mut inner = server.lock();
            if is_carried_out {
                inner.cut(2);
                // Its size is in the server's journal, but its data is lost.
                inner.stable = vec![0; 2];
            }
            inner.crash();
            Err::<(), _>(Errno::ECONNRESET)
        };
        assert_eq!(file.resize(2, cut), Err(Errno::ECONNRESET));
        file.settle().unwrap();
        assert_eq!(server.lock().stable, wanted);
        assert_eq!(mount.memory.used_bytes(), 0);
    }
}

#[test]
fn retained_data_survives_a_loss_of_other_data() {
    let (mount, server, file) = opened();
    let mut seen = file.seen();
    for (offset, bytes) in [(0, b"one"), (100, b"two"), (200, b"six")] {
        Room::new().write(&file, offset, bytes).unwrap();
    }
    server.lock().crash();
    // COMMIT, the first piece, and the second is refused.
    server.lock().refuses_at = Some(100);
    file.settle().unwrap();
    assert_eq!(file.told(&mut seen), Err(Errno::ENOSYS));
    assert_eq!(file.told(&mut seen), Ok(()), "it is one loss");
    let stable = server.lock().stable.clone();
    assert_eq!((&stable[..3], &stable[100..103]), (&b"one"[..], &[0; 3][..]));
    assert_eq!(&stable[200..], b"six");
    assert_eq!(mount.memory.used_bytes(), 0);
}

#[test]
fn a_file_that_hangs_stops_nobody_who_writes_to_another_one() {
    let mount = Mount::default();
    let hanging = mount.open();
    let (other_server, other) = mount.open();
    let (last_server, last) = mount.open();
    let mut room = Room::new();
    room.write(&hanging.1, 0, b"hangs").unwrap();
    room.write(&other, 0, b"goes").unwrap();
    let full = fill(&mount);
    let (begin, begun) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    hanging.0.lock().in_commit = Some(Meanwhile(Box::new(move || {
        begin.send(()).unwrap();
        ended.recv().unwrap();
    })));
    std::thread::scope(|scope| {
        let settled = scope.spawn(|| hanging.1.settle());
        begun.recv().unwrap();
        let (tell, told) = mpsc::channel();
        let writing = last.clone();
        scope.spawn(move || {
            let mut room = Room::new();
            // It replaces the other one; and then there is nothing to evict.
            room.write(&writing, 0, b"kept").unwrap();
            room.write(&writing, 10, b"much").unwrap();
            tell.send(()).unwrap();
        });
        let written = told.recv_timeout(LONG);
        end.send(()).unwrap();
        settled.join().unwrap().unwrap();
        written.expect("it waits for a file that it has nothing to do with");
    });
    assert_eq!(other_server.lock().commits, 1);
    assert!(last_server.lock().content.ends_with(b"much"));
    drop(full);
}

#[test]
fn long_writes_are_made_stable_before_anybody_asks() {
    let (mount, server, file) = opened();
    let mut room = Room::new();
    let long = vec![7; WRITE_BYTES_MAX as usize];
    let write = |room: &mut Room, number: usize| {
        room.write(&file, (number * long.len()) as u64, &long).unwrap();
    };
    let count = EARLY_COMMIT_BYTES_FIRST / long.len();
    (1..count).for_each(|number| write(&mut room, number));
    assert_eq!(server.lock().commits, 0);
    write(&mut room, 0);
    assert_eq!((server.lock().commits, mount.memory.used_bytes()), (1, 0));
    assert_eq!(server.lock().stable.len(), EARLY_COMMIT_BYTES_FIRST);
}

/// Writes as much as is made stable early.
fn write_much(file: &RetainedFile<Fake>) {
    let (mut room, long) = (Room::new(), vec![7; WRITE_BYTES_MAX as usize]);
    for number in 0..EARLY_COMMIT_BYTES_FIRST / long.len() {
        room.write(file, (number * long.len()) as u64, &long).unwrap();
    }
}

#[test]
fn an_early_commit_waits_for_no_other_one() {
    let (_mount, server, file) = opened();
    Room::new().write(&file, 0, b"first").unwrap();
    let writing = file.clone();
    server.lock().in_commit = Some(Meanwhile(Box::new(move || write_much(&writing))));
    file.settle().unwrap();
    assert_eq!(server.lock().commits, 1);
    file.settle().unwrap();
    assert_eq!(server.lock().commits, 2, "what was written meanwhile is retained");
}

#[test]
fn an_early_commit_that_fails_is_no_failure_of_a_write() {
    let (_mount, server, file) = opened();
    server.lock().puts_commit_off = true;
    write_much(&file);
    assert!(!server.lock().puts_commit_off, "there was a commit");
    file.settle().unwrap();
    assert_eq!(server.lock().stable.len(), EARLY_COMMIT_BYTES_FIRST);
}
