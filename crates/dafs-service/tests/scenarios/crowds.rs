//! Crowds: absent clients, and hosts that take all they can get, leave room to others.

use crate::common::*;
use crate::kept_locks::{PERSIST, try_lock};
use dafs_service::limits::{CLIENT_COUNT_MAX, LOCK_RANGES_PER_FILE_MAX};
use dafs_service::{Client, Identity, LockError, LockExtras, LockKind, ServiceError, Shared};
use dafs_store::Wait;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Opens files by clients of a host until the limit is reached. Returns these clients.
fn fill(world: &World, host: u32) -> Vec<Arc<Client>> {
    world.come_from(host);
    let mut clients = Vec::new();
    loop {
        let client = world.nfs(&format!("{host}-{}", clients.len()));
        let opens = (0..3).take_while(|at| world.open(&client, &format!("f{at}"), READ).is_ok());
        let count = opens.count();
        clients.push(client);
        if count < 3 {
            return clients;
        }
    }
}

/// Two absent clients that had all opens do not keep all others from opening for a day.
#[test]
fn clients_that_are_gone_make_room_for_opens() {
    let world = World::with_files_max(12);
    let (one, two) = (fill(&world, 1), fill(&world, 2));
    world.come_from(3);
    let honest = world.nfs("honest");
    world.pass_with(&[&honest], LEASE_NS + SECOND_NS);
    for at in 0..6 {
        world.open_patiently(&honest, &format!("mine{at}"), READ).unwrap();
    }
    let gone = one.iter().chain(&two).filter(|client| client.is_gone());
    // Their durable records were removed first.
    assert_eq!(world.disk.owners().len(), 1 + one.len() + two.len() - gone.count());
    // A caller that may not wait retries, as it is told to.
    world.come_from(4);
    let dafs = world.dafs("dafs");
    dafs.session_started();
    world.pass_with(&[&honest, &dafs], SECOND_NS);
    let open = || world.open(&dafs, "theirs", READ).map(drop);
    assert!(matches!(open(), Ok(()) | Err(ServiceError::WouldWait)));
    world.pass(SECOND_NS);
    open().unwrap();
}

#[test]
fn those_away_longest_lose_first_and_those_that_are_there_nothing() {
    let world = World::with_files_max(6);
    let come = |host, name| {
        world.come_from(host);
        world.nfs(name)
    };
    let [first, second, alive, honest] =
        [(1, "first"), (2, "second"), (3, "alive"), (4, "honest")].map(|(h, n)| come(h, n));
    for (client, files) in [(&first, 2), (&second, 1), (&alive, 1)] {
        for at in 0..files {
            world.open(client, &format!("f{at}"), READ).unwrap();
        }
    }
    world.pass_with(&[&second, &alive, &honest], SECOND_NS);
    world.pass_with(&[&alive, &honest], LEASE_NS + SECOND_NS);
    // Both are absent, and there is room.
    world.open_patiently(&honest, "a", READ).unwrap();
    assert!(!first.is_gone() && !second.is_gone());
    world.open_patiently(&honest, "b", READ).unwrap();
    assert!(first.is_gone() && !second.is_gone());
    let held: Vec<_> =
        (0..6).map(|at| world.open_patiently(&honest, &format!("c{at}"), READ)).collect();
    assert!(held.iter().any(|opened| matches!(opened, Err(ServiceError::Resource))));
    assert!(second.is_gone() && !alive.is_gone());
    assert_eq!(world.service.counts().clients, 2);
}

/// Descriptors are freed without a request for them.
#[test]
fn few_opens_are_kept_by_courtesy() {
    let world = World::with_files_max(1024);
    let open_some = |host, name: &str| {
        world.come_from(host);
        let client = world.nfs(name);
        for at in 0..20 {
            world.open(&client, &format!("f{at}"), READ).unwrap();
        }
        client
    };
    let many: Vec<_> = (0..10).map(|number| open_some(1, &number.to_string())).collect();
    let few = open_some(2, "few");
    world.pass(LEASE_NS + SECOND_NS);
    assert_eq!(many.iter().filter(|client| client.is_gone()).count(), 5);
    assert!(!few.is_gone());
    assert_eq!(world.service.counts().opens, 120);
}

