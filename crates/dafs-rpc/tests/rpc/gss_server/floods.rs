//! Attack 10 on a server with contexts of RPCSEC_GSS: floods of requests and of contexts. They are
//! bounded, and hurt no established context and no other host or principal.

use super::attacks::{CREDENTIAL_PROBLEM, call, server};
use super::toy::*;
use dafs_rpc::gss::*;
use dafs_wire::rpc::gss::{Credential, InitResults, Service, TOKEN_BYTES_MAX};
use dafs_wire::rpc::{AuthFlavor, AuthStatus};
use std::sync::atomic::Ordering;

#[test]
fn a_flood_of_half_open_contexts_is_bounded_and_leaves_others_alone() {
    let limits = ContextLimits { begins_per_second: u32::MAX, ..ContextLimits::default() };
    let server = Server::new(limits);
    let client = Client::new(&server, 5, 100, "anna");
    let other = init(Credential::Init, &ticket(1, 8, 100, "bert"));
    let Answer::Init(reply) = server.receive_from(&other, Origin::Sim(2)) else { panic!() };
    let InitResults::Continue { handle, .. } = init_results(accepted(&reply).1) else { panic!() };
    let flood = init(Credential::Init, &ticket(9, 7, 100, "eve"));
    for _ in 0..10_000 {
        assert!(matches!(server.receive_from(&flood, Origin::Sim(3)), Answer::Init(_)));
    }
    let counts = server.contexts.counts();
    assert_eq!((counts.half_open, counts.abandoned), (65, 10_000 - 64));
    call(&server, &client, 1, Service::None, b"args");
    let go_on = init(Credential::ContinueInit { handle }, b"");
    let Answer::Init(reply) = server.receive_from(&go_on, Origin::Sim(2)) else { panic!() };
    assert!(matches!(init_results(accepted(&reply).1), InitResults::Complete { .. }));
    // The time of the others is over.
    let Answer::Init(reply) = server.receive_from(&flood, Origin::Sim(3)) else { panic!() };
    let InitResults::Continue { handle, .. } = init_results(accepted(&reply).1) else { panic!() };
    server.pass(30);
    let late = init(Credential::ContinueInit { handle }, b"");
    assert_eq!(server.receive_from(&late, Origin::Sim(3)), CREDENTIAL_PROBLEM);
    server.contexts.tick(30 * SECOND);
    assert_eq!(server.contexts.counts().half_open, 0);
}

#[test]
fn requests_wait_for_a_thread_in_bounded_number() {
    let limits = ContextLimits { begins_per_second: u32::MAX, ..ContextLimits::default() };
    let server = Server::new(limits);
    let long = init(Credential::Init, &[0; TOKEN_BYTES_MAX]);
    let begin_from = |host| server.queue(&long, Origin::Sim(host));
    let mut under_way: Vec<_> = (0..64).map(|_| begin_from(1).unwrap()).collect();
    // A request that a thread has is not dropped, so the next one is refused.
    assert!(begin_from(1).is_none());
    let flood = init(Credential::Init, &ticket(0, 7, 100, "eve"));
    assert_eq!(server.receive(&flood), Answer::Busy);
    for host in 2..100 {
        under_way.extend(std::iter::from_fn(|| begin_from(host)).take(100));
    }
    let counts = server.contexts.counts();
    assert!(counts.queued as usize == under_way.len() && counts.queued <= 1024);
    under_way.truncate(1);
    assert!(matches!(server.receive(&flood), Answer::Init(_)));
    drop(under_way);
    assert_eq!(server.contexts.counts().queued, 0);
}

/// Tickets of many users of a host, while the mechanism is slow.
#[test]
fn a_thousand_small_requests_of_a_host_wait_for_a_thread() {
    let limits = ContextLimits { begins_per_second: u32::MAX, ..ContextLimits::default() };
    let server = Server::new(limits);
    let request = init(Credential::Init, &[0; 2000]);
    let begin = |_| server.queue(&request, Origin::Sim(1)).unwrap();
    let under_way: Vec<_> = (0..1000).map(begin).collect();
    assert_eq!((server.contexts.counts().queued, server.contexts.counts().busy), (1000, 0));
    drop(under_way);
    assert_eq!(server.contexts.counts().queued, 0);
}

