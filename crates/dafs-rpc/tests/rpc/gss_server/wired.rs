//! Calls of RPCSEC_GSS over a connection: bytes in, a handler, bytes out.

use super::toy::{self, Client, Inline, SECOND, ToyKeys, init, init_results};
use dafs_mem::{Mutex, Site};
use dafs_rpc::gss::*;
use dafs_rpc::server::Config;
use dafs_rpc::{
    AcceptStatus, AuthStatus, Call, Credential as Caller, Handled, Handler, LocalConnection,
    LocalEnding, LocalReactor, Rejection, Reply,
};
use dafs_wire::rpc::gss::{Credential, InitResults, Service};
use dafs_wire::rpc::{FragmentMark, RejectStatus, ReplyHeader, ReplyStatus};
use dafs_wire::xdr::{Decoder, padded};
use proptest::prelude::*;
use std::sync::Arc;

/// The answers of the handler, by procedure.
const ECHO: u32 = 1;
const ECHO_LATER: u32 = 2;
const REFUSE: u32 = 3;
const REFUSE_LATER: u32 = 4;

/// Answers with the arguments, as bulk data.
struct Echo {
    acceptor: Arc<dyn Acceptor>,
    calls: usize,
    /// The bytes beside the results of the last call.
    reply_bytes_beside_results: usize,
}

fn echo(args: &[u8]) -> Reply {
    let mut reply = Reply::new();
    reply.encoder().u32(args.len() as u32);
    let mut bulk = reply.bulk(args.len()).unwrap();
    bulk.view().copy_from(args, Site::Inspect);
    bulk.finish(args.len());
    reply.encoder().u32(7);
    reply
}

impl Handler for Echo {
    type Message = ();

    fn gss(&self) -> Option<&Arc<dyn Acceptor>> {
        Some(&self.acceptor)
    }

    fn call(&mut self, call: Call<'_>) -> Handled {
        self.calls += 1;
        self.reply_bytes_beside_results = call.reply_bytes_beside_results();
        let Caller::Gss { context, .. } = call.credential else { panic!("an unproven caller") };
        assert_eq!(&*context.principal().display_name, "anna@R");
        let refusal = Rejection::Accept(AcceptStatus::ProcedureUnavailable);
        match call.procedure {
            0 => Reply::new().into(),
            ECHO => echo(call.args).into(),
            REFUSE => Handled::Reject(refusal),
            procedure => {
                let (args, responder) = call.later();
                match procedure {
                    ECHO_LATER => responder.respond(echo(&args)),
                    _ => responder.reject(refusal),
                }
                Handled::Later
            }
        }
    }
}

struct World {
    reactor: LocalReactor,
    connection: LocalConnection,
    handler: Echo,
    client: Client,
    sequence: u32,
}

impl World {
    fn new() -> Self {
        let reactor = LocalReactor::new().unwrap();
        let config = Config { record_bytes_max: 4 << 20, ..Config::default() };
        let connection = LocalConnection::new(&reactor, 1, config);
        let acceptor = Arc::new(Inline(Contexts::new(ContextLimits::default())));
        let handler = Echo { acceptor, calls: 0, reply_bytes_beside_results: 0 };
        let client = Client { keys: ToyKeys::initiator(9), handle: Vec::new() };
        let mut world = Self { reactor, connection, handler, client, sequence: 0 };
        let reply = world.send(&init(Credential::Init, &toy::ticket(0, 9, 60, "anna@R")));
        let (verifier, results) = toy::accepted(&reply);
        let found = init_results(results);
        let InitResults::Complete { handle, window, .. } = found else { panic!("{found:?}") };
        world.client.keys.verify(&[&window.to_be_bytes()], verifier).unwrap();
        world.client.handle = handle.to_vec();
        world
    }

    /// Sends a message, and returns the reply.
    fn send(&mut self, message: &[u8]) -> Vec<u8> {
        self.try_send(message).unwrap()
    }

    fn try_send(&mut self, message: &[u8]) -> Result<Vec<u8>, LocalEnding> {
        let mark = FragmentMark::whole(message.len()).unwrap().to_bytes();
        let record = [&mark, message].concat();
        let Self { reactor, connection, handler, .. } = self;
        connection.feed(reactor, handler, &record, 0)?;
        for event in reactor.take_events() {
            assert!(connection.apply(reactor, handler, event, 0).is_none());
        }
        let output = connection.take_output(usize::MAX, 0);
        let (mark, reply) = output.split_first_chunk().expect("no reply");
        assert_eq!(*mark, FragmentMark::whole(reply.len()).unwrap().to_bytes());
        Ok(reply.to_vec())
    }

    fn message(&mut self, procedure: u32, service: Service, args: &[u8]) -> Vec<u8> {
        self.sequence += 1;
        let credential = Credential::Data(self.client.fields(self.sequence, service));
        let body = self.client.body(self.sequence, service, args);
        self.client.message(procedure, credential, &body)
    }

    /// Calls, and returns the results.
    fn call(&mut self, procedure: u32, service: Service, args: &[u8]) -> Vec<u8> {
        let message = self.message(procedure, service, args);
        let reply = self.send(&message);
        self.client.results(self.sequence, service, &reply)
    }
}

fn echoed(args: &[u8]) -> Vec<u8> {
    let mut expected = (args.len() as u32).to_be_bytes().to_vec();
    expected.extend_from_slice(args);
    expected.resize(4 + padded(args.len()), 0);
    expected.extend(7u32.to_be_bytes());
    expected
}

