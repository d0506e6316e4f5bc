//! A connection without a socket: bytes in, calls to a handler, bytes out. For simulations and
//! fuzzing; the code is that of real connections.
//!
//! Invariants
//! * The connection consumes all input, at once or when output has been taken; no byte is lost.

use crate::answer::{AnswerTo, Protection};
use crate::call::ConnectionId;
use crate::connection::{Connection, Ending, Progress, Tally, TurnContext};
use crate::handler::Handler;
use crate::limits::{LARGE_RECORD_BYTES, RECEIVE_BYTES, RECEIVE_BYTES_BEFORE_LARGE};
use crate::local::{LocalEvent, LocalReactor};
use crate::output::Parts;
use crate::record::Budget;
use crate::server::Config;
use dafs_mem::Site;
use std::collections::VecDeque;
use thiserror::Error;

/// A connection that receives its input from the test.
#[derive(Debug)]
pub struct LocalConnection {
    connection: Connection,
    config: Config,
    budget: Budget,
    /// Input that the connection has not read yet.
    unread: VecDeque<u8>,
}

/// The reason why a connection has ended, as text.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct LocalEnding(String);

impl From<Ending> for LocalEnding {
    fn from(ending: Ending) -> Self {
        Self(ending.to_string())
    }
}

impl LocalConnection {
    /// The connection with this number of a [`LocalReactor`].
    pub fn new(reactor: &LocalReactor, number: u32, config: Config) -> Self {
        let id = reactor.connection(number).id();
        Self {
            connection: Connection::new(id, (reactor.peer, reactor.process), &config, 0),
            budget: Budget::new(config.assembly_bytes_max),
            config,
            unread: VecDeque::new(),
        }
    }

    /// The identifier of the connection.
    pub fn id(&self) -> ConnectionId {
        self.connection.id
    }

    /// Receives bytes and serves the calls in them.
    ///
    /// # Errors
    /// When the connection must end.
    pub fn feed<H: Handler>(
        &mut self,
        reactor: &LocalReactor,
        handler: &mut H,
        bytes: &[u8],
        now_ns: u64,
    ) -> Result<(), LocalEnding> {
        self.unread.extend(bytes);
        self.go_on(reactor, handler, now_ns)
    }

    /// Continues after output was taken or a call was answered.
    ///
    /// # Errors
    /// When the connection must end.
    pub fn go_on<H: Handler>(
        &mut self,
        reactor: &LocalReactor,
        handler: &mut H,
        now_ns: u64,
    ) -> Result<(), LocalEnding> {
        let mut tally = Tally::default();
        let Self { connection, config, budget, unread } = self;
        let inbox = reactor.inbox();
        let mut turn = TurnContext { handler, inbox, budget, config, tally: &mut tally, now_ns };
        while connection.has_deferred_input() && connection.may_take(config) {
            connection.process_deferred_input(&mut turn)?;
        }
        while !unread.is_empty() && !connection.has_deferred_input() && connection.may_take(config)
        {
            if !connection.reader().make_room(turn.budget).map_err(Ending::from)? {
                break;
            }
            // As with a socket: first into the partial record, then as much as the reactor would
            // read.
            let expects_large = connection.expects_large();
            let space = connection.reader().space();
            let input = unread.make_contiguous();
            let direct = space.copy_from(input, Site::Sim);
            let careful = expects_large || space.len() >= LARGE_RECORD_BYTES;
            let len_max = if careful { RECEIVE_BYTES_BEFORE_LARGE } else { RECEIVE_BYTES };
            let len = (input.len() - direct).min(len_max);
            let through: Vec<u8> = input[direct..direct + len].to_vec();
            unread.drain(..direct + len);
            connection.received(direct, now_ns);
            let mut input = &through[..];
            while connection.process(&mut input, &mut turn)? == Progress::Flush {
                if !connection.may_take(config) {
                    connection.defer_input(input)?;
                    break;
                }
            }
        }
        Ok(())
    }

