//! Credits and streams (DAFS 7, O24, O25).

use crate::common::*;
use dafs_engine::SessionLimits;
use dafs_service::{ImportanceRule, Weight};
use dafs_wire::dafs::{self, Request, RequestHeader, SessionOptions, Status};
use std::time::Duration;

/// Checks that credits equal posted receives and requests in progress, at both ends.
fn check(world: &World, client: usize, in_hand: usize) {
    let credits = usize::from(world.clients[client].credits);
    let posted: usize = world
        .network
        .endpoints(SERVER)
        .iter()
        .map(|endpoint| world.network.posted_receives(*endpoint))
        .sum();
    assert_eq!(credits, posted + in_hand);
    assert_eq!(world.counts().credits, credits);
}

fn commit(world: &mut World, client: usize) -> Request<'static> {
    let file = world.open(client, b"f");
    Request::Commit(dafs::Commit { fh: file.fh, offset: 0, count: 0 })
}

#[test]
fn grants_follow_the_wish_up_and_down() {
    let (mut world, client) = World::with_session(Setup::default());
    let initial = SessionLimits::default().credits_initial;
    assert_eq!(world.clients[client].credits, initial);
    world.clients[client].desired = 100;
    let mut seen = Vec::new();
    for _ in 0..6 {
        world.status(client, &Request::Null);
        world.settle();
        check(&world, client, 0);
        seen.push(world.clients[client].credits);
    }
    assert_eq!(seen.last(), Some(&100));
    assert!(seen.is_sorted());
    world.clients[client].desired = u16::MAX;
    for _ in 0..6 {
        world.status(client, &Request::Null);
    }
    let most = SessionLimits::default().credits_per_session_max;
    assert_eq!(world.clients[client].credits, most);
    // Without a desired number the credits stay. A small one reduces them one by one.
    world.clients[client].desired = 0;
    world.status(client, &Request::Null);
    assert_eq!(world.clients[client].credits, most);
    world.clients[client].desired = 1;
    for expected in (1..most).rev() {
        world.status(client, &Request::Null);
        assert_eq!(world.clients[client].credits, expected);
    }
    world.settle();
    check(&world, client, 0);
    world.status(client, &Request::Null);
    assert_eq!(world.clients[client].credits, 1, "never none");
    world.end();
}

#[test]
fn pressure_withdraws_credits_one_per_reply() {
    let limits =
        SessionLimits { credits_total_max: 64, credits_initial: 4, ..SessionLimits::default() };
    let (mut world, greedy) = World::with_session(Setup { limits, ..Setup::default() });
    world.clients[greedy].desired = 200;
    for _ in 0..10 {
        world.status(greedy, &Request::Null);
        assert!(world.counts().credits <= 64);
    }
    let most = world.clients[greedy].credits;
    assert!(most > 40, "{most}");
    for host in 3..8 {
        world.session(host, &format!("client {host}"));
    }
    let mut last = most;
    while last > 4 {
        world.status(greedy, &Request::Null);
        let now = world.clients[greedy].credits;
        assert!(now == last - 1 || world.clients[greedy].target > 4, "{last} to {now}");
        if now >= last {
            break;
        }
        last = now;
    }
    assert!(world.counts().credits <= 64);
    assert!(last < most, "something was given back");
    world.end();
}

/// A rule for the clients whose names match.
fn rule(client: &str, weight: u32) -> ImportanceRule {
    let (client, weight) = (client.parse().ok(), Weight::new(weight).unwrap());
    ImportanceRule { user: None, network: None, client, weight }
}

/// Has each client use all of its credits at once, many times. All requests are answered.
fn load(world: &mut World, clients: &[usize]) {
    for _ in 0..100 {
        // Wishes count from the next division on.
        world.pass(Duration::from_millis(10));
        let mut posted = Vec::new();
        for &client in clients {
            world.clients[client].desired = 100;
            for _ in 0..world.clients[client].credits {
                posted.push((client, world.clients[client].post(&Request::Null)));
            }
        }
        for (client, stream) in posted {
            assert_eq!(world.wait(client, stream).unwrap().status(), Status::Ok);
        }
    }
    world.settle();
    assert!(world.counts().credits <= CREDITS);
}

