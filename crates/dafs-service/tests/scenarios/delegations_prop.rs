//! Random opens, delegations, recalls and absences of several clients. After every step their state
//! must be compatible, and at the end no state may be left.

use crate::common::*;
use dafs_service::{
    Client, DelegationKind, Handle, Holding, OpenRequest, Share, StateRef, Want, WantKind,
};
use proptest::prelude::*;
use std::sync::Arc;

const CLIENTS: usize = 4;

#[derive(Debug, Clone, Copy)]
enum Step {
    Open { client: usize, file: usize, share: Share, kind: WantKind, xor: bool },
    Close { client: usize, which: usize },
    Return { client: usize, which: usize },
    Recalled,
    Away { client: usize },
    Pass { seconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        Just(WantKind::NoPreference),
        Just(WantKind::Read),
        Just(WantKind::Write),
        Just(WantKind::None)
    ];
    let share = (1..4_u8, 0..4_u8).prop_map(|(access, deny)| Share {
        read: access & 1 != 0,
        write: access & 2 != 0,
        deny_read: deny == 1,
        deny_write: deny == 2,
    });
    prop_oneof![
        6 => (0..CLIENTS, 0..2_usize, share, kind, any::<bool>()).prop_map(
            |(client, file, share, kind, xor)| Step::Open { client, file, share, kind, xor }
        ),
        3 => (0..CLIENTS, 0..9_usize).prop_map(|(client, which)| Step::Close { client, which }),
        1 => (0..CLIENTS, 0..9_usize).prop_map(|(client, which)| Step::Return { client, which }),
        2 => Just(Step::Recalled),
        1 => (0..CLIENTS).prop_map(|client| Step::Away { client }),
        2 => (1..60_u64).prop_map(|seconds| Step::Pass { seconds }),
    ]
}

/// One client as the test knows it.
struct Person {
    client: Arc<Client>,
    opens: Vec<(Handle, StateRef)>,
    delegations: Vec<(Handle, StateRef)>,
    away: bool,
}

fn person(world: &World, at: usize, verifier: u8) -> Person {
    // The last one speaks DAFS.
    let client = if at + 1 == CLIENTS {
        world.dafs("dafs")
    } else {
        let client = world.returning(&at.to_string(), verifier);
        world.service.clients.reclaim_complete(&client).unwrap();
        client
    };
    Person { client, opens: Vec::new(), delegations: Vec::new(), away: false }
}

/// No client's state conflicts with a delegation or a denial of another.
fn check(world: &World, people: &[Person]) {
    let all: Vec<(usize, Holding)> = people
        .iter()
        .enumerate()
        .filter_map(|(at, person)| {
            let held = world.service.clients.holdings(person.client.key(), usize::MAX).ok()?;
            Some(held.into_iter().map(move |holding| (at, holding)))
        })
        .flatten()
        .collect();
    for (at, one) in &all {
        let Holding::Delegation { handle, kind, .. } = one else { continue };
        for (_, other) in all.iter().filter(|(other, _)| other != at) {
            match other {
                Holding::Delegation { handle: same, kind: theirs, .. } if same == handle => {
                    let both_read =
                        (*kind, *theirs) == (DelegationKind::Read, DelegationKind::Read);
                    assert!(both_read, "{one:?} {other:?}");
                }
                Holding::Open { handle: same, share, .. } if same == handle => {
                    let fits = *kind == DelegationKind::Read && !share.write && !share.deny_read;
                    assert!(fits, "{one:?} {other:?}");
                }
                _ => {}
            }
        }
    }
}