    /// Applies an event of this connection, such as an answer; returns any other event. The test
    /// then calls [`LocalConnection::go_on`] to serve calls that waited.
    pub fn apply<H: Handler>(
        &mut self,
        reactor: &LocalReactor,
        handler: &mut H,
        event: LocalEvent,
        now_ns: u64,
    ) -> Option<LocalEvent> {
        let mut tally = Tally::default();
        let Self { connection, config, budget, .. } = self;
        let inbox = reactor.inbox();
        let mut turn = TurnContext { handler, inbox, budget, config, tally: &mut tally, now_ns };
        match event {
            LocalEvent::Answer { connection: id, xid, answer, is_complete, held_bytes }
                if id == connection.id =>
            {
                let protection = if is_complete { Protection::Applied } else { Protection::None };
                connection.answer_later(AnswerTo { xid, protection }, answer, held_bytes, now_ns);
            }
            LocalEvent::Forgotten(id, held_bytes) if id == connection.id => {
                connection.forget(held_bytes, now_ns);
            }
            LocalEvent::CallBack(id, call) if id == connection.id => {
                connection.send_callback(&call, &mut turn);
            }
            other => return Some(other),
        }
        None
    }

    /// Checks the timeouts.
    ///
    /// # Errors
    /// When the connection must end.
    pub fn tick<H: Handler>(
        &mut self,
        reactor: &LocalReactor,
        handler: &mut H,
        now_ns: u64,
    ) -> Result<(), LocalEnding> {
        let mut tally = Tally::default();
        let Self { connection, config, budget, .. } = self;
        let inbox = reactor.inbox();
        let mut turn = TurnContext { handler, inbox, budget, config, tally: &mut tally, now_ns };
        Ok(connection.tick(&mut turn)?)
    }

    /// Takes output, at most `len_max` bytes.
    pub fn take_output(&mut self, len_max: usize, now_ns: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < len_max && !self.connection.output.is_empty() {
            let mut parts = Parts::new();
            self.connection.output.gather(&mut parts);
            let before = bytes.len();
            parts.iter().for_each(|part| bytes.extend(part.to_vec(Site::Sim)));
            drop(parts);
            bytes.truncate(len_max);
            self.connection.output.sent(bytes.len() - before);
        }
        self.connection.output_moved(now_ns);
        bytes
    }

