//! A mechanism of GSS-API without cryptography worth the name, its initiator, and a server that
//! carries calls out.

use dafs_dat::connections::Origin;
use dafs_mem::Mutex;
use dafs_rpc::client::Procedure;
use dafs_rpc::gss::*;
use dafs_wire::rpc::gss::{
    Credential, InitArgs, InitResults, IntegrityBody, PrivacyBody, Protected, ProtectedData,
    Service,
};
use dafs_wire::rpc::{
    AcceptStatus, AuthFlavor, AuthStatus, CallHeader, OpaqueAuth, ReplyHeader, ReplyStatus,
};
use dafs_wire::xdr::{Decoder, Encode, Encoder};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The program of all calls.
pub const PROGRAM: u32 = 0x2000_0099;

/// The second in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;

const FROM_ACCEPTOR: u8 = 1;
const SEALED: u8 = 2;
/// Flags, counter and tag. No multiple of four, so there is padding.
const TOKEN_BYTES: usize = 1 + 8 + 8;

/// Keyed hashes and a stream of them.
#[derive(Debug)]
pub struct ToyKeys {
    secret: u64,
    own: u8,
    sent: AtomicU64,
}

impl ToyKeys {
    pub fn acceptor(secret: u64) -> Self {
        Self { secret, own: FROM_ACCEPTOR, sent: AtomicU64::new(0) }
    }

    pub fn initiator(secret: u64) -> Self {
        Self { secret, own: 0, sent: AtomicU64::new(0) }
    }

    fn tag(&self, head: &[u8], parts: &[&[u8]]) -> [u8; 8] {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.secret);
        hasher.write(head);
        parts.iter().for_each(|part| hasher.write(part));
        hasher.finish().to_be_bytes()
    }

    fn token(&self, flags: u8, parts: &[&[u8]], token: &mut [u8]) {
        token[0] = self.own | flags;
        token[1..9].copy_from_slice(&self.sent.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        let tag = self.tag(&token[..9], parts);
        token[9..TOKEN_BYTES].copy_from_slice(&tag);
    }

    fn check(&self, flags: u8, parts: &[&[u8]], token: &[u8]) -> Result<(), BadToken> {
        let is_own = token[0] == (self.own ^ FROM_ACCEPTOR) | flags;
        let is_good = is_own && token[9..TOKEN_BYTES] == self.tag(&token[..9], parts);
        if is_good { Ok(()) } else { Err(BadToken) }
    }

    /// Encrypts and decrypts.
    fn stream(&self, head: &[u8], bytes: &mut [u8]) {
        for (at, bytes) in (0u64..).zip(bytes.chunks_mut(8)) {
            let mask = self.tag(head, &[b"stream", &at.to_be_bytes()]);
            bytes.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
        }
    }
}

impl MessageKeys for ToyKeys {
    fn mic_bytes(&self) -> usize {
        TOKEN_BYTES
    }

    fn mic(&self, parts: &[&[u8]], mic: &mut [u8]) {
        self.token(0, parts, mic);
    }

    fn verify(&self, parts: &[&[u8]], mic: &[u8]) -> Result<(), BadToken> {
        if mic.len() != TOKEN_BYTES {
            return Err(BadToken);
        }
        self.check(0, parts, mic)
    }

    fn sealed_bytes(&self, plain_bytes: usize) -> usize {
        TOKEN_BYTES + plain_bytes
    }

    fn seal(&self, parts: &[&[u8]], token: &mut [u8]) {
        let (head, sealed) = token.split_at_mut(TOKEN_BYTES);
        self.token(SEALED, parts, head);
        sealed.copy_from_slice(&parts.concat());
        self.stream(&head[..9], sealed);
    }

    fn open(&self, token: &[u8], plain: &mut [u8]) -> Result<usize, BadToken> {
        let (head, sealed) = token.split_at_checked(TOKEN_BYTES).ok_or(BadToken)?;
        let plain = &mut plain[..sealed.len()];
        plain.copy_from_slice(sealed);
        self.stream(&head[..9], plain);
        self.check(SEALED, &[&*plain], head)?;
        Ok(plain.len())
    }
}

/// A first token: further legs, a secret, seconds that the ticket lasts, and the name.
pub fn ticket(legs: u8, secret: u64, seconds: u8, name: &str) -> Vec<u8> {
    [&[legs][..], &secret.to_be_bytes(), &[seconds], name.as_bytes()].concat()
}

