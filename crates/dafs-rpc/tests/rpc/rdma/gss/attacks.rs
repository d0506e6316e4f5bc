//! Attacks over RDMA: replays, chunks that are too small or were changed on the way, memory that
//! changes after it was verified.

use super::scene::*;
use super::toy::{ToyKeys, accepted};
use crate::peer::reply_chunk;
use crate::rdma::common::*;
use dafs_mem::{Site, VolatileSlice};
use dafs_rpc::client::CallError;
use dafs_rpc::client::gss::{Established, InitiatorKeys, Protection};
use dafs_rpc::gss::{BadToken, MessageKeys};
use dafs_rpc::{AcceptStatus, AuthStatus, RejectStatus, Reply};
use dafs_wire::rpc::gss::{Credential, Service};
use dafs_wire::rpc::{ReplyHeader, ReplyStatus};
use dafs_wire::rpcrdma::{Body, Chunks, Header, HeaderFault};
use dafs_wire::xdr::Decoder;
use std::time::Duration;

const CHUNK_ERROR: Body = Body::Error(HeaderFault::Chunk);

fn status(reply: &[u8]) -> ReplyStatus<'_> {
    let header: ReplyHeader<'_> = Decoder::new(reply).value().unwrap();
    header.status
}

/// Attack 2.
#[test]
fn a_replay_ends_its_connection_and_is_not_carried_out() {
    for kind in KINDS {
        for service in SERVICES {
            let mut scene = Scene::new(kind);
            let message = scene.message(ECHO, service, b"once");
            scene.send(&message, Chunks::default());
            scene.answer();
            for _ in 0..2 {
                // On the same connection, and on a later one.
                scene.send(&message, Chunks::default());
                scene.world.end(&mut scene.client);
                scene.client = scene.world.client(Some(TOLD), 16);
            }
            assert_eq!(scene.calls(), 1);
            assert_eq!(scene.results(ECHO, service, b"args"), b"args");
            while scene.world.group.statistics().connections > 1 {
                scene.world.step();
            }
            assert_eq!(scene.world.group.statistics().broken, 2);
        }
    }
}

/// Bytes of long results.
const LEN: usize = 6000;

/// A call whose reply does not fit inline.
fn long(scene: &mut Scene, service: Service, room_bytes: usize) -> (Header, Vec<u8>) {
    let chunks = reply_chunk(scene.client.memory.chunk(REPLY_AT, room_bytes));
    scene.call(LONG, service, &words(&[LEN as u32]), chunks)
}

/// Attack 24.
#[test]
fn room_that_is_too_small_for_verifier_or_wrapping_is_refused() {
    for kind in KINDS {
        let mut scene = Scene::new(kind);
        for service in SERVICES {
            let answer = long(&mut scene, service, 100_000);
            let reply_bytes = {
                let Body::NoMessage(chunks) = &answer.0.body else { panic!("{answer:?}") };
                lengths(chunks.reply.as_ref().unwrap()).iter().sum::<u32>() as usize
            };
            // Without a verifier the header has 24 bytes.
            for room in [24 + LEN, reply_bytes - 4] {
                let (header, _) = long(&mut scene, service, room);
                assert_eq!(header.body, CHUNK_ERROR, "{service:?} {room}");
            }
            let answer = long(&mut scene, service, reply_bytes);
            assert!(scene.results_of(service, &answer) == pattern(LEN), "{service:?}");
            // The same for replies inline, whose RPC-over-RDMA header has 28 bytes.
            let beside = reply_bytes - LEN;
            let fitting = (4096 - 28 - beside) / 4 * 4;
            let results = scene.results(LONG, service, &words(&[fitting as u32]));
            assert!(results == pattern(fitting), "{service:?}");
            for len in [fitting + 4, 4096 - 28 - 24] {
                let args = words(&[len as u32]);
                let (header, _) = scene.call(LONG, service, &args, Chunks::default());
                assert_eq!(header.body, CHUNK_ERROR, "{service:?} {len}");
            }
        }
        assert_eq!(scene.world.group.statistics().broken, 0);
    }
}

/// Attack 24.
#[test]
fn a_call_from_another_place_is_not_carried_out() {
    for kind in KINDS {
        let mut scene = Scene::new(kind);
        for service in [Service::Integrity, Service::Privacy] {
            let before = scene.calls();
            // A man in the middle lets the server read other arguments.
            let mut message = scene.message(ECHO, service, &pattern(20_000));
            let at = message.len() - 1000;
            message[at] ^= 1;
            scene.send_long(&message, Chunks::default());
            let (_, reply) = scene.answer();
            let ReplyStatus::Accepted { status, .. } = status(&reply) else { panic!("denied") };
            assert_eq!(status, AcceptStatus::GarbageArgs);
            // Or another header.
            let mut message = scene.message(ECHO, service, &pattern(20_000));
            message[15] ^= 1;
            scene.send_long(&message, Chunks::default());
            let (_, reply) = scene.answer();
            let problem = RejectStatus::Auth(AuthStatus::GssCredentialProblem);
            assert_eq!(self::status(&reply), ReplyStatus::Denied(problem));
            assert_eq!(scene.calls(), before);
        }
    }
}

