//! The table without a server: the validity of its contents.

use super::table::{DeferredOpen, Opening, Right, Table};
use crate::nodes::tests::object;
use dafs_client::{Attributes, FileHandle, User};
use std::cell::Cell;
use std::rc::Rc;

/// A delegation that a test can revoke.
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
    Attributes { links, size: 10, handle: handle(number), ..object(7, number) }
}

fn deferred_open(number: u8) -> DeferredOpen {
    DeferredOpen { handle: handle(number), node: 7, flags: 0, user: None }
}

fn names_change(table: &mut Table<Good>) {
    table.begin_names();
    table.end_names();
}

fn with(files_max: usize, number: u8) -> (Table<Good>, Good) {
    let (mut table, right) = (Table::new(files_max), Good::new());
    assert_eq!(table.open(1, deferred_open(number)), Opening::Delegated);
    assert!(table.came(1, handle(number), right.clone(), |_| true).is_none());
    (table, right)
}

#[test]
fn the_kernel_keeps_only_what_it_has_read_since_the_delegation_came() {
    let (mut table, _) = with(9, 1);
    // The first opener may not have dropped the old pages yet.
    assert_eq!(table.open(2, deferred_open(1)), Opening::Deferred { is_clean: false });
    table.used(1);
    assert_eq!(table.open(3, deferred_open(1)), Opening::Deferred { is_clean: true });
    assert_eq!(table.cleaning(), 1);
    table.closed(2);
    assert_eq!(table.cleaning(), 0);
    // An open under an earlier delegation does not count for a later one.
    let (mut table, _) = with(9, 1);
    drop(table.remove(&handle(1)));
    assert!(table.came(5, handle(1), Good::new(), |_| true).is_none());
    table.used(1);
    assert_eq!(table.open(6, deferred_open(1)), Opening::Deferred { is_clean: false });
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
    names_change(&mut table);
    table.learn(under_way, Some((&DIR, b"name")), &attributes(1, 1));
    assert!(table.named(&DIR, b"name").is_none());
    // A file of two names: operations on the other one would not be seen.
    let now = table.asking();
    table.learn(now, Some((&DIR, b"name")), &attributes(1, 2));
    assert!(table.named(&DIR, b"name").is_none());
    // Without a name its attributes are valid until any name is changed here.
    assert!(table.attributes(&handle(1)).is_some());
    names_change(&mut table);
    assert!(table.attributes(&handle(1)).is_none());
    let now = table.asking();
    table.learn(now, None, &attributes(1, 1));
    assert!(table.attributes(&handle(1)).is_some());
    // A new name replaces the old one.
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
    assert_eq!(table.open(2, deferred_open(1)), Opening::Plain);
    right.0.set(true);
    assert!(table.leave(&handle(1)) && !table.leave(&handle(1)), "one gives it up");
    assert_eq!(table.open(2, deferred_open(1)), Opening::Plain);
    assert!(table.remove(&handle(1)).is_some() && table.is_empty());
    table.begin_write(handle(1));
    table.begin_write(handle(1));
    assert_eq!(table.open(2, deferred_open(1)), Opening::Plain);
    table.end_write(&handle(1));
    assert!(table.came(2, handle(1), Good::new(), |_| true).is_some(), "it goes back");
    table.end_write(&handle(1));
    assert_eq!(table.open(2, deferred_open(1)), Opening::Delegated);
    assert!(table.came(2, handle(1), Good::new(), |_| false).is_some(), "nobody hears");
    table.is_paused = true;
    assert_eq!(table.open(2, deferred_open(1)), Opening::Plain);
    assert!(table.came(2, handle(1), Good::new(), |_| true).is_some());
    assert!(table.is_empty());
}

#[test]
fn a_deferred_open_is_settled_once() {
    let (mut table, _) = with(9, 1);
    assert_eq!(table.open(2, deferred_open(1)), Opening::Deferred { is_clean: false });
    assert!(table.has_promised());
    assert_eq!(table.deferred_of(&handle(1)), [2]);
    assert!(table.deferred(2).is_some() && table.deferred(1).is_none());
    assert!(!table.settle(1) && table.settle(2) && !table.settle(2));
    assert!(table.deferred_of(&handle(1)).is_empty() && !table.has_promised());
}

#[test]
fn a_deferred_open_outlives_the_delegation() {
    let (mut table, _) = with(9, 1);
    assert!(matches!(table.open(2, deferred_open(1)), Opening::Deferred { .. }));
    assert!(matches!(table.open(3, deferred_open(1)), Opening::Deferred { .. }));
    assert!(table.leave(&handle(1)) && table.remove(&handle(1)).is_some());
    assert_eq!(table.deferred_of(&handle(1)), [2, 3], "the server could not be asked");
    assert_eq!(table.all_promised().len(), 2);
    assert!(table.settle(2));
    assert_eq!((table.deferred_of(&handle(1)), table.all_promised()), (vec![3], vec![3]));
    assert!(table.settle(3) && !table.has_promised());
    assert!(table.deferred_of(&handle(1)).is_empty());
}

