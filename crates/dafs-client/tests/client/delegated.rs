//! Delegations of callers that cache content themselves.

use crate::served::{Served, TRANSPORTS};
use dafs_client::{
    Client, FileHandle, Keeper, OpenOptions, ReadDelegation, SetAttributes, Stability,
};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Returns its delegation when it is recalled, and reports that before.
struct One {
    held: Mutex<Option<ReadDelegation>>,
    told: Mutex<Sender<FileHandle>>,
}

impl Keeper for One {
    fn recalled(&self, file: &FileHandle) {
        self.told.lock().unwrap().send(*file).unwrap();
        let held = self.held.lock().unwrap().take();
        held.unwrap().give_back().unwrap();
    }

    fn lost(&self, _: &FileHandle) {
        panic!("nothing is lost here");
    }
}

/// Opens and closes a file; returns the delegation.
fn delegated(client: &Client, handle: &FileHandle) -> ReadDelegation {
    loop {
        let (file, delegation) = client.open_delegated(handle).unwrap();
        file.close().unwrap();
        // The server may not know yet that the back-control channel works.
        if let Some(delegation) = delegation {
            return delegation;
        }
    }
}

#[test]
fn a_writer_waits_for_holders_and_names_and_modes_count_too() {
    for transport in TRANSPORTS {
        let served = Served::new();
        let (one, two) = (served.client(transport), served.client(transport));
        type Change = fn(&Client, &FileHandle, &[u8]);
        let changes: [Change; 4] = [
            |two, file, _| drop(two.open_handle(file, &OpenOptions::write()).unwrap()),
            |two, file, _| two.set_attributes(file, &SetAttributes::mode(0o600)).unwrap(),
            |two, _, name| two.rename(&two.root(), name, &two.root(), b"other").unwrap(),
            |two, _, name| two.remove(&two.root(), name).unwrap(),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            // The server grants no delegation of a file that it has recently recalled.
            let name = number.to_string();
            std::fs::write(served.path().join(&name), b"0123").unwrap();
            let file = one.lookup(&one.root(), name.as_bytes()).unwrap();
            let (told, news) = channel();
            let keeper = Arc::new(One { held: Mutex::new(None), told: Mutex::new(told) });
            let as_keeper: Arc<dyn Keeper> = keeper.clone();
            let mut delegation = delegated(&one, &file);
            assert!(delegation.hear(Arc::downgrade(&as_keeper)).unwrap());
            assert!(delegation.is_good() && one.promised() > Duration::ZERO);
            *keeper.held.lock().unwrap() = Some(delegation);
            // Uses by the same client do not conflict with the delegation, nor do reads of others.
            let own = one.open_handle(&file, &OpenOptions::read_write()).unwrap();
            own.close().unwrap();
            two.open_handle(&file, &OpenOptions::read()).unwrap().close().unwrap();
            assert!(news.try_recv().is_err());
            change(&two, &file, name.as_bytes());
            assert_eq!(news.try_recv(), Ok(file), "change {number}");
            assert!(keeper.held.lock().unwrap().is_none());
        }
        one.disconnect().unwrap();
        two.disconnect().unwrap();
    }
}

#[test]
fn a_dropped_delegation_is_returned() {
    let served = Served::new();
    let (one, two) = (served.client(TRANSPORTS[0]), served.client(TRANSPORTS[0]));
    for name in ["dropped", "unheard", "left"] {
        std::fs::write(served.path().join(name), b"0123").unwrap();
        let file = one.lookup(&one.root(), name.as_bytes()).unwrap();
        let mut delegation = delegated(&one, &file);
        let nobody: Weak<dyn Keeper> = Weak::<One>::new();
        match name {
            "dropped" => drop(delegation),
            "unheard" => std::mem::forget(delegation),
            _ => {
                assert!(delegation.hear(nobody).unwrap());
                std::mem::forget(delegation);
            }
        }
        let other = two.open_handle(&file, &OpenOptions::write()).unwrap();
        other.write_at(b"x", 0, Stability::FileSync).unwrap();
        other.close().unwrap();
    }
}