const SERVICES: [Service; 3] = [Service::None, Service::Integrity, Service::Privacy];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn arguments_and_results_of_any_length_arrive(
        calls in prop::collection::vec((0..3_usize, any::<bool>(), 0..5_usize, 0..5000_usize), 1..12),
    ) {
        let mut world = World::new();
        for (service, is_later, scale, len) in calls {
            let args: Vec<u8> = (0..len << scale).map(|at| at as u8).collect();
            let procedure = if is_later { ECHO_LATER } else { ECHO };
            let args = &args[..args.len() / 4 * 4];
            prop_assert_eq!(world.call(procedure, SERVICES[service], args), echoed(args));
        }
    }
}

#[test]
fn a_rejection_has_the_verifier_of_its_call_and_no_results() {
    let mut world = World::new();
    for service in SERVICES {
        for procedure in [REFUSE, REFUSE_LATER] {
            let message = world.message(procedure, service, &[1; 8]);
            let reply = world.send(&message);
            let mut decoder = Decoder::new(&reply);
            let header: ReplyHeader<'_> = decoder.value().unwrap();
            let ReplyStatus::Accepted { verifier, status } = header.status else { panic!() };
            assert_eq!(status, AcceptStatus::ProcedureUnavailable);
            let sequence = world.sequence.to_be_bytes();
            world.client.keys.verify(&[&sequence], verifier.body).unwrap();
            assert!(decoder.rest().is_empty());
        }
    }
}

#[test]
fn a_handler_knows_the_bytes_of_its_reply() {
    let mut world = World::new();
    for service in SERVICES {
        for len in [0, 4, 8, 12, 5000] {
            let message = world.message(ECHO, service, &vec![7; len]);
            let reply = world.send(&message);
            let results = world.client.results(world.sequence, service, &reply);
            let beside = world.handler.reply_bytes_beside_results;
            assert_eq!(reply.len(), results.len() + beside, "{service:?}");
        }
    }
}

#[test]
fn changed_arguments_reach_no_handler() {
    let mut world = World::new();
    for service in [Service::Integrity, Service::Privacy] {
        let mut message = world.message(ECHO, service, &[1; 64]);
        let last = message.len() - 4;
        message[last] ^= 1;
        let calls = world.handler.calls;
        let reply = world.send(&message);
        let header: ReplyHeader<'_> = Decoder::new(&reply).value().unwrap();
        let ReplyStatus::Accepted { verifier, status: AcceptStatus::GarbageArgs } = header.status
        else {
            panic!("{header:?}")
        };
        world.client.keys.verify(&[&world.sequence.to_be_bytes()], verifier.body).unwrap();
        assert_eq!(world.handler.calls, calls);
    }
}

#[test]
fn a_replay_ends_the_connection_and_reaches_no_handler() {
    let mut world = World::new();
    let message = world.message(ECHO, Service::None, &[]);
    world.send(&message);
    assert_eq!(world.handler.calls, 1);
    let ending = world.try_send(&message).unwrap_err();
    assert!(ending.to_string().contains("same sequence number"), "{ending}");
    assert_eq!(world.handler.calls, 1);
}

#[test]
fn a_destroyed_context_is_unknown() {
    let mut world = World::new();
    world.sequence += 1;
    let destroy = world.client.destroy(world.sequence);
    let reply = world.send(&destroy);
    let (verifier, results) = toy::accepted(&reply);
    world.client.keys.verify(&[&world.sequence.to_be_bytes()], verifier).unwrap();
    assert!(results.is_empty());
    let message = world.message(ECHO, Service::None, &[]);
    let reply = world.send(&message);
    let header: ReplyHeader<'_> = Decoder::new(&reply).value().unwrap();
    let problem = AuthStatus::GssCredentialProblem;
    assert_eq!(header.status, ReplyStatus::Denied(RejectStatus::Auth(problem)));
    assert_eq!(world.handler.calls, 0);
}

/// Keeps every step until the test runs it.
struct Slow {
    contexts: Arc<Contexts>,
    jobs: Mutex<Vec<Job>>,
}

impl Acceptor for Slow {
    fn contexts(&self) -> &Arc<Contexts> {
        &self.contexts
    }

    fn begin(&self) -> Box<dyn PartialContext> {
        toy::begin()
    }

    fn run(&self, _: Origin, job: Job) {
        self.jobs.lock().push(job);
    }
}

#[test]
fn a_connection_has_time_for_its_first_call_after_a_slow_context() {
    let reactor = LocalReactor::new().unwrap();
    let mut connection = LocalConnection::new(&reactor, 1, Config::default());
    let contexts = Contexts::new(ContextLimits::default());
    let slow = Arc::new(Slow { contexts, jobs: Mutex::default() });
    let acceptor = slow.clone();
    let mut handler = Echo { acceptor, calls: 0, reply_bytes_beside_results: 0 };
    let message = init(Credential::Init, &toy::ticket(0, 9, 60, "anna@R"));
    let mark = FragmentMark::whole(message.len()).unwrap().to_bytes();
    connection.feed(&reactor, &mut handler, &[&mark, &message[..]].concat(), 0).unwrap();
    // The server is slow, not the client.
    connection.tick(&reactor, &mut handler, 29 * SECOND).unwrap();
    slow.jobs.lock().drain(..).for_each(|job| job());
    for event in reactor.take_events() {
        assert!(connection.apply(&reactor, &mut handler, event, 30 * SECOND).is_none());
    }
    assert!(!connection.take_output(usize::MAX, 30 * SECOND).is_empty());
    connection.tick(&reactor, &mut handler, 39 * SECOND).unwrap();
    let ending = connection.tick(&reactor, &mut handler, 40 * SECOND).unwrap_err();
    assert!(ending.to_string().contains("no call in time"), "{ending}");
}
