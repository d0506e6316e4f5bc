//! A client with one session: each slot has one request under way, and retries it over new
//! connections until it is answered.

use super::action::{Action, DATA_BYTES_MAX, PLAIN, Place, compound};
use super::server::SERVER_HOST;
use crate::actions::{create_session, exchange_id, open};
use dafs_dat::sim::{SimNetwork, SimRng};
use dafs_dat::{Address, Instant};
use dafs_mem::Site;
use dafs_rpc::client::{
    CallError, Identity, Memory, Options, Pending, Port, Procedure, Request, Results, RpcClient,
    SendData,
};
use dafs_wire::nfs4::*;
use dafs_wire::xdr::{Decode, Payload};

pub(crate) const SLOTS: u32 = 3;

const COMPOUND: Procedure = Procedure {
    program: limits::PROGRAM,
    version: limits::VERSION,
    procedure: limits::PROCEDURE_COMPOUND,
};

/// The statistics of a world.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    connections: u32,
    answers: u32,
    retries: u32,
    /// Answers to a request that was sent more than once.
    answered_retries: u32,
    refused: u32,
    placed: u32,
    fetched: u32,
    /// Reads whose reply was not cached for a retry, and which were not answered.
    forgotten: u32,
}

impl Tally {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            connections: self.connections + other.connections,
            answers: self.answers + other.answers,
            retries: self.retries + other.retries,
            answered_retries: self.answered_retries + other.answered_retries,
            refused: self.refused + other.refused,
            placed: self.placed + other.placed,
            fetched: self.fetched + other.fetched,
            forgotten: self.forgotten + other.forgotten,
        }
    }

    pub(crate) fn is_rich(self) -> bool {
        let Self { connections, answers, retries, answered_retries, .. } = self;
        let Self { refused, placed, fetched, forgotten, .. } = self;
        [connections, answers, retries, answered_retries, refused, placed, fetched, forgotten]
            .iter()
            .all(|&count| count >= 10)
    }
}

struct Slot {
    place: Place,
    sequence: u32,
    /// Its request, until that is answered, and the number of attempts.
    asks: Option<(Action, u32)>,
    pending: Option<Pending>,
    memory: Option<Memory>,
}

pub(crate) struct Client {
    pub(crate) host: u32,
    pub(crate) port: Port,
    client: Option<RpcClient>,
    options: Options,
    session: SessionId,
    slots: Vec<Slot>,
    first_xid: u32,
    pub(crate) tally: Tally,
}

