//! Replies that somebody has changed.

use super::toy::*;
use dafs_gss::mechanism::{Accept as _, Initiate as _, Step, Wanted};
use dafs_gss::token::Keys;
use dafs_rpc::GssService;
use dafs_rpc::client::CallError;
use dafs_rpc::client::gss::{Established, Protection};
use dafs_testkit_rpc::tokens::InitiatorTokens;
use dafs_wire::rpc::{AcceptStatus, AuthFlavor, OpaqueAuth, ReplyHeader, ReplyStatus};
use dafs_wire::xdr::{Encode, Encoder};
use std::time::Duration;

/// A call, and the keys of its server.
fn call(service_of_call: GssService) -> (Protection, Keys) {
    call_of("anna@TOY", service_of_call)
}

fn call_of(user: &str, service_of_call: GssService) -> (Protection, Keys) {
    let target = service();
    let wanted = Wanted { target: &target, mutual: false, bindings: None };
    let initiator = realm().initiator(user, 1, now_seconds() + 3600);
    let Step::Done(own) = initiator.initiate(None, &wanted, &[]) else { panic!("no context") };
    let token = own.token.unwrap();
    let Step::Done(theirs) = realm().acceptor(service()).accept(None, &token, None) else {
        panic!("no context")
    };
    let established = Established {
        principal: user.to_owned(),
        remaining: Duration::from_secs(3600),
        keys: Box::new(InitiatorTokens(own.keys)),
    };
    (Protection::alone(established, service_of_call), theirs.keys)
}

fn mic(keys: &Keys, covered: &[u8]) -> Vec<u8> {
    let mut mic = vec![0; keys.enctype().mic_len()];
    keys.mic(covered, &mut mic).unwrap();
    mic
}

/// The bytes of a reply, and how many of them are its header.
fn reply(
    keys: &Keys,
    service_of_call: GssService,
    (outer, inner): (u32, u32),
    results: &[u8],
) -> (Vec<u8>, usize) {
    let verifier = mic(keys, &outer.to_be_bytes());
    let verifier = OpaqueAuth { flavor: AuthFlavor::RPCSEC_GSS, body: &verifier };
    let status = ReplyStatus::Accepted { verifier, status: AcceptStatus::Success };
    let mut bytes = ReplyHeader { xid: 5, status }.encoded();
    let header_bytes = bytes.len();
    let plain = [&inner.to_be_bytes()[..], results].concat();
    let mut encoder = Encoder::new(&mut bytes);
    match service_of_call {
        GssService::None => encoder.raw(results),
        GssService::Integrity => {
            encoder.opaque(&plain);
            encoder.opaque(&mic(keys, &plain));
        }
        GssService::Privacy => {
            let mut token = vec![0; keys.enctype().sealed_len(plain.len())];
            keys.seal(&plain[..], &mut token).unwrap();
            encoder.opaque(&token);
        }
    }
    (bytes, header_bytes)
}

#[test]
fn no_changed_reply_has_results() {
    for protection in SERVICES {
        let (call, keys) = call(protection);
        let results = pattern(20);
        let (good, header_bytes) = reply(&keys, protection, (1, 1), &results);
        assert_eq!(call.read(&good).unwrap()[..], results);
        let checked = match protection {
            // The results are not protected.
            GssService::None => header_bytes,
            _ => good.len(),
        };
        for bit in 4 * 8..checked * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(call.read(&bytes).is_err(), "{protection:?}: bit {bit}");
        }
        for len in 0..checked {
            assert!(call.read(&good[..len]).is_err(), "{protection:?}: {len} bytes");
        }
        if protection != GssService::None {
            let more = [&good[..], &[0; 4]].concat();
            assert!(call.read(&more).is_err(), "{protection:?}: trailing bytes");
        }
    }
}

#[test]
fn a_reply_belongs_to_its_call() {
    for protection in SERVICES {
        let (call, keys) = call(protection);
        let read = |numbers| {
            let (bytes, _) = reply(&keys, protection, numbers, &pattern(8));
            call.read(&bytes).map(drop)
        };
        assert_eq!(read((1, 1)), Ok(()));
        assert_eq!(read((2, 1)), Err(CallError::Unverified), "the reply to another call");
        if protection != GssService::None {
            assert_eq!(read((1, 2)), Err(CallError::Unverified), "results of another call");
        }
        let (_, others) = call_of("bert@TOY", protection);
        let (bytes, _) = reply(&others, protection, (1, 1), &pattern(8));
        assert_eq!(call.read(&bytes).map(drop), Err(CallError::Unverified), "another context");
    }
}

/// Results under integrity alone are no results under privacy, and the other way round.
#[test]
fn protection_is_not_lowered() {
    for protection in SERVICES {
        for other in SERVICES.into_iter().filter(|other| *other != protection) {
            let (call, keys) = call(protection);
            let (bytes, _) = reply(&keys, other, (1, 1), &pattern(8));
            if protection != GssService::None {
                assert_eq!(call.read(&bytes).map(drop), Err(CallError::Unverified));
            }
        }
    }
}
