//! Contexts that are not established, and servers that answer in odd ways.

use super::toy::*;
use dafs_gss::mechanism::{Accept as _, ServiceName, Step};
use dafs_mem::VolatileSlice;
use dafs_rpc::GssService;
use dafs_rpc::client::gss::{self as ours, Initiator, InitiatorKeys, Mechanism, PartialContext};
use dafs_rpc::client::{CallError, Request, RpcClient, SendData};
use dafs_rpc::gss::BadToken;
use dafs_wire::rpc::gss::{Credential, InitArgs, InitResults};
use dafs_wire::rpc::{
    AcceptStatus, AuthFlavor, CallHeader, FragmentMark, OpaqueAuth, ReplyHeader, ReplyStatus,
};
use dafs_wire::xdr::{Decoder, Encode};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn receive_record(stream: &mut TcpStream) -> Vec<u8> {
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).unwrap();
    let mut record = vec![0; FragmentMark::from_bytes(mark).len as usize];
    stream.read_exact(&mut record).unwrap();
    record
}

#[test]
fn a_server_without_kerberos_is_told() {
    let served = Served::new(None, GssService::None);
    let client = served.connect(&anna(GssService::None));
    let error = client.call(MIRROR, &[]).unwrap_err();
    assert!(matches!(error, CallError::Context(_)), "{error}");
    assert!(error.to_string().contains("configured for Kerberos"), "{error}");
    assert!(!client.is_broken());
}

#[test]
fn a_ticket_for_another_service_is_told() {
    let hall = Hall::new(ServiceName::new("host", "server").unwrap());
    let served = Served::new(Some(&hall), GssService::Privacy);
    let client = served.connect(&anna(GssService::Privacy));
    let error = client.establish(MIRROR).unwrap_err();
    assert!(error.to_string().contains("does not accept the ticket"), "{error}");
}

/// A peer that speaks RPC by hand.
struct Peer {
    stream: TcpStream,
    keys: Option<dafs_gss::token::Keys>,
}

impl Peer {
    fn send(&mut self, xid: u32, verifier: Option<&[u8]>, status: AcceptStatus, results: &[u8]) {
        let verifier = verifier
            .map_or(OpaqueAuth::NONE, |body| OpaqueAuth { flavor: AuthFlavor::RPCSEC_GSS, body });
        let status = ReplyStatus::Accepted { verifier, status };
        let mut reply = ReplyHeader { xid, status }.encoded();
        reply.extend_from_slice(results);
        self.stream.write_all(&FragmentMark::whole(reply.len()).unwrap().to_bytes()).unwrap();
        self.stream.write_all(&reply).unwrap();
    }

    fn mic(&self, word: u32) -> Vec<u8> {
        let keys = self.keys.as_ref().unwrap();
        let mut mic = vec![0; keys.enctype().mic_len()];
        keys.mic(&word.to_be_bytes()[..], &mut mic).unwrap();
        mic
    }

    /// Establishes a context with this window.
    fn establish(&mut self, window: u32) {
        let record = receive_record(&mut self.stream);
        let mut decoder = Decoder::new(&record);
        let header = CallHeader::decode(&mut decoder).unwrap();
        let InitArgs { token } = InitArgs::from_args(decoder.rest()).unwrap();
        let Step::Done(done) = realm().acceptor(service()).accept(None, token, None) else {
            panic!("no context")
        };
        self.keys = Some(done.keys);
        let results = InitResults::Complete { handle: b"handle", minor: 0, window, token: b"" };
        let mic = self.mic(window);
        self.send(header.xid, Some(&mic), AcceptStatus::Success, &results.encoded());
    }

    /// Receives a call; its XID and sequence number.
    fn receive(&mut self) -> (u32, u32) {
        let record = receive_record(&mut self.stream);
        let header = CallHeader::decode(&mut Decoder::new(&record)).unwrap();
        let keys = self.keys.as_ref().unwrap();
        let covered = &record[..header.bytes_to_verifier()];
        keys.verify_mic(covered, header.verifier.body).unwrap();
        let Ok(Credential::Data(fields)) = Credential::from_body(header.credential.body) else {
            panic!("{header:?}")
        };
        assert_eq!(fields.handle, b"handle");
        (header.xid, fields.sequence)
    }
}

/// Runs a peer on the other end of a client's connection.
fn with_peer(
    initiator: &Arc<Initiator>,
    peer: impl FnOnce(Peer) + Send,
    own: impl FnOnce(RpcClient),
) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (stream, _) = listener.accept().unwrap();
            peer(Peer { stream, keys: None });
        });
        own(RpcClient::connect(address, options(initiator), None).unwrap());
    });
}