fn act(world: &World, people: &mut [Person], step: Step) {
    match step {
        Step::Open { client, file, share, kind, xor } => {
            let person = &mut people[client];
            let want = Want { kind, open_xor: xor, timestamps: false };
            let name = ["f", "g"][file];
            let request = OpenRequest { want, ..world.plain(name, "owner", share) };
            // A caller that may wait ends leases that are over.
            let mut caller = world.caller(&person.client);
            let first = world.service.opens.open(caller, &request);
            let opened = first.or_else(|error| {
                let recalled = world.service.counts().recalled_delegations > 0;
                if error == dafs_service::ServiceError::WouldWait && !recalled {
                    caller.wait = dafs_store::Wait::Allowed;
                    return world.service.opens.open(caller, &request);
                }
                Err(error)
            });
            let Ok(opened) = opened else { return };
            let handle = *opened.state.handle();
            if let Ok(delegation) = opened.delegation {
                person.delegations.push((handle, delegation.state));
            }
            let open = (handle, opened.state.id().into());
            if !opened.delegation_only && !person.opens.contains(&open) {
                person.opens.push(open);
            }
        }
        Step::Close { client, which } => {
            let person = &mut people[client];
            if person.opens.is_empty() {
                return;
            }
            let (handle, state) = person.opens.remove(which % person.opens.len());
            world.service.opens.close(world.caller(&person.client), &handle, state).unwrap();
        }
        Step::Return { client, which } => {
            let person = &mut people[client];
            if person.delegations.is_empty() {
                return;
            }
            let at = which % person.delegations.len();
            let (handle, state) = person.delegations.remove(at);
            give_back(world, &person.client, &handle, state);
        }
        Step::Recalled => {
            for told in world.ear.take() {
                let Told::Recall(key, handle, state, _) = told else { continue };
                let holder = people.iter_mut().find(|person| person.client.key() == key);
                let Some(holder) = holder.filter(|holder| !holder.away) else { continue };
                holder.delegations.retain(|held| *held != (handle, state));
                give_back(world, &holder.client, &handle, state);
            }
        }
        Step::Away { client } => people[client].away = !people[client].away,
        Step::Pass { seconds } => {
            world.now_ns.set(world.now_ns.get() + seconds * SECOND_NS);
            for person in people.iter().filter(|person| !person.away) {
                person.client.renew(world.now_ns.get());
            }
            world.service.tick(world.now_ns.get());
        }
    }
}

/// A client whose lease was ended, perhaps by an open that failed, registers again.
fn replace_lost(world: &World, people: &mut [Person], verifier: &mut u8) {
    for (at, person) in people.iter_mut().enumerate() {
        let lost = person.client.kind() == dafs_service::ClientKind::Dafs
            && person.away
            && world.service.clients.holdings(person.client.key(), 1).is_ok_and(|it| it.is_empty());
        if person.client.is_gone() || lost {
            *verifier += 1;
            *person = self::person(world, at, *verifier);
        }
    }
}

/// Returns a delegation. A revoked one is freed instead.
fn give_back(world: &World, client: &Arc<Client>, handle: &Handle, state: StateRef) {
    let caller = world.caller(client);
    match world.service.delegations.take_back(caller, Some(handle), state) {
        Ok(()) => {}
        Err(dafs_service::ServiceError::DelegRevoked) => {
            world.service.opens.free(caller, state).unwrap();
        }
        // It was returned already, after its recall.
        Err(error) => assert_eq!(error, dafs_service::ServiceError::StaleStateId),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn delegations_and_opens_are_compatible(steps in prop::collection::vec(step(), 1..60)) {
        live(steps);
    }
}

fn live(steps: impl IntoIterator<Item = Step>) {
    let world = World::new();
    let mut verifier = 1;
    let mut people: Vec<_> = (0..CLIENTS).map(|at| person(&world, at, verifier)).collect();
    for step in steps {
        act(&world, &mut people, step);
        replace_lost(&world, &mut people, &mut verifier);
        check(&world, &people);
    }
    for person in &people {
        world.service.clients.revoke(person.client.key()).unwrap();
    }
    assert_eq!(world.service.counts(), Default::default());
    assert_eq!(world.disk.owners(), [] as [Vec<u8>; 0]);
}

#[test]
fn a_client_that_opens_after_its_lease_is_ended_like_others() {
    let open = |client, kind, read, write, denies: (bool, bool), xor| {
        let share = Share { read, write, deny_read: denies.0, deny_write: denies.1 };
        Step::Open { client, file: 0, share, kind, xor }
    };
    let any = WantKind::NoPreference;
    live([
        Step::Away { client: 2 },
        Step::Pass { seconds: 53 },
        open(2, WantKind::None, true, false, (false, true), false),
        Step::Pass { seconds: 15 },
        open(0, any, true, false, (false, false), true),
        Step::Pass { seconds: 7 },
        open(1, any, true, false, (false, false), true),
        open(2, any, true, false, (false, false), false),
        Step::Pass { seconds: 16 },
        open(0, any, true, false, (true, false), false),
        open(0, any, false, true, (false, false), false),
    ]);
}