/// The acceptor of tickets.
#[derive(Default)]
struct ToyPartial(Vec<u8>);

impl PartialContext for ToyPartial {
    fn accept(&mut self, token: &[u8]) -> Step {
        if self.0.is_empty() {
            self.0 = token.to_vec();
        }
        let [legs, ticket @ ..] = &mut self.0[..] else { return refused() };
        if *legs > 0 {
            *legs -= 1;
            return Step::Continue { token: b"more".to_vec() };
        }
        let Some((secret, [seconds, name @ ..])) = ticket.split_first_chunk() else {
            return refused();
        };
        let principal = Principal {
            exported_name: name.into(),
            display_name: String::from_utf8_lossy(name).into(),
        };
        let keys = Box::new(ToyKeys::acceptor(u64::from_be_bytes(*secret)));
        let remaining = Duration::from_secs((*seconds).into());
        Step::Complete {
            token: Vec::new(),
            established: Established { principal, remaining, keys },
        }
    }
}

fn refused() -> Step {
    Step::Failed(Failure { major: 9 << 16, minor: 7, text: "a defective token".into() })
}

pub fn begin() -> Box<dyn PartialContext> {
    Box::<ToyPartial>::default()
}

/// Runs every step at once.
pub struct Inline(pub Arc<Contexts>);

impl Acceptor for Inline {
    fn contexts(&self) -> &Arc<Contexts> {
        &self.0
    }

    fn begin(&self) -> Box<dyn PartialContext> {
        begin()
    }

    fn run(&self, _: Origin, job: Job) {
        job();
    }
}

/// The answer of a server to a message.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// A reply, of a call that was carried out.
    Served(Vec<u8>),
    /// A reply to a request for a context.
    Init(Vec<u8>),
    Destroyed(Vec<u8>),
    Garbage,
    Refused(AuthStatus),
    Busy,
    Closed,
    /// It is no call with a credential of RPCSEC_GSS.
    NotGss,
}

/// A server that answers with the arguments.
pub struct Server {
    pub contexts: Arc<Contexts>,
    pub now_ns: AtomicU64,
    pub may_establish: AtomicBool,
    /// The calls that were carried out: caller, service and arguments.
    pub executed: Mutex<Vec<(String, Service, Vec<u8>)>>,
}

impl Server {
    pub fn new(limits: ContextLimits) -> Self {
        let contexts = Contexts::new(limits);
        let (now_ns, may_establish) = (AtomicU64::new(0), AtomicBool::new(true));
        Self { contexts, now_ns, may_establish, executed: Mutex::default() }
    }

    pub fn pass(&self, seconds: u64) {
        self.now_ns.fetch_add(seconds * SECOND, Ordering::Relaxed);
    }

    pub fn receive(&self, message: &[u8]) -> Answer {
        self.receive_from(message, Origin::Sim(1))
    }

    pub fn receive_from(&self, message: &[u8], origin: Origin) -> Answer {
        self.receive_by(message, origin, |establishing, token| {
            establishing.step(token, self.now_ns.load(Ordering::Relaxed), begin)
        })
    }

    /// Takes a request for a context, and leaves it in the queue for a thread.
    pub fn queue(&self, message: &[u8], origin: Origin) -> Option<Establishing> {
        let mut queued = None;
        self.receive_by(message, origin, |establishing, _| {
            queued = Some(establishing);
            InitAnswer::Failed(Failure { major: 1, minor: 0, text: String::new() })
        });
        queued
    }

    fn receive_by(
        &self,
        message: &[u8],
        origin: Origin,
        step: impl FnOnce(Establishing, &[u8]) -> InitAnswer,
    ) -> Answer {
        let mut decoder = Decoder::new(message);
        let Ok(header) = CallHeader::decode(&mut decoder) else { return Answer::NotGss };
        if header.credential.flavor != AuthFlavor::RPCSEC_GSS {
            return Answer::NotGss;
        }
        let now_ns = self.now_ns.load(Ordering::Relaxed);
        let body = decoder.rest();
        let call = GssCall { message, header: &header, body, origin, now_ns };
        let may_establish = || self.may_establish.load(Ordering::Relaxed);
        match accept(&self.contexts, &call, may_establish) {
            Accepted::Serve(verified) => self.carry_out(&verified, header.xid, body),
            Accepted::Establish { establishing, token } => {
                let answer = step(establishing, token);
                let mut reply = success(header.xid, answer.verifier());
                answer.encode(&mut Encoder::new(&mut reply));
                Answer::Init(reply)
            }
            Accepted::Destroy(verified) => {
                Answer::Destroyed(success(header.xid, verified.verifier().auth()))
            }
            Accepted::Refuse(status) => Answer::Refused(status),
            Accepted::Garbage => Answer::Garbage,
            Accepted::Busy => Answer::Busy,
            Accepted::CloseConnection => Answer::Closed,
        }
    }

