//! Calls of all services, inline and in chunks; contexts that are established over RDMA.

use super::scene::*;
use super::toy::{self, Client as Initiator, ToyKeys, accepted, init, init_results, ticket};
use crate::peer::reply_chunk;
use crate::rdma::common::*;
use dafs_rpc::gss::MessageKeys;
use dafs_wire::rpc::gss::{Credential, InitResults, Service};
use dafs_wire::rpcrdma::{Body, Chunks};

const _: () = assert!(toy::PROGRAM == PROGRAM);

fn room(scene: &Scene) -> Chunks {
    reply_chunk(scene.client.memory.chunk(REPLY_AT, 150_000))
}

#[test]
fn a_context_of_tcp_serves_calls_over_rdma() {
    for kind in KINDS {
        let mut scene = Scene::new(kind);
        for service in SERVICES {
            for len in [0, 4, 900, 3800] {
                let args = pattern(len);
                assert_eq!(scene.results(ECHO, service, &args), args, "{service:?} {len}");
            }
        }
        assert_eq!(scene.world.group.statistics().rejected, 0);
    }
}

#[test]
fn long_calls_and_replies_use_chunks_under_every_service() {
    for kind in KINDS {
        let mut scene = Scene::new(kind);
        for service in SERVICES {
            let args = pattern(60_000);
            let message = scene.message(ECHO, service, &args);
            let room = room(&scene);
            scene.send_long(&message, room);
            let answer = scene.answer();
            assert!(matches!(answer.0.body, Body::NoMessage(_)));
            assert!(scene.results_of(service, &answer) == args, "{service:?}");
            // The answer may come later, from another thread.
            let args = [&words(&[40_000])[..], &pattern(40_000)].concat();
            let message = scene.message(LATER, service, &args);
            let room = self::room(&scene);
            scene.send_long(&message, room);
            let answer = scene.answer();
            assert!(scene.results_of(service, &answer) == args, "{service:?}");
        }
    }
}

#[test]
fn data_has_chunks_under_krb5_alone() {
    for kind in KINDS {
        let mut scene = Scene::new(kind);
        for service in SERVICES {
            for len in [100, 100_000] {
                scene.client.memory.put(WRITE_AT, &vec![0xee; len]);
                let mut chunks = room(&scene);
                chunks.writes.push(scene.client.memory.chunk(WRITE_AT, len));
                let answer = scene.call(BULK, service, &words(&[len as u32, 5]), chunks);
                let (Body::Message(chunks) | Body::NoMessage(chunks)) = &answer.0.body else {
                    panic!("{answer:?}")
                };
                let written = lengths(&chunks.writes[0]);
                let placed = scene.client.memory.get(WRITE_AT, len);
                let results = scene.results_of(service, &answer);
                if service == Service::None {
                    assert_eq!((written, placed), (vec![len as u32], vec![5; len]));
                    assert_eq!(results, words(&[len as u32, 7]));
                } else {
                    // The write list is a mistake of the client's.
                    assert_eq!((written, placed), (vec![0], vec![0xee; len]), "{service:?}");
                    let want = [words(&[len as u32]), vec![5; len], words(&[7])].concat();
                    assert!(results == want, "{service:?}");
                }
            }
        }
    }
}

#[test]
fn moved_arguments_are_read_or_joined_before_they_are_verified() {
    for kind in KINDS {
        let mut scene = Scene::new(kind);
        for service in SERVICES {
            let data = pattern(50_000);
            let args = [&words(&[50_000])[..], &data, &words(&[4]), b"tail"].concat();
            let whole = scene.message(ECHO_APART, service, &args);
            // The data without protection; else any part of the body.
            let (moved, tail) = if service == Service::None { (50_000, 8) } else { (49_000, 80) };
            let at = whole.len() - tail - moved;
            let (head, rest) = whole.split_at(at);
            let (moved, tail) = rest.split_at(moved);
            scene.client.memory.put(CALL_AT, moved);
            let mut chunks = room(&scene);
            chunks.reads.push(scene.client.memory.read(at as u32, CALL_AT, moved.len()));
            scene.send(&[head, tail].concat(), chunks);
            let answer = scene.answer();
            assert!(scene.results_of(service, &answer) == args, "{service:?}");
        }
    }
}

#[test]
fn contexts_are_established_over_rdma() {
    for kind in KINDS {
        let mut scene = Scene::new(kind);
        // The token is as long as one with a PAC.
        for (legs, len) in [(0, 4), (1, 4), (0, 40_000)] {
            let token = ticket(legs, 7, 100, &"b".repeat(len));
            let message = init(Credential::Init, &token);
            if len > 1000 {
                scene.send_long(&message, Chunks::default());
            } else {
                scene.send(&message, Chunks::default());
            }
            let mut reply = scene.answer().1;
            if let InitResults::Continue { handle, .. } = init_results(accepted(&reply).1) {
                let go_on = init(Credential::ContinueInit { handle }, b"next");
                scene.send(&go_on, Chunks::default());
                reply = scene.answer().1;
            }
            let (verifier, results) = accepted(&reply);
            let InitResults::Complete { handle, window, .. } = init_results(results) else {
                panic!("no context")
            };
            let keys = ToyKeys::initiator(7);
            keys.verify(&[&window.to_be_bytes()], verifier).unwrap();
            scene.me = Initiator { keys, handle: handle.to_vec() };
            scene.sequence = 0;
            for service in SERVICES {
                assert_eq!(scene.results(ECHO, service, b"args"), b"args");
            }
        }
    }
}

#[test]
fn a_connection_has_time_for_its_first_call_after_a_slow_context() {
    for kind in KINDS {
        let mut scene = Scene::with(kind, true);
        let message = init(Credential::Init, &ticket(0, 7, 100, "bert"));
        scene.send(&message, Chunks::default());
        let door = scene.door.clone();
        let jobs = || door.kept.as_ref().unwrap().lock().unwrap();
        scene.world.until(&mut scene.client, |_| (!jobs().is_empty()).then_some(()));
        // The server is slow, not the client.
        scene.world.idle_ns += 15_000_000_000;
        (0..10).for_each(|_| scene.world.step());
        let step = jobs().remove(0);
        step();
        let (_, reply) = scene.answer();
        assert!(matches!(init_results(accepted(&reply).1), InitResults::Complete { .. }));
        scene.world.idle_ns += 8_000_000_000;
        (0..10).for_each(|_| scene.world.step());
        assert_eq!(scene.results(ECHO, Service::Privacy, b"args"), b"args");
    }
}
