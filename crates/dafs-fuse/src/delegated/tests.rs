//! The table without a server: what may be believed, and what may not any more.

use super::table::{Opening, Promised, Right, Table};
use dafs_client::{Attributes, FileHandle, ObjectType, Owner};
use std::cell::Cell;
use std::rc::Rc;

/// A delegation that somebody else may end.
#[derive(Debug, Clone)]
struct Good(Rc<Cell<bool>>);

impl Good {
    fn new() -> Self {
        Self(Rc::new(Cell::new(true)))
    }
}

impl Right for Good {
    fn is_good(&self) -> bool {
        self.0.get()
    }
}

const DIR: FileHandle = handle(100);

const fn handle(number: u8) -> FileHandle {
    FileHandle { fs: [1; 16], file: [number; 48] }
}

fn attributes(number: u8, links: u32) -> Attributes {
    Attributes {
        kind: ObjectType::Regular,
        mode: 0o644,
        links,
        owner: Owner::Unknown,
        group: Owner::Unknown,
        size: 10,
        space_used: 0,
        file_id: 7,
        change: 0,
        raw_device: (0, 0),
        accessed: None,
        modified: None,
        changed: None,
        created: None,
        has_named_attributes: false,
        handle: handle(number),
    }
}

fn promise(number: u8) -> Promised {
    Promised { handle: handle(number), node: 7, flags: 0 }
}

fn with(files_max: usize, number: u8) -> (Table<Good>, Good) {
    let (mut table, right) = (Table::new(files_max), Good::new());
    assert_eq!(table.open(1, promise(number)), Opening::Delegated);
    assert!(table.came(1, handle(number), right.clone(), |_| true).is_none());
    (table, right)
}

#[test]
fn the_kernel_keeps_only_what_it_has_read_since_the_delegation_came() {
    let (mut table, _) = with(9, 1);
    // Whoever opened it first may not have dropped the old pages yet.
    assert_eq!(table.open(2, promise(1)), Opening::Promised { is_clean: false });
    table.used(1);
    assert_eq!(table.open(3, promise(1)), Opening::Promised { is_clean: true });
    assert_eq!(table.cleaning(), 1);
    table.closed(2);
    assert_eq!(table.cleaning(), 0);
    // One that was opened under a delegation before says nothing of a later one.
    let (mut table, _) = with(9, 1);
    drop(table.remove(&handle(1)));
    assert!(table.came(5, handle(1), Good::new(), |_| true).is_none());
    table.used(1);
    assert_eq!(table.open(6, promise(1)), Opening::Promised { is_clean: false });
}

#[test]
fn nothing_is_believed_that_was_asked_before_the_delegation_or_a_change_of_ours() {
    let mut table = Table::new(9);
    let early = table.asking();
    assert!(table.came(1, handle(1), Good::new(), |_| true).is_none());
    table.learn(early, Some((&DIR, b"name")), &attributes(1, 1));
    assert!(table.attributes(&handle(1)).is_none());
    let good = table.asking();
    table.learn(good, Some((&DIR, b"name")), &attributes(1, 1));
    assert_eq!(table.named(&DIR, b"name"), Some(handle(1)));
    assert_eq!(table.attributes(&handle(1)).map(|known| known.size), Some(10));
    let under_way = table.asking();
    table.changed(&handle(1));
    assert!(table.attributes(&handle(1)).is_none() && table.named(&DIR, b"name").is_none());
    table.learn(under_way, Some((&DIR, b"name")), &attributes(1, 1));
    assert!(table.attributes(&handle(1)).is_none());
    let under_way = table.asking();
    table.names_changed();
    table.learn(under_way, Some((&DIR, b"name")), &attributes(1, 1));
    assert!(table.named(&DIR, b"name").is_none());
    // A file of two names: what is done to the other one would not be noticed.
    let now = table.asking();
    table.learn(now, Some((&DIR, b"name")), &attributes(1, 2));
    assert!(table.named(&DIR, b"name").is_none());
    // Without a name its attributes are known until any name is changed here.
    assert!(table.attributes(&handle(1)).is_some());
    table.names_changed();
    assert!(table.attributes(&handle(1)).is_none());
    let now = table.asking();
    table.learn(now, None, &attributes(1, 1));
    assert!(table.attributes(&handle(1)).is_some());
    // A new name takes the place of the old one.
    table.learn(now, Some((&DIR, b"name")), &attributes(1, 1));
    table.learn(now, Some((&DIR, b"other")), &attributes(1, 1));
    assert_eq!((table.named(&DIR, b"name"), table.named(&DIR, b"other")), (None, Some(handle(1))));
}

#[test]
fn nothing_is_kept_of_what_the_server_may_not_promise_any_more_or_is_written_here() {
    let (mut table, right) = with(9, 1);
    let now = table.asking();
    table.learn(now, Some((&DIR, b"name")), &attributes(1, 1));
    right.0.set(false);
    assert!(table.attributes(&handle(1)).is_none());
    assert_eq!(table.open(2, promise(1)), Opening::Plain);
    right.0.set(true);
    assert!(table.leave(&handle(1)) && !table.leave(&handle(1)), "one gives it up");
    assert_eq!(table.open(2, promise(1)), Opening::Plain);
    assert!(table.remove(&handle(1)).is_some() && table.is_empty());
    table.begin_write(handle(1));
    table.begin_write(handle(1));
    assert_eq!(table.open(2, promise(1)), Opening::Plain);
    table.end_write(&handle(1));
    assert!(table.came(2, handle(1), Good::new(), |_| true).is_some(), "it goes back");
    table.end_write(&handle(1));
    assert_eq!(table.open(2, promise(1)), Opening::Delegated);
    assert!(table.came(2, handle(1), Good::new(), |_| false).is_some(), "nobody hears");
    table.is_paused = true;
    assert_eq!(table.open(2, promise(1)), Opening::Plain);
    assert!(table.came(2, handle(1), Good::new(), |_| true).is_some());
    assert!(table.is_empty());
}

#[test]
fn what_is_promised_is_settled_once() {
    let (mut table, _) = with(9, 1);
    assert_eq!(table.open(2, promise(1)), Opening::Promised { is_clean: false });
    assert!(table.has_promised());
    assert_eq!(table.promised_of(&handle(1)), [2]);
    assert!(table.promised(2).is_some() && table.promised(1).is_none());
    assert!(!table.settle(1) && table.settle(2) && !table.settle(2));
    assert!(table.promised_of(&handle(1)).is_empty() && !table.has_promised());
}

#[test]
fn what_was_not_used_for_long_makes_room() {
    let (mut table, _) = with(2, 1);
    assert!(table.came(2, handle(2), Good::new(), |_| true).is_none());
    assert!(matches!(table.open(3, promise(1)), Opening::Promised { .. }));
    assert!(table.settle(3));
    assert!(table.came(4, handle(3), Good::new(), |_| true).is_some());
    let mut all = table.all();
    all.sort_unstable();
    assert_eq!(all, [handle(1), handle(3)], "the one that was used stays");
    // What the server does not know to be open stays as well.
    for (number, file) in [(5, 1), (6, 3)] {
        assert!(matches!(table.open(number, promise(file)), Opening::Promised { .. }));
    }
    let back = Good::new();
    let returned = table.came(7, handle(4), back.clone(), |_| true).unwrap();
    assert!(Rc::ptr_eq(&returned.0, &back.0));
}
