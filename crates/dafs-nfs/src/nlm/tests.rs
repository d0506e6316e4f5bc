//! Requests of two hosts against a store in memory, by the bytes of the wire.

use super::*;
use crate::admission::{Admission, CallerIdentity};
use crate::connection::Connection;
use crate::limits::{BLOCKED_PER_CLIENT_MAX, GRANTED_TRIES_MAX};
use crate::listings::Listings;
use crate::shared::NfsOptions;
use crate::v3::tests::{export, from};
use dafs_mem::Mutex;
use dafs_rpc::LocalReactor;
use dafs_rpc::client::Procedure as Remote;
use dafs_service::{Flavour, Job, Namespace, Pool, Service, ServiceConfig, Subject, WriteVerifier};
use dafs_store::{CreateHow, Cred, SetAttr};
use dafs_wire::nlm4::{
    self, Access, CancelArgs, Deny, Holder, Lock, LockArgs, ShareArgs, ShareResult, TestArgs,
    TestResult, UnlockArgs,
};
use dafs_wire::nsm1::{self, NotifyArgs};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Keeps jobs until the test runs them.
#[derive(Default)]
struct Queue(Mutex<Vec<Job>>);

impl Pool for Queue {
    fn submit(&self, job: Job) {
        self.0.lock().push(job);
    }
}

/// Hosts that answer GRANTED with this status, or not at all.
#[derive(Default)]
struct Hosts {
    status: Mutex<Option<Status>>,
    calls: Mutex<Vec<(IpAddr, Remote, Vec<u8>)>>,
}

impl Peers for Hosts {
    fn host_name(&self) -> &[u8] {
        b"server"
    }

    fn call(&self, host: IpAddr, procedure: Remote, args: &[u8]) -> io::Result<Vec<u8>> {
        self.calls.lock().push((host, procedure, args.to_vec()));
        let status = *self.status.lock();
        let status = status.ok_or_else(|| io::Error::other("no answer"))?;
        Ok(LockResult { cookie: NetObject(b""), status }.encoded())
    }
}

struct World {
    shared: Arc<NfsShared>,
    pool: Arc<Queue>,
    hosts: Arc<Hosts>,
    handle: Vec<u8>,
}

impl World {
    fn new() -> Self {
        let config = ServiceConfig::new(Duration::from_secs(90), 1);
        let networks = vec!["192.0.2.0/24".parse().unwrap()];
        let export = export("", |rules| rules.admits.networks = networks);
        let namespace = Namespace::new(vec![export]).unwrap();
        let service = Arc::new(Service::new(config, namespace));
        let (pool, hosts) = (Arc::<Queue>::default(), Arc::<Hosts>::default());
        let options = NfsOptions {
            server_owner: b"owner".to_vec(),
            server_scope: b"scope".to_vec(),
            implementation_domain: String::new(),
            implementation_name: String::new(),
            secret: [1; 16],
            clock_start_ns: 0,
            clock: || 0,
        };
        let verifier = Arc::new(WriteVerifier::new(7));
        let admission = Admission { own_uid: 0 };
        let shared = NfsShared::new(service.clone(), pool.clone(), verifier, admission, options);
        shared.accept_peers(hosts.clone());
        let cred = Cred::new(0, 0);
        let caller = Caller {
            client: service.stateless_client(),
            cred: &cred,
            subject: Subject::Server,
            wait: Wait::Allowed,
            now_ns: 1,
        };
        let attr = SetAttr { mode: Some(0o666), ..SetAttr::default() };
        let how = CreateHow::Guarded;
        let made = service.stateless_create(caller, &service.root(), b"f", how, &attr).unwrap();
        let handle = wire_handle::encode(&made.handle).to_vec();
        Self { shared, pool, hosts, handle }
    }

    fn sender(&self, host: u8) -> Sender {
        let listings = Arc::<Listings>::default();
        let reactor = LocalReactor::new().unwrap();
        let connection = Connection::new(reactor.connection(1), listings.clone());
        let who = CallerIdentity::unproven(Cred::new(1001, 1001), Flavour::Sys);
        let origin = from(&format!("192.0.2.{host}:700"));
        Sender { origin, who, connection, now_ns: 1, listings }
    }