#[test]
fn no_more_calls_are_unanswered_than_the_window_allows() {
    const WINDOW: u32 = 8;
    let served = |mut peer: Peer| {
        peer.establish(WINDOW);
        for _ in 0..15 {
            let calls: Vec<_> = (0..WINDOW / 2).map(|_| peer.receive()).collect();
            // Numbers come in order. A number that would be too high may not have come yet.
            assert!(calls.windows(2).all(|pair| pair[0].1 + 1 == pair[1].1));
            peer.stream.set_nonblocking(true).unwrap();
            let more = peer.stream.peek(&mut [0]).map_err(|error| error.kind());
            assert_eq!(more, Err(ErrorKind::WouldBlock));
            peer.stream.set_nonblocking(false).unwrap();
            for (xid, sequence) in calls {
                let mic = peer.mic(sequence);
                peer.send(xid, Some(&mic), AcceptStatus::Success, &[]);
            }
        }
    };
    with_peer(&anna(GssService::None), served, |client| {
        let calls: Vec<_> = (0..60).map(|_| client.submit(MIRROR, &[&[]]).unwrap()).collect();
        calls.into_iter().for_each(|call| assert!(call.wait().unwrap().is_empty()));
    });
}

/// A queued call is copied. So one with data leaves at once, also where its data is sealed.
#[test]
fn a_call_with_data_is_not_queued() {
    for protection in [GssService::None, GssService::Integrity, GssService::Privacy] {
        let (came, has_come) = channel();
        let served = |mut peer: Peer| {
            peer.establish(64);
            for _ in 0..6 {
                peer.receive();
            }
            came.send(()).unwrap();
        };
        with_peer(&anna(protection), served, |client| {
            let memory = client.allocate(16).unwrap();
            let (short, count) = ([&[][..]], 16_u32.to_be_bytes());
            let (short, args) = (Request::new(MIRROR, &short, 8), [&count[..]]);
            let data = Some(SendData { position: 4, memory: memory.whole() });
            let with_data = Request { data, ..Request::new(MIRROR, &args, 8) };
            // With so many calls unanswered, a short one waits for the next.
            let requests = [&short, &short, &short, &short, &short, &with_data];
            let calls = requests.map(|request| client.submit_request(request).unwrap());
            has_come.recv_timeout(Duration::from_secs(30)).expect("all calls have left");
            drop(calls);
        });
    }
}

