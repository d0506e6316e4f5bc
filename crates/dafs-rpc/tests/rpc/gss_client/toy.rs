//! Both ends of the mechanism for tests, a program, and a server that runs it.

use crate::peer::{any_iwarp, iwarp};
use dafs_dat::Address;
use dafs_dat::connections::Origin;
use dafs_gss::mechanism::{
    Accept, Initiate, Pending as Half, Principal as Name, ServiceName, Step as Taken, Wanted,
};
use dafs_gss::testing::{Toy, ToyAcceptor, ToyInitiator};
use dafs_gss::token::Enctype;
use dafs_mem::Site;
use dafs_rpc::client::gss::{self as ours, Initiator, Mechanism};
use dafs_rpc::client::{Identity, Options, Port, Procedure, RpcClient};
use dafs_rpc::gss::{
    Acceptor, ContextLimits, Contexts, Established, Failure, Job, PartialContext, Principal, Step,
};
use dafs_rpc::server::{Config, Group};
use dafs_rpc::{AcceptStatus, Call, Credential, GssService, Handled, Handler};
use dafs_testkit_rpc::tokens::{AcceptorTokens, InitiatorTokens};
use dafs_wire::xdr::{Decoder, Payload};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

pub(super) const PROGRAM: u32 = 0x2000_0099;

/// Answers with the data of its argument, as bulk data, and the word 7.
pub(super) const MIRROR: Procedure = Procedure { program: PROGRAM, version: 1, procedure: 1 };
/// Refuses.
pub(super) const REFUSE: Procedure = Procedure { program: PROGRAM, version: 1, procedure: 2 };

pub(super) const SERVICES: [GssService; 3] =
    [GssService::None, GssService::Integrity, GssService::Privacy];

pub(super) fn realm() -> Toy {
    Toy::new([3; 16], Enctype::Aes256Sha1)
}

pub(super) fn service() -> ServiceName {
    ServiceName::new("nfs", "server").unwrap()
}

pub(super) fn now_seconds() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs()
}

/// A user with tickets.
#[derive(Debug)]
pub(super) struct User {
    pub(super) initiator: Arc<ToyInitiator>,
    pub(super) target: ServiceName,
    pub(super) mutual: bool,
}

struct OwnPartial {
    user: User,
    half: Option<Half>,
}

impl Mechanism for User {
    fn begin(&self) -> Box<dyn ours::PartialContext> {
        let Self { initiator, target, mutual } = self;
        let user = User { initiator: initiator.clone(), target: target.clone(), mutual: *mutual };
        Box::new(OwnPartial { user, half: None })
    }
}

impl ours::PartialContext for OwnPartial {
    fn step(&mut self, token: &[u8]) -> ours::Step {
        let User { initiator, target, mutual } = &self.user;
        let wanted = Wanted { target, mutual: *mutual, bindings: None };
        match initiator.initiate(self.half.take(), &wanted, token) {
            Taken::Continue { pending, token } => {
                self.half = Some(pending);
                ours::Step::Continue { token }
            }
            Taken::Failed(failure) => ours::Step::Failed(failure.to_string()),
            Taken::Done(done) => {
                let left = done.end_time_seconds.saturating_sub(now_seconds());
                let established = ours::Established {
                    principal: done.principal.display().to_owned(),
                    remaining: Duration::from_secs(left),
                    keys: Box::new(InitiatorTokens(done.keys)),
                };
                ours::Step::Complete { token: done.token.unwrap_or_default(), established }
            }
        }
    }
}

/// The contexts of a user whose ticket lasts an hour.
pub(super) fn anna(service_of_calls: GssService) -> Arc<Initiator> {
    anna_for(service_of_calls, 1, false, 3600)
}

pub(super) fn anna_for(
    protection: GssService,
    rounds: u8,
    mutual: bool,
    seconds: u64,
) -> Arc<Initiator> {
    Arc::new(Initiator::new(Arc::new(anna_with_ticket(rounds, mutual, seconds)), protection))
}

pub(super) fn anna_with_ticket(rounds: u8, mutual: bool, seconds: u64) -> User {
    let initiator = realm().initiator("anna@TOY", rounds, now_seconds() + seconds);
    User { initiator: Arc::new(initiator), target: service(), mutual }
}

/// The server's side: the table of contexts can be lost, as in a restart.
pub(super) struct Hall {
    contexts: Mutex<&'static Arc<Contexts>>,
    acceptor: Arc<ToyAcceptor>,
}

impl Hall {
    pub(super) fn new(service: ServiceName) -> Arc<Self> {
        let acceptor = Arc::new(realm().acceptor(service));
        Arc::new(Self { contexts: Mutex::new(table()), acceptor })
    }

    pub(super) fn forget(&self) {
        *self.contexts.lock().unwrap() = table();
    }
}

/// A table that lives as long as the test program, since [`Acceptor::contexts`] lends it.
fn table() -> &'static Arc<Contexts> {
    Box::leak(Box::new(Contexts::new(ContextLimits::default())))
}