/// A client that has come back since the search keeps its state.
#[test]
fn one_that_is_back_is_not_taken_for_one_that_is_away() {
    let world = World::with_files_max(2);
    world.come_from(1);
    let away = world.nfs("away");
    world.open(&away, "f", READ).unwrap();
    world.pass(LEASE_NS + SECOND_NS);
    away.renew(world.now_ns.get());
    let other = world.nfs("other");
    assert_eq!(error(world.open_patiently(&other, "f", READ)), ServiceError::Resource);
    assert!(!away.is_gone());
}

#[test]
fn one_host_leaves_ranges_of_a_file_to_others() {
    let world = World::new();
    world.come_from(1);
    let greedy = world.nfs("greedy");
    world.come_from(2);
    let honest = world.nfs("honest");
    let files = [&greedy, &honest].map(|client| world.open(client, "f", BOTH).unwrap());
    let lock = |at: u64| world.lock(&greedy, &files[0], "l", (2 * at, 1), LockKind::Read);
    let had = (0..).take_while(|at| lock(*at).is_ok()).count();
    assert_eq!(had, LOCK_RANGES_PER_FILE_MAX / 2);
    let refused = lock(had as u64);
    assert_eq!(refused, Err(LockError::Service(ServiceError::Resource)));
    world.lock(&honest, &files[1], "l", (1, 1), LockKind::Write).unwrap();
    // While it is absent, it makes room.
    world.come_from(1);
    let neighbour = world.nfs("neighbour");
    let opened = world.open(&neighbour, "f", BOTH).unwrap();
    world.pass_with(&[&honest, &neighbour], LEASE_NS + SECOND_NS);
    let lock = || world.lock(&neighbour, &opened, "l", (3, 1), LockKind::Read);
    assert_eq!(lock(), Err(LockError::Service(ServiceError::WouldWait)));
    world.pass_with(&[&honest, &neighbour], SECOND_NS);
    lock().unwrap();
    assert!(greedy.is_gone() && !honest.is_gone());
}

/// A host that makes clients as fast as it can keeps no other host out.
#[test]
fn one_host_does_not_fill_the_table_of_clients() {
    let world = World::new();
    world.come_from(1);
    let now_ns = world.now_ns.get();
    let confirm = |name: &str| {
        let key = world.exchange(name, 1).key();
        world.service.clients.confirm(key, now_ns)
    };
    let made = (0..).take_while(|number: &u32| confirm(&number.to_string()).is_ok()).count();
    assert_eq!(made, CLIENT_COUNT_MAX / 2);
    assert_eq!(error(confirm("more")), ServiceError::Resource);
    // A restarted client of it does not count as another one.
    let key = world.exchange("0", 2).key();
    world.service.clients.confirm(key, now_ns).unwrap();
    for host in 2..6 {
        world.come_from(host);
        confirm("honest").unwrap();
        let nobody = Identity { mechanism: "none", principal: Vec::new() };
        let (name, host) = (b"honest", world.host.get());
        world.service.register_client(name, 1, nobody, host, now_ns).unwrap();
    }
    // They held no state, so they end with their leases.
    world.pass(LEASE_NS + SECOND_NS);
    assert_eq!(world.service.counts().clients, 0);
    world.come_from(1);
    confirm("again").unwrap();
}

/// A persistent lock does not end with the opens that make room: it is broken, and repaired.
#[test]
fn persistent_locks_outlive_what_makes_room() {
    let world = World::with_files_max(4);
    world.come_from(1);
    let keeper = world.dafs("keeper");
    let [opened, _] = ["f", "g"].map(|name| world.open(&keeper, name, BOTH).unwrap());
    try_lock(&world, &keeper, &opened, (0, 10), LockKind::Write, PERSIST).unwrap();
    world.come_from(2);
    let honest = world.nfs("honest");
    world.come_from(3);
    let other = world.dafs("other");
    other.session_started();
    world.pass_with(&[&honest, &other], LEASE_NS + SECOND_NS);
    assert_eq!(world.service.counts().opens, 2);
    for name in ["a", "b"] {
        world.open_patiently(&honest, name, READ).unwrap();
    }
    assert_eq!(world.service.counts().opens, 2);
    assert_eq!(world.service.counts().kept_locks, 1);
    let theirs = world.open(&other, "f", BOTH).unwrap();
    let locked = try_lock(&world, &other, &theirs, (5, 1), LockKind::Read, LockExtras::default());
    assert!(matches!(locked, Err(LockError::Broken(_))));
}

