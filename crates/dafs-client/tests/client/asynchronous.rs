//! Asynchronous batches, end to end over both transports.

use crate::served::{
    Served, Wire, connected, on_each_transport, on_each_transport_with, open_file, pattern,
};
use dafs_client::{Batch, Client, Error, File, IoBuffer};
use dafs_mem::Site;
use std::sync::atomic::Ordering;
use std::time::Duration;

const BLOCK: usize = 4096;

/// A window longer than any test.
const LONG: Duration = Duration::from_secs(9);

fn filled(client: &Client, data: &[u8]) -> IoBuffer {
    let buffer = client.buffer(data.len()).unwrap();
    buffer.view().copy_from(data, Site::Inspect);
    buffer
}

/// Writes of all blocks of a buffer, in an order of their own.
fn writes(client: &Client, file: &File, buffer: &IoBuffer) -> Batch {
    let mut batch = client.batch();
    let count = buffer.len() / BLOCK;
    for index in 0..count {
        let from = index * 7 % count * BLOCK;
        let ranges = [(from as u64, BLOCK)];
        batch.write(file, &ranges, &[(buffer, from..from + BLOCK)]).unwrap();
    }
    batch
}

#[test]
fn results_come_one_by_one_and_once() {
    for checksums in [false, true] {
        for (served, client) in on_each_transport_with(|options| options.checksums = checksums) {
            let file = open_file(&client);
            let count = 300;
            let data = pattern(count * BLOCK);
            let buffer = filled(&client, &data);
            let window = Duration::from_micros(500);
            let batch = writes(&client, &file, &buffer).asynchronous(window, 16);
            let mut pending = batch.submit().unwrap();
            let mut seen = vec![false; count];
            while let Some((place, result)) = pending.next(None).unwrap() {
                assert_eq!(result.unwrap(), BLOCK);
                assert!(!std::mem::replace(&mut seen[place], true), "{place} came twice");
            }
            assert!(seen.iter().all(|seen| *seen));
            file.commit(0, 0).unwrap();
            assert!(served.content("file") == data);
            // Read back in one transfer that is scattered on both sides, and in one behind the end.
            let back = client.buffer(data.len()).unwrap();
            let mut batch = client.batch();
            let half = data.len() / 2;
            let pieces = [(&back, 0..100), (&back, 100..data.len())];
            batch.read(&file, &[(0, half), (half as u64, half)], &pieces).unwrap();
            let mut rest = client.batch();
            rest.read(&file, &[(data.len() as u64, 10)], &[(&buffer, 0..10)]).unwrap();
            let rest = rest.asynchronous(Duration::ZERO, 1).submit().unwrap();
            let results = batch.asynchronous(Duration::ZERO, 1).run().unwrap();
            assert!(matches!(results[..], [Ok(bytes)] if bytes == data.len()), "{results:?}");
            assert!(matches!(rest.wait().unwrap()[..], [Ok(0)]));
            assert!(back.view().to_vec(Site::Inspect) == data);
            file.close().unwrap();
            client.disconnect().unwrap();
        }
    }
}

#[test]
fn a_window_ends_early_for_whom_is_hurried() {
    for (_served, client) in on_each_transport() {
        let file = open_file(&client);
        let buffer = filled(&client, &pattern(4 * BLOCK));
        let mut pending = writes(&client, &file, &buffer).asynchronous(LONG, 1).submit().unwrap();
        let short = Duration::from_millis(50);
        assert!(matches!(pending.next(Some(short)), Err(Error::TimedOut(_))));
        assert!(!pending.is_done());
        pending.hurry(2).unwrap();
        let (place, result) = pending.next(None).unwrap().unwrap();
        assert_eq!((place, result.unwrap()), (2, BLOCK));
        assert!(matches!(pending.next(Some(short)), Err(Error::TimedOut(_))));
        for place in [0, 1, 3] {
            pending.hurry(place).unwrap();
        }
        let results = pending.wait().unwrap();
        assert!(results.iter().all(|result| matches!(result, Ok(BLOCK))), "{results:?}");
        file.close().unwrap();
    }
}

#[test]
fn completions_are_gathered_as_wished() {
    let (_served, client) = connected();
    let file = open_file(&client);
    let buffer = filled(&client, &pattern(3 * BLOCK));
    let mut pending = writes(&client, &file, &buffer).asynchronous(LONG, 2).submit().unwrap();
    pending.hurry(0).unwrap();
    let short = Duration::from_millis(50);
    assert!(matches!(pending.next(Some(short)), Err(Error::TimedOut(_))), "one is not enough");
    pending.hurry(1).unwrap();
    let mut first = [0, 1].map(|_| pending.next(None).unwrap().unwrap().0);
    first.sort_unstable();
    assert_eq!(first, [0, 1]);
    // No other transfer is under way, so the server reports it at once.
    pending.hurry(2).unwrap();
    assert_eq!(pending.next(None).unwrap().unwrap().0, 2);
    assert!(pending.next(None).unwrap().is_none());
    file.close().unwrap();
}

