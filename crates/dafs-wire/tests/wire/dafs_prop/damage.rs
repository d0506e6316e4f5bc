//! Damaged messages cause an error, or decode to a value that can be walked and encoded again; no
//! message causes a panic.

use super::bodies::{PADDING, failure, reply, request};
use super::make::Source;
use dafs_wire::dafs::*;
use proptest::prelude::*;

const BOTH_HEADERS: usize = 40;

/// One change to a message.
#[derive(Debug, Clone)]
enum Damage {
    /// A byte is replaced.
    Byte { at: u16, value: u8 },
    /// Four aligned bytes become a number that is likely to do harm.
    Word { at: u16, value: u32 },
    /// The message ends early.
    Cut { at: u16 },
    /// Bytes follow the message.
    Extend { bytes: u8 },
}

fn damage() -> impl Strategy<Value = Damage> {
    let nasty = prop_oneof![
        Just(0),
        Just(u32::MAX),
        Just(u32::MAX - 7),
        Just(0x8000_0000),
        0u32..2000,
        any::<u32>()
    ];
    prop_oneof![
        (any::<u16>(), any::<u8>()).prop_map(|(at, value)| Damage::Byte { at, value }),
        (any::<u16>(), nasty).prop_map(|(at, value)| Damage::Word { at, value }),
        any::<u16>().prop_map(|at| Damage::Cut { at }),
        any::<u8>().prop_map(|bytes| Damage::Extend { bytes }),
    ]
}

/// Damages the body, and corrects the length in the header so that the decoder reaches the body.
fn apply(message: &mut Vec<u8>, order: ByteOrder, length_at: usize, damages: &[Damage]) {
    for damage in damages {
        let body = message.len() - BOTH_HEADERS;
        match *damage {
            Damage::Byte { at, value } if body > 0 => {
                message[BOTH_HEADERS + at as usize % body] = value;
            }
            Damage::Word { at, value } if body >= 4 => {
                let at = BOTH_HEADERS + at as usize % (body / 4) * 4;
                message[at..at + 4].copy_from_slice(&word(value, order));
            }
            Damage::Cut { at } => message.truncate(BOTH_HEADERS + at as usize % (body + 1)),
            Damage::Extend { bytes } => message.resize(message.len() + bytes as usize, bytes),
            Damage::Byte { .. } | Damage::Word { .. } => {}
        }
    }
    let length = word(message.len() as u32, order);
    message[length_at..length_at + 4].copy_from_slice(&length);
}

fn word(value: u32, order: ByteOrder) -> [u8; 4] {
    match order {
        ByteOrder::Big => value.to_be_bytes(),
        ByteOrder::Little => value.to_le_bytes(),
    }
}

fn check_request(message: &[u8], order: ByteOrder) {
    let Ok((header, request)) = decode_request(message, order, PADDING) else { return };
    // Printing walks every list.
    assert!(!format!("{request:?}").is_empty());
    let mut out = vec![0; 1 << 17];
    // Parts of a damaged message may share bytes, so its copy can exceed any buffer.
    let Ok(bytes) = encode_request(&mut out, order, &header, &request) else { return };
    let (_, again) = decode_request(&out[..bytes], order, PADDING).unwrap();
    assert_eq!(again, request);
}

fn check_response(message: &[u8], order: ByteOrder, procedure: Procedure) {
    let Ok((header, outcome)) = decode_response(message, order, procedure) else { return };
    assert!(!format!("{outcome:?}").is_empty());
    let mut out = vec![0; 1 << 17];
    let encoded = match &outcome {
        Outcome::Ok(reply) => encode_response(&mut out, order, &header, reply),
        Outcome::Error { body, .. } => encode_error(&mut out, order, &header, procedure, body),
    };
    let Ok(bytes) = encoded else { return };
    let (_, again) = decode_response(&out[..bytes], order, procedure).unwrap();
    assert_eq!(again, outcome);
}

fn order_of(little: bool) -> ByteOrder {
    if little { ByteOrder::Little } else { ByteOrder::Big }
}

proptest! {
    #[test]
    fn damaged_requests(
        bytes in proptest::collection::vec(any::<u8>(), 0..1000),
        damages in proptest::collection::vec(damage(), 1..6),
        little in any::<bool>(),
    ) {
        let order = order_of(little);
        for procedure in Procedure::ALL {
            let mut source = Source::new(&bytes);
            let body = request(procedure, &mut source);
            let mut message = vec![0; 1 << 16];
            let length =
                encode_request(&mut message, order, &RequestHeader::default(), &body).unwrap();
            message.truncate(length);
            apply(&mut message, order, 36, &damages);
            check_request(&message, order);
        }
    }

    #[test]
    fn damaged_replies(
        bytes in proptest::collection::vec(any::<u8>(), 0..1000),
        damages in proptest::collection::vec(damage(), 1..6),
        little in any::<bool>(),
    ) {
        let order = order_of(little);
        for procedure in Procedure::ALL {
            let mut source = Source::new(&bytes);
            let header = ResponseHeader::default();
            let body = reply(procedure, &mut source);
            let mut message = vec![0; 1 << 16];
            let length = encode_response(&mut message, order, &header, &body).unwrap();
            message.truncate(length);
            apply(&mut message, order, 32, &damages);
            check_response(&message, order, procedure);

            let (status, body) = failure(procedure, &mut source);
            let header = header.with_status(status);
            message.resize(1 << 16, 0);
            let length = encode_error(&mut message, order, &header, procedure, &body).unwrap();
            message.truncate(length);
            apply(&mut message, order, 32, &damages);
            check_response(&message, order, procedure);
        }
    }

    #[test]
    fn every_truncation_is_an_error(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        index in 0usize..Procedure::ALL.len(),
    ) {
        let mut source = Source::new(&bytes);
        let body = request(Procedure::ALL[index], &mut source);
        let mut message = vec![0; 1 << 16];
        let order = ByteOrder::Little;
        let length = encode_request(&mut message, order, &RequestHeader::default(), &body).unwrap();
        for cut in 0..length {
            let error = decode_request(&message[..cut], order, PADDING).unwrap_err();
            prop_assert!(error.is_fatal(), "{cut}: {error}");
        }
    }

    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(peek_order(&bytes).is_none() || bytes.len() >= 40);
        for order in [ByteOrder::Big, ByteOrder::Little] {
            for procedure in Procedure::ALL {
                check_response(&bytes, order, procedure);
                let decoded = Reply::decode_body(procedure, &bytes, order);
                assert!(!format!("{decoded:?}").is_empty());
                let decoded = Request::decode(procedure, &bytes, order, PADDING);
                assert!(!format!("{decoded:?}").is_empty());
            }
            check_request(&bytes, order);
            let decoded = Attributes::decode_direct(&bytes, order);
            assert!(!format!("{decoded:?}").is_empty());
        }
    }
}
