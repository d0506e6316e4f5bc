//! Calls with credentials of RPCSEC_GSS, as an attacker who sees everything may send them. The
//! input chooses honest calls, damages and repeats them, and destroys contexts; it also sends
//! whatever it likes.
//!
//! Checked: no panic; a call is carried out only if it was sent, with its own arguments, once; the
//! limits of the table hold; nothing is left when all time is over.

use crate::input::Input;
use crate::rpcrdma_steps::spoil;
use dafs_dat::connections::Origin;
use dafs_rpc::gss::{
    Accepted, BadToken, Body, ContextLimits, Contexts, Established, Failure, GssCall, InitAnswer,
    MessageKeys, PartialContext, Principal, Step, Verified, accept,
};
use dafs_wire::rpc::gss::{Credential, InitArgs, Protected, Service};
use dafs_wire::rpc::{AuthFlavor, CallHeader, OpaqueAuth};
use dafs_wire::xdr::{Decoder, Encode, Encoder};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const STEPS_MAX: usize = 200;
const LIMITS: ContextLimits = ContextLimits { contexts: 16, half_open: 4, half_open_per_host: 2 };
const MIC_BYTES: usize = 9;

/// Hashes for MICs. The attacker does not know a handle before the server has made it, so the input
/// cannot hold a call of its own.
#[derive(Debug)]
struct Keys {
    secret: u8,
    direction: u8,
}

impl Keys {
    fn hash(&self, direction: u8, parts: &[&[u8]]) -> [u8; MIC_BYTES] {
        let start = 0xcbf2_9ce4_8422_2325 ^ u64::from(self.secret) << 8;
        let hash = parts.iter().copied().flatten().fold(start, |hash: u64, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(5)
        });
        let mut mic = [direction; MIC_BYTES];
        mic[1..].copy_from_slice(&hash.to_be_bytes());
        mic
    }
}

impl MessageKeys for Keys {
    fn mic_bytes(&self) -> usize {
        MIC_BYTES
    }

    fn mic(&self, parts: &[&[u8]], mic: &mut [u8]) {
        mic.copy_from_slice(&self.hash(self.direction, parts));
    }

    fn verify(&self, parts: &[&[u8]], mic: &[u8]) -> Result<(), BadToken> {
        if mic == self.hash(1 - self.direction, parts) { Ok(()) } else { Err(BadToken) }
    }

    fn sealed_bytes(&self, plain_bytes: usize) -> usize {
        MIC_BYTES + plain_bytes
    }

    fn seal(&self, parts: &[&[u8]], token: &mut [u8]) {
        let (mic, sealed) = token.split_at_mut(MIC_BYTES);
        mic.copy_from_slice(&self.hash(self.direction + 2, parts));
        sealed.copy_from_slice(&parts.concat());
    }

    fn open(&self, token: &[u8], plain: &mut [u8]) -> Result<usize, BadToken> {
        let (mic, sealed) = token.split_at_checked(MIC_BYTES).ok_or(BadToken)?;
        plain[..sealed.len()].copy_from_slice(sealed);
        if mic == self.hash(3 - self.direction, &[sealed]) {
            Ok(sealed.len())
        } else {
            Err(BadToken)
        }
    }
}

/// A mechanism whose first token says how many more follow, the secret, and the seconds.
struct Partial(Option<[u8; 3]>);

impl PartialContext for Partial {
    fn accept(&mut self, token: &[u8]) -> Step {
        let first = self.0.or(token.first_chunk().copied());
        let Some([legs, secret, seconds]) = first else {
            return Step::Failed(Failure { major: 9 << 16, minor: 1, text: "short".into() });
        };
        if legs % 4 > 0 {
            self.0 = Some([legs % 4 - 1, secret, seconds]);
            return Step::Continue { token: token.to_vec() };
        }
        let principal = Principal { exported_name: [secret].into(), display_name: "".into() };
        let keys = Box::new(Keys { secret, direction: 1 });
        let remaining = Duration::from_secs(seconds.into());
        let established = Established { principal, remaining, keys };
        Step::Complete { token: Vec::new(), established }
    }
}

/// An honest client's context.
struct Client {
    keys: Keys,
    handle: Vec<u8>,
    sequence: u32,
}

#[derive(Default)]
struct World {
    clients: Vec<Client>,
    /// Messages of honest clients.
    sent: Vec<Vec<u8>>,
    /// Handles, sequence numbers and arguments of calls that were sent and not carried out.
    waiting: BTreeSet<(u64, u32, Vec<u8>)>,
    now_ns: u64,
}

fn message(
    credential: Credential<'_>,
    procedure: u32,
    body: &[u8],
    keys: Option<&Keys>,
) -> Vec<u8> {
    let credential = credential.encoded();
    let header = CallHeader {
        xid: 1,
        program: 2,
        version: 3,
        procedure,
        credential: OpaqueAuth { flavor: AuthFlavor::RPCSEC_GSS, body: &credential },
        verifier: OpaqueAuth::NONE,
    };
    let mut bytes = header.encoded();
    if let Some(keys) = keys {
        bytes.truncate(header.bytes_to_verifier());
        let mic = keys.hash(0, &[&bytes]);
        let verifier = OpaqueAuth { flavor: AuthFlavor::RPCSEC_GSS, body: &mic };
        verifier.encode(&mut Encoder::new(&mut bytes));
    }
    bytes.extend_from_slice(body);
    bytes
}

