//! A program with data in arguments and results, which records its calls.
//!
//! Invariants
//! * A call has been executed when it is counted in [`Account::done`]; each is counted once.

use dafs_mem::Site;
use dafs_rpc::{
    AcceptStatus, Call, CallbackError, CallbackRequest, ConnectionId, Handled, Handler, OwnedArgs,
    Rejection, Reply, Responder,
};
use dafs_wire::xdr::{Decoder, Payload};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

pub const PROGRAM: u32 = 0x2000_0077;

/// The longest data of an argument or result, in bytes.
pub const DATA_BYTES_MAX: usize = 1 << 20;

/// Procedures of the program.
pub mod procedures {
    /// Does no work.
    pub const NULL: u32 = 0;
    /// A number, data, a number: gives the first number, the length and the sum of the data, the
    /// last number. The data comes in one piece.
    pub const SINK: u32 = 1;
    /// As `SINK`, but the data may come outside of the message.
    pub const SINK_APART: u32 = 2;
    /// A number and a length: gives the number, data of that length, the number again.
    pub const SOURCE: u32 = 3;
    /// Two numbers and two lengths: gives two items of data, each between numbers.
    pub const SOURCE_TWICE: u32 = 4;
    /// A number and a length: gives the number and `length` words that are not data.
    pub const WORDS: u32 = 5;
    /// As `SINK_APART`, answered when the test releases it.
    pub const SINK_LATER: u32 = 6;
    /// As `SOURCE`, answered when the test releases it.
    pub const SOURCE_LATER: u32 = 7;
    /// A number: gives no answer.
    pub const DROP: u32 = 8;
    /// Ends the connection.
    pub const CLOSE: u32 = 9;
    /// A number: the server sends it in a callback.
    pub const CALL_BACK: u32 = 10;
}

/// The program's record, for the test.
#[derive(Debug, Default)]
pub struct Account {
    /// How often the call with this number was executed.
    pub done: HashMap<u32, u32>,
    /// Connections whose end the handler has learned.
    pub ended: Vec<ConnectionId>,
    /// The outcomes of callbacks, by their numbers.
    pub back: Vec<(u64, Result<Vec<u8>, CallbackError>)>,
    /// Deferred calls, until [`Program::release`].
    pub held: Vec<(u32, OwnedArgs, Responder)>,
}

/// The program; clones share the record.
#[derive(Debug, Clone, Default)]
pub struct Program {
    account: Arc<Mutex<Account>>,
}

impl Program {
    pub fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap()
    }

    /// How often the call with this number was executed.
    pub fn done(&self, number: u32) -> u32 {
        self.account().done.get(&number).copied().unwrap_or(0)
    }

    /// Answers one of the deferred calls.
    pub fn release(&self, at: usize) {
        let (procedure, args, responder) = self.account().held.remove(at);
        let result = match procedure {
            procedures::SINK_LATER => self.sink(args.decoder(), args.reply(), |payload| {
                sum_of(payload, |moved| args.data(moved).map(|view| view.to_vec(Site::Inspect)))
            }),
            _ => self.source(args.decoder(), args.reply(), 1),
        };
        match result {
            Ok(reply) => responder.respond(reply),
            Err(_) => responder.reject(Rejection::Accept(AcceptStatus::GarbageArgs)),
        }
    }

    fn count(&self, number: u32) {
        *self.account().done.entry(number).or_default() += 1;
    }

    fn sink(
        &self,
        mut args: Decoder<'_>,
        mut reply: Reply,
        sum: impl FnOnce(Payload<'_>) -> u32,
    ) -> Result<Reply, dafs_wire::xdr::XdrError> {
        let number = args.u32()?;
        let payload = args.payload(DATA_BYTES_MAX)?;
        let tail = args.u32()?;
        args.finish()?;
        self.count(number);
        let mut encoder = reply.encoder();
        encoder.u32(number);
        encoder.count(payload.len());
        encoder.u32(sum(payload));
        encoder.u32(tail);
        Ok(reply)
    }

    fn source(
        &self,
        mut args: Decoder<'_>,
        mut reply: Reply,
        items: usize,
    ) -> Result<Reply, dafs_wire::xdr::XdrError> {
        let number = args.u32()?;
        let lens: Vec<_> = (0..items).map(|_| args.u32()).collect::<Result<_, _>>()?;
        args.finish()?;
        self.count(number);
        for (item, len) in lens.into_iter().enumerate() {
            let len = (len as usize).min(DATA_BYTES_MAX);
            let mut encoder = reply.encoder();
            encoder.u32(number);
            encoder.count(len);
            let mut bulk = reply.bulk(len).expect("memory for data");
            bulk.view().copy_from(&data(number + item as u32, len), Site::Inspect);
            bulk.finish(len);
        }
        reply.encoder().u32(number);
        Ok(reply)
    }
}

