//! The state of the NFSv4 front end: the input is made into requests of three clients, time,
//! answers to callbacks, lost connections and restarts.
//!
//! Invariants that are checked
//! * Every request gets one well-formed answer.
//! * No two owners are granted what conflicts, as far as a simple model knows.
//! * No state is left when all clients are gone.

mod model;
mod ops;

use crate::input::Input;
use dafs_rpc::{CallbackError, CallbackRequest};
use dafs_testkit_rpc::nfs::{COURTESY_NS, LEASE_NS, Output, SECOND, Server, decode, encode};
use dafs_wire::nfs4::*;
use dafs_wire::xdr::{Decode, Decoder, Encode, Encoder};
use model::Model;
use ops::Known;
use std::collections::HashMap;
use std::time::{Duration, Instant};

const CLIENTS: usize = 3;
const SLOTS: usize = 4;
const STEPS_MAX: usize = 200;
const OPERATIONS_MAX: usize = 12;
/// Waiting for recalls is done in real time; an input may do little of it.
const REAL_TIME_MAX: Duration = Duration::from_millis(400);

#[derive(Default)]
struct Client {
    session: SessionId,
    sequences: [u32; SLOTS],
    last: Option<(u32, Vec<u8>)>,
}

struct World<'a> {
    input: Input<'a>,
    server: Server,
    clients: [Client; CLIENTS],
    known: Known,
    model: Model,
    calls: Vec<(u32, CallbackRequest)>,
    sent: HashMap<u32, (usize, Vec<u8>)>,
    xid: u32,
    /// Results of the last request that was answered.
    answer: Vec<u8>,
}

