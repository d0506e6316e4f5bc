//! Sessions by GSS with a real server, and proofs that are renewed before their end.

use crate::fake::requests::recovering;
use crate::fake::{Answer, ROOT, World, pattern};
use crate::served::{Served, TRANSPORTS, in_threads, open_file, read_all};
use dafs_client::core::{
    Authenticator, BackStage, Challenge, Exchange, Piece, Proof, ProofMethod, ProofOrder, Proven,
    ReadCall, SessionConfig, Stage,
};
use dafs_client::{
    Authentication, CacheOptions, Client, ConnectOptions, Credential, GssAuthenticator, Stability,
    Status,
};
use dafs_dat::sim::SimFaults;
use dafs_engine::GssAuth;
use dafs_gss::mechanism::ServiceName;
use dafs_gss::testing::Toy;
use dafs_gss::token::Enctype;
use dafs_service::{Identities, LocalDirectory, Rule, Rules, UserOf};
use dafs_wire::dafs::{HintWord, Procedure, Request, StateId};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn toy() -> Toy {
    Toy::new([7; 16], Enctype::Aes256Sha1)
}

fn service() -> ServiceName {
    ServiceName::new("dafs", "server").unwrap()
}

/// A server where all of the realm are the user of this process.
fn served() -> Served {
    let me = std::fs::metadata("/proc/self").unwrap();
    let pattern = "*@TOY".parse().unwrap();
    let rule = Rule { pattern, user: UserOf::Number(me.uid(), me.gid()), trusted: false };
    let rules = Rules { rules: vec![rule], default_realm: None };
    let gss = GssAuth {
        acceptor: Arc::new(toy().acceptor(service())),
        identities: Arc::new(Identities::new(rules, Box::new(LocalDirectory))),
        in_clear: false,
        time_seconds: || std::time::UNIX_EPOCH.elapsed().unwrap().as_secs(),
    };
    Served::with(|setup| setup.auth.gss = Some(gss))
}

fn by(name: &str, rounds: u8) -> Authentication {
    let initiator = Arc::new(toy().initiator(name, rounds, u64::MAX >> 32));
    Authentication::Custom(Arc::new(GssAuthenticator::by(initiator, service())))
}

#[test]
fn a_session_is_that_of_the_proven_principal() {
    let served = served();
    // A principal with a long name has a token that the first message has no room for.
    let long = format!("{}@TOY", "a".repeat(4000));
    for transport in TRANSPORTS {
        for (name, rounds) in [("anna@TOY", 1), ("anna@TOY", 4), (&long, 1), (&long, 2)] {
            let client = served.client_with(|options| {
                options.transport = transport;
                options.prove(by(name, rounds));
            });
            let proven = &client.session().proven;
            assert_eq!(proven.method, ProofMethod::Gss);
            assert_eq!(proven.name.as_deref(), Some(name));
            assert!(!client.session().trusted, "no address makes a principal trusted");
            open_file(&client).write_at(b"content", 0, Stability::Unstable).unwrap();
            assert_eq!(served.content("file"), b"content");
        }
    }
}

#[test]
fn a_connection_that_is_replaced_is_proven_again() {
    for transport in TRANSPORTS {
        let mut served = served();
        let client = served.client_with(|options| {
            options.transport = transport;
            options.prove(by("anna@TOY", 2));
        });
        client.ping().unwrap();
        served.stop();
        served.start();
        client.ping().unwrap();
        assert!(client.stats().recoveries > 0, "{:?}", client.stats());
    }
}

#[test]
fn the_back_control_channel_is_bound_by_the_same_principal() {
    for transport in TRANSPORTS {
        let served = served();
        let content = served.with_file("file", 100_000);
        let client = served.client_with(|options| {
            options.transport = transport;
            options.cache = Some(CacheOptions::default());
            options.prove(by("anna@TOY", 1));
        });
        let file = open_file(&client);
        in_threads(2, |_| {
            read_all(&file, 10_000, &content);
        });
        // Only a client that the server can call has a delegation, and so reads without it.
        let before = client.stats().answered;
        assert_eq!(file.read_at(&mut [0; 1000], 0).unwrap(), 1000);
        assert_eq!(client.stats().answered, before);
    }
}

#[test]
fn a_refused_proof_has_the_numbers_of_gss() {
    let served = served();
    let stranger = Toy::new([8; 16], Enctype::Aes256Sha1).initiator("anna@TOY", 1, u64::MAX);
    let stranger = GssAuthenticator::by(Arc::new(stranger), service());
    let mut options = ConnectOptions::default();
    options.prove(Authentication::Custom(Arc::new(stranger)));
    let error = Client::connect(&served.url, &options).unwrap_err().to_string();
    assert!(error.contains("refuses the ticket (major 0x90000"), "{error}");
}

/// Counts exchanges.
struct Counted(GssAuthenticator, Arc<AtomicUsize>);

impl Authenticator for Counted {
    fn start(&self, binding: Option<&[u8]>) -> Result<Box<dyn Exchange>, String> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.start(binding)
    }
}