impl World {
    /// A call of an honest client.
    fn call(&mut self, input: &mut Input<'_>, is_destroy: bool) {
        let at = usize::from(input.byte());
        let count = self.clients.len().max(1);
        let Some(client) = self.clients.get_mut(at % count) else { return };
        let shape = input.byte();
        client.sequence = client.sequence.wrapping_add(1 + u32::from(shape >> 2) * 37);
        let sequence = client.sequence;
        let args = vec![shape; 4 * usize::from(input.byte() % 8)];
        let plain = [&sequence.to_be_bytes()[..], &args].concat();
        let mut body = Vec::new();
        let mut encoder = Encoder::new(&mut body);
        let service = match shape % 4 {
            0 | 1 => {
                encoder.opaque(&plain);
                encoder.opaque(&client.keys.hash(0, &[&plain]));
                Service::Integrity
            }
            _ => {
                encoder.opaque(&[&client.keys.hash(2, &[&plain])[..], &plain].concat());
                Service::Privacy
            }
        };
        let fields = Protected { handle: &client.handle, sequence, service };
        let bytes = if is_destroy {
            message(Credential::Destroy(fields), 0, &[], Some(&client.keys))
        } else {
            self.waiting.insert((serial(&client.handle), sequence, args));
            message(Credential::Data(fields), 5, &body, Some(&client.keys))
        };
        self.sent.push(bytes);
    }

    fn receive(&mut self, contexts: &Arc<Contexts>, message: &[u8], host: u8) {
        let mut decoder = Decoder::new(message);
        let Ok(header) = CallHeader::decode(&mut decoder) else { return };
        let (body, now_ns) = (decoder.rest(), self.now_ns);
        let origin = Origin::Sim((host % 4).into());
        let call = GssCall { message, header: &header, body, origin, now_ns };
        match accept(contexts, &call) {
            Accepted::Serve(verified) => self.carry_out(&verified, body),
            Accepted::Establish { establishing, token } => {
                // A thread may also give up.
                if host & 0x80 != 0 {
                    return;
                }
                let answer = establishing.step(token, now_ns, || Box::new(Partial(None)));
                answer.encode(&mut Encoder::new(&mut Vec::new()));
                self.established(&answer);
            }
            Accepted::Destroy(verified) => {
                assert!(!verified.verifier().auth().body.is_empty());
            }
            Accepted::Refuse(status) => assert!(status.to_u32() > 0),
            Accepted::Garbage | Accepted::Busy | Accepted::CloseConnection => {}
        }
    }

    fn established(&mut self, answer: &InitAnswer) {
        let handle = match answer {
            InitAnswer::Complete { context, .. } => {
                let secret = context.principal().exported_name[0];
                let handle = context.handle().to_bytes().to_vec();
                let keys = Keys { secret, direction: 0 };
                self.clients.push(Client { keys, handle, sequence: 0 });
                return;
            }
            InitAnswer::Continue { handle, .. } => handle.to_bytes(),
            InitAnswer::Failed(_) => return,
        };
        let body = InitArgs { token: b"next" }.encoded();
        self.sent.push(message(Credential::ContinueInit { handle: &handle }, 0, &body, None));
    }

    fn carry_out(&mut self, verified: &Verified, body: &[u8]) {
        let mut plain = vec![0; body.len()];
        let args = match verified.body(body) {
            Ok(Body::Plain(args)) => args,
            Ok(Body::Sealed(token)) => match verified.open(token, &mut plain) {
                Ok(place) => &plain[place],
                Err(_) => return,
            },
            Err(_) => return,
        };
        assert_ne!(verified.service(), Service::None, "no honest call has this service");
        let handle = verified.context().handle().serial();
        let executed = (handle, verified.sequence(), args.to_vec());
        assert!(self.waiting.remove(&executed), "carried out without being sent, or twice");
        let mut protected = vec![0; verified.protected_bytes(args.len())];
        if verified.service() == Service::Privacy {
            verified.seal(&[args], &mut protected).expect("the length is right");
        } else {
            let around = verified.integrity_prefix(args.len()).len()
                + verified.integrity_suffix(&[args]).bytes().len();
            assert_eq!(around + args.len(), protected.len());
        }
    }
}

fn serial(handle: &[u8]) -> u64 {
    handle.first_chunk().map_or(0, |serial| u64::from_be_bytes(*serial))
}

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let contexts = Contexts::new(LIMITS);
    let mut world = World::default();
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        let (step, host) = (input.byte(), input.byte());
        match step % 8 {
            0 => {
                let body = InitArgs { token: input.take(3) }.encoded();
                world.receive(&contexts, &message(Credential::Init, 0, &body, None), host);
            }
            1 | 2 => world.call(&mut input, false),
            3 => world.call(&mut input, step & 0x80 != 0),
            4 | 5 if !world.sent.is_empty() => {
                // The same, at any time, from anywhere, as often as the input says.
                let at = usize::from(input.byte()) % world.sent.len();
                let bytes = world.sent[at].clone();
                world.receive(&contexts, &bytes, host);
            }
            6 if !world.sent.is_empty() => {
                let at = usize::from(input.byte()) % world.sent.len();
                let mut bytes = world.sent[at].clone();
                spoil(&mut input, &mut bytes);
                world.receive(&contexts, &bytes, host);
            }
            7 => {
                world.now_ns += u64::from(input.byte()) * 1_000_000_000;
                contexts.tick(world.now_ns);
            }
            _ => {
                let len = usize::from(input.byte());
                let bytes = input.take(len);
                world.receive(&contexts, bytes, host);
            }
        }
        let counts = contexts.counts();
        assert!(counts.contexts as usize <= LIMITS.contexts);
        assert!(counts.half_open as usize <= LIMITS.half_open);
    }
    contexts.tick(u64::MAX);
    let counts = contexts.counts();
    assert_eq!((counts.contexts, counts.half_open), (0, 0));
    assert_eq!(counts.established, counts.evicted + counts.expired + counts.destroyed);
}
