//! Replies to calls in a security context, from a server that may send anything, also good replies that were
//! changed on their way.
//!
//! The input chooses the protection and a way: raw bytes as a reply; or a reply that the server makes, and
//! changes to it.
//!
//! Checked: no panic; a reply that no key has made has no results; protected results are those that the server
//! has sent, for this call.

use crate::input::Input;
use crate::rpcrdma_steps::spoil;
use dafs_gss::token::{Agreed, Enctype, Key, Keys, Role, Seed};
use dafs_rpc::GssService;
use dafs_rpc::client::gss::{Established, Protection};
use dafs_testkit_rpc::tokens::InitiatorTokens;
use dafs_wire::rpc::{AcceptStatus, AuthFlavor, OpaqueAuth, ReplyHeader, ReplyStatus};
use dafs_wire::xdr::{Encode, Encoder};
use std::time::Duration;

/// Raw bytes meet a key of their own: a fuzzer may have seen a good reply of the other way.
const RAW: u8 = 0x44;
const MADE: u8 = 0x33;

/// The sequence number of the call.
const SEQUENCE: u32 = 1;

fn keys(role: Role, byte: u8) -> Keys {
    let key = Key::new(Enctype::Aes128Sha256, &[byte; 16]).unwrap();
    let agreed = Agreed { key, acceptor_subkey: false, role, sequence: 1 };
    Keys::new(&agreed, Seed::from_bytes([5; 16]))
}

fn call(byte: u8, service: GssService) -> Protection {
    let keys = Box::new(InitiatorTokens(keys(Role::Initiator, byte)));
    let (principal, remaining) = ("anna@R".to_owned(), Duration::from_secs(60));
    Protection::alone(Established { principal, remaining, keys }, service)
}

/// A good reply.
fn reply(service: GssService, results: &[u8]) -> Vec<u8> {
    let keys = keys(Role::Acceptor, MADE);
    let mic = |covered: &[u8]| {
        let mut mic = vec![0; keys.enctype().mic_len()];
        keys.mic(covered, &mut mic).unwrap();
        mic
    };
    let verifier = mic(&SEQUENCE.to_be_bytes());
    let verifier = OpaqueAuth { flavor: AuthFlavor::RPCSEC_GSS, body: &verifier };
    let status = ReplyStatus::Accepted { verifier, status: AcceptStatus::Success };
    let mut bytes = ReplyHeader { xid: 5, status }.encoded();
    let plain = [&SEQUENCE.to_be_bytes()[..], results].concat();
    let mut encoder = Encoder::new(&mut bytes);
    match service {
        GssService::None => encoder.raw(results),
        GssService::Integrity => {
            encoder.opaque(&plain);
            encoder.opaque(&mic(&plain));
        }
        GssService::Privacy => {
            let mut token = vec![0; keys.enctype().sealed_len(plain.len())];
            keys.seal(&plain[..], &mut token).unwrap();
            encoder.opaque(&token);
        }
    }
    bytes
}

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let choice = input.byte();
    let services = [GssService::None, GssService::Integrity, GssService::Privacy];
    let service = services[usize::from(choice % 3)];
    if choice & 0x80 == 0 {
        assert!(call(RAW, service).read(input.0).is_err());
        return;
    }
    let len = 4 * usize::from(input.byte());
    let results: Vec<u8> = (0..len).map(|at| at as u8).collect();
    let good = reply(service, &results);
    let mut bytes = good.clone();
    while !input.is_empty() && !bytes.is_empty() {
        spoil(&mut input, &mut bytes);
    }
    let read = call(MADE, service).read(&bytes);
    if bytes == good {
        assert_eq!(read.unwrap()[..], results);
    } else if service != GssService::None
        && let Ok(found) = read
    {
        assert_eq!(found[..], results);
    }
}