impl World<'_> {
    fn came_out(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::CallBack { connection, call } => self.calls.push((connection, call)),
                Output::Answer { xid, results, .. } => {
                    let Some((_, args)) = self.sent.get(&xid) else { continue };
                    self.model.hears(xid, args, &results, self.server.now_ns);
                    self.learn(&results);
                    self.answer = results;
                }
            }
        }
    }

    fn learn(&mut self, results: &[u8]) {
        for result in decode(results) {
            match result.body {
                ResultBody::Getfh(got) => {
                    let handle = got.handle.to_vec();
                    self.known.handles.retain(|known| *known != handle);
                    self.known.handles.push(handle);
                }
                ResultBody::Open(opened) => {
                    self.known.stateids.push(opened.stateid);
                    match opened.delegation {
                        OpenDelegation::Read(given) | OpenDelegation::ReadAttributes(given) => {
                            self.known.stateids.push(given.stateid);
                        }
                        OpenDelegation::Write(given) | OpenDelegation::WriteAttributes(given) => {
                            self.known.stateids.push(given.stateid);
                        }
                        _ => {}
                    }
                }
                ResultBody::Lock(locked) => self.known.stateids.push(locked.stateid),
                ResultBody::ExchangeId(result) => self.known.client_ids.push(result.client_id),
                ResultBody::CreateSession(result) => self.known.sessions.push(result.session_id),
                _ => {}
            }
        }
    }

    fn send(&mut self, client: usize, minor: u32, ops: &[Op<'_>]) {
        self.xid += 1;
        let args = encode(minor, ops);
        self.model.sends(client, self.xid, ops, self.server.now_ns);
        self.sent.insert(self.xid, (client, args.clone()));
        let outputs = self.server.submit(client as u32 + 1, self.xid, &args);
        self.came_out(outputs);
    }

    fn run_jobs(&mut self) {
        while self.server.jobs() > 0 {
            let outputs = self.server.run_job(0);
            self.came_out(outputs);
        }
    }

    /// Makes a client known, or makes it known again, and gives it a session.
    fn join(&mut self, client: usize, verifier: u8) {
        let owner = [b'c', client as u8];
        self.send(client, 1, &[ops::exchange_id(&owner, verifier)]);
        self.run_jobs();
        let answer = std::mem::take(&mut self.answer);
        let Some(ResultBody::ExchangeId(result)) = decode_last(&answer) else { return };
        let (id, sequence) = (result.client_id, result.sequence_id);
        self.send(client, 1, &[ops::create_session(id, sequence)]);
        self.run_jobs();
        let answer = std::mem::take(&mut self.answer);
        let Some(ResultBody::CreateSession(result)) = decode_last(&answer) else { return };
        self.clients[client] = Client { session: result.session_id, ..Client::default() };
    }

    fn sequence(&mut self, client: usize, slot: usize) -> SequenceArgs {
        let client = &mut self.clients[client];
        client.sequences[slot] = client.sequences[slot].wrapping_add(1);
        SequenceArgs {
            session_id: client.session,
            sequence_id: client.sequences[slot],
            slot_id: slot as u32,
            highest_slot_id: SLOTS as u32 - 1,
            cache_this: true,
        }
    }

    fn compound(&mut self, client: usize) {
        let bits = self.input.byte();
        let slot = usize::from(bits & 3);
        let mut sequence = self.sequence(client, slot);
        if bits >= 224 {
            // Something about it is wrong.
            match bits & 7 {
                0 => sequence.slot_id = self.input.u32(),
                1 => sequence.sequence_id = self.input.u32(),
                2 => sequence.sequence_id = sequence.sequence_id.wrapping_sub(1),
                3 => sequence.highest_slot_id = self.input.u32(),
                4 => sequence.session_id = self.known.sessions[0],
                5 => sequence.session_id.0[3] ^= self.input.byte(),
                _ => {}
            }
            self.clients[client].sequences[slot] -= 1;
        }
        sequence.cache_this = bits & 16 == 0;
        let known = std::mem::take(&mut self.known);
        let mut all = vec![Op::Sequence(sequence)];
        for _ in 0..1 + self.input.below(OPERATIONS_MAX) {
            let op = ops::op(&mut self.input, &known);
            let opens = matches!(op, Op::Open(_));
            all.push(op);
            all.extend(opens.then_some(Op::Getfh(GetfhArgs)));
        }
        let args = encode(1 + u32::from(bits >> 5 & 1), &all);
        self.xid += 1;
        self.model.sends(client, self.xid, &all, self.server.now_ns);
        drop(all);
        self.known = known;
        self.clients[client].last = Some((self.xid, args.clone()));
        self.sent.insert(self.xid, (client, args.clone()));
        let outputs = self.server.submit(client as u32 + 1, self.xid, &args);
        self.came_out(outputs);
    }

    /// The last compound once more, over any connection.
    fn again(&mut self, client: usize) {
        let Some((_, args)) = self.clients[client].last.clone() else { return };
        self.xid += 1;
        let mut d = Decoder::new(&args);
        let head = CompoundArgs::decode(&mut d).unwrap();
        // An operation that the minor version lacks ends the compound at the server too.
        let op = |_| Op::decode(&mut d, head.minor_version).ok();
        let ops: Vec<_> = (0..head.op_count).map_while(op).collect();
        self.model.sends(client, self.xid, &ops, self.server.now_ns);
        self.sent.insert(self.xid, (client, args.clone()));
        let outputs = self.server.submit(1 + self.input.below(CLIENTS) as u32, self.xid, &args);
        self.came_out(outputs);
    }

    fn answer_callback(&mut self) {
        if self.calls.is_empty() {
            return;
        }
        let at = self.input.below(self.calls.len());
        let (connection, call) = self.calls.swap_remove(at);
        let raw;
        let good;
        let result = match self.input.below(8) {
            0 => Err(CallbackError::TimedOut),
            1 => Err(CallbackError::Disconnected),
            2 => Err(CallbackError::Malformed),
            3 => {
                raw = self.input.bytes(64);
                Ok(raw)
            }
            _ => {
                let statuses = [Status::Ok, Status::Delay, Status::BadSession, Status::BadHandle];
                let status = statuses[self.input.below(8).min(3)];
                good = answer_to(
                    &call,
                    if self.input.below(4) > 0 { Status::Ok } else { status },
                    status,
                );
                Ok(&good[..])
            }
        };
        let outputs = self.server.back_reply(connection, call.token, result);
        self.came_out(outputs);
    }

    fn step(&mut self) {
        let choice = self.input.byte();
        let client = usize::from(choice >> 5) % CLIENTS;
        match choice & 31 {
            0..=17 => self.compound(client),
            18 | 19 => self.again(client),
            20 | 21 => {
                if self.server.jobs() > 0 {
                    let at = self.input.below(self.server.jobs());
                    let outputs = self.server.run_job(at);
                    self.came_out(outputs);
                }
            }
            22 => self.run_jobs(),
            23 | 24 => self.answer_callback(),
            25 | 26 => {
                let spans =
                    [1_000_000, SECOND / 2, SECOND, LEASE_NS / 3, LEASE_NS + 1, COURTESY_NS + 1];
                let span = spans[self.input.below(spans.len())];
                let outputs = self.server.pass(span);
                self.came_out(outputs);
            }
            27 => {
                let outputs = self.server.disconnect(client as u32 + 1);
                self.calls.retain(|(connection, _)| *connection != client as u32 + 1);
                self.came_out(outputs);
            }
            28 if self.input.byte() < 64 => {
                self.server.restart();
                self.calls.clear();
                self.model.forget_all();
            }
            28 | 29 => {
                let verifier = self.input.byte() & 1;
                self.join(client, verifier);
            }
            30 => {
                let op = ops::session(&mut self.input, &self.known);
                self.send(client, 1, &[op]);
            }
            _ => {
                // Bytes that are not made to be sensible.
                let args = self.input.bytes(200).to_vec();
                self.xid += 1;
                let outputs = self.server.submit(client as u32 + 1, self.xid, &args);
                self.model.forget_all();
                self.came_out(outputs);
            }
        }
    }

    /// All leases run out, and then nothing is left.
    fn end(&mut self) {
        self.run_jobs();
        for _ in 0..4 {
            let outputs = self.server.pass(COURTESY_NS + LEASE_NS + SECOND);
            self.came_out(outputs);
            self.run_jobs();
        }
        let (service, nfs) = self.server.counts();
        assert_eq!(service, Default::default());
        assert_eq!(nfs, Default::default());
        assert_eq!(self.server.records(), 0);
        assert!(!self.server.in_grace());
    }
}

