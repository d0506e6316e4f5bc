//! Results of the requests of a lost session: CHECK_RESPONSE, FETCH_RESPONSE, DISCARD_RESPONSES.

use crate::common::*;
use dafs_wire::dafs::{
    self, ByteOrder, CheckResponse, HEADER_BYTES, Outcome, Procedure, Reply, Request, SessionId,
    SessionOptions, Status,
};
use std::time::Duration;

pub(crate) const CACHING: SessionOptions = SessionOptions { use_response_cache: true, ..PLAIN };

/// Makes a session that caches replies, and returns its id.
pub(crate) fn begin(
    world: &mut World,
    host: u32,
    name: &str,
    order: ByteOrder,
) -> (usize, SessionId) {
    begin_with(world, host, name, 1, order, CACHING)
}

fn begin_with(
    world: &mut World,
    host: u32,
    name: &str,
    verifier: u64,
    order: ByteOrder,
    options: SessionOptions,
) -> (usize, SessionId) {
    let client = world.connect_as(host, 1, order);
    let answer = world.call(client, &connect_auth(name, verifier, options));
    let Ok(Reply::ClientConnectAuth(reply)) = answer.reply() else { panic!("{answer:?}") };
    assert_eq!(reply.options.use_response_cache, options.use_response_cache);
    (client, reply.session_id)
}

/// Returns the key of the last request of a client on a stream.
pub(crate) fn key(
    world: &mut World,
    client: usize,
    session_id: SessionId,
    stream_id: u16,
    procedure: Procedure,
) -> CheckResponse {
    let next = world.clients[client].header(stream_id).seq_number;
    CheckResponse { session_id, stream_id, seq_number: next.wrapping_sub(1), procedure }
}

pub(crate) fn lose(world: &mut World, client: usize) {
    let endpoint = world.clients[client].endpoint;
    world.network.lose(endpoint);
    world.run_until("the end", |world| world.clients[client].closed.is_some());
}

fn discard(session_id: SessionId) -> Request<'static> {
    Request::DiscardResponses(dafs::DiscardResponses { session_id })
}

#[test]
fn a_reply_is_found_only_for_an_executed_request() {
    for order in [ByteOrder::Big, ByteOrder::Little] {
        let mut world = World::new(Setup::default());
        let (old, id) = begin(&mut world, 2, "a", order);
        let file = world.open(old, b"f");
        let opened = key(&mut world, old, id, 0, Procedure::Open);
        // Several at once, whose answers the client has and fetches again.
        let write = world.clients[old].post(&write_inline(file, 0, b"data"));
        let missing = remove(world.root(), b"none", false);
        let none = world.clients[old].post(&missing);
        let null = world.clients[old].post(&Request::Null);
        let data = world.wait(old, write).unwrap();
        let failed = world.wait(old, none).unwrap();
        world.wait(old, null).unwrap();
        let written = key(&mut world, old, id, write, Procedure::WriteInline);
        let removed = key(&mut world, old, id, none, Procedure::Remove);
        let simple = key(&mut world, old, id, null, Procedure::Null);
        lose(&mut world, old);

        let (new, _) = begin(&mut world, 2, "a", order);
        for (asked, answer) in [(written, &data), (removed, &failed)] {
            assert_eq!(world.status(new, &Request::CheckResponse(asked)), Status::Ok);
            let fetched = world.call(new, &Request::FetchResponse(asked));
            assert_eq!(fetched.status(), answer.status());
            assert_eq!(fetched.bytes[HEADER_BYTES..], answer.bytes[HEADER_BYTES..]);
        }
        assert_eq!(failed.status(), Status::NoEnt);
        let Outcome::Ok(Reply::WriteInline(reply)) = data.outcome() else { panic!() };
        assert_eq!(reply.count, 4);
        let next = CheckResponse { seq_number: written.seq_number + 1, ..written };
        let other = CheckResponse { procedure: Procedure::Commit, ..written };
        let far = CheckResponse { stream_id: 77, ..written };
        // The open's stream has been used again, and a NULL has no cached reply.
        for unknown in [next, other, far, opened, simple] {
            for request in [Request::CheckResponse(unknown), Request::FetchResponse(unknown)] {
                let answer = world.call(new, &request);
                assert_eq!(answer.status(), Status::NoXidMatch, "{unknown:?}");
                assert_eq!(answer.bytes.len(), HEADER_BYTES);
            }
        }
        assert_eq!(world.status(new, &discard(id)), Status::Ok);
        for request in [Request::CheckResponse(written), Request::FetchResponse(written)] {
            assert_eq!(world.status(new, &request), Status::UnknownSession);
        }
        assert_eq!(world.status(new, &discard(id)), Status::UnknownSession);
        assert_eq!(world.service.counts().ended_sessions, 0);
        assert_eq!(world.status(new, &Request::Disconnect), Status::Ok);
        world.end();
    }
}

