//! Locks with auto-recovery: writes under them stay when they are unlocked, and are undone when
//! they are aborted or lost.

use crate::served::{Served, TRANSPORTS, on_each_transport, pattern};
use dafs_client::{
    Client, Create, File, LockError, LockRange, OpenOptions, Stability, Status, TransportChoice,
};
use std::time::Duration;

fn recovering() -> LockRange {
    LockRange::exclusive().auto_recovery(true)
}

fn open(client: &Client) -> File {
    client.open(b"/f", &OpenOptions::read_write().create(Create::IfMissing)).unwrap()
}

fn node(served: &Served, transport: TransportChoice, name: &str) -> Client {
    served.client_with(|options| {
        options.transport = transport;
        options.client_id = Some(name.to_owned());
    })
}

fn content(served: &Served) -> Vec<u8> {
    served.content("f")
}

/// Overwrites, truncates and appends.
fn change(file: &File) {
    file.write_at(b"changed", 5, Stability::Unstable).unwrap();
    file.set_size(70_000).unwrap();
    file.append(&pattern(5000), Stability::DataSync).unwrap();
}

#[test]
fn an_abort_undoes_and_an_unlock_keeps() {
    for transport in TRANSPORTS {
        let served = Served::new();
        let before = served.with_file("f", 100_000);
        let client = served.client(transport);
        let file = open(&client);
        file.try_lock(&recovering()).unwrap();
        change(&file);
        assert_eq!(content(&served).len(), 75_000);
        file.abort_lock().unwrap();
        assert!(content(&served) == before, "not as it was");
        // It was unlocked, too.
        let error = file.abort_lock().unwrap_err();
        assert_eq!(error.status(), Some(Status::Inval));
        let other = open(&served.client(transport));
        other.try_lock(&LockRange::exclusive()).unwrap();
        other.unlock(0, u64::MAX).unwrap();
        file.try_lock(&recovering()).unwrap();
        change(&file);
        file.unlock(0, u64::MAX).unwrap();
        assert_eq!(content(&served).len(), 75_000);
        assert_eq!(&content(&served)[5..12], b"changed");
        // A part of a file is refused.
        let part = recovering().bytes(0, 10);
        let error = file.try_lock(&part).unwrap_err();
        assert!(
            matches!(&error, LockError::Other(error) if error.status() == Some(Status::NotSupp)),
            "{error}"
        );
    }
}

#[test]
fn the_writes_of_a_restarted_holder_are_undone_before_the_next_lock() {
    for transport in TRANSPORTS {
        let served = Served::new();
        let before = served.with_file("f", 100_000);
        let other = open(&served.client(transport));
        let holder = node(&served, transport, "node");
        let file = open(&holder);
        file.try_lock(&recovering()).unwrap();
        change(&file);
        assert!(matches!(other.try_lock(&LockRange::exclusive()), Err(LockError::Held(_))));
        let again = node(&served, transport, "node");
        other.lock(&LockRange::exclusive(), Some(Duration::from_secs(60))).unwrap();
        assert!(content(&served) == before, "not as it was");
        drop((file, holder, again));
    }
}

#[test]
fn with_persistence_the_next_one_is_told_and_finds_the_file_as_it_was() {
    let served = Served::new();
    let before = served.with_file("f", 100_000);
    let transport = TRANSPORTS[0];
    let other = open(&served.client(transport));
    let holder = node(&served, transport, "node");
    let file = open(&holder);
    file.try_lock(&recovering().persist(true)).unwrap();
    change(&file);
    let _again = node(&served, transport, "node");
    assert!(matches!(other.try_lock(&LockRange::exclusive()), Err(LockError::Broken(_))));
    let error = other.read_at(&mut [0; 10], 0).unwrap_err();
    // A client that has it open finds out by asking for the lock (DAFS 9.3).
    assert_eq!(error.status(), Some(Status::StaleStateId), "{error}");
    other.lock_for_repair(0, u64::MAX).unwrap();
    assert!(content(&served) == before, "not as it was");
    other.unlock(0, u64::MAX).unwrap();
    drop((file, holder));
}

#[test]
fn it_can_be_aborted_after_the_server_has_restarted() {
    for (mut served, client) in on_each_transport() {
        let before = served.with_file("f", 100_000);
        let file = open(&client);
        file.try_lock(&recovering()).unwrap();
        change(&file);
        served.stop();
        served.start();
        file.write_at(b"and on", 0, Stability::Unstable).unwrap();
        file.abort_lock().unwrap();
        assert!(content(&served) == before, "not as it was");
    }
}
