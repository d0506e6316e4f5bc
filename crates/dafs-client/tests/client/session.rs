//! The session core against a scripted server on the simulated network.

use crate::fake::{Answer, ROOT, World, pattern};
use dafs_client::Stability;
use dafs_client::core::{
    Authenticator, Challenge, CredentialIds, Done, Exchange, Failure, Piece, Proof, Proven,
    Refused, SessionConfig, Stage,
};
use dafs_dat::sim::SimFaults;
use dafs_wire::dafs::{ByteOrder, Commit, Procedure, Request, Status};
use std::sync::Arc;
use std::time::Duration;

fn config(order: ByteOrder, checksums: bool, pad_writes: bool) -> SessionConfig {
    SessionConfig { byte_order: order, checksums, pad_writes, ..World::config() }
}

fn all_configs() -> impl Iterator<Item = SessionConfig> {
    let orders = [ByteOrder::Big, ByteOrder::Little];
    orders.into_iter().flat_map(move |order| {
        [false, true].into_iter().flat_map(move |checksums| {
            [false, true].into_iter().map(move |pad| config(order, checksums, pad))
        })
    })
}

type Spoil = fn(&mut Vec<u8>);

fn bytes_read(done: &Done) -> u32 {
    match done {
        Done::Read { bytes, .. } => *bytes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn data_comes_and_goes_inline_and_direct_in_both_orders() {
    for config in all_configs() {
        let mut world = World::open(config);
        world.server.file = pattern(300_000);
        for len in [0, 1, 4096, 8192, 8193, 200_000] {
            let memory = world.memory(&vec![0; len + 16]);
            let tag = world.read_and_wait(Piece::new(&memory, 8, len as u32).unwrap(), 77);
            assert_eq!(bytes_read(&world.done[&tag]), len as u32);
            let found = memory.view().to_vec(dafs_mem::Site::Inspect);
            assert_eq!(&found[8..8 + len], &pattern(300_000)[77..77 + len]);
            assert_eq!((&found[..8], &found[8 + len..]), (&[0; 8][..], &[0; 8][..]));
        }
        for (number, len) in [1usize, 4096, 8000, 100_000].into_iter().enumerate() {
            let memory = world.memory(&vec![number as u8 + 1; len]);
            let tag = world.write_and_wait(Piece::new(&memory, 0, len as u32).unwrap(), 1000);
            assert!(matches!(world.done[&tag], Done::Written { bytes, .. } if bytes == len as u32));
            assert_eq!(world.server.file[1000..1000 + len], vec![number as u8 + 1; len]);
        }
        let stats = world.core.stats();
        assert!(stats.inline_transfers > 0 && stats.direct_transfers > 0);
    }
}

#[test]
fn reads_past_the_end_are_short() {
    let mut world = World::open(World::config());
    world.server.file = pattern(100);
    let memory = world.memory(&[0; 64]);
    let piece = Piece::new(&memory, 0, 64).unwrap();
    let tags = [world.read(piece.clone(), 60), world.read(piece, 100)];
    world.run_all(&tags);
    let end = |tag, expected| {
        let done = &world.done[&tag];
        assert!(
            matches!(done, Done::Read { bytes, end_of_file: true } if *bytes == expected),
            "{done:?}"
        );
    };
    end(tags[0], 40);
    end(tags[1], 0);
}

#[test]
fn the_credential_of_the_process_is_used_when_the_server_trusts() {
    for trusted in [true, false] {
        let ids = CredentialIds { uid: 5, gid: 6, groups: vec![7, 8] };
        let config = SessionConfig { credential: Some(ids), ..World::config() };
        let mut world = World::open_with(config, |server| server.trusted = trusted);
        let memory = world.memory(&[0; 8]);
        world.read_and_wait(Piece::new(&memory, 0, 8).unwrap(), 0);
        let (procedure, _, credential) = *world.server.seen.last().unwrap();
        assert_eq!(procedure, Procedure::ReadInline);
        assert_eq!(credential, if trusted { 77 } else { 0 });
        assert_eq!(world.server.count(Procedure::RegisterCred), usize::from(trusted));
    }
}

struct Rounds;

impl Authenticator for Rounds {
    fn start(&self, _: Option<&[u8]>) -> Result<Box<dyn Exchange>, String> {
        Ok(Box::new(Self))
    }
}

impl Exchange for Rounds {
    fn prove(&mut self, challenge: Option<&Challenge>) -> Result<Proof, String> {
        let (procedure, token) = match challenge {
            None => (1, &b"hello"[..]),
            Some(challenge) => {
                assert_eq!(challenge.token, b"challenge");
                (2, &b"more"[..])
            }
        };
        Ok(Proof::Gss { procedure, service: 1, token: token.to_vec() })
    }

    fn accepted(&mut self, _: &Challenge) -> Result<Proven, String> {
        Ok(Proven::default())
    }
}

#[test]
fn authentication_may_take_several_rounds() {
    for rounds in 0..3 {
        let config = SessionConfig {
            authenticator: Arc::new(Rounds),
            checksums: rounds == 2,
            ..World::config()
        };
        let world = World::open_with(config, |server| server.auth_rounds = rounds);
        assert_eq!(world.server.count(Procedure::ClientAuth), rounds as usize);
    }
}

#[test]
fn endless_authentication_is_given_up() {
    let config = SessionConfig { authenticator: Arc::new(Rounds), ..World::config() };
    let mut world =
        World::with(1, SimFaults::none(), config, |server| server.auth_rounds = u32::MAX);
    world.run(|world| world.core.stage() == Stage::Over);
    assert!(matches!(world.core.failure(), Some(Failure::Refused(_))));
}

#[test]
fn a_refused_session_says_why() {
    let mut world = World::with(1, SimFaults::none(), World::config(), |server| {
        server.script = Box::new(|_, _| Answer::Status(Status::NotAuthorized));
    });
    world.run(|world| world.core.stage() == Stage::Over);
    let failure = world.core.failure().unwrap().to_string();
    assert!(failure.contains("CLIENT_CONNECT_AUTH") && failure.contains("password"), "{failure}");
}

#[test]
fn credits_bound_what_is_outstanding_and_are_raised_on_demand() {
    let mut world = World::open_with(World::config(), |server| {
        server.initial_credits = 4;
        server.target = 4;
    });
    world.server.file = pattern(4096);
    world.server.hold = true;
    let memory = world.memory(&[0; 4096]);
    let tags = world.reads(&Piece::new(&memory, 0, 4096).unwrap(), 50);
    world.run_for(Duration::from_millis(100));
    assert_eq!((world.server.in_hand, world.core.stats().queued), (4, 46));
    world.server.target = 20;
    // The replies that are held carry the old target, those of the next round the new one.
    for _ in 0..2 {
        world.server.release();
        world.server.hold = true;
        world.run_for(Duration::from_millis(100));
    }
    assert_eq!((world.server.in_hand, world.core.stats().queued), (20, 22));
    world.server.release();
    world.run_all(&tags);
    let most_wished = world.server.seen.iter().map(|(_, desired, _)| *desired).max().unwrap();
    assert!(most_wished >= 50, "{most_wished}");
    assert!(tags.iter().all(|tag| bytes_read(&world.done[tag]) == 4096));
}

#[test]
fn more_credits_than_the_client_uses_do_no_harm() {
    let config = SessionConfig { requests_max: 3, ..World::config() };
    let mut world = World::open_with(config, |server| {
        server.initial_credits = 200;
        server.target = 200;
    });
    let memory = world.memory(&[0; 64]);
    let tags = world.reads(&Piece::new(&memory, 0, 64).unwrap(), 40);
    world.run_all(&tags);
    assert!(world.server.in_hand_most <= 3);
}

#[test]
fn an_idle_client_that_is_told_to_shrink_burns_its_receives() {
    let mut world = World::open(World::config());
    world.server.target = 2;
    world.ask_and_wait(&Request::Null);
    world.run_for(Duration::from_secs(1));
    assert_eq!((world.server.nreq(), world.core.stats().credits), (2, 2));
    let nulls = world.server.count(Procedure::Null);
    world.run_for(Duration::from_secs(5));
    assert_eq!(world.server.count(Procedure::Null), nulls, "no more than needed");
}

#[test]
fn shrinking_and_growing_under_load_loses_nothing() {
    let mut world = World::open_with(World::config(), |server| server.initial_credits = 32);
    world.server.file = pattern(100_000);
    let memory = world.memory(&vec![0; 100_000]);
    let mut tags = Vec::new();
    for round in 0..60u32 {
        world.server.target = [1, 30, 7, 64, 2, 12][round as usize % 6];
        for number in 0..round % 17 {
            let len = 1 + number * 5000;
            tags.push(world.read(Piece::new(&memory, 0, len).unwrap(), 0));
        }
        for _ in 0..round % 5 {
            world.step();
        }
    }
    world.run_all(&tags);
    assert!(tags.iter().all(|tag| matches!(world.done[tag], Done::Read { .. })));
    assert_eq!(world.core.stats().in_flight, 0);
}

#[test]
fn leases_are_kept_alive_in_silence_only() {
    let mut world = World::open_with(World::config(), |server| server.lease_seconds = 30);
    let before = world.server.count(Procedure::Null);
    world.run_for(Duration::from_secs(65));
    let nulls = world.server.count(Procedure::Null) - before;
    assert_eq!(nulls, 6, "one each third of the lease");
    let memory = world.memory(&[0; 8]);
    for _ in 0..10 {
        world.read_and_wait(Piece::new(&memory, 0, 8).unwrap(), 0);
        world.run_for(Duration::from_secs(5));
    }
    assert_eq!(world.server.count(Procedure::Null) - before, nulls);
}

#[test]
fn wishes_sink_when_nobody_needs_them() {
    let mut world = World::open(World::config());
    world.run_for(Duration::from_secs(100));
    let (_, desired, _) = *world.server.seen.last().unwrap();
    assert_eq!(desired, 1);
}

#[test]
fn a_server_that_does_not_answer_is_given_up() {
    let mut world = World::open(World::config());
    world.server.script = Box::new(|_, _| Answer::Silence);
    let memory = world.memory(&[0; 8]);
    let tags = world.reads(&Piece::new(&memory, 0, 8).unwrap(), 20);
    world.run_all(&tags);
    for tag in tags {
        assert!(matches!(&world.done[&tag], Done::Lost(Failure::Deadline(after))
            if *after == Duration::from_secs(60)));
    }
    let late = world.try_read(Piece::new(&memory, 0, 8).unwrap(), 0);
    assert!(matches!(late, Err(Refused::Over(Failure::Deadline(_)))));
}

#[test]
fn a_refused_request_leaves_the_session_alone() {
    let mut world = World::open(World::config());
    world.server.script = Box::new(|_, request| match request {
        Request::ReadInline(_) => Answer::Status(Status::Acces),
        _ => Answer::File,
    });
    let memory = world.memory(&[0; 8]);
    let tag = world.read_and_wait(Piece::new(&memory, 0, 8).unwrap(), 0);
    assert!(matches!(
        world.done[&tag],
        Done::Refused { procedure: Procedure::ReadInline, status: Status::Acces }
    ));
    let tag = world.ask_and_wait(&Request::Null);
    assert!(matches!(&world.done[&tag], Done::Answered(reply) if reply.status().is_ok()));
}

#[test]
fn a_read_of_nothing_before_the_end_breaks_the_protocol() {
    for (len, spoil) in [
        (
            100u32,
            (|message| {
                message[40..48].fill(0);
                message.truncate(48);
                message[32..36].copy_from_slice(&48u32.to_le_bytes());
            }) as Spoil,
        ),
        (20_000, |message| message[40..48].fill(0)),
    ] {
        let mut world = World::open(config(ByteOrder::Little, false, false));
        world.server.file = pattern(50_000);
        world.server.script = Box::new(move |_, _| Answer::Spoil(spoil));
        let memory = world.memory(&vec![0; len as usize]);
        world.read_and_wait(Piece::new(&memory, 0, len).unwrap(), 0);
        let failure = world.core.failure().unwrap().to_string();
        assert!(failure.contains("yielded nothing"), "{len}: {failure}");
    }
}

#[test]
fn less_stable_than_asked_breaks_the_protocol() {
    let mut world = World::open(World::config());
    world.server.committed = Stability::Unstable;
    let memory = world.memory(&[1; 100]);
    let tag = world.write_stable(Piece::new(&memory, 0, 100).unwrap(), 0, Stability::DataSync);
    world.run_all(&[tag]);
    assert!(matches!(world.core.failure(), Some(Failure::Protocol(_))));
}

#[test]
fn malformed_replies_end_the_session_with_a_reason() {
    let spoils: [(&str, Spoil); 11] = [
        ("magic", |message| message[0] ^= 1),
        ("version", |message| message[4..8].fill(9)),
        ("stream", |message| message[12] ^= 0x40),
        ("stream out of range", |message| message[12..14].fill(0xff)),
        ("sequence", |message| message[14] ^= 1),
        ("analyzer", |message| message[20] ^= 1),
        ("length", |message| message[32] ^= 4),
        ("no header", |message| message.truncate(20)),
        ("no body", |message| {
            message.truncate(40);
            message[32..36].copy_from_slice(&40u32.to_le_bytes());
        }),
        ("more data than asked", |message| message[44] = 0xff),
        ("end of file", |message| message[40] = 2),
    ];
    for (name, spoil) in spoils {
        for len in [100, 20_000] {
            if len > 8192 && matches!(name, "no body" | "more data than asked") {
                // The body of a direct reply has another shape; the codec's own tests cover it.
                continue;
            }
            let mut world = World::open(config(ByteOrder::Little, false, false));
            world.server.file = pattern(50_000);
            world.server.hold = true;
            let memory = world.memory(&vec![0; len]);
            let piece = Piece::new(&memory, 0, len as u32).unwrap();
            let mut tags = vec![world.read(piece.clone(), 0), world.read(piece.clone(), 0)];
            world.run_for(Duration::from_millis(50));
            world.server.hold = false;
            world.server.script = Box::new(move |_, _| Answer::Spoil(spoil));
            tags.extend((0..20).map(|_| world.read(piece.clone(), 0)));
            world.run_all(&tags);
            let failure = world.core.failure().cloned();
            assert!(matches!(failure, Some(Failure::Protocol(_))), "{name}: {failure:?}");
            assert!(tags.iter().all(|tag| matches!(world.done[tag], Done::Lost(_))), "{name}");
        }
    }
}

#[test]
fn a_reply_that_nobody_asked_for_ends_the_session() {
    let mut world = World::open(World::config());
    world.server.script = Box::new(|_, _| Answer::Raw(vec![0; 40]));
    world.ask_and_wait(&Request::Null);
    assert!(matches!(world.core.failure(), Some(Failure::Protocol(_))));
}

#[test]
fn a_wrong_checksum_ends_the_session() {
    for len in [100, 20_000] {
        let mut world = World::open(config(ByteOrder::Big, true, false));
        world.server.file = pattern(50_000);
        world.server.script = Box::new(|_, _| Answer::Spoil(|message| message[50] ^= 0x10));
        let memory = world.memory(&vec![0; len]);
        world.read_and_wait(Piece::new(&memory, 0, len as u32).unwrap(), 0);
        let failure = world.core.failure().unwrap().to_string();
        assert!(failure.contains("checksum"), "{failure}");
    }
}

#[test]
fn closing_waits_for_what_is_in_flight() {
    let mut world = World::open(World::config());
    let memory = world.memory(&[0; 8]);
    let tags = world.reads(&Piece::new(&memory, 0, 8).unwrap(), 30);
    world.core.close(&mut world.adapter, world.now);
    let late = world.try_read(Piece::new(&memory, 0, 8).unwrap(), 0);
    assert!(matches!(late, Err(Refused::Over(Failure::Closed))));
    world.run(|world| world.core.stage() == Stage::Over);
    assert!(matches!(world.core.failure(), Some(Failure::Closed)));
    assert!(tags.iter().all(|tag| matches!(world.done[tag], Done::Read { .. })));
    assert_eq!(world.server.count(Procedure::Disconnect), 1);
}

#[test]
fn memory_that_is_dropped_in_flight_stays_until_the_end() {
    let mut world = World::open(World::config());
    world.server.file = pattern(50_000);
    let before = world.network.region_count(2);
    let memory = world.memory(&[0; 50_000]);
    let tag = world.read(Piece::new(&memory, 0, 50_000).unwrap(), 0);
    drop(memory);
    world.run_all(&[tag]);
    assert_eq!(bytes_read(&world.done[&tag]), 50_000);
    world.ask_and_wait(&Request::Null);
    // Message memory may have grown, but the transfer memory is gone.
    assert!(world.network.region_count(2) <= before + 1);
}

#[test]
fn every_call_ends_once_however_the_connection_breaks() {
    for seed in 0..300 {
        let mut world = World::with(seed, SimFaults::rough(), World::config(), |server| {
            server.file = pattern(200_000);
            server.script = Box::new(|_, _| Answer::File);
        });
        world.run(|world| matches!(world.core.stage(), Stage::Ready | Stage::Over));
        if world.core.stage() == Stage::Over {
            assert!(world.core.failure().is_some());
            continue;
        }
        let memory = world.memory(&vec![3; 100_000]);
        let mut tags = Vec::new();
        for number in 0..60u32 {
            let piece = Piece::new(&memory, 0, 1 + number * 1500).unwrap();
            let (tag, stage) = match number % 3 {
                0 => (world.tag(), Stage::Over),
                _ => (0, world.core.stage()),
            };
            if stage != Stage::Ready {
                match world.try_read(piece, tag) {
                    Ok(tag) => tags.push(tag),
                    Err(Refused::Over(_)) => break,
                    Err(other) => panic!("seed {seed}: {other}"),
                }
            } else {
                tags.push(world.write(piece, 0));
            }
            world.step();
        }
        world.run_all(&tags);
        assert_eq!(world.done.len(), tags.len(), "seed {seed}");
        if world.core.stage() == Stage::Over {
            assert!(world.core.is_idle(), "seed {seed}");
        }
    }
}

#[test]
fn credits_are_what_the_headers_grant() {
    for rounds in 0..2 {
        let config = SessionConfig { authenticator: Arc::new(Rounds), ..World::config() };
        let mut world = World::open_with(config, |server| {
            (server.connect_target, server.auth_rounds) = (Some(1), rounds);
        });
        assert_eq!(world.core.stats().credits, 8);
        let memory = world.memory(&[0; 8]);
        world.server.hold = true;
        let tags = world.reads(&Piece::new(&memory, 0, 8).unwrap(), 20);
        world.run_for(Duration::from_millis(100));
        assert_eq!(world.server.in_hand, 8);
        world.server.release();
        world.run_all(&tags);
    }
}

/// A server that never finishes a stable write.
fn slow_disk(credits: u16) -> World {
    let mut world = World::open_with(World::config(), |server| {
        (server.initial_credits, server.target) = (credits, credits);
        // The lease needs no keep-alive in the time of the test.
        server.lease_seconds = 1_000_000;
    });
    world.server.script = Box::new(|_, request| match request {
        Request::Null => Answer::File,
        _ => Answer::Silence,
    });
    world
}

#[test]
fn a_slow_disk_is_waited_for_while_the_server_lives() {
    let mut world = slow_disk(8);
    let memory = world.memory(&[1; 100]);
    world.write_stable(Piece::new(&memory, 0, 100).unwrap(), 0, Stability::FileSync);
    let commit = Commit { fh: ROOT, offset: 0, count: 0 };
    world.ask(&Request::Commit(commit));
    world.run_for(Duration::from_secs(3600));
    assert_eq!(world.core.stage(), Stage::Ready, "{:?}", world.core.failure());
    assert!(world.server.count(Procedure::Null) > 10);
    world.server.script = Box::new(|_, _| Answer::Silence);
    world.run_for(Duration::from_secs(121));
    assert!(matches!(world.core.failure(), Some(Failure::Deadline(_))));
}

#[test]
fn a_slow_disk_is_waited_for_longer_when_nothing_can_be_asked() {
    let mut world = slow_disk(1);
    let memory = world.memory(&[1; 100]);
    world.write_stable(Piece::new(&memory, 0, 100).unwrap(), 0, Stability::FileSync);
    let read = world.read(Piece::new(&memory, 0, 100).unwrap(), 0);
    world.run_for(Duration::from_secs(590));
    assert_eq!(world.core.stage(), Stage::Ready, "{:?}", world.core.failure());
    world.run_for(Duration::from_secs(20));
    assert!(matches!(world.core.failure(), Some(Failure::Deadline(_))));
    assert!(matches!(world.done[&read], Done::Lost(Failure::Deadline(_))));
}
