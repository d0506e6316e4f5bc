//! Frames that the servers of a cluster exchange: byte 0 chooses the message; the body follows.

use dafs_wire::cluster::{Challenge, Frame, Hello, Join, Joined};
use dafs_wire::xdr::{Decode, Decoder, Encode, Encoder};

/// A decoded value decodes to itself after it is encoded. The bytes may differ in padding.
fn check<'a, T: Encode + Decode<'a> + PartialEq + std::fmt::Debug>(
    body: &'a [u8],
    again: &'a mut Vec<u8>,
) {
    let Ok(value) = T::decode(&mut Decoder::new(body)) else { return };
    value.encode(&mut Encoder::new(again));
    assert!(again.len() <= body.len());
    assert_eq!(T::decode(&mut Decoder::new(again)), Ok(value));
}

pub fn run(input: &[u8]) {
    let Some((choice, body)) = input.split_first() else { return };
    let again = &mut Vec::new();
    match choice % 8 {
        0 => check::<Hello>(body, again),
        1 => check::<Challenge>(body, again),
        2 => check::<Join>(body, again),
        3 => check::<Joined<'_>>(body, again),
        _ => check::<Frame<'_>>(body, again),
    }
}