/// The keys of the scene's client for ours.
#[derive(Debug)]
struct Ours(ToyKeys);

/// Lends copies of these parts.
fn copied<T>(parts: &[VolatileSlice<'_>], use_them: impl FnOnce(&[&[u8]]) -> T) -> T {
    let copies: Vec<_> = parts.iter().map(|part| part.to_vec(Site::Inspect)).collect();
    use_them(&copies.iter().map(|copy| &copy[..]).collect::<Vec<_>>())
}

impl InitiatorKeys for Ours {
    fn mic_bytes(&self) -> usize {
        self.0.mic_bytes()
    }

    fn mic(&self, parts: &[VolatileSlice<'_>], mic: &mut [u8]) {
        copied(parts, |parts| self.0.mic(parts, mic));
    }

    fn verify(&self, parts: &[VolatileSlice<'_>], mic: &[u8]) -> Result<(), BadToken> {
        copied(parts, |parts| self.0.verify(parts, mic))
    }

    fn sealed_bytes(&self, plain_bytes: usize) -> usize {
        self.0.sealed_bytes(plain_bytes)
    }

    fn seal(&self, parts: &[VolatileSlice<'_>], token: &mut [u8]) {
        copied(parts, |parts| self.0.seal(parts, token));
    }

    fn open(&self, token: &[u8], write: &mut dyn FnMut(&[u8])) -> Result<(), BadToken> {
        let mut plain = vec![0; token.len()];
        let len = self.0.open(token, &mut plain)?;
        write(&plain[..len]);
        Ok(())
    }
}

/// Attack 24.
#[test]
fn the_client_notices_a_reply_in_the_place_of_another() {
    for service in SERVICES {
        let mut scene = Scene::new(Kind::Sim);
        let chunks = reply_chunk(scene.client.memory.chunk(REPLY_AT, 100_000));
        let answer = scene.call(LONG, service, &words(&[5000]), chunks.clone());
        let first = scene.reply(&answer);
        let answer = scene.call(LONG, service, &words(&[5000]), chunks);
        let other = scene.reply(&answer);
        let keys = Box::new(Ours(ToyKeys::initiator(9)));
        let (principal, remaining) = ("anna".to_owned(), Duration::from_secs(60));
        let established = Established { principal, remaining, keys };
        // Our client's first call, under the same keys.
        let call = Protection::alone(established, service);
        assert!(call.read(&first).is_ok(), "{service:?}");
        // A man in the middle had the other reply written to its place.
        assert_eq!(call.read(&other).map(drop), Err(CallError::Unverified), "{service:?}");
    }
}

#[test]
fn arguments_do_not_change_after_they_were_verified() {
    for kind in KINDS {
        let mut scene = Scene::new(kind);
        for service in SERVICES {
            for is_long in [false, true] {
                let args = pattern(2000);
                let message = scene.message(KEEP, service, &args);
                if is_long {
                    scene.send_long(&message, Chunks::default());
                } else {
                    scene.send(&message, Chunks::default());
                }
                let kept = scene.kept.clone();
                let look = |_: &mut Client| kept.lock().unwrap().pop();
                let (own, responder) = scene.world.until(&mut scene.client, look);
                // The client writes over all that it has sent.
                scene.client.memory.put(0, &vec![0xee; 1 << 20]);
                assert!(*own == *args, "{service:?}");
                responder.respond(Reply::from_bytes(&own));
                let answer = scene.answer();
                assert!(scene.results_of(service, &answer) == args, "{service:?}");
            }
        }
    }
}

/// Attacks 9 and 11.
#[test]
fn a_destroyed_context_is_unknown_on_every_connection() {
    for kind in KINDS {
        let mut scene = Scene::new(kind);
        assert_eq!(scene.results(ECHO, Service::Privacy, b"args"), b"args");
        scene.sequence += 1;
        let destroy =
            scene.me.message(0, Credential::Destroy(scene.me.fields(2, Service::None)), &[]);
        scene.send(&destroy, Chunks::default());
        let (_, reply) = scene.answer();
        let (verifier, results) = accepted(&reply);
        scene.me.keys.verify(&[&2u32.to_be_bytes()], verifier).unwrap();
        assert!(results.is_empty());
        for _ in 0..2 {
            let (_, reply) = scene.call(ECHO, Service::Privacy, b"args", Chunks::default());
            let problem = RejectStatus::Auth(AuthStatus::GssCredentialProblem);
            assert_eq!(status(&reply), ReplyStatus::Denied(problem));
            scene.client = scene.world.client(Some(TOLD), 16);
        }
        assert_eq!(scene.calls(), 1);
    }
}