    fn carry_out(&self, verified: &Verified, xid: u32, body: &[u8]) -> Answer {
        let mut opened = vec![0; body.len()];
        let args = match verified.body(body) {
            Ok(Body::Plain(args)) => args,
            Ok(Body::Sealed(token)) => match verified.open(token, &mut opened) {
                Ok(place) => &opened[place],
                Err(Garbage) => return Answer::Garbage,
            },
            Err(Garbage) => return Answer::Garbage,
        };
        let caller = verified.principal().display_name.to_string();
        self.executed.lock().push((caller, verified.service(), args.to_vec()));
        Answer::Served(reply(verified, xid, args))
    }

    pub fn executed(&self) -> usize {
        self.executed.lock().len()
    }
}

/// The header of a successful reply.
fn success(xid: u32, verifier: OpaqueAuth<'_>) -> Vec<u8> {
    let status = ReplyStatus::Accepted { verifier, status: AcceptStatus::Success };
    ReplyHeader { xid, status }.encoded()
}

/// A successful reply with results in two parts.
fn reply(verified: &Verified, xid: u32, results: &[u8]) -> Vec<u8> {
    let mut reply = success(xid, verified.verifier().auth());
    assert_eq!(reply.len(), verified.success_header_bytes());
    let protected_bytes = verified.protected_bytes(results.len());
    let end = reply.len() + protected_bytes;
    let (first, second) = results.split_at(results.len() / 2);
    match verified.service() {
        Service::None => reply.extend_from_slice(results),
        Service::Integrity => {
            reply.extend(verified.integrity_prefix(results.len()));
            reply.extend_from_slice(results);
            reply.extend_from_slice(verified.integrity_suffix(&[first, second]).bytes());
        }
        Service::Privacy => {
            let mut protected = vec![1; protected_bytes];
            verified.seal(&[first, second], &mut protected).unwrap();
            reply.extend(protected);
        }
    }
    assert_eq!(reply.len(), end);
    reply
}

/// An initiator with an established context.
pub struct Client {
    pub keys: ToyKeys,
    pub handle: Vec<u8>,
}

impl Client {
    /// Establishes a context.
    pub fn new(server: &Server, secret: u64, seconds: u8, name: &str) -> Self {
        Self::from_host(server, secret, seconds, name, Origin::Sim(1))
    }

    pub fn from_host(
        server: &Server,
        secret: u64,
        seconds: u8,
        name: &str,
        origin: Origin,
    ) -> Self {
        let request = init(Credential::Init, &ticket(0, secret, seconds, name));
        let keys = ToyKeys::initiator(secret);
        let Answer::Init(reply) = server.receive_from(&request, origin) else { panic!("no reply") };
        let (verifier, results) = accepted(&reply);
        let InitResults::Complete { handle, window, .. } = init_results(results) else {
            panic!("no context")
        };
        keys.verify(&[&window.to_be_bytes()], verifier).unwrap();
        assert_eq!(window, WINDOW);
        Self { keys, handle: handle.to_vec() }
    }

