//! The product's client, which makes calls of all kinds and checks the outcome of each.
//!
//! Invariants
//! * A call uses memory only after the call before has ended.

use super::net::SERVER_HOST;
use super::program::{PROGRAM, Program, data, procedures, sum};
use crate::peer::words;
use dafs_dat::sim::{SimNetwork, SimRng};
use dafs_dat::{Address, Instant};
use dafs_mem::Site;
use dafs_rpc::client::{
    CallError, Memory, Options, Pending, Port, Procedure, Request, Results, RpcClient, SendData,
};
use dafs_wire::xdr::Payload;

/// The longest data of a call, in bytes.
const DATA_BYTES_MAX: usize = 200_000;
/// The most outstanding calls of one caller.
const CALLS_MAX: usize = 12;

/// The outcomes of the calls of a world.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) connections: u32,
    pub(crate) answered: u32,
    pub(crate) lost: u32,
    pub(crate) given_up: u32,
    pub(crate) placed: u32,
    pub(crate) fetched: u32,
    pub(crate) long_calls: u32,
    pub(crate) long_replies: u32,
    pub(crate) deferred: u32,
}

impl Tally {
    pub(crate) fn plus(mut self, other: &Self) -> Self {
        let Self { connections, answered, lost, given_up, placed, .. } = *other;
        self.connections += connections;
        self.answered += answered;
        self.lost += lost;
        self.given_up += given_up;
        self.placed += placed;
        self.fetched += other.fetched;
        self.long_calls += other.long_calls;
        self.long_replies += other.long_replies;
        self.deferred += other.deferred;
        self
    }

    /// True when every outcome has occurred often enough for a test.
    pub(crate) fn is_rich(&self) -> bool {
        let Self { connections, answered, lost, given_up, placed, .. } = *self;
        let Self { fetched, long_calls, long_replies, deferred, .. } = *self;
        [connections, answered, lost, given_up, placed, fetched, long_calls, long_replies, deferred]
            .iter()
            .all(|&count| count >= 100)
    }
}

/// An outstanding call.
struct Flight {
    pending: Pending,
    number: u32,
    procedure: u32,
    /// Bytes of data in the arguments, or of results.
    len: usize,
    /// Bytes of a second item of results.
    second: usize,
    memory: Memory,
    /// True if the call offers memory to the server.
    with_memory: bool,
}

/// The client.
pub(crate) struct Caller {
    pub(crate) host: u32,
    pub(crate) port: Port,
    client: Option<RpcClient>,
    options: Options,
    flights: Vec<Flight>,
    free: Vec<Memory>,
    /// True if memory is reused.
    reuses: bool,
    next_number: u32,
    pub(crate) tally: Tally,
}

impl Caller {
    pub(crate) fn new(network: &SimNetwork, host: u32, options: Options, reuses: bool) -> Self {
        Self {
            host,
            port: Port::new(Box::new(network.adapter(host))).unwrap(),
            client: None,
            options,
            flights: Vec::new(),
            free: Vec::new(),
            reuses,
            next_number: host * 1_000_000,
            tally: Tally::default(),
        }
    }

    /// Connects if there is no connection; otherwise starts a call.
    pub(crate) fn act(&mut self, rng: &mut SimRng) {
        match &self.client {
            Some(client) if client.is_broken() => self.client = None,
            Some(client) if client.is_connected() => {
                if self.flights.len() < CALLS_MAX {
                    self.call(rng);
                }
            }
            Some(_) => {}
            None => {
                let options = self.options.clone();
                let address = Address::Sim(SERVER_HOST);
                let first = self.next_number;
                let client = RpcClient::begin_rdma(&self.port, &address, options, None, first);
                self.client = Some(client.unwrap());
                self.tally.connections += 1;
            }
        }
    }

    fn memory(&mut self) -> Memory {
        let memory = if self.reuses { self.free.pop() } else { None };
        memory.unwrap_or_else(|| self.port.allocate(DATA_BYTES_MAX).unwrap())
    }

    fn call(&mut self, rng: &mut SimRng) {
        let Some(client) = self.client.clone() else { return };
        let number = self.next_number;
        self.next_number += 1;
        let procedure = match rng.below(10) {
            0 => procedures::NULL,
            1 => procedures::SINK,
            2 | 3 => procedures::SINK_APART,
            4 => procedures::SOURCE,
            5 => procedures::SOURCE_TWICE,
            6 => procedures::WORDS,
            7 => procedures::SINK_LATER,
            _ => procedures::SOURCE_LATER,
        };
        let len = rng.log_below(DATA_BYTES_MAX as u64 / 2) as usize;
        let second = rng.log_below(DATA_BYTES_MAX as u64 / 2) as usize;
        self.submit(&client, number, procedure, len, second, rng.chance(700_000));
    }

