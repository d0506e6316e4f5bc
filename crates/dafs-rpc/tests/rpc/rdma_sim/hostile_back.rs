//! Clients that answer callbacks (RFC 8167) in arbitrary ways. Each callback completes once, and
//! calls in the other direction do not suffer.

use super::net::Net;
use super::program::procedures;
use super::raw::Raw;
use crate::peer::{Message, success, words};
use dafs_rpc::CallbackError;
use dafs_wire::rpc::{AcceptStatus, Direction, peek};
use dafs_wire::rpcrdma::{Body, Chunks, Header, HeaderFault};
use std::time::Duration;

/// A client, and the callbacks that have reached it.
struct Called {
    net: Net,
    raw: Raw,
    calls: Vec<Message>,
    next: u32,
}

impl Called {
    fn new() -> Self {
        let mut net = Net::calm(4);
        let raw = Raw::connect(&mut net, 7, &[]);
        Self { net, raw, calls: Vec::new(), next: 0 }
    }

    /// Makes the server send `times` callbacks.
    fn ask(&mut self, times: u32) {
        for _ in 0..times {
            self.next += 1;
            let chunks = Chunks::default();
            self.raw.call(self.next, procedures::CALL_BACK, chunks, &words(&[self.next]));
            self.settle();
        }
    }

    /// Sorts the messages: answers must all have arrived, callbacks are kept.
    fn settle(&mut self) {
        self.net.settle(&mut [&mut self.raw]);
        for message in self.raw.inbox.drain(..) {
            match peek(&message.body) {
                Ok((_, Direction::Call)) => self.calls.push(message),
                Ok(_) => assert_eq!(message.reply().0, AcceptStatus::Success),
                Err(error) => panic!("{error}: {message:?}"),
            }
        }
    }

    /// Answers with these credits.
    fn answer(&mut self, xid: u32, credits: u32) {
        let header = Header { xid, credits, body: Body::Message(Chunks::default()) };
        self.raw.send_message(&header, &success(xid, &words(&[xid])));
        self.settle();
    }

    /// The outcomes of the callbacks, each of which completed once.
    fn ends(&self) -> Vec<(u64, Result<Vec<u8>, CallbackError>)> {
        let ends = self.net.program.account().back.clone();
        let mut tokens: Vec<_> = ends.iter().map(|(token, _)| *token).collect();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), ends.len(), "a call back ends twice: {ends:?}");
        ends
    }

    /// Disconnects the client; every callback has completed, and no resource is left.
    fn leave(mut self) {
        self.raw.abort();
        self.settle();
        assert_eq!(self.ends().len(), self.next as usize);
        self.net.assert_idle(32);
    }
}

#[test]
fn as_many_calls_are_under_way_as_the_client_takes() {
    let mut called = Called::new();
    called.ask(50);
    assert_eq!(called.calls.len(), 1, "one, until the client says more");
    // Zero credits would be a deadlock.
    for credits in [0, 1, 3, u32::MAX] {
        let xid = called.calls.remove(0).header.xid;
        called.answer(xid, credits);
        let (token, result) = called.ends().pop().unwrap();
        assert!(token > 0 && result == Ok(words(&[xid])));
        let most = credits.clamp(1, 64) as usize;
        assert!((1..=most).contains(&called.calls.len()), "{} {credits}", called.calls.len());
    }
    let under_way = called.calls.len();
    called.ask(1);
    assert_eq!(called.calls.len(), under_way);
    called.leave();
}

#[test]
fn answers_to_no_call_change_nothing() {
    let mut called = Called::new();
    called.ask(2);
    let xid = called.calls.remove(0).header.xid;
    for other in [xid.wrapping_add(1), xid.wrapping_sub(1), 1, 2] {
        called.answer(other, 8);
        assert!(called.ends().is_empty() && called.calls.is_empty());
    }
    called.answer(xid, 1);
    assert_eq!((called.ends().len(), called.calls.len()), (1, 1));
    for _ in 0..300 {
        called.answer(xid, 8);
    }
    assert_eq!((called.ends().len(), called.calls.len()), (1, 1));
    called.ask(20);
    called.leave();
}

#[test]
fn a_client_that_never_answers_is_not_waited_for() {
    let mut called = Called::new();
    called.ask(10);
    called.net.pass(Duration::from_secs(60));
    called.settle();
    let ends = called.ends();
    assert_eq!(ends.len(), 10);
    assert!(ends.iter().all(|(_, result)| *result == Err(CallbackError::TimedOut)), "{ends:?}");
    // A late answer does not count, but shows that the client takes callbacks again.
    let xid = called.calls.remove(0).header.xid;
    called.answer(xid, 1);
    assert_eq!(called.ends().len(), 10);
    called.ask(1);
    let xid = called.calls.remove(0).header.xid;
    called.answer(xid, 1);
    assert_eq!(called.ends().pop(), Some((11, Ok(words(&[xid])))));
    called.leave();
}

#[test]
fn calls_without_end_are_refused() {
    let mut called = Called::new();
    called.ask(2000);
    let too_many = Err(CallbackError::TooMany);
    let refused = called.ends().iter().filter(|(_, result)| *result == too_many).count();
    assert!((1500..2000).contains(&refused), "{refused}");
    called.leave();
}

#[test]
fn answers_that_are_none_end_their_call() {
    for case in 0..4 {
        let mut called = Called::new();
        called.ask(1);
        let xid = called.calls.remove(0).header.xid;
        let good = Header { xid, credits: 1, body: Body::Message(Chunks::default()) };
        match case {
            0 => called.raw.send_header(xid, 1, Body::Error(HeaderFault::Chunk)),
            1 => {
                let fault = HeaderFault::Version { low: 2, high: 2 };
                called.raw.send_header(xid, 1, Body::Error(fault));
            }
            2 => called.raw.send_message(&good, &words(&[xid, 1, 7])),
            _ => called.raw.send_message(&good, &words(&[xid, 1])),
        }
        called.settle();
        let ends = called.ends();
        assert_eq!(ends, [(1, Err(CallbackError::Malformed))], "{case}");
        if called.raw.is_up() {
            called.ask(1);
        }
        called.leave();
    }
}

#[test]
fn calls_back_end_with_their_connection() {
    let mut called = Called::new();
    called.ask(5);
    called.raw.abort();
    called.settle();
    let ends = called.ends();
    assert_eq!(ends.len(), 5);
    assert!(ends.iter().all(|(_, result)| *result == Err(CallbackError::Disconnected)));
    called.leave();
}
