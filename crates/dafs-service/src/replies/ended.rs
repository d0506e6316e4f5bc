//! The replies of sessions that have ended.

use super::{Entry, Kept, KeptReply, RequestKey};
use crate::client::{Client, Clients, Identity};
use crate::durable::{Answer, Durable};
use crate::hosts::Host;
use crate::limits::{
    REPLY_BYTES_MAX, REPLY_BYTES_PER_CLIENT_MAX, REPLY_SESSIONS_MAX, REPLY_SESSIONS_PER_CLIENT_MAX,
};
use dafs_mem::Mutex;
use dafs_mem::Shrinking as _;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The overhead in bytes of a session, and of an entry, besides the reply.
const OVERHEAD_BYTES: usize = 128;

/// The replies of a session that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedSession {
    /// The byte order of all replies.
    pub little_endian: bool,
    /// At most one entry per stream.
    pub entries: Vec<Entry>,
}

impl EndedSession {
    fn len_bytes(&self) -> usize {
        let entries = self.entries.iter().map(|entry| entry.bytes.len() + OVERHEAD_BYTES);
        OVERHEAD_BYTES + entries.sum::<usize>()
    }
}

/// Why there is no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoReply {
    /// The session is unknown, or belongs to another client: the server cannot tell if the request
    /// was executed.
    UnknownSession,
    /// The session is known, and the request was not executed.
    NotExecuted,
}

/// The owner of replies: a client by name and identity.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Owner {
    name: Vec<u8>,
    identity: Identity,
}

impl Owner {
    fn of(client: &Client) -> Self {
        Self { name: client.name().to_vec(), identity: client.identity().clone() }
    }
}

#[derive(Debug)]
struct KeptSession {
    owner: Arc<Owner>,
    host: Host,
    verifier: [u8; 8],
    session: EndedSession,
    len_bytes: usize,
    /// Its number in the order of age.
    number: u64,
    until_ns: u64,
}

/// The sessions of one owner, or of one host.
#[derive(Debug, Default)]
struct SomeSessions {
    /// Numbers in the order of age.
    sessions: BTreeSet<u64>,
    len_bytes: usize,
}

#[derive(Debug, Default)]
struct Table {
    sessions: FxHashMap<[u8; 8], KeptSession>,
    owners: FxHashMap<Arc<Owner>, SomeSessions>,
    hosts: FxHashMap<Host, SomeSessions>,
    /// All sessions, by age, which is also the order of their expiry.
    by_age: BTreeMap<u64, [u8; 8]>,
    next: u64,
    len_bytes: usize,
}

impl SomeSessions {
    fn add(&mut self, number: u64, len_bytes: usize) {
        self.sessions.insert(number);
        self.len_bytes += len_bytes;
    }

    fn remove(&mut self, kept: &KeptSession) {
        self.sessions.remove(&kept.number);
        self.len_bytes -= kept.len_bytes;
    }
}

impl Table {
    fn insert(&mut self, id: [u8; 8], client: &Client, session: EndedSession, until_ns: u64) {
        self.remove(id);
        self.next += 1;
        let (len_bytes, owner, host) =
            (session.len_bytes(), Owner::of(client), client.host().host());
        let known = self.owners.get_key_value(&owner).map(|(owner, _)| owner.clone());
        let owner = known.unwrap_or_else(|| Arc::new(owner));
        let (number, verifier) = (self.next, client.verifier());
        self.by_age.insert(number, id);
        self.len_bytes += len_bytes;
        self.owners.entry(owner.clone()).or_default().add(number, len_bytes);
        self.hosts.entry(host).or_default().add(number, len_bytes);
        let kept = KeptSession { owner, host, verifier, session, len_bytes, number, until_ns };
        self.sessions.insert(id, kept);
    }

    fn remove(&mut self, id: [u8; 8]) -> Option<KeptSession> {
        let kept = self.sessions.remove_and_shrink(&id)?;
        self.by_age.remove(&kept.number);
        self.len_bytes -= kept.len_bytes;
        if let Some(of_owner) = self.owners.get_mut(&kept.owner) {
            of_owner.remove(&kept);
            if of_owner.sessions.is_empty() {
                self.owners.remove_and_shrink(&kept.owner);
            }
        }
        if let Some(of_host) = self.hosts.get_mut(&kept.host) {
            of_host.remove(&kept);
            if of_host.sessions.is_empty() {
                self.hosts.remove_and_shrink(&kept.host);
            }
        }
        Some(kept)
    }

    /// Returns a session to evict, after `client` has got another one: the oldest of its own, the
    /// oldest of its host if that has more than is left, or the oldest of all.
    fn excess(&self, client: &Client) -> Option<[u8; 8]> {
        let of_owner = self.owners.get(&Owner::of(client))?;
        let of_host = self.hosts.get(&client.host().host())?;
        let left = REPLY_SESSIONS_MAX.saturating_sub(self.sessions.len());
        let left_bytes = REPLY_BYTES_MAX.saturating_sub(self.len_bytes);
        let number = if of_owner.sessions.len() > REPLY_SESSIONS_PER_CLIENT_MAX
            || of_owner.len_bytes > REPLY_BYTES_PER_CLIENT_MAX
        {
            of_owner.sessions.first()?
        } else if of_host.sessions.len() > 1
            && (of_host.sessions.len() > left || of_host.len_bytes > left_bytes)
        {
            of_host.sessions.first()?
        } else if self.sessions.len() > REPLY_SESSIONS_MAX || self.len_bytes > REPLY_BYTES_MAX {
            self.by_age.keys().next()?
        } else {
            return None;
        };
        self.by_age.get(number).copied()
    }
}