#[test]
fn a_host_begins_contexts_at_a_bounded_rate() {
    let limits = ContextLimits { begins_per_second: 10, ..ContextLimits::default() };
    let server = Server::new(limits);
    let client = Client::from_host(&server, 5, 100, "eve", Origin::Sim(3));
    let flood = init(Credential::Init, &ticket(0, 7, 100, "eve"));
    let begun = |host| {
        let answers = (0..1000).map(|_| server.receive_from(&flood, Origin::Sim(host)));
        let begun = answers.filter(|answer| *answer != Answer::Busy).count();
        assert_eq!(server.receive_from(&flood, Origin::Sim(host)), Answer::Busy);
        begun
    };
    assert_eq!(begun(3), 4 * 10 - 1);
    // Neither its own established context nor another host is hurt.
    call(&server, &client, 1, Service::None, b"args");
    assert_eq!(begun(2), 4 * 10);
    server.pass(1);
    assert_eq!(begun(3), 10);
    assert_eq!(server.contexts.counts().busy, 3 * 1001 - 39 - 40 - 10);
    assert_eq!(server.contexts.counts().half_open, 0);
}

#[test]
fn a_host_that_no_export_admits_takes_nothing_of_the_limits() {
    let limits = ContextLimits { half_open_per_host: 1, ..ContextLimits::default() };
    let server = Server::new(limits);
    let first = init(Credential::Init, &ticket(1, 5, 100, "anna"));
    let Answer::Init(reply) = server.receive(&first) else { panic!("refused") };
    let InitResults::Continue { handle, .. } = init_results(accepted(&reply).1) else { panic!() };
    server.may_establish.store(false, Ordering::Relaxed);
    let go_on = init(Credential::ContinueInit { handle }, b"");
    for message in [&first, &go_on] {
        assert_eq!(server.receive(message), Answer::Refused(AuthStatus::TooWeak));
    }
    let counts = server.contexts.counts();
    assert_eq!((counts.half_open, counts.abandoned, counts.busy), (1, 0, 0));
    server.may_establish.store(true, Ordering::Relaxed);
    let Answer::Init(reply) = server.receive(&go_on) else { panic!("refused") };
    assert!(matches!(init_results(accepted(&reply).1), InitResults::Complete { .. }));
}

#[test]
fn tokens_are_large_and_bounded() {
    let server = server();
    let longest = [ticket(0, 5, 100, ""), vec![b'x'; TOKEN_BYTES_MAX - 10]].concat();
    let init_with = |token: &[u8]| {
        let mut body = (token.len() as u32).to_be_bytes().to_vec();
        body.extend_from_slice(token);
        message(0, Credential::Init, &body, |_| (AuthFlavor::NONE, Vec::new()))
    };
    assert!(matches!(server.receive(&init_with(&longest)), Answer::Init(_)));
    let longer = [&longest[..], &[0; 4]].concat();
    assert_eq!(server.receive(&init_with(&longer)), Answer::Garbage);
    assert_eq!(server.contexts.counts().half_open, 0);
}

#[test]
fn a_flood_of_contexts_removes_its_own() {
    let server = Server::new(ContextLimits { contexts: 80, ..ContextLimits::default() });
    let used = |secret| {
        let client = Client::new(&server, secret, 100, "anna");
        call(&server, &client, 1, Service::None, b"args");
        client
    };
    let used: Vec<_> = (0..20).map(used).collect();
    let fresh = Client::from_host(&server, 30, 100, "bert", Origin::Sim(2));
    for secret in 0..1000 {
        Client::from_host(&server, secret, 100, "eve", Origin::Sim(3));
    }
    used.iter().for_each(|client| call(&server, client, 2, Service::None, b"args"));
    call(&server, &fresh, 1, Service::None, b"args");
    assert!(server.contexts.counts().contexts <= 80);
}

#[test]
fn a_flood_of_used_contexts_removes_its_own() {
    let server = Server::new(ContextLimits { contexts: 80, ..ContextLimits::default() });
    let used = |secret, name| {
        let client = Client::new(&server, secret, 100, name);
        call(&server, &client, 1, Service::None, b"args");
        client
    };
    let [anna, bert] = ["anna", "bert"].map(|name| [(); 20].map(|()| used(1, name)));
    let eve: Vec<_> = (0..500).map(|secret| used(secret, "eve")).collect();
    let others = anna.iter().chain(&bert);
    others.for_each(|client| call(&server, client, 2, Service::None, b"args"));
    let of_eve = eve.iter().filter(|client| {
        let answer = server.receive(&client.call(2, Service::None, b"args"));
        matches!(answer, Answer::Served(_))
    });
    assert_eq!(of_eve.count(), 30, "what the others leave of seventy");
}