struct TheirPartial {
    acceptor: Arc<ToyAcceptor>,
    half: Option<Half>,
}

impl PartialContext for TheirPartial {
    fn accept(&mut self, token: &[u8]) -> Step {
        match self.acceptor.accept(self.half.take(), token, None) {
            Taken::Continue { pending, token } => {
                self.half = Some(pending);
                Step::Continue { token }
            }
            Taken::Failed(failure) => {
                let (major, minor) = (failure.major, failure.minor);
                Step::Failed(Failure { major, minor, text: failure.to_string() })
            }
            Taken::Done(done) => {
                let principal = named(&done.principal);
                let remaining = Duration::from_secs(3600);
                let keys = Box::new(AcceptorTokens(done.keys));
                let established = Established { principal, remaining, keys };
                Step::Complete { token: done.token.unwrap_or_default(), established }
            }
        }
    }
}

fn named(name: &Name) -> Principal {
    Principal { exported_name: name.exported().into(), display_name: name.display().into() }
}

impl Acceptor for Hall {
    fn contexts(&self) -> &Arc<Contexts> {
        *self.contexts.lock().unwrap()
    }

    fn begin(&self) -> Box<dyn PartialContext> {
        Box::new(TheirPartial { acceptor: self.acceptor.clone(), half: None })
    }

    fn run(&self, _: Origin, job: Job) {
        std::thread::spawn(job);
    }
}

struct Program {
    gss: Option<Arc<dyn Acceptor>>,
    wanted: GssService,
    calls: Arc<AtomicUsize>,
}

impl Handler for Program {
    type Message = ();

    fn gss(&self) -> Option<&Arc<dyn Acceptor>> {
        self.gss.as_ref()
    }

    fn call(&mut self, call: Call<'_>) -> Handled {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if call.program != PROGRAM {
            return AcceptStatus::ProgramUnavailable.into();
        }
        let Credential::Gss { context, service } = call.credential else {
            return AcceptStatus::SystemError.into();
        };
        assert_eq!(&*context.principal().display_name, "anna@TOY");
        assert_eq!(service, self.wanted);
        if call.procedure != MIRROR.procedure {
            return AcceptStatus::ProcedureUnavailable.into();
        }
        let Ok(Payload::Here(data)) = call.decoder().payload(8 << 20) else {
            return AcceptStatus::GarbageArgs.into();
        };
        let mut reply = call.reply();
        reply.encoder().count(data.len());
        let mut bulk = reply.bulk(data.len()).unwrap();
        bulk.view().copy_from(data, Site::Inspect);
        bulk.finish(data.len());
        reply.encoder().u32(7);
        reply.into()
    }
}

/// A server over TCP and iWARP. Dropped, it ends.
pub(super) struct Served {
    pub(super) address: SocketAddr,
    rdma: Address,
    pub(super) calls: Arc<AtomicUsize>,
    group: Group,
    threads: Vec<JoinHandle<()>>,
}

impl Served {
    pub(super) fn new(hall: Option<&Arc<Hall>>, wanted: GssService) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut adapter = iwarp();
        let bound = adapter.listen(&any_iwarp()).unwrap();
        let rdma = adapter.listener_address(bound).unwrap();
        let config = Config { record_bytes_max: 8 << 20, ..Config::default() };
        let group = Group::new(vec![listener], 2, config).unwrap();
        let gss = hall.cloned().map(|hall| hall as Arc<dyn Acceptor>);
        let calls = Arc::<AtomicUsize>::default();
        let program = || Program { gss: gss.clone(), wanted, calls: calls.clone() };
        let over_tcp = group.reactor(|_| program()).unwrap();
        let over_rdma = group.rdma_reactor(vec![adapter], |_| program()).unwrap();
        let threads =
            vec![std::thread::spawn(|| over_tcp.run()), std::thread::spawn(|| over_rdma.run())];
        Self { address, rdma, calls, group, threads }
    }

    pub(super) fn connect(&self, initiator: &Arc<Initiator>) -> RpcClient {
        RpcClient::connect(self.address, options(initiator), None).unwrap()
    }

    pub(super) fn connect_rdma(&self, initiator: &Arc<Initiator>) -> RpcClient {
        let port = Port::new(iwarp()).unwrap();
        RpcClient::connect_rdma(&port, &self.rdma, options(initiator), None).unwrap()
    }
}

pub(super) fn options(initiator: &Arc<Initiator>) -> Options {
    Options {
        identity: Identity::Gss(initiator.clone()),
        record_bytes_max: 8 << 20,
        ..Options::default()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.group.stop();
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

/// The data in the results of `MIRROR`, if they came whole.
pub(super) fn mirrored(results: &[u8]) -> &[u8] {
    let mut decoder = Decoder::new(results);
    let data = decoder.opaque(8 << 20).unwrap();
    assert_eq!(decoder.u32().unwrap(), 7);
    data
}

pub(super) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ at >> 8 ^ 0x5a) as u8).collect()
}