#[test]
fn no_name_is_learned_while_names_are_changed() {
    let (mut table, _) = with(9, 1);
    table.begin_names();
    table.begin_names();
    table.end_names();
    // One change is over, and another one is not.
    let during = table.asking();
    table.learn(during, Some((&DIR, b"name")), &attributes(1, 1));
    assert!(table.named(&DIR, b"name").is_none());
    // It may be the one that is replaced, and then the server must know that it is open.
    assert_eq!(table.open(2, deferred_open(1)), Opening::Plain);
    table.end_names();
    table.learn(during, Some((&DIR, b"name")), &attributes(1, 1));
    assert!(table.named(&DIR, b"name").is_none() && table.attributes(&handle(1)).is_none());
    let after = table.asking();
    table.learn(after, Some((&DIR, b"name")), &attributes(1, 1));
    assert_eq!(table.named(&DIR, b"name"), Some(handle(1)));
    // The change of a known name would name this file.
    table.begin_names();
    assert!(matches!(table.open(2, deferred_open(1)), Opening::Deferred { .. }));
}

#[test]
fn a_file_that_is_looked_up_again_stays_delegated() {
    let (mut table, _) = with(9, 1);
    assert!(table.forget(&handle(1), || true).is_none());
    assert!(matches!(table.open(2, deferred_open(1)), Opening::Deferred { .. }));
    assert!(table.forget(&handle(1), || false).is_none(), "it is open");
    assert!(table.settle(2) && table.leave(&handle(1)));
    assert!(table.forget(&handle(1), || false).is_none(), "somebody else gives it up");
    assert!(table.remove(&handle(1)).is_some());
    assert!(table.forget(&handle(1), || false).is_none());
    assert!(table.came(3, handle(1), Good::new(), |_| true).is_none());
    assert!(table.forget(&handle(1), || false).is_some() && table.is_empty());
}

#[test]
fn while_it_is_changed_who_may_open_a_file_the_server_is_asked() {
    let (mut table, _) = with(9, 1);
    table.begin_write(handle(1));
    assert_eq!(table.open(2, deferred_open(1)), Opening::Plain);
    table.end_write(&handle(1));
    assert!(
        matches!(table.open(2, deferred_open(1)), Opening::Deferred { .. }),
        "it is still kept"
    );
}

#[test]
fn a_delegation_that_a_former_run_of_the_server_has_granted_goes_back() {
    let mut table = Table::new(9);
    let right = Good::new();
    right.0.set(false);
    assert!(table.came(1, handle(1), right, |_| true).is_some());
    assert!(table.is_empty());
    // It may end while the keeper is being registered.
    let ended = |right: &mut Good| {
        right.0.set(false);
        true
    };
    assert!(table.came(1, handle(1), Good::new(), ended).is_some());
    assert_eq!(table.open(2, deferred_open(1)), Opening::Delegated);
}

#[test]
fn the_least_recently_used_file_makes_room() {
    let mut table = Table::new(32);
    for number in 0..30 {
        assert!(table.came(u64::from(number), handle(number), Good::new(), |_| true).is_none());
        assert!(!table.is_crowded());
    }
    // The first is used again, and the second has a deferred open.
    assert!(
        matches!(table.open(40, deferred_open(0)), Opening::Deferred { .. }) && table.settle(40)
    );
    assert!(matches!(table.open(41, deferred_open(1)), Opening::Deferred { .. }));
    assert!(table.came(30, handle(30), Good::new(), |_| true).is_none());
    assert!(table.is_crowded(), "before it is full");
    assert_eq!(table.crowd(), [handle(2), handle(3), handle(4)]);
    assert!(table.leave(&handle(3)));
    assert_eq!(table.crowd(), [handle(2), handle(4), handle(5)], "that one goes already");
    // No delegation is returned here: the kernel has not dropped the content.
    assert!(table.came(31, handle(31), Good::new(), |_| true).is_none());
    let back = Good::new();
    let returned = table.came(32, handle(32), back.clone(), |_| true).unwrap();
    assert!(Rc::ptr_eq(&returned.0, &back.0));
    table.crowd().iter().for_each(|handle| drop(table.remove(handle)));
    assert!(!table.is_crowded() && table.all().len() == 28);
}

