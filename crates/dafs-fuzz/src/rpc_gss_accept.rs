//! Calls with credentials of RPCSEC_GSS, as an attacker who sees everything may send them. The
//! input chooses honest calls, damages and repeats them, and destroys contexts; it also sends
//! whatever it likes.
//!
//! Checked: no panic; a call is carried out only if it was sent, with its own arguments, once; the
//! limits of the table hold; nothing is left when all time is over.

use crate::input::Input;
use crate::rpcrdma_steps::spoil;
use dafs_dat::connections::Origin;
use dafs_rpc::gss::*;
use dafs_testkit_rpc::gss as toy;
use dafs_wire::rpc::CallHeader;
use dafs_wire::rpc::gss::{Credential, Service};
use dafs_wire::xdr::{Decoder, Encoder};
use std::collections::BTreeSet;
use std::sync::Arc;

const STEPS_MAX: usize = 200;
const LIMITS: ContextLimits =
    ContextLimits { contexts: 16, half_open: 4, half_open_per_host: 2, begins_per_second: 8 };

/// An honest client's context.
struct Client {
    toy: toy::Client,
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

/// A first token from three bytes: further legs, the secret, and the seconds. The secret is the name,
/// too.
fn ticket([legs, secret, seconds]: [u8; 3]) -> Vec<u8> {
    toy::ticket(legs % 4, secret.into(), seconds, &secret.to_string())
}

impl World {
    /// A call of an honest client.
    fn call(&mut self, input: &mut Input<'_>, is_destroy: bool) {
        let at = usize::from(input.byte());
        let count = self.clients.len().max(1);
        let Some(client) = self.clients.get_mut(at % count) else { return };
        let shape = input.byte();
        client.sequence = client.sequence.wrapping_add(1 + u32::from(shape >> 2) * 37);
        let (toy, sequence) = (&client.toy, client.sequence);
        let args = vec![shape; 4 * usize::from(input.byte() % 8)];
        let service = if shape % 4 < 2 { Service::Integrity } else { Service::Privacy };
        if is_destroy {
            self.sent.push(toy.destroy(sequence));
        } else {
            self.sent.push(toy.call(sequence, service, &args));
            self.waiting.insert((serial(&toy.handle), sequence, args));
        }
    }

    fn receive(&mut self, contexts: &Arc<Contexts>, message: &[u8], host: u8) {
        let mut decoder = Decoder::new(message);
        let Ok(header) = CallHeader::decode(&mut decoder) else { return };
        let (body, now_ns) = (decoder.rest(), self.now_ns);
        let origin = Origin::Sim((host % 4).into());
        let call = GssCall { message, header: &header, body, origin, now_ns };
        match accept(contexts, &call, || host & 0x40 == 0) {
            Accepted::Serve(verified) => self.carry_out(&verified, body),
            Accepted::Establish { establishing, token } => {
                // A thread may also give up.
                if host & 0x80 != 0 {
                    return;
                }
                let answer = establishing.step(token, now_ns, toy::begin);
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
                let secret = context.principal().display_name.parse();
                let handle = context.handle().to_bytes().to_vec();
                let keys = secret.map(toy::ToyKeys::initiator);
                let client = keys.map(|keys| toy::Client { keys, handle });
                self.clients.extend(client.map(|toy| Client { toy, sequence: 0 }));
                return;
            }
            InitAnswer::Continue { handle, .. } => handle.to_bytes(),
            InitAnswer::Failed(_) => return,
        };
        self.sent.push(toy::init(Credential::ContinueInit { handle: &handle }, b"next"));
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
                let token = match input.take(3).first_chunk() {
                    Some(bytes) => ticket(*bytes),
                    None => Vec::new(),
                };
                world.receive(&contexts, &toy::init(Credential::Init, &token), host);
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