impl Client {
    pub(crate) fn new(network: &SimNetwork, host: u32, options: Options) -> Self {
        let identity = Identity::sys("client", 0, 0, &[]);
        Self {
            host,
            port: Port::new(Box::new(network.adapter(host))).unwrap(),
            client: None,
            options: Options { identity, ..options },
            session: SessionId([0; 16]),
            slots: Vec::new(),
            first_xid: host << 24,
            tally: Tally::default(),
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.client.as_ref().is_some_and(RpcClient::is_connected)
    }

    /// Connects if there is no connection or the last one is broken.
    pub(crate) fn connect(&mut self) {
        if self.client.as_ref().is_none_or(RpcClient::is_broken) {
            // Answers on another connection must not match calls of this one.
            self.first_xid += 10_000;
            let address = Address::Sim(SERVER_HOST);
            let options = self.options.clone();
            let client = RpcClient::begin_rdma(&self.port, &address, options, None, self.first_xid);
            self.client = Some(client.unwrap());
            self.tally.connections += 1;
        }
    }

    /// Makes the session and the objects that the slots work on. `wait` runs the world until a call
    /// is answered.
    pub(crate) fn set_up(&mut self, mut wait: impl FnMut(&Port, &Pending)) {
        let client = self.client.clone().unwrap();
        let mut ask = |ops: &[Op<'_>]| -> Results {
            let pending = client.submit(COMPOUND, &[&compound(ops, 0)]).unwrap();
            wait(&self.port, &pending);
            pending.wait().unwrap()
        };
        let owner_id = format!("client {}", self.host).into_bytes();
        let results = ask(&[exchange_id(&owner_id)]);
        let ResultBody::ExchangeId(exchanged) = &decode(&results)[0].body else { panic!() };
        let results =
            ask(&[create_session(exchanged.client_id, exchanged.sequence_id, 64 << 10, SLOTS)]);
        let ResultBody::CreateSession(created) = &decode(&results)[0].body else { panic!() };
        self.session = created.session_id;
        let complete = Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false });
        ask(&[Op::Sequence(sequence(self.session, 0, 1)), complete]);
        let mut next = 2;
        let mut handle = |op: Op<'_>| {
            let first = Op::Sequence(sequence(self.session, 0, next));
            next += 1;
            let results = ask(&[first, Op::Putrootfh(PutrootfhArgs), op, Op::Getfh(GetfhArgs)]);
            let results = decode(&results);
            let Some(OpResult { body: ResultBody::Getfh(got), .. }) = results.get(3) else {
                panic!("{results:?}")
            };
            got.handle.to_vec()
        };
        for slot in 0..SLOTS {
            let name = format!("{} {slot}", self.host).into_bytes();
            let kind = CreateType::Plain(FileType::Directory);
            let directory = handle(Op::Create(CreateArgs { kind, name: &name, attributes: PLAIN }));
            let name = format!("file {} {slot}", self.host).into_bytes();
            let (how, claim) = (OpenHow::Guarded(PLAIN), OpenClaim::Null(&name));
            let file = handle(open(b"o", ShareAccess::BOTH, DENY_NONE, how, claim));
            let place = Place::new(slot, directory, file);
            let (asks, pending, memory) = (None, None, None);
            self.slots.push(Slot { place, sequence: 1, asks, pending, memory });
        }
        self.slots[0].sequence = next;
    }

    /// Sends a new request of a slot, or a retry.
    pub(crate) fn act(&mut self, rng: &mut SimRng) {
        let at = rng.below(self.slots.len() as u64) as usize;
        if self.slots[at].asks.is_none() {
            self.ask(at, Action::random(rng));
        }
        self.send(at);
    }

    /// Sets the next request of a slot.
    pub(crate) fn ask(&mut self, at: usize, action: Action) {
        let slot = &mut self.slots[at];
        assert!(slot.asks.is_none());
        slot.asks = Some((action, 0));
        // A server may access its clients' memory long after the call is lost.
        slot.memory = None;
    }

    /// Sends the request of a slot, if it is not under way and there is a connection.
    pub(crate) fn send(&mut self, at: usize) {
        let Some(client) = self.client.clone().filter(|_| self.is_connected()) else { return };
        let (session, slot) = (self.session, &mut self.slots[at]);
        if slot.pending.is_some() {
            return;
        }
        let Some((action, times)) = &mut slot.asks else { return };
        let memory = match slot.memory.take() {
            Some(memory) => memory,
            None => self.port.allocate(DATA_BYTES_MAX).unwrap(),
        };
        let (bytes, position) =
            action.request(&slot.place, sequence(session, at as u32, slot.sequence));
        let args: &[&[u8]] = &[&bytes];
        // A cached reply comes without the write chunks for its data.
        let mut request = Request::new(COMPOUND, args, 1000);
        let sinks;
        if let (Some(data), Some(position)) = (action.data(), position) {
            let part = memory.slice(0..data.len()).unwrap();
            part.view().copy_from(&data, Site::Inspect);
            request.data = Some(SendData { position, memory: part });
        } else if let Action::Read { len, .. } = *action {
            memory.view().fill(0xcc);
            sinks = [memory.slice(0..len).unwrap()];
            request.sinks = &sinks;
            request.results_bytes_max += len;
        }
        match client.submit_request(&request) {
            Ok(pending) => {
                self.tally.retries += u32::from(*times > 0);
                *times += 1;
                slot.pending = Some(pending);
            }
            Err(error) => assert!(matches!(error, CallError::Disconnected(_)), "{error:?}"),
        }
        slot.memory = Some(memory);
    }

    /// Handles all arrived events.
    pub(crate) fn poll(&mut self, now: Instant) {
        self.port.poll(now);
        for slot in &mut self.slots {
            if let Some(pending) = slot.pending.take_if(|pending| pending.is_answered()) {
                match pending.wait() {
                    Ok(results) => slot.answered(&results, &mut self.tally),
                    Err(CallError::Disconnected(_)) => {
                        // The server may still use the mapped memory.
                        slot.memory = None;
                    }
                    Err(error) => panic!("{:?}: {error:?}", slot.asks),
                }
            }
        }
    }

    /// Returns the number of slots that wait for an answer.
    pub(crate) fn under_way(&self) -> usize {
        self.slots.iter().filter(|slot| slot.asks.is_some()).count()
    }

    /// Sends all requests that are not under way.
    pub(crate) fn send_all(&mut self) {
        (0..self.slots.len()).for_each(|at| self.send(at));
    }

    pub(crate) fn close(&mut self) {
        self.client = None;
    }
}

impl Slot {
    fn answered(&mut self, results: &Results, tally: &mut Tally) {
        let mut decoder = results.decoder();
        let head = CompoundResult::decode(&mut decoder).unwrap();
        let mut last = None;
        let mut data = None;
        for at in 0..head.op_count {
            let result = OpResult::decode(&mut decoder).unwrap();
            if at == 0 && result.status == Status::Delay {
                // The request is being executed, or was not begun. The slot retries it unchanged.
                return;
            }
            assert!(at > 0 || result.status == Status::Ok, "{result:?}");
            if let ResultBody::Read(read) = result.body {
                data = Some(read.data);
            }
            last = Some(result.status);
        }
        let (action, times) = self.asks.take().expect("somebody has asked");
        tally.answers += 1;
        tally.answered_retries += u32::from(times > 1);
        self.sequence += 1;
        let (status, expected) = self.place.carry_out(&action);
        if let (Action::Read { kept: false, .. }, Some(Status::RetryUncachedRep)) = (&action, last)
        {
            assert!(times > 1, "a first request is no retry");
            tally.forgotten += 1;
            return;
        }
        decoder.finish().unwrap();
        assert_eq!(last, Some(status), "{action:?} sent {times} times: {:?}", self.place);
        tally.refused += u32::from(status != Status::Ok);
        tally.fetched += u32::from(matches!(action, Action::Write { len, .. } if len > 4096));
        if matches!(action, Action::Read { .. }) {
            let found = match data.expect("a read has data") {
                Payload::Here(found) => found.to_vec(),
                Payload::Moved(moved) => {
                    tally.placed += 1;
                    let memory = self.memory.as_ref().expect("the place of the data");
                    let part = memory.slice(0..moved.len).unwrap();
                    part.view().to_vec(Site::Inspect)
                }
            };
            assert!(found == expected, "{action:?} sent {times} times reads something else");
        }
    }
}

fn decode(results: &Results) -> Vec<OpResult<'_>> {
    let mut decoder = results.decoder();
    let head = CompoundResult::decode(&mut decoder).unwrap();
    (0..head.op_count).map(|_| OpResult::decode(&mut decoder).unwrap()).collect()
}

fn sequence(session_id: SessionId, slot_id: u32, sequence_id: u32) -> SequenceArgs {
    SequenceArgs { session_id, sequence_id, slot_id, highest_slot_id: SLOTS - 1, cache_this: true }
}