    /// Sends a request of a host, and repeats it where waiting is allowed.
    fn send(&self, host: u8, procedure: Procedure, args: &impl Encode) -> Option<Vec<u8>> {
        self.send_bytes(host, procedure.number(), &args.encoded())
    }

    fn send_bytes(&self, host: u8, procedure: u32, bytes: &[u8]) -> Option<Vec<u8>> {
        let sender = self.sender(host);
        let mut stages = Stages::begin(sender.now_ns);
        for wait in [Wait::Never, Wait::Allowed] {
            match call(&self.shared, &sender, procedure, bytes, (wait, &mut stages)) {
                Answer::Reply(reply) => return Some(reply.to_bytes()),
                Answer::Wait(_) => {}
                Answer::Garbage | Answer::NoProcedure => return None,
            }
        }
        panic!("it waits where it may");
    }

    fn lock<'a>(&'a self, owner: &'a [u8], offset: u64, length: u64) -> Lock<'a> {
        let (caller_name, handle) = (HostName(b"guest"), NetObject(&self.handle));
        Lock { caller_name, handle, owner: NetObject(owner), svid: 7, offset, length }
    }

    fn status(&self, host: u8, procedure: Procedure, args: &impl Encode) -> Status {
        let results = self.send(host, procedure, args).unwrap();
        let result = LockResult::decode(&mut Decoder::new(&results)).unwrap();
        assert_eq!(result.cookie, NetObject(b"cookie"));
        result.status
    }

    fn take(&self, host: u8, lock: Lock<'_>, block: bool, state: u32) -> Status {
        let (cookie, exclusive, reclaim) = (NetObject(b"cookie"), true, false);
        let args = LockArgs { cookie, block, exclusive, lock, reclaim, state };
        self.status(host, Procedure::Lock, &args)
    }

    fn release(&self, host: u8, lock: Lock<'_>) -> Status {
        let args = UnlockArgs { cookie: NetObject(b"cookie"), lock };
        self.status(host, Procedure::Unlock, &args)
    }

    fn is_free(&self, host: u8, lock: Lock<'_>) -> bool {
        let args = TestArgs { cookie: NetObject(b""), exclusive: true, lock };
        let results = self.send(host, Procedure::Test, &args).unwrap();
        TestResult::decode(&mut Decoder::new(&results)).unwrap().outcome.unwrap().is_none()
    }

    fn run_jobs(&self) {
        loop {
            let jobs = std::mem::take(&mut *self.pool.0.lock());
            if jobs.is_empty() {
                return;
            }
            jobs.into_iter().for_each(|job| job());
        }
    }

    fn notify(&self, host: u8, name: &[u8], state: u32) {
        let args = NotifyArgs { name: HostName(name), state }.encoded();
        let number = nsm1::Procedure::Notify.number();
        let answer = call_monitor(&self.shared, &self.sender(host), number, &args);
        assert!(matches!(answer, Answer::Reply(_)));
        self.run_jobs();
    }
}

#[test]
fn hosts_lock_test_and_unlock() {
    let world = World::new();
    let mine = world.lock(b"7@guest", 10, 0);
    assert_eq!(world.take(1, mine, false, 3), Status::Granted);
    assert_eq!(world.take(1, mine, false, 3), Status::Granted);
    // The same names at another host are another owner.
    assert_eq!(world.take(2, mine, false, 3), Status::Denied);
    let args = TestArgs { cookie: NetObject(b"c"), exclusive: false, lock: mine };
    let results = world.send(2, Procedure::Test, &args).unwrap();
    let owner = NetObject(b"7@guest");
    let holder = Holder { exclusive: true, svid: 7, owner, offset: 10, length: 0 };
    let result = TestResult { cookie: NetObject(b"c"), outcome: Ok(Some(holder)) };
    assert_eq!(TestResult::decode(&mut Decoder::new(&results)), Ok(result));
    assert!(world.is_free(1, mine) && world.is_free(2, world.lock(b"7@guest", 0, 10)));
    assert_eq!(world.release(2, mine), Status::Granted);
    assert!(!world.is_free(2, mine));
    assert_eq!(world.release(1, mine), Status::Granted);
    assert_eq!(world.take(2, mine, false, 3), Status::Granted);
    assert_eq!(world.shared.service.counts().opens, 1);
    // A request counts once, also if it has to wait. One of these locks was denied.
    let counted = world.shared.service.metrics();
    let counted = counted.operation(FrontEnd::Nlm, Procedure::Lock.number());
    assert_eq!(counted.latency.read().0.iter().sum::<u64>(), 4);
    assert_eq!(counted.errors.load(Ordering::Relaxed), 1);
}

