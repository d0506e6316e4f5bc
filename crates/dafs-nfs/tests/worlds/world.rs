//! The network, the schedule, and the end of the world.

use crate::actions::*;
use crate::client::{Client, Joined, Outstanding, SLOTS, What};
use crate::play::{Random, choose, look};
use crate::server::{COURTESY_NS, LEASE_NS, Output, SECOND, Server, decode, encode};
use dafs_wire::nfs4::*;

const CLIENTS: usize = 3;
const STEPS: u32 = 2000;
/// Packets under way in one direction. Older ones are lost.
const PACKETS_MAX: usize = 32;

#[derive(Debug, Clone)]
struct Packet {
    connection: u32,
    xid: u32,
    bytes: Vec<u8>,
}

/// The events of some worlds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    answers: u64,
    retries: u64,
    restarts: u64,
    reclaimed: u64,
    locks: u64,
    refused: u64,
    expired: u64,
}

impl Seen {
    pub(crate) fn is_rich(&self) -> bool {
        let Self { answers, retries, restarts, reclaimed, locks, refused, expired } = *self;
        [answers, retries, restarts, reclaimed, locks, refused, expired].iter().all(|&n| n >= 100)
    }
}

pub(crate) struct World {
    seed: u64,
    tells: bool,
    random: Random,
    server: Server,
    clients: Vec<Client>,
    requests: Vec<Packet>,
    replies: Vec<Packet>,
    xid: u32,
    seen: Seen,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "replay: DAFS_WORLD_SEED={} cargo test -p dafs-nfs --test worlds every_answer",
                self.seed
            );
        }
    }
}

impl World {
    /// Makes a world that adds its events to the ones `seen`.
    pub(crate) fn new(seed: u64, tells: bool, seen: Seen) -> Self {
        let mut world = Self {
            seed,
            tells,
            random: Random(seed),
            server: Server::new(false),
            clients: Vec::new(),
            requests: Vec::new(),
            replies: Vec::new(),
            xid: 0,
            seen,
        };
        world.furnish();
        world
    }

    /// Runs the world to its end, which must be a quiet one.
    pub(crate) fn run(mut self) -> Seen {
        for _ in 0..STEPS {
            self.step();
        }
        self.settle();
        self.end();
        self.seen.clone()
    }

    fn tell(&self, what: impl FnOnce() -> String) {
        if self.tells {
            eprintln!("{:>9} ms  {}", self.server.now_ns / 1_000_000, what());
        }
    }