/// The old session may still be working when its client is back. Its connection is ended, and the
/// answer waits for its work.
#[test]
fn a_check_ends_the_old_session_and_waits_for_its_work() {
    both_ways(|maps| {
        for second_network in [false, true] {
            let setup = Setup { maps, second_network, ..Setup::default() };
            let mut world = World::new(setup);
            let (old, id) = begin(&mut world, 2, "a", ByteOrder::Little);
            let file = world.open(old, b"f");
            world.stall();
            let size = 3 << 20;
            let memory = world.clients[old].memory_of(&pattern(size, 3));
            let buffers = [memory.direct(0, size as u32)];
            let inline = world.clients[old].post(&write_inline(file, 0, b"data"));
            let request = Request::WriteDirect(write_direct(file, 4, size as u32, &buffers));
            let direct = world.clients[old].post(&request);
            let commit = dafs::Commit { fh: file.fh, offset: 0, count: 0 };
            let commit = world.clients[old].post(&Request::Commit(commit));
            let read = world.clients[old].post(&read_inline(file, 0, 100));
            world.settle();
            assert!(world.jobs() >= 4);
            let inline = key(&mut world, old, id, inline, Procedure::WriteInline);
            let direct = key(&mut world, old, id, direct, Procedure::WriteDirect);
            let commit = key(&mut world, old, id, commit, Procedure::Commit);
            let read = key(&mut world, old, id, read, Procedure::ReadInline);

            let new = if second_network {
                world.session_on(1, 3, "a")
            } else {
                begin(&mut world, 3, "a", ByteOrder::Little).0
            };
            let checks = [inline, commit].map(|asked| {
                let stream = world.clients[new].post(&Request::CheckResponse(asked));
                world.settle();
                assert!(!world.clients[new].has_answer(stream), "its work has not stopped");
                stream
            });
            assert!(world.clients[old].closed.is_some());
            while world.run_job() {
                world.settle();
            }
            for stream in checks {
                assert_eq!(world.wait(new, stream).unwrap().status(), Status::Ok);
            }
            let answer = world.call(new, &Request::FetchResponse(inline));
            assert_eq!(answer.bytes[HEADER_BYTES + 3] + answer.bytes[HEADER_BYTES], 4);
            let status = world.status(new, &Request::CheckResponse(direct));
            // Mapped memory is written in one step. Staged data comes in pieces, and the last ones
            // could not be fetched any more.
            assert_eq!(status, if maps { Status::Ok } else { Status::NoXidMatch });
            assert_eq!(world.status(new, &Request::CheckResponse(read)), Status::NoXidMatch);
            world.hold_jobs = false;
            assert_eq!(world.status(new, &discard(id)), Status::Ok);
            assert_eq!(world.counts().connections, 1);
            world.end();
        }
    });
}

#[test]
fn a_discard_ends_the_old_session_too() {
    let mut world = World::new(Setup::default());
    let (old, id) = begin(&mut world, 2, "a", ByteOrder::Little);
    let (new, _) = begin(&mut world, 3, "a", ByteOrder::Little);
    assert_eq!(world.status(new, &discard(id)), Status::Ok);
    world.settle();
    assert!(world.clients[old].closed.is_some());
    assert_eq!(world.service.counts().ended_sessions, 0);
    world.end();
}

