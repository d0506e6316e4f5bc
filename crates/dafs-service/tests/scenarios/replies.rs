//! Replies of sessions that have ended: the clients that find them, and their retention.

use crate::common::*;
use dafs_service::limits::{
    REPLY_BYTES_PER_CLIENT_MAX, REPLY_RETENTION_NS, REPLY_SESSIONS_MAX,
    REPLY_SESSIONS_PER_CLIENT_MAX,
};
use dafs_service::{Client, Identity, Kept, NoReply, RequestKey, Sender, SessionReplies};
use std::sync::Arc;

fn key(session: u8, stream: u16, sequence: u16) -> RequestKey {
    let sender = Sender::OF_SESSION;
    RequestKey { session: [session; 8], stream, sequence, procedure: 117, sender }
}

fn client(world: &World, name: &str, verifier: u64, principal: &[u8]) -> Arc<Client> {
    let identity = Identity { mechanism: "text", principal: principal.to_vec() };
    let (host, now_ns) = (world.host.get(), world.now_ns.get());
    let name = name.as_bytes();
    world.service.register_client(name, verifier, identity, host, now_ns).unwrap().client
}

fn end(world: &World, client: &Client, session: u8, bytes: &[u8]) {
    end_named(world, client, [session; 8], bytes);
}

fn end_named(world: &World, client: &Client, session: [u8; 8], bytes: &[u8]) {
    let mut replies = SessionReplies::new(true);
    replies.reply(3, 7, 117, Some(bytes));
    world.service.replies.keep(session, client, replies.freeze(), world.now_ns.get());
}

#[test]
fn only_the_client_that_earned_a_reply_finds_it() {
    let world = World::new();
    let anna = client(&world, "a", 1, b"anna");
    end(&world, &anna, 1, b"done");
    let Ok(Kept::Reply(reply)) = world.service.replies.find(&anna, &key(1, 3, 7)) else { panic!() };
    assert_eq!((&*reply.bytes, reply.little_endian), (&b"done"[..], true));
    for other in [key(1, 2, 7), key(1, 3, 8), RequestKey { procedure: 143, ..key(1, 3, 7) }] {
        assert_eq!(world.service.replies.find(&anna, &other), Err(NoReply::NotExecuted));
    }
    assert_eq!(world.service.replies.find(&anna, &key(2, 3, 7)), Err(NoReply::UnknownSession));
    let bert = client(&world, "b", 1, b"anna");
    assert_eq!(world.service.replies.find(&bert, &key(1, 3, 7)), Err(NoReply::UnknownSession));
    assert!(!world.service.replies.discard(&bert, [1; 8]));
    assert!(world.service.replies.discard(&anna, [1; 8]));
    assert!(!world.service.replies.discard(&anna, [1; 8]));
    assert_eq!(world.service.counts().ended_sessions, 0);
}

#[test]
fn a_new_instance_ends_the_replies_of_the_old_one_and_of_nobody_else() {
    let world = World::new();
    let old = client(&world, "a", 1, b"anna");
    end(&world, &old, 1, b"done");
    let same = client(&world, "a", 1, b"anna");
    assert!(world.service.replies.find(&same, &key(1, 3, 7)).is_ok(), "the same instance again");
    world.pass(2 * LEASE_NS);
    assert!(old.is_gone(), "the lease is over, the replies are not");
    let thief = client(&world, "a", 5, b"bert");
    assert_eq!(world.service.replies.find(&thief, &key(1, 3, 7)), Err(NoReply::UnknownSession));
    world.pass(2 * LEASE_NS);
    let again = client(&world, "a", 1, b"anna");
    assert!(world.service.replies.find(&again, &key(1, 3, 7)).is_ok());
    let new = client(&world, "a", 2, b"anna");
    assert_eq!(world.service.replies.find(&new, &key(1, 3, 7)), Err(NoReply::UnknownSession));
    assert_eq!(world.service.counts().ended_sessions, 0);
    // A session of the old instance that ends only now keeps no replies.
    end(&world, &again, 2, b"late");
    assert_eq!(world.service.counts().ended_sessions, 0);
}

#[test]
fn replies_are_kept_for_a_time() {
    let world = World::new();
    let anna = client(&world, "a", 1, b"anna");
    end(&world, &anna, 1, b"done");
    world.pass(REPLY_RETENTION_NS / 2);
    end(&world, &anna, 2, b"done");
    world.pass(REPLY_RETENTION_NS / 2);
    assert!(world.service.replies.find(&anna, &key(1, 3, 7)).is_err());
    assert!(world.service.replies.find(&anna, &key(2, 3, 7)).is_ok());
    world.pass(REPLY_RETENTION_NS / 2);
    assert_eq!(world.service.counts().ended_sessions, 0);
}

#[test]
fn one_client_fills_its_own_share_only() {
    let world = World::new();
    let (anna, bert) = (client(&world, "a", 1, b"anna"), client(&world, "b", 1, b"bert"));
    end(&world, &bert, 255, b"his");
    for number in 0..2 * REPLY_SESSIONS_PER_CLIENT_MAX as u64 {
        end_named(&world, &anna, number.to_be_bytes(), b"done");
    }
    assert_eq!(world.service.counts().ended_sessions, REPLY_SESSIONS_PER_CLIENT_MAX + 1);
    let huge = vec![1; REPLY_BYTES_PER_CLIENT_MAX / 2];
    for number in 0..3u64 {
        end_named(&world, &anna, (1 << 32 | number).to_be_bytes(), &huge);
    }
    assert_eq!(world.service.counts().ended_sessions, 2, "the latest of hers, and his");
    assert!(world.service.replies.find(&bert, &key(255, 3, 7)).is_ok());
}

/// A host whose clients end one session after the other evicts its own replies.
#[test]
fn one_host_takes_no_replies_from_others() {
    let world = World::new();
    let anna = client(&world, "a", 1, b"anna");
    end(&world, &anna, 1, b"done");
    world.come_from(7);
    let per_client = REPLY_SESSIONS_PER_CLIENT_MAX;
    for number in 0..REPLY_SESSIONS_MAX + 1 {
        let other = client(&world, &(number / per_client).to_string(), 1, b"anna");
        let name = (1000 + number as u64).to_be_bytes();
        end_named(&world, &other, name, b"x");
    }
    assert!(world.service.replies.find(&anna, &key(1, 3, 7)).is_ok());
    assert_eq!(world.service.counts().ended_sessions, REPLY_SESSIONS_MAX / 2);
}
