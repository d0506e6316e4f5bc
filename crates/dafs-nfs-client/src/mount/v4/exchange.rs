//! One request of a session and its answer, over as many connections as it takes.
//!
//! Invariants
//! * A request that may have reached the server is sent again as the same bytes in the same slot
//!   with the same sequence number, until it is answered: so it is carried out exactly once (RFC
//!   8881 2.10.6).
//! * When the server's answer leaves the state of a slot open, the session is over. Under RPCSEC_GSS
//!   a refusal of a call that was sent does so, because nothing proves it (RFC 2203 5.3.3.2).

use super::session::Session;
use crate::compound::{Compound, Results};
use crate::connection::COMPOUND;
use crate::mount::error::MountError;
use crate::mount::link::{Connected, Link, is_loss};
use crate::mount::retry_timer::RetryTimer;
use crate::mount::security::SecurityFlavour;
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
            let was_sent = pending.is_ok();
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
                    return Outcome::Failed(MountError::rejected(error));
                }
                let is_proven = link.flavour() != SecurityFlavour::Sys;
                return refused(&session, &sequence, error, was_sent && is_proven);
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

/// The call was not carried out, or is in doubt. `is_forgeable` is true if it was sent under
/// RPCSEC_GSS: a verifier covers no status. A party on the way may have put the refusal in the place
/// of the answer, and a slot that is numbered again would get that answer for another request.
fn refused(
    session: &Session,
    sequence: &SequenceArgs,
    error: CallError,
    is_forgeable: bool,
) -> Outcome {
    match error {
        _ if is_forgeable => session.end(),
        // Nothing was sent, or the server refused it.
        CallError::Context(_)
        | CallError::Denied(_)
        | CallError::NotDone(_)
        | CallError::TooLong(_)
        | CallError::TooMany
        | CallError::Request(_) => session.release(sequence, None),
        _ => session.end(),
    }
    Outcome::Failed(MountError::rejected(error))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::kerberos::Login;
    use crate::mount::options::MountOptions;
    use crate::mount::route::Route;
    use dafs_mem::VolatileSlice;
    use dafs_rpc::client::Identity;
    use dafs_rpc::client::gss::{
        Established, Initiator, InitiatorKeys, Mechanism, PartialContext, Step,
    };
    use dafs_rpc::gss::BadToken;
    use dafs_rpc::{AuthStatus, GssService, RejectStatus};
    use dafs_wire::nfs4::{ChannelAttributes, CreateSessionFlags, CreateSessionResult, SessionId};
    use dafs_wire::rpc::gss::InitResults;
    use dafs_wire::rpc::{
        AcceptStatus, AuthFlavor, FragmentMark, OpaqueAuth, ReplyHeader, ReplyStatus,
    };
    use dafs_wire::xdr::Encode;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    const MIC: [u8; 4] = [7; 4];

    /// A mechanism that proves nothing, with one token.
    #[derive(Debug)]
    struct NoProof;

    impl Mechanism for NoProof {
        fn begin(&self) -> Box<dyn PartialContext> {
            Box::new(Self)
        }
    }

    impl PartialContext for NoProof {
        fn step(&mut self, _: &[u8]) -> Step {
            let (principal, remaining) = ("anna@R".to_owned(), Duration::from_secs(600));
            let established = Established { principal, remaining, keys: Box::new(Self) };
            Step::Complete { token: b"token".to_vec(), established }
        }
    }

    impl InitiatorKeys for NoProof {
        fn mic_bytes(&self) -> usize {
            MIC.len()
        }

        fn mic(&self, _: &[VolatileSlice<'_>], mic: &mut [u8]) {
            mic.copy_from_slice(&MIC);
        }

        fn verify(&self, _: &[VolatileSlice<'_>], mic: &[u8]) -> Result<(), BadToken> {
            if mic == MIC { Ok(()) } else { Err(BadToken) }
        }

        fn sealed_bytes(&self, plain_bytes: usize) -> usize {
            plain_bytes
        }

        fn seal(&self, _: &[VolatileSlice<'_>], token: &mut [u8]) {
            token.fill(0);
        }

        fn open(&self, _: &[u8], _: &mut dyn FnMut(&[u8])) -> Result<(), BadToken> {
            Err(BadToken)
        }
    }

    fn receive(stream: &mut TcpStream) -> u32 {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark).unwrap();
        let mut record = vec![0; FragmentMark::from_bytes(mark).len as usize];
        stream.read_exact(&mut record).unwrap();
        u32::from_be_bytes(*record.first_chunk().unwrap())
    }

    fn send(stream: &mut TcpStream, xid: u32, status: ReplyStatus<'_>, results: &[u8]) {
        let reply = [&ReplyHeader { xid, status }.encoded(), results].concat();
        let mark = FragmentMark::whole(reply.len()).unwrap().to_bytes();
        stream.write_all(&[&mark[..], &reply].concat()).unwrap();
    }

    /// Sends one request to a peer that answers a call with this status. The peer gives a context to
    /// a caller who asks for one, or refuses it.
    fn exchanged(identity: Identity, gives: bool, answer: ReplyStatus<'static>) -> Arc<Session> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("nfs://{}/", listener.local_addr().unwrap()).parse().unwrap();
        let verifier = OpaqueAuth { flavor: AuthFlavor::RPCSEC_GSS, body: &MIC };
        let is_gss = matches!(identity, Identity::Gss(_));
        let granted = CreateSessionResult {
            session_id: SessionId::default(),
            sequence: 1,
            flags: CreateSessionFlags::empty(),
            fore: ChannelAttributes { requests_max: 4, ..ChannelAttributes::default() },
            back: ChannelAttributes::default(),
        };
        let session = Arc::new(Session::new(granted));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                if is_gss {
                    let xid = receive(&mut stream);
                    let results = match gives {
                        true => {
                            InitResults::Complete { handle: b"h", minor: 0, window: 8, token: b"" }
                        }
                        false => InitResults::Failed { major: 13 << 16, minor: 0 },
                    };
                    let status = ReplyStatus::Accepted { verifier, status: AcceptStatus::Success };
                    send(&mut stream, xid, status, &results.encoded());
                }
                if gives {
                    let xid = receive(&mut stream);
                    send(&mut stream, xid, answer, b"");
                }
                // Until the client has gone.
                let _ = stream.read(&mut [0]);
            });
            let options = MountOptions {
                reserved_port: false,
                identity: identity.clone(),
                ..MountOptions::default()
            };
            let link = Link::new(Route::new(&url, 1 << 20), &options, Login::Fixed(identity));
            let link = link.unwrap();
            let sequence = session.take(false).unwrap();
            let message = Message {
                compound: Compound::new(1),
                data: None,
                sink: None,
                results_bytes_max: 1000,
            };
            let mut retry_timer = link.retry_timer();
            let exchange = Exchange::begin(&link, session.clone(), sequence, message);
            let outcome = exchange.finish(&link, &mut retry_timer);
            assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
            link.close();
        });
        session
    }

    fn gss() -> Identity {
        let initiator = Initiator::new(Arc::new(NoProof), GssService::None);
        Identity::Gss(Arc::new(initiator))
    }

    #[test]
    fn a_refusal_that_somebody_may_have_forged_ends_the_session() {
        let verifier = OpaqueAuth { flavor: AuthFlavor::RPCSEC_GSS, body: &MIC };
        let answers = [
            ReplyStatus::Denied(RejectStatus::Auth(AuthStatus::TooWeak)),
            ReplyStatus::Accepted { verifier, status: AcceptStatus::SystemError },
            ReplyStatus::Accepted { verifier, status: AcceptStatus::GarbageArgs },
        ];
        for answer in answers {
            assert!(exchanged(gss(), true, answer).is_over(), "{answer:?}");
            let session = exchanged(Identity::None, true, answer);
            assert_eq!(session.take(false).unwrap().sequence_id, 1, "{answer:?}");
        }
        // Nothing was sent.
        let session = exchanged(gss(), false, answers[0]);
        assert_eq!(session.take(false).unwrap().sequence_id, 1);
    }
}