    /// Ends the connection: the handler learns of it, and of the callbacks that fail because of it.
    pub fn end<H: Handler>(mut self, reactor: &LocalReactor, handler: &mut H, now_ns: u64) {
        let mut tally = Tally::default();
        let inbox = reactor.inbox();
        let (budget, config) = (&mut self.budget, &self.config);
        let mut turn = TurnContext { handler, inbox, budget, config, tally: &mut tally, now_ns };
        self.connection.end(&mut turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Call, CallbackError, CallbackRequest, Handled, Reply};
    use dafs_wire::rpc::{CallHeader, FragmentMark, OpaqueAuth};
    use dafs_wire::xdr::{Encode, Encoder};
    use proptest::prelude::*;

    /// Answers with the arguments: at once, later, or not at all; or sends a callback.
    #[derive(Default)]
    struct Echo {
        back: Vec<(u64, Result<Vec<u8>, CallbackError>)>,
        ends: u32,
    }

    impl Handler for Echo {
        type Message = ();

        fn call(&mut self, call: Call<'_>) -> Handled {
            match call.procedure {
                0 => Reply::from_bytes(call.args).into(),
                1 => {
                    let (args, responder) = call.later();
                    responder.respond(Reply::from_bytes(&args));
                    Handled::Later
                }
                2 => {
                    drop(call.later());
                    Handled::Later
                }
                3 => Handled::Drop,
                _ => {
                    call.connection().send_callback(CallbackRequest {
                        program: 1,
                        version: 1,
                        procedure: 1,
                        auth_sys: None,
                        args: Vec::new(),
                        token: u64::from(call.xid),
                    });
                    Reply::new().into()
                }
            }
        }

        fn back_reply(
            &mut self,
            _: ConnectionId,
            token: u64,
            result: Result<&[u8], CallbackError>,
        ) {
            self.back.push((token, result.map(<[u8]>::to_vec)));
        }

        fn disconnected(&mut self, _: ConnectionId) {
            self.ends += 1;
        }
    }

    /// Defers all calls.
    #[derive(Default)]
    struct Kept(Vec<(crate::OwnedArgs, crate::Responder)>);

    impl Handler for Kept {
        type Message = ();

        fn call(&mut self, call: Call<'_>) -> Handled {
            self.0.push(call.later());
            Handled::Later
        }
    }

    fn record(xid: u32, procedure: u32, args: &[u8]) -> Vec<u8> {
        let none = OpaqueAuth::NONE;
        let (program, version) = (1, 1);
        let header =
            CallHeader { xid, program, version, procedure, credential: none, verifier: none };
        let mut bytes = vec![0; 4];
        header.encode(&mut Encoder::new(&mut bytes));
        bytes.extend_from_slice(args);
        let mark = FragmentMark::whole(bytes.len() - 4).unwrap();
        bytes[..4].copy_from_slice(&mark.to_bytes());
        bytes
    }

    /// Feeds the pieces and takes output `step` bytes at a time; returns all replies by XID.
    fn replies(pieces: &[&[u8]], config: &Config, step: usize) -> Vec<(u32, Vec<u8>)> {
        let reactor = LocalReactor::new().unwrap();
        let mut echo = Echo::default();
        let mut connection = LocalConnection::new(&reactor, 1, config.clone());
        let mut output = Vec::new();
        for piece in pieces.iter().chain(std::iter::repeat_n(&&[][..], 100_000)) {
            connection.feed(&reactor, &mut echo, piece, 0).unwrap();
            for event in reactor.take_events() {
                assert!(connection.apply(&reactor, &mut echo, event, 0).is_none());
            }
            let some = connection.take_output(step, 0);
            let done = piece.is_empty()
                && some.is_empty()
                && connection.unread.is_empty()
                && connection.connection.is_idle();
            output.extend(some);
            if done {
                break;
            }
        }
        connection.end(&reactor, &mut echo, 0);
        assert_eq!(echo.ends, 1);
        let mut replies = Vec::new();
        let mut rest = &output[..];
        while let Some((mark, behind)) = rest.split_first_chunk() {
            let (reply, behind) = behind.split_at(FragmentMark::from_bytes(*mark).len as usize);
            let xid = u32::from_be_bytes(*reply.first_chunk().unwrap());
            replies.push((xid, reply[24..].to_vec()));
            rest = behind;
        }
        replies.sort();
        replies
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn neither_cuts_nor_bounds_change_the_answers(
            calls in prop::collection::vec((0u32..4, 0usize..6000), 1..40),
            piece_bytes in prop_oneof![Just(1usize), Just(13), Just(1000), Just(usize::MAX)],
            calls_max in 1usize..4,
            output_max in prop_oneof![Just(1usize), Just(20_000), Just(usize::MAX)],
            pending_max in prop_oneof![Just(1usize), Just(20_000)],
            step in prop_oneof![Just(100usize), Just(5000), Just(usize::MAX)],
        ) {
            let mut stream = Vec::new();
            let mut want = Vec::new();
            for (xid, (procedure, units)) in (0u32..).zip(&calls) {
                let args = vec![xid as u8; units * 4];
                stream.extend(record(xid, *procedure, &args));
                if *procedure < 2 {
                    want.push((xid, args));
                }
            }
            let config = Config {
                calls_per_connection_max: calls_max,
                pending_bytes_max: pending_max,
                output_bytes_max: output_max,
                ..Config::default()
            };
            let pieces: Vec<&[u8]> = stream.chunks(piece_bytes.min(stream.len())).collect();
            prop_assert!(replies(&pieces, &config, step) == want);
        }
    }

    #[test]
    fn calls_back_time_out_or_end_with_the_connection() {
        let reactor = LocalReactor::new().unwrap();
        let mut echo = Echo::default();
        let mut connection = LocalConnection::new(&reactor, 1, Config::default());
        let second = 1_000_000_000;
        for (xid, now_ns) in [(1, 0), (2, 5 * second)] {
            connection.feed(&reactor, &mut echo, &record(xid, 9, &[]), now_ns).unwrap();
            for event in reactor.take_events() {
                assert!(connection.apply(&reactor, &mut echo, event, now_ns).is_none());
            }
        }
        connection.take_output(usize::MAX, 5 * second);
        connection.tick(&reactor, &mut echo, 10 * second).unwrap();
        assert_eq!(echo.back, [(1, Err(CallbackError::TimedOut))]);
        connection.end(&reactor, &mut echo, 11 * second);
        assert_eq!(echo.back[1..], [(2, Err(CallbackError::Disconnected))]);
    }

    #[test]
    fn memory_for_records_is_not_held_for_ever() {
        let reactor = LocalReactor::new().unwrap();
        let mut echo = Echo::default();
        // This connection is the only holder, so it takes the whole budget.
        let config = Config { assembly_bytes_max: 4 << 10, ..Config::default() };
        let mut connection = LocalConnection::new(&reactor, 1, config);
        let second = 1_000_000_000;
        let half = &record(1, 0, &[0; 400])[..100];
        connection.feed(&reactor, &mut echo, half, 0).unwrap();
        assert!(connection.budget.is_spent());
        connection.tick(&reactor, &mut echo, 3 * second).unwrap();
        assert!(connection.tick(&reactor, &mut echo, 4 * second).is_err());
        // A connection that waits for memory is not stalled.
        let config = Config { assembly_bytes_max: 0, ..Config::default() };
        let mut connection = LocalConnection::new(&reactor, 1, config);
        let half = &record(1, 0, &[0; 100_000])[..100];
        connection.feed(&reactor, &mut echo, half, 0).unwrap();
        connection.tick(&reactor, &mut echo, 1000 * second).unwrap();
    }

    #[test]
    fn calls_that_were_put_off_are_bounded_by_their_memory() {
        let reactor = LocalReactor::new().unwrap();
        let mut kept = Kept::default();
        let config = Config { pending_bytes_max: 100_000, ..Config::default() };
        let mut connection = LocalConnection::new(&reactor, 1, config);
        for xid in 0..10 {
            connection.feed(&reactor, &mut kept, &record(xid, 1, &[0; 100_000]), 0).unwrap();
        }
        assert_eq!(kept.0.len(), 1);
        for left in (0..9).rev() {
            kept.0.clear();
            for event in reactor.take_events() {
                assert!(connection.apply(&reactor, &mut kept, event, 0).is_none());
            }
            connection.go_on(&reactor, &mut kept, 0).unwrap();
            assert_eq!(kept.0.len(), 1, "{left} are left");
        }
    }

    #[test]
    fn the_clock_ends_what_does_not_move() {
        let reactor = LocalReactor::new().unwrap();
        let mut echo = Echo::default();
        let second = 1_000_000_000;
        let mut silent = LocalConnection::new(&reactor, 1, Config::default());
        silent.tick(&reactor, &mut echo, 9 * second).unwrap();
        assert!(silent.tick(&reactor, &mut echo, 10 * second).is_err());

        // A slow first record has more time.
        let mut connection = LocalConnection::new(&reactor, 1, Config::default());
        let half = &record(1, 0, &[0; 400])[..100];
        connection.feed(&reactor, &mut echo, half, 0).unwrap();
        for now in [10, 29] {
            connection.tick(&reactor, &mut echo, now * second).unwrap();
        }
        // A byte now and then extends the timeout for a while only.
        for now in (29..119).step_by(20) {
            connection.feed(&reactor, &mut echo, &[0], now * second).unwrap();
            connection.tick(&reactor, &mut echo, now * second).unwrap();
        }
        assert!(connection.tick(&reactor, &mut echo, 121 * second).is_err());

        let mut connection = LocalConnection::new(&reactor, 1, Config::default());
        connection.feed(&reactor, &mut echo, &record(1, 0, &[0; 400]), 0).unwrap();
        connection.tick(&reactor, &mut echo, 59 * second).unwrap();
        assert_eq!(connection.take_output(10, 59 * second).len(), 10);
        connection.tick(&reactor, &mut echo, 110 * second).unwrap();
        assert!(connection.tick(&reactor, &mut echo, 120 * second).is_err());
    }
}
