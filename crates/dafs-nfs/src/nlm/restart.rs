//! Restarts of clients, whose locks end, and of the server, after which clients reclaim theirs (NSM).
//!
//! Invariants
//! * A notification of a restart ends the locks of the sender's address alone, and a copy of it ends
//!   no lock that the host has taken since. Only root of a host ends the locks of all its users.
//! * A client is called for one notification at a time, and not after grace.

use super::{Answer, Context, Stop, place_of};
use crate::limits::{NOTIFY_EVERY_NS, PEERS_LANE};
use crate::shared::NfsShared;
use crate::v3::Sender;
use dafs_mem::{Mutex, Shrinking as _};
use dafs_rpc::Reply;
use dafs_rpc::client::Procedure as Remote;
use dafs_service::{Client, ClientKey, Origin, Owner, Place};
use dafs_store::Wait;
use dafs_wire::nlm4::{FreeAllArgs, HostName};
use dafs_wire::nsm1::{self, NotifyArgs, Procedure};
use dafs_wire::xdr::{Decode, Decoder, Encode};
use rustc_hash::{FxHashMap, FxHashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The runs of clients, and the clients that know of the server's restart.
#[derive(Default)]
pub(crate) struct Restarts {
    /// The state numbers that the clients have given with their locks.
    states: Mutex<FxHashMap<ClientKey, u32>>,
    /// The clients that know of the server's restart, or are being told.
    told: Mutex<FxHashSet<Vec<u8>>>,
    /// The time of the next notifications.
    due_ns: AtomicU64,
}

impl Restarts {
    /// Notes the state number of a client. Returns false if it is another one than before. Hosts
    /// without a status monitor give 0.
    fn note(&self, client: ClientKey, state: u32) -> bool {
        state == 0 || *self.states.lock().entry(client).or_insert(state) == state
    }

    fn knows(&self, client: ClientKey, state: u32) -> bool {
        self.states.lock().get(&client) == Some(&state)
    }

    pub(super) fn forget(&self, client: ClientKey) {
        self.states.lock().remove_and_shrink(&client);
    }
}

impl Context<'_> {
    /// Makes or finds the record of the caller's lock manager in its run with this state number. The
    /// locks of an earlier run end.
    pub(super) fn manager_in(&self, name: HostName<'_>, state: u32) -> Result<Arc<Client>, Stop> {
        let manager = self.manager(name)?;
        let restarts = &self.shared.nlm.restarts;
        if restarts.note(manager.key(), state) {
            return Ok(manager);
        }
        if self.wait == Wait::Never {
            return Err(Stop::Wait(None));
        }
        end(self.shared, &manager);
        let manager = self.manager(name)?;
        restarts.note(manager.key(), state);
        Ok(manager)
    }
}

/// Ends the locks and reservations of a lock manager. May wait for the disk.
fn end(shared: &NfsShared, manager: &Client) {
    if manager.is_gone() {
        // A copy of the notification has ended it.
        return;
    }
    let client = manager.name().escape_ascii();
    tracing::info!(%client, "an NFSv3 client has restarted; its locks end");
    if let Err(error) = shared.service.clients.revoke(manager.key()) {
        let client = manager.name().escape_ascii();
        tracing::warn!(%client, %error, "the locks of a restarted NFSv3 client stay");
    }
}

/// The name of a host without its domain.
fn label(name: &[u8]) -> &[u8] {
    name.split(|byte| *byte == b'.').next().unwrap_or_default()
}

/// Splits the service's name of a lock manager into its place and the name of its host.
fn parts(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = name.iter().position(|byte| *byte == b' ')?;
    Some((&name[..at], &name[at + 1..]))
}

/// Ends the locks of a host at a place, unless the lock manager has told this state number with one
/// of them. A place without a mark speaks for the users of its host, too.
fn end_all(shared: &Arc<NfsShared>, place: &str, name: &[u8], state: Option<u32>) {
    let of_users = format!("{place}?");
    for manager in shared.service.clients.lock_managers_at(place.as_bytes()) {
        let Some((at, own)) = parts(manager.name()) else { continue };
        let is_there = at == place.as_bytes() || at.starts_with(of_users.as_bytes());
        let is_current = state.is_some_and(|state| shared.nlm.restarts.knows(manager.key(), state));
        if is_there && label(own).eq_ignore_ascii_case(label(name)) && !is_current {
            let own = shared.clone();
            shared.run_elsewhere(Box::new(move || end(&own, &manager)));
        }
    }
}

