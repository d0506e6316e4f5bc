//! One request of a session and its answer, over as many connections as it takes.
//!
//! Invariants
//! * A request that may have reached the server is sent again as the same bytes in the same slot
//!   with the same sequence number, until it is answered: so it is carried out exactly once (RFC
//!   8881 2.10.6).
//! * When the server's answer leaves the state of a slot open, the session is over.

use super::session::Session;
use crate::compound::{Compound, Results};
use crate::connection::COMPOUND;
use crate::mount::error::MountError;
use crate::mount::link::{Connected, Link, is_loss};
use crate::mount::retry_timer::RetryTimer;
use dafs_rpc::client::{CallError, Located, MemorySlice, Pending, Request, SendData};
use dafs_wire::nfs4::{OpNum, SequenceArgs, SequenceStatus, Status};
use std::sync::Arc;

/// A compound that is ready to be sent, with its memory.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) compound: Compound,
    /// The data of the last operation, behind the compound.
    pub(crate) data: Option<MemorySlice>,
    /// The memory for the data of the results.
    pub(crate) sink: Option<MemorySlice>,
    pub(crate) results_bytes_max: usize,
}

impl Message {
    fn send(&self, connected: &Connected) -> Result<Pending, CallError> {
        let args = [self.compound.bytes()];
        let mut request = Request::new(COMPOUND, &args, self.results_bytes_max);
        request.sinks = self.sink.as_slice();
        request.locate = Some(locate_read);
        request.data = self.data.as_ref().map(|memory| SendData {
            position: self.compound.bytes().len(),
            memory: memory.clone(),
        });
        connected.rpc.submit_request(&request)
    }
}

/// The outcome of a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It was carried out, as far as its operations succeeded.
    Done { results: Results, status: SequenceStatus },
    /// It was not, or its answer is lost and it is idempotent, so it may be repeated.
    Repeat,
    /// The session is over, and with it all requests under it. A request that was sent once was not
    /// carried out; one that was sent again is in doubt.
    SessionOver { sent_again: bool },
    /// A retry is of no use.
    Failed(MountError),
}

/// A request under way.
#[derive(Debug)]
pub(crate) struct Exchange {
    session: Arc<Session>,
    sequence: SequenceArgs,
    message: Message,
    connected: Connected,
    pending: Result<Pending, CallError>,
}

impl Exchange {
    /// Sends a compound that begins with this SEQUENCE.
    pub(crate) fn begin(
        link: &Link,
        session: Arc<Session>,
        sequence: SequenceArgs,
        message: Message,
    ) -> Self {
        if message.sink.is_some() {
            link.route().look();
        }
        let connected = link.connected();
        let pending = message.send(&connected);
        Self { session, sequence, message, connected, pending }
    }

    /// Its session.
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// True when the answer has come.
    pub(crate) fn is_answered(&self) -> bool {
        self.pending.as_ref().map_or(true, Pending::is_answered)
    }

    /// Waits for the answer and frees the slot.
    pub(crate) fn finish(self, link: &Link, retry_timer: &mut RetryTimer) -> Outcome {
        let Self { session, sequence, message, mut connected, mut pending } = self;
        let mut sent_again = false;
        loop {
            let error = match pending.and_then(Pending::wait) {
                Ok(answer) => match look(&session, &sequence, answer) {
                    Seen::Outcome(Outcome::SessionOver { .. }) => {
                        return Outcome::SessionOver { sent_again };
                    }
                    Seen::Outcome(outcome) => return outcome,
                    Seen::SendAgain => {
                        if !retry_timer.pause() {
                            session.end();
                            return Outcome::Failed(link.lost("it asks for more and more time"));
                        }
                        pending = message.send(&connected);
                        continue;
                    }
                },
                Err(error) => error,
            };
            if !is_loss(&error) {
                if sent_again {
                    // The server may have counted the request when it came the first time, so its
                    // sequence number must not be reused.
                    session.end();
                    return Outcome::Failed(MountError::Rejected(error));
                }
                return refused(&session, &sequence, error);
            }
            connected = match link.reconnect(&connected, &error, retry_timer) {
                Ok(connected) => connected,
                Err(error) => {
                    session.end();
                    return Outcome::Failed(error);
                }
            };
            let spoiled = message.sink.as_ref().is_some_and(|sink| sink.memory().is_spoiled());
            if spoiled {
                session.end();
                return Outcome::Failed(MountError::spoiled());
            }
            pending = message.send(&connected);
            sent_again = true;
        }
    }
}

/// The call was not carried out, or is in doubt.
fn refused(session: &Session, sequence: &SequenceArgs, error: CallError) -> Outcome {
    match error {
        CallError::Denied(_)
        | CallError::NotDone(_)
        | CallError::TooLong(_)
        | CallError::TooMany
        | CallError::Request(_) => session.release(sequence, None),
        _ => session.end(),
    }
    Outcome::Failed(MountError::Rejected(error))
}

enum Seen {
    Outcome(Outcome),
    /// The same bytes once more, after a pause.
    SendAgain,
}

/// Evaluates the result of SEQUENCE (RFC 8881 18.46.3).
fn look(session: &Session, sequence: &SequenceArgs, answer: dafs_rpc::client::Results) -> Seen {
    let parsed = Results::new(answer).and_then(|mut results| {
        let outcome = match results.take_sequence() {
            Ok(result) => Ok(result),
            Err(error) => Err(error.status().ok_or(error)?),
        };
        Ok((results, outcome))
    });
    let (results, outcome) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            session.end();
            return Seen::Outcome(Outcome::Failed(error.into()));
        }
    };
    Seen::Outcome(match outcome {
        Ok(result) => {
            session.release(sequence, Some(&result));
            match results.status() {
                // It was carried out and the answer is gone. Only idempotent requests are sent
                // without having their answer kept.
                Status::RetryUncachedRep => Outcome::Repeat,
                _ => Outcome::Done { results, status: result.status },
            }
        }
        Err(Status::Delay) => return Seen::SendAgain,
        Err(Status::RetryUncachedRep) => {
            session.release_counted(sequence);
            Outcome::Repeat
        }
        Err(
            status @ (Status::ReqTooBig
            | Status::RepTooBig
            | Status::RepTooBigToCache
            | Status::TooManyOps),
        ) => {
            session.release(sequence, None);
            Outcome::Failed(MountError::Refused { operation: "SEQUENCE", status })
        }
        Err(_) => {
            session.end();
            Outcome::SessionOver { sent_again: false }
        }
    })
}

/// The place of the data in the results of SEQUENCE, PUTFH, READ (RFC 8881 18.22, 18.46).
fn locate_read(results: &[u8]) -> Option<Located> {
    const SEQUENCE_BYTES: usize = 36;
    let word = |at: usize| {
        let bytes = results.get(at..at + 4)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    };
    // The status, an empty tag, and three results.
    if (word(0)?, word(4)?, word(8)?) != (0, 0, 3) {
        return None;
    }
    let mut at = 12;
    for (op, bytes) in [(OpNum::Sequence, SEQUENCE_BYTES), (OpNum::Putfh, 0), (OpNum::Read, 4)] {
        if (word(at)?, word(at + 4)?) != (op as u32, 0) {
            return None;
        }
        at += 8 + bytes;
    }
    Some(Located { position: at + 4, len: word(at)? as usize })
}