/// Data derived from a number.
pub fn data(number: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32 / 7).wrapping_mul(31).wrapping_add(number) as u8).collect()
}

/// The sum that `SINK` returns for data.
pub fn sum(data: &[u8]) -> u32 {
    data.iter().fold(1, |sum: u32, byte| sum.rotate_left(5) ^ u32::from(*byte))
}

fn sum_of(
    payload: Payload<'_>,
    moved: impl FnOnce(&dafs_wire::xdr::MovedData) -> Option<Vec<u8>>,
) -> u32 {
    match payload {
        Payload::Here(data) => sum(data),
        Payload::Moved(which) => sum(&moved(&which).expect("data that was announced")),
    }
}

impl Handler for Program {
    type Message = ();

    fn call(&mut self, call: Call<'_>) -> Handled {
        if call.program != PROGRAM {
            return AcceptStatus::ProgramUnavailable.into();
        }
        let result = match call.procedure {
            procedures::NULL => Ok(call.reply()),
            procedures::SINK | procedures::SINK_APART => {
                self.sink(call.decoder(), call.reply(), |payload| {
                    sum_of(payload, |moved| call.data(moved).map(|view| view.to_vec(Site::Inspect)))
                })
            }
            procedures::SOURCE => self.source(call.decoder(), call.reply(), 1),
            procedures::SOURCE_TWICE => self.source(call.decoder(), call.reply(), 2),
            procedures::WORDS => {
                let mut args = call.decoder();
                let (Ok(number), Ok(len)) = (args.u32(), args.u32()) else {
                    return AcceptStatus::GarbageArgs.into();
                };
                self.count(number);
                let mut reply = call.reply();
                (0..=len.min(1 << 18)).for_each(|_| reply.encoder().u32(number));
                Ok(reply)
            }
            procedures::SINK_LATER | procedures::SOURCE_LATER => {
                let procedure = call.procedure;
                let (args, responder) = call.later();
                self.account().held.push((procedure, args, responder));
                return Handled::Later;
            }
            procedures::DROP => return Handled::Drop,
            procedures::CLOSE => {
                call.connection().close();
                Ok(call.reply())
            }
            procedures::CALL_BACK => {
                let Ok(number) = call.decoder().u32() else {
                    return AcceptStatus::GarbageArgs.into();
                };
                let (program, version, procedure) = (PROGRAM + 1, 1, 1);
                let (auth_sys, args, token) = (None, call.args.to_vec(), number.into());
                let back = CallbackRequest { program, version, procedure, auth_sys, args, token };
                call.connection().send_callback(back);
                Ok(call.reply())
            }
            _ => return AcceptStatus::ProcedureUnavailable.into(),
        };
        result.map_or_else(|_| AcceptStatus::GarbageArgs.into(), Handled::Reply)
    }

    fn takes_moved_data(&self, program: u32, _: u32, procedure: u32) -> bool {
        program == PROGRAM && [procedures::SINK_APART, procedures::SINK_LATER].contains(&procedure)
    }

    fn back_reply(&mut self, _: ConnectionId, token: u64, result: Result<&[u8], CallbackError>) {
        self.account().back.push((token, result.map(<[u8]>::to_vec)));
    }

    fn disconnected(&mut self, connection: ConnectionId) {
        self.account().ended.push(connection);
    }
}