pub(super) fn free_all(cx: &Context<'_>, args: &FreeAllArgs<'_>) -> Result<Reply, Stop> {
    end_all(cx.shared, &place_of(&cx.sender.origin), args.name.0, None);
    Ok(Reply::new())
}

/// Executes a request of NSM.
pub(crate) fn call_monitor(
    shared: &Arc<NfsShared>,
    sender: &Sender,
    procedure: u32,
    args: &[u8],
) -> Answer {
    match Procedure::from_number(procedure) {
        Some(Procedure::Null) => Answer::Reply(Reply::new()),
        Some(Procedure::Notify) => match NotifyArgs::decode(&mut Decoder::new(args)) {
            Ok(args) => {
                end_all(shared, &place_of(&sender.origin), args.name.0, Some(args.state));
                Answer::Reply(Reply::new())
            }
            Err(_) => Answer::Garbage,
        },
        None => Answer::NoProcedure,
    }
}

impl NfsShared {
    /// Ends the locks of an NFSv3 client that has restarted, as its status monitor at `address` says
    /// in a datagram.
    pub fn host_restarted(self: &Arc<Self>, address: IpAddr, args: &NotifyArgs<'_>) {
        end_all(self, &address.to_canonical().to_string(), args.name.0, Some(args.state));
    }
}

/// Notifies the clients of the last run, so that they reclaim their locks. Every reactor calls it
/// from time to time.
pub(crate) fn tick(shared: &Arc<NfsShared>, now_ns: u64) {
    let (restarts, clients) = (&shared.nlm.restarts, &shared.service.clients);
    let Some(peers) = shared.nlm.peers.get().filter(|_| clients.in_grace()) else { return };
    let due_ns = restarts.due_ns.load(Ordering::Relaxed);
    let next_ns = now_ns.saturating_add(NOTIFY_EVERY_NS);
    let order = Ordering::Relaxed;
    if now_ns < due_ns || restarts.due_ns.compare_exchange(due_ns, next_ns, order, order).is_err() {
        return;
    }
    // The number differs from that of the last run, and is odd as that of a host that runs.
    let state = shared.service.config().instance << 1 | 1;
    for name in clients.awaited_lock_managers() {
        let Some(host) = host_of(&name) else { continue };
        if !restarts.told.lock().insert(name.clone()) {
            continue;
        }
        let (own, peers) = (shared.clone(), peers.clone());
        let owner = Owner { origin: Origin::host(host), number: 0 };
        let job = move || {
            if !own.service.clients.in_grace() {
                return;
            }
            let args = NotifyArgs { name: HostName(peers.host_name()), state }.encoded();
            let procedure = Procedure::Notify.number();
            let procedure = Remote { program: nsm1::PROGRAM, version: nsm1::VERSION, procedure };
            if let Err(error) = peers.call(host, procedure, &args) {
                tracing::info!(%host, %error, "an NFSv3 client does not learn of the restart yet");
                own.nlm.restarts.told.lock().remove(&name);
            }
        };
        shared.run_in(Place { lane: PEERS_LANE, owner }, Box::new(job));
    }
}

/// The address in the service's name of a lock manager.
fn host_of(name: &[u8]) -> Option<IpAddr> {
    let (place, _) = parts(name)?;
    let address = place.split(|byte| *byte == b'?').next()?;
    std::str::from_utf8(address).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_number_names_a_run() {
        let restarts = Restarts::default();
        let client = ClientKey(7);
        assert!(restarts.note(client, 0) && !restarts.knows(client, 0));
        assert!(restarts.note(client, 5) && restarts.note(client, 5) && restarts.note(client, 0));
        assert!(!restarts.note(client, 7) && restarts.knows(client, 5));
        restarts.forget(client);
        assert!(restarts.note(client, 7));
    }

    #[test]
    fn names_have_an_address_and_a_label() {
        assert_eq!(host_of(b"192.0.2.1 guest"), Some([192, 0, 2, 1].into()));
        assert_eq!(host_of(b"2001:db8::1 a b"), Some("2001:db8::1".parse().unwrap()));
        assert_eq!(host_of(b"192.0.2.1? guest"), Some([192, 0, 2, 1].into()));
        assert_eq!(host_of(b"127.0.0.1?1000 guest"), Some([127, 0, 0, 1].into()));
        assert_eq!((host_of(b""), host_of(b"192.0.2.1")), (None, None));
        assert_eq!(
            (label(b"guest.example.org"), label(b"guest"), label(b"")),
            (&b"guest"[..], &b"guest"[..], &b""[..])
        );
    }
}
