//! Owners that wait for a lock. When it is free, the server takes it for the owner and tells the
//! lock manager of the owner's host (GRANTED).
//!
//! Invariants
//! * The requests that wait are bounded, for each client and in all.
//! * While GRANTED is under way the answer to a copy of the request is BLOCKED. So a client that
//!   refuses GRANTED does not hold the lock by another answer.
//! * A lock that its owner does not confirm is given back after a few tries. A client that still
//!   waits asks for it again.

use super::lock::Range;
use crate::admission::{CallerIdentity, Origin};
use crate::limits::{BLOCKED_MAX, BLOCKED_PER_CLIENT_MAX, GRANTED_TRIES_MAX, PEERS_LANE};
use crate::shared::NfsShared;
use crate::v3::Sender;
use crate::wire_handle;
use dafs_mem::{Mutex, Shrinking as _};
use dafs_rpc::client::Procedure as Remote;
use dafs_service::{Caller, Client, ClientKey, Handle, LockError, Owner, Place};
use dafs_store::Wait;
use dafs_wire::nlm4::{
    self, HostName, Lock, LockArgs, LockResult, NetObject, Procedure, Status, TestArgs,
};
use dafs_wire::xdr::{Decode, Decoder, Encode};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// An owner that waits for a range of a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Waiting {
    pub(super) client: ClientKey,
    pub(super) handle: Handle,
    pub(super) owner: Vec<u8>,
}

/// Its request.
#[derive(Debug, Clone)]
pub(super) struct Request {
    origin: Origin,
    who: CallerIdentity,
    caller_name: Vec<u8>,
    owner: Vec<u8>,
    svid: u32,
    exclusive: bool,
    offset: u64,
    length: u64,
}

impl Request {
    pub(super) fn of(sender: &Sender, args: &LockArgs<'_>) -> Self {
        let Lock { caller_name, owner, svid, offset, length, .. } = args.lock;
        Self {
            origin: sender.origin,
            who: sender.who.clone(),
            caller_name: caller_name.0.to_vec(),
            owner: owner.0.to_vec(),
            svid,
            exclusive: args.exclusive,
            offset,
            length,
        }
    }

    fn lock<'a>(&'a self, handle: &'a [u8]) -> Lock<'a> {
        Lock {
            caller_name: HostName(&self.caller_name),
            handle: NetObject(handle),
            owner: NetObject(&self.owner),
            svid: self.svid,
            offset: self.offset,
            length: self.length,
        }
    }
}

/// All owners that wait.
#[derive(Default)]
pub(crate) struct Blocked(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    waiting: FxHashMap<Waiting, Request>,
    /// Those that are being told. Two jobs may tell one of them for a moment.
    granting: FxHashMap<Waiting, u32>,
    of_client: FxHashMap<ClientKey, usize>,
}

impl Inner {
    fn take(&mut self, key: &Waiting) -> Option<Request> {
        let request = self.waiting.remove_and_shrink(key)?;
        if let Some(count) = self.of_client.get_mut(&key.client) {
            *count -= 1;
            if *count == 0 {
                self.of_client.remove_and_shrink(&key.client);
            }
        }
        Some(request)
    }
}

impl Blocked {
    /// Keeps the request of an owner, in place of an older one. Returns false if there are too many.
    pub(super) fn put(&self, key: Waiting, request: impl FnOnce() -> Request) -> bool {
        let mut inner = self.0.lock();
        if !inner.waiting.contains_key(&key) {
            let own = inner.of_client.get(&key.client).copied().unwrap_or(0);
            if own >= BLOCKED_PER_CLIENT_MAX || inner.waiting.len() >= BLOCKED_MAX {
                return false;
            }
            inner.of_client.insert(key.client, own + 1);
        }
        inner.waiting.insert(key, request());
        true
    }

    /// Removes the request of an owner, if it waits.
    pub(super) fn take(&self, key: &Waiting) -> Option<Request> {
        self.0.lock().take(key)
    }

    /// Removes the request of an owner that is to be told.
    fn begin(&self, key: &Waiting) -> Option<Request> {
        let mut inner = self.0.lock();
        let request = inner.take(key)?;
        *inner.granting.entry(key.clone()).or_default() += 1;
        Some(request)
    }