    /// Sends one request, which is answered at once.
    fn now(&mut self, ops: &[Op<'_>]) -> Vec<u8> {
        self.xid += 1;
        let mut outputs = self.server.submit(1, self.xid, &encode(1, ops));
        while self.server.jobs() > 0 {
            outputs.extend(self.server.run_job(0));
        }
        let [Output::Answer { results, .. }] = &outputs[..] else { panic!("{outputs:?}") };
        results.clone()
    }

    /// Makes directories and shared files with a client of its own.
    fn furnish(&mut self) {
        let answer = self.now(&[exchange_id(b"furnisher")]);
        let ResultBody::ExchangeId(exchanged) = &decode(&answer)[0].body else { panic!() };
        let id = exchanged.client_id;
        let answer = self.now(&[create_session(id, exchanged.sequence_id, 8192, SLOTS as u32)]);
        let ResultBody::CreateSession(created) = &decode(&answer)[0].body else { panic!() };
        let session_id = created.session_id;
        let mut sequence_id = 0;
        let mut handle = |world: &mut Self, op: Op<'_>| {
            sequence_id += 1;
            let sequence = Op::Sequence(sequence(session_id, 0, sequence_id));
            let close = Op::Close(CloseArgs { seqid: 0, stateid: Stateid::CURRENT });
            let opens = matches!(op, Op::Open(_));
            let mut ops = vec![sequence, Op::Putrootfh(PutrootfhArgs), op, Op::Getfh(GetfhArgs)];
            ops.extend(opens.then_some(close));
            let answer = world.now(&ops);
            let results = decode(&answer);
            let ResultBody::Getfh(got) = &results[3].body else { panic!("{results:?}") };
            got.handle.to_vec()
        };
        let complete = [
            Op::Sequence(SequenceArgs { slot_id: 1, ..sequence(session_id, 1, 1) }),
            Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false }),
        ];
        self.now(&complete);
        let mut files = Vec::new();
        for file in 0..SHARED_FILES {
            let name = format!("file {file}").into_bytes();
            let how = OpenHow::Guarded(PLAIN);
            let claim = OpenClaim::Null(&name);
            let op = open(b"o", ShareAccess::BOTH, DENY_NONE, how, claim);
            files.push(handle(self, op));
        }
        for number in 0..CLIENTS {
            let name = format!("client {number}").into_bytes();
            let kind = CreateType::Plain(FileType::Directory);
            let op = Op::Create(CreateArgs { kind, name: &name, attributes: PLAIN });
            let directory = handle(self, op);
            let place = Place { directory, files: files.clone() };
            self.clients.push(Client::new(number, place));
        }
        self.now(&[Op::DestroySession(DestroySessionArgs { session_id })]);
        self.now(&[Op::DestroyClientid(DestroyClientidArgs { client_id: id })]);
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..35 => self.somebody_acts(),
            35..60 => self.a_request_arrives(),
            60..72 => self.a_job_runs(),
            72..94 => self.a_reply_arrives(),
            94..98 => {
                let long = self.random.percent(20);
                let ns = if long { self.random.below(12 * SECOND) } else { SECOND / 4 };
                self.pass(ns);
            }
            98 if self.random.percent(60) => {
                let client = self.random.index(CLIENTS);
                self.disconnect(client);
            }
            98 => {
                let client = self.random.index(CLIENTS);
                self.tell(|| format!("client {client} falls asleep"));
                let until_ns = self.server.now_ns + self.random.below(3 * LEASE_NS);
                self.clients[client].asleep_until_ns = until_ns;
            }
            _ if self.random.percent(10) => self.kill(),
            _ => {}
        }
    }

    fn pass(&mut self, nanoseconds: u64) {
        let outputs = self.server.pass(nanoseconds);
        self.came_out(outputs);
    }

    fn kill(&mut self) {
        self.tell(|| "the server is killed".to_owned());
        self.seen.restarts += 1;
        let (now_ns, in_grace) = (self.server.now_ns, self.server.in_grace());
        self.clients.iter_mut().for_each(|client| client.server_died(now_ns, in_grace));
        self.server.restart();
        self.replies.clear();
        // Some requests reach the next server.
        for _ in 0..self.requests.len() {
            let at = self.random.index(self.requests.len());
            if self.random.percent(70) {
                self.requests.swap_remove(at);
            }
        }
    }

    fn disconnect(&mut self, client: usize) {
        self.tell(|| format!("client {client} loses its connections"));
        for way in 0..2 {
            let number = connection(&self.clients[client], way);
            let outputs = self.server.disconnect(number);
            self.requests.retain(|packet| packet.connection != number);
            self.replies.retain(|packet| packet.connection != number);
            self.came_out(outputs);
        }
        self.clients[client].generation += 1;
    }

    fn a_request_arrives(&mut self) {
        if self.requests.is_empty() {
            return;
        }
        let at = self.random.index(self.requests.len());
        let packet = match self.random.below(10) {
            0 => self.requests[at].clone(),
            _ => self.requests.swap_remove(at),
        };
        if self.random.percent(85) {
            let Packet { connection, xid, bytes } = packet;
            let outputs = self.server.submit(connection, xid, &bytes);
            self.came_out(outputs);
        }
    }

    fn a_job_runs(&mut self) {
        if self.server.jobs() > 0 {
            let at = self.random.index(self.server.jobs());
            let outputs = self.server.run_job(at);
            self.came_out(outputs);
        }
    }

    fn came_out(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            if let Output::Answer { connection, xid, results: bytes } = output {
                if self.replies.len() >= PACKETS_MAX {
                    self.replies.remove(0);
                }
                self.replies.push(Packet { connection, xid, bytes });
            }
        }
    }

    fn a_reply_arrives(&mut self) {
        if self.replies.is_empty() {
            return;
        }
        let at = self.random.index(self.replies.len());
        let packet = match self.random.below(10) {
            0 => self.replies[at].clone(),
            _ => self.replies.swap_remove(at),
        };
        let number = client_of(packet.connection);
        let asleep = self.clients[number].asleep_until_ns > self.server.now_ns;
        if self.random.percent(80) && !asleep {
            self.hear(number, &packet);
        }
    }

    /// A client gets an answer, and the holdings of others must allow it.
    fn hear(&mut self, number: usize, packet: &Packet) {
        let (run, now_ns) = (self.server.run, self.server.now_ns);
        let waits = |at: &usize| {
            let outstanding = &self.clients[number].slots[*at].outstanding;
            outstanding.as_ref().is_some_and(|outstanding| outstanding.xid == packet.xid)
        };
        let Some(slot) = (0..SLOTS).find(waits) else { return };
        let last = decode(&packet.bytes).last().map(|result| (result.number, result.status));
        self.tell(|| format!("client {number} slot {slot} xid {} hears {last:?}", packet.xid));
        self.seen.answers += 1;
        self.seen.refused +=
            u64::from(matches!(last, Some((_, Status::Denied | Status::ShareDenied))));
        let before = (self.clients[number].joined, self.clients[number].holds.len());
        let taken = self.clients[number].answered(slot, &packet.bytes, run, now_ns);
        if let (Joined::Yes { run: old, .. }, Joined::No) = (before.0, self.clients[number].joined)
        {
            self.seen.expired += u64::from(old == run);
        }
        let Some((owner, file, right)) = taken else { return };
        self.seen.locks += 1;
        self.seen.reclaimed += u64::from(before.1 == self.clients[number].holds.len());
        for client in &self.clients {
            for hold in &client.holds {
                let own = (client.number, hold.owner) == (number, owner);
                let conflicts = hold.file == file && hold.right.conflicts(right) && !own;
                let sure = client.surely_holds(hold, now_ns);
                assert!(
                    !conflicts || !sure,
                    "client {number} owner {owner} got {right:?} of file {file}, client {} has {hold:?}",
                    client.number
                );
            }
        }
    }

    fn somebody_acts(&mut self) {
        let number = self.random.index(CLIENTS);
        let slot = self.random.index(SLOTS);
        if self.clients[number].asleep_until_ns > self.server.now_ns {
            return;
        }
        if self.clients[number].slots[slot].outstanding.is_none() {
            self.begin(number, slot, true);
        } else if self.random.percent(60) {
            return;
        } else {
            self.seen.retries += 1;
        }
        self.transmit(number, slot);
    }

    fn transmit(&mut self, number: usize, slot: usize) {
        let way = self.random.below(2) as u32;
        let client = &self.clients[number];
        let Some(outstanding) = &client.slots[slot].outstanding else { return };
        let (xid, bytes) = (outstanding.xid, outstanding.bytes.clone());
        if self.requests.len() >= PACKETS_MAX {
            self.requests.remove(0);
        }
        let connection = connection(client, way);
        self.tell(|| format!("client {number} slot {slot} sends xid {xid} over {connection}"));
        self.requests.push(Packet { connection, xid, bytes });
    }

    /// Starts a request of a slot. Unless it is to `play`, only required requests are started.
    fn begin(&mut self, number: usize, slot: usize, play: bool) {
        let client = &mut self.clients[number];
        let owner_id = format!("client {number}").into_bytes();
        let (what, bytes) = match client.joined {
            Joined::Yes { .. } => {
                let action = match (client.setup(), slot) {
                    (Some(action), 0) => Some(action),
                    (Some(_), _) => None,
                    (None, _) if play => choose(&mut self.random, client, slot),
                    (None, _) => look(client, slot),
                };
                if let Some(action) = action {
                    self.begin_action(number, slot, action);
                }
                return;
            }
            _ if slot != 0 => return,
            Joined::No => (What::Exchange, encode(1, &[exchange_id(&owner_id)])),
            Joined::Exchanged { sequence } => {
                let id = client.id.expect("EXCHANGE_ID has told it");
                (
                    What::CreateSession,
                    encode(1, &[create_session(id, sequence, 8192, SLOTS as u32)]),
                )
            }
        };
        self.ask(number, slot, what, bytes);
    }

    fn begin_action(&mut self, number: usize, slot: usize, action: Action) {
        let client = &mut self.clients[number];
        let Joined::Yes { session, .. } = client.joined else { panic!("{client:?}") };
        if let Action::Release(hold) = &action {
            let key = |hold: &Hold| (hold.owner, hold.file, hold.right);
            client.holds.retain(|known| key(known) != key(hold));
        }
        let base = match &action {
            Action::Take { file, .. } => client.base(*file),
            _ => None,
        };
        let sequence_id = client.slots[slot].sequence.wrapping_add(1);
        client.slots[slot].sequence = sequence_id;
        let args = sequence(session, slot as u32, sequence_id);
        let bytes = request(args, &client.place, slot, &action, base);
        self.ask(number, slot, What::Act(action), bytes);
    }

    fn ask(&mut self, number: usize, slot: usize, what: What, bytes: Vec<u8>) {
        self.xid += 1;
        let (xid, sent_ns) = (self.xid, self.server.now_ns);
        self.tell(|| format!("client {number} slot {slot} xid {xid}: {what:?}"));
        let outstanding = Outstanding { xid, bytes, sent_ns, what };
        self.clients[number].slots[slot].outstanding = Some(outstanding);
    }

    /// The network becomes reliable: every client comes back, and all doubts are resolved.
    fn settle(&mut self) {
        self.tell(|| "the network is good from now on".to_owned());
        self.requests.clear();
        self.replies.clear();
        for _ in 0..200 {
            for slot in self.clients.iter_mut().flat_map(|client| &mut client.slots) {
                let sure = (0..NAMES).all(|at| slot.sure(at).is_some());
                if sure && slot.outstanding.is_none() {
                    // A doubt makes the client send a request, so that it renews its lease or
                    // learns that it is over.
                    let entry = slot.names[0][0].clone();
                    slot.names[0].push(entry);
                }
            }
            for (number, slot) in (0..CLIENTS).flat_map(|n| (0..SLOTS).map(move |s| (n, s))) {
                if self.clients[number].slots[slot].outstanding.is_none() {
                    self.begin(number, slot, false);
                }
                self.transmit(number, slot);
                self.deliver_all();
            }
            if self.is_settled() {
                return;
            }
            self.pass(SECOND / 2);
            self.deliver_all();
        }
        let waiting = self.clients.iter().find(|client| client.slots[0].outstanding.is_some());
        panic!("no end: grace {}, {waiting:?}", self.server.in_grace());
    }

    fn deliver_all(&mut self) {
        while let Some(Packet { connection, xid, bytes }) = self.requests.pop() {
            let outputs = self.server.submit(connection, xid, &bytes);
            self.came_out(outputs);
        }
        while self.server.jobs() > 0 {
            let outputs = self.server.run_job(0);
            self.came_out(outputs);
        }
        for packet in std::mem::take(&mut self.replies) {
            self.hear(client_of(packet.connection), &packet);
        }
    }

    fn is_settled(&mut self) -> bool {
        self.clients.iter_mut().all(|client| {
            let idle = client.slots.iter().all(|slot| slot.outstanding.is_none());
            let sure = (0..SLOTS).all(|slot| look(client, slot).is_none());
            let joined = matches!(client.joined, Joined::Yes { complete: true, .. });
            joined && idle && sure && client.setup().is_none()
        })
    }

    /// Checks that every name has its object. Then all rights are released, and no state may be
    /// left.
    fn end(&mut self) {
        assert_eq!(self.server.counts().1.sessions, CLIENTS, "each client has one session");
        for number in 0..CLIENTS {
            for slot in 0..SLOTS {
                (0..NAMES).for_each(|at| self.act(number, slot, Action::Look(at)));
            }
            for at in (0..self.clients[number].holds.len()).rev() {
                // Locks are released before their opens.
                let mut holds = self.clients[number].holds.clone();
                holds.sort_by_key(|hold| matches!(hold.right, Right::Lock { .. }));
                let hold = holds.swap_remove(at);
                let is_base = hold.owner == BASE;
                if !is_base || number > 0 {
                    self.act(number, 0, Action::Release(hold));
                }
            }
        }
        for file in 0..LOCK_FILES {
            let right = Right::Lock { first: 0, length: 100, writes: true };
            self.act(0, 0, Action::Take { owner: 0, file, right, reclaim: false });
            let got = self.clients[0].holds.iter().any(|hold| hold.right == right);
            assert!(got, "nobody holds it");
            let hold = self.clients[0].holds.iter().find(|hold| hold.right == right).cloned();
            self.act(0, 0, Action::Release(hold.unwrap()));
        }
        for hold in self.clients[0].holds.clone() {
            self.act(0, 0, Action::Release(hold));
        }
        let (service, _) = self.server.counts();
        assert_eq!((service.opens, service.locks, service.lock_ranges), (0, 0, 0), "{service:?}");
        // Some clients leave in order, others disappear.
        for number in 1..CLIENTS {
            let Joined::Yes { session: session_id, .. } = self.clients[number].joined else {
                panic!("{:?}", self.clients[number]);
            };
            let client_id = self.clients[number].id.unwrap();
            for op in [
                Op::DestroySession(DestroySessionArgs { session_id }),
                Op::DestroyClientid(DestroyClientidArgs { client_id }),
            ] {
                let answer = self.now(&[op]);
                assert_eq!(decode(&answer)[0].status, Status::Ok);
            }
        }
        for _ in 0..3 {
            self.pass(COURTESY_NS + SECOND);
            self.deliver_all();
        }
        let (service, nfs) = self.server.counts();
        assert_eq!(service, Default::default());
        assert_eq!(nfs, Default::default());
        assert!(!self.server.in_grace());
        assert_eq!(self.server.records(), 0, "nobody is waited for after the next restart");
    }

    /// Sends an action that is answered at once.
    fn act(&mut self, number: usize, slot: usize, action: Action) {
        self.begin_action(number, slot, action);
        self.transmit(number, slot);
        self.deliver_all();
        assert!(self.clients[number].slots[slot].outstanding.is_none(), "there is an answer");
    }
}

/// Returns a connection of a client: two at a time, never the same again.
fn connection(client: &Client, way: u32) -> u32 {
    2 + (client.generation * CLIENTS as u32 + client.number as u32) * 2 + way
}

fn client_of(connection: u32) -> usize {
    (connection - 2) as usize / 2 % CLIENTS
}
