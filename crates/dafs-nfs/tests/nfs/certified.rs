//! Callers on a connection whose certificate names a user: what the handler knows of it.

use crate::common::*;
use dafs_nfs::limits::USERS_LANE;
use dafs_rpc::{Handled, LocalEvent};
use dafs_service::limits::IDENTITY_FRESH_NS;
use dafs_service::{Directory, Identities, LocalUser, Rule, Rules, UserOf};
use dafs_wire::nfs4::{Status, limits};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const ANNA: &str = "anna@example.org";

/// A database with one user, which counts its look-ups.
#[derive(Debug)]
struct Toy(Arc<AtomicUsize>);

impl Directory for Toy {
    fn user(&self, name: &str) -> io::Result<Option<LocalUser>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let anna = || LocalUser { uid: 1000, gid: 50, groups: vec![50] };
        Ok((name == "anna").then(anna))
    }

    fn uid(&self, _: &str) -> io::Result<Option<u32>> {
        Ok(None)
    }

    fn gid(&self, _: &str) -> io::Result<Option<u32>> {
        Ok(None)
    }

    fn user_name(&self, _: u32) -> io::Result<Option<String>> {
        Ok(None)
    }

    fn group_name(&self, _: u32) -> io::Result<Option<String>> {
        Ok(None)
    }
}

/// A server with a rule for the user, whose connections are hers, and the count of look-ups.
fn world() -> (World, Arc<Identities>, Arc<AtomicUsize>) {
    let mut world = World::default();
    let looked = Arc::<AtomicUsize>::default();
    let pattern = "*@example.org".parse().unwrap();
    let rule = Rule { pattern, user: UserOf::Local, trusted: false };
    let rules = Rules { rules: vec![rule], default_realm: None };
    let users = Arc::new(Identities::new(rules, Box::new(Toy(looked.clone()))));
    world.shared.accept_users(users.clone());
    world.reactor.user = Some(ANNA.into());
    (world, users, looked)
}

#[test]
fn a_connection_ends_without_a_reply_if_nothing_is_known_of_its_user() {
    let (mut world, _, looked) = world();
    let args = world.encode(&[exchange_id(b"client", 1)]);
    let compound = (limits::PROGRAM, limits::VERSION, limits::PROCEDURE_COMPOUND);
    assert!(matches!(world.call(compound, 1, 1000, &args), Handled::Drop));
    let events = world.reactor.take_events();
    assert!(matches!(events[..], [LocalEvent::Close(_)]), "{events:?}");
    // A reactor asks no database.
    assert_eq!((looked.load(Ordering::Relaxed), world.pool.run()), (0, 0));
}

#[test]
fn a_user_that_was_found_long_ago_is_served_and_looked_up_again() {
    let (mut world, users, looked) = world();
    users.resolve(ANNA, world.now_ns).unwrap();
    let served = |world: &mut World| world.send(1, 1000, &[]).status();
    assert_eq!(served(&mut world), Status::Ok);
    assert!(!world.pool.take_lanes().contains(&USERS_LANE));
    assert_eq!(looked.load(Ordering::Relaxed), 1);
    world.now_ns += IDENTITY_FRESH_NS + 1;
    assert_eq!(served(&mut world), Status::Ok);
    assert!(world.pool.take_lanes().contains(&USERS_LANE));
    world.pool.run();
    assert_eq!(looked.load(Ordering::Relaxed), 2);
}