/// Credits of the transport in these tests. Sessions share seven eighths of them by their weights.
const CREDITS: usize = 128;

/// Makes a world with few credits, and sessions of clients with these names, each on its own host.
fn crowd(names: &[&str]) -> (World, Vec<usize>) {
    let limits = SessionLimits { credits_total_max: CREDITS, ..SessionLimits::default() };
    let mut world = World::new(Setup { limits, ..Setup::default() });
    let sessions = (2..).zip(names).map(|(host, name)| world.session(host, name)).collect();
    (world, sessions)
}

fn credits(world: &World, clients: &[usize]) -> Vec<u16> {
    clients.iter().map(|&client| world.clients[client].credits).collect()
}

/// Sessions of both kinds want more credits than there are, all the time.
#[test]
fn important_sessions_keep_their_credits_and_others_give_theirs_back() {
    let (mut world, mut all) = crowd(&["batch 1", "batch 2", "batch 3"]);
    world.service.importance.replace_rules(vec![rule("db*", 1000)]);
    load(&mut world, &all);
    let before = credits(&world, &all);
    assert!(before.iter().all(|credits| (36..=38).contains(credits)), "{before:?}");
    assert_eq!(world.counts().important_sessions, 0);
    // One that begins when all credits are taken gets its share.
    let important = world.session(9, "db 1");
    all.push(important);
    load(&mut world, &all);
    assert_eq!(credits(&world, &all), [8, 8, 8, 88]);
    let counts = world.counts();
    assert_eq!((counts.credits_short, counts.credits_owed), (1, 0));
    assert_eq!((counts.important_sessions, counts.important_credits), (1, 88));
    load(&mut world, &all);
    assert_eq!(credits(&world, &all), [8, 8, 8, 88], "it keeps them");
    // Others get what it does not want.
    world.clients[important].desired = 4;
    for _ in 0..100 {
        world.status(important, &Request::Null);
    }
    load(&mut world, &all[..3]);
    assert_eq!(credits(&world, &all), [36, 36, 36, 4]);
    world.end();
}

#[test]
fn changed_rules_move_credits_between_sessions() {
    let (mut world, all) = crowd(&["a", "b"]);
    load(&mut world, &all);
    assert_eq!(credits(&world, &all), [56, 56]);
    for (a, b, expected) in [(300, 100, [84, 28]), (100, 300, [28, 84]), (100, 100, [56, 56])] {
        world.service.importance.replace_rules(vec![rule("a", a), rule("b", b)]);
        load(&mut world, &all);
        assert_eq!(credits(&world, &all), expected);
    }
    world.end();
}

#[test]
fn the_greatest_weight_leaves_every_session_a_credit() {
    let (mut world, all) = crowd(&["low 1", "low 2", "high"]);
    world.service.importance.replace_rules(vec![rule("low*", 1), rule("high", Weight::MAX)]);
    load(&mut world, &all);
    load(&mut world, &all);
    let [low, other, high] = credits(&world, &all)[..] else { panic!("three sessions") };
    assert_eq!((low, other), (6, 6), "the rest of what the important one can use");
    assert_eq!(high, 100);
    let more: Vec<usize> = (20..26).map(|host| world.session(host, "high")).collect();
    let all = [all, more].concat();
    load(&mut world, &all);
    load(&mut world, &all);
    assert_eq!(credits(&world, &all)[..2], [1, 1]);
    assert_eq!(world.status(all[0], &Request::Null), Status::Ok);
    world.end();
}

#[test]
fn requests_in_hand_count_until_they_are_answered() {
    let (mut world, client) = World::with_session(Setup::default());
    let commit = commit(&mut world, client);
    world.hold_jobs = true;
    let credits = world.clients[client].credits;
    let streams: Vec<u16> = (1..credits).map(|_| world.clients[client].post(&commit)).collect();
    world.settle();
    assert_eq!(world.counts().pending, streams.len());
    check(&world, client, streams.len());
    // A grant in between counts requests in progress.
    world.clients[client].desired = 32;
    assert_eq!(world.status(client, &Request::Null), Status::Ok);
    world.settle();
    assert_eq!(world.clients[client].credits, 16);
    check(&world, client, streams.len());
    world.hold_jobs = false;
    for stream in streams {
        assert_eq!(world.wait(client, stream).unwrap().status(), Status::Ok);
    }
    world.settle();
    check(&world, client, 0);
    world.end();
}

