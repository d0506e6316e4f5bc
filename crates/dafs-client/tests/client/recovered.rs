//! Sessions with a real server that outlive their connections.

use crate::served::{Served, Wire, in_threads, on_each_transport, pattern};
use dafs_client::{Create, Error, OpenOptions, SetAttributes, Stability};
use std::sync::atomic::Ordering;

#[test]
fn a_restart_of_the_server_is_only_waited_for() {
    for (mut served, client) in on_each_transport() {
        let root = client.root();
        std::fs::write(served.path().join("file"), b"content").unwrap();
        let handle = client.lookup(&root, b"file").unwrap();
        for _ in 0..3 {
            served.stop();
            let waiting = std::thread::spawn({
                let client = client.clone();
                move || client.attributes(&handle).unwrap().size
            });
            served.start();
            assert_eq!(waiting.join().unwrap(), 7);
        }
        assert_eq!(client.stats().recoveries, 3);
        client.disconnect().unwrap();
    }
}

#[test]
fn no_change_is_made_twice_over_a_wire_that_breaks() {
    let served = Served::new();
    let mut total = 0;
    for seed in 0..20u64 {
        // Enough to open a session and do some of the work; the last wire lasts.
        let mut number = 0;
        let wire = Wire::new(served.address, move || {
            number += 1;
            (number < 8).then_some(3_000 + (seed * 7_919 + number * 1_543) % 6_007)
        });
        let client = wire.client();
        let root = client.root();
        in_threads(4, |thread| {
            let client = client.clone();
            for step in 0..12 {
                let old = format!("{seed}-{thread}-{step}");
                let new = format!("{old}-moved");
                // Each of these fails when it is repeated.
                client.mkdir(&root, old.as_bytes(), &SetAttributes::mode(0o755)).unwrap();
                client.rename(&root, old.as_bytes(), &root, new.as_bytes()).unwrap();
                if step % 2 == 0 {
                    client.remove(&root, new.as_bytes()).unwrap();
                }
            }
        });
        // A recovery that is interrupted goes on and counts once.
        assert!((1..=7).contains(&client.stats().recoveries), "seed {seed}");
        total += wire.cuts.load(Ordering::SeqCst);
        // All is answered; the wire may break before one more request.
        match client.disconnect() {
            Ok(()) | Err(Error::Lost { .. }) => {}
            Err(error) => panic!("seed {seed}: {error}"),
        }
        let left = std::fs::read_dir(served.path()).unwrap().count();
        assert_eq!(left as u64, (seed + 1) * 4 * 6);
    }
    assert!(total >= 20 * 6, "{total} cuts");
}

#[test]
fn an_open_file_goes_on_over_a_wire_that_breaks() {
    let served = Served::new();
    let mut number = 0;
    let wire = Wire::new(served.address, move || {
        number += 1;
        (number < 10).then_some(400_000 + number * 12_347)
    });
    let client = wire.client();
    let content = pattern(3 << 20);
    let options = OpenOptions::read_write().create(Create::New);
    let file = client.open(b"file", &options).unwrap();
    file.write_at(&content, 0, Stability::Unstable).unwrap();
    file.commit(0, 0).unwrap();
    let mut back = vec![0; content.len()];
    assert_eq!(file.read_at(&mut back, 0).unwrap(), content.len());
    assert!(back == content);
    file.close().unwrap();
    assert!(client.stats().recoveries >= 5);
    assert!(served.content("file") == content);
}
