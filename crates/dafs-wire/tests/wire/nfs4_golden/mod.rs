//! NFSv4.1 and 4.2 messages laid out by hand from the XDR of RFC 5662, 7863, 8276 and 9754: both
//! directions must agree with them byte by byte.

mod attributes;
mod callbacks;
mod files;
mod refused;
mod session;

use dafs_wire::nfs4::{Op, OpResult, ResultBody, Stateid, Status};
use dafs_wire::xdr::{Decode, Decoder, Encode, Encoder};

/// The bytes of hexadecimal digits; blanks are ignored, and quoted text is literal.
fn bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for (at, part) in text.split('"').enumerate() {
        if at % 2 == 1 {
            out.extend_from_slice(part.as_bytes());
            continue;
        }
        let digits: Vec<u8> =
            part.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
        out.extend(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]));
    }
    out
}

/// Checks that `text` is exactly this operation.
#[track_caller]
fn check_op(text: &str, op: &Op<'_>) {
    let wire = bytes(text);
    assert_eq!(op.encoded(), wire, "encoding");
    let mut d = Decoder::new(&wire);
    assert_eq!(&Op::decode(&mut d, 2).unwrap(), op, "decoding");
    assert_eq!(d.remaining(), 0);
}

/// Checks that `text` is a result with this status and body.
#[track_caller]
fn check_result(text: &str, number: u32, status: Status, body: ResultBody<'_>) {
    let wire = bytes(text);
    let result = OpResult { number, status, body };
    assert_eq!(result.encoded(), wire, "encoding");
    let mut d = Decoder::new(&wire);
    let decoded = OpResult::decode(&mut d).unwrap();
    assert_eq!(d.remaining(), 0);
    assert_eq!(format!("{decoded:?}"), format!("{result:?}"), "decoding");
}

/// Checks that `text` is this value.
#[track_caller]
fn check<T>(text: &str, value: &T)
where
    T: Encode + for<'a> Decode<'a> + PartialEq + std::fmt::Debug,
{
    let wire = bytes(text);
    assert_eq!(value.encoded(), wire, "encoding");
    let mut d = Decoder::new(&wire);
    assert_eq!(&T::decode(&mut d).unwrap(), value, "decoding");
    assert_eq!(d.remaining(), 0);
}

/// The state-id 7 / "twelve bytes".
const STATEID: Stateid = Stateid { seqid: 7, other: *b"twelve bytes" };
/// The bytes of the state-id.
const STATEID_TEXT: &str = r#"00000007 "twelve bytes""#;