/// Work for the next MIC that is made.
#[derive(Default)]
struct Hook(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

/// A user whose keys are slow now and then.
#[derive(Debug)]
struct Slow {
    user: Arc<dyn Mechanism>,
    hook: Arc<Hook>,
}

struct SlowPartial(Box<dyn PartialContext>, Arc<Hook>);

#[derive(Debug)]
struct SlowKeys(Box<dyn InitiatorKeys>, Arc<Hook>);

impl Mechanism for Slow {
    fn begin(&self) -> Box<dyn PartialContext> {
        Box::new(SlowPartial(self.user.begin(), self.hook.clone()))
    }
}

impl PartialContext for SlowPartial {
    fn step(&mut self, token: &[u8]) -> ours::Step {
        match self.0.step(token) {
            ours::Step::Complete { token, mut established } => {
                established.keys = Box::new(SlowKeys(established.keys, self.1.clone()));
                ours::Step::Complete { token, established }
            }
            step => step,
        }
    }
}

impl InitiatorKeys for SlowKeys {
    fn mic_bytes(&self) -> usize {
        self.0.mic_bytes()
    }

    fn mic(&self, parts: &[VolatileSlice<'_>], mic: &mut [u8]) {
        let work = self.1.0.lock().unwrap().take();
        if let Some(work) = work {
            work();
        }
        self.0.mic(parts, mic);
    }

    fn verify(&self, parts: &[VolatileSlice<'_>], mic: &[u8]) -> Result<(), BadToken> {
        self.0.verify(parts, mic)
    }

    fn sealed_bytes(&self, plain_bytes: usize) -> usize {
        self.0.sealed_bytes(plain_bytes)
    }

    fn seal(&self, parts: &[VolatileSlice<'_>], token: &mut [u8]) {
        self.0.seal(parts, token);
    }

    fn open(&self, token: &[u8], write: &mut dyn FnMut(&[u8])) -> Result<(), BadToken> {
        self.0.open(token, write)
    }
}

/// While a call is being protected, others are sent and answered, up to half of the window. None is
/// protected twice.
#[test]
fn each_call_arrives_with_its_first_number_in_the_upper_half_of_the_window() {
    const WINDOW: u32 = 8;
    let served = |mut peer: Peer| {
        peer.establish(WINDOW);
        let mut highest = 0;
        for _ in 0..=2 * WINDOW {
            let (xid, sequence) = peer.receive();
            assert!(sequence + WINDOW / 2 > highest, "{sequence} comes after {highest}");
            highest = highest.max(sequence);
            let mic = peer.mic(sequence);
            peer.send(xid, Some(&mic), AcceptStatus::Success, &[]);
        }
        assert_eq!(highest, 2 * WINDOW + 1);
    };
    let hook = Arc::<Hook>::default();
    let user: Arc<dyn Mechanism> = Arc::new(anna_with_ticket(1, false, 3600));
    let slow = Slow { user, hook: hook.clone() };
    let initiator = Arc::new(Initiator::new(Arc::new(slow), GssService::None));
    with_peer(&initiator, served, |client| {
        client.establish(MIRROR).unwrap();
        let others = client.clone();
        let work = move || {
            let (done, is_done) = channel();
            std::thread::spawn(move || {
                for _ in 0..2 * WINDOW {
                    others.call(MIRROR, &[]).unwrap();
                    let _ = done.send(());
                }
            });
            (1..WINDOW / 2).for_each(|_| is_done.recv().unwrap());
        };
        *hook.0.lock().unwrap() = Some(Box::new(work));
        client.call(MIRROR, &[]).unwrap();
        assert!(hook.0.lock().unwrap().is_none());
    });
}

/// The thread that makes the context loses its connection; another one has its own.
#[test]
fn a_lost_connection_fails_no_thread_with_another_one() {
    let hall = Hall::new(service());
    let served = Served::new(Some(&hall), GssService::None);
    let initiator = anna(GssService::None);
    let (asked, is_asked) = channel();
    let lost = |mut peer: Peer| {
        receive_record(&mut peer.stream);
        asked.send(()).unwrap();
        // The other thread waits for this one by then.
        std::thread::sleep(Duration::from_millis(200));
    };
    with_peer(&initiator, lost, |client| {
        std::thread::scope(|scope| {
            let first = scope.spawn(move || client.establish(MIRROR).unwrap_err());
            is_asked.recv().unwrap();
            served.connect(&initiator).establish(MIRROR).unwrap();
            let error = first.join().unwrap();
            assert!(matches!(error, CallError::Disconnected(_)), "{error}");
        });
    });
}

#[test]
fn a_window_without_a_proof_opens_no_context() {
    let served = |mut peer: Peer| {
        let record = receive_record(&mut peer.stream);
        let xid = CallHeader::decode(&mut Decoder::new(&record)).unwrap().xid;
        let results =
            InitResults::Complete { handle: b"handle", minor: 0, window: 8, token: b"" }.encoded();
        peer.send(xid, None, AcceptStatus::Success, &results);
    };
    let initiator = anna(GssService::None);
    with_peer(&initiator, served, |client| {
        assert_eq!(client.establish(MIRROR), Err(CallError::Unverified));
        assert_eq!(initiator.contexts_made(), 0);
    });
}

/// A server has room again after some time.
#[test]
fn a_busy_server_is_asked_again() {
    let served = |mut peer: Peer| {
        for _ in 0..2 {
            let record = receive_record(&mut peer.stream);
            let xid = CallHeader::decode(&mut Decoder::new(&record)).unwrap().xid;
            peer.send(xid, None, AcceptStatus::SystemError, &[]);
        }
        peer.establish(8);
    };
    with_peer(&anna(GssService::None), served, |client| client.establish(MIRROR).unwrap());
}

/// A server that knows no context for long.
#[test]
fn a_call_is_not_repeated_for_ever() {
    use dafs_wire::rpc::{AuthStatus, RejectStatus};
    let problem = RejectStatus::Auth(AuthStatus::GssCredentialProblem);
    let served = |mut peer: Peer| {
        let mut xids = Vec::new();
        for _ in 0..3 {
            peer.establish(8);
            let (xid, sequence) = peer.receive();
            assert_eq!(sequence, 1, "each context has numbers of its own");
            xids.push(xid);
            let reply = ReplyHeader::denied(xid, problem).encoded();
            peer.stream.write_all(&FragmentMark::whole(reply.len()).unwrap().to_bytes()).unwrap();
            peer.stream.write_all(&reply).unwrap();
        }
        assert!(xids.iter().all(|xid| *xid == xids[0]), "a retransmission keeps its XID");
    };
    let initiator = anna(GssService::Integrity);
    with_peer(&initiator, served, |client| {
        assert_eq!(client.call(MIRROR, &[]).unwrap_err(), CallError::Denied(problem));
        assert_eq!(initiator.contexts_made(), 3);
    });
}

#[test]
fn a_repeated_call_has_no_more_time_than_the_caller_gave() {
    use dafs_wire::rpc::{AuthStatus, RejectStatus};
    let problem = RejectStatus::Auth(AuthStatus::GssCredentialProblem);
    let served = |mut peer: Peer| {
        peer.establish(8);
        let (xid, _) = peer.receive();
        let reply = ReplyHeader::denied(xid, problem).encoded();
        peer.stream.write_all(&FragmentMark::whole(reply.len()).unwrap().to_bytes()).unwrap();
        peer.stream.write_all(&reply).unwrap();
        peer.establish(8);
        peer.receive();
        // No answer, until the client has gone.
        let _ = peer.stream.read(&mut [0]);
    };
    let initiator = anna(GssService::Integrity);
    with_peer(&initiator, served, |client| {
        let (given, begun) = (Duration::from_secs(2), Instant::now());
        assert!(client.options().call_timeout > 5 * given);
        let call = client.submit(MIRROR, &[]).unwrap().within(given);
        assert_eq!(call.wait().unwrap_err(), CallError::TimedOut);
        assert!(begun.elapsed() < 5 * given);
        assert_eq!(initiator.contexts_made(), 2);
    });
}