#[test]
fn a_host_that_waits_is_told_of_its_lock() {
    let world = World::new();
    *world.hosts.status.lock() = Some(Status::Granted);
    let lock = world.lock(b"o", 0, 10);
    assert_eq!(world.take(1, lock, true, 3), Status::Granted);
    assert_eq!(world.take(2, lock, true, 3), Status::Blocked);
    assert_eq!(world.take(2, lock, true, 3), Status::Blocked);
    world.run_jobs();
    assert!(world.hosts.calls.lock().is_empty());
    assert_eq!(world.release(1, lock), Status::Granted);
    // The answer to a copy of the request must not come before GRANTED.
    assert_eq!(world.take(2, lock, true, 3), Status::Blocked);
    world.run_jobs();
    let calls = std::mem::take(&mut *world.hosts.calls.lock());
    let [(host, procedure, args)] = &calls[..] else { panic!("{calls:?}") };
    let number = Procedure::Granted.number();
    let expected = Remote { program: nlm4::PROGRAM, version: 4, procedure: number };
    assert_eq!((host.to_string(), *procedure), ("192.0.2.2".to_owned(), expected));
    let args = TestArgs::decode(&mut Decoder::new(args)).unwrap();
    assert_eq!((args.exclusive, args.lock), (true, lock));
    assert!(!world.is_free(1, lock) && world.is_free(2, lock));
    assert_eq!(world.take(2, lock, true, 3), Status::Granted);
}

#[test]
fn a_lock_that_a_host_does_not_take_is_free_again() {
    let world = World::new();
    let lock = world.lock(b"o", 0, 10);
    for (status, calls) in [(None, GRANTED_TRIES_MAX as usize), (Some(Status::Denied), 1)] {
        *world.hosts.status.lock() = status;
        assert_eq!(world.take(1, lock, false, 3), Status::Granted);
        assert_eq!(world.take(2, lock, true, 3), Status::Blocked);
        assert_eq!(world.release(1, lock), Status::Granted);
        world.run_jobs();
        assert_eq!(std::mem::take(&mut *world.hosts.calls.lock()).len(), calls);
        assert!(world.is_free(1, lock));
        assert_eq!(world.shared.service.counts().opens, 0);
    }
}

#[test]
fn a_host_that_cancels_is_not_told() {
    let world = World::new();
    let lock = world.lock(b"o", 0, 10);
    assert_eq!(world.take(1, lock, false, 3), Status::Granted);
    assert_eq!(world.take(2, lock, true, 3), Status::Blocked);
    let args = CancelArgs { cookie: NetObject(b"cookie"), block: true, exclusive: true, lock };
    assert_eq!(world.status(2, Procedure::Cancel, &args), Status::Granted);
    assert_eq!(world.status(2, Procedure::Cancel, &args), Status::Denied);
    assert_eq!(world.release(1, lock), Status::Granted);
    world.run_jobs();
    assert!(world.hosts.calls.lock().is_empty());
    assert!(world.is_free(1, lock));
}

#[test]
fn a_restart_ends_the_locks_of_the_host_that_tells_it() {
    let world = World::new();
    let lock = world.lock(b"o", 0, 10);
    assert_eq!(world.take(1, lock, false, 3), Status::Granted);
    world.notify(2, b"guest", 5);
    world.notify(1, b"other", 5);
    // A copy of the notification of the run in which it has taken the lock.
    world.notify(1, b"guest", 3);
    assert!(!world.is_free(2, lock));
    world.notify(1, b"GUEST.example.org", 5);
    assert!(world.is_free(2, lock));
    // A lock of the next run comes before its notification.
    assert_eq!(world.take(1, lock, false, 5), Status::Granted);
    assert_eq!(world.take(1, world.lock(b"p", 20, 1), false, 7), Status::Granted);
    assert!(world.is_free(2, lock));
    world.notify(1, b"guest", 7);
    assert!(!world.is_free(2, world.lock(b"p", 20, 1)));
}