#[test]
#[ignore = "waits for the end of a ticket, for half a minute"]
fn an_idle_client_renews_its_proof_by_itself() {
    let end_seconds = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() + 32;
    for transport in TRANSPORTS {
        let served = served();
        let initiator = Arc::new(toy().initiator("anna@TOY", 2, end_seconds));
        let begun = Arc::new(AtomicUsize::new(0));
        let counted = Counted(GssAuthenticator::by(initiator, service()), begun.clone());
        let client = served.client_with(|options| {
            options.transport = transport;
            options.prove(Authentication::Custom(Arc::new(counted)));
        });
        for _ in 0..1200 {
            if begun.load(Ordering::Relaxed) > 1 {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(begun.load(Ordering::Relaxed) > 1);
        client.ping().unwrap();
        assert_eq!(client.stats().recoveries, 0);
    }
}

/// Proofs that end an hour later.
struct Hourly {
    begun: Arc<AtomicUsize>,
}

impl Authenticator for Hourly {
    fn start(&self, _: Option<&[u8]>) -> Result<Box<dyn Exchange>, String> {
        match self.begun.fetch_add(1, Ordering::Relaxed) {
            1 => Err("the ticket is not renewed yet".into()),
            _ => Ok(Box::new(Hour)),
        }
    }
}

struct Hour;

impl Exchange for Hour {
    fn prove(&mut self, challenge: Option<&Challenge>) -> Result<Proof, String> {
        let procedure = if challenge.is_none() { 1 } else { 2 };
        Ok(Proof::Gss { procedure, service: 1, token: b"token".to_vec() })
    }

    fn accepted(&mut self, answer: &Challenge) -> Result<Proven, String> {
        assert_eq!(answer.token, b"challenge");
        let left = Some(Duration::from_secs(3600));
        Ok(Proven { method: ProofMethod::Gss, name: None, left })
    }
}

#[test]
fn a_proof_is_renewed_before_its_end() {
    let begun = Arc::new(AtomicUsize::new(0));
    let authenticator = Arc::new(Hourly { begun: begun.clone() });
    let mut world = World::open(SessionConfig { authenticator, ..World::config() });
    let sent = |world: &World| world.server.count(Procedure::ClientAuth);
    let start = world.now;
    assert!(world.core.begin_proof(world.now).is_none());
    let due = world.core.proof_due_at().unwrap();
    assert!((2900..=3010).contains(&due.since(start).as_secs()), "{:?}", due.since(start));
    let renew = |world: &mut World| {
        let due = world.core.proof_due_at().unwrap();
        let order = world.core.begin_proof(due).unwrap();
        assert!(world.core.begin_proof(due).is_none(), "one at a time");
        world.core.give_proof(&mut world.adapter, order.prepare(), world.now);
    };
    // The first attempt has no ticket, and the next one is soon.
    renew(&mut world);
    assert_eq!(sent(&world), 0);
    let again = world.core.proof_due_at().unwrap().since(world.now);
    assert!(again <= Duration::from_secs(60), "{again:?}");
    for rounds in [0, 2] {
        let before = sent(&world);
        world.server.auth_rounds = rounds;
        renew(&mut world);
        world.run(|world| world.core.proof_due_at().is_some());
        assert_eq!(sent(&world) - before, 1 + rounds as usize);
        assert!(world.core.proof_due_at().unwrap().since(world.now) > Duration::from_secs(2900));
    }
    assert_eq!(world.core.stage(), Stage::Ready);
    assert_eq!(begun.load(Ordering::Relaxed), 4);
}

/// Proofs whose making may take time.
struct Slow;

impl Authenticator for Slow {
    fn start(&self, _: Option<&[u8]>) -> Result<Box<dyn Exchange>, String> {
        Ok(Box::new(Hour))
    }

    fn may_wait(&self) -> bool {
        true
    }
}

#[test]
fn a_connection_waits_for_a_proof_that_takes_time() {
    let (authenticator, recovery) = (Arc::new(Slow), Some(Duration::from_secs(300)));
    let config = SessionConfig { authenticator, recovery, ..World::config() };
    let mut world = World::with(1, SimFaults::none(), config, |_| {});
    let connects = |world: &World| world.server.count(Procedure::ClientConnectAuth);
    let begin = |world: &mut World| {
        world.run(|world| world.core.proof_due_at().is_some());
        let order = world.core.begin_proof(world.now).unwrap();
        assert!(world.core.begin_proof(world.now).is_none(), "one at a time");
        order
    };
    let order = begin(&mut world);
    world.run_for(Duration::from_secs(1));
    assert_eq!(connects(&world), 0, "the server hears nothing before");
    world.core.give_proof(&mut world.adapter, order.prepare(), world.now);
    world.run(|world| world.core.stage() == Stage::Ready);
    // A lost connection is replaced when there is a ticket again.
    world.lose_and_notice();
    for _ in 0..3 {
        let none = begin(&mut world).refuse("no KDC answers".into());
        world.core.give_proof(&mut world.adapter, none, world.now);
        assert_eq!(world.core.stage(), Stage::Recovering);
    }
    assert_eq!(connects(&world), 1);
    let order = begin(&mut world);
    // One that comes late, for a connection that is lost meanwhile, is not used.
    world.lose_and_notice();
    world.core.give_proof(&mut world.adapter, order.prepare(), world.now);
    assert_eq!(connects(&world), 1);
    let order = begin(&mut world);
    world.core.give_proof(&mut world.adapter, order.prepare(), world.now);
    world.run(|world| world.core.stage() == Stage::Ready);
    assert_eq!(connects(&world), 2);
}

/// Proofs whose making may take time, and which accept every answer.
struct Patient;

impl Authenticator for Patient {
    fn start(&self, _: Option<&[u8]>) -> Result<Box<dyn Exchange>, String> {
        Ok(Box::new(Self))
    }

    fn may_wait(&self) -> bool {
        true
    }
}

impl Exchange for Patient {
    fn prove(&mut self, _: Option<&Challenge>) -> Result<Proof, String> {
        Ok(Proof::Gss { procedure: 1, service: 1, token: b"token".to_vec() })
    }

    fn accepted(&mut self, _: &Challenge) -> Result<Proven, String> {
        let left = Some(Duration::from_secs(3600));
        Ok(Proven { method: ProofMethod::Gss, name: None, left })
    }
}

#[test]
fn a_proof_goes_to_the_connection_for_which_it_was_made() {
    let (authenticator, optimistic) = (Arc::new(Patient), true);
    let config = SessionConfig { authenticator, optimistic, ..recovering() };
    let mut world = World::with(1, SimFaults::none(), config, |server| {
        server.file = pattern(100);
        server.script = Box::new(|_, request| match request {
            Request::XExposeGet(_) => Answer::Status(Status::NotSupp),
            _ => Answer::File,
        });
    });
    let wait = |world: &mut World| {
        world.run(|world| world.core.proof_due_at().is_some_and(|at| at <= world.now));
    };
    let begin = |world: &mut World| {
        wait(world);
        world.core.begin_proof(world.now).unwrap()
    };
    let give = |world: &mut World, order: ProofOrder| {
        world.core.give_proof(&mut world.adapter, order.prepare(), world.now);
    };
    let order = begin(&mut world);
    give(&mut world, order);
    world.run(|world| world.core.stage() == Stage::Ready);
    // The back-control channel comes while a renewal is being prepared.
    let due = world.core.proof_due_at().unwrap();
    let renewal = world.core.begin_proof(due).unwrap();
    world.core.want_back(&mut world.adapter, world.now);
    wait(&mut world);
    give(&mut world, renewal);
    world.run(|world| world.server.count(Procedure::ClientAuth) == 1);
    let order = begin(&mut world);
    give(&mut world, order);
    world.run(|world| world.core.back_stage() == BackStage::Bound);
    // It is lost while the proof for an optimistic channel is being prepared.
    let memory = world.memory(&[0; 8]);
    let read = |world: &mut World| {
        let (tag, state_id) = (world.tag(), StateId(*b"the open"));
        let into = Piece::new(&memory, 0, 8).unwrap();
        let call = ReadCall { handle: ROOT, state_id, offset: 0, into, hint: HintWord::NONE };
        world.core.submit_read(&mut world.adapter, world.now, tag, call, None).unwrap();
        world.run_all(&[tag]);
    };
    (0..2).for_each(|_| read(&mut world));
    let order = begin(&mut world);
    world.server.leave_back();
    wait(&mut world);
    give(&mut world, order);
    for _ in 0..10 {
        world.run_for(Duration::from_millis(50));
        read(&mut world);
    }
    assert_eq!(world.server.count(Procedure::XExposeGet), 1, "the channel is bound");
    let order = begin(&mut world);
    give(&mut world, order);
    world.run(|world| world.core.back_stage() == BackStage::Bound);
}

#[test]
fn a_renewal_that_the_server_refuses_ends_no_session() {
    let authenticator = Arc::new(Hourly { begun: Arc::new(AtomicUsize::new(2)) });
    let mut world = World::open(SessionConfig { authenticator, ..World::config() });
    world.server.script = Box::new(|_, request| match request {
        Request::ClientAuth(_) => Answer::Status(Status::NotAuthorized),
        _ => Answer::File,
    });
    let due = world.core.proof_due_at().unwrap();
    let order = world.core.begin_proof(due).unwrap();
    world.core.give_proof(&mut world.adapter, order.prepare(), world.now);
    world.run(|world| world.core.proof_due_at().is_some());
    assert_eq!(world.core.stage(), Stage::Ready);
    world.ask_and_wait(&Request::Null);
}

#[test]
fn a_principal_asks_for_no_credential_of_its_own() {
    let served = served();
    let client = served.client_with(|options| {
        options.prove(by("anna@TOY", 1));
        assert_eq!(options.credential, Credential::Session);
    });
    client.ping().unwrap();
}
