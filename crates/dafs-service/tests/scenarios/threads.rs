//! Many threads at once on few files: conflicting state never exists together, and no state is left
//! at the end.

use crate::common::*;
use dafs_service::{
    Caller, Client, Front, Handle, LockKind, LockOwner, LockRequest, OpenRequest, RemoveMode,
    Service, Share, StateRef, Subject, Want,
};
use dafs_store::{Cred, Wait};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

const THREADS: usize = 6;
const ROUNDS: usize = 300;

/// A client that returns recalled delegations when it next looks, as one with a thread for that
/// would.
#[derive(Default)]
struct Mailbox(Mutex<Vec<(Handle, StateRef)>>);

impl Front for Mailbox {
    fn recall(&self, _: dafs_service::ClientKey, handle: &Handle, state: StateRef, _: bool) {
        self.0.lock().unwrap().push((*handle, state));
    }

    fn get_attr(&self, _: dafs_service::ClientKey, _: &Handle, _: u64) {}

    fn lock_available(&self, _: dafs_service::ClientKey, _: &Handle, _: &[u8]) {}

    fn client_gone(&self, _: dafs_service::ClientKey) {}
}

struct Actor<'a> {
    service: &'a Service,
    client: Arc<Client>,
    mailbox: Arc<Mailbox>,
    cred: Cred,
    now_ns: u64,
}

impl Actor<'_> {
    fn caller(&self) -> Caller<'_> {
        let wait = Wait::Allowed;
        Caller {
            client: &self.client,
            cred: &self.cred,
            subject: Subject::Server,
            wait,
            now_ns: self.now_ns,
        }
    }

    fn return_recalled(&self) {
        let recalled = std::mem::take(&mut *self.mailbox.0.lock().unwrap());
        for (handle, state) in recalled {
            self.service.delegations.take_back(self.caller(), Some(&handle), state).unwrap();
        }
    }
}

fn actors<'a>(world: &'a World) -> Vec<Actor<'a>> {
    let actor = |at: usize| {
        let client = world.nfs(&at.to_string());
        let mailbox = Arc::new(Mailbox::default());
        client.set_front(Arc::<Mailbox>::downgrade(&mailbox));
        let (service, cred) = (&world.service, world.cred.clone());
        Actor { service, client, mailbox, cred, now_ns: world.now_ns.get() }
    };
    (0..THREADS).map(actor).collect()
}

#[test]
fn denials_and_locks_exclude_between_threads() {
    let world = World::new();
    let (share_holders, lock_holders) = (AtomicU32::new(0), AtomicU32::new(0));
    let entered = AtomicU32::new(0);
    let inside = |holders: &AtomicU32| {
        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two at once");
        entered.fetch_add(1, Ordering::SeqCst);
        std::thread::yield_now();
        holders.fetch_sub(1, Ordering::SeqCst);
    };
    let alone = Share { deny_read: true, deny_write: true, ..BOTH };
    std::thread::scope(|scope| {
        for actor in actors(&world) {
            let (world_root, inside) = (world.root, &inside);
            let (share_holders, lock_holders) = (&share_holders, &lock_holders);
            let plain = |name: &'static str, share| OpenRequest {
                want: Want { kind: dafs_service::WantKind::None, ..Want::default() },
                ..OpenRequest::by_name(
                    // Leaked once for each thread, so that requests may borrow it.
                    Box::leak(Box::new(world_root)),
                    name.as_bytes(),
                    b"owner",
                    share,
                    make(),
                )
            };
            let (exclusive, shared) = (plain("alone", alone), plain("together", BOTH));
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    if let Ok(opened) = actor.service.opens.open(actor.caller(), &exclusive) {
                        inside(share_holders);
                        let (handle, id) = (*opened.state.handle(), opened.state.id());
                        actor.service.opens.close(actor.caller(), &handle, id).unwrap();
                    }
                    let opened = actor.service.opens.open(actor.caller(), &shared).unwrap();
                    let handle = *opened.state.handle();
                    let owner = LockOwner::New { open: opened.state.id().into(), owner: b"owner" };
                    let request = lock_request(owner, (10, 10), LockKind::Write);
                    let request = LockRequest { wait: true, ..request };
                    if let Ok(lock) = actor.service.locks.lock(actor.caller(), &handle, &request) {
                        inside(lock_holders);
                        actor
                            .service
                            .locks
                            .unlock(actor.caller(), &handle, lock, 0, u64::MAX)
                            .unwrap();
                    }
                    let id = opened.state.id();
                    actor.service.opens.close(actor.caller(), &handle, id).unwrap();
                }
            });
        }
    });
    assert!(entered.load(Ordering::SeqCst) > 0);
    let counts = world.service.counts();
    assert_eq!((counts.opens, counts.locks, counts.lock_ranges), (0, 0, 0));
    assert_eq!((counts.lock_waiters, counts.open_files), (0, 0));
}

fn make() -> dafs_service::OpenHow {
    dafs_service::OpenHow::Create(dafs_store::CreateHow::Unchecked, Default::default())
}

/// Opens with delegations, removals and returns of all threads on two names.
#[test]
fn delegations_come_and_go_between_threads() {
    let world = World::new();
    std::thread::scope(|scope| {
        for (at, actor) in actors(&world).into_iter().enumerate() {
            let root = world.root;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    actor.return_recalled();
                    let name = if (round + at) % 2 == 0 { &b"f"[..] } else { b"g" };
                    let share = if round % 3 == 0 { BOTH } else { READ };
                    let request = OpenRequest::by_name(&root, name, b"owner", share, make());
                    let caller = Caller { wait: Wait::Never, ..actor.caller() };
                    if let Ok(opened) = actor.service.opens.open(caller, &request) {
                        let (handle, id) = (*opened.state.handle(), opened.state.id());
                        let read = actor.service.opens.io_file(caller, &handle, id, MODE_READ);
                        assert!(read.is_ok());
                        actor.service.opens.close(caller, &handle, id).unwrap();
                    }
                    if round % 7 == at {
                        // Refused while others hold delegations.
                        let mode = RemoveMode::Unchecked;
                        let _refused_or_gone = actor.service.remove(caller, &root, name, mode);
                    }
                }
            });
        }
    });
    let counts = world.service.counts();
    assert_eq!((counts.opens, counts.open_files), (0, 0));
    for info in world.service.clients.info(world.now_ns.get()) {
        world.service.clients.revoke(info.client.key()).unwrap();
    }
    assert_eq!(world.service.counts(), Default::default());
}
