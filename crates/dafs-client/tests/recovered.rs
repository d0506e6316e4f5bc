//! Sessions with a real server that outlive their connections.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod served;

use served::{Served, TRANSPORTS};

#[test]
fn a_restart_of_the_server_is_only_waited_for() {
    for transport in TRANSPORTS {
        let mut served = Served::new();
        let client = served.client(transport);
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