#[test]
fn a_user_of_a_host_frees_no_lock_of_its_root() {
    let world = World::new();
    let lock = world.lock(b"o", 0, 10);
    assert_eq!(world.take(1, lock, false, 3), Status::Granted);
    let user = Sender { origin: from("192.0.2.1:2000"), ..world.sender(1) };
    let notified = NotifyArgs { name: HostName(b"guest"), state: 5 }.encoded();
    let number = nsm1::Procedure::Notify.number();
    let answer = call_monitor(&world.shared, &user, number, &notified);
    assert!(matches!(answer, Answer::Reply(_)));
    world.run_jobs();
    let unlock = UnlockArgs { cookie: NetObject(b"cookie"), lock }.encoded();
    let (number, mut stages) = (Procedure::Unlock.number(), Stages::begin(1));
    let answer = call(&world.shared, &user, number, &unlock, (Wait::Allowed, &mut stages));
    assert!(matches!(answer, Answer::Reply(_)));
    assert!(!world.is_free(2, lock));
}

#[test]
fn reservations_exclude_those_of_other_hosts() {
    let world = World::new();
    let send = |host, procedure, access, deny| {
        let args = ShareArgs {
            cookie: NetObject(b""),
            caller_name: HostName(b"guest"),
            handle: NetObject(&world.handle),
            owner: NetObject(b"o"),
            deny,
            access,
            reclaim: false,
        };
        let results = world.send(host, procedure, &args).unwrap();
        ShareResult::decode(&mut Decoder::new(&results)).unwrap().status
    };
    assert_eq!(send(1, Procedure::Share, Access::Both, Deny::Write), Status::Granted);
    assert_eq!(send(2, Procedure::Share, Access::Write, Deny::None), Status::Denied);
    assert_eq!(send(2, Procedure::Share, Access::Read, Deny::None), Status::Granted);
    assert_eq!(world.take(1, world.lock(b"o", 0, 1), false, 3), Status::Granted);
    assert_eq!(send(1, Procedure::Unshare, Access::Both, Deny::Write), Status::Granted);
    assert_eq!(send(2, Procedure::Share, Access::Write, Deny::None), Status::Granted);
}

#[test]
fn bad_requests_are_refused_and_waiting_ones_are_bounded() {
    let world = World::new();
    let lock = world.lock(b"o", 0, 10);
    let long = [b'o'; 1024];
    assert_eq!(world.take(1, world.lock(&long, 0, 1), false, 3), Status::DeniedNoLocks);
    let name = HostName(&long);
    let named = Lock { caller_name: name, ..lock };
    assert_eq!(world.take(1, named, false, 3), Status::DeniedNoLocks);
    for handle in [&b""[..], &[7; 64], &long] {
        let strange = Lock { handle: NetObject(handle), ..lock };
        assert_eq!(world.take(1, strange, false, 3), Status::StaleHandle);
    }
    for (offset, length) in [(1 << 63, 1), (0, u64::MAX), (u64::MAX, 0), ((1 << 63) - 1, 2)] {
        assert_eq!(world.take(1, world.lock(b"o", offset, length), false, 3), Status::TooBig);
    }
    assert_eq!(world.send_bytes(1, Procedure::Lock.number(), &[0xff; 12]), None);
    assert_eq!(world.send_bytes(1, 6, &[]), None);
    assert_eq!(world.take(1, lock, false, 3), Status::Granted);
    let mut refused = 0;
    for number in 0..10_000_u32 {
        match world.take(2, world.lock(&number.to_be_bytes(), 0, 10), true, 3) {
            Status::Blocked => {}
            status => {
                assert_eq!(status, Status::DeniedNoLocks);
                refused += 1;
            }
        }
    }
    assert_eq!(refused, 10_000 - BLOCKED_PER_CLIENT_MAX);
    // Another host still waits and is served.
    *world.hosts.status.lock() = Some(Status::Denied);
    assert_eq!(world.release(1, lock), Status::Granted);
    world.run_jobs();
    assert_eq!(world.take(3, lock, true, 3), Status::Granted);
    world.notify(2, b"guest", 5);
    assert_eq!(world.shared.service.counts().opens, 1);
}