#[test]
fn a_cancelled_operation_is_reported_and_not_done() {
    let (served, client) = connected();
    let file = open_file(&client);
    // More than are submitted to a server at a time.
    let count = 3000;
    let buffer = filled(&client, &vec![7; count * BLOCK]);
    let mut pending = writes(&client, &file, &buffer).asynchronous(LONG, 0).submit().unwrap();
    let taken = pending.cancel().unwrap();
    assert!((1..=count).contains(&taken), "{taken}");
    let mut canceled = 0;
    let mut done = 0;
    while let Some((_, result)) = pending.next(None).unwrap() {
        match result {
            Err(Error::Canceled) => canceled += 1,
            other => done += usize::from(other.unwrap() == BLOCK),
        }
    }
    // The server has taken out what it had not begun.
    assert!(canceled >= taken, "{canceled} of {taken}");
    assert_eq!(canceled + done, count);
    let content = std::fs::read(served.path().join("file")).unwrap_or_default();
    let written = content.chunks(BLOCK).filter(|block| block.iter().all(|&byte| byte == 7)).count();
    assert_eq!(written, done);
    file.close().unwrap();
}

/// Those that wait for their window do not happen sooner for being cancelled: they do not happen.
#[test]
fn transfers_at_the_server_are_taken_out() {
    for (served, client) in on_each_transport() {
        let file = open_file(&client);
        let buffer = filled(&client, &vec![7; 64 * BLOCK]);
        let mut pending = writes(&client, &file, &buffer).asynchronous(LONG, 0).submit().unwrap();
        let short = Duration::from_millis(50);
        assert!(matches!(pending.next(Some(short)), Err(Error::TimedOut(_))));
        pending.cancel().unwrap();
        let results = pending.wait().unwrap();
        let canceled = |result: &Result<usize, Error>| matches!(result, Err(Error::Canceled));
        assert!(results.iter().all(canceled), "{results:?}");
        assert!(served.content("file").is_empty());
        // The same by their names in a group.
        let group = client.completion_group();
        let batch = writes(&client, &file, &buffer).asynchronous(LONG, 0);
        let names = group.batch(batch, |place| place as u64).unwrap();
        let mut completions = Vec::new();
        let some = group.wait(&mut completions, 1, Some(short));
        assert!(matches!(some, Err(Error::TimedOut(_))), "{some:?}");
        for name in &names[1..] {
            group.cancel(*name);
        }
        group.expedite(names[0]).unwrap();
        group.wait(&mut completions, usize::MAX, None).unwrap();
        completions.sort_unstable_by_key(|done| done.user_data);
        assert!(matches!(completions[0].result, Ok(BLOCK)), "{completions:?}");
        assert!(completions[1..].iter().all(|done| matches!(done.result, Err(Error::Canceled))));
        file.close().unwrap();
    }
}

#[test]
fn a_submitted_operation_needs_no_waiter() {
    for (served, client) in on_each_transport() {
        let file = open_file(&client);
        let data = pattern(64 * BLOCK);
        let buffer = filled(&client, &data);
        drop(writes(&client, &file, &buffer).asynchronous(Duration::ZERO, 0).submit().unwrap());
        drop(buffer);
        let path = served.path().join("file");
        while std::fs::read(&path).unwrap() != data {
            std::thread::yield_now();
        }
        file.close().unwrap();
        client.disconnect().unwrap();
    }
}

#[test]
fn every_transfer_has_one_result_over_a_wire_that_breaks() {
    let served = Served::new();
    let mut total = 0;
    for seed in 0..6 {
        let mut number = 0;
        // Both connections of the session use it.
        let wire = Wire::new(served.address, move || {
            number += 1;
            (number < 16).then_some(20_000 + (seed * 7_919 + number * 15_431) % 200_000)
        });
        let client = wire.client();
        let file = open_file(&client);
        let data: Vec<u8> = pattern(200 * BLOCK).iter().map(|byte| byte ^ seed as u8).collect();
        let buffer = filled(&client, &data);
        let batch = writes(&client, &file, &buffer).asynchronous(Duration::from_micros(200), 8);
        let mut pending = batch.submit().unwrap();
        let mut results = 0;
        while let Some((place, result)) = pending.next(None).unwrap() {
            assert_eq!(result.unwrap(), BLOCK, "seed {seed}, transfer {place}");
            results += 1;
        }
        assert_eq!(results, 200);
        assert!(served.content("file") == data, "seed {seed}");
        total += wire.cuts.load(Ordering::SeqCst);
        drop(file);
    }
    assert!(total >= 12, "{total} cuts");
}

#[test]
fn batches_go_on_after_a_restart_of_the_server() {
    for (mut served, client) in on_each_transport() {
        let file = open_file(&client);
        let data = pattern(64 * BLOCK);
        let buffer = filled(&client, &data);
        let mut pending = writes(&client, &file, &buffer).asynchronous(LONG, 0).submit().unwrap();
        let short = Duration::from_millis(50);
        assert!(matches!(pending.next(Some(short)), Err(Error::TimedOut(_))));
        served.stop();
        served.start();
        for place in 0..64 {
            pending.hurry(place).unwrap();
        }
        let results = pending.wait().unwrap();
        assert!(results.iter().all(|result| matches!(result, Ok(BLOCK))), "{results:?}");
        assert_eq!(client.stats().restarts, 1);
        assert!(served.content("file") == data);
        drop(file);
    }
}
