//! Vectors of the standards.

use super::header::Wrap;
use super::hex;
use super::suite::{Messages, Plain, Uses, with_uses};
use crate::enctype::{Enctype, Key};

fn with_usage(enctype: Enctype, key: &str, usage: u32) -> Box<dyn Messages> {
    let uses = Uses { seal: usage, sign: usage };
    with_uses(&Key::new(enctype, &hex(key)).unwrap(), uses, uses)
}

const KEY_19: &str = "3705d96080c17728a0e800eab6e0d23c";
const KEY_20: &str = "6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52";

/// The bytes 00, 01 and so on, of which RFC 8009 makes its plain texts.
fn counted(len: u8) -> Vec<u8> {
    (0..len).collect()
}

/// A text with its last 16 bytes apart, as a message and the header behind it.
fn checksum(messages: &dyn Messages, text: &[u8], len: usize) -> Vec<u8> {
    let (data, header) = text.split_last_chunk().unwrap();
    let mut sum = vec![0; len];
    messages.sign(&mut &data[..], header, &mut sum);
    sum
}

/// RFC 8009 Appendix A, "checksums", usage 2.
#[test]
fn checksums_are_those_of_rfc_8009() {
    for (enctype, key, want) in [
        (Enctype::Aes128Sha256, KEY_19, "d78367186643d67b411cba9139fc1dee"),
        (Enctype::Aes256Sha384, KEY_20, "45ee791567eefca37f4ac1e0222de80d43c3bfa06699672a"),
    ] {
        let sum = checksum(&*with_usage(enctype, key, 2), &counted(21), want.len() / 2);
        assert_eq!(sum, hex(want));
    }
}

/// The checksums of RFC 3962 have no vectors of their own there; these are from the tests of MIT Kerberos.
#[test]
fn checksums_by_sha1_are_the_known_ones() {
    let sum = checksum(
        &*with_usage(Enctype::Aes128Sha1, "9062430c8cda3388922e6d6a509f5b7a", 3),
        b"eight nine ten eleven twelve thirteen",
        12,
    );
    assert_eq!(sum, hex("01a4b088d45628f6946614e3"));
}

/// RFC 8009 Appendix A, "sample results for encryption", usage 2: a confounder, then a text.
#[test]
fn sealed_texts_are_those_of_rfc_8009() {
    let rows = [
        (
            Enctype::Aes128Sha256,
            KEY_19,
            16,
            "56ab21713ff62c0a1457200f6fa9948f",
            "3517d640f50ddc8ad3628722b3569d2ae07493fa8263254080ea65c1008e8fc2
             95fb4852e7d83e1e7c48c37eebe6b0d3",
        ),
        (
            Enctype::Aes128Sha256,
            KEY_19,
            21,
            "a7a4e29a4728ce10664fb64e49ad3fac",
            "720f73b18d9859cd6ccb4346115cd336c70f58edc0c4437c5573544c31c813bce1e6d072c1
             86b39a413c2f92ca9b8334a287ffcbfc",
        ),
        (
            Enctype::Aes256Sha384,
            KEY_20,
            16,
            "53bf8a0d105265d4e276428624ce5e63",
            "bc47ffec7998eb91e8115cf8d19dac4bbbe2e163e87dd37f49beca92027764f6
             8cf51f14d798c2273f35df574d1f932e40c4ff255b36a266",
        ),
        (
            Enctype::Aes256Sha384,
            KEY_20,
            21,
            "763e65367e864f02f55153c7e3b58af1",
            "40013e2df58e8751957d2878bcd2d6fe101ccfd556cb1eae79db3c3ee86429f2b2a602ac86
             fef6ecb647d6295fae077a1feb517508d2c16b4192e01f62",
        ),
    ];
    for (enctype, key, len, confounder, want) in rows {
        let (messages, want, text) = (with_usage(enctype, key, 2), hex(want), counted(len));
        let (data, header) = text.split_last_chunk::<16>().unwrap();
        let confounder = hex(confounder).try_into().unwrap();
        let mut sealed = vec![0; want.len()];
        messages.seal(Plain { confounder, data: &mut &data[..], header: *header }, &mut sealed);
        assert_eq!(sealed, want, "{enctype} {len}");

        let wrap = Wrap { extra_count: 0, rotation: 0, inner: *header };
        let mut opened = vec![0; data.len()];
        messages.open(&mut &want[..], &wrap, &mut opened).unwrap();
        assert_eq!(opened, data);
    }
}