    /// Makes a call with these parameters.
    pub(crate) fn submit(
        &mut self,
        client: &RpcClient,
        number: u32,
        procedure: u32,
        len: usize,
        second: usize,
        with_memory: bool,
    ) {
        let with_args = !with_memory;
        let memory = self.memory();
        let head = match procedure {
            procedures::NULL => Vec::new(),
            procedures::SOURCE_TWICE => words(&[number, len as u32, second as u32]),
            procedures::WORDS => words(&[number, len as u32 / 4]),
            _ => words(&[number, len as u32]),
        };
        let is_sink = is_sink(procedure);
        let tail = if is_sink { words(&[number ^ 0xffff]) } else { Vec::new() };
        let mut inside = if is_sink && with_args { data(number, len) } else { Vec::new() };
        inside.resize(inside.len().next_multiple_of(4), 0);
        let pieces: [&[u8]; 3] = [&head, &inside, &tail];
        let middle = DATA_BYTES_MAX / 2;
        let sinks = [memory.slice(0..len).unwrap(), memory.slice(middle..middle + second).unwrap()];
        let sinks = match procedure {
            procedures::SOURCE | procedures::SOURCE_LATER => &sinks[..1],
            procedures::SOURCE_TWICE => &sinks[..],
            _ => &[],
        };
        let mut request = Request::new(
            Procedure { program: PROGRAM, version: 1, procedure },
            &pieces,
            len + second + 200,
        );
        if with_memory {
            request.sinks = sinks;
        }
        if is_sink && !with_args {
            let part = memory.slice(0..len).unwrap();
            part.view().copy_from(&data(number, len), Site::Inspect);
            request.data = Some(SendData { position: 8, memory: part });
        } else {
            memory.view().fill(0xcc);
        }
        let with_memory = !request.sinks.is_empty() || request.data.is_some();
        match client.submit_request(&request) {
            Ok(pending) => {
                self.flights.push(Flight {
                    pending,
                    number,
                    procedure,
                    len,
                    second,
                    memory,
                    with_memory,
                });
            }
            Err(error) => {
                assert!(matches!(error, CallError::Disconnected(_)), "{error:?}");
                self.free.push(memory);
            }
        }
    }

    /// Takes the outcomes of ended calls.
    pub(crate) fn poll(&mut self, now: Instant, program: &Program) {
        self.port.poll(now);
        for at in (0..self.flights.len()).rev() {
            if self.flights[at].pending.is_answered() {
                let flight = self.flights.remove(at);
                self.over(flight, program);
            }
        }
    }

    fn over(&mut self, flight: Flight, program: &Program) {
        let Flight { pending, number, procedure, len, second, memory, with_memory } = flight;
        let times = program.done(number);
        assert!(times <= 1, "{procedure} {number} was carried out {times} times");
        match pending.wait() {
            Ok(results) => {
                assert!(times == 1 || procedure == procedures::NULL);
                self.tally.answered += 1;
                self.check(&results, number, procedure, [len, second], &memory);
                let is_long = len > self.options.inline_bytes;
                match (is_sink(procedure), with_memory) {
                    (true, true) => self.tally.fetched += u32::from(is_long),
                    (true, false) => self.tally.long_calls += u32::from(is_long),
                    (false, true) => {}
                    (false, false) => self.tally.long_replies += u32::from(is_long),
                }
                let later = [procedures::SINK_LATER, procedures::SOURCE_LATER];
                self.tally.deferred += u32::from(later.contains(&procedure));
            }
            Err(CallError::Disconnected(_)) => self.tally.lost += 1,
            Err(error) => panic!("{procedure} {number}, {len} {second}: {error:?}"),
        }
        self.free.push(memory);
    }

    fn check(
        &mut self,
        results: &Results,
        number: u32,
        procedure: u32,
        lens: [usize; 2],
        memory: &Memory,
    ) {
        let mut decoder = results.decoder();
        match procedure {
            procedures::NULL => {}
            procedures::WORDS => {
                assert_eq!(results[..], words(&vec![number; lens[0] / 4 + 1]));
                return;
            }
            _ if is_sink(procedure) => {
                let sum = sum(&data(number, lens[0]));
                let expected = words(&[number, lens[0] as u32, sum, number ^ 0xffff]);
                assert_eq!(results[..], expected, "{procedure} {number} of {}", lens[0]);
                return;
            }
            _ => {
                let items = if procedure == procedures::SOURCE_TWICE { 2 } else { 1 };
                for (item, len) in lens.into_iter().take(items).enumerate() {
                    assert_eq!(decoder.u32(), Ok(number));
                    let payload = decoder.payload(DATA_BYTES_MAX).unwrap();
                    let found = match payload {
                        Payload::Here(found) => found.to_vec(),
                        Payload::Moved(moved) => {
                            assert_eq!(moved.index, item);
                            self.tally.placed += 1;
                            let at = item * DATA_BYTES_MAX / 2;
                            let place = memory.slice(at..at + moved.len).unwrap();
                            place.view().to_vec(Site::Inspect)
                        }
                    };
                    assert!(found == data(number + item as u32, len), "{number} of {len}");
                }
                assert_eq!(decoder.u32(), Ok(number));
            }
        }
        assert_eq!(decoder.finish(), Ok(()));
    }

    /// Cancels one of the calls.
    pub(crate) fn give_up(&mut self, rng: &mut SimRng) {
        if self.flights.is_empty() {
            return;
        }
        let at = rng.below(self.flights.len() as u64) as usize;
        let flight = self.flights.remove(at);
        drop(flight.pending);
        self.tally.given_up += 1;
        // The server cannot reach the memory any more, or never knew its key.
        self.free.push(flight.memory);
    }

    /// Closes the connection; outstanding calls are lost.
    pub(crate) fn close(&mut self) {
        if let Some(client) = self.client.take() {
            client.close();
        }
    }

    pub(crate) fn client(&self) -> Option<&RpcClient> {
        self.client.as_ref()
    }

    /// Connects without starting a call.
    pub(crate) fn connect(&mut self) {
        self.client = None;
        self.act(&mut SimRng::new(0));
    }

    pub(crate) fn under_way(&self) -> usize {
        self.flights.len()
    }

    /// Releases all memory of the caller.
    pub(crate) fn forget_memory(&mut self) {
        assert!(self.flights.is_empty());
        self.free.clear();
    }
}

fn is_sink(procedure: u32) -> bool {
    [procedures::SINK, procedures::SINK_APART, procedures::SINK_LATER].contains(&procedure)
}