/// The end of many absent clients does not keep the tick writing for minutes.
#[test]
fn records_of_many_that_are_gone_are_removed_together() {
    let world = World::new();
    let clients: Vec<_> = (0..200).map(|number| world.nfs(&number.to_string())).collect();
    assert_eq!(world.disk.owners().len(), 200);
    world.open(&clients[0], "f", READ).unwrap();
    world.pass(LEASE_NS + SECOND_NS);
    assert_eq!(world.disk.owners(), [b"0".to_vec()]);
    assert_eq!(world.disk.removals.load(std::sync::atomic::Ordering::Relaxed), 1);
}

/// Sessions belong to a front end, which is told which clients are gone.
#[test]
fn clients_that_are_gone_make_room_for_sessions() {
    let world = World::new();
    let [one, two] = ["one", "two"].map(|name| world.nfs(name));
    let make_room =
        |wait| world.service.clients.make_room(Shared::Sessions, (0, 2), world.now_ns.get(), wait);
    for client in [&one, &two] {
        world.open(client, "f", READ).unwrap();
    }
    assert_eq!(make_room(Wait::Allowed), Err(ServiceError::Resource));
    world.pass_with(&[&two], SECOND_NS);
    world.pass(LEASE_NS + SECOND_NS);
    assert_eq!(make_room(Wait::Never), Err(ServiceError::WouldWait));
    make_room(Wait::Allowed).unwrap();
    assert_eq!(world.ear.take(), [Told::Gone(one.key())]);
    assert!(one.is_gone() && !two.is_gone());
}

/// Steps of clients of other hosts.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A client of this host, perhaps a new one, opens a file.
    Open {
        host: u32,
        name: u8,
        file: u8,
    },
    /// All clients of a host renew their leases.
    Renew {
        host: u32,
    },
    Pass {
        seconds: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (1..5_u32, 0..6_u8, 0..20_u8)
            .prop_map(|(host, name, file)| Step::Open { host, name, file }),
        1 => (1..5_u32).prop_map(|host| Step::Renew { host }),
        1 => (1..100_u64).prop_map(|seconds| Step::Pass { seconds }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// A client that asks for little is never refused and loses no state, for any steps of the
    /// others.
    #[test]
    fn an_honest_client_is_never_refused(steps in prop::collection::vec(step(), 1..150)) {
        let world = World::with_files_max(24);
        world.come_from(9);
        let honest = world.nfs("honest");
        let kept = world.open(&honest, "kept", READ).unwrap();
        // By host and name, with the time of their last request.
        let mut others: BTreeMap<(u32, u8), (u64, Arc<Client>)> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Open { host, name, file } => {
                    let now_ns = world.now_ns.get();
                    others.retain(|_, (_, client)| !client.is_gone());
                    world.come_from(host);
                    let make = || (now_ns, world.nfs(&format!("{host}-{name}")));
                    let (heard_ns, client) = others.entry((host, name)).or_insert_with(make);
                    client.renew(now_ns);
                    *heard_ns = now_ns;
                    let _ = world.open_patiently(&client.clone(), &format!("f{file}"), READ);
                    let alive = others.values().filter(|(at_ns, _)| now_ns - at_ns <= LEASE_NS);
                    prop_assert!(alive.into_iter().all(|(_, client)| !client.is_gone()));
                }
                Step::Renew { host } => {
                    for (_, (heard_ns, client)) in others.iter_mut().filter(|(key, _)| key.0 == host) {
                        *heard_ns = world.now_ns.get();
                        client.renew(*heard_ns);
                    }
                    others.retain(|_, (_, client)| !client.is_gone());
                }
                Step::Pass { seconds } => world.pass_with(&[&honest], seconds * SECOND_NS),
            }
            let opened = world.open_patiently(&honest, "mine", READ);
            prop_assert!(opened.is_ok());
            world.close(&honest, &opened.unwrap());
        }
        prop_assert!(kept.state.file(MODE_READ).is_ok());
    }
}