fn decode_last(answer: &[u8]) -> Option<ResultBody<'_>> {
    if answer.is_empty() {
        return None;
    }
    decode(answer).pop().map(|result| result.body)
}

/// A client's reply to a callback.
fn answer_to(call: &CallbackRequest, sequence: Status, operation: Status) -> Vec<u8> {
    let mut d = Decoder::new(&call.args);
    let head = CbCompoundArgs::decode(&mut d).unwrap();
    let CbOp::Sequence(args) = CbOp::decode(&mut d).unwrap() else { panic!("no CB_SEQUENCE") };
    let operations: Vec<_> = (1..head.op_count).map(|_| CbOp::decode(&mut d).unwrap()).collect();
    d.finish().unwrap();
    let ok = sequence == Status::Ok;
    let mut bytes = Vec::new();
    let mut e = Encoder::new(&mut bytes);
    let status = if ok { operation } else { sequence };
    CompoundResult { status, tag: b"", op_count: 1 + u32::from(ok) }.encode(&mut e);
    let body = if ok {
        CbResultBody::Sequence(CbSequenceResult {
            session_id: args.session_id,
            sequence_id: args.sequence_id,
            slot_id: args.slot_id,
            highest_slot_id: 3,
            target_highest_slot_id: 3,
        })
    } else {
        CbResultBody::Nothing
    };
    CbOpResult { number: CbOpNum::Sequence as u32, status: sequence, body }.encode(&mut e);
    if ok {
        let body = CbResultBody::Nothing;
        CbOpResult { number: operations[0].number(), status: operation, body }.encode(&mut e);
    }
    bytes
}

pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let flags = input.byte();
    let mut world = World {
        input,
        server: Server::new(flags & 1 == 1),
        clients: Default::default(),
        known: Known::default(),
        model: Model::default(),
        calls: Vec::new(),
        sent: HashMap::new(),
        xid: 0,
        answer: Vec::new(),
    };
    for client in 0..CLIENTS {
        world.join(client, 0);
        let sequence = Op::Sequence(world.sequence(client, 0));
        let root = [
            sequence,
            Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false }),
            Op::Putrootfh(PutrootfhArgs),
            Op::Getfh(GetfhArgs),
        ];
        world.send(client, 1, &root);
        world.run_jobs();
    }
    let began = Instant::now();
    for _ in 0..STEPS_MAX {
        if world.input.is_empty() || began.elapsed() > REAL_TIME_MAX {
            break;
        }
        world.step();
    }
    world.end();
}