/// The replies of all sessions that have ended.
pub struct Replies {
    clients: Arc<Clients>,
    durable: Arc<Durable>,
    table: Mutex<Table>,
}

impl Replies {
    pub(crate) fn new(clients: Arc<Clients>, durable: Arc<Durable>) -> Self {
        Self { clients, durable, table: Mutex::default() }
    }

    /// The number of kept sessions, for metrics.
    pub(crate) fn len(&self) -> usize {
        self.table.lock().sessions.len()
    }

    /// Keeps the replies of a session that has ended, until the client asks for them.
    pub fn keep(&self, id: [u8; 8], client: &Client, session: EndedSession, now_ns: u64) {
        // Held so that a new instance of the client, which frees the replies, comes before or
        // after.
        let Some(_clients) = self.clients.not_replaced(client) else {
            return self.durable.forget_session(&id);
        };
        let mut table = self.table.lock();
        table.insert(id, client, session, now_ns.saturating_add(self.durable.retention_ns));
        let mut excess = Vec::new();
        while let Some(id) = table.excess(client) {
            table.remove(id);
            excess.push(id);
        }
        drop(table);
        excess.iter().for_each(|id| self.durable.forget_session(id));
    }

    /// Returns the answer to a request of an ended session of this client, of this run of the
    /// server or of an earlier one.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn find(&self, client: &Client, key: &RequestKey) -> Result<Kept, NoReply> {
        let table = self.table.lock();
        let kept = table.sessions.get(&key.session).filter(|kept| kept.is_of(client));
        let Some(kept) = kept else {
            drop(table);
            return self.recovered(client, key);
        };
        let session = &kept.session;
        let found = session.entries.iter().find(|entry| {
            (entry.stream, entry.sequence, entry.procedure)
                == (key.stream, key.sequence, key.procedure)
        });
        let entry = found.ok_or(NoReply::NotExecuted)?;
        let (bytes, little_endian) = (entry.bytes.clone(), session.little_endian);
        Ok(Kept::Reply(KeptReply { bytes, little_endian }))
    }

    /// Does the same for a session of an earlier run.
    fn recovered(&self, client: &Client, key: &RequestKey) -> Result<Kept, NoReply> {
        if !self.is_recovered(client, &key.session) {
            return Err(NoReply::UnknownSession);
        }
        match self.durable.kept_answer(key) {
            Some(Answer::Reply { bytes, order_le }) => {
                Ok(Kept::Reply(KeptReply { bytes: bytes.into(), little_endian: order_le }))
            }
            Some(Answer::Happened(effect)) => Ok(Kept::Happened(effect)),
            Some(Answer::Failed) => Ok(Kept::Failed),
            None if self.durable.is_kept_whole(&key.session) => Err(NoReply::NotExecuted),
            None => Err(NoReply::UnknownSession),
        }
    }

    fn is_recovered(&self, client: &Client, id: &[u8; 8]) -> bool {
        self.durable.kept_session(id).is_some_and(|session| session.is_of(client))
    }

    /// Forgets the replies of an ended session of this client. Returns false when there is none.
    pub fn discard(&self, client: &Client, id: [u8; 8]) -> bool {
        let mut table = self.table.lock();
        let own = table.sessions.get(&id).is_some_and(|kept| kept.is_of(client));
        let found = own && table.remove(id).is_some();
        drop(table);
        let known = found || self.is_recovered(client, &id);
        if known {
            self.durable.forget_session(&id);
        }
        known
    }

    /// True when replies of a session with this id are kept, so that no other session may get it.
    pub fn keeps(&self, id: [u8; 8]) -> bool {
        let kept = self.table.lock().sessions.contains_key(&id);
        kept || self.durable.kept_session(&id).is_some()
    }

    /// A client has come back: replies to its other instances cannot be asked for any more.
    pub(crate) fn discard_others(&self, client: &Client) {
        // Held so that the replies of an instance which has replaced this one stay, also when that one
        // has ended since.
        let clients = self.clients.not_replaced(client).filter(|_| !client.is_gone());
        let Some(clients) = clients else { return };
        let mut table = self.table.lock();
        let Some(of_owner) = table.owners.get(&Owner::of(client)) else { return };
        let ids = of_owner.sessions.iter().filter_map(|number| table.by_age.get(number)).copied();
        let other = |id: &[u8; 8]| {
            table.sessions.get(id).is_some_and(|kept| kept.verifier != client.verifier())
        };
        let others: Vec<_> = ids.filter(other).collect();
        for id in &others {
            table.remove(*id);
        }
        drop((table, clients));
        others.iter().for_each(|id| self.durable.forget_session(id));
    }

    /// Forgets replies after their retention time (DAFS O50).
    pub(crate) fn tick(&self, now_ns: u64) {
        let mut table = self.table.lock();
        let mut over = Vec::new();
        while let Some(id) = table.by_age.values().next().copied() {
            if table.sessions.get(&id).is_some_and(|kept| kept.until_ns > now_ns) {
                break;
            }
            table.remove(id);
            over.push(id);
        }
        drop(table);
        over.iter().for_each(|id| self.durable.forget_session(id));
    }
}

impl KeptSession {
    fn is_of(&self, client: &Client) -> bool {
        self.verifier == client.verifier()
            && self.owner.name == client.name()
            && self.owner.identity == *client.identity()
    }
}