#[test]
fn a_server_that_has_no_more_delegations_gets_some_back() {
    const SERVER_MAX: usize = 300;
    let number = |number: usize| {
        let mut file = [7; 48];
        file[..8].copy_from_slice(&number.to_ne_bytes());
        FileHandle { fs: [1; 16], file }
    };
    let mut table = Table::<Good>::new(1000);
    // Each file is opened once, and the last ones are those that count.
    for file in 0..3000 {
        let deferred = DeferredOpen { handle: number(file), node: 7, flags: 0, user: None };
        assert_eq!(table.open(file as u64, deferred), Opening::Delegated);
        let is_crowded = if table.all().len() < SERVER_MAX {
            assert!(table.came(file as u64, number(file), Good::new(), |_| true).is_none());
            table.is_crowded()
        } else {
            table.refused()
        };
        if is_crowded {
            table.crowd().iter().for_each(|handle| drop(table.remove(handle)));
        }
        assert!(table.all().len() <= SERVER_MAX);
    }
    let all = table.all();
    assert!(all.len() > SERVER_MAX / 2);
    assert!((2700..2900).any(|file| all.contains(&number(file))), "the first ones stay for ever");
    assert!((0..1500).all(|file| !all.contains(&number(file))));
}

#[test]
fn a_file_being_given_up_is_listed_until_it_is_gone() {
    let (mut table, _) = with(9, 1);
    assert!(table.leave(&handle(1)));
    // Its pages may still be there when the lease ends.
    assert_eq!(table.all(), [handle(1)]);
    assert!(!table.leave(&handle(1)), "somebody else gives it back");
    assert!(table.remove(&handle(1)).is_some());
    assert!(table.all().is_empty());
}

#[test]
fn a_user_opens_a_file_without_the_server_once_the_server_has_let_it() {
    let (anna, bert) = (User::new(1, 1, &[]), User::new(2, 2, &[]));
    let by = |user: &User| DeferredOpen { user: Some(user.clone()), ..deferred_open(1) };
    let is_deferred = |opening| matches!(opening, Opening::Deferred { .. });
    let (mut table, _) = with(9, 1);
    assert!(is_deferred(table.open(10, by(&anna))), "the mount has one user");
    table.judges_users = true;
    assert_eq!(table.open(2, by(&anna)), Opening::Plain);
    let asked = table.asking();
    table.admit(asked, 20, &handle(1), &Some(anna.clone()));
    assert!(is_deferred(table.open(3, by(&anna))));
    assert_eq!(table.deferred(3).and_then(|deferred| deferred.user), Some(anna.clone()));
    assert_eq!(table.open(4, by(&bert)), Opening::Plain);
    assert_eq!(table.open(5, by(&User::new(1, 1, &[7]))), Opening::Plain, "other groups");
    // Its rights may have changed since.
    let asked = table.asking();
    table.changed(&handle(1));
    assert_eq!(table.open(6, by(&anna)), Opening::Plain);
    table.admit(asked, 20, &handle(1), &Some(anna.clone()));
    assert_eq!(table.open(7, by(&anna)), Opening::Plain, "the server was asked before the change");
    assert_eq!(table.open(8, deferred_open(1)), Opening::Plain, "root may be squashed");
    let asked = table.asking();
    for number in 0..2 * crate::limits::ADMITTED_USERS_MAX as u32 {
        table.admit(asked, 20, &handle(1), &Some(User::new(number, 0, &[])));
    }
    assert_eq!(table.open(9, by(&anna)), Opening::Plain);
}

#[test]
fn a_user_is_let_in_only_by_an_open_under_the_delegation() {
    let anna = Some(User::new(1, 1, &[]));
    let by_anna = || DeferredOpen { user: anna.clone(), ..deferred_open(1) };
    let is_admitted = |table: &mut Table<Good>| table.open(30, by_anna()) != Opening::Plain;
    let new = || {
        let mut table = Table::<Good>::new(9);
        table.judges_users = true;
        table
    };
    let comes = |table: &mut Table<Good>, number| {
        assert!(table.came(number, handle(1), Good::new(), |_| true).is_none());
    };
    // The delegation comes with her open.
    let mut table = new();
    let asked = table.asking();
    assert_eq!(table.open(1, by_anna()), Opening::Delegated);
    comes(&mut table, 1);
    table.admit(asked, 1, &handle(1), &anna);
    assert!(is_admitted(&mut table));
    // It comes with the open of another user: another host may have changed the file before.
    let mut table = new();
    let asked = table.asking();
    assert_eq!(table.open(1, by_anna()), Opening::Delegated);
    comes(&mut table, 2);
    table.admit(asked, 1, &handle(1), &anna);
    assert!(!is_admitted(&mut table));
    // The file is changed here between the answer of the server and the entry in the table.
    let mut table = new();
    let asked = table.asking();
    assert_eq!(table.open(1, by_anna()), Opening::Delegated);
    table.changed(&handle(1));
    comes(&mut table, 1);
    table.admit(asked, 1, &handle(1), &anna);
    assert!(!is_admitted(&mut table));
}