/// Neither the answer nor an effect reveals if another client has a session.
#[test]
fn sessions_of_others_look_as_if_they_were_not_there() {
    let users = vec![("anna", "right"), ("bert", "other")];
    let setup = Setup { users, mask: stranger, ..Setup::default() };
    let mut world = World::new(setup);
    let connect = |name: &'static str, verifier, user, password| {
        connect_by(name, verifier, CACHING, text(user, password))
    };
    let sessions = |world: &mut World| {
        [2, 3].map(|host| {
            let client = world.connect(host);
            let answer = world.call(client, &connect("a", 1, "anna", "right"));
            let Ok(Reply::ClientConnectAuth(reply)) = answer.reply() else { panic!() };
            (client, reply.session_id)
        })
    };
    let [(living, living_id), (lost, lost_id)] = sessions(&mut world);
    world.open(living, b"f");
    world.open(lost, b"f");
    let done = key(&mut world, lost, lost_id, 0, Procedure::Open);
    lose(&mut world, lost);
    let other_name = world.connect(4);
    assert_eq!(world.status(other_name, &connect("b", 1, "anna", "right")), Status::Ok);
    let other_user = world.connect(5);
    assert_eq!(world.status(other_user, &connect("c", 1, "bert", "other")), Status::Ok);
    for client in [other_name, other_user] {
        for session_id in [living_id, lost_id, SessionId([9; 8])] {
            let asked = CheckResponse { session_id, ..done };
            for request in
                [Request::CheckResponse(asked), Request::FetchResponse(asked), discard(session_id)]
            {
                let answer = world.call(client, &request);
                assert_eq!(answer.status(), Status::UnknownSession);
                assert_eq!(answer.bytes.len(), HEADER_BYTES);
            }
        }
    }
    assert_eq!(world.status(living, &Request::Null), Status::Ok, "it goes on");
    assert_eq!(world.status(living, &Request::CheckResponse(done)), Status::Ok, "the owner may");
    // A new instance of the client has no access to the old one's sessions.
    let again = world.connect(6);
    assert_eq!(world.status(again, &connect("a", 2, "anna", "right")), Status::Ok);
    let asked = CheckResponse { session_id: living_id, ..done };
    assert_eq!(world.status(again, &Request::CheckResponse(asked)), Status::UnknownSession);
    assert_eq!(world.status(again, &Request::CheckResponse(done)), Status::UnknownSession);
    assert_eq!(world.status(living, &Request::CheckResponse(done)), Status::StaleClientId);
    assert_eq!(world.service.counts().ended_sessions, 0);
    world.end();
}

#[test]
fn nothing_is_kept_without_need() {
    let mut world = World::new(Setup::default());
    let plain = SessionOptions { use_response_cache: false, ..CACHING };
    let (silent, silent_id) = begin_with(&mut world, 2, "a", 1, ByteOrder::Little, plain);
    world.open(silent, b"f");
    let asked = key(&mut world, silent, silent_id, 0, Procedure::Open);
    lose(&mut world, silent);
    let (polite, polite_id) = begin(&mut world, 2, "a", ByteOrder::Little);
    assert_eq!(world.status(polite, &Request::CheckResponse(asked)), Status::UnknownSession);
    assert_eq!(world.status(polite, &Request::Disconnect), Status::Ok);
    let (own, own_id) = begin(&mut world, 2, "a", ByteOrder::Little);
    let asked = CheckResponse { session_id: polite_id, ..asked };
    assert_eq!(world.status(own, &Request::CheckResponse(asked)), Status::UnknownSession);
    assert_eq!(world.service.counts().ended_sessions, 0);
    // Its own session cannot have ended.
    let asked = CheckResponse { session_id: own_id, ..asked };
    for request in [Request::CheckResponse(asked), Request::FetchResponse(asked), discard(own_id)] {
        assert_eq!(world.status(own, &request), Status::Inval);
    }
    world.end();
}

#[test]
fn replies_outlive_the_lease() {
    let mut world = World::new(Setup::default());
    let (old, id) = begin(&mut world, 2, "a", ByteOrder::Big);
    world.open(old, b"f");
    let asked = key(&mut world, old, id, 0, Procedure::Open);
    lose(&mut world, old);
    world.pass(10 * LEASE);
    assert_eq!(world.service.counts().opens, 0);
    let (new, _) = begin(&mut world, 2, "a", ByteOrder::Big);
    let answer = world.call(new, &Request::FetchResponse(asked));
    assert_eq!(answer.status(), Status::Ok);
    world.pass(Duration::from_secs(3600));
    world.status(new, &Request::Null);
    assert_eq!(world.service.counts().ended_sessions, 0);
    world.end();
}

/// Two sessions of a client that discard each other both end, without a deadlock.
#[test]
fn sessions_that_end_each_other_end() {
    let mut world = World::new(Setup::default());
    let (one, one_id) = begin(&mut world, 2, "a", ByteOrder::Little);
    let (two, two_id) = begin(&mut world, 3, "a", ByteOrder::Little);
    world.clients[one].post(&discard(two_id));
    world.clients[two].post(&discard(one_id));
    world.settle();
    assert!(world.clients[one].closed.is_some() || world.clients[two].closed.is_some());
    world.clients.clear();
    world.settle();
    world.assert_idle();
}