/// Runs `act` in a session of its own beside an honest one, and expects the connection to end.
fn drops(what: &str, act: impl FnOnce(&mut World, usize)) {
    let mut world = World::new(Setup::default());
    let honest = world.session(3, "honest");
    let client = world.session(2, "a");
    act(&mut world, client);
    // First with the requests still in progress.
    world.settle();
    world.release();
    assert!(world.clients[client].closed.is_some(), "{what}");
    assert_eq!(world.status(honest, &Request::Null), Status::Ok, "{what}");
    let counts = world.counts();
    assert_eq!((counts.connections, counts.sessions, counts.pending), (1, 1, 0), "{what}");
    assert_eq!((counts.replies, counts.credits), (0, 8), "{what}");
    world.end();
}

fn send(world: &mut World, client: usize, header: &RequestHeader) {
    let message = world.clients[client].encode(header, &Request::Null);
    world.clients[client].send_raw(&message);
}

#[test]
fn messages_out_of_order_drop_the_session() {
    for seq in [0, 1, 3, 4, u16::MAX] {
        drops("sequence", |world, client| {
            // CONNECT_AUTH was number 1 of stream 0.
            let header = RequestHeader { seq_number: seq, ..world.clients[client].header(0) };
            assert_eq!(world.clients[client].header(0).seq_number, 2);
            send(world, client, &header);
        });
    }
    for stream_id in [8, 9, 255, u16::MAX] {
        drops("stream out of range", |world, client| {
            let header = RequestHeader { stream_id, seq_number: 1, ..RequestHeader::default() };
            send(world, client, &header);
        });
    }
    drops("busy stream", |world, client| {
        let commit = commit(world, client);
        world.hold_jobs = true;
        let stream = world.clients[client].post(&commit);
        world.settle();
        let header = world.clients[client].header(stream);
        send(world, client, &header);
    });
}

#[test]
fn sending_without_a_credit_breaks_the_connection() {
    drops("no credit", |world, client| {
        let commit = commit(world, client);
        world.hold_jobs = true;
        for _ in 0..world.clients[client].credits {
            world.clients[client].post(&commit);
        }
        world.settle();
        assert!(world.clients[client].closed.is_none());
        let header = RequestHeader { stream_id: 7, seq_number: 9, ..RequestHeader::default() };
        send(world, client, &header);
    });
    // Before the session exists there is one credit.
    let mut world = World::new(Setup::default());
    let client = world.connect(2);
    let request = connect_auth("a", 1, SessionOptions::default());
    let header = world.clients[client].header(0);
    let message = world.clients[client].encode(&header, &request);
    for _ in 0..3 {
        world.clients[client].send_raw(&message);
    }
    world.settle();
    assert!(world.clients[client].closed.is_some());
    world.assert_idle();
    world.end();
}

/// Streams that expired with their credits continue with their numbers when they come back.
#[test]
fn streams_keep_their_numbers_over_a_time_of_few_credits() {
    let (mut world, client) = World::with_session(Setup::default());
    let all = |world: &mut World, client: usize| {
        let count = world.clients[client].credits;
        let streams: Vec<u16> =
            (0..count).map(|_| world.clients[client].post(&Request::Null)).collect();
        for stream in streams {
            assert_eq!(world.wait(client, stream).unwrap().status(), Status::Ok);
        }
    };
    for wish in [20, 1, 20, 3, 40] {
        world.clients[client].desired = wish;
        for _ in 0..25 {
            world.status(client, &Request::Null);
        }
        assert_eq!(world.clients[client].credits, wish);
        world.clients[client].desired = 0;
        all(&mut world, client);
        world.settle();
        check(&world, client, 0);
    }
    world.end();
}