    fn end(&self, key: &Waiting) {
        let mut inner = self.0.lock();
        let Some(jobs) = inner.granting.get_mut(key) else { return };
        *jobs -= 1;
        if *jobs == 0 {
            inner.granting.remove_and_shrink(key);
        }
    }

    /// True while an owner is being told of its lock.
    pub(super) fn is_granting(&self, key: &Waiting) -> bool {
        self.0.lock().granting.contains_key(key)
    }

    /// Forgets a client that is gone.
    pub(super) fn forget(&self, client: ClientKey) {
        let mut inner = self.0.lock();
        if inner.of_client.remove_and_shrink(&client).is_some() {
            inner.waiting.retain(|key, _| key.client != client);
            inner.waiting.shrink_if_sparse();
        }
    }
}

/// The lock for which an owner waits may be free. Does not block.
pub(crate) fn lock_available(
    shared: &Arc<NfsShared>,
    manager: Arc<Client>,
    handle: &Handle,
    owner: &[u8],
) {
    let key = Waiting { client: manager.key(), handle: *handle, owner: owner.to_vec() };
    let Some(request) = shared.nlm.blocked.begin(&key) else { return };
    let owner = Owner { origin: request.origin.of_turns(), number: manager.key().0 };
    let own = shared.clone();
    let job = move || {
        grant(&own, &manager, &key, request);
        own.nlm.blocked.end(&key);
    };
    shared.run_in(Place { lane: PEERS_LANE, owner }, Box::new(job));
}

/// Takes the lock for its owner, and tells its host.
fn grant(shared: &Arc<NfsShared>, manager: &Arc<Client>, key: &Waiting, request: Request) {
    let (service, blocked) = (&shared.service, &shared.nlm.blocked);
    let handle = wire_handle::encode(&key.handle);
    let Ok(range) = Range::of(key.handle, &request.lock(&handle)) else { return };
    let (cred, subject) = (&request.who.cred, request.origin.subject(None));
    let (wait, now_ns) = (Wait::Allowed, shared.clock_ns());
    let caller = Caller { client: manager, cred, subject, wait, now_ns };
    // Another owner may have been faster. Then this one waits on.
    if !blocked.put(key.clone(), || request.clone()) {
        return;
    }
    let kind = super::lock::kind(request.exclusive);
    // A client that sets a fence against the owner's host waits for this, but not for the host.
    let entry = service.fences.begin_work(request.origin.address());
    let outcome = service.nlm_lock(caller, &range.place(), kind, true, false);
    drop(entry);
    match outcome {
        Ok(()) => {}
        Err(LockError::Denied(_)) => return,
        Err(error) => {
            tracing::debug!(%error, "an NFSv3 client has to ask again for a lock");
            blocked.take(key);
            return;
        }
    }
    blocked.take(key);
    if is_confirmed(shared, &request, &handle) {
        return;
    }
    let host = request.origin.address();
    tracing::info!(%host, "an NFSv3 client does not take the lock that it waited for");
    if let Err(error) = service.nlm_unlock(caller, &range.place()) {
        tracing::warn!(%host, %error, "a lock that no client has taken stays");
    }
}

/// Tells the host of an owner of its lock. Returns true if the owner takes it.
fn is_confirmed(shared: &NfsShared, request: &Request, handle: &[u8]) -> bool {
    let Some(peers) = shared.nlm.peers.get() else { return false };
    let cookie = shared.clock_ns().to_be_bytes();
    let args = TestArgs {
        cookie: NetObject(&cookie),
        exclusive: request.exclusive,
        lock: request.lock(handle),
    };
    let procedure = Procedure::Granted.number();
    let procedure = Remote { program: nlm4::PROGRAM, version: nlm4::VERSION, procedure };
    let (args, host) = (args.encoded(), request.origin.client_address().ip);
    for _ in 0..GRANTED_TRIES_MAX {
        match peers.call(host, procedure, &args) {
            Ok(results) => {
                let result = LockResult::decode(&mut Decoder::new(&results));
                return result.is_ok_and(|result| result.status == Status::Granted);
            }
            Err(error) => tracing::debug!(%host, %error, "GRANTED has got no answer"),
        }
    }
    false
}