    pub fn fields(&self, sequence: u32, service: Service) -> Protected<'_> {
        Protected { handle: &self.handle, sequence, service }
    }

    /// A message with a verified header.
    pub fn message(&self, procedure: u32, credential: Credential<'_>, body: &[u8]) -> Vec<u8> {
        self.message_to(of_toy(procedure), &credential.encoded(), body)
    }

    /// The same for a procedure of any program, with any credential.
    pub fn message_to(&self, to: Procedure, credential: &[u8], body: &[u8]) -> Vec<u8> {
        message_to(to, credential, body, |covered| {
            let mut mic = vec![0; self.keys.mic_bytes()];
            self.keys.mic(&[covered], &mut mic);
            (AuthFlavor::RPCSEC_GSS, mic)
        })
    }

    pub fn body(&self, sequence: u32, service: Service, args: &[u8]) -> Vec<u8> {
        let plain = [&sequence.to_be_bytes()[..], args].concat();
        let mut bytes = Vec::new();
        let mut encoder = Encoder::new(&mut bytes);
        match service {
            Service::None => encoder.raw(args),
            Service::Integrity => {
                let mut mic = vec![0; self.keys.mic_bytes()];
                self.keys.mic(&[&plain], &mut mic);
                encoder.opaque(&plain);
                encoder.opaque(&mic);
            }
            Service::Privacy => {
                let mut token = vec![0; self.keys.sealed_bytes(plain.len())];
                self.keys.seal(&[&plain], &mut token);
                PrivacyBody { token: &token }.encode(&mut encoder);
            }
        }
        bytes
    }

    pub fn call(&self, sequence: u32, service: Service, args: &[u8]) -> Vec<u8> {
        let credential = Credential::Data(self.fields(sequence, service));
        self.message(1, credential, &self.body(sequence, service, args))
    }

    pub fn destroy(&self, sequence: u32) -> Vec<u8> {
        self.message(0, Credential::Destroy(self.fields(sequence, Service::None)), &[])
    }

    /// Checks the reply, and returns its results.
    pub fn results(&self, sequence: u32, service: Service, reply: &[u8]) -> Vec<u8> {
        let (verifier, results) = accepted(reply);
        self.keys.verify(&[&sequence.to_be_bytes()], verifier).unwrap();
        let mut opened = vec![0; results.len()];
        let content = match service {
            Service::None => return results.to_vec(),
            Service::Integrity => {
                let body = IntegrityBody::from_bytes(results).unwrap();
                self.keys.verify(&[body.covered()], body.mic()).unwrap();
                body.content()
            }
            Service::Privacy => {
                let body = PrivacyBody::from_bytes(results).unwrap();
                let len = self.keys.open(body.token, &mut opened).unwrap();
                ProtectedData::from_bytes(&opened[..len]).unwrap()
            }
        };
        assert_eq!(content.sequence, sequence);
        content.data.to_vec()
    }
}

/// The verifier's body and the results of a successful reply.
pub fn accepted(reply: &[u8]) -> (&[u8], &[u8]) {
    let mut decoder = Decoder::new(reply);
    let header: ReplyHeader<'_> = decoder.value().unwrap();
    let ReplyStatus::Accepted { verifier, status: AcceptStatus::Success } = header.status else {
        panic!("{header:?}")
    };
    (verifier.body, decoder.rest())
}

pub fn init_results(results: &[u8]) -> InitResults<'_> {
    Decoder::new(results).value().unwrap()
}

fn of_toy(procedure: u32) -> Procedure {
    Procedure { program: PROGRAM, version: 1, procedure }
}

/// A message; `verify` makes the verifier of the bytes before it.
pub fn message(
    procedure: u32,
    credential: Credential<'_>,
    body: &[u8],
    verify: impl FnOnce(&[u8]) -> (AuthFlavor, Vec<u8>),
) -> Vec<u8> {
    message_to(of_toy(procedure), &credential.encoded(), body, verify)
}

/// The same for a procedure of any program, with any credential.
pub fn message_to(
    to: Procedure,
    credential: &[u8],
    body: &[u8],
    verify: impl FnOnce(&[u8]) -> (AuthFlavor, Vec<u8>),
) -> Vec<u8> {
    let header = CallHeader {
        xid: 77,
        program: to.program,
        version: to.version,
        procedure: to.procedure,
        credential: OpaqueAuth { flavor: AuthFlavor::RPCSEC_GSS, body: credential },
        verifier: OpaqueAuth::NONE,
    };
    let mut bytes = header.encoded();
    bytes.truncate(header.bytes_to_verifier());
    let (flavor, verifier) = verify(&bytes);
    let mut encoder = Encoder::new(&mut bytes);
    encoder.value(&OpaqueAuth { flavor, body: &verifier });
    encoder.raw(body);
    bytes
}

/// A request for a context.
pub fn init(credential: Credential<'_>, token: &[u8]) -> Vec<u8> {
    message(0, credential, &InitArgs { token }.encoded(), |_| (AuthFlavor::NONE, Vec::new()))
}
